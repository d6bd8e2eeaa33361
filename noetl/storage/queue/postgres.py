"""The run queue in Postgres, shared by all servers of a cluster.

Fair between executions: the turn of a run follows the last one of its execution, and is not before
the turn that is being served. So a loop of a million items does not delay a playbook of one
step. Waiting claims are notified, and poll as well. The table is unlogged: a crash of
the database empties it, and recovery enqueues the runs again from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from noetl.core.model.work import Claim
from noetl.storage.ports.queue import AGEING_SECONDS, MAX_WEIGHT, LimitDepth, PoolDepth, QueuedRun
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
    # The time of enqueueing; existing rows get the time of the migration.
    "ALTER TABLE noetl_queue ADD COLUMN since timestamptz NOT NULL DEFAULT now()",
    # Runs that wait for a limit: `line` is its key, `parked` is false after their release.
    """
    ALTER TABLE noetl_queue ADD COLUMN line text, ADD COLUMN parked bool NOT NULL DEFAULT false;
    DROP INDEX noetl_queue_turn;
    CREATE INDEX noetl_queue_turn ON noetl_queue(pool, turn, run_id) WHERE NOT parked;
    CREATE INDEX noetl_queue_line ON noetl_queue(line, turn, run_id) WHERE parked
    """,
    """
    ALTER TABLE noetl_queue ADD COLUMN priority float8 NOT NULL DEFAULT 0;
    ALTER TABLE noetl_queue ADD COLUMN labels text[] NOT NULL DEFAULT '{}';
    CREATE INDEX noetl_queue_special ON noetl_queue(pool) WHERE NOT parked AND (priority <> 0 OR labels <> '{}')
    """,
    """
    ALTER TABLE noetl_queue ADD COLUMN cost int4 NOT NULL DEFAULT 1;
    DROP INDEX noetl_queue_special;
    CREATE INDEX noetl_queue_special ON noetl_queue(pool)
      WHERE NOT parked AND (priority <> 0 OR labels <> '{}' OR cost <> 1)
    """,
)

CHANNEL = "noetl_queue"
POLL_SECONDS = 0.5  # between polls for runs whose notification was lost

TURN = 60  # between two runs of an execution with weight 1

_PUT = f"""
    INSERT INTO noetl_queue(run_id, execution, pool, affinity, cost, priority, labels, turn)
    SELECT w.run_id, w.execution, w.pool, w.affinity, w.cost, w.priority,
      CASE WHEN w.labels = '' THEN '{{}}'::text[] ELSE string_to_array(w.labels, E'\\n') END,
      greatest(
        coalesce((
          SELECT max(q.turn) FROM noetl_queue q WHERE q.execution = w.execution AND (q.priority = 0) = (w.priority = 0)
        ), 0),
        coalesce((SELECT min(q.turn) FROM noetl_queue q WHERE q.pool = w.pool AND NOT q.parked), 0)
      ) + (row_number() OVER (PARTITION BY w.execution, w.pool ORDER BY w.place) * {TURN} + w.weight - 1) / w.weight
    FROM unnest($1::text[], $2::int8[], $3::text[], $4::text[], $5::int8[], $6::float8[], $7::text[], $8::int4[])
      WITH ORDINALITY AS w(run_id, execution, pool, affinity, weight, priority, labels, cost, place)
    ORDER BY w.run_id
    ON CONFLICT (run_id) DO NOTHING
"""
_TAKE = """
    DELETE FROM noetl_queue WHERE run_id = ANY(ARRAY(
      SELECT run_id FROM noetl_queue WHERE pool = $1 AND NOT parked AND priority = 0 AND labels = '{}' AND cost = 1
      ORDER BY turn, run_id LIMIT CASE WHEN $3::int8 = 1 THEN $2::int8 ELSE least($2::int8, (
        SELECT (count(*) + $3::int8 - 1) / $3::int8 FROM (
          SELECT 1 FROM noetl_queue WHERE pool = $1 AND NOT parked LIMIT $2::int8 * $3::int8
        ) AS ready
      )) END FOR UPDATE SKIP LOCKED
    )) RETURNING turn, execution, run_id, pool, affinity, line, extract(epoch FROM since)::float8, priority, labels,
      cost
"""
_HAS_SPECIAL = """
    SELECT 1 FROM noetl_queue WHERE pool = $1 AND NOT parked AND (priority <> 0 OR labels <> '{}' OR cost <> 1) LIMIT 1
"""
# Of a pool in which some runs have a priority, labels or a cost: a run with a priority precedes the runs whose rank
# (time of enqueueing, earlier by AGEING_SECONDS for each point) is larger; the others keep the order of their turns.
_TAKE_SPECIAL = f"""
    WITH ready AS (
      SELECT run_id, turn, priority, cost, extract(epoch FROM since) - {AGEING_SECONDS} * priority AS rank
      FROM noetl_queue WHERE pool = $1 AND NOT parked AND labels <@ $4::text[]
    ), keyed AS (
      SELECT *, CASE WHEN priority = 0 THEN max(rank) OVER (PARTITION BY priority = 0 ORDER BY turn, run_id)
        ELSE rank END AS key FROM ready
    ), ordered AS (
      SELECT run_id, cost, row_number() OVER (
        ORDER BY key, priority <> 0, CASE WHEN priority = 0 THEN turn ELSE 0 END, run_id
      ) AS place FROM keyed
    ), fitting AS (
      SELECT run_id, place,
        sum(CASE WHEN $5::int8 > 0 THEN least(cost, $5::int8) ELSE cost END) OVER (ORDER BY place) AS slots
      FROM ordered ORDER BY place LIMIT least($2::int8, (SELECT (count(*) + $3::int8 - 1) / $3::int8 FROM ready))
    )
    DELETE FROM noetl_queue WHERE run_id = ANY(ARRAY(
      SELECT q.run_id FROM noetl_queue q JOIN fitting f ON f.run_id = q.run_id
      WHERE f.slots <= $2::int8 ORDER BY f.place FOR UPDATE OF q SKIP LOCKED
    )) RETURNING turn, execution, run_id, pool, affinity, line, extract(epoch FROM since)::float8, priority, labels,
      cost
"""
# The runs that wait for a limit have turns of their own; a run that is parked again gets its former turn.
_PARK = f"""
    INSERT INTO noetl_queue(run_id, execution, pool, affinity, cost, priority, labels, turn, since, line, parked)
    SELECT w.run_id, w.execution, w.pool, w.affinity, w.cost, w.priority,
      CASE WHEN w.labels = '' THEN '{{}}'::text[] ELSE string_to_array(w.labels, E'\\n') END,
      coalesce(w.turn, greatest(
        coalesce((SELECT max(q.turn) FROM noetl_queue q WHERE q.execution = w.execution AND q.line = w.line), 0),
        coalesce((SELECT min(q.turn) FROM noetl_queue q WHERE q.line = w.line AND q.parked), 0)
      ) + (row_number() OVER (PARTITION BY w.execution, w.line ORDER BY w.place) * {TURN} + w.weight - 1) / w.weight),
      coalesce(to_timestamp(nullif(w.since, 0)), now()), w.line, true
    FROM unnest($1::text[], $2::int8[], $3::text[], $4::text[], $5::int8[], $6::float8[], $7::text[], $8::int4[],
      $9::int8[], $10::float8[], $11::text[])
      WITH ORDINALITY AS w(run_id, execution, pool, affinity, weight, priority, labels, cost, turn, since, line, place)
    ORDER BY w.run_id
    ON CONFLICT (run_id) DO NOTHING
"""
_RELEASE = """
    UPDATE noetl_queue SET parked = false WHERE parked AND run_id = ANY(ARRAY(
      SELECT run_id FROM noetl_queue WHERE parked AND line = $1 ORDER BY turn, run_id LIMIT $2 FOR UPDATE SKIP LOCKED
    )) RETURNING pool
"""
_RELEASE_EXECUTIONS = """
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
        self._empty_since: dict[str, float] = {}  # pool -> time of the last empty poll without a later notification
        self._special: dict[str, tuple[float, bool]] = {}  # pool -> when it was looked up, has special runs
        self._listening = False
        self._closed = False
        self._removing: set[int] = set()  # executions whose runs are to be removed
        database.migrate("queue", SCHEMA)

    async def put(self, runs: Sequence[QueuedRun]) -> None:
        """Enqueue runs; a run that is already queued is not added again."""
        if not runs:
            return
        parked = [run for run in runs if run.limit is not None]
        if parked:
            await self._database.execute(
                _PARK,
                *_columns(parked),
                [run.turn for run in parked],
                [run.since for run in parked],
                [run.limit for run in parked],
            )
            runs = [run for run in runs if run.limit is None]
        if runs:
            await self._database.execute(_PUT, *_columns(runs))
            self._notify({run.pool for run in runs})

    async def release_waiting(self, limit: str, most: int, *, whole: bool = False, also: Sequence[str] = ()) -> int:
        """Release the first runs that wait for a limit."""
        if whole:
            rows = await self._database.fetch(_RELEASE_EXECUTIONS, limit, max(0, most), [int(each) for each in also])
        else:
            rows = await self._database.fetch(_RELEASE, limit, max(0, most))
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
        """Dequeue up to `claim.slots` runs, fair between executions.

        A pool that was empty at the last poll is not queried again before a notification or the next poll."""
        self._listen()
        now = asyncio.get_running_loop().time()
        if self._closed or claim.slots <= 0 or now - self._empty_since.get(claim.pool, float("-inf")) < POLL_SECONDS:
            return []
        self._empty_since[claim.pool] = now  # before the query: a notification meanwhile resets it
        query = asyncio.ensure_future(self._dequeue(claim, now))
        try:
            rows = await asyncio.shield(query)
        except asyncio.CancelledError:
            # The rows may be deleted already: put them back.
            for taken in await asyncio.gather(query, return_exceptions=True):
                if isinstance(taken, list):
                    await self.put([msgspec.structs.replace(_queued(row), limit=None) for row in taken])
            raise
        if rows or self._special[claim.pool][1]:  # other workers may have the labels of the runs that wait
            self._empty_since.pop(claim.pool, None)
        return sorted(map(_queued, rows), key=lambda run: (-run.priority, run.turn or 0))

    async def _dequeue(self, claim: Claim, now: float) -> list[Sequence[object]]:
        """Delete runs of a pool and return them, in order; whether some are special is looked up at every interval."""
        looked, special = self._special.get(claim.pool, (float("-inf"), False))
        if now - looked >= POLL_SECONDS or not special:
            special = await self._database.row(_HAS_SPECIAL, claim.pool) is not None
            self._special[claim.pool] = (now, special)
        if special:
            rows = await self._database.fetch(
                _TAKE_SPECIAL, claim.pool, claim.slots, claim.workers, list(claim.labels), claim.capacity
            )
        else:
            rows = await self._database.fetch(_TAKE, claim.pool, claim.slots, claim.workers)
        return sorted(rows, key=lambda row: (row["turn"], row["run_id"]))

    async def labelled(self) -> list[tuple[str, tuple[str, ...], int]]:
        """Pool, labels and number of the waiting runs that require labels."""
        rows = await self._database.fetch(
            "SELECT pool, labels, count(*) FROM noetl_queue WHERE NOT parked AND labels <> '{}' GROUP BY pool, labels"
        )
        return [(pool, tuple(labels), count) for pool, labels, count in rows]

    def waits_for_slots(self, pool: str) -> bool:
        """Whether a run of the pool may cost more than the last claim had slots."""
        return self._special.get(pool, (0.0, False))[1]

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

    async def remove(self, execution_id: str, runs: Sequence[str] | None = None) -> None:
        """Remove these runs of an execution, or all of them."""
        if runs is None:
            self._removing.add(int(execution_id))
            await asyncio.sleep(0)  # executions that end in the same commit are removed together
            removing, self._removing = self._removing, set()
            if not removing:
                return
            try:
                await self._database.execute(
                    "DELETE FROM noetl_queue WHERE execution = ANY($1::int8[])", list(removing)
                )
            except BaseException:
                self._removing |= removing
                raise
        else:
            await self._database.execute("DELETE FROM noetl_queue WHERE run_id = ANY($1::text[])", list(runs))

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
    turn, execution, run_id, pool, affinity, line, since, priority, labels, cost = row
    found = QueuedRun(str(execution), str(run_id), str(pool), affinity, since, line, turn if line else None)  # type: ignore[arg-type]
    if not priority and not labels and cost == 1:
        return found
    return msgspec.structs.replace(found, priority=priority, labels=tuple(labels), cost=cost)  # type: ignore[arg-type]


def _columns(
    runs: Sequence[QueuedRun],
) -> tuple[list[str], list[int], list[str], list[str | None], list[int], list[float], list[str], list[int]]:
    return (
        [run.run_id for run in runs],
        [int(run.execution_id) for run in runs],
        [run.pool for run in runs],
        [run.affinity for run in runs],
        [min(run.weight, MAX_WEIGHT) for run in runs],
        [run.priority for run in runs],
        ["\n".join(run.labels) for run in runs],
        [run.cost for run in runs],
    )
