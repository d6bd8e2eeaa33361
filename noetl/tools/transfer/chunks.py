"""Chunks: so many rows at a time, and what templates see of them."""

from __future__ import annotations

import random
import time
import uuid
from collections import ChainMap
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from noetl.core.model.events import instant
from noetl.core.model.tool import ToolCall
from noetl.core.templates.deferred import DeferredTemplate
from noetl.core.templates.template import compile_value
from noetl.data import arrow_tables as tables


class Chunk:
    """Some rows, as an Arrow table and (when somebody asks) as plain data."""

    def __init__(self, index: int, table: Any, *, last: bool, total: int | None = None) -> None:
        self.index = index
        self.table = table
        self.last = last
        self.total = total
        self._rows: list[dict[str, Any]] | None = None

    @property
    def size(self) -> int:
        """How many rows."""
        rows: int = self.table.num_rows
        return rows

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as plain data; made once for all targets."""
        if self._rows is None:
            self._rows = tables.rows_of(self.table)
        return self._rows

    def names(self, *, data: bool) -> dict[str, Any]:
        """`chunk` as templates see it; its `data` only if one of them reads it."""
        known = {
            "index": self.index,
            "size": self.size,
            "first": self.index == 0,
            "last": self.last,
            "total": self.total,
        }
        return {**known, "data": self.rows} if data else known


async def chunked(
    batches: AsyncGenerator[Any, None], size: int, *, total: int | None = None, looks_ahead: bool = True
) -> AsyncGenerator[Chunk, None]:
    """The rows in chunks of `size`; the last one is shorter.

    Whether a chunk is the last is known when there is another one, which costs the memory of a chunk: without
    `looks_ahead` no full chunk says that it is the last. A source without rows gives one empty chunk, so that
    its columns reach the targets."""
    import pyarrow as pa

    held: list[Any] = []
    count = index = 0
    waiting: Any = None  # a full chunk of which it is not known whether it is the last
    schema: Any = None
    async with aclosing(batches):
        async for batch in batches:
            schema = batch.schema if schema is None else schema
            while batch.num_rows:
                if waiting is not None:
                    yield Chunk(index, waiting, last=False, total=total)
                    waiting, index = None, index + 1
                cut = min(size - count, batch.num_rows)
                held.append(batch.slice(0, cut))
                batch = batch.slice(cut)
                count += cut
                if count == size:
                    full, held, count = pa.Table.from_batches(held), [], 0
                    if looks_ahead:
                        waiting = full
                    else:
                        yield Chunk(index, full, last=False, total=total)
                        index += 1
                    del full
    if waiting is not None:
        yield Chunk(index, waiting, last=True, total=total)
    elif held or (index == 0 and schema is not None):
        yield Chunk(index, pa.Table.from_batches(held, schema=schema), last=True, total=total)


class Templates:
    """Evaluates what was left for this tool, with the names the task's own templates saw."""

    def __init__(self, call: ToolCall) -> None:
        self._scopes = call.scopes

    def render(self, value: Any, **names: Any) -> Any:
        """The value with its left templates evaluated."""
        if isinstance(value, DeferredTemplate):
            return compile_value(str(value)).evaluate(ChainMap(names, self._scopes), _Draws())  # type: ignore[arg-type]
        if isinstance(value, Mapping):
            return {key: self.render(each, **names) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.render(each, **names) for each in value]
        return value


def reads(value: Any, name: str) -> bool:
    """Whether a left template reads a dotted name, or something of which it is a part."""
    if isinstance(value, DeferredTemplate):
        return any(
            (read + ".").startswith(name + ".") or (name + ".").startswith(read + ".")
            for read in compile_value(str(value)).names
        )
    if isinstance(value, Mapping):
        return any(reads(each, name) for each in value.values())
    return isinstance(value, list | tuple) and any(reads(each, name) for each in value)


class _Draws:
    """Time and chance for templates of a chunk; a transfer is an effect and is never replayed."""

    def now(self) -> str:
        return instant(time.time())

    def uuid(self) -> str:
        return str(uuid.uuid4())

    def random(self) -> float:
        return random.random()
