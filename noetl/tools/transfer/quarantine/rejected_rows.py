"""Writes the good rows of a chunk to a target, and passes the others on, each with its reason.

While a chunk is processed, the table for the target has the column `ROW`, the number of the row in the chunk, so that a
rejected row is recorded as the source has it, with its position there. With `nested: tables`, rows of child tables have
the number of their root row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from noetl.tools.transfer.chunks import Chunk
from noetl.tools.transfer.mapping import ColumnMapping
from noetl.tools.transfer.quarantine.bad_rows import ROW, BadRow, SourceRows, isolate
from noetl.tools.transfer.transfer_plan import TargetPlan

if TYPE_CHECKING:
    from noetl.tools.transfer.targets import Target

PIECE = 1_000  # rows that are written together after a chunk has failed


class RejectedRows:
    """The rows that one target does not accept."""

    def __init__(self, rows: SourceRows, add: Callable[[list[BadRow], str], Awaitable[None]], label: str) -> None:
        self._rows = rows
        self._add = add
        self._label = label
        self.count = 0
        self.table = ""  # whose rows are rejected, if the target has several
        self._chunk: Any = None
        self._numbers: set[int] = set()  # of the rejected rows of the chunk
        self._pending: list[BadRow] = []

    def begin(self, chunk: Chunk) -> None:
        """Begin a chunk."""
        self._chunk = chunk
        self._numbers = set()

    async def flush(self) -> None:
        """Pass on the rejected rows of the chunk."""
        rows, self._pending = self._pending, []
        await self._add(rows, self._label)

    async def add(self, table: Any, reason: str) -> None:
        """Reject rows."""
        self._reject(table.column(ROW).to_pylist(), reason)

    def _reject(self, numbers: list[int], reason: str) -> None:
        from noetl.data.arrow_tables import rows_of

        chunk = self._chunk
        if self.table:
            reason = f"{self.table}: {reason}"
        for number in dict.fromkeys(numbers):
            if number in self._numbers:
                continue
            source, position = "data", number + 1
            if chunk.positions is not None:
                source, position = self._rows.describe(chunk.positions[number].as_py())
            row = rows_of(chunk.table.slice(number, 1))[0]
            self._pending.append(BadRow(row, reason, source, position))
            self._numbers.add(number)
            self.count += 1

    def kept(self, table: Any) -> Any:
        """The rows of a table whose source rows are not rejected so far."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self._numbers:
            return table
        wrong = pc.is_in(table.column(ROW), pa.array(sorted(self._numbers), pa.int32()))
        return table.filter(pc.invert(wrong))

    def mapped(self, columns: ColumnMapping) -> Any:
        """The rows of the chunk with the columns of the target; those whose templates fail are rejected."""
        import pyarrow as pa

        chunk = self._chunk

        failed: dict[int, str] = {}

        def attempt(numbers: Sequence[int]) -> Any:
            wrong: dict[int, str] = {}
            table = columns.apply(chunk.part(numbers) if len(numbers) < chunk.size else chunk, wrong)
            failed.update({numbers[index]: reason for index, reason in wrong.items()})
            return table.append_column(ROW, pa.array(numbers, pa.int32()))

        tables, wrong = isolate(chunk.size, attempt)
        failed.update(wrong)
        for number, reason in sorted(failed.items()):
            self._reject([number], reason)
        table = (
            pa.concat_tables(tables) if tables else chunk.table.slice(0, 0).append_column(ROW, pa.array([], "int32"))
        )
        return table.filter(pa.array([n not in failed for n in table.column(ROW).to_pylist()])) if failed else table

    async def with_key(self, table: Any, plan: TargetPlan) -> Any:
        """The rows that have a value for the key."""
        import pyarrow.compute as pc

        has_key = pc.is_valid(table.column(plan.key[0]))
        for name in plan.key[1:]:
            has_key = pc.and_(has_key, pc.is_valid(table.column(name)))
        if not pc.all(has_key).as_py():
            await self.add(table.filter(pc.invert(has_key)), f"no value for the key ({', '.join(plan.key)})")
            table = table.filter(has_key)
        return table

    async def without(self, table: Any, wrong: Mapping[int, str]) -> Any:
        """The table without rows that the target would not accept."""
        import pyarrow as pa

        if not wrong:
            return table
        for number, reason in sorted(wrong.items()):
            await self.add(table.slice(number, 1), reason)
        return table.filter(pa.array([number not in wrong for number in range(table.num_rows)]))

    async def write(self, table: Any, target: Target) -> int:
        """Write the rows and return their number; a part that fails is divided until the bad rows are found."""
        parts = deque([table] if table.num_rows else [])
        written = 0
        while parts:
            part = parts.popleft()
            try:
                await target.write_fitting(part, self._chunk)
                written += part.num_rows
            except Exception as failure:
                if not target.is_row_error(failure):
                    raise
                if part.num_rows == 1:
                    info = target.explain(failure)
                    await self.add(part, info.message if info is not None else str(failure))
                else:
                    parts.extendleft(reversed(_divided(part, target.failed_row(failure, part))))
        return written


def plain(table: Any) -> Any:
    """The table without the numbers of its rows."""
    return table.drop_columns([ROW]) if ROW in table.schema.names else table


def _divided(table: Any, at: int | None) -> list[Any]:
    """Parts of a table: pieces, or the rows before, at and after the one that failed, or halves."""
    count = table.num_rows
    if count > PIECE:
        return [table.slice(start, PIECE) for start in range(0, count, PIECE)]
    cuts = [at, at + 1] if at is not None and 0 <= at < count else [count // 2]
    edges = [0, *cuts, count]
    return [table.slice(start, end - start) for start, end in pairwise(edges) if end > start]
