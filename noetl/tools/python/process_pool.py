"""A pool of warm Python processes that run authors' code.

The child's side is `child/`. A process has its own session and process group and an almost empty environment, and
exits with its parent. It handles one call at a time; it is killed when a call is cancelled, times out or breaks the
protocol.

Growth: processes are started on demand, immediately up to the number of cores. Above that, up to eight times as
many, one is added only if calls wait and fewer calls finished in an interval than there are processes: the
processes then wait for something other than the CPU. Idle processes are stopped after a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import marshal
import os
import shutil
import signal
import socket
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, cast

from noetl.errors import NoetlError
from noetl.runtime.descendants import become_subreaper, kill_descendants
from noetl.runtime.process_marks import marked_environment, marked_limit

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
# The path of this package is on sys.path for the import only: authors' code does not see it.
BOOT = (
    "import sys;sys.path.append(sys.argv[1]);"
    "from noetl.tools.python.child.serve import main;"
    "sys.path.pop();main(int(sys.argv[2]),int(sys.argv[3]))"
)
# The only variables of the worker's environment that authors' code inherits.
INHERITED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
)

MAX_CALLS = 2_000  # calls after which a process is replaced
IDLE_S = 60.0
GROW_INTERVAL_S = 0.03
LINE_BYTES = 64 * 1024
READ_BYTES = 64 * 1024  # per read; a larger buffer would be newly mapped memory for each read
MAX_REPLY = 1 << 30


OnLine = Callable[[str, str], None]  # line, stream
Key = tuple[tuple[str, ...], str]  # the command prefix and the owner of a process


class FlowControl(Protocol):
    """An `OnLine` that can slow down the code that prints."""

    def full(self) -> bool:
        """Whether no more lines should be read for now."""

    async def room(self) -> None:
        """Return when more lines can be read, at the latest after a while."""


class ProcessEnded(NoetlError):
    """The process exited while it handled a call."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the Python process exited with status {status}")
        self.status = status  # negative: the signal that killed it


class IsolationUnavailable(NoetlError):
    """`spec.isolation` is not available on this machine."""


class Reply(NamedTuple):
    """Reply of the child: the result (`ok`) or the error as JSON."""

    ok: bool
    body: bytes


def child_environment() -> dict[str, str]:
    """The environment of authors' code."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {"LANG": "C.UTF-8", **inherited, "PYTHONHASHSEED": "0"}  # sets have the same order in every run


def usable_cores() -> int:
    """Number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def launch_prefix(isolation: str | None) -> tuple[str, ...]:
    """The command prefix that starts a process with this isolation."""
    if isolation in (None, "", "process", "shared", "none"):
        return ()
    if isolation != "bwrap":
        raise IsolationUnavailable(f'spec.isolation is "{isolation}"; valid values are "process", "shared" and "bwrap"')
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise IsolationUnavailable("spec.isolation is bwrap, but the program bwrap (bubblewrap) is not installed")
    return (
        *(bwrap, "--die-with-parent", "--unshare-all", "--new-session", "--ro-bind", "/", "/"),
        *("--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--"),
    )


class _OutputPipe:
    """One output pipe of a process, split into lines; a line longer than LINE_BYTES is truncated."""

    def __init__(self, fd: int, stream: str) -> None:
        self.fd = fd
        self.stream = stream
        self.rest = b""
        self.skipping = False

    def read(self, on_line: OnLine | None) -> bool:
        """Read the available data; False at the end of the stream."""
        while True:
            try:
                data = os.read(self.fd, READ_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            self.feed(data, on_line)

    def feed(self, data: bytes, on_line: OnLine | None) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.emit(line, on_line)
            self.skipping = False
        if len(self.rest) > LINE_BYTES:
            self.emit(self.rest, on_line)
            self.rest, self.skipping = b"", True

    def emit(self, line: bytes, on_line: OnLine | None) -> None:
        if on_line is not None and not self.skipping:
            on_line(line[:LINE_BYTES].decode("utf-8", "replace").rstrip("\r"), self.stream)

    def flush(self, on_line: OnLine | None) -> None:
        """Emit a last line without a newline."""
        if self.rest:
            self.emit(self.rest, on_line)
        self.rest, self.skipping = b"", False


class _Process:
    """One child process: its socket, its output pipes, and the call it handles."""

    def __init__(self, prefix: tuple[str, ...], owner: str) -> None:
        become_subreaper()
        self.prefix = prefix
        self.owner = owner  # the playbook whose code it runs
        self.calls = 0
        self.alive = True
        self.mark = ""  # of the processes that the current call starts
        self.future: asyncio.Future[Reply] | None = None
        self.on_line: OnLine | None = None
        self.flow: FlowControl | None = None
        self.buffer = bytearray()
        self.idle_since = 0.0
        self._paused: dict[_OutputPipe, asyncio.Task[None]] = {}  # pipes that are not read for now
        ours, theirs = socket.socketpair()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        try:
            parent = 0 if prefix else os.getpid()
            environment = {**child_environment(), **marked_environment()}
            with marked_limit() as self.limit:
                self.popen = subprocess.Popen(
                    [*prefix, sys.executable, "-P", "-X", "utf8", "-c", BOOT, ROOT, str(theirs.fileno()), str(parent)],
                    stdin=subprocess.DEVNULL,
                    stdout=out_write,
                    stderr=err_write,
                    pass_fds=(theirs.fileno(),),
                    env=environment,
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            os.close(out_read)
            os.close(err_read)
            raise
        finally:
            theirs.close()
            os.close(out_write)
            os.close(err_write)
        ours.setblocking(False)
        self.socket = ours
        self.outputs = (_OutputPipe(out_read, "stdout"), _OutputPipe(err_read, "stderr"))
        for output in self.outputs:
            os.set_blocking(output.fd, False)

    @property
    def key(self) -> Key:
        """The calls that this process may handle."""
        return self.prefix, self.owner

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        # The callbacks must not inherit the context variables of the call that started the process.
        empty = contextvars.Context()
        empty.run(loop.add_reader, self.socket.fileno(), self._on_readable)
        for output in self.outputs:
            empty.run(loop.add_reader, output.fd, self._on_output, output, loop)

    async def call(self, request: bytes, on_line: OnLine | None) -> Reply:
        """Send one request and wait for the reply; ProcessEnded if the process exits first."""
        loop = asyncio.get_running_loop()
        self.calls += 1
        self.on_line = on_line
        # Not isinstance: comparing with a protocol takes as long as sending the request.
        self.flow = cast("FlowControl", on_line) if hasattr(on_line, "room") else None
        self.future = loop.create_future()
        frame = len(request).to_bytes(8, "little") + request
        try:
            sent = self.socket.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(frame)  # the process exited: the end of the stream sets the future
        if sent < len(frame):
            with contextlib.suppress(ConnectionError, OSError):
                await loop.sock_sendall(self.socket, memoryview(frame)[sent:])
        try:
            # Output printed before the reply is readable no later than the reply: the loop has read those lines
            # when it resumes this coroutine.
            reply = await self.future
        finally:
            self.future = None
        for output in self.outputs:
            if output in self._paused:
                output.read(on_line)
            output.flush(on_line)
        self.on_line = self.flow = None
        return reply

    def _on_readable(self) -> None:
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            return self._fail()
        buffer = self.buffer
        buffer += data
        if len(buffer) < 9:
            return None
        size = int.from_bytes(buffer[:8], "little")
        if size > MAX_REPLY or size == 0 or self.future is None:
            return self._fail()  # the author's code wrote to the socket
        if len(buffer) < 8 + size:
            return None
        tag = buffer[8:9]
        body = bytes(memoryview(buffer)[9 : 8 + size])
        self.buffer = bytearray()
        if tag not in b"REre" or len(buffer) > 8 + size:
            return self._fail()
        if tag in b"re":
            self.calls = sys.maxsize  # retire
        if not self.future.done():
            self.future.set_result(Reply(tag in b"Rr", body))
        return None

    def _on_output(self, output: _OutputPipe, loop: asyncio.AbstractEventLoop) -> None:
        if not output.read(self.on_line):
            loop.remove_reader(output.fd)
        elif self.flow is not None and self.flow.full():
            # The code is stopped by its full pipe until there is room.
            loop.remove_reader(output.fd)
            self._paused[output] = loop.create_task(self._continue(output, self.flow, loop))

    async def _continue(self, output: _OutputPipe, flow: FlowControl, loop: asyncio.AbstractEventLoop) -> None:
        await flow.room()
        del self._paused[output]
        if self.alive:
            loop.add_reader(output.fd, self._on_output, output, loop)
            self._on_output(output, loop)

    def _fail(self) -> None:
        self.kill()
        if self.future is not None and not self.future.done():
            self.future.set_exception(ProcessEnded(0))

    def drain_output(self, on_line: OnLine | None) -> None:
        """Read the output that the process printed before it exited."""
        for output in self.outputs:
            output.read(on_line)
            output.flush(on_line)

    def kill(self) -> None:
        """Kill the process and everything it started; idempotent."""
        if not self.alive:
            return
        self.alive = False
        with contextlib.suppress(RuntimeError):  # no running loop: nothing is registered
            loop = asyncio.get_running_loop()
            loop.remove_reader(self.socket.fileno())
            for output in self.outputs:
                loop.remove_reader(output.fd)
        # The process is the subreaper of everything that the code has started.
        kill_descendants(self.popen.pid, self.mark, self.limit)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)

    def close(self) -> int:
        """Kill the process, wait for it, close its descriptors, and return the exit status."""
        self.kill()
        status = self.popen.wait()
        self.socket.close()
        for output in self.outputs:
            if output.fd >= 0:
                os.close(output.fd)
                output.fd = -1
        return status


class PythonPool:
    """The warm processes of one event loop."""

    def __init__(
        self,
        *,
        cores: int | None = None,
        max_processes: int | None = None,
        max_calls: int = MAX_CALLS,
        idle_s: float = IDLE_S,
        grow_interval_s: float = GROW_INTERVAL_S,
    ) -> None:
        self.cores = cores or usable_cores()
        self.max_processes = max_processes or max(8 * self.cores, 16)
        self.max_calls = max_calls
        self.idle_s = idle_s
        self.grow_interval_s = grow_interval_s
        self._all: set[_Process] = set()
        self._fresh = asyncio.Semaphore(self.max_processes)
        self._idle: list[_Process] = []
        self._waiting: deque[tuple[Key, asyncio.Future[_Process]]] = deque()
        self._closing: set[asyncio.Future[int]] = set()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._grow_timer: asyncio.TimerHandle | None = None
        self._finished = self._finished_before = 0  # calls, now and when the grow timer was set
        # If close() is not called, the processes are killed when the pool is collected or Python exits.
        self._finalizer = weakref.finalize(self, _close_all, self._all)

    async def call(
        self,
        request: Mapping[str, Any] | bytes,
        *,
        on_line: OnLine | None = None,
        timeout: float | None = None,
        isolation: str | None = None,
        fresh: bool = False,
        owner: str = "",
        mark: str = "",
    ) -> Reply:
        """Run one request (see `child.code.execute`), given as a mapping or as `marshal` data.

        TimeoutError after `timeout` seconds of running, ProcessEnded if the process exits. `fresh`
        uses a new process for this call only. Code of different owners does not share a process, unless `isolation` is
        `shared`. `mark` marks the processes that the code starts."""
        frame = request if isinstance(request, bytes) else marshal.dumps(dict(request))
        key = (launch_prefix(isolation), "" if isolation == "shared" else owner)
        if fresh:
            async with self._fresh:
                process = self._start(key)
                process.calls = self.max_calls
                process.mark = mark
                return await self._call(process, frame, on_line, timeout)
        process = await self._acquire(key)
        process.mark = mark
        return await self._call(process, frame, on_line, timeout)

    async def _call(self, process: _Process, frame: bytes, on_line: OnLine | None, timeout: float | None) -> Reply:
        try:
            if timeout is None:
                reply = await process.call(frame, on_line)
            else:
                async with asyncio.timeout(timeout):
                    reply = await process.call(frame, on_line)
        except ProcessEnded:
            process.drain_output(on_line)
            status = await self._close_process(process)
            raise ProcessEnded(status) from None
        except BaseException:  # timed out or cancelled: the code must not continue to run
            process.kill()
            self._discard(process)
            raise
        self._release(process)
        return reply

    # ── acquire and release ─────────────────────────────────────────────────────────────

    async def _acquire(self, key: Key) -> _Process:
        for index in range(len(self._idle) - 1, -1, -1):  # the most recently used first
            if self._idle[index].key == key:
                process = self._idle.pop(index)
                if process.alive:
                    return process
                self._discard(process)
        if len(self._all) < self.cores:
            return self._start(key)
        if self._idle:
            self._discard(self._idle.pop(0))  # of another playbook or isolation: its place is used for this one
            return self._start(key)
        waiter: asyncio.Future[_Process] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, waiter))
        self._set_grow_timer()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._release(waiter.result())
            raise

    def _release(self, process: _Process) -> None:
        self._finished += 1
        if not process.alive or process.calls >= self.max_calls:
            self._discard(process)
            self._start_for_waiting()
            return
        for index, (key, waiter) in enumerate(self._waiting):
            if key == process.key and not waiter.done():
                del self._waiting[index]
                waiter.set_result(process)
                return
        if any(not waiter.done() for _, waiter in self._waiting):  # calls of other playbooks wait: make room
            self._discard(process)
            self._start_for_waiting()
            return
        loop = asyncio.get_running_loop()
        process.idle_since = loop.time()
        self._idle.append(process)
        if self._idle_timer is None:
            self._idle_timer = loop.call_later(self.idle_s, self._stop_idle)
        self._start_for_waiting()

    def _start_for_waiting(self) -> None:
        """Start processes for waiting calls, up to the number of cores."""
        while self._waiting and (self._waiting[0][1].done() or len(self._all) < self.cores):
            key, waiter = self._waiting.popleft()
            if not waiter.done():
                self._start_for(key, waiter)

    def _start_for(self, key: Key, waiter: asyncio.Future[_Process]) -> None:
        try:
            waiter.set_result(self._start(key))
        except OSError as failure:
            waiter.set_exception(failure)

    def _set_grow_timer(self) -> None:
        if self._grow_timer is None and len(self._all) < self.max_processes:
            self._finished_before = self._finished
            self._grow_timer = asyncio.get_running_loop().call_later(self.grow_interval_s, self._grow)

    def _grow(self) -> None:
        self._grow_timer = None
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()
        are_blocked = self._finished - self._finished_before < len(self._all)
        if self._waiting and are_blocked and len(self._all) < self.max_processes:
            self._start_for(*self._waiting.popleft())
        if self._waiting:
            self._set_grow_timer()

    def _start(self, key: Key) -> _Process:
        process = _Process(*key)
        self._all.add(process)
        process.attach(asyncio.get_running_loop())
        return process

    # ── stop ────────────────────────────────────────────────────────────────────────────

    def _stop_idle(self) -> None:
        """Stop the processes that have been idle for `idle_s`."""
        self._idle_timer = None
        loop = asyncio.get_running_loop()
        while self._idle and loop.time() - self._idle[0].idle_since >= self.idle_s * 0.99:
            self._discard(self._idle.pop(0))
        if self._idle:
            self._idle_timer = loop.call_later(self.idle_s, self._stop_idle)

    def _discard(self, process: _Process) -> None:
        closing = asyncio.ensure_future(self._close_process(process))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close_process(self, process: _Process) -> int:
        process.kill()
        # In a thread: waiting for a killed process is immediate unless the kernel is blocked in its I/O.
        status = await asyncio.to_thread(process.popen.wait)
        process.close()
        self._all.discard(process)
        self._start_for_waiting()
        return status

    async def close(self) -> None:
        """Stop every process; calls in flight fail."""
        for timer in (self._idle_timer, self._grow_timer):
            if timer is not None:
                timer.cancel()
        self._idle_timer = self._grow_timer = None
        while self._waiting:
            self._waiting.popleft()[1].cancel()
        self._idle.clear()
        for process in list(self._all):
            process.kill()
        await asyncio.gather(*self._closing)
        for process in list(self._all):
            await self._close_process(process)


def _close_all(processes: set[_Process]) -> None:
    for process in list(processes):
        process.close()
