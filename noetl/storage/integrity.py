"""Checks of a whole database: every table and index, the checksums of rows, and the texts and files that are stored
under their digests.

The checksums of the logs and summaries are checked by `server.lifecycle.log_verifier`. What is derived can be rebuilt:
indexes and columns with `rebuild_derived`, snapshots and summaries from the logs.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from noetl.core.model.bundle import file_digest
from noetl.errors import CorruptLog, NoetlError
from noetl.storage.document_checksums import CHECKED_TABLES, is_intact
from noetl.storage.events.event_rows import decode_summary, intact
from noetl.storage.events.execution_queries import COPIES, OLDEST, copied_columns
from noetl.storage.playbooks.sql import decoded_bundle, text_digest
from noetl.storage.ports.events import ExecutionSummary
from noetl.storage.ports.sql import SqlDatabase
from noetl.storage.ports.task_logs import MAX_BYTES
from noetl.storage.sqlite.database_file import SqliteFile
from noetl.storage.task_logs.chunks import size_of
from noetl.storage.task_logs.sql import decode_chunk

MAX_PROBLEMS = 100
PAGE = 500  # rows of one query
DERIVED = ("executions", "snapshots", "quotas", "load_samples")  # rebuilt from the logs, or begun again


async def database_problems(database: SqlDatabase, parts: Mapping[str, Sequence[str]]) -> AsyncIterator[str]:
    """Everything that is wrong in the files of a database. `parts`: the migrations of all parts it can have."""
    check = _sqlite_problems if database.dialect == "sqlite" else _postgres_problems
    try:
        async for problem in check(database):
            yield problem
        for kind, name, _ in await _dropped(database, parts):
            yield f"{kind} {name} does not exist"
        for rows in (_text_problems, _row_problems, _task_log_problems, _column_problems, _missing_problems):
            async for problem in rows(database):
                yield problem
    except NoetlError as problem:
        yield f"the database cannot be read completely: {problem}"


async def unchecked(database: SqlDatabase) -> list[str]:
    """What `database_problems` cannot check in this database, and what to do about it."""
    if database.dialect == "sqlite":
        return []
    found = []
    if await database.row(_AMCHECK) is None:
        found.append("indexes are not compared with their tables: `CREATE EXTENSION amcheck` in the database of NoETL")
    if (await database.row("SHOW data_checksums"))[0] != "on":
        found.append("Postgres does not check its pages: stop it and run `pg_checksums --enable`")
    return found


async def rebuild_derived(database: SqlDatabase, parts: Mapping[str, Sequence[str]]) -> int:
    """Rebuild every index from its table, and the copied columns of executions from their summaries; delete damaged
    snapshots, quotas and load samples, which begin again. Returns the number of changed rows.

    Indexes that do not exist are created (`parts` as for `database_problems`). Damaged and missing rows of executions
    get the lengths of their logs, which `log_verifier.repair` reads."""
    if isinstance(database, SqliteFile):
        if not await _is_sound(database):
            await database.rebuild(DERIVED)
    else:
        for (table,) in await database.fetch(_TABLES):
            await _define(database, f'REINDEX TABLE "{table}"')
    for kind, _, statement in await _dropped(database, parts):
        if kind == "index":
            await _define(database, statement)
    await _restore_lengths(database)
    return await _rewrite_columns(database) + await _delete_damaged(database)


async def _define(database: SqlDatabase, statement: str) -> None:
    """Execute a statement that has no number of rows, which `execute` of Postgres requires."""
    await (database.execute if database.dialect == "sqlite" else database.row)(statement)


async def _restore_lengths(database: SqlDatabase) -> None:
    """The row of an execution that is damaged, or missing, gets the length of its log."""
    table = f"{database.prefix}executions"
    columns = ("id", "seq", "data", "crc", *COPIES)
    places = ", ".join(f"${place}" for place in range(1, 1 + len(columns)))
    damaged = [
        number
        async for number, seq, data, crc in _rows(database, "executions", ("id",), ("seq", "data", "crc"))
        if not intact(crc, number, seq, data)
    ]
    for number in (*damaged, *await _missing(database)):
        empty = ExecutionSummary(execution_id=str(number), path="", status="pending", started_at=0.0)
        length = f"SELECT max(first + count - 1) FROM {database.prefix}log WHERE execution = $1"
        ((seq,),) = await database.fetch(length, number)
        if seq is not None:
            await database.execute(
                f"INSERT INTO {table}({', '.join(columns)}) VALUES ({places}) "
                "ON CONFLICT (id) DO UPDATE SET seq = excluded.seq",
                *(number, seq, b"", 0, *copied_columns(empty).values()),
            )


async def _rewrite_columns(database: SqlDatabase) -> int:
    changed = 0
    assignments = ", ".join(f"{name} = ${place}" for place, name in enumerate(COPIES, 3))
    for number, summary, _ in [each async for each in _wrong_columns(database)]:
        changed += await database.execute(
            f"UPDATE {database.prefix}executions SET {assignments} WHERE id = $1 AND seq = $2",
            number,
            summary.seq,
            *copied_columns(summary).values(),
        )
    return changed


async def _delete_damaged(database: SqlDatabase) -> int:
    """Delete damaged rows that are derived, or that are valid for minutes only."""
    damaged: list[tuple[str, tuple[str, ...], tuple[Any, ...]]] = [
        ("snapshots", ("execution",), (execution,))
        async for execution, seq, data, crc in _rows(database, "snapshots", ("execution",), ("seq", "data", "crc"))
        if not intact(crc, execution, seq, data)
    ]
    for name in ("load_samples", "quotas"):
        table = CHECKED_TABLES[name]
        damaged += [
            (name, table.key, tuple(row[: len(table.key)]))
            async for row in _rows(database, name, table.key, (*table.others, table.document))
            if not is_intact(row[-1], *row[:-1])
        ]
    for name, key, values in damaged:
        where = " AND ".join(f"{column} = ${place}" for place, column in enumerate(key, 1))
        await database.execute(f"DELETE FROM {database.prefix}{name} WHERE {where}", *values)
    return len(damaged)


async def _is_sound(database: SqliteFile) -> bool:
    """Whether all pages of a file can be read, and nothing is missing in it."""
    try:
        return not [each async for each in _sqlite_problems(database)] and not await database.missing()
    except CorruptLog:
        return False


_VERSIONS = {
    "sqlite": "SELECT name, version FROM noetl_schema",
    "postgres": "SELECT part, version FROM noetl_migrations",
}
_DEFINED = {
    "sqlite": "SELECT name FROM sqlite_master",
    "postgres": "SELECT relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = ANY (current_schemas(false))",
}
_DEFINITION = re.compile(
    r"\b(CREATE|DROP)(?:\s+(?:UNIQUE|UNLOGGED))*\s+(TABLE|INDEX)\s+(?:IF\s+(?:NOT\s+)?EXISTS\s+)?(\w+)"
)
_PARTITIONS = "noetl_log_"  # retention deletes them


async def _dropped(database: SqlDatabase, parts: Mapping[str, Sequence[str]]) -> list[tuple[str, str, str]]:
    """Tables and indexes that migrations of this database have created, and that do not exist: kind, name, SQL."""
    present = {name for (name,) in await database.fetch(_DEFINED[database.dialect])}
    versions = await database.fetch(_VERSIONS[database.dialect])
    defined = definitions(script for part, version in versions for script in parts.get(part, ())[:version])
    return [each for each in defined if each[1] not in present and not each[1].startswith(_PARTITIONS)]


def definitions(scripts: Iterable[str]) -> list[tuple[str, str, str]]:
    """The tables and indexes that migrations create and do not drop: kind, name, SQL."""
    found: dict[str, tuple[str, str, str]] = {}
    for statement in ";".join(scripts).split(";"):
        definition = _DEFINITION.search(statement)
        if definition is not None:
            verb, kind, name = definition.groups()
            found.pop(name, None)
            if verb == "CREATE":
                found[name] = kind.lower(), name, statement
    return list(found.values())


async def _sqlite_problems(database: SqlDatabase) -> AsyncIterator[str]:
    for (message,) in await database.fetch(f"PRAGMA integrity_check({MAX_PROBLEMS})"):
        if message != "ok":
            yield f"SQLite: {message}"


_AMCHECK = "SELECT 1 FROM pg_extension WHERE extname = 'amcheck'"
_TABLES = (
    "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.relkind = 'r' AND c.relname LIKE 'noetl\\_%' AND n.nspname = ANY (current_schemas(false)) ORDER BY 1"
)
_INDEXES = (
    "SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
    "JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am a ON a.oid = x.relam "
    "JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.relname LIKE 'noetl\\_%' AND c.relkind = 'r' AND a.amname = 'btree' "
    "AND n.nspname = ANY (current_schemas(false)) ORDER BY 1"
)


async def _postgres_problems(database: SqlDatabase) -> AsyncIterator[str]:
    """Read every row of every table, and compare every index with its table if the extension amcheck is installed."""
    for (table,) in await database.fetch(_TABLES):
        try:
            await database.row(f'SELECT count(*), sum(length(t::text)) FROM "{table}" t')
        except NoetlError as problem:
            yield f"table {table}: {problem}"
    if await database.row(_AMCHECK) is None:
        return  # `unchecked` says so
    for (index,) in await database.fetch(_INDEXES):
        try:
            await database.row(f"SELECT bt_index_check('{index}'::regclass, true)")
        except NoetlError as problem:
            yield f"index {index}: {problem}"


# ── rows ────────────────────────────────────────────────────────────────────────────────


async def _row_problems(database: SqlDatabase) -> AsyncIterator[str]:
    """Rows that do not match their checksums or digests."""
    for name, table in CHECKED_TABLES.items():
        columns = table.key + table.others
        async for row in _rows(database, name, table.key, (*table.others, table.document)):
            document = row[-1].encode() if isinstance(row[-1], str) else row[-1]
            if not is_intact(document, *row[:-1]):
                shown = ", ".join(f"{key} {value}" for key, value in zip(columns, row, strict=False))
                yield f"table {name}: the row with {shown} does not match its checksum"
    async for execution, seq, data, crc in _rows(database, "snapshots", ("execution",), ("seq", "data", "crc")):
        if not intact(crc, execution, seq, data):
            yield f"the snapshot of execution {execution} is damaged; it is not used, and the next one replaces it"


async def _task_log_problems(database: SqlDatabase) -> AsyncIterator[str]:
    """Chunks that are damaged, or that do not continue the chunk before them."""
    previous, line, size = None, 1, 0  # of the next chunk
    columns = ("count", "total", "data")
    async for execution, first, count, total, data in _rows(database, "task_logs", ("execution", "first"), columns):
        if execution != previous:
            previous, line, size = execution, 1, 0
        try:
            chunk = decode_chunk(data)
            size += size_of(chunk)
            valid = chunk.execution_id == str(execution) and len(chunk.lines) == count and first == line
            valid = valid and (total == size or total > MAX_BYTES)  # the last chunk of a full log is replaced
        except CorruptLog:
            valid = False
        if not valid:
            yield f"the task log of execution {execution} is damaged at line {first}"
        line, size = first + count, total


async def _column_problems(database: SqlDatabase) -> AsyncIterator[str]:
    """Executions whose columns, by which they are found, differ from their summary."""
    async for number, _, wrong in _wrong_columns(database):
        yield f"execution {number}: the columns {', '.join(wrong)} do not match its summary"


# In Postgres the log of a deleted execution remains until its partition is deleted; only ended ones are deleted.
_MISSING = {
    "sqlite": "SELECT DISTINCT execution FROM log WHERE execution NOT IN (SELECT id FROM executions) ORDER BY 1",
    "postgres": (
        "SELECT execution FROM (SELECT DISTINCT ON (execution) execution, data FROM noetl_log "
        "ORDER BY execution, first DESC) AS l WHERE position('\"playbook.processed\"'::bytea IN data) = 0 "
        "AND NOT EXISTS (SELECT 1 FROM noetl_executions AS e WHERE e.id = l.execution) ORDER BY 1"
    ),
}


async def _missing(database: SqlDatabase) -> list[int]:
    """Executions that have a log but no row."""
    return [row[0] for row in await database.fetch(_MISSING[database.dialect])]


async def _missing_problems(database: SqlDatabase) -> AsyncIterator[str]:
    for number in await _missing(database):
        yield f"execution {number}: its row is missing in the table of executions, but its log exists"


async def _wrong_columns(database: SqlDatabase) -> AsyncIterator[tuple[int, ExecutionSummary, list[str]]]:
    """The id of such executions, their summary, and the columns."""
    async for number, *found, seq, data, crc in _rows(database, "executions", ("id",), (*COPIES, "seq", "data", "crc")):
        if not intact(crc, number, seq, data):
            continue  # the log verifier reports it
        summary = decode_summary(data)
        stored = dict(zip(COPIES, found, strict=True))
        copies = copied_columns(summary)
        # A column that an earlier release did not have is NULL in its rows.
        wrong = [
            each for each in COPIES if stored[each] != copies[each] and (stored[each] is not None or each in OLDEST)
        ]
        if wrong:
            yield number, summary, wrong


async def _text_problems(database: SqlDatabase) -> AsyncIterator[str]:
    """Texts and files that do not match their digests, and versions of the catalog without a text."""
    prefix = database.prefix
    async for digest, text, file in _rows(database, "playbook_texts", ("digest",), ("text", "file")):
        if not isinstance(text, str) or not isinstance(file, str) or text_digest(text, file) != digest:
            yield f"the text of playbook {digest} ({file}) does not match its digest"
    async for digest, content in _rows(database, "bundle_files", ("digest",), ("content",)):
        if not isinstance(content, bytes) or file_digest(content) != digest:
            yield f"the file {digest} of a bundle does not match its digest"
    async for digest, manifest in _rows(database, "bundles", ("digest",), ("manifest",)):
        if not isinstance(manifest, str) or decoded_bundle(digest, manifest) is None:
            yield f"the bundle {digest} does not match its digest"
    missing = (
        f"SELECT c.path, c.version FROM {prefix}catalogue c "
        f"LEFT JOIN {prefix}playbook_texts t ON t.digest = c.digest WHERE t.digest IS NULL"
    )
    for path, version in await database.fetch(missing):
        yield f"version {version} of playbook {path} in the catalog has no text"


async def _rows(
    database: SqlDatabase, table: str, key: Sequence[str], others: Sequence[str]
) -> AsyncIterator[Sequence[Any]]:
    """All rows of a table in the order of its key, in pages; nothing if this store has no such table."""
    if await database.row(_TABLE_EXISTS[database.dialect], f"{database.prefix}{table}") is None:
        return
    names, order = ", ".join((*key, *others)), ", ".join(key)
    after, values = "", tuple[Any, ...]()
    while True:
        query = f"SELECT {names} FROM {database.prefix}{table} {after} ORDER BY {order} LIMIT {PAGE}"
        rows = await database.fetch(query, *values)
        for row in rows:
            yield row
        if len(rows) < PAGE:
            return
        values = tuple(rows[-1][: len(key)])
        after = f"WHERE ({order}) > ({', '.join(f'${number}' for number in range(1, len(key) + 1))})"


_TABLE_EXISTS = {
    "sqlite": "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = $1",
    "postgres": "SELECT 1 WHERE to_regclass($1) IS NOT NULL",
}
