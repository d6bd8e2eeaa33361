"""Writers of one file or object: it appears when it is complete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from noetl.connections import objects
from noetl.data.content import blocks_of, unfinished
from noetl.runtime.threads import in_thread


class FileWriter:
    """A file that is written under a temporary name and renamed when it is complete."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._temporary = unfinished(path)
        self._file = self._temporary.open("wb")

    async def write(self, data: bytes) -> None:
        """Append to the file."""
        await in_thread(lambda: self._file.write(data))

    async def commit(self) -> None:
        """Give the file its name."""
        await in_thread(self._file.close)
        await in_thread(lambda: self._temporary.replace(self._path))

    async def abort(self) -> None:
        """Delete the partial file."""
        self.discard()

    def discard(self) -> None:
        """Delete the partial file."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)


class ObjectWriter:
    """An object that is uploaded while it is written."""

    def __init__(self, store: Any, key: str, content_type: str) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=4)
        self._upload = asyncio.create_task(objects.upload(store, key, self._blocks(), content_type=content_type))

    async def write(self, data: bytes) -> None:
        """Append to the object."""
        async for block in blocks_of(data):
            await self._put(block)

    async def commit(self) -> None:
        """Complete the upload."""
        await self._put(None)
        await self._upload

    async def abort(self) -> None:
        """Cancel the upload."""
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
