"""Task logs in memory."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.core.model.task_log import LogChunk, LogFilter, LogPage
from noetl.storage.ports.task_logs import MAX_BYTES
from noetl.storage.task_logs.chunks import check_chunk, over_limit, page_of, size_of


class MemoryTaskLogStore:
    """`ports.TaskLogStore` in memory."""

    def __init__(self) -> None:
        self._chunks: dict[str, list[tuple[int, LogChunk]]] = {}
        self._sizes: dict[str, int] = {}

    async def append(self, chunk: LogChunk) -> int:
        """Add lines; return the number of the last one."""
        check_chunk(chunk)
        size = self._sizes.get(chunk.execution_id, 0)
        last = await self.last(chunk.execution_id)
        if size > MAX_BYTES:
            return last
        self._sizes[chunk.execution_id] = size + size_of(chunk)
        if self._sizes[chunk.execution_id] > MAX_BYTES:
            chunk = over_limit(chunk)
        self._chunks.setdefault(chunk.execution_id, []).append((last + 1, chunk))
        return last + len(chunk.lines)

    async def read(
        self, execution_id: str, after: int = 0, limit: int = 1000, where: LogFilter | None = None
    ) -> LogPage:
        """Lines with a number > after, in order."""
        return page_of(self._chunks.get(execution_id, ()), after, limit, where)[0]

    async def last(self, execution_id: str) -> int:
        """The number of the last line; 0 without any."""
        chunks = self._chunks.get(execution_id)
        return chunks[-1][0] + len(chunks[-1][1].lines) - 1 if chunks else 0

    async def forget(self, executions: Sequence[str]) -> None:
        """Delete the lines of these executions."""
        for execution_id in executions:
            self._chunks.pop(execution_id, None)
            self._sizes.pop(execution_id, None)
