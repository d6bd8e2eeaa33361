"""A run queue that hands out tickets: whoever waits at NATS hears that a run waits.

The runs themselves lie in the queue behind it, which is fair between executions and which every server takes from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from noetl.core.model.work import Claim
from noetl.storage.ports.queue import LimitDepth, PoolDepth, QueuedRun, RunQueue
from noetl.transport.nats_bus import NatsBus


class NotifyingRunQueue:
    """`ports.RunQueue` over another one, with a ticket for each run that is put."""

    def __init__(self, queue: RunQueue, bus: NatsBus) -> None:
        self._queue = queue
        self._bus = bus

    async def put(self, runs: Sequence[QueuedRun]) -> None:
        """Let them wait, and tell it."""
        await self._queue.put(runs)
        for pool, count in Counter(run.pool for run in runs if run.limit is None).items():
            self._bus.issue(pool, count)

    async def release_waiting(self, limit: str, most: int, *, whole: bool = False, also: Sequence[str] = ()) -> int:
        """Let the first of a line wait for workers again, and tell it: a ticket too many is an empty look."""
        count = await self._queue.release_waiting(limit, most, whole=whole, also=also)
        for depth in await self._queue.depths() if count else ():
            self._bus.issue(depth.pool, min(count, depth.runs))
        return count

    async def lines(self) -> list[LimitDepth]:
        """Every limit in whose line somebody stands."""
        return await self._queue.lines()

    async def take(self, claim: Claim) -> list[QueuedRun]:
        """Up to `claim.slots` runs of the claim's pool."""
        return await self._queue.take(claim)

    def watch(self, pool: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever runs of the pool may wait; the answer ends it."""
        return self._queue.watch(pool, wake)

    async def remove(self, execution_id: str, runs: Sequence[str] | None = None) -> None:
        """Forget these runs of an execution, or all of them."""
        await self._queue.remove(execution_id, runs)

    async def depths(self) -> list[PoolDepth]:
        """Every pool in which something waits."""
        return await self._queue.depths()

    async def close(self) -> None:
        """Let go."""
        await self._queue.close()
