"""Cluster membership in Postgres: heartbeats of servers and workers, and leader leases.

A server without a recent heartbeat is removed by one of the others, which then takes over its executions: the
DELETE statement decides which server that is. The last heartbeat of each worker, with the runs that it
named, is stored too, so that a lease granted by one server is not revoked by another
while the worker is alive. All times are those of the database's clock. Every heartbeat measures how far the clock of
this server is ahead of it (`skew`); a server with a wrong clock performs no task for the others.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence

from noetl.core.model.ids import PROCESS_BITS
from noetl.errors import StoreUnavailable
from noetl.observability import metrics
from noetl.storage.ports.cluster import Heartbeat
from noetl.storage.postgres.database import PostgresDatabase

SCHEMA = (
    """
    CREATE TABLE noetl_servers(number int4 PRIMARY KEY, name text NOT NULL, seen timestamptz NOT NULL);
    CREATE TABLE noetl_duties(name text PRIMARY KEY, until timestamptz NOT NULL);
    CREATE UNLOGGED TABLE noetl_signs(worker text PRIMARY KEY, seen timestamptz NOT NULL, runs text[] NOT NULL)
    """,
    "ALTER TABLE noetl_duties ADD COLUMN holder int4",
    "CREATE TABLE noetl_deciding(execution text, server int4, seq int8 NOT NULL, PRIMARY KEY (execution, server))",
)
_ALIVE = "EXISTS (SELECT FROM noetl_servers s WHERE s.number = d.server AND s.seen > now() - $1 * interval '1 second')"

SERVER_SECONDS = 5.0  # without a heartbeat, after which a server counts as stopped
SWEEP_SECONDS = 60.0  # between sweeps over all unfinished executions, by one of the servers
MAX_SKEW = 5.0  # seconds that the clock of a server may differ from that of the database
TRIES = 100

log = logging.getLogger("noetl.control")


class PostgresCluster:
    """`ports.Membership`, `ports.LeaderLease`, `ports.WorkerHeartbeats` and `ports.DecisionMarks`."""

    def __init__(
        self,
        database: PostgresDatabase,
        name: str = "",
        *,
        server_seconds: float = SERVER_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.skew = 0.0  # seconds that the clock of this server is ahead of that of the database
        self.offset = time.time() - time.monotonic()  # seconds from the monotonic clock to that of the database
        self.refusal = ""  # why this server performs no task for the others; empty if it does
        self._clock = clock
        self._database = database
        self._name = name
        self._seconds = server_seconds
        self._number: int | None = None
        database.migrate("cluster", SCHEMA)

    async def join(self) -> int:
        """Join the cluster under an unused number."""
        for _ in range(TRIES):
            number = secrets.randbits(PROCESS_BITS)
            if await self._enter(number):
                self._number = number
                await self._measure_skew()
                return number
        raise StoreUnavailable(f"no free server number after {TRIES} tries")

    async def beat(self) -> Heartbeat:
        """Send a heartbeat of this server, and remove servers that have stopped."""
        assert self._number is not None
        row = await self._database.row(
            "UPDATE noetl_servers SET seen = now() WHERE number = $1 RETURNING "
            "(SELECT count(*) FROM noetl_servers o WHERE o.number <> $1 AND o.seen > '-infinity')",
            self._number,
        )
        if row is None:
            await self._enter(self._number)
        self._database.alone = row is not None and row[0] == 0
        await self._measure_skew()
        died = await self._database.fetch(
            "DELETE FROM noetl_servers WHERE seen < now() - $1 * interval '1 second' RETURNING number", self._seconds
        )
        sweep = await self.acquire_turn("sweep", SWEEP_SECONDS)
        if sweep:
            await self._database.execute("DELETE FROM noetl_signs WHERE seen < now() - interval '1 day'")
        return Heartbeat(row is None, tuple(each[0] for each in died), sweep)

    async def acquire_turn(self, name: str, seconds: float) -> bool:
        """Acquire a task that runs once per interval in the whole cluster; False if it is not due."""
        if self.refusal:
            return False
        turn = await self._database.row(
            "INSERT INTO noetl_duties AS d (name, until) VALUES ($1, now() + $2 * interval '1 second') "
            "ON CONFLICT (name) DO UPDATE SET until = excluded.until WHERE d.until < now() RETURNING name",
            name,
            seconds,
        )
        return turn is not None

    async def leave(self) -> None:
        """Leave the cluster; the next heartbeat of another server takes over the executions."""
        if self._number is not None:
            await self._database.execute("DELETE FROM noetl_duties WHERE holder = $1", self._number)
            await self._database.execute("DELETE FROM noetl_deciding WHERE server = $1", self._number)
            await self._database.execute("UPDATE noetl_servers SET seen = '-infinity' WHERE number = $1", self._number)

    # ── ports.LeaderLease ────────────────────────────────────────────────────────────────────

    async def acquire_leadership(self, task: str, seconds: float) -> bool:
        """Acquire or renew the lease of a task for some seconds; False if another server holds it."""
        if self.refusal:
            return False
        row = await self._database.row(
            "INSERT INTO noetl_duties AS d (name, until, holder) VALUES ($1, now() + $2 * interval '1 second', $3) "
            "ON CONFLICT (name) DO UPDATE SET until = excluded.until, holder = excluded.holder "
            "WHERE d.until < now() OR d.holder = excluded.holder RETURNING name",
            task,
            seconds,
            self._number,
        )
        return row is not None

    # ── ports.WorkerHeartbeats ───────────────────────────────────────────────────────────────

    async def record_heartbeat(self, worker: str, runs: Sequence[tuple[str, int]]) -> None:
        """Record a heartbeat of a worker with its leases (run id, epoch)."""
        await self._database.execute(
            "INSERT INTO noetl_signs(worker, seen, runs) VALUES ($1, now(), $2::text[]) "
            "ON CONFLICT (worker) DO UPDATE SET seen = excluded.seen, runs = excluded.runs",
            worker,
            [_lease_key(run_id, epoch) for run_id, epoch in runs],
        )

    async def seconds_since_heartbeat(self, worker: str, run_id: str, epoch: int) -> float | None:
        """Seconds since the last heartbeat of the worker that named this run; None if the last one did not."""
        row = await self._database.row(
            "SELECT extract(epoch FROM now() - seen)::float8 FROM noetl_signs WHERE worker = $1 AND $2 = ANY(runs)",
            worker,
            _lease_key(run_id, epoch),
        )
        return None if row is None else float(row[0])

    async def silent_together(self, worker: str, seconds: float) -> bool:
        """Whether the last heartbeat of another worker was at most `seconds` before or after that of this one."""
        row = await self._database.row(
            "SELECT EXISTS (SELECT FROM noetl_signs o WHERE o.worker <> w.worker AND o.seen BETWEEN "
            "w.seen - $2 * interval '1 second' AND w.seen + $2 * interval '1 second') "
            "FROM noetl_signs w WHERE w.worker = $1",
            worker,
            seconds,
        )
        return row is None or bool(row[0])

    # ── ports.DecisionMarks ──────────────────────────────────────────────────────────────────

    async def mark_decision(self, execution_id: str, seq: int) -> bool:
        """Mark the decision that follows an event; False while another server that is alive makes it."""
        row = await self._database.row(
            "INSERT INTO noetl_deciding AS m (execution, server, seq) SELECT $2::text, $3::int4, $4::int8 "
            f"WHERE NOT EXISTS (SELECT FROM noetl_deciding d WHERE d.execution = $2 AND d.server <> $3 AND {_ALIVE}) "
            "ON CONFLICT (execution, server) DO UPDATE SET seq = excluded.seq RETURNING m.seq",
            self._seconds,
            execution_id,
            self._number,
            seq,
        )
        return row is not None

    async def unmark_decision(self, execution_id: str) -> None:
        """The decision was made: remove all marks of the execution."""
        await self._database.execute("DELETE FROM noetl_deciding WHERE execution = $1", execution_id)

    async def fatal_decisions(self, count: int) -> list[tuple[str, int]]:
        """Executions (with their event) that as many stopped servers have marked; their marks are removed."""
        found = await self._database.fetch(
            f"WITH fatal AS (SELECT execution, seq FROM noetl_deciding d WHERE NOT {_ALIVE} "
            "GROUP BY execution, seq HAVING count(*) >= $2) "
            "DELETE FROM noetl_deciding d USING fatal WHERE d.execution = fatal.execution "
            "RETURNING d.execution, fatal.seq",
            self._seconds,
            count,
        )
        return sorted({(row[0], row[1]) for row in found})

    async def _measure_skew(self) -> None:
        """Compare the clocks; the error is at most half of the time of the query."""
        before, began = self._clock(), time.monotonic()
        row = await self._database.row("SELECT extract(epoch FROM clock_timestamp())::float8")
        assert row is not None
        after, ended = self._clock(), time.monotonic()
        self.offset = float(row[0]) - (began + ended) / 2
        self.skew = (before + after) / 2 - float(row[0])
        refused, self.refusal = self.refusal, ""
        if abs(self.skew) > MAX_SKEW + (after - before):
            side = "ahead of" if self.skew > 0 else "behind"
            self.refusal = (
                f"the clock of this server is {abs(self.skew):.0f} s {side} that of the database: it starts no "
                "schedules, timers and retention until the clock is corrected"
            )
        if self.refusal and not refused:
            log.error("%s", self.refusal)
        elif refused and not self.refusal:
            log.warning("the clock of this server is correct again")
        metrics.CLOCK_SKEW.value = self.skew

    async def _enter(self, number: int) -> bool:
        row = await self._database.row(
            "INSERT INTO noetl_servers(number, name, seen) VALUES ($1, $2, now()) "
            "ON CONFLICT (number) DO NOTHING RETURNING number",
            number,
            self._name,
        )
        return row is not None


def _lease_key(run_id: str, epoch: int) -> str:
    return f"{epoch} {run_id}"
