"""Servers and workers that are alive, as rows that everybody sees.

A server that stops beating is removed by one of the others, which then does what the dead one owed:
the statement that removes the row decides who. A worker's last sign of life, with the runs it said
it holds, is kept here too, so that a lease given by one server is not taken back by another
while its worker lives. The database's clock is the only one that is asked.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from noetl.core.model.ids import PROCESS_BITS
from noetl.errors import StoreUnavailable
from noetl.storage.postgres.database import PostgresDatabase

SCHEMA = (
    """
    CREATE TABLE noetl_servers(number int4 PRIMARY KEY, name text NOT NULL, seen timestamptz NOT NULL);
    CREATE TABLE noetl_duties(name text PRIMARY KEY, until timestamptz NOT NULL);
    CREATE UNLOGGED TABLE noetl_signs(worker text PRIMARY KEY, seen timestamptz NOT NULL, runs text[] NOT NULL)
    """,
    "ALTER TABLE noetl_duties ADD COLUMN holder int4",
)

SERVER_SECONDS = 5.0  # a server that has not beaten for so long is gone
SWEEP_SECONDS = 60.0  # how often one of the servers looks at everything that is unfinished
TRIES = 100


class Heartbeat(NamedTuple):
    """What a server learns when it beats."""

    forgotten: bool = False  # the others took us for dead
    died: tuple[int, ...] = ()  # servers whose work is ours now
    sweep: bool = False  # it is our turn to look at everything


class PostgresCluster:
    """Membership of servers, `ports.Duties` among them, and `ports.SignsOfLife` of workers."""

    def __init__(self, database: PostgresDatabase, name: str = "", *, server_seconds: float = SERVER_SECONDS) -> None:
        self._database = database
        self._name = name
        self._seconds = server_seconds
        self._number: int | None = None
        database.migrate("cluster", SCHEMA)

    async def join(self) -> int:
        """Become a member under a number that nobody has."""
        for _ in range(TRIES):
            number = secrets.randbits(PROCESS_BITS)
            if await self._enter(number):
                self._number = number
                return number
        raise StoreUnavailable(f"no free server number after {TRIES} tries")

    async def beat(self) -> Heartbeat:
        """Say that we live, and hear who does not."""
        assert self._number is not None
        row = await self._database.row(
            "UPDATE noetl_servers SET seen = now() WHERE number = $1 RETURNING "
            "(SELECT count(*) FROM noetl_servers o WHERE o.number <> $1 AND o.seen > '-infinity')",
            self._number,
        )
        if row is None:
            await self._enter(self._number)
        self._database.alone = row is not None and row[0] == 0
        died = await self._database.fetch(
            "DELETE FROM noetl_servers WHERE seen < now() - $1 * interval '1 second' RETURNING number", self._seconds
        )
        sweep = await self.acquire_turn("sweep", SWEEP_SECONDS)
        if sweep:
            await self._database.execute("DELETE FROM noetl_signs WHERE seen < now() - interval '1 day'")
        return Heartbeat(row is None, tuple(each[0] for each in died), sweep)

    async def acquire_turn(self, name: str, seconds: float) -> bool:
        """Whether this duty is ours now; no other server has it for so long."""
        turn = await self._database.row(
            "INSERT INTO noetl_duties AS d (name, until) VALUES ($1, now() + $2 * interval '1 second') "
            "ON CONFLICT (name) DO UPDATE SET until = excluded.until WHERE d.until < now() RETURNING name",
            name,
            seconds,
        )
        return turn is not None

    async def leave(self) -> None:
        """Go: the next beat of another server takes over what we owe."""
        if self._number is not None:
            await self._database.execute("DELETE FROM noetl_duties WHERE holder = $1", self._number)
            await self._database.execute("UPDATE noetl_servers SET seen = '-infinity' WHERE number = $1", self._number)

    # ── ports.Duties ────────────────────────────────────────────────────────────────────

    async def acquire_leadership(self, duty: str, seconds: float) -> bool:
        """Whether this server has the duty for the next seconds: it had it, or nobody had."""
        row = await self._database.row(
            "INSERT INTO noetl_duties AS d (name, until, holder) VALUES ($1, now() + $2 * interval '1 second', $3) "
            "ON CONFLICT (name) DO UPDATE SET until = excluded.until, holder = excluded.holder "
            "WHERE d.until < now() OR d.holder = excluded.holder RETURNING name",
            duty,
            seconds,
            self._number,
        )
        return row is not None

    # ── ports.SignsOfLife ───────────────────────────────────────────────────────────────

    async def seen(self, worker: str, runs: Sequence[tuple[str, int]]) -> None:
        """A worker says that it lives and holds these runs (run id, epoch)."""
        await self._database.execute(
            "INSERT INTO noetl_signs(worker, seen, runs) VALUES ($1, now(), $2::text[]) "
            "ON CONFLICT (worker) DO UPDATE SET seen = excluded.seen, runs = excluded.runs",
            worker,
            [_held(run_id, epoch) for run_id, epoch in runs],
        )

    async def silent_for(self, worker: str, run_id: str, epoch: int) -> float | None:
        """Seconds since the worker last said to any server that it holds this run; None when it does not say so."""
        row = await self._database.row(
            "SELECT extract(epoch FROM now() - seen)::float8 FROM noetl_signs WHERE worker = $1 AND $2 = ANY(runs)",
            worker,
            _held(run_id, epoch),
        )
        return None if row is None else float(row[0])

    async def _enter(self, number: int) -> bool:
        row = await self._database.row(
            "INSERT INTO noetl_servers(number, name, seen) VALUES ($1, $2, now()) "
            "ON CONFLICT (number) DO NOTHING RETURNING number",
            number,
            self._name,
        )
        return row is not None


def _held(run_id: str, epoch: int) -> str:
    return f"{epoch} {run_id}"
