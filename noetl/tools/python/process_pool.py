"""A pool of warm Python processes that run authors' code (`process.py`).

A process handles one call at a time; it is killed when a call is cancelled, times out or breaks the protocol.

Growth: processes are started on demand, immediately up to the number of cores. Above that, up to eight times as
many, one is added only if calls wait, fewer calls finished in an interval than there are processes, and fewer
processes than cores can run: the others wait for something other than the CPU. Idle processes are stopped after a
minute.

Batches: while calls wait, a process that becomes free gets several of them in one message, if calls of the same code
were short and printed nothing. Those that have not started are taken back when one before them turns out to take long,
prints, fails its process or is cancelled, and when another process is free.
"""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import os
import shutil
import weakref
from collections import deque
from collections.abc import Coroutine, Hashable, Iterable, Mapping
from typing import Any

from noetl.errors import NoetlError
from noetl.tools.python.process import BATCHES, Call, Key, OnLine, Process, ProcessEnded, Reply

MAX_CALLS = 2_000  # calls after which a process is replaced
IDLE_S = 60.0
GROW_INTERVAL_S = 0.03
MAX_BATCH = 32  # calls in one message
BATCH_S = 0.01  # that the calls of one message are expected to take together
BATCH_BYTES = 64 * 1024
MAX_GROUPS = 1000  # whose durations are remembered


class IsolationUnavailable(NoetlError):
    """`spec.isolation` is not available on this machine."""


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
        self._all: set[Process] = set()
        self._fresh = asyncio.Semaphore(self.max_processes)
        self._idle: list[Process] = []
        self._waiting: deque[Call] = deque()
        self._seconds: dict[Hashable, float] = {}  # that a call of a group takes
        self._closing: set[asyncio.Future[Any]] = set()
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
        code: Hashable = None,
    ) -> Reply:
        """Run one request (see `child.code.execute`), given as a mapping or as `marshal` data.

        TimeoutError after `timeout` seconds of running, ProcessEnded if the process exits. `fresh`
        uses a new process for this call only. Code of different owners does not share a process, unless `isolation` is
        `shared`. `mark` marks the processes that the code starts. Calls with equal `code` may be sent together."""
        call = Call(
            key=(launch_prefix(isolation), "" if isolation == "shared" else owner),
            frame=request if isinstance(request, bytes) else marshal.dumps(dict(request)),
            future=asyncio.get_running_loop().create_future(),
            group=None if code is None or not BATCHES else (owner, code),
            timeout=timeout,
            on_line=on_line,
            mark=mark,
        )
        if fresh:
            async with self._fresh:
                process = self._start(call.key)
                process.retired = True
                process.send([call])
                return await self._reply(call)
        self._submit(call)
        return await self._reply(call)

    async def _reply(self, call: Call) -> Reply:
        try:
            return await call.future
        except asyncio.CancelledError:
            self._withdraw(call)
            raise

    # ── distribution ────────────────────────────────────────────────────────────────────

    def _submit(self, call: Call) -> None:
        """Send a call to an idle or new process, or let it wait."""
        for index in range(len(self._idle) - 1, -1, -1):  # the most recently used first
            if self._idle[index].key == call.key:
                self._idle.pop(index).send([call])
                return
        if len(self._all) >= self.cores and self._idle:
            self._discard(self._idle.pop(0))  # of another playbook or isolation: its place is used for this one
        elif len(self._all) >= self.cores:
            self._waiting.append(call)
            self._set_grow_timer()
            return
        self._start(call.key).send([call])

    def _next_calls(self, process: Process) -> list[Call]:
        """Remove the next waiting calls that this process may handle."""
        waiting = self._waiting
        index = next((index for index, call in enumerate(waiting) if call.key == process.key), None)
        if index is None:
            return []
        first = waiting[index]
        most = 1 if process.interrupted or first.group is None else self._batch_size(process, first.group)
        found: list[Call] = []
        size = 0
        while index < len(waiting) and len(found) < most:
            call = waiting[index]
            size += len(call.frame)
            if found and (call.group != first.group or call.key != first.key or size > BATCH_BYTES):
                break
            found.append(call)
            del waiting[index]
        return found

    def _batch_size(self, process: Process, group: Hashable) -> int:
        seconds = self._seconds.get(group, float("inf"))
        share = -(-len(self._waiting) // max(1, len(self._all)))  # other processes become free as well
        return max(1, min(MAX_BATCH, share, int(BATCH_S / max(seconds, 1e-6)), self.max_calls - process.handled))

    def replied(self, process: Process, call: Call, seconds: float, printed: bool) -> None:
        """Remember how long calls of this code take; those that print are sent alone, so that lines are not mixed."""
        self._finished += 1
        if call.group is None:
            return
        if printed:
            seconds = float("inf")
        known = self._seconds.get(call.group)
        if known is None and len(self._seconds) >= MAX_GROUPS:
            self._seconds.clear()
        self._seconds[call.group] = seconds if known is None else max(seconds, (known + seconds) / 2)

    def finished(self, process: Process) -> None:
        """Give the process the next calls, or keep it idle."""
        if not process.alive or process.retired or process.handled >= self.max_calls:
            self._discard(process)
            self._start_for_waiting()
            return
        if calls := self._next_calls(process) or self._calls_of_others(process):
            process.send(calls)
            return
        if self._waiting:  # calls of other playbooks wait: make room
            self._discard(process)
            self._start_for_waiting()
            return
        loop = asyncio.get_running_loop()
        process.idle_since = loop.time()
        self._idle.append(process)
        if self._idle_timer is None:
            self._idle_timer = loop.call_later(self.idle_s, self._stop_idle)

    def _calls_of_others(self, process: Process) -> list[Call]:
        """Calls that another process has received and not started."""
        if self._waiting:
            return []
        for other in list(self._all):
            if len(other.calls) > 2 and other.key == process.key:
                self._waiting.extend(other.take_back())
                found = self._next_calls(process)
                if not other.calls:
                    self.finished(other)
                if found:
                    return found
        return []

    # ── calls that end before their time ────────────────────────────────────────────────

    def interrupt(self, process: Process) -> None:
        """Take back what has not started, and process what has ended: the first call is the running one."""
        self._settle(process, process.calls[0])

    def timed_out(self, process: Process) -> None:
        """Kill the process because of its running call; the others start elsewhere."""
        call = process.calls[0]
        if self._settle(process, call):
            self._kill(process)
            if not call.future.done():
                call.future.set_exception(TimeoutError())

    def _withdraw(self, call: Call) -> None:
        """Do not run a call, or kill its process if it is running."""
        if call.process is None:
            with contextlib.suppress(ValueError):
                self._waiting.remove(call)
        elif self._settle(call.process, call, withdraw=True):
            self._kill(call.process)  # the code must not continue to run

    def _settle(self, process: Process, call: Call, *, withdraw: bool = False) -> bool:
        """Take back what has not started, and process what has ended; whether this call is running."""
        taken = process.take_back()
        if process.calls and not process.receive(everything=True):
            self.exited(process)
        is_running = call.process is process
        if withdraw and call in taken:
            taken.remove(call)
        self._waiting.extendleft(reversed(taken))
        if process.alive and not process.calls and process not in self._idle:
            self.finished(process)
        self.redistribute(())
        return is_running

    def exited(self, process: Process) -> None:
        """The running call fails; the others start elsewhere."""
        taken = process.take_back()
        failed = list(process.calls)
        process.calls.clear()
        process.kill()
        if process in self._idle:
            self._idle.remove(process)
        for call in failed:
            call.process = None
        if failed:
            process.drain_output(failed[0].on_line)
        self._in_background(self._report_exit(process, failed))
        self.redistribute(taken)

    async def _report_exit(self, process: Process, failed: list[Call]) -> None:
        status = await self._close_process(process)
        for call in failed:
            if not call.future.done():
                call.future.set_exception(ProcessEnded(status))

    def redistribute(self, calls: Iterable[Call]) -> None:
        """Let calls start elsewhere, before those that wait."""
        self._waiting.extendleft(reversed(list(calls)))
        for process in list(self._idle):
            if found := self._next_calls(process):
                self._idle.remove(process)
                process.send(found)
        self._start_for_waiting()
        if self._waiting:
            self._set_grow_timer()

    def _kill(self, process: Process) -> None:
        for call in process.calls:
            call.process = None
        process.calls.clear()
        self._discard(process)

    # ── growth ──────────────────────────────────────────────────────────────────────────

    def _start_for_waiting(self) -> None:
        """Start processes for waiting calls, up to the number of cores."""
        while self._waiting and len(self._all) < self.cores:
            self._start_for(self._waiting.popleft())

    def _start_for(self, call: Call) -> None:
        try:
            self._start(call.key).send([call])
        except OSError as failure:
            call.future.set_exception(failure)

    def _set_grow_timer(self) -> None:
        if self._grow_timer is None and len(self._all) < self.max_processes:
            self._finished_before = self._finished
            self._grow_timer = asyncio.get_running_loop().call_later(self.grow_interval_s, self._grow)

    def _grow(self) -> None:
        self._grow_timer = None
        are_blocked = self._finished - self._finished_before < len(self._all)
        if (
            self._waiting
            and are_blocked
            and len(self._all) < self.max_processes
            and sum(process.is_runnable() for process in self._all) < self.cores
        ):
            self._start_for(self._waiting.popleft())
        if self._waiting:
            self._set_grow_timer()

    def _start(self, key: Key) -> Process:
        process = Process(key, self)
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

    def _discard(self, process: Process) -> None:
        process.kill()
        self._in_background(self._close_process(process))

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close_process(self, process: Process) -> int:
        process.kill()
        # In a thread: waiting for a killed process is immediate unless the kernel is blocked in its I/O.
        status = await asyncio.to_thread(process.popen.wait)
        process.close()
        self._all.discard(process)
        self._start_for_waiting()
        return status

    async def close(self) -> None:
        """Stop every process; calls in flight are cancelled."""
        for timer in (self._idle_timer, self._grow_timer):
            if timer is not None:
                timer.cancel()
        self._idle_timer = self._grow_timer = None
        unfinished = [*self._waiting, *(call for process in self._all for call in process.calls)]
        self._waiting.clear()
        self._idle.clear()
        for process in list(self._all):
            process.calls.clear()
            process.kill()
        for call in unfinished:
            call.process = None
            call.future.cancel()
        await asyncio.gather(*self._closing)
        for process in list(self._all):
            await self._close_process(process)


def _close_all(processes: set[Process]) -> None:
    for process in list(processes):
        process.close()
