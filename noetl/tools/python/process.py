"""One warm Python process that runs authors' code; its own side is `child/`.

A process has its own session and process group and an almost empty environment, and exits with its parent. It gets
one or more calls in a message and handles them one after the other. The first call of a message starts at once; for
each other call there is one byte, a token, in a socket from which both the process and this side read: the process
takes a token before it starts the next call, and this side takes tokens back together with the last calls. A byte is
read by one of them only, so a call that was taken back never starts. Each call is replied to before the next one
starts: the running call is the first one without a reply. A process that finds no token reports it: if calls are left
then, the code has read their tokens, and the process is replaced. The code cannot write tokens, because only this side
has the other end of the socket, and cannot make reads wait, because they do not depend on flags of the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol, cast

from msgspec import Struct

from noetl.errors import NoetlError
from noetl.runtime.descendants import become_subreaper, kill_descendants
from noetl.runtime.process_marks import marked_environment, marked_limit

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
# The path of this package is on sys.path for the import only: authors' code does not see it.
BOOT = (
    "import sys;sys.path.append(sys.argv[1]);"
    "from noetl.tools.python.child.serve import main;"
    "sys.path.pop();main(*map(int,sys.argv[2:]))"
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

LINE_BYTES = 64 * 1024
READ_BYTES = 64 * 1024  # per read; a larger buffer would be newly mapped memory for each read
MAX_REPLY = 1 << 30
HEAD = 14  # bytes of a reply before its body: size, tag, whether output is unread, microseconds
LONG_CALL_S = 0.02  # after which the calls behind a running one are taken back
BATCHES = sys.platform == "linux"  # elsewhere a process cannot tell whether its output was read


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


class Reply(NamedTuple):
    """Reply of the child: the result (`ok`) or the error as JSON."""

    ok: bool
    body: bytes


class Call(Struct, eq=False):
    """One call: its request, its limits, and the future of its reply."""

    key: Key
    frame: bytes
    future: asyncio.Future[Reply]
    group: Hashable = None  # calls of one group may share a message; None: never
    timeout: float | None = None
    on_line: OnLine | None = None
    mark: str = ""  # of the processes that the code starts
    process: Process | None = None  # that has received it and not replied


class Listener(Protocol):
    """Receives the events of a process."""

    def replied(self, process: Process, call: Call, seconds: float, printed: bool) -> None:
        """A call has ended."""

    def finished(self, process: Process) -> None:
        """All calls have ended."""

    def interrupt(self, process: Process) -> None:
        """Take back what has not started."""

    def redistribute(self, calls: Iterable[Call]) -> None:
        """Let calls that were taken back start elsewhere."""

    def timed_out(self, process: Process) -> None:
        """The running call has exceeded its time."""

    def exited(self, process: Process) -> None:
        """The process has exited or broken the protocol."""


def child_environment() -> dict[str, str]:
    """The environment of authors' code."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {"LANG": "C.UTF-8", **inherited, "PYTHONHASHSEED": "0"}  # sets have the same order in every run


class OutputPipe:
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
        """Emit the lines that these bytes end."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.emit(line, on_line)
            self.skipping = False
        if len(self.rest) > LINE_BYTES:
            self.emit(self.rest, on_line)
            self.rest, self.skipping = b"", True

    def emit(self, line: bytes, on_line: OnLine | None) -> None:
        """Pass on one line, unless it is the rest of a truncated one."""
        if on_line is not None and not self.skipping:
            on_line(line[:LINE_BYTES].decode("utf-8", "replace").rstrip("\r"), self.stream)

    def flush(self, on_line: OnLine | None) -> None:
        """Emit a last line without a newline."""
        if self.rest:
            self.emit(self.rest, on_line)
        self.rest, self.skipping = b"", False


class Process:
    """One child process: its socket, its output pipes, and the calls it was sent."""

    def __init__(self, key: Key, listener: Listener) -> None:
        become_subreaper()
        self.key = key  # the calls that it may handle
        self._listener = weakref.ref(listener)
        self.handled = 0  # calls
        self.alive = True
        self.retired = False  # it asked not to be used again
        self.interrupted = False  # calls of its last message were taken back
        self.calls: deque[Call] = deque()  # without a reply; the first one is running
        self.mark = ""  # of the processes that the last call has started
        self.buffer = bytearray()
        self._messages = 0  # that were sent
        self.idle_since = 0.0
        self._began = 0.0  # the running call
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._paused: dict[OutputPipe, asyncio.Task[None]] = {}  # pipes that are not read for now
        ours, theirs = socket.socketpair()
        self._tokens = socket.socketpair()  # read by both, written by this side
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        try:
            prefix = key[0]
            parent = 0 if prefix else os.getpid()
            environment = {**child_environment(), **marked_environment()}
            numbers = map(str, (theirs.fileno(), self._tokens[0].fileno(), parent))
            with marked_limit() as self.limit:
                self.popen = subprocess.Popen(
                    [*prefix, sys.executable, "-P", "-X", "utf8", "-c", BOOT, ROOT, *numbers],
                    stdin=subprocess.DEVNULL,
                    stdout=out_write,
                    stderr=err_write,
                    pass_fds=(theirs.fileno(), self._tokens[0].fileno()),
                    env=environment,
                    start_new_session=True,
                )
        except BaseException:
            for each in (ours, *self._tokens):
                each.close()
            for fd in (out_read, err_read):
                os.close(fd)
            raise
        finally:
            theirs.close()
            os.close(out_write)
            os.close(err_write)
        ours.setblocking(False)
        self.socket = ours
        self.outputs = (OutputPipe(out_read, "stdout"), OutputPipe(err_read, "stderr"))
        for fd in (out_read, err_read):
            os.set_blocking(fd, False)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read replies and output in this loop."""
        # The callbacks must not inherit the context variables of the call that started the process.
        empty = contextvars.Context()
        empty.run(loop.add_reader, self.socket.fileno(), self._on_readable)
        for output in self.outputs:
            empty.run(loop.add_reader, output.fd, self._on_output, output, loop)

    # ── calls ───────────────────────────────────────────────────────────────────────────

    def send(self, calls: Sequence[Call]) -> None:
        """Send calls in one message; the process is idle."""
        loop = asyncio.get_running_loop()
        parts = [b""]
        for call in calls:
            call.process = self
            parts += (len(call.frame).to_bytes(8, "little"), call.frame)
        parts[0] = sum(map(len, parts)).to_bytes(8, "little")
        message = b"".join(parts)
        self.calls.extend(calls)
        self.handled += len(calls)
        self.interrupted = False
        self._messages += 1
        if len(calls) > 1:
            with contextlib.suppress(OSError):  # the code has shut the socket down: the process finds no token
                # Before the message, because the process does not wait.
                self._tokens[1].send(b"." * (len(calls) - 1), socket.MSG_DONTWAIT)
        try:
            sent = self.socket.send(message)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(message)  # the process exited: the end of the stream is reported
        if sent < len(message):
            self._sending = loop.create_task(self._send_rest(loop, memoryview(message)[sent:]))
        self._begin(loop)

    async def _send_rest(self, loop: asyncio.AbstractEventLoop, rest: memoryview) -> None:
        with contextlib.suppress(ConnectionError, OSError):
            await loop.sock_sendall(self.socket, rest)

    def take_back(self) -> list[Call]:
        """Take back the calls that have not started; they never will. At most one call is running then."""
        try:
            count = len(self._tokens[0].recv(READ_BYTES, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return []
        self.interrupted = True
        self.handled -= count
        taken = [self.calls.pop() for _ in range(count)]
        for call in taken:
            call.process = None
        return taken[::-1]

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """The first of the calls is running now, as far as the replies show."""
        call = self.calls[0]
        self.mark = call.mark
        self._began = loop.time()
        if call.timeout is not None or len(self.calls) > 1:
            self._set_timer(loop)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        timeout = self.calls[0].timeout
        seconds = min(LONG_CALL_S, timeout or LONG_CALL_S) if len(self.calls) > 1 else timeout
        if seconds is None:
            return
        if self._timer is not None:
            if self._timer.when() <= self._began + seconds:
                return  # it is set again when it expires
            self._timer.cancel()
        self._timer = loop.call_at(self._began + seconds, self._on_timer, loop)

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        listener = self._listener()
        if not self.calls or not self.alive or listener is None:
            return
        seconds, timeout = loop.time() - self._began, self.calls[0].timeout
        if timeout is not None and seconds >= timeout - 1e-3:
            listener.timed_out(self)
        elif len(self.calls) > 1 and seconds >= LONG_CALL_S - 1e-3:
            listener.interrupt(self)
        if self.calls and self.alive and self._timer is None:
            self._set_timer(loop)

    # ── replies ─────────────────────────────────────────────────────────────────────────

    def _on_readable(self) -> None:
        listener = self._listener()
        if listener is None:
            self.kill()
        elif not self.receive():
            listener.exited(self)

    def receive(self, *, everything: bool = False) -> bool:
        """Process the replies that have arrived; False if the process has exited or broken the protocol."""
        while self.alive:
            try:
                data = self.socket.recv(READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                return False
            self.buffer += data
            if not self._read_replies():
                return False
            if not everything:
                break
        return True

    def _read_replies(self) -> bool:
        buffer, start = self.buffer, 0
        call: Call | None = None
        listener = self._listener()
        loop = asyncio.get_running_loop()
        while len(buffer) - start >= HEAD:
            size = int.from_bytes(buffer[start : start + 8], "little")
            tag = buffer[start + 8 : start + 9]
            if tag == b"T" and size == HEAD - 8:
                if self.calls and int.from_bytes(buffer[start + 10 : start + HEAD], "little") == self._messages:
                    return False  # they were not taken back
                start += HEAD
                continue
            if size > MAX_REPLY or size < HEAD - 8 or not self.calls or tag not in b"REre" or listener is None:
                return False  # the author's code wrote to the socket
            if len(buffer) - start < 8 + size:
                break
            micros = int.from_bytes(buffer[start + 10 : start + HEAD], "little")
            body = bytes(memoryview(buffer)[start + HEAD : start + 8 + size])
            printed = buffer[start + 9] == 43 or not BATCHES
            start += 8 + size
            call = self.calls.popleft()
            call.process = None
            self._end_output(call, printed)
            self.retired = self.retired or tag in b"re"
            listener.replied(self, call, micros / 1e6, printed)
            if not call.future.done():
                call.future.set_result(Reply(tag in b"Rr", body))
            if self.calls:
                self._begin(loop)
        if not start:
            return True
        self.buffer = buffer[start:]
        assert listener is not None
        unstarted = self.take_back() if self.retired else []  # it starts no more
        is_intact = not self.buffer or bool(self.calls)
        if call is not None and not self.calls and is_intact:
            listener.finished(self)
        if unstarted:
            listener.redistribute(unstarted)
        return is_intact and not (self.retired and self.calls)

    def _end_output(self, call: Call, printed: bool) -> None:
        """Read the output that precedes a reply, and end its last line."""
        for output in self.outputs:
            if printed:
                output.read(call.on_line)
            if output.rest:
                output.flush(call.on_line)

    # ── output ──────────────────────────────────────────────────────────────────────────

    def _on_output(self, output: OutputPipe, loop: asyncio.AbstractEventLoop) -> None:
        listener = self._listener()
        if len(self.calls) > 1 and listener is not None:
            listener.interrupt(self)  # the lines are those of the call that is running then
        if not self.alive:
            return
        call = self.calls[0] if self.calls else None
        on_line = None if call is None else call.on_line
        # Not isinstance: comparing with a protocol takes as long as sending a request.
        flow = cast("FlowControl", on_line) if hasattr(on_line, "room") else None
        if not output.read(on_line):
            loop.remove_reader(output.fd)
        elif flow is not None and flow.full():
            # The code is stopped by its full pipe until there is room.
            loop.remove_reader(output.fd)
            self._paused[output] = loop.create_task(self._continue(output, flow, loop))

    async def _continue(self, output: OutputPipe, flow: FlowControl, loop: asyncio.AbstractEventLoop) -> None:
        await flow.room()
        del self._paused[output]
        if self.alive:
            loop.add_reader(output.fd, self._on_output, output, loop)
            self._on_output(output, loop)

    def drain_output(self, on_line: OnLine | None) -> None:
        """Read the output that the process printed before it exited."""
        for output in self.outputs:
            output.read(on_line)
            output.flush(on_line)

    # ── end ─────────────────────────────────────────────────────────────────────────────

    def is_runnable(self) -> bool:
        """Whether the running call uses the CPU or waits for it; False where the system does not tell."""
        if not self.calls:
            return False
        try:
            with open(f"/proc/{self.popen.pid}/stat", "rb") as file:
                return file.read().rpartition(b") ")[2].startswith(b"R")
        except OSError:
            return False

    def kill(self) -> None:
        """Kill the process and everything it started; idempotent."""
        if not self.alive:
            return
        self.alive = False
        if self._sending is not None:
            self._sending.cancel()
        if self._timer is not None:
            self._timer.cancel()
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
        for each in (self.socket, *self._tokens):
            each.close()
        for output in self.outputs:
            if output.fd >= 0:
                os.close(output.fd)
            output.fd = -1
        return status
