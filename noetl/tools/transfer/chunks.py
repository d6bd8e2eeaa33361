"""Chunks of rows, and the templates that are evaluated for each chunk or row."""

from __future__ import annotations

import random
import time
import uuid
from collections import ChainMap
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from noetl.core.model.events import instant
from noetl.core.model.tool import ToolCall
from noetl.core.templates.deferred import DeferredTemplate
from noetl.core.templates.template import compile_value
from noetl.data import arrow_tables as tables
from noetl.tools.transfer.quarantine.bad_rows import POSITION, taken, without_positions

# Columns or bytes of a row, and bytes of a chunk with wider rows: libraries hold buffers for each column and value.
WIDE, LONG, WIDE_BYTES = 256, 64 << 10, 4 << 20


class Mark(NamedTuple):
    """A place between the rows of a source from which a later load can continue."""

    position: Any  # of the source
    reached: dict[str, Any]  # the greatest cursor of the rows before it


class Chunk:
    """Some rows, as an Arrow table and (lazily) as plain data."""

    def __init__(
        self, index: int, table: Any, *, last: bool, total: int | None = None, values: list[Any] | None = None
    ) -> None:
        self.index = index
        self.positions: Any = table.column(POSITION) if POSITION in table.schema.names else None
        self.table = without_positions(table)
        self.last = last
        self.total = total
        self._rows: list[dict[str, Any]] | None = None
        self._values = values  # of the source, if some of them are no mappings

    def part(self, numbers: Sequence[int]) -> Chunk:
        """Some of the rows."""
        values = None if self._values is None else [self._values[number] for number in numbers]
        return Chunk(self.index, taken(self.table, numbers), last=self.last, total=self.total, values=values)

    @property
    def size(self) -> int:
        """Number of rows."""
        rows: int = self.table.num_rows
        return rows

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as plain data, converted once for all targets."""
        if self._rows is None:
            self._rows = tables.rows_of(self.table)
        return self._rows

    @property
    def data(self) -> list[Any]:
        """The chunk itself: the rows, or the values as the source has them."""
        return self.rows if self._values is None else self._values

    def template_values(self, *, data: bool) -> dict[str, Any]:
        """The value of `chunk` in templates; `data` is included only if a template reads it."""
        values = {
            "index": self.index,
            "size": self.size,
            "first": self.index == 0,
            "last": self.last,
            "total": self.total,
        }
        return {**values, "data": self.data} if data else values


async def chunked(
    batches: AsyncGenerator[Any, None],
    size: int,
    *,
    limit: int | None = None,
    total: int | None = None,
    lookahead: bool = True,
    values: list[Any] | None = None,
    due: Callable[[], bool] | None = None,
) -> AsyncGenerator[Chunk | Mark, None]:
    """The rows in chunks of `size`; the last one can be smaller, and so can one before a mark.

    With `limit`, a chunk also ends when its rows have about that many bytes, or fewer if the rows are wide.

    A mark of the source is passed on if `due()`, after a chunk with the rows before it.

    With `lookahead`, a full chunk is kept until the next row arrives, so that `last` is exact, at the cost of the
    memory of one chunk; without it `last` is false for every full chunk. A source without rows yields one empty
    chunk, so that the targets receive its columns. `values` are those of the source, if some are no mappings."""
    import pyarrow as pa

    start = 0  # the number of the first row of the next chunk

    def chunk(table: Any, *, last: bool) -> Chunk:
        nonlocal start
        end = start + table.num_rows
        own = None if values is None else values[start:end]
        start = end
        return Chunk(index, table, last=last, total=total, values=own)

    parts: list[Any] = []
    count = held = index = 0  # rows and bytes of the parts, and the number of the next chunk
    pending: Any = None  # a full chunk that may be the last
    schema: Any = None
    async with aclosing(batches):
        async for batch in batches:
            if isinstance(batch, Mark):
                if due is not None and due():
                    if count:
                        yield chunk(_table(parts), last=False)
                        parts, count, held, index = [], 0, 0, index + 1
                    yield batch
                continue
            if schema is not None and not batch.schema.equals(schema, check_metadata=True):  # the source has evolved
                for table in [*([pending] if pending is not None else ()), *([_table(parts)] if parts else ())]:
                    yield chunk(table, last=False)
                    index += 1
                pending, parts, count, held, schema = None, [], 0, 0, None
            schema = batch.schema if schema is None else schema
            most = _limit_of(batch, limit)
            while batch.num_rows:
                if pending is not None:
                    yield chunk(pending, last=False)
                    pending, index = None, index + 1
                taken = min(size - count, batch.num_rows)
                if most is not None:
                    taken = min(taken, _rows_within(batch, most - held))
                parts.append(batch.slice(0, taken))
                held += parts[-1].nbytes if most is not None else 0
                batch = batch.slice(taken)
                count += taken
                if count == size or (most is not None and held >= most):
                    full, parts, count, held = pa.Table.from_batches(parts), [], 0, 0
                    if lookahead:
                        pending = full
                    else:
                        yield chunk(full, last=False)
                        index += 1
                    del full
    if pending is not None:
        yield chunk(pending, last=True)
    elif parts or (index == 0 and schema is not None):
        yield chunk(pa.Table.from_batches(parts, schema=schema), last=True)


def _limit_of(batch: Any, limit: int | None) -> int | None:
    if limit is None:
        return None
    is_wide = batch.num_columns > WIDE or batch.nbytes > LONG * batch.num_rows
    return min(limit, WIDE_BYTES) if is_wide else limit


def _rows_within(batch: Any, room: int) -> int:
    """About how many of the rows have that many bytes; at least one."""
    rows: int = batch.num_rows
    size: int = batch.nbytes
    return max(1, -(-rows * room // max(size, 1)))


def _table(parts: list[Any]) -> Any:
    import pyarrow as pa

    return pa.Table.from_batches(parts)


class TemplateRenderer:
    """Evaluates deferred templates with the scopes of the task."""

    def __init__(self, call: ToolCall) -> None:
        self._scopes = call.scopes

    def render(self, value: Any, **names: Any) -> Any:
        """The value with its deferred templates evaluated."""
        if isinstance(value, DeferredTemplate):
            return compile_value(str(value)).evaluate(ChainMap(names, self._scopes), _NondeterminismSource())  # type: ignore[arg-type]
        if isinstance(value, Mapping):
            return {key: self.render(each, **names) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.render(each, **names) for each in value]
        return value


def reads_name(value: Any, name: str) -> bool:
    """Whether a deferred template reads a dotted name, a prefix of it, or a part of it."""
    if isinstance(value, DeferredTemplate):
        return any(
            (read + ".").startswith(name + ".") or (name + ".").startswith(read + ".")
            for read in compile_value(str(value)).names
        )
    if isinstance(value, Mapping):
        return any(reads_name(each, name) for each in value.values())
    return isinstance(value, list | tuple) and any(reads_name(each, name) for each in value)


class _NondeterminismSource:
    """Time and random values for templates of a chunk; a transfer is a side effect and is never replayed."""

    def now(self) -> str:
        return instant(time.time())

    def uuid(self) -> str:
        return str(uuid.uuid4())

    def random(self) -> float:
        return random.random()
