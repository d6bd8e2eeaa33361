"""An event loop with virtual time, and its clock.

When nothing is ready, the loop does not wait: it advances its time to the next timer. An hour of leases,
backoffs and deadlines passes in a millisecond, independent of the speed of the machine.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")

EPOCH = 1_750_000_000.0
MAX_TURNS = 100_000  # of the loop; a scenario has some 3,000 to 10,000


class Deadlock(Exception):
    """No task is ready and no timer is set."""


class Livelock(Exception):
    """Tasks are ready again and again, and the execution does not end."""


class _VirtualSelector(selectors.BaseSelector):
    """A selector without I/O, so that time can pass at once."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}
        self.passed = 0.0
        self.turns = 0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Register the loop's own pipe, which is never written to."""
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Unregister it."""
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Advance the time."""
        if timeout is None:
            raise Deadlock
        self.turns += 1
        if self.turns == MAX_TURNS:  # once: the tasks are cancelled afterwards
            raise Livelock
        if timeout > 0:
            self.passed += timeout
        return []

    def get_map(self) -> Any:
        """The registered files."""
        return self._keys

    def close(self) -> None:
        """Nothing to close."""


class Process:
    """A simulated process: its tasks, identified by the context in which they were created."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.tasks: WeakValueDictionary[int, asyncio.Task[Any]] = WeakValueDictionary()  # by start order
        self._started = 0
        self.context = copy_context()
        self.context.run(_PROCESS.set, self)

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task in this process; tasks that it starts belong to the process too."""
        return asyncio.get_running_loop().create_task(coroutine, context=self.context)

    def kill(self) -> None:
        """Stop the process. Its cancelled tasks have no further effect: see `block_if_dead`."""
        self.dead = True
        for _, task in sorted(self.tasks.items()):
            task.cancel()

    def own(self, task: asyncio.Task[Any]) -> None:
        """Add a task to the process."""
        self._started += 1
        self.tasks[self._started] = task


_PROCESS: ContextVar[Process | None] = ContextVar("noetl_simulated_process", default=None)


def current_process() -> Process | None:
    """The process of the running task."""
    return _PROCESS.get()


async def block_if_dead() -> None:
    """Block a task of a dead process forever; called at every boundary of a process."""
    process = _PROCESS.get()
    if process is not None and process.dead:
        await asyncio.get_running_loop().create_future()


def _tagged(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], context: Context | None = None, **more: Any
) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, context=context, **more)
    process = context.get(_PROCESS) if context is not None else _PROCESS.get()
    if process is not None:
        process.own(task)
    return task


class VirtualLoop(asyncio.SelectorEventLoop):
    """An `asyncio` loop with virtual time, whose tasks know their process."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)
        self._clock_resolution = 1e-9
        self.set_task_factory(_tagged)  # type: ignore[arg-type]

    def time(self) -> float:
        """Virtual seconds since the start of the loop."""
        return self._virtual.passed


class VirtualClock:
    """A `Clock` of the virtual loop; `jump` sets the wall clock but not the monotonic one."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._offset = EPOCH
        self.largest_jump = 0.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._loop.time() + self._offset

    def monotonic(self) -> float:
        """Monotonic seconds."""
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def jump(self, seconds: float) -> None:
        """Change the wall clock."""
        self._offset += seconds
        self.largest_jump = max(self.largest_jump, abs(seconds))


def run_virtually(scenario: Callable[[VirtualClock], Coroutine[Any, Any, T]]) -> T:
    """Run a scenario in virtual time; Deadlock if nothing in it can happen any more."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        return runner.run(scenario(VirtualClock(loop)))
