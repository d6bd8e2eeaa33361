"""Rows that are deleted by key when the collected rows are merged, because MySQL may commit before that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from noetl_mysql import table_columns
from noetl_mysql.names import quoted

ROW, INDEX = "`_noetl_row`", "`_noetl_index`"
Insert = Callable[[str, Sequence[str], list[tuple[Any, ...]]], Awaitable[None]]


class DeletedRows:
    """The keys of rows of one table, in a temporary table."""

    def __init__(self, execute: table_columns.Execute, insert: Insert, keys: str, staging: str) -> None:
        self._execute, self._insert = execute, insert
        self._keys, self._staging = keys, staging
        self._names: list[str] = []
        self._same = ""
        self._last = 0

    async def add(self, names: list[str], rows: list[tuple[Any, ...]]) -> None:
        """Note keys, and delete the collected rows that have them."""
        if not self._names:
            await self._create(names)
        await self._insert(self._keys, names, rows)
        await self._execute(
            f"DELETE t FROM {self._keys} AS k JOIN {self._staging} AS t ON {self._same} WHERE k.{ROW} > {self._last}"
        )
        ((last,),) = await self._execute(f"SELECT max({ROW}) FROM {self._keys}")
        self._last = last or 0

    async def _create(self, names: list[str]) -> None:
        columns, options = ", ".join(map(quoted, names)), await table_columns.charset(self._execute, self._staging)
        await self._execute(
            f"CREATE TEMPORARY TABLE {self._keys} {options} SELECT {columns} FROM {self._staging} LIMIT 0"
        )
        await self._execute(f"ALTER TABLE {self._keys} ADD COLUMN {ROW} BIGINT AUTO_INCREMENT PRIMARY KEY")
        self._names = names
        self._same = " AND ".join(f"t.{quoted(name)} = k.{quoted(name)}" for name in names)
        await self._add_index()

    async def _add_index(self) -> None:
        for table in (self._keys, self._staging):
            indexed = await table_columns.indexed(self._execute, table, self._names)
            await self._execute(f"ALTER TABLE {table} ADD INDEX {INDEX} ({indexed})")

    async def drop_index(self, widen: Mapping[str, str]) -> None:
        """Drop the index of keys whose types change: it may need another length."""
        for table in (self._keys, self._staging) if {*widen} & {*self._names} else ():
            await self._execute(f"ALTER TABLE {table} DROP INDEX {INDEX}")

    async def widen(self, table: str, widen: Mapping[str, str]) -> None:
        """Change the types of keys as those of the table."""
        own = {name: kind for name, kind in widen.items() if name in self._names}
        if own:
            clauses = await table_columns.modifications(self._execute, table, own)
            await self._execute(f"ALTER TABLE {self._keys} {', '.join(clauses)}")
            await self._add_index()

    async def apply(self, table: str) -> None:
        """Delete the rows of the table."""
        if self._names:
            await self._execute(f"DELETE t FROM {self._keys} AS k JOIN {table} AS t ON {self._same}")
