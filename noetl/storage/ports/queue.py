"""The run queue port: runs that wait for a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from noetl.core.model.work import Claim

MAX_WEIGHT = 60  # turns that an execution may get where others get one


class QueuedRun(Struct, frozen=True, omit_defaults=True, gc=False):
    """A run that is owed and that nobody holds: enough to find a worker for it."""

    execution_id: str
    run_id: str
    pool: str = "default"
    affinity: str | None = None  # runs with the same word stay on one worker; the engine sees to it
    since: float = 0.0  # when it began to wait, in seconds since the epoch; 0: not known
    limit: str | None = None  # it stands in the line of this key, whose limit is reached; or was let out of it
    turn: int | None = None  # its place in that line; whoever puts it back there gives it back
    weight: int = 1  # turns its execution gets where others get one


class LimitDepth(Struct, frozen=True):
    """How much waits because a limit is reached, and since when the first of it waits."""

    key: str
    runs: int
    since: float | None = None


class PoolDepth(Struct, frozen=True):
    """How much waits for workers of one pool, and since when the first of it waits."""

    pool: str
    runs: int
    since: float | None = None


class RunQueue(Protocol):
    """Runs that wait for a worker. A wake-up, never the truth: what is lost here is found again in
    the log, what is here twice is leased once."""

    async def put(self, runs: Sequence[QueuedRun]) -> None:
        """Let them wait (one that waits already waits once); those with a `limit` stand in its line, where nobody
        takes them before they are let out."""

    async def release_waiting(self, limit: str, most: int, *, whole: bool = False, also: Sequence[str] = ()) -> int:
        """Let the first `most` runs of a line wait for workers again, fair between executions; how many.

        `whole`: so many executions, first come, first served, each with all its runs. `also`: all runs of these."""

    async def lines(self) -> list[LimitDepth]:
        """Every limit in whose line somebody stands."""

    async def take(self, claim: Claim) -> list[QueuedRun]:
        """Up to `claim.slots` runs of the claim's pool that wait now, fair between executions."""

    def watch(self, pool: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever runs of the pool may wait, and once more when the queue closes; the answer ends it."""

    async def remove(self, execution_id: str, runs: Sequence[str] | None = None) -> None:
        """Forget these runs of an execution, or all of them."""

    async def depths(self) -> list[PoolDepth]:
        """Every pool in which something waits for workers."""

    async def close(self) -> None:
        """Let go; who watches is woken, and nothing is there."""
