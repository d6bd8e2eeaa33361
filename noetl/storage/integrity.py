"""Checks of a whole database: every table and index, the checksums of rows, and the texts and files that are stored
under their digests.

The checksums of the logs and summaries are checked by `server.lifecycle.log_verifier`. What is derived can be rebuilt:
indexes and columns with `rebuild_derived`, snapshots and summaries from the logs.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from noetl.core.model.bundle import PREFIX, file_digest
from noetl.core.model.ids import MAX_NUMBER
from noetl.errors import CorruptLog, NoetlError, StoreUnavailable
from noetl.storage.document_checksums import CHECKED_TABLES, is_intact
from noetl.storage.events.event_rows import decode_summary, intact
from noetl.storage.events.execution_queries import COPIES, OLDEST, copied_columns, decode_day
from noetl.storage.playbooks.sql import decoded_bundle, text_digest
from noetl.storage.ports.events import ExecutionSummary
from noetl.storage.ports.sql import SqlDatabase
from noetl.storage.ports.task_logs import MAX_BYTES
from noetl.storage.sqlite.database_file import SqliteFile
from noetl.storage.task_logs.chunks import size_of
from noetl.storage.task_logs.sql import decode_chunk

if TYPE_CHECKING:
    from noetl.storage.postgres.database import PostgresDatabase

MAX_PROBLEMS = 100
PAGE = 500  # rows of one query
DERIVED = ("executions", "snapshots", "quotas", "load_samples")  # rebuilt from the logs, or begun again


class Remedy(Enum):
    """What to do about a problem; the value is the advice."""

    REPAIR = "`noetl doctor --repair` rebuilds what is derived"
    BACKUP = "restore a backup"
    TEXT = "restore a backup, or register or run the same playbook again"
    BUNDLE = "restore a backup, or apply the project again"


class Problem(NamedTuple):
    """Something that is wrong in a database."""

    text: str
    remedy: Remedy | None = Remedy.BACKUP  # None: the text names it

    def __str__(self) -> str:
        return f"{self.text}; {self.remedy.value}" if self.remedy is not None else self.text


async def database_problems(database: SqlDatabase, parts: Mapping[str, Sequence[str]]) -> AsyncIterator[Problem]:
    """Everything that is wrong in the files of a database. `parts`: the migrations of all parts it can have."""
    unreadable = set[str]()
    for check in (
        _page_problems(database),
        _dropped_problems(database, parts),
        _text_problems(database),
        _row_problems(database),
        _task_log_problems(database),
        _column_problems(database),
        _missing_problems(database),
        _reference_problems(database),
    ):
        try:
            async for problem in check:
                yield problem
        except NoetlError as failure:
            if str(failure) not in unreadable:
                yield Problem(f"the database cannot be read completely: {failure}", None)
            unreadable.add(str(failure))
            if isinstance(failure, StoreUnavailable) and database.dialect == "postgres":
                await _postgres(database).recovered()


async def unchecked(database: SqlDatabase) -> list[str]:
    """What `database_problems` cannot check in this database, and what to do about it."""
    if database.dialect == "sqlite":
        return []
    from noetl.storage.postgres.damage import has_amcheck

    found = []
    if not await has_amcheck(_postgres(database)):
        found.append("inner pages of indexes are not checked: `CREATE EXTENSION amcheck` in the database of NoETL")
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
        await _rebuild_postgres(_postgres(database))
    for kind, _, statement in await _dropped(database, parts):
        if kind == "index":
            await _define(database, statement)
    await _restore_lengths(database)
    return await _rewrite_columns(database) + await _delete_damaged(database)


async def _rebuild_postgres(database: PostgresDatabase) -> None:
    """Rebuild every index; derived tables with pages that cannot be read lose the rows on these."""
    from noetl.storage.postgres.damage import damaged_tables, rewrite, tables

    for table in await tables(database):
        with suppress(CorruptLog):  # it reads all rows, and the check of the table finds the same damage
            await _define(database, f'REINDEX TABLE "{table}"')
    async for table, _ in damaged_tables(database):
        if table.removeprefix(database.prefix) in DERIVED:
            await rewrite(database, table)


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


def _page_problems(database: SqlDatabase) -> AsyncIterator[Problem]:
    return _sqlite_problems(database) if isinstance(database, SqliteFile) else _postgres_problems(database)


async def _dropped_problems(database: SqlDatabase, parts: Mapping[str, Sequence[str]]) -> AsyncIterator[Problem]:
    for kind, name, _ in await _dropped(database, parts):
        derived = kind == "index" or name.removeprefix(database.prefix) in DERIVED
        yield Problem(f"{kind} {name} does not exist", Remedy.REPAIR if derived else Remedy.BACKUP)


async def _sqlite_problems(database: SqliteFile) -> AsyncIterator[Problem]:
    rows = await database.fetch(f"PRAGMA integrity_check({MAX_PROBLEMS})")
    found = [message for (message,) in rows if message != "ok"]
    remedy = Remedy.REPAIR if found and not await database.unreadable(DERIVED) else Remedy.BACKUP
    for message in found:
        yield Problem(f"SQLite: {message}", remedy)


async def _postgres_problems(database: SqlDatabase) -> AsyncIterator[Problem]:
    """Tables that cannot be read, and indexes that differ from their tables."""
    from noetl.storage.postgres.damage import damages

    async for kind, name, reason, certain in damages(_postgres(database)):
        derived = kind == "index" or name.removeprefix(database.prefix) in DERIVED
        remedy = Remedy.REPAIR if derived else Remedy.BACKUP
        yield Problem(f"{kind} {name}: {reason}", remedy if certain else None)


def _postgres(database: SqlDatabase) -> PostgresDatabase:
    """The database, whose statements may take as long as its tables need."""
    from noetl.storage.postgres.database import PostgresDatabase

    assert isinstance(database, PostgresDatabase)
    database.patient = True
    return database


# ── rows ────────────────────────────────────────────────────────────────────────────────


async def _row_problems(database: SqlDatabase) -> AsyncIterator[Problem]:
    """Rows that do not match their checksums or digests."""
    for name, table in CHECKED_TABLES.items():
        columns = table.key + table.others
        async for row in _rows(database, name, table.key, (*table.others, table.document)):
            document = row[-1].encode() if isinstance(row[-1], str) else row[-1]
            if not is_intact(document, *row[:-1]) or not (table.values or document.startswith(b"{")):
                shown = ", ".join(f"{key} {value}" for key, value in zip(columns, row, strict=False))
                remedy = Remedy.REPAIR if name in DERIVED else Remedy.BACKUP
                yield Problem(f"table {name}: the row with {shown} does not match its checksum", remedy)
    async for execution, seq, data, crc in _rows(database, "snapshots", ("execution",), ("seq", "data", "crc")):
        if not intact(crc, execution, seq, data):
            yield Problem(f"the snapshot of execution {execution} is damaged and is not used", Remedy.REPAIR)


async def _task_log_problems(database: SqlDatabase) -> AsyncIterator[Problem]:
    """Chunks that are damaged, or that do not continue the chunk before them."""
    previous, line, size = None, 1, 0  # of the next chunk
    columns = ("count", "total", "data")
    async for execution, first, count, total, data in _rows(database, "task_logs", ("execution", "first"), columns):
        if execution != previous:
            previous, line, size = execution, 1, 0
        valid = all(isinstance(each, int) for each in (first, count, total))  # a damaged row may have other types
        try:
            chunk = decode_chunk(data)
            size += size_of(chunk)
            valid = valid and chunk.execution_id == str(execution) and len(chunk.lines) == count and first == line
            valid = valid and (total == size or total > MAX_BYTES)  # the last chunk of a full log is replaced
            line += len(chunk.lines)
        except CorruptLog:
            valid = False
        if not valid:
            yield Problem(f"the task log of execution {execution} is damaged at line {first}")
        if all(isinstance(each, int) for each in (first, count, total)):
            line, size = first + count, total


async def _column_problems(database: SqlDatabase) -> AsyncIterator[Problem]:
    """Executions whose columns, by which they are found, differ from their summary."""
    async for number, _, wrong in _wrong_columns(database):
        yield Problem(f"execution {number}: the columns {', '.join(wrong)} do not match its summary", Remedy.REPAIR)


# In Postgres the log of a deleted execution remains until its partition is deleted; only ended ones are deleted, and
# their days are counted.
_MISSING = {
    "sqlite": "SELECT DISTINCT execution FROM log WHERE execution NOT IN (SELECT id FROM executions) ORDER BY 1",
    "postgres": (
        "SELECT execution FROM (SELECT DISTINCT ON (execution) execution, data FROM noetl_log "
        "ORDER BY execution, first DESC) AS l WHERE position('\"playbook.processed\"'::bytea IN data) = 0 "
        "AND NOT EXISTS (SELECT 1 FROM noetl_executions AS e WHERE e.id = l.execution) ORDER BY 1"
    ),
}


_UNLISTED = (  # executions without a row, and the day of their first event
    "SELECT l.execution, floor(substring(encode(substring(l.data FROM 1 FOR 40), 'escape') FROM '[0-9.]+')::float8 "
    "/ 86400)::int8 AS day FROM noetl_log AS l WHERE l.first = 1 "
    "AND NOT EXISTS (SELECT 1 FROM noetl_executions AS e WHERE e.id = l.execution)"
)


async def _missing(database: SqlDatabase) -> list[int]:
    """Executions that have a log but no row, as far as it is known that they were not deleted."""
    found = {row[0] for row in await database.fetch(_MISSING[database.dialect])}
    for day, (_, deleted) in (await _unlisted_days(database)).items():
        if not deleted:
            rows = await database.fetch(f"SELECT execution FROM ({_UNLISTED}) AS u WHERE day = $1", day)
            found.update(row[0] for row in rows)
    return sorted(found)


async def _unlisted_days(database: SqlDatabase) -> dict[int, tuple[int, int]]:
    """The days of executions that have a log but no row: how many there are, and how many were deleted."""
    if database.dialect == "sqlite":
        return {}
    deleted = dict[int, int]()
    async for path, day, data in _rows(database, "days", ("path", "day"), ("data",)):
        known = sum(decode_day(data).statuses.values()) if is_intact(data, path, day) else MAX_NUMBER
        deleted[day] = deleted.get(day, 0) + known
    rows = await database.fetch(f"SELECT day, count(*) FROM ({_UNLISTED}) AS u GROUP BY day")
    return {day: (count, deleted.get(day, 0)) for day, count in rows}


async def _missing_problems(database: SqlDatabase) -> AsyncIterator[Problem]:
    missing = await _missing(database)
    for number in missing:
        text = f"execution {number}: its row is missing in the table of executions, but its log exists"
        yield Problem(text, Remedy.REPAIR)
    for day, (count, deleted) in (await _unlisted_days(database)).items():
        if deleted and count - len(missing) > deleted:
            began = datetime.fromtimestamp(day * 86_400, UTC).date()
            yield Problem(
                f"{count - deleted} executions that began on {began} are missing in the table of executions: {count} "
                f"have a log and no row, and {deleted} were deleted"
            )


async def _wrong_columns(database: SqlDatabase) -> AsyncIterator[tuple[int, ExecutionSummary, list[str]]]:
    """The id of such executions, their summary, and the columns."""
    async for number, *found, seq, data, crc in _rows(database, "executions", ("id",), (*COPIES, "seq", "data", "crc")):
        if not intact(crc, number, seq, data):
            continue  # the log verifier reports it
        summary = decode_summary(data)
        stored = dict(zip(COPIES, found, strict=True))
        copies = copied_columns(summary)
        # A column that an earlier release did not have is NULL in its rows, whose summaries have no `trigger` either.
        needed = COPIES if summary.trigger else OLDEST
        wrong = [
            each for each in COPIES if stored[each] != copies[each] and (stored[each] is not None or each in needed)
        ]
        if wrong:
            yield number, summary, wrong


async def _text_problems(database: SqlDatabase) -> AsyncIterator[Problem]:
    """Texts, files and bundles that do not match their digests."""
    async for digest, text, file in _rows(database, "playbook_texts", ("digest",), ("text", "file")):
        if not isinstance(text, str) or not isinstance(file, str) or text_digest(text, file) != digest:
            yield Problem(f"the text of playbook {digest} ({file}) does not match its digest")
    async for digest, content in _rows(database, "bundle_files", ("digest",), ("content",)):
        if not isinstance(content, bytes) or file_digest(content) != digest:
            yield Problem(f"the file {digest} of a bundle does not match its digest")
    async for digest, manifest in _rows(database, "bundles", ("digest",), ("manifest",)):
        if not isinstance(manifest, str) or decoded_bundle(digest, manifest) is None:
            yield Problem(f"the bundle {digest} does not match its digest")


async def _reference_problems(database: SqlDatabase) -> AsyncIterator[Problem]:
    """Rows that do not exist although others refer to them: texts, versions of the catalog, bundles and their files."""
    texts = {digest: file async for digest, file in _rows(database, "playbook_texts", ("digest",), ("file",))}
    registered = dict[tuple[str, int], str]()
    async for path, version, digest in _rows(database, "catalogue", ("path", "version"), ("digest",)):
        registered[path, version] = digest
        if digest not in texts:
            yield Problem(f"version {version} of playbook {path} in the catalog has no text", Remedy.TEXT)
        if isinstance(version, int) and version > 1 and (path, version - 1) not in registered:
            yield Problem(f"version {version - 1} of playbook {path} does not exist in the catalog")
    executed = dict[str, tuple[int, int]]()  # digest -> number of executions, and the last one
    async for number, seq, data, crc in _rows(database, "executions", ("id",), ("seq", "data", "crc")):
        summary = decode_summary(data) if intact(crc, number, seq, data) else None
        if summary is not None and summary.playbook:
            executed[summary.playbook] = executed.get(summary.playbook, (0, 0))[0] + 1, number
    for digest, (count, number) in executed.items():
        if digest not in texts:
            text = f"the text of playbook {digest} does not exist, which {count} executions have (the last: {number})"
            yield Problem(text, Remedy.TEXT)
    manifests = {
        digest: decoded_bundle(digest, manifest)
        async for digest, manifest in _rows(database, "bundles", ("digest",), ("manifest",))
    }
    files = {digest async for (digest,) in _rows(database, "bundle_files", ("digest",), ())}
    for digest in {*registered.values(), *executed}:  # bundles of other texts are deleted
        file = str(texts.get(digest, ""))
        bundle = file.removeprefix(PREFIX).partition("/")[0]
        if file.startswith(PREFIX) and bundle not in manifests:
            yield Problem(f"the bundle {bundle} of playbook {digest} does not exist", Remedy.BUNDLE)
    for bundle, found in manifests.items():
        for path, digest in found.files.items() if found is not None else ():
            if digest not in files:
                yield Problem(f"the file {path} of bundle {bundle} does not exist", Remedy.BUNDLE)


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
