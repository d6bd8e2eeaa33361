"""The port of task logs: lines that tasks print, by execution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from noetl.core.model.task_log import LogChunk, LogFilter, LogPage

MAX_BYTES = 64 << 20  # of one execution


class TaskLogStore(Protocol):
    """Lines of tasks, numbered from 1 in each execution; deleted with their execution."""

    async def append(self, chunk: LogChunk) -> int:
        """Add lines; return the number of the last one.

        Above `MAX_BYTES` of an execution one line records that others are dropped, and nothing more is stored."""

    async def read(
        self, execution_id: str, after: int = 0, limit: int = 1000, where: LogFilter | None = None
    ) -> LogPage:
        """Lines with a number > after, in order."""

    async def last(self, execution_id: str) -> int:
        """The number of the last line; 0 without any."""

    async def forget(self, executions: Sequence[str]) -> None:
        """Delete the lines of these executions."""
