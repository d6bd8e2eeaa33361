"""Run a program as a process group of its own: output streamed and bounded, stopped for good.

A group is asked to end (SIGTERM) and, after a grace, made to (SIGKILL). What a program leaves running in
the background when it ends is ended with it, so nothing outlives its task; and on Linux the program is
told to die when the worker dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import Struct

from noetl.runtime.resources import per_loop

LINE_BYTES = 64 * 1024
SLACK = 64 * 1024  # kept beyond the limit, so that masking sees what the cut goes through
DRAIN_S = 0.25
DRAIN_TIMES = 40
TURN = 256  # lines that are handed on before others have their turn

# Nothing of the worker's own environment reaches a program but what finds programs and files.
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


OnLine = Callable[[str, str], bool]  # line, stream -> whether more are wanted


class Ended(Struct, frozen=True):
    """How a program ended; the output is what was kept of it."""

    status: int  # negative: the signal that ended it
    stdout: str
    stderr: str
    stdout_bytes: int
    stderr_bytes: int
    timed_out: bool = False

    @property
    def was_cut(self) -> bool:
        """Whether some of the output was left out."""
        return "bytes left out" in self.stdout or "bytes left out" in self.stderr


def base_environment() -> dict[str, str]:
    """The environment a program starts with."""
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {"LANG": "C.UTF-8", "PATH": os.defpath, **kept}


async def run_program(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None = None,
    stdin: bytes | None = None,
    timeout: float | None = None,
    grace: float = 1.0,
    most: int = 1 << 20,
    on_line: OnLine | None = None,
    mask: Callable[[str], str] = lambda text: text,
) -> Ended:
    """Run to the end. OSError when it cannot be started; a timeout is told in the answer."""
    group = _Group(argv, env, cwd, stdin is not None)
    out = _Output("stdout", most, on_line)
    err = _Output("stderr", most, on_line)
    streams: list[asyncio.Future[None]] = [
        asyncio.ensure_future(out.read(group.popen.stdout)),
        asyncio.ensure_future(err.read(group.popen.stderr)),
    ]
    if stdin is not None:
        streams.append(asyncio.ensure_future(_feed(group.popen.stdin, stdin)))
    timed_out = False
    try:
        try:
            async with asyncio.timeout(timeout):
                status = await group.ended()
        except TimeoutError:
            timed_out = True
            status = await group.stop(grace)
        # What still runs in the background holds the pipes open; it is ended, and then they close.
        await asyncio.wait(streams, timeout=DRAIN_S)
        group.kill(signal.SIGKILL)
        await _drained(streams, out, err)
    except asyncio.CancelledError:
        group.kill(signal.SIGTERM)
        per_loop(_Stopping, _Stopping).add(group.stop(grace))
        raise
    finally:
        for stream in streams:
            stream.cancel()
    return Ended(status, out.text(mask), err.text(mask), out.size, err.size, timed_out)


async def _drained(streams: Collection[asyncio.Future[None]], *outputs: _Output) -> None:
    """Read what the pipes still hold, as long as more comes, but not for ever: a process may have left the group."""
    for _ in range(DRAIN_TIMES):
        seen = [output.seen for output in outputs]
        _, waiting = await asyncio.wait(streams, timeout=DRAIN_S)
        if not waiting or seen == [output.seen for output in outputs]:
            return


class _Group:
    """A program and everything it starts."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None, feeds: bool) -> None:
        # Not asyncio's own: it calls a process ended only when nobody holds its pipes any more.
        self.popen = subprocess.Popen(
            [*_die_with_us(), *argv],
            stdin=subprocess.PIPE if feeds else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )

    async def ended(self) -> int:
        """The exit status of the program, as soon as it has ended."""
        if self.popen.poll() is not None:
            return self.popen.returncode
        if not hasattr(os, "pidfd_open"):
            return await asyncio.to_thread(self.popen.wait)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        watch = os.pidfd_open(self.popen.pid)

        def tell() -> None:
            if not done.done():
                done.set_result(None)

        loop.add_reader(watch, tell)
        try:
            await done
        finally:
            loop.remove_reader(watch)
            os.close(watch)
        return self.popen.wait()

    async def stop(self, grace: float) -> int:
        """Ask the group to end; after the grace, end it."""
        self.kill(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace):
                return await self.ended()
        except TimeoutError:
            self.kill(signal.SIGKILL)
            return await self.ended()
        finally:
            self.kill(signal.SIGKILL)

    def kill(self, number: int) -> None:
        """Signal the whole group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, number)


class _Stopping:
    """Groups that are on their way out; closing waits for them."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[int]] = set()

    def add(self, stopping: Coroutine[Any, Any, int]) -> None:
        task = asyncio.ensure_future(stopping)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def close(self) -> None:
        await asyncio.gather(*self.tasks)


async def _feed(pipe: Any, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    with contextlib.suppress(ConnectionError):  # it did not want all of it
        writer.write(data)
        await writer.drain()
    transport.close()


@cache
def _die_with_us() -> tuple[str, ...]:
    """A prefix that ends the program when this process ends, where the system has one."""
    setpriv = shutil.which("setpriv")
    return (setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()


class _Output:
    """One stream: its lines handed on, its beginning and its end kept."""

    def __init__(self, stream: str, most: int, on_line: OnLine | None) -> None:
        self.stream = stream
        self.most = most
        self.on_line = on_line
        self.size = 0
        self.seen = 0  # grows as long as anything is done
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
                self.keep(data)
                for count, line in enumerate(self.lines(data), 1):
                    self.give(line)
                    if count % TURN == 0:
                        await asyncio.sleep(0)  # others have their turn, however much is printed
        finally:
            transport.close()
            if self.line and not self.skipping:
                self.give(self.line)

    def keep(self, data: bytes) -> None:
        self.size += len(data)
        self.seen += 1
        room = self.most + SLACK - len(self.head)
        self.head += data[:room]
        if len(data) > room:
            self.tail += data[max(room, 0) :]
            if len(self.tail) > 2 * (self.most // 2 + SLACK):
                del self.tail[: len(self.tail) - self.most // 2 - SLACK]

    def lines(self, data: bytes) -> Iterator[bytes]:
        """The lines that end here, as long as anybody wants them, and the beginning of one that is too long."""
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

    def give(self, line: bytes) -> None:
        self.seen += 1
        if self.on_line is not None and not self.on_line(line.decode("utf-8", "replace").rstrip("\r"), self.stream):
            self.on_line = None

    def text(self, mask: Callable[[str], str]) -> str:
        """What is kept, masked and then cut: all of it, or its beginning and its end."""
        if self.size <= self.most:
            return mask(bytes(self.head).decode("utf-8", "replace"))
        half = self.most // 2
        head = mask(bytes(self.head).decode("utf-8", "replace"))[:half]
        end = bytes(self.tail if len(self.tail) >= half + SLACK else self.head + self.tail)[-(half + SLACK) :]
        tail = mask(end.decode("utf-8", "replace"))[-half:]
        return f"{head}\n... {self.size - self.most:,} bytes left out ...\n{tail}"
