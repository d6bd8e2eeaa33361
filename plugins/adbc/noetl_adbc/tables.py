"""Tables as source and target of transfers.

Warehouses differ in transactions, so a target does not depend on them: rows are loaded into a staging table, and a few
statements at the end move them. A failed transfer drops the staging table and has changed nothing.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import adbc_driver_manager as manager

from noetl.tool import ConnectorError, RowTarget, SourceCall, bind_sql, mixed_as_text
from noetl_adbc.connection import connect, in_thread, is_abandoned, parameters, quoting
from noetl_adbc.session import Session, batches

NUMBER = "noetl_row_number"  # of a staged row: the last row of a key wins


async def read(call: SourceCall) -> AsyncIterator[Any]:
    """The rows as Arrow batches."""
    fields = call.fields
    values: list[Any] = []
    if fields.get("table") and not fields.get("query"):
        text = f"SELECT * FROM {quoting(call.kind).table(str(fields['table']))}"
    else:
        text, values = bind_sql(str(fields["query"]), fields.get("params"))
    connection = await connect(call.kind, fields, call.host)
    cursor = connection.cursor()
    try:
        await in_thread(lambda: cursor.execute(text, parameters(values) or None), cursor.adbc_cancel)
        if not cursor.description:
            raise ConnectorError("the source's statement returns no rows")
        async with aclosing(batches(cursor, call.batch_rows)) as found:
            async for batch in found:
                yield batch
    finally:
        if not is_abandoned(sys.exception()):
            await in_thread(cursor.close)
            await in_thread(connection.close)


class TableTarget(RowTarget):
    """A table, written through a staging table."""

    _session: Session | None = None

    async def begin(self, schema: Any) -> None:
        """Connect, and create the staging table."""
        await self._connect()
        call = self.call
        self._names = list(schema.names)
        self._columns = await self._table_columns()
        self._exists = self._columns is not None
        if not self._exists and not call.create:
            raise ConnectorError(f"{call.label}: the table does not exist, and `create` is false")
        self._check_columns()
        digest = hashlib.sha256(f"{call.idempotency_key} {self._place}".encode()).hexdigest()[:12]
        *folder, table = self._place.split(".")
        self._staging = ".".join([*folder, f"noetl_{digest}_{table}"])
        await self._drop()  # of an earlier attempt
        self._count = 0
        self._schema = schema
        self._json = await self._json_columns() if self._exists else ()
        await self._load(self._numbered(schema.empty_table()), self._staging, "create")

    async def write(self, table: Any) -> None:
        """Load the rows of a chunk into the staging table."""
        table = mixed_as_text(table, lambda name: name in self._json)
        await self._load(self._numbered(table), self._staging, "append")

    async def write_empty(self) -> None:
        """Empty the table in mode replace."""
        if self.call.mode == "replace":
            session = await self._connect()
            if await self._table_columns() is not None:
                await session.execute(f"DELETE FROM {self._quoted.table(self._place)} WHERE 1 = 1", [])

    async def commit(self) -> None:
        """Move the staged rows to the table."""
        session, self._session = self._session, None
        if session is None:
            return
        try:
            if hasattr(self, "_staging"):
                if not self._exists:
                    await self._load(self._schema.empty_table(), self._place, "create", session)
                await session.begin()
                try:
                    for statement in self._statements():
                        await session.execute(statement, [])
                    await session.commit()
                except BaseException:
                    await session.rollback()
                    raise
                finally:
                    await self._drop(session)
        finally:
            await session.close()

    async def abort(self) -> None:
        """Drop the staging table."""
        session, self._session = self._session, None
        if session is not None:
            try:
                if hasattr(self, "_staging"):
                    await self._drop(session)
            finally:
                await session.close()

    def _check_columns(self) -> None:
        """An error for a column that the table does not have, before any row is loaded."""
        known = None if self._columns is None else [name.lower() for name in self._columns]
        missing = [name for name in self._names if known is not None and name.lower() not in known]
        if missing:
            have = ", ".join(self._columns or ())
            raise ConnectorError(f"{self.call.label}: the table has no column {missing[0]!r}; columns: {have}")

    @property
    def _place(self) -> str:
        return str(self.call.fields["table"])

    @property
    def _quoted(self) -> Any:
        return quoting(self.call.kind)

    def _statements(self) -> list[str]:
        quoted, table = self._quoted, self._quoted.table(self._place)
        staging = quoted.table(self._staging)
        columns = ", ".join(map(quoted.column, self._names))
        if self.call.mode != "upsert":
            insert = f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging} ORDER BY {quoted.column(NUMBER)}"
            return [f"DELETE FROM {table} WHERE 1 = 1", insert] if self.call.mode == "replace" else [insert]
        key = ", ".join(map(quoted.column, self.call.key))
        latest = (
            f"(SELECT {columns} FROM (SELECT {columns}, ROW_NUMBER() OVER (PARTITION BY {key} "
            f"ORDER BY {quoted.column(NUMBER)} DESC) AS noetl_place FROM {staging}) AS ranked WHERE noetl_place = 1)"
        )
        same = " AND ".join(f"i.{quoted.column(name)} = t.{quoted.column(name)}" for name in self.call.key)
        given = {name.lower() for name in self._names}
        if any(name.lower() not in given for name in self._columns or ()):
            return self._merge_statements(latest, same)
        # Delete and insert: every database has them, and MERGE of some does not accept all columns.
        delete = f"DELETE FROM {table} AS t WHERE EXISTS (SELECT 1 FROM {staging} AS i WHERE {same})"
        return [delete, f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {latest} AS latest"]

    def _merge_statements(self, latest: str, same: str) -> list[str]:
        """Update rows that exist, whose other columns keep their values, and insert the others."""
        quoted, table = self._quoted, self._quoted.table(self._place)
        columns = ", ".join(map(quoted.column, self._names))
        others = [quoted.column(name) for name in self._names if name not in self.call.key]
        changes = ", ".join(f"{name} = i.{name}" for name in others)
        update = f"UPDATE {table} AS t SET {changes} FROM {latest} AS i WHERE {same}"
        insert = (
            f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {latest} AS i "
            f"WHERE NOT EXISTS (SELECT 1 FROM {table} AS t WHERE {same})"
        )
        return [update, insert] if others else [insert]

    def _numbered(self, table: Any) -> Any:
        import pyarrow as pa

        first, self._count = getattr(self, "_count", 0), getattr(self, "_count", 0) + table.num_rows
        numbers = pa.array(range(first, first + table.num_rows), pa.int64())
        return table.append_column(NUMBER, numbers)

    async def _connect(self) -> Session:
        connection = await connect(self.call.kind, self.call.fields, self.call.host)
        self._connection = connection
        self._session = Session(connection)
        return self._session

    async def _load(self, table: Any, place: str, mode: str, session: Any = None) -> None:
        *folder, name = place.split(".")

        def load() -> None:
            with self._connection.cursor() as cursor:
                cursor.adbc_ingest(name, table, mode=mode, **_where(folder))

        await in_thread(load)

    async def _table_columns(self) -> list[str] | None:
        """The columns of the table; None if it does not exist."""
        *folder, name = self._place.split(".")
        where = _where(folder)
        options = {"catalog_filter": where.get("catalog_name"), "db_schema_filter": where.get("db_schema_name")}
        try:
            found = await in_thread(lambda: self._connection.adbc_get_table_schema(name, **options))
        except manager.Error as failure:
            if failure.status_code in (manager.AdbcStatusCode.NOT_FOUND, manager.AdbcStatusCode.INTERNAL):
                return None
            raise
        return list(found.names)

    async def _json_columns(self) -> tuple[str, ...]:
        """The columns of the table that are JSON."""
        *folder, name = self._place.split(".")
        schema = folder[-1] if folder else await in_thread(self._current_schema)

        def find() -> list[dict[str, Any]]:
            options = {"table_name_filter": name, "db_schema_filter": schema}
            found: list[dict[str, Any]] = (
                self._connection.adbc_get_objects(depth="columns", **options).read_all().to_pylist()
            )
            return found

        tables = [
            table
            for catalog in await in_thread(find)
            for place in catalog["catalog_db_schemas"] or ()
            for table in place["db_schema_tables"] or ()
            if table["table_name"] == name  # the filters are patterns
        ]
        columns = [column for table in tables for column in table["table_columns"] or ()]
        return tuple(
            column["column_name"]
            for column in columns
            if str(column["xdbc_type_name"] or "").lower() in ("json", "jsonb")
        )

    def _current_schema(self) -> str | None:
        try:
            return str(self._connection.adbc_current_db_schema)
        except manager.Error:  # of a driver without schemas
            return None

    async def _drop(self, session: Session | None = None) -> None:
        used = session or self._session
        if used is not None:
            await used.execute(f"DROP TABLE IF EXISTS {self._quoted.table(self._staging)}", [])


def _where(folder: list[str]) -> dict[str, str]:
    """The catalog and schema in front of a table's name."""
    names = ("db_schema_name",) if len(folder) == 1 else ("catalog_name", "db_schema_name")
    return dict(zip(names, folder, strict=False))
