"""The run queue in Postgres, shared by all servers of a cluster.

Fair between the executions of a tenant: the turn of a run follows the last one of its execution, and is not before
the turn that is being served. So a loop of a million items does not delay a playbook of one step. Fair between tenants:
see `tenant_shares`; a pool without tenants is served by a query without shares. Waiting claims are notified, and poll
as well. The table is unlogged: a crash of the database empties it, and recovery enqueues the runs again from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import msgspec
from msgspec import Struct

from noetl.core.model.work import Claim
from noetl.errors import StoreUnavailable
from noetl.storage.ports.queue import MAX_WEIGHT, LimitDepth, PoolDepth, QueuedRun
from noetl.storage.postgres.database import PostgresDatabase
from noetl.storage.queue import postgres_queries as queries

CHANNEL = "noetl_queue"
POLL_SECONDS = 0.5  # between polls for runs whose notification was lost
# Between attempts while another server takes the runs of the tenants that are due: what it has locked is skipped.
RETRY_SECONDS = (0.0, 0.005, 0.02)
LOOKED = 3  # columns about the kinds of runs, before those of a run
FORGET_TAKES = 1000  # takes of pools with tenants after which passes of idle tenants are removed


class _Kinds(Struct, frozen=True):
    """Whether some runs of a pool are special, and the first and the last of their tenants, at the time of a look."""

    looked: float
    special: bool
    tenants: frozenset[str]


class PostgresRunQueue:
    """`ports.RunQueue` for any number of servers."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._watchers: dict[str, dict[Callable[[], None], None]] = {}  # by pool
        self._empty_since: dict[str, float] = {}  # pool -> time of the last empty poll without a later notification
        self._kinds: dict[str, _Kinds] = {}  # pool -> the kinds of runs that wait in it
        self._taking: dict[str, asyncio.Lock] = {}  # by pool
        self._weights: tuple[list[str], list[int]] = ([], [])  # tenants, and their weights
        self._fair_takes = 0
        self._listening = False
        self._closed = False
        database.migrate("queue", queries.SCHEMA)

    async def put(self, runs: Sequence[QueuedRun]) -> None:
        """Enqueue runs; a run that is already queued is not added again."""
        if not runs:
            return
        parked = [run for run in runs if run.limit is not None]
        if parked:
            await self._database.execute(
                queries.PARK,
                *_columns(parked),
                [run.turn for run in parked],
                [run.since for run in parked],
                [run.limit for run in parked],
            )
            runs = [run for run in runs if run.limit is None]
        if runs:
            await self._database.execute(queries.PUT, *_columns(runs))
            self._notify({run.pool for run in runs})

    async def release_waiting(self, limit: str, most: int, *, whole: bool = False, also: Sequence[str] = ()) -> int:
        """Release the first runs that wait for a limit."""
        if whole:
            rows = await self._database.fetch(
                queries.RELEASE_EXECUTIONS, limit, max(0, most), [int(each) for each in also]
            )
        else:
            rows = await self._database.fetch(queries.RELEASE, limit, max(0, most), *self._weights)
        self._notify({row[0] for row in rows})
        return len(rows)

    async def limit_depths(self) -> list[LimitDepth]:
        """Every limit with waiting runs."""
        rows = await self._database.fetch(
            "SELECT line, count(*), extract(epoch FROM min(since))::float8 FROM noetl_queue WHERE parked "
            "GROUP BY line ORDER BY line"
        )
        return [LimitDepth(*row) for row in rows]

    async def take(self, claim: Claim) -> list[QueuedRun]:
        """Dequeue up to `claim.slots` runs, fair between executions."""
        (taken,) = await self.take_each([claim])
        return taken

    async def take_each(self, claims: Sequence[Claim]) -> list[list[QueuedRun]]:
        """Dequeue runs for several claims of one pool, with one query unless some of its runs are special.

        A pool that was empty at the last poll is not queried again before a notification or the next poll. The queries
        of a pool are made one after the other: each knows whether the one before has found it empty."""
        self._listen()
        pool = claims[0].pool
        async with self._taking.setdefault(pool, asyncio.Lock()):
            now = asyncio.get_running_loop().time()
            if (
                self._closed
                or sum(claim.slots for claim in claims) <= 0
                or now - self._empty_since.get(pool, float("-inf")) < POLL_SECONDS
            ):
                return [[] for _ in claims]
            self._empty_since[pool] = now  # before the query: a notification meanwhile resets it
            query = asyncio.ensure_future(self._dequeue_unlocked(claims, now))
            try:
                taken = await asyncio.shield(query)
            except asyncio.CancelledError:
                # The rows may be deleted already: put them back.
                for found in await asyncio.gather(query, return_exceptions=True):
                    for rows in found if isinstance(found, list) else ():
                        await self.put([msgspec.structs.replace(_queued(row), limit=None) for row in rows])
                raise
            except BaseException:
                self._empty_since.pop(pool, None)
                raise
            if any(taken) or self._kinds[pool].special:  # other workers may have the labels of the runs that wait
                self._empty_since.pop(pool, None)
            return [sorted(map(_queued, rows), key=lambda run: (-run.priority, run.turn or 0)) for rows in taken]

    async def _dequeue_unlocked(self, claims: Sequence[Claim], now: float) -> list[list[Sequence[object]]]:
        """As `_dequeue`; if runs wait and none was found, others may have locked them: then tenants that are due later
        are considered too."""
        pool = claims[0].pool
        taken = await self._dequeue(claims, now, sum(claim.slots for claim in claims))
        kinds = self._kinds[pool]
        for delay in RETRY_SECONDS[: 1 if kinds.special else None]:  # special ones may need another worker
            if any(taken) or self._database.alone or not self._kinds[pool].tenants:
                break
            await asyncio.sleep(delay)
            taken = await self._dequeue(claims, now, None)
        return taken

    async def _dequeue(
        self, claims: Sequence[Claim], now: float, most_tenants: int | None
    ) -> list[list[Sequence[object]]]:
        """Delete runs of a pool and return them for each claim, in order. The query of plain runs also looks which
        kinds wait; it is omitted if the last look, less than an interval ago, has found special ones."""
        pool, workers = claims[0].pool, claims[0].workers
        slots = sum(claim.slots for claim in claims)
        kinds = self._kinds.get(pool)
        rows: list[Sequence[object]] = []
        if kinds is None or now - kinds.looked >= POLL_SECONDS or not kinds.special:
            query = self._database.fetch(queries.TAKE, pool, slots, workers, len(claims))
            found = [tuple(row) for row in await query]
            special, *tenants = found[0][:LOOKED]
            kinds = self._kinds[pool] = _Kinds(now, special, frozenset(each for each in tenants if each is not None))
            rows = [row[LOOKED:] for row in found if row[LOOKED] is not None]
        if any(kinds.tenants):
            self._fair_takes += 1
            if self._fair_takes % FORGET_TAKES == 0:
                await self._database.execute(queries.FORGET_PASSES)
        if kinds.special:
            return await self._dequeue_special(claims)
        if any(kinds.tenants):
            rows = await self._database.fetch(
                queries.TAKE_FAIR, pool, slots, *self._weights, workers, most_tenants, len(claims)
            )
        return _dealt(sorted(rows, key=_order), claims)

    async def _dequeue_special(self, claims: Sequence[Claim]) -> list[list[Sequence[object]]]:
        """Runs for each claim by its labels and capacity. A claim is omitted if one before it, which could take as
        much, has found nothing. After a failure the claims before it keep what they have taken."""
        taken: list[list[Sequence[object]]] = []
        empty: list[Claim] = []
        for claim in claims:
            if any(_covers(other, claim) for other in empty):
                taken.append([])
                continue
            options = (claim.workers, list(claim.labels), claim.capacity)
            try:
                rows = await self._database.fetch(
                    queries.TAKE_SPECIAL, claim.pool, claim.slots, *self._weights, *options
                )
            except StoreUnavailable:
                if not any(taken):
                    raise
                return [*taken, *([] for _ in claims[len(taken) :])]
            taken.append(sorted(rows, key=_order))
            if not rows:
                empty.append(claim)
        return taken

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """The weights of tenants; 1 if missing."""
        self._weights = (list(weights), list(weights.values()))

    def waiting_tenants(self, pool: str) -> Set[str]:
        """The first and the last of the tenants with waiting runs, by name, before the last `take`."""
        kinds = self._kinds.get(pool)
        return frozenset() if kinds is None else kinds.tenants

    async def tenant_depths(self) -> dict[str, int]:
        """The number of waiting runs of each tenant, parked ones included."""
        rows = await self._database.fetch("SELECT tenant, count(*) FROM noetl_queue GROUP BY tenant")
        return dict(rows)

    async def kinds(self) -> list[tuple[str, tuple[str, ...]]]:
        """The pools and labels of the runs that wait for workers."""
        return [(pool, tuple(labels)) for pool, labels in await self._database.fetch(queries.KINDS)]

    async def labelled(self) -> list[tuple[str, tuple[str, ...], int]]:
        """Pool, labels and number of the waiting runs that require labels."""
        rows = await self._database.fetch(
            "SELECT pool, labels, count(*) FROM noetl_queue WHERE NOT parked AND labels <> '{}' GROUP BY pool, labels"
        )
        return [(pool, tuple(labels), count) for pool, labels, count in rows]

    def waits_for_slots(self, pool: str) -> bool:
        """Whether a run of the pool may cost more than the last claim had slots."""
        kinds = self._kinds.get(pool)
        return kinds is not None and kinds.special

    def watch(self, pool: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever runs of the pool may wait, and at every poll interval; the returned function ends it."""
        self._listen()
        loop = asyncio.get_running_loop()
        watchers = self._watchers.setdefault(pool, {})

        timer = loop.call_later(POLL_SECONDS, lambda: poll())

        def poll() -> None:
            nonlocal timer
            timer = loop.call_later(POLL_SECONDS, poll)
            wake()

        def end() -> None:
            timer.cancel()
            watchers.pop(wake, None)

        watchers[wake] = None
        return end

    async def remove(self, executions: Sequence[str]) -> None:
        """Remove all runs of these executions."""
        await self._database.execute(
            "DELETE FROM noetl_queue WHERE execution = ANY($1::int8[])", [int(each) for each in executions]
        )

    async def depths(self) -> list[PoolDepth]:
        """Every pool with waiting runs."""
        rows = await self._database.fetch(
            "SELECT pool, count(*), extract(epoch FROM min(since))::float8 FROM noetl_queue WHERE NOT parked "
            "GROUP BY pool ORDER BY pool"
        )
        return [PoolDepth(*row) for row in rows]

    async def close(self) -> None:
        """Close the queue and wake all watchers."""
        self._closed = True
        self._wake("")

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            self._database.subscribe(CHANNEL, self._wake)

    def _notify(self, pools: set[str]) -> None:
        for pool in pools:
            self._wake(pool)
            self._database.publish(CHANNEL, pool)

    def _wake(self, pool: str) -> None:
        for name in [pool] if pool else list(self._watchers):
            self._empty_since.pop(name, None)
            for wake in list(self._watchers.get(name, ())):
                wake()


def _queued(row: Sequence[object]) -> QueuedRun:
    turn, execution, run_id, pool, affinity, line, since, priority, labels, cost, tenant = row
    found = QueuedRun(str(execution), str(run_id), str(pool), affinity, since, line, turn if line else None)  # type: ignore[arg-type]
    if not priority and not labels and cost == 1 and not tenant:
        return found
    special = {"priority": priority, "labels": tuple(labels), "cost": cost, "tenant": tenant}  # type: ignore[arg-type]
    return msgspec.structs.replace(found, **special)


def _order(row: Sequence[object]) -> Any:
    return row[0], row[2]  # turn, run id


def _dealt(rows: Sequence[Sequence[object]], claims: Sequence[Claim]) -> list[list[Sequence[object]]]:
    """The rows for each claim: equal shares of them, as far as they fit into its slots."""
    shares: list[list[Sequence[object]]] = [[] for _ in claims]
    open_claims = list(range(len(claims)))
    position = 0
    while position < len(rows):
        open_claims = [number for number in open_claims if len(shares[number]) < claims[number].slots]
        share = -(-(len(rows) - position) // len(open_claims))
        for number in open_claims:
            most = min(share, claims[number].slots - len(shares[number]))
            shares[number] += rows[position : position + most]
            position += most
    return shares


def _covers(claim: Claim, other: Claim) -> bool:
    """Whether a claim could take every run that another one could take."""
    return set(other.labels) <= set(claim.labels) and other.slots <= claim.slots and other.capacity == claim.capacity


def _columns(
    runs: Sequence[QueuedRun],
) -> tuple[list[str], list[int], list[str], list[str | None], list[int], list[float], list[str], list[int], list[str]]:
    return (
        [run.run_id for run in runs],
        [int(run.execution_id) for run in runs],
        [run.pool for run in runs],
        [run.affinity for run in runs],
        [min(run.weight, MAX_WEIGHT) for run in runs],
        [run.priority for run in runs],
        ["\n".join(run.labels) for run in runs],
        [run.cost for run in runs],
        [run.tenant for run in runs],
    )
