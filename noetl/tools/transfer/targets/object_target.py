"""Object target: writes files and objects.

A path without a chunk variable is one file (or object) for all rows, created when the transfer has succeeded. A path
with a chunk variable is one file per chunk, created when the chunk is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from noetl.connections import objects
from noetl.connections.auth import fields_of
from noetl.core.model.tool import ToolCall
from noetl.data import formats, table_files
from noetl.data.content import blocks_of, encoded, natural_format, unfinished
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.chunks import Chunk, reads_name
from noetl.tools.transfer.sources.file_source import resolve_address
from noetl.tools.transfer.targets import Target
from noetl.tools.transfer.targets.file_columns import FileColumns
from noetl.tools.transfer.transfer_plan import TargetPlan, is_deferred


class ObjectTarget(Target):
    """Parquet, Arrow, CSV, JSON or JSON lines in an object store or a folder."""

    _out: Any = None
    _encoder: Any = None
    _credential: Any = None

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
        place, format = await self._resolve(self.plan.fields)
        self._format, self._schema = format, schema
        self._options = _options(format, place.key)
        self._out = await self._writer(place, formats.CONTENT_TYPES[format])

    async def write(self, table: Any, chunk: Chunk) -> None:
        """Append a chunk to the file, or write it to its own file."""
        if self._out is not None:
            data = await asyncio.to_thread(self._encode, table)
            if data:
                await self._out.write(data)
            return
        fields = self.templates.render(
            self.plan.fields, chunk=chunk.template_values(data=reads_name(self.plan.fields, "chunk.data"))
        )
        place, format = await self._resolve(fields)
        data = await asyncio.to_thread(self._encode_table, table, format, _options(format, place.key))
        await self._put(place, formats.CONTENT_TYPES[format], data)

    async def write_static(self, data: Any) -> None:
        """Write the static data as the content."""
        address = str(self.plan.fields["uri"])
        place = resolve_address(self.call, self.plan.fields, address, await self._get_credential())
        given = self.plan.fields.get("format")
        format = formats.format_of(given=given, path=address, default=natural_format(data))
        try:
            content = await asyncio.to_thread(encoded, data, format, place.key)
        except ValueError as wrong:
            raise BadInput(f"{self.plan.label}: {wrong}") from None
        await self._put(place, formats.CONTENT_TYPES[format], content)
        self.chunks = 1

    async def commit(self) -> None:
        """Finish the file."""
        if self._out is not None:
            await self._out.write(await asyncio.to_thread(self._finish))
            out, self._out = self._out, None
            await out.commit()

    async def abort(self) -> None:
        """Delete the partial file."""
        if self._out is not None:
            out, self._out = self._out, None
            await out.abort()

    def explain(self, failure: Exception) -> Any:
        """The error of the store."""
        return objects.to_error_info(failure, self.plan.label) if isinstance(failure, objects.errors()) else None

    def _encode(self, table: Any) -> bytes:
        table = self._columns.stored(table, self._format, fixed=self._encoder is not None)
        if self._encoder is None:
            self._encoder = table_files.encoder(self._format, table.schema, **self._options)
        return b"".join([self._encoder.write(batch) for batch in table.to_batches()])

    def _finish(self) -> bytes:
        """The rest of the file; the whole file if there were no rows."""
        if self._encoder is None:
            self._encode(self._schema.empty_table())
        rest: bytes = self._encoder.close()
        return rest

    def _encode_table(self, table: Any, format: str, options: dict[str, Any]) -> bytes:
        table = self._columns.stored(table, format)
        encoder = table_files.encoder(format, table.schema, **options)
        return b"".join([encoder.write(batch) for batch in table.to_batches()]) + encoder.close()

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
        format = formats.format_of(given=fields.get("format"), path=address, default="parquet")
        if format in ("text", "bytes"):
            raise BadInput(
                f"{self.plan.label}: rows can be written as parquet, arrow, csv, json or jsonl, not as {format}"
            )
        if not place.key or address.endswith("/"):
            name = f"part.{format}" if not is_deferred(self.plan.fields) else f"part-{self.chunks}.{format}"
            place = resolve_address(self.call, fields, address.rstrip("/") + "/" + name, credential)
        return place, format

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
            return await asyncio.to_thread(_FileWriter, Path(place.bucket, place.key))
        timeout, credential = self.call.timeout, await self._get_credential()
        await objects.check_endpoint(place, credential, self.call.host.address_check)
        store = objects.shared_store(place, credential, connect=timeout.connect, total=timeout.total)
        return _ObjectWriter(store, place.key, content_type)


def _options(format: str, key: str) -> dict[str, Any]:
    return {"delimiter": "\t"} if format == "csv" and key.lower().endswith(".tsv") else {}


class _FileWriter:
    """A file that is written under a temporary name and renamed when it is complete."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._temporary = unfinished(path)
        self._file = self._temporary.open("wb")

    async def write(self, data: bytes) -> None:
        await asyncio.to_thread(self._file.write, data)

    async def commit(self) -> None:
        await asyncio.to_thread(self._file.close)
        await asyncio.to_thread(self._temporary.replace, self._path)

    async def abort(self) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)


class _ObjectWriter:
    """An object that is uploaded while it is written."""

    def __init__(self, store: Any, key: str, content_type: str) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=4)
        self._upload = asyncio.create_task(objects.upload(store, key, self._blocks(), content_type=content_type))

    async def write(self, data: bytes) -> None:
        async for block in blocks_of(data):
            await self._put(block)

    async def commit(self) -> None:
        await self._put(None)
        await self._upload

    async def abort(self) -> None:
        self._upload.cancel()
        await asyncio.wait([self._upload])
        if not self._upload.cancelled():
            self._upload.exception()  # retrieved, so that asyncio does not log it

    async def _put(self, block: bytes | None) -> None:
        putting = asyncio.ensure_future(self._queue.put(block))
        await asyncio.wait([putting, self._upload], return_when=asyncio.FIRST_COMPLETED)
        if not putting.done():  # the upload has ended
            putting.cancel()
            await self._upload

    async def _blocks(self) -> AsyncGenerator[bytes, None]:
        while (block := await self._queue.get()) is not None:
            yield block
