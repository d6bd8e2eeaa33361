"""Object target: writes files and objects.

A path without a chunk variable is one file (or object) for all rows, created when the transfer has succeeded. A path
with a chunk variable is one file per chunk, created when the chunk is written. With `partition_by` the path is a folder
(`partitioned_target`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

from noetl.connections import objects
from noetl.connections.auth import fields_of
from noetl.core.model.tool import ToolCall
from noetl.data.content import encoded, natural_format
from noetl.data.files import compression, formats, table_files
from noetl.data.types.type_lattice import ColumnKind, kind_of_stored
from noetl.runtime.threads import in_thread, open_in_thread
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.chunks import Chunk, reads_name
from noetl.tools.transfer.nested_rows import INDEX, beginning, child_file, list_files, split_file
from noetl.tools.transfer.nested_rows import Path as ListPath
from noetl.tools.transfer.schema_contract import Changes, ContractChecker
from noetl.tools.transfer.sources.file_source import LocalPayload, ranged_batches, resolve_address
from noetl.tools.transfer.sources.spreadsheet_source import format_by_ending
from noetl.tools.transfer.targets import Target
from noetl.tools.transfer.targets.files.file_columns import FileColumns
from noetl.tools.transfer.targets.files.file_writers import FileWriter, ObjectWriter
from noetl.tools.transfer.targets.files.row_spool import RowSpool, in_file_columns
from noetl.tools.transfer.transfer_plan import TargetPlan, is_deferred


class FileEncoder:
    """The bytes of one file: format, types of its columns, and compression."""

    def __init__(self, columns: FileColumns, format: str, key: str, codec: str | None) -> None:
        self._columns = columns
        self._format = format
        self._encoder: Any = None
        self._options: dict[str, Any] = {}
        self._compressor = None
        if format == "csv" and compression.without_ending(key).lower().endswith(".tsv"):
            self._options["delimiter"] = "\t"
        if codec is not None and format in compression.COLUMNAR:
            self._options["compression"] = None if codec == "none" else codec
        elif codec is not None:
            self._compressor = compression.Compressor(codec)

    def write(self, table: Any) -> bytes:
        """Encode rows; returns the bytes that are complete."""
        table = self._columns.stored(table, self._format, fixed=self._encoder is not None)
        if self._encoder is None:
            self._encoder = table_files.encoder(self._format, table.schema, **self._options)
        return self._compressed(b"".join([self._encoder.write(batch) for batch in table.to_batches()]))

    def close(self, schema: Any) -> bytes:
        """The rest of the file; the whole file if there were no rows."""
        begun = b"" if self._encoder is not None else self.write(schema.empty_table())
        rest = begun + self._compressed(self._encoder.close())
        self._encoder = None
        return rest if self._compressor is None else rest + self._compressor.close()

    @property
    def pending(self) -> int:
        """Bytes of rows that are not encoded yet."""
        return getattr(self._encoder, "pending", 0)

    def flush(self) -> bytes:
        """Encode the rows that wait for more."""
        return self._encoder.flush() if self.pending else b""

    def _compressed(self, data: bytes) -> bytes:
        return data if self._compressor is None else self._compressor.write(data)


class ObjectTarget(Target):
    """Parquet, Arrow, CSV, JSON or JSON lines in an object store or a folder."""

    _out: Any = None
    _encoder: FileEncoder | None = None
    _credential: Any = None
    _spool: RowSpool | None = None
    _replaced: Any = None  # the columns of the file that is replaced, if there is a contract

    def __init__(self, call: ToolCall, plan: TargetPlan, peers: dict[str, Any]) -> None:
        super().__init__(call, plan, peers)
        self._columns = FileColumns(plan.label)

    @property
    def can_continue(self) -> bool:
        """A partial file cannot be continued, but the next chunk's file can be written."""
        return is_deferred(self.plan.fields)

    async def begin(self, schema: Any) -> None:
        """Open the one file, if there is one for all chunks."""
        if is_deferred(self.plan.fields):
            return
        self._place, self._format = await self._resolve(self.plan.fields)
        self._encoder = self._new_encoder(self._format, self._place.key, self.plan.fields)
        await self._fix_columns(schema)
        self._out = await self._writer(self._place, formats.CONTENT_TYPES[self._format])

    async def write_empty(self) -> None:
        """Replace the one file by one without rows: Parquet and Arrow with the columns that it had."""
        import pyarrow as pa

        if is_deferred(self.plan.fields):
            return
        self._place, self._format = await self._resolve(self.plan.fields)
        schema = await self._existing_schema()
        if schema is not None or self._format not in compression.COLUMNAR:
            await self.begin(schema or pa.schema([]))

    async def _fix_columns(self, schema: Any) -> None:
        """The columns of the file: those of the one that is replaced if there is a contract, or of the first rows.

        Rows wait until all columns and digits are known, if later rows may have others."""
        if self.contract is None:
            self._schema = self.first = schema
            return
        self._replaced = await self._existing_schema()
        self._schema = schema if self._replaced is None else self._replaced
        if "evolve" in (self.plan.schema or ()) or self._columns.has_numbers(self._schema):
            self._spool = RowSpool(self._schema, replaces=self._replaced is not None)

    async def _conform(self, contract: ContractChecker, table: Any) -> Any:
        """The rows that the contract lets through, in the columns and types of the file that is replaced."""
        table = await super()._conform(contract, table)
        if self._replaced is None or self._spool is not None:
            return table
        return await in_thread(partial(in_file_columns, table, self._replaced))

    async def write(self, table: Any, chunk: Chunk) -> None:
        """Append a chunk to the file, or write it to its own file."""
        if self._spool is not None:
            await in_thread(partial(self._spool.add, table))
        elif self._out is not None and self._encoder is not None:
            await self._append(table)
        else:
            fields = self.templates.render(
                self.plan.fields, chunk=chunk.template_values(data=reads_name(self.plan.fields, "chunk.data"))
            )
            place, format = await self._resolve(fields)
            encoder = self._new_encoder(format, place.key, fields)
            data = await asyncio.to_thread(lambda: encoder.write(table) + encoder.close(table.schema))
            await self._put(place, formats.CONTENT_TYPES[format], data)

    async def _append(self, table: Any) -> None:
        assert self._encoder is not None
        data = await in_thread(partial(self._encoder.write, table))
        if data:
            await self._out.write(data)

    async def write_static(self, data: Any) -> None:
        """Write the static data as the content."""
        address = str(self.plan.fields["uri"])
        place = resolve_address(self.call, self.plan.fields, address, await self._get_credential())
        given = self.plan.fields.get("format")
        format = formats.format_of(given=given, path=address, default=natural_format(data))
        codec = self._codec(self.plan.fields, place.key, format)
        try:
            content = await asyncio.to_thread(encoded, data, format, compression.without_ending(place.key))
        except ValueError as wrong:
            raise BadInput(f"{self.plan.label}: {wrong}") from None
        if codec is not None and format not in compression.COLUMNAR:
            content = await asyncio.to_thread(compression.compress, content, codec)
        await self._put(place, formats.CONTENT_TYPES[format], content)
        self.chunks = 1

    # ── schema contracts ─────────────────────────────────────────────────────────────────────

    async def known_columns(self) -> dict[str, ColumnKind]:
        """The columns of the file that is replaced, otherwise those of the first rows."""
        if self._known is not None:
            return self._known
        if is_deferred(self.plan.fields):
            raise BadInput(f"{self.plan.label}: `schema` is for one file, and this path depends on `chunk`")
        return {field.name: kind_of_stored(field) for field in self._schema}

    async def alter(self, changes: Changes) -> None:
        """The file is written when all columns are known."""
        assert self._known is not None
        self._known |= {field.name: kind_of_stored(field) for field in [*changes.add, *changes.define]} | changes.widen

    async def _existing_schema(self) -> Any:
        return await self._schema_of(self._place, self._format)

    async def _schema_of(self, place: objects.ObjectLocation, format: str) -> Any:
        if format not in compression.COLUMNAR:
            return None
        try:
            if place.scheme == "file":
                payload: Any = await asyncio.to_thread(LocalPayload, str(Path(place.bucket, place.key)))
            else:
                payload = await objects.payload_of(await self._store(place), place.key)
        except FileNotFoundError:
            return None
        stream = ranged_batches(payload, format, self.plan.label)
        async with aclosing(stream):
            async for batch in stream:
                return batch.schema
        return None

    def child_place(self, path: ListPath) -> str:
        """The file of a list."""
        return child_file(self.plan.location, path)

    async def child_tables(self) -> list[str]:
        """The files of lists (`nested: tables`) in the folder of this file."""
        place, format = await self._resolve(self.plan.fields)
        folder, root, extension = split_file(place.key)
        names = [
            name
            for name in await self._names_in(place._replace(key=folder))
            if name.startswith(beginning(root)) and name.endswith(extension)
        ]
        found = []
        for name in names:
            schema = await self._schema_of(place._replace(key=folder + name), format)
            found.append((name, schema is not None and f"{INDEX}1" in schema.names))
        return list_files(self.plan.location, found)

    async def _names_in(self, folder: objects.ObjectLocation) -> list[str]:
        if folder.scheme == "file":
            path = Path(folder.bucket, folder.key)
            return await in_thread(lambda: [each.name for each in path.iterdir()] if path.is_dir() else [])
        import obstore

        listed = await obstore.list_with_delimiter_async(await self._store(folder), folder.key or None)
        return [each["path"].rpartition("/")[2] for each in listed["objects"]]

    # ── end ──────────────────────────────────────────────────────────────────────────────────

    async def prepare(self) -> None:
        """Write the rows whose columns were not known before."""
        if self._spool is None or self._out is None:
            return
        async for table in self._spooled(self._spool):
            await self._append(table)

    async def _spooled(self, spool: RowSpool) -> AsyncGenerator[Any, None]:
        """The rows that have waited; the digits of all of their numbers are known before the first is written."""
        self._schema = spool.schema
        if self._columns.has_numbers(self._schema):
            for_digits = spool.tables()
            while (table := await in_thread(partial(next, for_digits, None))) is not None:
                await in_thread(partial(self._columns.learn, table))
        tables = spool.tables()
        while (table := await in_thread(partial(next, tables, None))) is not None:
            yield table

    async def commit(self) -> None:
        """Finish the file; without rows it has the columns that the contract lets through."""
        import pyarrow as pa

        await self._close_spool()
        if self._out is not None and self._encoder is not None:
            columns = [field for field in self._schema if self._known is None or field.name in self._known]
            await self._out.write(await in_thread(partial(self._encoder.close, pa.schema(columns))))
            await self._out.commit()
            self._out = None  # after it: `abort` removes what a commit that failed has left

    async def abort(self) -> None:
        """Delete the partial file."""
        await self._close_spool()
        if self._out is not None:
            out, self._out = self._out, None
            await out.abort()

    async def _close_spool(self) -> None:
        spool, self._spool = self._spool, None
        if spool is not None:
            await in_thread(spool.close)

    def explain(self, failure: Exception) -> Any:
        """The error of the store."""
        return objects.to_error_info(failure, self.plan.label) if isinstance(failure, objects.errors()) else None

    # ── places ───────────────────────────────────────────────────────────────────────────────

    def _new_encoder(self, format: str, key: str, fields: Any) -> FileEncoder:
        return FileEncoder(self._columns, format, key, self._codec(fields, key, format))

    def _codec(self, fields: Any, key: str, format: str) -> str | None:
        try:
            return compression.compression_of(fields.get("compression"), key, format)
        except ValueError as wrong:
            raise BadInput(f"{self.plan.label}: {wrong}") from None

    async def _get_credential(self) -> Any:
        if self._credential is None:
            auth = self.plan.fields.get("auth")
            self._credential = await fields_of(auth, self.call.host, prefixes=objects.PREFIXES)
        return self._credential

    async def _resolve(self, fields: Any) -> tuple[objects.ObjectLocation, str]:
        """The location and the format of a file."""
        address = str(fields["uri"])
        credential = await self._get_credential()
        place = resolve_address(self.call, fields, address, credential)
        format = self._row_format(fields, address)
        if not place.key or address.endswith("/"):
            name = f"part.{format}" if not is_deferred(self.plan.fields) else f"part-{self.chunks}.{format}"
            place = resolve_address(self.call, fields, address.rstrip("/") + "/" + name, credential)
        return place, format

    def _row_format(self, fields: Any, address: str) -> str:
        given = fields.get("format") or format_by_ending(address)
        format = "excel" if given == "excel" else formats.format_of(given=given, path=address, default="parquet")
        if format not in ("parquet", "arrow", "csv", "json", "jsonl"):
            raise BadInput(
                f"{self.plan.label}: rows can be written as parquet, arrow, csv, json or jsonl, not as {format}"
            )
        return format

    async def _put(self, place: objects.ObjectLocation, content_type: str, data: bytes) -> None:
        out = await self._writer(place, content_type)
        try:
            await out.write(data)
            await out.commit()
        except BaseException:
            await out.abort()
            raise

    async def _writer(self, place: objects.ObjectLocation, content_type: str) -> Any:
        if place.scheme == "file":
            return await open_in_thread(lambda: FileWriter(Path(place.bucket, place.key)), FileWriter.discard)
        return ObjectWriter(await self._store(place), place.key, content_type)

    async def _store(self, place: objects.ObjectLocation) -> Any:
        credential = await self._get_credential()
        return await objects.checked_store(place, credential, self.call.host.address_check, self.call.timeout)
