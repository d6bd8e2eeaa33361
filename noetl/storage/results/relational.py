"""Results as rows of a database; `sqlite` and `postgres` execute the statements.

A payload is a row of `noetl_results`, and its blocks are rows of `noetl_result_parts` of up to a megabyte.
Invariant: the row is marked finished after the last block, so an incomplete payload
cannot be read. Unfinished payloads are deleted after a day.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator
from typing import Any, ClassVar

from noetl.core.model.reference import Reference, ReferenceType
from noetl.errors import PayloadUnavailable
from noetl.storage.results.payload_store import BLOCK, Packing, PayloadStore, missing

ABANDONED = 24 * 3600  # seconds after which an unfinished payload is deleted


class RelationalResults(PayloadStore):
    """A result store in a database."""

    type: ClassVar[ReferenceType] = "relational"

    @abstractmethod
    async def _execute(self, statement: str, *values: Any) -> tuple[int, list[tuple[Any, ...]]]:
        """Execute a statement with placeholders `?`; return the number of changed rows, and its rows."""

    @abstractmethod
    async def _insert(self, key: str, now: float, expires: float | None, block: bytes) -> None:
        """Store a payload of one block in one transaction."""

    async def _store_blocks(self, key: str, packing: Packing, now: float, expires: float | None) -> dict[str, Any]:
        blocks = packing.blocks()
        first, second = await anext(blocks, b""), await anext(blocks, None)
        if second is None:
            await self._insert(key, now, expires, first)
        else:
            await self._execute("INSERT INTO noetl_results VALUES (?, ?, ?, false)", key, now, expires)
            try:
                await self._add_part(key, 0, first)
                await self._add_part(key, 1, second)
                part = 2
                async for block in blocks:
                    await self._add_part(key, part, block)
                    part += 1
                await self._execute("UPDATE noetl_results SET finished = true WHERE key = ?", key)
            except BaseException:
                await self._delete(key)
                raise
        return {"table": "noetl_results", "key": key}

    async def _stored(
        self, key: str, reference: Reference, start: int, count: int | None
    ) -> AsyncGenerator[bytes, None]:
        _, found = await self._execute("SELECT 1 FROM noetl_results WHERE key = ? AND finished", key)
        if not found:
            raise missing(key, reference)
        # Without compression every block but the last has BLOCK bytes, so the first block is computed.
        part, skip = divmod(start, BLOCK)
        left = count
        while left is None or left > 0:
            _, rows = await self._execute("SELECT data FROM noetl_result_parts WHERE key = ? AND part = ?", key, part)
            if not rows:
                return
            block = rows[0][0]
            piece = block[skip:] if left is None else block[skip : skip + left]
            if left is not None:
                left -= len(piece)
            yield piece
            part, skip = part + 1, 0

    async def delete(self, reference: Reference) -> None:
        """Delete a payload; a missing one is not an error."""
        await self._delete(self._key(reference))

    async def collect(self, now: float) -> int:
        """Delete expired payloads and unfinished ones of the day before; return the number of expired ones."""
        count, _ = await self._execute("DELETE FROM noetl_results WHERE finished AND expires_at <= ?", now)
        await self._execute("DELETE FROM noetl_results WHERE NOT finished AND created_at < ?", now - ABANDONED)
        return count

    async def _add_part(self, key: str, part: int, block: bytes) -> None:
        await self._execute("INSERT INTO noetl_result_parts VALUES (?, ?, ?)", key, part, block)

    async def _delete(self, key: str) -> None:
        await self._execute("DELETE FROM noetl_results WHERE key = ?", key)

    def _key(self, reference: Reference) -> str:
        key = reference.locator.get("key")
        if reference.type != "relational" or not isinstance(key, str):
            raise PayloadUnavailable(
                f"not a reference to a row of a result database: {reference.type} {reference.locator}"
            )
        return key
