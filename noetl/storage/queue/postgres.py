"""Runs that wait for a worker, in a table that all servers of a cluster take from.

Fair between executions: a run gets its turn after the last one of its execution, and not before
the turn that is being served, so a loop of a million items does not stand before a playbook of one
step. NOTIFY wakes who waits; whoever waits also looks by itself. The table is unlogged: a crash of
the database empties it, and what is owed is found again in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from noetl.core.model.work import Claim
from noetl.storage.ports.queue import MAX_WEIGHT, LimitDepth, PoolDepth, QueuedRun
from noetl.storage.postgres.database import PostgresDatabase

SCHEMA = (
    """
    CREATE UNLOGGED TABLE noetl_queue(
      run_id text PRIMARY KEY,
      execution int8 NOT NULL,
      pool text NOT NULL,
      affinity text,
      turn int8 NOT NULL
    );
    CREATE INDEX noetl_queue_turn ON noetl_queue(pool, turn, run_id);
    CREATE INDEX noetl_queue_execution ON noetl_queue(execution, turn)
    """,
    # When it began to wait; what waits already is counted from now on.
    "ALTER TABLE noetl_queue ADD COLUMN since timestamptz NOT NULL DEFAULT now()",
    # Runs that a limit holds: in which line they stand, or stood until they were let out.
    """
    ALTER TABLE noetl_queue ADD COLUMN line text, ADD COLUMN parked bool NOT NULL DEFAULT false;
    DROP INDEX noetl_queue_turn;
    CREATE INDEX noetl_queue_turn ON noetl_queue(pool, turn, run_id) WHERE NOT parked;
    CREATE INDEX noetl_queue_line ON noetl_queue(line, turn, run_id) WHERE parked
    """,
)

CHANNEL = "noetl_queue"
POLL_SECONDS = 0.5  # how soon a run is found of which nobody told us

TURN = 60  # between two runs of an execution that weighs 1

_PUT = f"""
    INSERT INTO noetl_queue(run_id, execution, pool, affinity, turn)
    SELECT w.run_id, w.execution, w.pool, w.affinity,
      greatest(
        coalesce((SELECT max(q.turn) FROM noetl_queue q WHERE q.execution = w.execution), 0),
        coalesce((SELECT min(q.turn) FROM noetl_queue q WHERE q.pool = w.pool AND NOT q.parked), 0)
      ) + (row_number() OVER (PARTITION BY w.execution, w.pool ORDER BY w.place) * {TURN} + w.weight - 1) / w.weight
    FROM unnest($1::text[], $2::int8[], $3::text[], $4::text[], $5::int8[]) WITH ORDINALITY
      AS w(run_id, execution, pool, affinity, weight, place)
    ORDER BY w.run_id
    ON CONFLICT (run_id) DO NOTHING
"""
_TAKE = """
    DELETE FROM noetl_queue WHERE run_id = ANY(ARRAY(
      SELECT run_id FROM noetl_queue WHERE pool = $1 AND NOT parked
      ORDER BY turn, run_id LIMIT $2 FOR UPDATE SKIP LOCKED
    )) RETURNING turn, execution, run_id, pool, affinity, line, extract(epoch FROM since)::float8
"""
# A line has turns of its own, so that who comes later stands behind its head; who was at the head returns to it.
_STAND_IN_LINE = f"""
    INSERT INTO noetl_queue(run_id, execution, pool, affinity, turn, since, line, parked)
    SELECT w.run_id, w.execution, w.pool, w.affinity,
      coalesce(w.turn, greatest(
        coalesce((SELECT max(q.turn) FROM noetl_queue q WHERE q.execution = w.execution AND q.line = w.line), 0),
        coalesce((SELECT min(q.turn) FROM noetl_queue q WHERE q.line = w.line AND q.parked), 0)
      ) + (row_number() OVER (PARTITION BY w.execution, w.line ORDER BY w.place) * {TURN} + w.weight - 1) / w.weight),
      coalesce(to_timestamp(nullif(w.since, 0)), now()), w.line, true
    FROM unnest($1::text[], $2::int8[], $3::text[], $4::text[], $5::int8[], $6::int8[], $7::float8[], $8::text[])
      WITH ORDINALITY AS w(run_id, execution, pool, affinity, weight, turn, since, line, place)
    ORDER BY w.run_id
    ON CONFLICT (run_id) DO NOTHING
"""
_LET_OUT = """
    UPDATE noetl_queue SET parked = false WHERE parked AND run_id = ANY(ARRAY(
      SELECT run_id FROM noetl_queue WHERE parked AND line = $1 ORDER BY turn, run_id LIMIT $2 FOR UPDATE SKIP LOCKED
    )) RETURNING pool
"""
_LET_OUT_WHOLE = """
    UPDATE noetl_queue SET parked = false WHERE parked AND line = $1 AND (execution = ANY($3::int8[]) OR execution IN (
      SELECT DISTINCT execution FROM noetl_queue
      WHERE parked AND line = $1 AND execution <> ALL($3::int8[]) ORDER BY execution LIMIT $2
    )) RETURNING pool
"""


class PostgresRunQueue:
    """`ports.RunQueue` for any number of servers."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._watchers: dict[str, dict[Callable[[], None], None]] = {}  # by pool
        self._looked: dict[str, float] = {}  # pool -> when it was last found empty, and no bell rang since
        self._listening = False
        self._closed = False
        self._leaving: set[int] = set()  # executions of which nothing waits any more
        database.migrate("queue", SCHEMA)

    async def put(self, runs: Sequence[QueuedRun]) -> None:
        """Let them wait (one that waits already waits once)."""
        if not runs:
            return
        in_line = [run for run in runs if run.limit is not None]
        if in_line:
            await self._database.execute(
                _STAND_IN_LINE,
                *_columns(in_line),
                [run.turn for run in in_line],
                [run.since for run in in_line],
                [run.limit for run in in_line],
            )
            runs = [run for run in runs if run.limit is None]
        if runs:
            await self._database.execute(_PUT, *_columns(runs))
            self._tell({run.pool for run in runs})

    async def release_waiting(self, limit: str, most: int, *, whole: bool = False, also: Sequence[str] = ()) -> int:
        """Let the first of a line wait for workers again."""
        if whole:
            rows = await self._database.fetch(_LET_OUT_WHOLE, limit, max(0, most), [int(each) for each in also])
        else:
            rows = await self._database.fetch(_LET_OUT, limit, max(0, most))
        self._tell({row[0] for row in rows})
        return len(rows)

    async def lines(self) -> list[LimitDepth]:
        """Every limit in whose line somebody stands."""
        rows = await self._database.fetch(
            "SELECT line, count(*), extract(epoch FROM min(since))::float8 FROM noetl_queue WHERE parked "
            "GROUP BY line ORDER BY line"
        )
        return [LimitDepth(*row) for row in rows]

    async def take(self, claim: Claim) -> list[QueuedRun]:
        """Up to `claim.slots` runs that wait now, fair between executions.

        A pool that was found empty a moment ago is not looked at again unless a bell rang since."""
        self._listen()
        now = asyncio.get_running_loop().time()
        if self._closed or claim.slots <= 0 or now - self._looked.get(claim.pool, float("-inf")) < POLL_SECONDS:
            return []
        self._looked[claim.pool] = now  # before we look: a bell meanwhile takes it away again
        asked = asyncio.ensure_future(self._database.fetch(_TAKE, claim.pool, claim.slots))
        try:
            rows = await asyncio.shield(asked)
        except asyncio.CancelledError:
            # Rows may be taken already: they must not go with us.
            for taken in await asyncio.gather(asked, return_exceptions=True):
                if isinstance(taken, list):
                    await self.put([msgspec.structs.replace(_queued(row), limit=None) for row in taken])
            raise
        if rows:
            self._looked.pop(claim.pool, None)
        return [_queued(row) for row in sorted(rows, key=lambda row: (row["turn"], row["run_id"]))]

    def watch(self, pool: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever runs of the pool may wait, and now and then by itself; the answer ends it."""
        self._listen()
        loop = asyncio.get_running_loop()
        watchers = self._watchers.setdefault(pool, {})

        timer = loop.call_later(POLL_SECONDS, lambda: look())

        def look() -> None:
            nonlocal timer
            timer = loop.call_later(POLL_SECONDS, look)
            wake()

        def end() -> None:
            timer.cancel()
            watchers.pop(wake, None)

        watchers[wake] = None
        return end

    async def remove(self, execution_id: str, runs: Sequence[str] | None = None) -> None:
        """Forget these runs of an execution, or all of them."""
        if runs is None:
            self._leaving.add(int(execution_id))
            await asyncio.sleep(0)  # executions that end with the same flush leave together
            leaving, self._leaving = self._leaving, set()
            if not leaving:
                return
            try:
                await self._database.execute("DELETE FROM noetl_queue WHERE execution = ANY($1::int8[])", list(leaving))
            except BaseException:
                self._leaving |= leaving
                raise
        else:
            await self._database.execute("DELETE FROM noetl_queue WHERE run_id = ANY($1::text[])", list(runs))

    async def depths(self) -> list[PoolDepth]:
        """Every pool in which something waits."""
        rows = await self._database.fetch(
            "SELECT pool, count(*), extract(epoch FROM min(since))::float8 FROM noetl_queue WHERE NOT parked "
            "GROUP BY pool ORDER BY pool"
        )
        return [PoolDepth(*row) for row in rows]

    async def close(self) -> None:
        """Let go; who watches is woken, and nothing is there."""
        self._closed = True
        self._ring("")

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            self._database.subscribe(CHANNEL, self._ring)

    def _tell(self, pools: set[str]) -> None:
        for pool in pools:
            self._ring(pool)
            self._database.publish(CHANNEL, pool)

    def _ring(self, pool: str) -> None:
        for name in [pool] if pool else list(self._watchers):
            self._looked.pop(name, None)
            for wake in list(self._watchers.get(name, ())):
                wake()


def _queued(row: Sequence[object]) -> QueuedRun:
    turn, execution, run_id, pool, affinity, line, since = row
    return QueuedRun(str(execution), str(run_id), str(pool), affinity, since, line, turn if line else None)  # type: ignore[arg-type]


def _columns(runs: Sequence[QueuedRun]) -> tuple[list[str], list[int], list[str], list[str | None], list[int]]:
    return (
        [run.run_id for run in runs],
        [int(run.execution_id) for run in runs],
        [run.pool for run in runs],
        [run.affinity for run in runs],
        [min(run.weight, MAX_WEIGHT) for run in runs],
    )
