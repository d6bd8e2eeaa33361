"""Files of an SFTP server as source and target of transfers."""

from __future__ import annotations

import asyncio
import posixpath
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import asyncssh

from noetl.tool import (
    ConnectorError,
    RowTarget,
    SourceCall,
    decompress_file,
    file_compression,
    file_format,
    read_table,
    table_encoder,
)
from noetl_sftp.connection import connected
from noetl_sftp.task import discard, matching, replace, temporary


async def read(call: SourceCall) -> AsyncIterator[Any]:
    """The rows of all files; they are downloaded before the first row is read, so that their types agree."""
    path = str(call.fields["path"])
    pattern = any(mark in path for mark in "*?[")
    format = file_format(path.rstrip("*"), call.fields.get("format"))
    with tempfile.TemporaryDirectory(prefix="noetl-sftp-") as folder:
        async with connected(call.fields["auth"], call.host, call.timeout, path) as client:
            names = [name for name, _ in await matching(client, path)] if pattern else [path]
            for number, name in enumerate(names):
                await _download(client, name, str(Path(folder, f"{number:09}.{format}")), format)
        if not names:
            raise asyncssh.SFTPNoSuchFile(f"no file matches {path}")
        files = str(Path(folder, f"*.{format}")) if len(names) > 1 else str(Path(folder, f"{0:09}.{format}"))
        rows = read_table(files, format, rows_path=call.fields.get("rows_path"), types=call.fields.get("types"))
        try:
            async with aclosing(rows):
                async for batch in rows:
                    yield batch
        except Exception as failure:
            failure.args = tuple(_named(each, folder, names) for each in failure.args)
            raise


async def _download(client: Any, name: str, local: str, format: str) -> None:
    """Download a file, and decompress it."""
    try:
        compression = file_compression(name, format)
        if compression is None:
            await client.get(name, local)
            return
        await client.get(name, f"{local}.part")
        await asyncio.to_thread(decompress_file, f"{local}.part", local, compression)
    except ValueError as wrong:
        raise ConnectorError(str(wrong) if name in str(wrong) else f"{name}: {wrong}") from None
    await asyncio.to_thread(Path(f"{local}.part").unlink)


def _named(text: Any, folder: str, names: list[str]) -> Any:
    """A part of a message, with the files of the server instead of their local copies."""
    if not isinstance(text, str):
        return text
    return re.sub(rf"{re.escape(folder)}/(\d{{9}})\.\w+", lambda found: names[int(found[1])], text)


class FileTarget(RowTarget):
    """One file, written under a temporary name."""

    _session: Any = None

    async def begin(self, schema: Any) -> None:
        """Open the temporary file."""
        self._path = str(self.call.fields["path"])
        self._part = temporary(self._path, self.call.idempotency_key)
        format = file_format(self._path, self.call.fields.get("format"), "parquet")
        try:
            self._encoder = table_encoder(format, schema, self._path)
        except ValueError as wrong:
            raise ConnectorError(f"{self.call.label}: {wrong}") from None
        session = connected(self.call.fields["auth"], self.call.host, self.call.timeout)
        self._client = await session.__aenter__()
        self._session = session
        folder = posixpath.dirname(self._path)
        if folder and self.call.create:
            await self._client.makedirs(folder, exist_ok=True)
        self._file = await self._client.open(self._part, "wb")

    async def write(self, table: Any) -> None:
        """Append a chunk."""
        for batch in table.to_batches():
            if data := await asyncio.to_thread(self._encoder.write, batch):
                await self._file.write(data)

    async def write_empty(self) -> None:
        """Replace the file by one without rows; a format with columns needs them."""
        import pyarrow as pa

        path = str(self.call.fields["path"])
        if file_format(path, self.call.fields.get("format"), "parquet") not in ("parquet", "arrow"):
            await self.begin(pa.schema([]))
            await self.prepare()
            return
        async with connected(self.call.fields["auth"], self.call.host, self.call.timeout) as client:
            if await client.exists(path):
                raise ConnectorError(
                    f"{self.call.label}: the source has neither rows nor columns, so the file cannot be replaced"
                )

    async def prepare(self) -> None:
        """Complete the temporary file."""
        if self._session is not None:
            await self._file.write(await asyncio.to_thread(self._encoder.close))
            await self._file.close()

    async def commit(self) -> None:
        """Give the file its name."""
        if self._session is not None:
            await replace(self._client, self._part, self._path)
            session, self._session = self._session, None
            await session.__aexit__(None, None, None)

    async def abort(self) -> None:
        """Delete the temporary file."""
        session, self._session = self._session, None
        if session is not None:
            try:
                await discard(self._client, self._part)
            finally:
                await session.__aexit__(None, None, None)
