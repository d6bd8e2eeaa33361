"""An event loop whose time is a number, and the clock that goes with it.

When nothing is ready, the loop does not wait: it moves its time to the next timer. An hour of leases,
backoffs and deadlines passes in a millisecond, and nothing depends on how fast the machine is.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any
from weakref import WeakValueDictionary

EPOCH = 1_750_000_000.0


class Stuck(Exception):
    """Nothing is ready and no timer is set: everybody waits for somebody else."""


class _NoWorld(selectors.BaseSelector):
    """A selector without a world: nothing ever happens outside, so time may pass at once."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}
        self.passed = 0.0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Remember the loop's own pipe; it is never written to."""
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Forget it."""
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let the time pass."""
        if timeout is None:
            raise Stuck
        if timeout > 0:
            self.passed += timeout
        return []

    def get_map(self) -> Any:
        """What is registered."""
        return self._keys

    def close(self) -> None:
        """Let go."""


class Process:
    """Everything that one simulated process does: its tasks, found by the context they were made in."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.tasks: WeakValueDictionary[int, asyncio.Task[Any]] = WeakValueDictionary()  # by the order they began
        self._begun = 0
        self.context = copy_context()
        self.context.run(_PROCESS.set, self)

    def start(self, deed: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Let this process do something; what that starts is this process's too."""
        return asyncio.get_running_loop().create_task(deed, context=self.context)

    def kill(self) -> None:
        """End it where it stands. What its tasks do in answer reaches nobody: see `alive`."""
        self.dead = True
        for _, task in sorted(self.tasks.items()):
            task.cancel()

    def own(self, task: asyncio.Task[Any]) -> None:
        """This task is the process's, and dies with it."""
        self._begun += 1
        self.tasks[self._begun] = task


_PROCESS: ContextVar[Process | None] = ContextVar("noetl_simulated_process", default=None)


async def alive() -> None:
    """Stands at every border of a process: the dead do not get past it."""
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
    """`asyncio` with invented time, whose tasks know their process."""

    def __init__(self) -> None:
        self._world = _NoWorld()
        super().__init__(self._world)
        self._clock_resolution = 1e-9
        self.set_task_factory(_tagged)  # type: ignore[arg-type]

    def time(self) -> float:
        """Virtual seconds since the loop began."""
        return self._world.passed


class VirtualClock:
    """`ports.Clock` by the virtual loop; `jump` moves the wall clock and leaves the monotonic one."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._offset = EPOCH

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._loop.time() + self._offset

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def jump(self, seconds: float) -> None:
        """Somebody set the machine's clock."""
        self._offset += seconds
