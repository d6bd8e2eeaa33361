"""Copies of the tables of an installation in Postgres, all as of one snapshot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import asyncpg

from noetl.errors import Conflict, RequestRefused, StoreUnavailable
from noetl.storage.backup.archive import PROBE, BackupReader, BackupWriter, TableCopy
from noetl.storage.postgres.database import FAILURES, PostgresDatabase, unavailable
from noetl.storage.results.postgres import PostgresResults

MIGRATIONS = "noetl_migrations"
# Rows of live processes: they mean nothing in another installation.
SKIPPED = frozenset({MIGRATIONS, "noetl_servers", "noetl_duties", "noetl_signs", "noetl_deciding"})
RESULTS = ("noetl_results", "noetl_result_parts")  # not versioned; the parts refer to the results
_TABLES = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname = current_schema() AND c.relname LIKE 'noetl\\_%'
ORDER BY c.relname
"""
_COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""
# Servers leave when they stop; a killed one is forgotten after this time.
_LIVE = "SELECT EXISTS (SELECT 1 FROM noetl_servers WHERE seen > now() - interval '5 seconds')"


async def schema_versions(url: str) -> dict[str, int]:
    """The schema version of each part; empty for a database without tables of NoETL. Nothing is changed."""
    connection = await _connect(url)
    try:
        if await connection.fetchval("SELECT to_regclass($1)", MIGRATIONS) is None:
            return {}
        return await _versions(connection)
    except FAILURES as problem:
        raise unavailable(problem) from None
    finally:
        await connection.close()


async def copy_tables(url: str, writer: BackupWriter) -> tuple[list[TableCopy], dict[str, int], int]:
    """Write every table to the backup; returns the tables, the schema versions and the number of executions."""
    connection = await _connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            versions = await _versions(connection)
            tables = []
            for (name,) in await connection.fetch(_TABLES):
                if name not in SKIPPED:
                    tables.append(await _copy_out(connection, name, writer))
            return tables, versions, int(await connection.fetchval("SELECT count(*) FROM noetl_executions"))
    except asyncpg.UndefinedTableError:
        raise StoreUnavailable("this database has no tables of NoETL; check the store") from None
    except FAILURES as problem:
        raise unavailable(problem) from None
    finally:
        await connection.close()


async def _copy_out(connection: Any, name: str, writer: BackupWriter) -> TableCopy:
    columns = [row[0] for row in await connection.fetch(_COLUMNS, name)]
    selected = ", ".join(f'"{column}"' for column in columns)
    with writer.entry(entry_of(name)) as write:

        async def output(data: bytes) -> None:
            write(data)

        done = await connection.copy_from_query(f'SELECT {selected} FROM "{name}"', output=output, format="binary")
    return TableCopy(name, columns, int(done.rpartition(" ")[2]))


def entry_of(table: str) -> str:
    """The entry of a table."""
    return f"tables/{table}"


async def restore_tables(url: str, reader: BackupReader, schemas: Mapping[str, Sequence[str]], *, force: bool) -> None:
    """Create the tables at the versions of the backup and load their rows; all or nothing is visible.

    `schemas` are the migrations of every part. With `force` the present tables of NoETL are dropped first."""
    await _clear(url, force=force)
    database = PostgresDatabase(url, size=2)
    try:
        for part, version in reader.manifest.versions.items():
            database.migrate(part, schemas[part][:version])
        tables = sorted(reader.manifest.tables, key=lambda table: table.name in RESULTS and RESULTS.index(table.name))
        async with database.connection() as connection, connection.transaction():
            if any(table.name in RESULTS for table in tables):
                for statement in PostgresResults.SCHEMA:
                    await connection.execute(statement)
            present = {row[0] for row in await connection.fetch(_TABLES)}
            for table in tables:
                if table.name not in present - SKIPPED:
                    raise RequestRefused(f"the backup has a table that backups do not have: {table.name!r}")
                await connection.execute(f'DELETE FROM "{table.name}"')  # rows that a migration created
                await connection.copy_to_table(
                    table.name, source=_rows(reader, table.name), columns=table.columns, format="binary"
                )
    finally:
        await database.close()


async def _rows(reader: BackupReader, table: str) -> AsyncIterator[bytes]:
    for chunk in reader.chunks(entry_of(table)):
        yield chunk


async def _clear(url: str, *, force: bool) -> None:
    connection = await _connect(url)
    try:
        tables = [row[0] for row in await connection.fetch(_TABLES)]
        if not tables:
            return
        if "noetl_servers" in tables and await connection.fetchval(_LIVE):
            raise Conflict("a server uses this database; stop all servers and workers first")
        used = [name for name in tables if name in ("noetl_executions", "noetl_catalogue")]
        rows = [await connection.fetchval(f'SELECT EXISTS (SELECT 1 FROM "{name}")') for name in used]
        if any(rows) and not force:
            raise Conflict(
                "the database has executions or playbooks already; restore into an empty one, or use --force"
            )
        names = ", ".join(f'"{name}"' for name in tables)
        await connection.execute(f"DROP TABLE {names} CASCADE")
    except FAILURES as problem:
        raise unavailable(problem) from None
    finally:
        await connection.close()


async def _versions(connection: Any) -> dict[str, int]:
    rows = await connection.fetch(f"SELECT part, version FROM {MIGRATIONS} WHERE part <> $1", PROBE)
    return {row[0]: row[1] for row in rows}


async def _connect(url: str) -> Any:
    try:
        return await asyncpg.connect(url, timeout=10, statement_cache_size=0)
    except FAILURES as problem:
        raise unavailable(problem) from None
