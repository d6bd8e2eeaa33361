"""Schema and statements of the run queue in Postgres."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.storage.ports.queue import AGEING_SECONDS
from noetl.storage.queue.tenant_shares import TURN

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
    # `scope` is a pool or the key of a limit; `pass` and `start` are as in `tenant_shares`.
    """
    ALTER TABLE noetl_queue ADD COLUMN tenant text NOT NULL DEFAULT '';
    DROP INDEX noetl_queue_turn;
    DROP INDEX noetl_queue_line;
    CREATE INDEX noetl_queue_turn ON noetl_queue(pool, tenant, turn, run_id) WHERE NOT parked;
    CREATE INDEX noetl_queue_line ON noetl_queue(line, tenant, turn, run_id) WHERE parked;
    CREATE UNLOGGED TABLE noetl_queue_passes(
      scope text NOT NULL,
      tenant text NOT NULL,
      pass int8 NOT NULL,
      start int8 NOT NULL,
      PRIMARY KEY (scope, tenant)
    )
    """,
    # Runs without labels and priority are in one index, the others in those by which a take finds the first ones.
    f"""
    ALTER TABLE noetl_queue ADD COLUMN rank float8 NOT NULL DEFAULT 0;
    UPDATE noetl_queue SET rank = extract(epoch FROM since) - {AGEING_SECONDS} * priority;
    DROP INDEX noetl_queue_turn;
    CREATE INDEX noetl_queue_turn ON noetl_queue(pool, tenant, turn, run_id)
      WHERE NOT parked AND labels = '{{}}' AND priority = 0;
    CREATE INDEX noetl_queue_others ON noetl_queue(pool, tenant, turn, run_id)
      WHERE NOT parked AND (labels <> '{{}}' OR priority <> 0);
    CREATE INDEX noetl_queue_labels ON noetl_queue(pool, tenant, labels, turn, run_id)
      WHERE NOT parked AND labels <> '{{}}' AND priority = 0;
    CREATE INDEX noetl_queue_rank ON noetl_queue(pool, tenant, labels, rank, run_id)
      WHERE NOT parked AND priority <> 0
    """,
)


# The conditions of the partial indexes: a query with one of them reads the first rows of an index, however many wait.
_PLAIN = "q.pool = $1 AND NOT q.parked AND q.labels = '{}' AND q.priority = 0"
_OTHERS = "q.pool = $1 AND NOT q.parked AND (q.labels <> '{}' OR q.priority <> 0)"
_LABELLED = "q.pool = $1 AND NOT q.parked AND q.labels <> '{}' AND q.priority = 0"
_RANKED = "q.pool = $1 AND NOT q.parked AND q.priority <> 0"
_PARKED = "q.line = $1 AND q.parked"

_RUN = (
    "turn, execution, run_id, pool, affinity, line, extract(epoch FROM since)::float8, priority, labels, cost, tenant"
)

PUT = f"""
    INSERT INTO noetl_queue(run_id, execution, pool, affinity, cost, priority, tenant, rank, labels, turn)
    SELECT w.run_id, w.execution, w.pool, w.affinity, w.cost, w.priority, w.tenant,
      extract(epoch FROM now()) - {AGEING_SECONDS} * w.priority,
      CASE WHEN w.labels = '' THEN '{{}}'::text[] ELSE string_to_array(w.labels, E'\\n') END,
      greatest(
        coalesce((
          SELECT max(q.turn) FROM noetl_queue q WHERE q.execution = w.execution AND (q.priority = 0) = (w.priority = 0)
        ), 0),
        coalesce(least(
          (SELECT min(q.turn) FROM noetl_queue q WHERE {_PLAIN.replace("$1", "w.pool")} AND q.tenant = w.tenant),
          (SELECT min(q.turn) FROM noetl_queue q WHERE {_OTHERS.replace("$1", "w.pool")} AND q.tenant = w.tenant)
        ), 0)
      ) + (row_number() OVER (PARTITION BY w.execution, w.pool ORDER BY w.place) * {TURN} + w.weight - 1) / w.weight
    FROM unnest($1::text[], $2::int8[], $3::text[], $4::text[], $5::int8[], $6::float8[], $7::text[], $8::int4[],
      $9::text[]) WITH ORDINALITY AS w(run_id, execution, pool, affinity, weight, priority, labels, cost, tenant, place)
    ORDER BY w.run_id
    ON CONFLICT (run_id) DO NOTHING
"""


def _shares(workers: str, claims: str) -> str:
    """How many runs several claims take together ($2: slots of all claims): the shares of these workers of the runs
    that wait, and at least one for each claim."""
    return f"""CASE WHEN {claims} >= {workers} THEN $2::int8 ELSE least($2::int8, (
        SELECT greatest((count(*) * {claims} + {workers} - 1) / {workers}, least(count(*), {claims})) FROM (
          SELECT 1 FROM noetl_queue q WHERE {_PLAIN} LIMIT ($2::int8 * {workers} + {claims} - 1) / {claims}
        ) AS ready_runs
      )) END"""


_TENANTS = "(SELECT {0}(q.tenant) FROM noetl_queue q WHERE {1})"
# The kinds of runs that wait: whether some are special, and the first and the last of their tenants. If they are not
# special and have no tenants, the first of them are taken.
TAKE = f"""
    WITH look AS MATERIALIZED (
      SELECT EXISTS(
        SELECT 1 FROM noetl_queue WHERE pool = $1 AND NOT parked AND (priority <> 0 OR labels <> '{{}}' OR cost <> 1)
      ) AS special, least({_TENANTS.format("min", _PLAIN)}, {_TENANTS.format("min", _OTHERS)}) AS first,
      greatest({_TENANTS.format("max", _PLAIN)}, {_TENANTS.format("max", _OTHERS)}) AS last
    ), taken AS (
      DELETE FROM noetl_queue WHERE run_id = ANY(ARRAY(
        SELECT q.run_id FROM noetl_queue q WHERE {_PLAIN} AND q.tenant = '' AND q.cost = 1
        ORDER BY q.turn, q.run_id LIMIT CASE
          WHEN (SELECT special OR last <> '' FROM look) THEN 0
          ELSE {_shares("$3::int8", "$4::int8")}
        END FOR UPDATE SKIP LOCKED
      )) RETURNING {_RUN}
    )
    SELECT l.special, l.first, l.last, t.* FROM look l LEFT JOIN taken t ON true
"""


def _next(name: str, columns: str, waiting: str) -> str:
    """The distinct values of the first columns of an index, by one read of it for each."""
    these, last = (", ".join(f"{of}.{each}" for each in columns.split(", ")) for of in "qn")
    first = f"SELECT {these} FROM noetl_queue q WHERE {waiting}"
    return f"""{name}({columns}) AS (
      ({first} ORDER BY {these} LIMIT 1)
      UNION ALL
      SELECT f.* FROM {name} n CROSS JOIN LATERAL ({first} AND ({these}) > ({last}) ORDER BY {these} LIMIT 1) AS f
    )"""


def _first_tenant(*waiting: str, after: str = "") -> str:
    """The first tenant by name with runs of one of these kinds."""
    firsts = (f"(SELECT q.tenant FROM noetl_queue q WHERE {kind}{after} ORDER BY q.tenant LIMIT 1)" for kind in waiting)
    return f"least({', '.join(firsts)})"


def _fair(waiting: Sequence[str], chosen: str, *, tenants: str = "$2") -> str:
    """A query of waiting runs ($1: pool or limit, $2: how many, $3 and $4: tenants and weights), fair between tenants.

    `chosen` selects from `shares`: the tenants with the smallest passes. The recursive query reads one row of the index
    for each tenant."""
    return f"""
    WITH RECURSIVE named(tenant) AS (
      SELECT {_first_tenant(*waiting)}
      UNION ALL
      SELECT {_first_tenant(*waiting, after=" AND q.tenant > n.tenant")} FROM named n WHERE n.tenant IS NOT NULL
    ), shares AS MATERIALIZED (
      SELECT n.tenant, {TURN} / coalesce(w.weight, 1) AS step, greatest(
        coalesce(p.pass, 0), coalesce((SELECT max(start) FROM noetl_queue_passes WHERE scope = $1), 0)
      ) AS pass, ceil($2::int8 * coalesce(w.weight, 1) / sum(coalesce(w.weight, 1)) OVER ())::int8 AS most
      FROM named n LEFT JOIN noetl_queue_passes p ON p.scope = $1 AND p.tenant = n.tenant
      LEFT JOIN unnest($3::text[], $4::int8[]) AS w(tenant, weight) ON w.tenant = n.tenant
      WHERE n.tenant IS NOT NULL ORDER BY 3, n.tenant LIMIT {tenants}
    ), {chosen}, passed AS (
      INSERT INTO noetl_queue_passes(scope, tenant, pass, start)
      SELECT $1, tenant, max(start) + min(step), max(start) FROM chosen
      WHERE (SELECT count(tenant) FROM named) > 1 GROUP BY tenant ORDER BY tenant
      ON CONFLICT (scope, tenant) DO UPDATE SET pass = greatest(noetl_queue_passes.pass, excluded.pass),
        start = greatest(noetl_queue_passes.start, excluded.start)
    )"""


def _first(waiting: str, most: str) -> str:
    """The first runs of each tenant by turn, ordered by their passes. A tenant is searched for four times its share, so
    that others can use what one leaves."""
    return f"""ready AS MATERIALIZED (
      SELECT s.tenant, s.step, q.run_id,
        s.pass + (row_number() OVER (PARTITION BY s.tenant ORDER BY q.turn, q.run_id) - 1) * s.step AS start
      FROM shares s CROSS JOIN LATERAL (
        SELECT q.run_id, q.turn FROM noetl_queue q WHERE {waiting} AND q.tenant = s.tenant
        ORDER BY q.turn, q.run_id LIMIT least($2::int8, 4 * s.most) FOR UPDATE SKIP LOCKED
      ) AS q
    ), chosen AS MATERIALIZED (SELECT * FROM ready ORDER BY start, tenant, run_id LIMIT {most})"""


_CHOSEN = "ANY(ARRAY(SELECT run_id FROM chosen))"  # not IN, which may read the whole table
_TAKE_CHOSEN = f"DELETE FROM noetl_queue WHERE run_id = {_CHOSEN} RETURNING {_RUN}"
TAKE_FAIR = (
    _fair(
        [_PLAIN],
        _first(
            f"{_PLAIN} AND q.cost = 1",
            _shares("$5::int8", "$7::int8"),
        ),
        tenants="$6::int8",
    )
    + _TAKE_CHOSEN
)
_KEYS = "q.run_id, q.tenant, q.turn, q.priority, q.cost, q.rank"
# Of a pool in which some runs have a priority, labels or a cost: a run with a priority precedes those of its tenant
# whose rank (time of enqueueing, earlier by AGEING_SECONDS for each point) is larger; the others keep the order of
# their turns. Of each tenant only the first runs of each kind are read, as many as all workers together can take.
TAKE_SPECIAL = (
    _fair(
        [_PLAIN, _OTHERS],
        f"""{_next("labelled", "tenant, labels", _LABELLED)}, {_next("ranked", "tenant, labels", _RANKED)}, ready AS (
      SELECT r.* FROM shares s CROSS JOIN LATERAL (
        SELECT {_KEYS} FROM noetl_queue q WHERE {_PLAIN} AND q.tenant = s.tenant
        ORDER BY q.turn, q.run_id LIMIT $2::int8 * $5::int8
      ) AS r
      UNION ALL
      SELECT r.* FROM labelled g CROSS JOIN LATERAL (
        SELECT {_KEYS} FROM noetl_queue q WHERE {_LABELLED} AND q.tenant = g.tenant AND q.labels = g.labels
        ORDER BY q.turn, q.run_id LIMIT $2::int8 * $5::int8
      ) AS r WHERE g.labels <@ $6::text[]
      UNION ALL
      SELECT r.* FROM ranked g CROSS JOIN LATERAL (
        SELECT {_KEYS} FROM noetl_queue q WHERE {_RANKED} AND q.tenant = g.tenant AND q.labels = g.labels
        ORDER BY q.rank, q.run_id LIMIT $2::int8 * $5::int8
      ) AS r WHERE g.labels <@ $6::text[]
    ), keyed AS (
      SELECT *, CASE WHEN priority = 0 THEN max(rank) OVER (PARTITION BY tenant, priority = 0 ORDER BY turn, run_id)
        ELSE rank END AS key FROM ready
    ), placed AS (
      SELECT *, row_number() OVER (
        PARTITION BY tenant
        ORDER BY key, priority <> 0, CASE WHEN priority = 0 THEN turn ELSE 0 END, run_id
      ) AS place FROM keyed
    ), ordered AS (
      SELECT p.run_id, p.tenant, p.cost, s.step, s.pass + (p.place - 1) * s.step AS start
      FROM placed p JOIN shares s ON s.tenant = p.tenant
    ), fitting AS (
      SELECT *, sum(CASE WHEN $7::int8 > 0 THEN least(cost, $7::int8) ELSE cost END)
        OVER (ORDER BY start, tenant, run_id) AS slots
      FROM ordered ORDER BY start, tenant, run_id
      LIMIT least($2::int8, (SELECT (count(*) + $5::int8 - 1) / $5::int8 FROM ready))
    ), chosen AS MATERIALIZED (
      SELECT f.* FROM fitting f CROSS JOIN LATERAL (
        SELECT 1 FROM noetl_queue q WHERE q.run_id = f.run_id FOR UPDATE SKIP LOCKED
      ) AS free WHERE f.slots <= $2::int8
    )""",
        tenants="ALL",
    )
    + _TAKE_CHOSEN
)
_POOLED = [kind.removeprefix("q.pool = $1 AND ") for kind in (_PLAIN, _LABELLED, _RANKED)]
KINDS = f"""
    WITH RECURSIVE {_next("plain", "pool", _POOLED[0])},
    {_next("labelled", "pool, tenant, labels", _POOLED[1])},
    {_next("ranked", "pool, tenant, labels", _POOLED[2])}
    SELECT pool, '{{}}'::text[] FROM plain UNION SELECT pool, labels FROM labelled UNION SELECT pool, labels FROM ranked
"""
FORGET_PASSES = """
    DELETE FROM noetl_queue_passes p
    WHERE p.pass <= (SELECT max(o.start) FROM noetl_queue_passes o WHERE o.scope = p.scope)
"""
# The runs that wait for a limit have turns of their own; a run that is parked again gets its former turn.
PARK = f"""
    INSERT INTO noetl_queue(
      run_id, execution, pool, affinity, cost, priority, tenant, rank, labels, turn, since, line, parked
    )
    SELECT w.run_id, w.execution, w.pool, w.affinity, w.cost, w.priority, w.tenant,
      coalesce(nullif(w.since, 0), extract(epoch FROM now())) - {AGEING_SECONDS} * w.priority,
      CASE WHEN w.labels = '' THEN '{{}}'::text[] ELSE string_to_array(w.labels, E'\\n') END,
      coalesce(w.turn, greatest(
        coalesce((SELECT max(q.turn) FROM noetl_queue q WHERE q.execution = w.execution AND q.line = w.line), 0),
        coalesce((
          SELECT min(q.turn) FROM noetl_queue q WHERE q.line = w.line AND q.tenant = w.tenant AND q.parked
        ), 0)
      ) + (row_number() OVER (PARTITION BY w.execution, w.line ORDER BY w.place) * {TURN} + w.weight - 1) / w.weight),
      coalesce(to_timestamp(nullif(w.since, 0)), now()), w.line, true
    FROM unnest($1::text[], $2::int8[], $3::text[], $4::text[], $5::int8[], $6::float8[], $7::text[], $8::int4[],
      $9::text[], $10::int8[], $11::float8[], $12::text[]) WITH ORDINALITY
      AS w(run_id, execution, pool, affinity, weight, priority, labels, cost, tenant, turn, since, line, place)
    ORDER BY w.run_id
    ON CONFLICT (run_id) DO NOTHING
"""
RELEASE = (
    _fair([_PARKED], _first(_PARKED, "$2::int8"))
    + f"UPDATE noetl_queue SET parked = false WHERE parked AND run_id = {_CHOSEN} RETURNING pool"
)
RELEASE_EXECUTIONS = """
    UPDATE noetl_queue SET parked = false WHERE parked AND line = $1 AND (execution = ANY($3::int8[]) OR execution IN (
      SELECT DISTINCT execution FROM noetl_queue
      WHERE parked AND line = $1 AND execution <> ALL($3::int8[]) ORDER BY execution LIMIT $2
    )) RETURNING pool
"""
