"""Results as rows of a database; `sqlite` and `postgres` implement the statements.

A payload is a row of `noetl_results`, and its blocks are rows of `noetl_result_parts` of up to a megabyte.
Invariant: the row is marked finished after the last block, so an incomplete payload
cannot be read. Unfinished payloads are deleted after a day.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar, Protocol
from urllib.parse import unquote, urlsplit

from noetl.core.model.reference import Reference, ReferenceType
from noetl.errors import PayloadUnavailable, RequestRefused
from noetl.storage.results.payload_store import BLOCK, Packing, PayloadStore, missing

ABANDONED = 24 * 3600  # seconds after which an unfinished payload is deleted


class ResultDatabase(Protocol):
    """The statements that differ between databases."""

    async def insert(self, key: str, now: float, expires: float | None, block: bytes) -> None:
        """Store a payload of one block in one transaction."""

    async def begin(self, key: str, now: float, expires: float | None) -> None:
        """Begin an unfinished payload."""

    async def add(self, key: str, part: int, block: bytes) -> None:
        """Store one block."""

    async def finish(self, key: str) -> None:
        """Mark a payload as finished; returns after the commit."""

    async def exists(self, key: str) -> bool:
        """Whether a finished payload has this key."""

    async def part(self, key: str, part: int) -> bytes | None:
        """One block; None after the last."""

    async def delete(self, key: str) -> None:
        """Delete a payload and its blocks."""

    async def collect(self, now: float) -> int:
        """Delete expired and abandoned payloads; return the number of expired ones."""

    async def delete_prefixes(self, prefixes: Sequence[str]) -> int:
        """Delete payloads without a ttl whose key begins with a prefix; return their number."""

    async def close(self) -> None:
        """Close the connections."""


class RelationalResults(PayloadStore):
    """A result store in a database."""

    type: ClassVar[ReferenceType] = "relational"

    def __init__(self, database: ResultDatabase, **options: Any) -> None:
        super().__init__(**options)
        self.database = database

    async def _store_blocks(self, key: str, packing: Packing, now: float, expires: float | None) -> dict[str, Any]:
        blocks = packing.blocks()
        first, second = await anext(blocks, b""), await anext(blocks, None)
        if second is None:
            await self.database.insert(key, now, expires, first)
        else:
            await self.database.begin(key, now, expires)
            try:
                await self.database.add(key, 0, first)
                await self.database.add(key, 1, second)
                part = 2
                async for block in blocks:
                    await self.database.add(key, part, block)
                    part += 1
                await self.database.finish(key)
            except BaseException:
                await self.database.delete(key)
                raise
        return {"table": "noetl_results", "key": key}

    async def _stored(
        self, key: str, reference: Reference, start: int, count: int | None
    ) -> AsyncGenerator[bytes, None]:
        if not await self.database.exists(key):
            raise missing(key, reference)
        # Without compression every block but the last has BLOCK bytes, so the first block is computed.
        part, skip = divmod(start, BLOCK)
        left = count
        while left is None or left > 0:
            block = await self.database.part(key, part)
            if block is None:
                return
            piece = block[skip:] if left is None else block[skip : skip + left]
            if left is not None:
                left -= len(piece)
            yield piece
            part, skip = part + 1, 0

    async def delete(self, reference: Reference) -> None:
        """Delete a payload; a missing one is not an error."""
        await self.database.delete(self._key(reference))

    async def collect(self, now: float) -> int:
        """Delete expired payloads; return their number."""
        return await self.database.collect(now)

    async def forget(self, executions: Sequence[str]) -> int:
        """Delete the payloads of these executions that have no ttl; return their number."""
        return await self.database.delete_prefixes([f"{each}/" for each in executions])

    async def close(self) -> None:
        """Close the database."""
        await self.database.close()

    def _key(self, reference: Reference) -> str:
        key = reference.locator.get("key")
        if reference.type != "relational" or not isinstance(key, str):
            raise PayloadUnavailable(
                f"not a reference to a row of a result database: {reference.type} {reference.locator}"
            )
        return key


def open_relational(url: str, **options: Any) -> RelationalResults:
    """Open the store of a `sqlite:` or `postgresql:` URL."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        path = unquote(parts.netloc + parts.path)
        if not path.strip("/"):
            raise RequestRefused(
                "a sqlite: URL needs the path of a file, for example sqlite:///var/lib/noetl/results.db"
            )
        from noetl.storage.results.sqlite import SqliteResultDatabase

        return RelationalResults(SqliteResultDatabase(path), **options)
    from noetl.storage.results.postgres import PostgresResultDatabase

    return RelationalResults(PostgresResultDatabase(url), **options)
