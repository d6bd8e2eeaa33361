"""Bad rows: rows that the source cannot read or a target does not accept, and their position in the source.

With `bad_rows: quarantine`, the batches of a source have the column `POSITION`: the number of the place (a file, a
page, a query) and of the line or row in it. It follows the rows through filters and chunks, so a row that a target
rejects has a position as well as one that could not be read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import msgspec

from noetl.data.values import jsonable
from noetl.tools._common.sql_task import BadInput

POSITION = "noetl_source_position"
MOST_HELD, MOST_TAKEN = 4 << 20, 1 << 20  # bytes of bad rows in memory
_BITS = 40
_MASK = (1 << _BITS) - 1
T = TypeVar("T")


class RowError(BadInput):
    """A row that does not fit; other rows may."""


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
            len(rows), lambda start, end: with_positions(build(rows[start:end]), positions[start:end])
        )
        for index, reason in wrong:
            self._rows.reject(positions[index], rows[index], reason)
        return batches

    def converted(self, convert: Callable[[Any], Any], batch: Any, positions: Any = None) -> list[Any]:
        """The batches of an Arrow batch; `positions` if it has its own."""
        if positions is None:
            positions = range(self._next, self._next + batch.num_rows)
            self._next += batch.num_rows
        if self._rows is None:
            return [self._located(lambda start, end: convert(batch.slice(start, end - start)), positions)]
        batches, wrong = isolate(
            batch.num_rows,
            lambda start, end: with_positions(convert(batch.slice(start, end - start)), positions[start:end]),
        )
        if wrong:
            from noetl.data.arrow_tables import rows_of

            for index, reason in wrong:
                self._rows.reject(positions[index], rows_of(batch.slice(index, 1))[0], reason)
        return batches

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


def isolate(count: int, attempt: Callable[[int, int], T]) -> tuple[list[T], list[tuple[int, str]]]:
    """The results of `attempt` for ranges of rows, in order, and the rows that raise RowError, with the reason."""
    done: list[T] = []
    wrong: list[tuple[int, str]] = []
    ranges = [(0, count)]
    while ranges:
        start, end = ranges.pop()
        try:
            done.append(attempt(start, end))
        except RowError as failure:
            if end - start <= 1:
                wrong.append((start, str(failure)))
            else:
                middle = (start + end) // 2
                ranges += [(middle, end), (start, middle)]
    return done, wrong


def with_positions(batch: Any, positions: Sequence[int]) -> Any:
    """The batch with the column of positions."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(
        [*batch.columns, pa.array(positions, pa.int64())], schema=batch.schema.append(pa.field(POSITION, pa.int64()))
    )


def without_positions(table: Any) -> Any:
    """The table or batch without the column of positions."""
    return table.drop_columns([POSITION]) if POSITION in table.schema.names else table
