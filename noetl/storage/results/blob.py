"""Results as files in one folder: the default store of the embedded engine.

Invariant: a file has its final name only after all of it is on disk (written to a temporary file, flushed, renamed,
and the folder flushed). Payloads with a ttl are in `ttl/<hour of expiry>/`, so `collect` reads only
folders that have expired.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, ClassVar, TypeVar

from noetl.core.model.reference import Reference, ReferenceType
from noetl.errors import PayloadUnavailable, StoreUnavailable
from noetl.runtime.disk_errors import disk_error, is_full
from noetl.runtime.private_files import create_private, flush_folder, private_folder
from noetl.storage.results.payload_store import HOUR, Packing, PayloadStore, by_hour, missing, storage_name

ABANDONED = 24 * HOUR  # seconds after which a temporary file is deleted
READ = 1 << 20

T = TypeVar("T")


class BlobResults(PayloadStore):
    """A result store on a local or shared disk."""

    type: ClassVar[ReferenceType] = "blob"

    def __init__(self, root: str | Path, **options: Any) -> None:
        super().__init__(**options)
        self.root = Path(root).absolute()
        self.address = {"scheme": "file", "host": socket.gethostname(), "root": str(self.root)}

    async def _store_blocks(self, key: str, packing: Packing, now: float, expires: float | None) -> dict[str, Any]:
        path = by_hour(key, expires)
        temporary = self.root / "unfinished" / storage_name("payload")
        try:
            await self._write(packing, temporary, self.root / path)
        except BaseException:
            with suppress(OSError):  # the first error is the one to raise
                temporary.unlink(missing_ok=True)
            raise
        return {"path": path}

    async def _stored(
        self, key: str, reference: Reference, start: int, count: int | None
    ) -> AsyncGenerator[bytes, None]:
        file = await self._in_thread(_open_stored, Path(key), reference)
        with file:
            file.seek(start)
            left = count
            while left is None or left > 0:
                chunk = await self._in_thread(file.read, READ if left is None else min(READ, left))
                if not chunk:
                    return
                if left is not None:
                    left -= len(chunk)
                yield chunk

    async def delete(self, reference: Reference) -> None:
        """Delete a payload; a missing one is not an error."""
        await self._in_thread(Path(self._key(reference)).unlink, True)

    async def collect(self, now: float) -> int:
        """Delete expired payloads; return their number."""
        return await self._in_thread(self._collect, now)

    async def forget(self, executions: Sequence[str]) -> int:
        """Delete the payloads of these executions that have no ttl; return their number."""
        return await self._in_thread(self._forget, executions)

    async def _write(self, packing: Packing, temporary: Path, target: Path) -> None:
        blocks = packing.blocks()
        first = await anext(blocks, b"")
        second = await anext(blocks, None)
        if second is None:  # small: one call in a thread
            await self._in_thread(_store_whole, first, temporary, target)
            return
        with await self._in_thread(create_private, temporary) as file:
            await self._in_thread(file.write, first)
            await self._in_thread(file.write, second)
            async for block in blocks:
                await self._in_thread(file.write, block)
            await self._in_thread(_flush, file)
        await self._in_thread(_publish, temporary, target)

    def _key(self, reference: Reference) -> str:
        """The path of the payload, which is always inside of the store."""
        named = reference.locator.get("path")
        if reference.type != "blob" or not isinstance(named, str):
            raise PayloadUnavailable(f"not a reference to a stored file: {reference.type} {reference.locator}")
        path = Path(os.path.normpath(self.root / named))
        if not path.is_relative_to(self.root) or path == self.root:
            raise PayloadUnavailable(f"{named!r} is outside of the result store")
        return str(path)

    def _forget(self, executions: Sequence[str]) -> int:
        deleted = 0
        for execution_id in executions:
            folder = self.root / execution_id
            if execution_id.isdecimal() and folder.is_dir():
                deleted += sum(len(names) for _, _, names in os.walk(folder))
                shutil.rmtree(folder)
        return deleted

    def _collect(self, now: float) -> int:
        collected = 0
        expiring = self.root / "ttl"
        for hour in sorted(expiring.iterdir()) if expiring.is_dir() else ():
            if not hour.name.isdigit() or int(hour.name) > now // HOUR:
                continue
            for folder, _, names in os.walk(hour, topdown=False):
                for name in names:
                    if int(name.rpartition(".")[2]) <= now:
                        Path(folder, name).unlink(missing_ok=True)
                        collected += 1
                if not os.listdir(folder) and int(hour.name) < now // HOUR:
                    Path(folder).rmdir()
        unfinished = self.root / "unfinished"
        for temporary in unfinished.iterdir() if unfinished.is_dir() else ():
            if temporary.stat().st_mtime < now - ABANDONED:
                temporary.unlink(missing_ok=True)
        return collected

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run file operations in a thread; an OSError is raised as StoreUnavailable."""
        try:
            return await asyncio.to_thread(call, *arguments)
        except OSError as problem:
            what = disk_error(problem, self.root) or f"{problem.filename or self.root}: {problem.strerror}"
            kind = "storage.quota" if is_full(problem) else "storage.access"
            raise StoreUnavailable(f"result store {what}", kind=kind) from problem


def _open_stored(path: Path, reference: Reference) -> IO[bytes]:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise missing(path.name, reference) from None


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _store_whole(data: bytes, temporary: Path, target: Path) -> None:
    with create_private(temporary) as file:
        file.write(data)
        _flush(file)
    _publish(temporary, target)


def _publish(temporary: Path, target: Path) -> None:
    """Rename a finished file to its final name, durably."""
    existing = target.parent
    while not existing.exists():
        existing = existing.parent
    private_folder(target.parent)
    temporary.rename(target)
    folder = target.parent
    while True:
        flush_folder(folder)
        if folder == existing:
            return
        folder = folder.parent
