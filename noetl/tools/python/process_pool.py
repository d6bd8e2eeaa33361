"""A pool of warm Python processes that run authors' code: killed on timeout, limited, replaced.

The other end is `python_child.py`. A process is its own session and process group, has an almost
empty environment, and dies with its parent. It serves one call at a time; a call that is cancelled,
times out or breaks the protocol costs the process its life, never the caller's.

Growth. Processes are started when they are needed, at once up to the number of cores. Beyond that,
up to eight times as many, one is added only when calls wait and fewer have ended in a while than there
are processes: then these sleep, or wait for something, and it is not just the machine that is full.
Idle processes are ended after a minute.
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
from typing import Any, NamedTuple

from noetl.errors import NoetlError

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
# The path to this package is there for the import only: authors' code does not see it.
BOOT = (
    "import sys;sys.path.append(sys.argv[1]);"
    "from noetl.tools.python.child.serve import main;"
    "sys.path.pop();main(int(sys.argv[2]),int(sys.argv[3]))"
)
# Nothing of the worker's environment reaches authors' code but what finds programs and libraries.
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

CALLS_EACH = 2_000
IDLE_S = 60.0
PATIENCE_S = 0.03
LINE_BYTES = 64 * 1024
READ_BYTES = 64 * 1024  # at a time; much more would be fresh memory from the kernel for each read
MOST_ANSWER = 1 << 30

OnLine = Callable[[str, str], None]  # line, stream


class ProcessEnded(NoetlError):
    """The process went away while it served a call."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the Python process ended with status {status}")
        self.status = status  # negative: the signal that ended it


class IsolationUnavailable(NoetlError):
    """`spec.isolation` asks for something this machine does not have."""


class Answer(NamedTuple):
    """What came back: JSON of the result (`ok`) or of the error."""

    ok: bool
    body: bytes


def child_environment() -> dict[str, str]:
    """The environment authors' code starts with."""
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {"LANG": "C.UTF-8", **kept, "PYTHONHASHSEED": "0"}  # sets and dicts look the same in every run


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def launch_prefix(isolation: str | None) -> tuple[str, ...]:
    """The command a process is started under."""
    if isolation in (None, "", "process", "none"):
        return ()
    if isolation != "bwrap":
        raise IsolationUnavailable(f'spec.isolation is "{isolation}"; it can be "process" or "bwrap"')
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise IsolationUnavailable("spec.isolation is bwrap, and the program bwrap (bubblewrap) is not installed here")
    return (
        *(bwrap, "--die-with-parent", "--unshare-all", "--new-session", "--ro-bind", "/", "/"),
        *("--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--"),
    )


class _Lines:
    """One output pipe of a process, cut into lines; a line without an end is cut at LINE_BYTES."""

    def __init__(self, fd: int, stream: str) -> None:
        self.fd = fd
        self.stream = stream
        self.rest = b""
        self.skipping = False

    def read(self, on_line: OnLine | None) -> bool:
        """Take what is there; False at the end."""
        while True:
            try:
                data = os.read(self.fd, READ_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            self.take(data, on_line)

    def take(self, data: bytes, on_line: OnLine | None) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.give(line, on_line)
            self.skipping = False
        if len(self.rest) > LINE_BYTES:
            self.give(self.rest, on_line)
            self.rest, self.skipping = b"", True

    def give(self, line: bytes, on_line: OnLine | None) -> None:
        if on_line is not None and not self.skipping:
            on_line(line[:LINE_BYTES].decode("utf-8", "replace").rstrip("\r"), self.stream)

    def end_line(self, on_line: OnLine | None) -> None:
        """A last line without an end."""
        if self.rest:
            self.give(self.rest, on_line)
        self.rest, self.skipping = b"", False


class _Process:
    """One child: its line, its output pipes, and the call it serves."""

    def __init__(self, prefix: tuple[str, ...]) -> None:
        self.prefix = prefix
        self.calls = 0
        self.alive = True
        self.future: asyncio.Future[Answer] | None = None
        self.on_line: OnLine | None = None
        self.buffer = bytearray()
        self.idle_since = 0.0
        ours, theirs = socket.socketpair()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        try:
            parent = 0 if prefix else os.getpid()
            self.popen = subprocess.Popen(
                [*prefix, sys.executable, "-P", "-X", "utf8", "-c", BOOT, ROOT, str(theirs.fileno()), str(parent)],
                stdin=subprocess.DEVNULL,
                stdout=out_write,
                stderr=err_write,
                pass_fds=(theirs.fileno(),),
                env=child_environment(),
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
        self.line = ours
        self.outputs = (_Lines(out_read, "stdout"), _Lines(err_read, "stderr"))
        for output in self.outputs:
            os.set_blocking(output.fd, False)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        # What it says is about whoever calls it then, not about the call that it was started for.
        blank = contextvars.Context()
        blank.run(loop.add_reader, self.line.fileno(), self._readable)
        for output in self.outputs:
            blank.run(loop.add_reader, output.fd, self._output, output, loop)

    async def serve(self, request: bytes, on_line: OnLine | None) -> Answer:
        """One call; ProcessEnded when the process does not live to answer it."""
        loop = asyncio.get_running_loop()
        self.calls += 1
        self.on_line = on_line
        self.future = loop.create_future()
        frame = len(request).to_bytes(8, "little") + request
        try:
            sent = self.line.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(frame)  # it is gone: the end of the line says so to the future
        if sent < len(frame):
            with contextlib.suppress(ConnectionError, OSError):
                await loop.sock_sendall(self.line, memoryview(frame)[sent:])
        try:
            # Whatever was printed before the answer was readable no later than it: the loop saw both at once and
            # has taken the lines by the time it comes back to us.
            answer = await self.future
        finally:
            self.future = None
        for output in self.outputs:
            output.end_line(on_line)
        self.on_line = None
        return answer

    def _readable(self) -> None:
        try:
            data = self.line.recv(READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            return self._lost()
        buffer = self.buffer
        buffer += data
        if len(buffer) < 9:
            return None
        size = int.from_bytes(buffer[:8], "little")
        if size > MOST_ANSWER or size == 0 or self.future is None:
            return self._lost()  # the author's code wrote on our line
        if len(buffer) < 8 + size:
            return None
        tag = buffer[8:9]
        body = bytes(memoryview(buffer)[9 : 8 + size])
        self.buffer = bytearray()
        if tag not in b"REre" or len(buffer) > 8 + size:
            return self._lost()
        if tag in b"re":
            self.calls = sys.maxsize  # retire
        if not self.future.done():
            self.future.set_result(Answer(tag in b"Rr", body))
        return None

    def _output(self, output: _Lines, loop: asyncio.AbstractEventLoop) -> None:
        if not output.read(self.on_line):
            loop.remove_reader(output.fd)

    def _lost(self) -> None:
        self.kill()
        if self.future is not None and not self.future.done():
            self.future.set_exception(ProcessEnded(0))

    def last_words(self, on_line: OnLine | None) -> None:
        """What the process printed before it went away."""
        for output in self.outputs:
            output.read(on_line)
            output.end_line(on_line)

    def kill(self) -> None:
        """End the process and everything it started; safe to call twice."""
        if not self.alive:
            return
        self.alive = False
        with contextlib.suppress(RuntimeError):  # no loop any more: nothing is registered either
            loop = asyncio.get_running_loop()
            loop.remove_reader(self.line.fileno())
            for output in self.outputs:
                loop.remove_reader(output.fd)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)

    def bury(self) -> int:
        """Wait for the end (it was killed), close what is open; the exit status."""
        self.kill()
        status = self.popen.wait()
        self.line.close()
        for output in self.outputs:
            if output.fd >= 0:
                os.close(output.fd)
                output.fd = -1
        return status


class PythonPool:
    """Warm processes of one event loop."""

    def __init__(
        self,
        *,
        cores: int | None = None,
        most: int | None = None,
        calls_each: int = CALLS_EACH,
        idle_s: float = IDLE_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.cores = cores or usable_cores()
        self.most = most or max(8 * self.cores, 16)
        self.calls_each = calls_each
        self.idle_s = idle_s
        self.patience_s = patience_s
        self._all: set[_Process] = set()
        self._fresh = asyncio.Semaphore(self.most)
        self._idle: list[_Process] = []
        self._waiting: deque[tuple[tuple[str, ...], asyncio.Future[_Process]]] = deque()
        self._burials: set[asyncio.Future[int]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._grower: asyncio.TimerHandle | None = None
        # Without close(): when the pool is collected or Python exits, no process stays behind.
        self._ended = self._ended_before = 0  # calls, now and when the grower last looked
        self._finalizer = weakref.finalize(self, _bury_all, self._all)

    async def call(
        self,
        request: Mapping[str, Any] | bytes,
        *,
        on_line: OnLine | None = None,
        timeout: float | None = None,
        isolation: str | None = None,
        fresh: bool = False,
    ) -> Answer:
        """Run one request (see `python_child.code.execute`), as it is or as `marshal` data.

        TimeoutError after `timeout` seconds of running, ProcessEnded when the process died of it. `fresh`
        uses a process that has run nothing before and will run nothing after."""
        frame = request if isinstance(request, bytes) else marshal.dumps(dict(request))
        prefix = launch_prefix(isolation)
        if fresh:
            async with self._fresh:
                process = self._start(prefix)
                process.calls = self.calls_each
                return await self._serve(process, frame, on_line, timeout)
        return await self._serve(await self._acquire(prefix), frame, on_line, timeout)

    async def _serve(self, process: _Process, frame: bytes, on_line: OnLine | None, timeout: float | None) -> Answer:
        try:
            if timeout is None:
                answer = await process.serve(frame, on_line)
            else:
                async with asyncio.timeout(timeout):
                    answer = await process.serve(frame, on_line)
        except ProcessEnded:
            process.last_words(on_line)
            status = await self._bury(process)
            raise ProcessEnded(status) from None
        except BaseException:  # timed out or cancelled: the work must really stop
            process.kill()
            self._discard(process)
            raise
        self._release(process)
        return answer

    # ── who serves next ─────────────────────────────────────────────────────────────────

    async def _acquire(self, prefix: tuple[str, ...]) -> _Process:
        for place in range(len(self._idle) - 1, -1, -1):  # the most recently used is the warmest
            if self._idle[place].prefix == prefix:
                process = self._idle.pop(place)
                if process.alive:
                    return process
                self._discard(process)
        if len(self._all) < self.cores:
            return self._start(prefix)
        if self._idle and len(self._all) >= self.most:
            self._discard(self._idle.pop(0))  # of another isolation: make room
        waiter: asyncio.Future[_Process] = asyncio.get_running_loop().create_future()
        self._waiting.append((prefix, waiter))
        self._expect_growth()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._release(waiter.result())
            raise

    def _release(self, process: _Process) -> None:
        self._ended += 1
        if not process.alive or process.calls >= self.calls_each:
            self._discard(process)
            self._serve_waiting()
            return
        for place, (prefix, waiter) in enumerate(self._waiting):
            if prefix == process.prefix and not waiter.done():
                del self._waiting[place]
                waiter.set_result(process)
                return
        loop = asyncio.get_running_loop()
        process.idle_since = loop.time()
        self._idle.append(process)
        if self._sweeper is None:
            self._sweeper = loop.call_later(self.idle_s, self._sweep)
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        """A place became free: start a process for the first call that waits."""
        while self._waiting and (self._waiting[0][1].done() or len(self._all) < self.cores):
            prefix, waiter = self._waiting.popleft()
            if not waiter.done():
                self._start_for(prefix, waiter)

    def _start_for(self, prefix: tuple[str, ...], waiter: asyncio.Future[_Process]) -> None:
        try:
            waiter.set_result(self._start(prefix))
        except OSError as failure:
            waiter.set_exception(failure)

    def _expect_growth(self) -> None:
        if self._grower is None and len(self._all) < self.most:
            self._ended_before = self._ended
            self._grower = asyncio.get_running_loop().call_later(self.patience_s, self._grow)

    def _grow(self) -> None:
        self._grower = None
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()
        is_stuck = self._ended - self._ended_before < len(self._all)
        if self._waiting and is_stuck and len(self._all) < self.most:
            self._start_for(*self._waiting.popleft())
        if self._waiting:
            self._expect_growth()

    def _start(self, prefix: tuple[str, ...]) -> _Process:
        process = _Process(prefix)
        self._all.add(process)
        process.attach(asyncio.get_running_loop())
        return process

    # ── ends ────────────────────────────────────────────────────────────────────────────

    def _sweep(self) -> None:
        """End what has been idle for long."""
        self._sweeper = None
        loop = asyncio.get_running_loop()
        while self._idle and loop.time() - self._idle[0].idle_since >= self.idle_s * 0.99:
            self._discard(self._idle.pop(0))
        if self._idle:
            self._sweeper = loop.call_later(self.idle_s, self._sweep)

    def _discard(self, process: _Process) -> None:
        burial = asyncio.ensure_future(self._bury(process))
        self._burials.add(burial)
        burial.add_done_callback(self._burials.discard)

    async def _bury(self, process: _Process) -> int:
        process.kill()
        # Waiting for a killed process takes no time, except when the kernel is stuck in its I/O.
        status = await asyncio.to_thread(process.popen.wait)
        process.bury()
        self._all.discard(process)
        self._serve_waiting()
        return status

    async def close(self) -> None:
        """End every process; calls in flight fail."""
        for timer in (self._sweeper, self._grower):
            if timer is not None:
                timer.cancel()
        self._sweeper = self._grower = None
        while self._waiting:
            self._waiting.popleft()[1].cancel()
        self._idle.clear()
        for process in list(self._all):
            process.kill()
        await asyncio.gather(*self._burials)
        for process in list(self._all):
            await self._bury(process)


def _bury_all(processes: set[_Process]) -> None:
    for process in list(processes):
        process.bury()
