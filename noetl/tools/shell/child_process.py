"""Runs a program in its own process group, with streamed and bounded output.

A group is stopped with SIGTERM and, after a grace period, with SIGKILL. Background processes of a program are killed
when the program exits, so no process outlives its task. On Linux the program and all processes that it started are
killed when the worker exits (`runtime.process_marks`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from msgspec import Struct

from noetl.runtime.descendants import VARIABLE, become_subreaper, kill_descendants
from noetl.runtime.process_marks import marked_environment, marked_limit
from noetl.runtime.resources import per_loop

LINE_BYTES = 64 * 1024
SLACK = 64 * 1024  # bytes beyond the limit, so that masking sees secrets at the point of truncation
OMITTED = "bytes omitted"
DRAIN_S = 0.25
DRAIN_TIMES = 40
LINES_PER_TURN = 256  # lines delivered before control returns to the event loop

# The only variables of the worker's environment that a program inherits.
INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
)


OnLine = Callable[[str, str], bool]  # line, stream -> whether to deliver more lines


async def _no_wait() -> None:
    return


class OutputOptions(NamedTuple):
    """What is done with the output of a program."""

    max_bytes: int = 1 << 20  # of each stream
    on_line: OnLine | None = None
    room: Callable[[], Awaitable[None]] = _no_wait  # waits between blocks of output, so that the program is slowed down
    mask: Callable[[str], str] = str


class Completed(Struct, frozen=True):
    """Exit status and (possibly truncated) output of a program."""

    status: int  # negative: the signal that killed it
    stdout: str
    stderr: str
    stdout_bytes: int
    stderr_bytes: int
    timed_out: bool = False

    @property
    def is_truncated(self) -> bool:
        """Whether some of the output was omitted."""
        return OMITTED in self.stdout or OMITTED in self.stderr


def base_environment() -> dict[str, str]:
    """The environment of a program."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {"LANG": "C.UTF-8", "PATH": os.defpath, **inherited}


async def run_program(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None = None,
    stdin: bytes | None = None,
    timeout: float | None = None,
    grace: float = 1.0,
    output: OutputOptions,
) -> Completed:
    """Run a program and wait for it. OSError if it cannot be started; a timeout is part of the result.

    When it has ended, every process that it has started is killed, also in other sessions."""
    group = _ProcessGroup(argv, env, cwd, stdin is not None)
    out, err = _Output("stdout", output), _Output("stderr", output)
    streams: list[asyncio.Future[None]] = [
        asyncio.ensure_future(out.read(group.popen.stdout)),
        asyncio.ensure_future(err.read(group.popen.stderr)),
    ]
    if stdin is not None:
        streams.append(asyncio.ensure_future(_write_stdin(group.popen.stdin, stdin)))
    timed_out = False
    try:
        try:
            async with asyncio.timeout(timeout):
                status = await group.wait()
        except TimeoutError:
            timed_out = True
            status = await group.stop(grace)
        # Background processes keep the pipes open; the pipes close when they are killed.
        await asyncio.wait(streams, timeout=DRAIN_S)
        group.kill_all()
        await _drain(streams, out, err)
    except asyncio.CancelledError:
        group.kill(signal.SIGTERM)
        per_loop(_StoppingGroups, _StoppingGroups).add(group.stop(grace))
        raise
    finally:
        for stream in streams:
            stream.cancel()
    return Completed(status, out.text(output.mask), err.text(output.mask), out.size, err.size, timed_out)


async def _drain(streams: Collection[asyncio.Future[None]], *outputs: _Output) -> None:
    """Read the pipes while they make progress, for a limited time: a process may have left the group."""
    for _ in range(DRAIN_TIMES):
        progress = [output.progress for output in outputs]
        _, pending = await asyncio.wait(streams, timeout=DRAIN_S)
        if not pending or progress == [output.progress for output in outputs]:
            return


class _ProcessGroup:
    """A program and every process it starts."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None, feeds: bool) -> None:
        become_subreaper()
        self.mark = env.get(VARIABLE, "")
        # Not asyncio's subprocess: it reports the exit only when all holders have closed the pipes.
        environment = {**env, **marked_environment()}
        with marked_limit() as self.limit:
            self.popen = subprocess.Popen(
                [*_exit_with_parent(), *argv],
                stdin=subprocess.PIPE if feeds else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=environment,
                cwd=cwd,
                start_new_session=True,
            )

    async def wait(self) -> int:
        """The exit status of the program, as soon as it has exited."""
        if self.popen.poll() is not None:
            return self.popen.returncode
        if not hasattr(os, "pidfd_open"):
            return await asyncio.to_thread(self.popen.wait)
        loop = asyncio.get_running_loop()
        exited: asyncio.Future[None] = loop.create_future()
        pidfd = os.pidfd_open(self.popen.pid)

        def on_exit() -> None:
            if not exited.done():
                exited.set_result(None)

        loop.add_reader(pidfd, on_exit)
        try:
            await exited
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        return self.popen.wait()

    async def stop(self, grace: float) -> int:
        """Send SIGTERM to the group, and SIGKILL after the grace period."""
        self.kill(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace):
                return await self.wait()
        except TimeoutError:
            self.kill(signal.SIGKILL)
            return await self.wait()
        finally:
            self.kill_all()

    def kill_all(self) -> None:
        """Kill the group and all processes that have left it."""
        kill_descendants(self.popen.pid, self.mark, self.limit)
        self.kill(signal.SIGKILL)

    def kill(self, number: int) -> None:
        """Send a signal to the whole group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, number)


class _StoppingGroups:
    """Process groups that are being stopped; `close` waits for them."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[int]] = set()

    def add(self, stopping: Coroutine[Any, Any, int]) -> None:
        task = asyncio.ensure_future(stopping)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def close(self) -> None:
        await asyncio.gather(*self.tasks)


async def _write_stdin(pipe: Any, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    with contextlib.suppress(ConnectionError):  # the program did not read all of it
        writer.write(data)
        await writer.drain()
    transport.close()


@cache
def _exit_with_parent() -> tuple[str, ...]:
    """A command prefix that kills the program when this process exits, if the system has one."""
    setpriv = shutil.which("setpriv")
    return (setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()


class _Output:
    """One output stream: delivers its lines, and stores its start and its end."""

    def __init__(self, stream: str, options: OutputOptions) -> None:
        self.stream = stream
        self.max_bytes = options.max_bytes
        self.on_line = options.on_line
        self.room = options.room
        self.size = 0
        self.progress = 0  # increases with every block and line
        self.head = bytearray()
        self.tail = bytearray()
        self.line = b""
        self.skipping = False

    async def read(self, pipe: Any) -> None:
        reader = asyncio.StreamReader(LINE_BYTES)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            while data := await reader.read(65536):
                self.store(data)
                for count, line in enumerate(self.lines(data), 1):
                    self.deliver(line)
                    if count % LINES_PER_TURN == 0:
                        await asyncio.sleep(0)  # do not block the event loop, however much is printed
                await self.room()
        finally:
            transport.close()
            if self.line and not self.skipping:
                self.deliver(self.line)

    def store(self, data: bytes) -> None:
        self.size += len(data)
        self.progress += 1
        free = self.max_bytes + SLACK - len(self.head)
        self.head += data[:free]
        if len(data) > free:
            self.tail += data[max(free, 0) :]
            if len(self.tail) > 2 * (self.max_bytes // 2 + SLACK):
                del self.tail[: len(self.tail) - self.max_bytes // 2 - SLACK]

    def lines(self, data: bytes) -> Iterator[bytes]:
        """The lines completed by this data while `on_line` is set, and the start of a line that is too long."""
        *lines, rest = (self.line + data).split(b"\n") if self.on_line is not None else [b""]
        self.line = rest
        for line in lines:
            if not self.skipping and self.on_line is not None:
                yield line
            self.skipping = False
        if len(self.line) > LINE_BYTES:
            if not self.skipping:
                yield self.line
            self.line, self.skipping = b"", True

    def deliver(self, line: bytes) -> None:
        self.progress += 1
        if self.on_line is not None and not self.on_line(line.decode("utf-8", "replace").rstrip("\r"), self.stream):
            self.on_line = None

    def text(self, mask: Callable[[str], str]) -> str:
        """The stored output, masked and then truncated: all of it, or its start and its end."""
        if self.size <= self.max_bytes:
            return mask(bytes(self.head).decode("utf-8", "replace"))
        half = self.max_bytes // 2
        head = mask(bytes(self.head).decode("utf-8", "replace"))[:half]
        end = bytes(self.tail if len(self.tail) >= half + SLACK else self.head + self.tail)[-(half + SLACK) :]
        tail = mask(end.decode("utf-8", "replace"))[-half:]
        return f"{head}\n... {self.size - self.max_bytes:,} {OMITTED} ...\n{tail}"
