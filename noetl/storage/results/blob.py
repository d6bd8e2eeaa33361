"""Results as files on disk, below one folder: the embedded engine's store.

A file appears under its name only when all of it is on disk (written aside, flushed, renamed,
and the folder flushed). What has a ttl lies below `ttl/<hour it expires in>/`, so collecting
looks at nothing that is still needed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, ClassVar, TypeVar

from noetl.core.model.reference import Reference, ReferenceType
from noetl.errors import PayloadUnavailable, StoreUnavailable
from noetl.storage.results.payload_store import HOUR, Packing, PayloadStore, by_hour, missing, storage_name

ABANDONED = 24 * HOUR  # a write that stopped this long ago will not go on
READ = 1 << 20

T = TypeVar("T")


class BlobResults(PayloadStore):
    """Result store on a local (or shared) disk."""

    type: ClassVar[ReferenceType] = "blob"

    def __init__(self, root: str | Path, **options: Any) -> None:
        super().__init__(**options)
        self.root = Path(root).absolute()

    async def _keep(self, key: str, packing: Packing, now: float, expires: float | None) -> dict[str, Any]:
        path = by_hour(key, expires)
        aside = self.root / "unfinished" / storage_name("payload")
        try:
            await self._write(packing, aside, self.root / path)
        except BaseException:
            with suppress(OSError):  # what went wrong first is what the caller must hear of
                aside.unlink(missing_ok=True)
            raise
        return {"path": path}

    async def _stored(
        self, key: str, reference: Reference, start: int, count: int | None
    ) -> AsyncGenerator[bytes, None]:
        file = await _on_disk(_open_stored, Path(key), reference)
        with file:
            file.seek(start)
            left = count
            while left is None or left > 0:
                chunk = await _on_disk(file.read, READ if left is None else min(READ, left))
                if not chunk:
                    return
                if left is not None:
                    left -= len(chunk)
                yield chunk

    async def delete(self, reference: Reference) -> None:
        """Forget it; one that is gone already is no error."""
        await _on_disk(Path(self._key(reference)).unlink, True)

    async def collect(self, now: float) -> int:
        """Delete what has outlived its ttl; how many."""
        return await _on_disk(self._collect, now)

    async def forget(self, executions: Sequence[str]) -> int:
        """Delete what these executions stored without a ttl; how many."""
        return await _on_disk(self._forget, executions)

    async def close(self) -> None:
        """Nothing is held open."""

    async def _write(self, packing: Packing, aside: Path, target: Path) -> None:
        blocks = packing.blocks()
        first = await anext(blocks, b"")
        second = await anext(blocks, None)
        if second is None:  # small: one trip to a thread does it all
            await _on_disk(_store_whole, first, aside, target)
            return
        with await _on_disk(_create, aside) as file:
            await _on_disk(file.write, first)
            await _on_disk(file.write, second)
            async for block in blocks:
                await _on_disk(file.write, block)
            await _on_disk(_flush, file)
        await _on_disk(_publish, aside, target)

    def _key(self, reference: Reference) -> str:
        """Where the payload lies; a locator cannot lead out of the store."""
        named = reference.locator.get("path")
        if reference.type != "blob" or not isinstance(named, str):
            raise PayloadUnavailable(f"this is not a reference to a stored file: {reference.type} {reference.locator}")
        path = Path(os.path.normpath(self.root / named))
        if not path.is_relative_to(self.root) or path == self.root:
            raise PayloadUnavailable(f"{named!r} is not a place in the result store")
        return str(path)

    def _forget(self, executions: Sequence[str]) -> int:
        forgotten = 0
        for execution_id in executions:
            folder = self.root / execution_id
            if execution_id.isdecimal() and folder.is_dir():
                forgotten += sum(len(names) for _, _, names in os.walk(folder))
                shutil.rmtree(folder)
        return forgotten

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
        for aside in unfinished.iterdir() if unfinished.is_dir() else ():
            if aside.stat().st_mtime < now - ABANDONED:
                aside.unlink(missing_ok=True)
        return collected


async def _on_disk(deed: Callable[..., T], *arguments: Any) -> T:
    """Do something with the disk, in a thread; the disk's complaints become the store's."""
    try:
        return await asyncio.to_thread(deed, *arguments)
    except OSError as problem:
        full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
        what = f"the result store on disk: {problem.strerror} ({problem.filename or 'while writing or reading'})"
        raise StoreUnavailable(what, kind="storage.quota" if full else "storage.access") from problem


def _open_stored(path: Path, reference: Reference) -> IO[bytes]:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise missing(path.name, reference) from None


def _create(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("xb")


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _store_whole(data: bytes, aside: Path, target: Path) -> None:
    with _create(aside) as file:
        file.write(data)
        _flush(file)
    _publish(aside, target)


def _publish(aside: Path, target: Path) -> None:
    """Give a finished file its name, for good."""
    made = target.parent
    while not made.exists():
        made = made.parent
    target.parent.mkdir(parents=True, exist_ok=True)
    aside.rename(target)
    folder = target.parent
    while True:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        if folder == made:
            return
        folder = folder.parent
