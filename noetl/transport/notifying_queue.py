"""A run queue that publishes work notifications over NATS.

The runs themselves are in the wrapped queue, which is fair between executions and shared by all servers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct

from noetl.core.model.work import Claim
from noetl.storage.ports.queue import LimitDepth, PoolDepth, QueuedRun, RunQueue
from noetl.transport.nats_bus import NatsBus


class NotifyingRunQueue(Struct, eq=False):
    """`ports.RunQueue` around another one, with a work notification for each added run."""

    _queue: RunQueue
    _bus: NatsBus

    async def put(self, runs: Sequence[QueuedRun]) -> None:
        """Add runs, and notify the workers of their pools."""
        await self._queue.put(runs)
        for pool, count in Counter(run.pool for run in runs if run.limit is None).items():
            self._bus.notify_work(pool, count)

    async def release_waiting(self, limit: str, most: int, *, whole: bool = False, also: Sequence[str] = ()) -> int:
        """Release waiting runs, and notify workers; a surplus notification costs one poll."""
        count = await self._queue.release_waiting(limit, most, whole=whole, also=also)
        for depth in await self._queue.depths() if count else ():
            self._bus.notify_work(depth.pool, min(count, depth.runs))
        return count

    async def limit_depths(self) -> list[LimitDepth]:
        """Every limit with waiting runs."""
        return await self._queue.limit_depths()

    async def take(self, claim: Claim) -> list[QueuedRun]:
        """Up to `claim.slots` runs of the claim's pool."""
        return await self._queue.take(claim)

    def waits_for_slots(self, pool: str) -> bool:
        """Whether the last `take` left a run that costs more than the free slots."""
        return self._queue.waits_for_slots(pool)

    def watch(self, pool: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever runs of the pool may wait; the returned function ends it."""
        return self._queue.watch(pool, wake)

    async def remove(self, execution_id: str, runs: Sequence[str] | None = None) -> None:
        """Remove these runs of an execution, or all of them."""
        await self._queue.remove(execution_id, runs)

    async def labelled(self) -> list[tuple[str, tuple[str, ...], int]]:
        """Pool, labels and number of the waiting runs that require labels."""
        return await self._queue.labelled()

    async def depths(self) -> list[PoolDepth]:
        """Every pool with waiting runs."""
        return await self._queue.depths()

    async def close(self) -> None:
        """Close the wrapped queue."""
        await self._queue.close()
