"""The run queue port: runs that wait for a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Protocol

from msgspec import Struct

from noetl.core.model.work import Claim

MAX_WEIGHT = 60  # maximum weight of an execution


AGEING_SECONDS = 10.0  # of waiting that count as much as one point of priority


class QueuedRun(Struct, frozen=True, omit_defaults=True, gc=False):
    """A run without a lease that waits for a worker."""

    execution_id: str
    run_id: str
    pool: str = "default"
    affinity: str | None = None  # runs with the same value stay on one worker; enforced by the engine
    since: float = 0.0  # time of enqueueing in seconds since the epoch; 0: unknown
    limit: str | None = None  # the limited key that it waits for, or has been released from
    turn: int | None = None  # its position among the runs that wait for the limit; kept when it is parked again
    weight: int = 1  # share of its execution relative to others
    priority: float = 0.0  # higher first; AGEING_SECONDS of waiting count as one
    labels: tuple[str, ...] = ()  # that its worker must have
    cost: int = 1  # slots of the worker that it occupies
    tenant: str = ""  # of its execution; tenants get equal shares of the slots, or shares by their weights

    @property
    def special(self) -> bool:
        """Whether more than its turn decides when and by which worker it is taken."""
        return self.cost != 1 or bool(self.labels) or self.priority != 0.0

    @property
    def rank(self) -> float:
        """Its place by priority and waiting time, smaller first; it does not change while the run waits."""
        return self.since - AGEING_SECONDS * self.priority


class LimitDepth(Struct, frozen=True):
    """The number of runs that wait for a limit, and the time of the oldest."""

    key: str
    runs: int
    since: float | None = None


class PoolDepth(Struct, frozen=True):
    """The number of runs that wait for a worker of a pool, and the time of the oldest."""

    pool: str
    runs: int
    since: float | None = None


class RunQueue(Protocol):
    """Runs that wait for a worker. The queue is not authoritative: a lost run is found again in
    the log, and a duplicate is leased once."""

    async def put(self, runs: Sequence[QueuedRun]) -> None:
        """Enqueue runs; a run that is already queued is not added again. Runs with a `limit` are parked
        until they are released."""

    async def release_waiting(self, limit: str, most: int, *, whole: bool = False, also: Sequence[str] = ()) -> int:
        """Release up to `most` runs that wait for a limit, fair like `take`; return their number.

        `whole`: up to `most` executions with all their runs, oldest first. `also`: further executions to release."""

    async def limit_depths(self) -> list[LimitDepth]:
        """Every limit with waiting runs."""

    async def take(self, claim: Claim) -> list[QueuedRun]:
        """Dequeue up to `claim.slots` runs of the claim's pool, fair between tenants and between the executions of a
        tenant; of several workers each gets at most its share of the runs that wait, at least one. Runs of a tenant
        with a priority come first unless others have waited long enough; a worker gets only runs whose labels it has
        and whose costs fit into its free slots."""

    async def take_each(self, claims: Sequence[Claim]) -> list[list[QueuedRun]]:
        """As `take` for several claims of one pool, of different workers; the runs of each. As many claims as there are
        workers take all runs that fit."""

    def waits_for_slots(self, pool: str) -> bool:
        """Whether the last `take` left a run that costs more than the free slots."""

    def watch(self, pool: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever runs of the pool may wait, and when the queue closes; the returned function ends it."""

    async def remove(self, executions: Sequence[str]) -> None:
        """Remove all runs of these executions."""

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Set the weights of tenants; 1 if missing."""

    def waiting_tenants(self, pool: str) -> Set[str]:
        """Tenants with waiting runs of a pool ("": runs without a tenant), as the last `take` found them or newer; of
        several, at least two."""

    async def tenant_depths(self) -> dict[str, int]:
        """The number of waiting runs of each tenant, parked ones included; "": runs without a tenant."""

    async def kinds(self) -> list[tuple[str, tuple[str, ...]]]:
        """The pools and labels of the runs that wait for workers; as cheap for many runs as for a few."""

    async def labelled(self) -> list[tuple[str, tuple[str, ...], int]]:
        """Pool, labels and number of the waiting runs that require labels."""

    async def depths(self) -> list[PoolDepth]:
        """Every pool with waiting runs."""

    async def close(self) -> None:
        """Close the queue and wake all watchers."""
