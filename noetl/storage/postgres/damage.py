"""Damaged tables and indexes of a Postgres database: how they are found, and how a table is written again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from noetl.errors import CorruptLog, NoetlError, StoreUnavailable
from noetl.storage.postgres.database import PostgresDatabase

_OURS = "c.relkind = 'r' AND c.relname LIKE 'noetl\\_%' AND n.nspname = ANY (current_schemas(false))"
_TABLES = (
    f"SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {_OURS} ORDER BY 1"
)
_INDEXES = f"""
    SELECT i.indexrelid::regclass::text, c.relname::text, coalesce(pg_get_expr(i.indpred, i.indrelid), 'true'),
      array(SELECT pg_get_indexdef(i.indexrelid, k, true) FROM generate_series(1, i.indnatts) k), i.indnkeyatts
    FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_class x ON x.oid = i.indexrelid
    JOIN pg_am a ON a.oid = x.relam JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE {_OURS} AND a.amname = 'btree' ORDER BY 1
"""
_AMCHECK = "SELECT 1 FROM pg_extension WHERE extname = 'amcheck'"
_WITHOUT_INDEX = (
    "SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off; SET LOCAL enable_bitmapscan = off"
)
_WITH_INDEX = (
    "SET LOCAL enable_indexscan = on; SET LOCAL enable_indexonlyscan = on; SET LOCAL enable_bitmapscan = off; "
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off"
)
_READ = "SELECT count(*), sum(length(t::text)) FROM"  # every value of every row


class Damage(NamedTuple):
    """A table or an index that cannot be read, or an index that differs from its table."""

    kind: str
    name: str
    reason: str
    certain: bool = True  # else it could not be checked, for example because the connection was lost


async def has_amcheck(database: PostgresDatabase) -> bool:
    """Whether the extension that compares all pages of an index with its table is installed."""
    return await database.row(_AMCHECK) is not None


async def tables(database: PostgresDatabase) -> list[str]:
    """The tables of this installation; of a partitioned one, its partitions."""
    return [name for (name,) in await database.fetch(_TABLES)]


async def damaged_tables(database: PostgresDatabase) -> AsyncIterator[tuple[str, NoetlError]]:
    """The tables whose rows cannot all be read, and why."""
    for table in await tables(database):
        try:
            await database.row(f'{_READ} "{table}" t')
        except NoetlError as problem:
            yield table, problem
            if isinstance(problem, StoreUnavailable):
                await database.recovered()


async def damages(database: PostgresDatabase) -> AsyncIterator[Damage]:
    """Read every row of every table, and compare every index with its table."""
    damaged = set()
    async for table, problem in damaged_tables(database):
        damaged.add(table)
        yield Damage("table", table, str(problem), isinstance(problem, CorruptLog))
    amcheck = await has_amcheck(database)
    indexes = [_Index(*row) for row in await database.fetch(_INDEXES)]
    if not amcheck:
        indexes = [each for each in indexes if each.table not in damaged]
        if await _agree(database, indexes):
            return
    for index in indexes:
        try:
            if amcheck:
                await database.row(f"SELECT bt_index_check('{index.name}'::regclass, true)")
            elif await _differ(database, [index]):
                yield Damage("index", index.name, "it has other entries than its table")
        except NoetlError as problem:
            yield Damage("index", index.name, str(problem), isinstance(problem, CorruptLog))


class _Index(NamedTuple):
    name: str
    table: str
    predicate: str
    columns: list[str]
    keys: int

    def entries(self, order: str = "") -> str:
        """The query for the number and a digest of its entries."""
        listed = ", ".join(f"{column} AS c{place}" for place, column in enumerate(self.columns))
        rows = f'SELECT {listed} FROM "{self.table}" WHERE {self.predicate} {order}'
        return f"SELECT count(*), sum(hashtextextended(s::text, 0)::numeric) FROM ({rows}) s"

    def ordered_entries(self) -> str:
        """The same in the order of the index, from which it is read for that reason."""
        return self.entries(f"ORDER BY {', '.join(self.columns[: self.keys])}")


async def _agree(database: PostgresDatabase, indexes: list[_Index]) -> bool:
    """Whether all of these indexes can be read and have the rows of their tables."""
    try:
        return not await _differ(database, indexes)
    except CorruptLog:
        return False


async def _differ(database: PostgresDatabase, indexes: list[_Index]) -> bool:
    """Whether the entries of indexes differ from the rows of their tables; the inner pages of indexes are not read."""
    async with (
        database.connection() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        await connection.execute(_WITHOUT_INDEX)
        expected = await connection.fetch(" UNION ALL ".join(each.entries() for each in indexes))
        await connection.execute(_WITH_INDEX)
        found = await connection.fetch(" UNION ALL ".join(each.ordered_entries() for each in indexes))
    return bool(found != expected)


async def rewrite(database: PostgresDatabase, table: str) -> None:
    """Write a table and its indexes to new files, without the pages that cannot be read."""
    ranges = [each async for each in _readable(database, table)]
    async with database.connection() as connection, connection.transaction():
        await connection.execute(f'LOCK TABLE "{table}" IN ACCESS EXCLUSIVE MODE')
        await connection.execute(f'CREATE TEMP TABLE kept (LIKE "{table}") ON COMMIT DROP')
        for first, end in ranges:
            await connection.execute(f'INSERT INTO kept SELECT * FROM "{table}" t WHERE {_pages(first, end)}')
        await connection.execute(f'TRUNCATE "{table}"')
        await connection.execute(f'INSERT INTO "{table}" SELECT * FROM kept ON CONFLICT DO NOTHING')


async def readable_rows(database: PostgresDatabase, table: str, columns: str, where: str) -> list[tuple[Any, ...]]:
    """The rows of a table that fulfill a condition, without the pages that cannot be read."""
    found: list[tuple[Any, ...]] = []
    async for first, end in _readable(database, table):
        rows = await database.fetch(f'SELECT {columns} FROM "{table}" t WHERE ({where}) AND {_pages(first, end)}')
        found += map(tuple, rows)
    return found


async def _readable(
    database: PostgresDatabase, table: str, first: int = 0, end: int | None = None
) -> AsyncIterator[tuple[int, int]]:
    """The ranges of pages of a table whose rows can be read."""
    if end is None:
        (end,) = await database.row(f"SELECT pg_relation_size('{table}') / current_setting('block_size')::int8")
    if first >= end:
        return
    try:
        await database.row(f'{_READ} "{table}" t WHERE {_pages(first, end)}')
        yield first, end
    except CorruptLog:
        if end - first > 1:
            middle = (first + end) // 2
            for low, high in ((first, middle), (middle, end)):
                async for each in _readable(database, table, low, high):
                    yield each


def _pages(first: int, end: int) -> str:
    return f"t.ctid >= '({first},0)' AND t.ctid < '({end},0)'"
