"""Runs that wait for a worker, in a table that all servers of a cluster take from.

Fair between executions: a run gets its turn after the last one of its execution, and not before
the turn that is being served, so a loop of a million items does not stand before a playbook of one
step. NOTIFY wakes who waits; whoever waits also looks by itself. The table is unlogged: a crash of
the database empties it, and what is owed is found again in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from noetl.drivers.postgres_database import PostgresDatabase
from noetl.model.work import Claim
from noetl.ports import PoolDepth, QueuedRun

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
)

CHANNEL = "noetl_queue"
POLL_SECONDS = 0.5  # how soon a run is found of which nobody told us

_PUT = """
    INSERT INTO noetl_queue(run_id, execution, pool, affinity, turn)
    SELECT w.run_id, w.execution, w.pool, w.affinity,
      greatest(
        coalesce((SELECT max(q.turn) FROM noetl_queue q WHERE q.execution = w.execution), 0),
        coalesce((SELECT min(q.turn) FROM noetl_queue q WHERE q.pool = w.pool), 0)
      ) + row_number() OVER (PARTITION BY w.execution, w.pool ORDER BY w.place)
    FROM unnest($1::text[], $2::int8[], $3::text[], $4::text[]) WITH ORDINALITY
      AS w(run_id, execution, pool, affinity, place)
    ORDER BY w.run_id
    ON CONFLICT (run_id) DO NOTHING
"""
_TAKE = """
    DELETE FROM noetl_queue WHERE run_id = ANY(ARRAY(
      SELECT run_id FROM noetl_queue WHERE pool = $1 ORDER BY turn, run_id LIMIT $2 FOR UPDATE SKIP LOCKED
    )) RETURNING turn, execution, run_id, pool, affinity
"""


class PostgresRunQueue:
    """`ports.RunQueue` for any number of servers."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._watchers: dict[str, dict[Callable[[], None], None]] = {}  # by pool
        self._looked: dict[str, float] = {}  # pool -> when it was last found empty, and no bell rang since
        self._listening = False
        self._closed = False
        database.migrate("queue", SCHEMA)

    async def put(self, runs: Sequence[QueuedRun]) -> None:
        """Let them wait (one that waits already waits once)."""
        if not runs:
            return
        await self._database.execute(
            _PUT,
            [run.run_id for run in runs],
            [int(run.execution_id) for run in runs],
            [run.pool for run in runs],
            [run.affinity for run in runs],
        )
        for pool in {run.pool for run in runs}:
            self._ring(pool)
            self._database.tell(CHANNEL, pool)

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
                    await self.put([_queued(row) for row in taken])
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
            await self._database.execute("DELETE FROM noetl_queue WHERE execution = $1", int(execution_id))
        else:
            await self._database.execute("DELETE FROM noetl_queue WHERE run_id = ANY($1::text[])", list(runs))

    async def depths(self) -> list[PoolDepth]:
        """Every pool in which something waits."""
        rows = await self._database.fetch(
            "SELECT pool, count(*), extract(epoch FROM min(since))::float8 FROM noetl_queue GROUP BY pool ORDER BY pool"
        )
        return [PoolDepth(*row) for row in rows]

    async def close(self) -> None:
        """Let go; who watches is woken, and nothing is there."""
        self._closed = True
        self._ring("")

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            self._database.listen(CHANNEL, self._ring)

    def _ring(self, pool: str) -> None:
        for name in [pool] if pool else list(self._watchers):
            self._looked.pop(name, None)
            for wake in list(self._watchers.get(name, ())):
                wake()


def _queued(row: Sequence[object]) -> QueuedRun:
    _, execution, run_id, pool, affinity = row
    return QueuedRun(str(execution), str(run_id), str(pool), affinity)  # type: ignore[arg-type]
