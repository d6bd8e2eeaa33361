"""Bad rows: rows that the source cannot read or a target does not accept, and their position in the source.

With `bad_rows: quarantine`, the batches of a source have the column `POSITION`: the number of the place (a file, a
page, a query) and of the line or row in it. It follows the rows through filters and chunks, so a row that a target
rejects has a position as well as one that could not be read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import msgspec

from noetl.data.values import jsonable
from noetl.tools._common.sql_task import BadInput

POSITION = "noetl_source_position"
ROW = "noetl_chunk_row"  # the number of a row in its chunk, while the chunk is written
MOST_HELD, MOST_TAKEN = 4 << 20, 1 << 20  # bytes of bad rows in memory
_BITS = 40
_MASK = (1 << _BITS) - 1
T = TypeVar("T")


class RowError(BadInput):
    """A row that does not fit; other rows may. `rows` are the numbers of all that are wrong in the same way, with the
    reasons, if they are known."""

    def __init__(self, message: str, rows: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.rows = rows or {}

    @classmethod
    def of(cls, rows: Mapping[int, str]) -> RowError:
        """The error of some rows, with the reason of the first."""
        return cls(next(iter(rows.values())), rows)


class BadRow(NamedTuple):
    """A row that is not written."""

    row: Any  # plain data; the text of a line that could not be read
    reason: str
    source: str
    position: int  # the line or row in the source, from 1


class SourceRows:
    """The positions of the rows of a source, and the rows that it could not read."""

    def __init__(self) -> None:
        self._places: list[str] = []
        self._lock = Lock()  # the source is read in a thread
        self._bad: Any = None  # a file, once they are many
        self.count = 0  # of bad rows

    def place(self, name: str) -> int:
        """A new place of rows; its row n has the position `place(...) + n`."""
        self._places.append(name)
        return (len(self._places) - 1) << _BITS

    def describe(self, position: int) -> tuple[str, int]:
        """The name of the place, and the line or row in it."""
        return self._places[position >> _BITS], position & _MASK

    def reject(self, position: int, row: Any, reason: str) -> None:
        """Record a row that cannot be read."""
        try:
            line = msgspec.json.encode(BadRow(jsonable(row), reason, *self.describe(position)))
        except UnicodeEncodeError:  # the literal of a text that is not valid Unicode is
            line = msgspec.json.encode(BadRow(repr(row), reason, *self.describe(position)))
        with self._lock:
            if self._bad is None:
                self._bad = tempfile.SpooledTemporaryFile(MOST_HELD)  # noqa: SIM115 - closed by `take`
            self._bad.write(line + b"\n")
            self.count += 1

    def take(self) -> Iterator[list[BadRow]]:
        """The rows recorded since the last call, some at a time."""
        with self._lock:
            taken, self._bad = self._bad, None
        if taken is None:
            return
        with taken:
            taken.seek(0)
            while lines := taken.readlines(MOST_TAKEN):
                yield [msgspec.json.decode(line, type=BadRow) for line in lines]


class NumberedRows:
    """The rows of one place, converted to batches: those that do not fit are recorded."""

    def __init__(self, rows: SourceRows | None, name: str) -> None:
        self._rows = rows
        self._name = name
        self._next = 1 if rows is None else rows.place(name) + 1

    def reject(self, number: int, row: Any, reason: str) -> bool:
        """Record the row of this line, which cannot be read; false if that fails the transfer."""
        if self._rows is None:
            return False
        self._rows.reject((self._next & ~_MASK) + number, row, reason)
        return True

    def built(
        self,
        build: Callable[[list[dict[str, Any]]], Any],
        rows: list[dict[str, Any]],
        numbers: Sequence[int] | None = None,
    ) -> list[Any]:
        """Plain rows as batches; `numbers` are their lines if they are not consecutive."""
        first = self._next
        self._next += len(rows)
        base = first & ~_MASK
        positions = [base + number for number in numbers] if numbers is not None else range(first, first + len(rows))
        if self._rows is None:
            return [self._located(lambda start, end: build(rows[start:end]), positions)]
        batches, wrong = isolate(
            len(rows),
            lambda found: with_positions(build([rows[each] for each in found]), [positions[each] for each in found]),
        )
        for index, reason in wrong:
            self._rows.reject(positions[index], rows[index], reason)
        return _joined(batches)

    def converted(self, convert: Callable[[Any], Any], batch: Any, positions: Any = None) -> list[Any]:
        """The batches of an Arrow batch; `positions` if it has its own."""
        if positions is None:
            positions = range(self._next, self._next + batch.num_rows)
            self._next += batch.num_rows
        if self._rows is None:
            return [self._located(lambda start, end: convert(batch.slice(start, end - start)), positions)]
        batches, wrong = isolate(
            batch.num_rows,
            lambda found: with_positions(convert(taken(batch, found)), [positions[each] for each in found]),
        )
        if wrong:
            from noetl.data.arrow_tables import rows_of

            rows = rows_of(taken(batch, [index for index, _ in wrong]))
            for (index, reason), row in zip(wrong, rows, strict=True):
                self._rows.reject(positions[index], row, reason)
        return _joined(batches)

    def _located(self, attempt: Callable[[int, int], T], positions: Sequence[int]) -> T:
        """The result for all rows; an error names the first row that is wrong."""
        try:
            return attempt(0, len(positions))
        except RowError as failure:
            start, end = 0, len(positions)
            while end - start > 1:  # the rows before `start` are right
                middle = (start + end) // 2
                start, end = (middle, end) if _reason(attempt, start, middle) is None else (start, middle)
            reason = _reason(attempt, start, start + 1) or str(failure)
            reason = reason.removeprefix("the source: ").removeprefix(f"{self._name}: ")
            raise RowError(f"{self._name}: row {positions[start]}: {reason}") from None


def _reason(attempt: Callable[[int, int], Any], start: int, end: int) -> str | None:
    """Why a range of rows does not fit; None if it does."""
    try:
        attempt(start, end)
    except RowError as wrong:
        return str(wrong)
    return None


def isolate(count: int, attempt: Callable[[Sequence[int]], T]) -> tuple[list[T], list[tuple[int, str]]]:
    """The results of `attempt` for the numbers of rows, in order, and the rows that raise RowError, with the reason."""
    done: list[T] = []
    wrong: dict[int, str] = {}
    parts: list[Sequence[int]] = [range(count)]
    while parts:
        part = parts.pop()
        try:
            done.append(attempt(part))
        except RowError as failure:
            if failure.rows:
                wrong |= {part[index]: reason for index, reason in failure.rows.items()}
                parts += [rest] if (rest := [index for index in part if index not in wrong]) else []
            elif len(part) <= 1:
                wrong |= dict.fromkeys(part, str(failure))
            else:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
    return done, sorted(wrong.items())


def taken(table: Any, numbers: Sequence[int]) -> Any:
    """Some rows of a table or batch."""
    import pyarrow as pa

    if isinstance(numbers, range):
        return table.slice(numbers.start, len(numbers))
    return table.take(pa.array(numbers, pa.int64()))


def _joined(batches: list[Any]) -> list[Any]:
    """The rows in as few batches as they have schemas: each one needs memory of its own."""
    import pyarrow as pa

    joined: list[Any] = []
    for _, same in groupby(batches, lambda batch: batch.schema.to_string(show_schema_metadata=False)):
        several = list(same)
        joined += several if len(several) == 1 else pa.Table.from_batches(several).combine_chunks().to_batches()
    return joined


def with_positions(batch: Any, positions: Sequence[int]) -> Any:
    """The batch with the column of positions."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(
        [*batch.columns, pa.array(positions, pa.int64())], schema=batch.schema.append(pa.field(POSITION, pa.int64()))
    )


def without_positions(table: Any) -> Any:
    """The table or batch without the column of positions."""
    return table.drop_columns([POSITION]) if POSITION in table.schema.names else table
