"""Incremental sources: only rows from the stored cursor on, and the cursor that the next execution starts from.

The cursor of a transfer is the greatest value of one column in the rows that its targets have committed. It is
written to the state of the task together with its success, so it never exceeds what is in the targets. A row with the
same value may appear after the cursor was stored, so the next execution reads from this value on, *inclusive*. A
target with `mode: upsert` replaces the rows that it has already; for other targets the rows at the boundary are
recognized by their hashes, which are stored beside the cursor.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec

from noetl.core.model.tool import ToolCall
from noetl.core.templates.deferred import DeferredTemplate
from noetl.core.templates.template import compile_value
from noetl.data.arrow_tables import rows_of, text_of
from noetl.data.sql import quote_column, quote_name
from noetl.data.sql.sql_statements import split
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.chunks import Mark, TemplateRenderer, reads_name
from noetl.tools.transfer.progress.cursor_column import cursor_values, from_start, greatest_of, with_cursor
from noetl.tools.transfer.progress.cursor_start import NAME, NO_START, earlier, render_start, without_cursor
from noetl.tools.transfer.progress.load_progress import Progress, fingerprint
from noetl.tools.transfer.quarantine.bad_rows import SourceRows, without_positions
from noetl.tools.transfer.transfer_plan import DATABASES, Plan, SourcePlan

MAX_BOUNDARY = 20_000  # rows with the greatest value that are recognized by their hashes: 214 KB of the state
HASH_BYTES = 8
PARAMETER = "noetl_cursor"
_EXPRESSION = re.compile(r"'?\{\{(.*?)\}\}'?", re.DOTALL)
_encode = msgspec.json.Encoder(order="sorted", enc_hook=str).encode


class Incremental:
    """The cursor of one transfer: its start, and the greatest value of the rows that were read."""

    def __init__(self, call: ToolCall, plan: Plan, given: Mapping[str, Any], bad: SourceRows | None = None) -> None:
        self._bad = bad  # for rows without a cursor; None: they are an error
        self.column = str(given.get("cursor") or "")
        if not self.column:
            raise BadInput("`incremental` requires `cursor`, the column whose greatest value is remembered")
        self._name = None if given.get("name") is None else _key(str(given["name"]))
        merges = [target.mode == "upsert" for target in plan.targets]
        self._by_key = all(merges)
        for target in plan.targets:
            if target.mode == "replace" and target.kind != "object":
                raise BadInput(f"{target.label}: mode replace removes the rows of earlier loads; use upsert or append")
        self._place = " ".join((call.path, ".".join(filter(None, (call.step, call.task, self._name)))))
        state = call.state if self._name is None else call.state.get(self._name)
        self._given: dict[str, Any] = dict(state) if isinstance(state, Mapping) and "cursor" in state else {}
        self._initial, self._lag = given.get("initial"), given.get("lag")
        if self._lag is not None and not self._by_key:
            raise BadInput("`lag` reads rows again, which only targets with `mode: upsert` and `key` recognize")
        self.greatest: Any = None
        self._selected = False  # whether the database compares the cursor with the start
        self._is_bound = False  # whether a query has the start as a parameter
        self._hashes: Counter[str] = Counter()  # of the rows with the greatest value
        self._at_stored: Counter[str] = Counter()  # of the rows with the stored cursor
        self._read_since(self._given)

    def _check_column(self, entry: Mapping[str, Any]) -> None:
        """An error if the stored cursor is the value of another column: rows would be left out."""
        column = entry.get("column", self.column)
        if column != self.column:
            raise BadInput(
                f"the stored cursor {entry['cursor']!r} is of the column {column!r}, and `incremental.cursor` is now "
                f"{self.column!r}. If the column was renamed: `noetl state set {self._place}.column={self.column}`; to "
                f"load all rows again: `noetl state reset {self._place}`"
            )

    @property
    def must_exist(self) -> str:
        """Why the tables of this load must exist; empty if this is the first load."""
        if "column" not in self._given:  # none, or set by a user
            return ""
        return (
            f"rows up to the cursor {self._given['cursor']!r} were loaded before. To load them again: "
            f"`noetl state reset {self._place}`; to load only later rows, create the table"
        )

    def _read_since(self, entry: Mapping[str, Any]) -> None:
        """Start from an entry of the state."""
        self._check_column(entry)
        self._since = dict(entry)
        self._stored: Any = _value_of(entry)
        self._boundary = _boundary_of(entry)
        self.start: Any = self._initial if self._stored is None else self._stored
        if self._lag is not None and self._stored is not None:
            self.start = earlier(self.start, self._lag)

    # ── an earlier load that did not end ────────────────────────────────────────────────

    @property
    def name(self) -> str | None:
        """Of several cursors of one task."""
        return self._name

    @property
    def base(self) -> str:
        """A fingerprint of the stored cursor."""
        return fingerprint(self._given)

    @property
    def progress(self) -> dict[str, Any]:
        """Where this load has started, for a load that continues it."""
        return {"since": self._since, "start": {} if self.start is None else _entry(self.start)}

    def reached(self) -> dict[str, Any]:
        """The greatest cursor of the rows so far."""
        if self.greatest is None:
            return {}
        return self._entry(self._hashes)

    def _entry(self, boundary: Counter[str]) -> dict[str, Any]:
        entry = {**_entry(self.greatest), "column": self.column}
        return entry if self._by_key else {**entry, "boundary": _packed(boundary)}

    def follow(self, found: Progress) -> None:
        """Continue an earlier load, or start after one whose rows are in the target."""
        if found.done:
            self._read_since(found.reached or found.since)
            return
        self._read_since(found.since)
        self._check_column(found.reached)
        self.start = _value_of(found.start)
        self.greatest = _value_of(found.reached)
        self._hashes = _boundary_of(found.reached)
        if self._is_stored(self.greatest):
            self._at_stored = Counter(self._hashes)

    # ── the request ─────────────────────────────────────────────────────────────────────

    def source(self, call: ToolCall, source: SourcePlan) -> SourcePlan:
        """The source that reads only rows from the start on."""
        takes_query = source.plugin is not None and "query" in source.plugin.fields
        if source.kind in DATABASES or "query" in source.fields or takes_query:
            quote = '"' if source.plugin is None else source.plugin.quote
            return source._replace(fields=self._sql(call, source.fields, quote))
        return source._replace(fields=render_start(call, source.fields, _text(self.start)))

    def _sql(self, call: ToolCall, fields: dict[str, Any], quote: str) -> dict[str, Any]:
        self._is_bound = True
        query, params = fields.get("query"), fields.get("params") or {}
        if not isinstance(params, Mapping):
            raise BadInput("with `incremental`, `params` of the source must be a mapping")
        if self.start is None and without_cursor(params) != params:
            raise BadInput(f"`params` of the source read {{{{ cursor }}}}. {NO_START}")
        values = dict(render_start(call, params, _text(self.start)))
        rest = {name: each for name, each in fields.items() if name not in ("query", "table", "params")}
        if isinstance(query, DeferredTemplate):
            return {**rest, "query": self._bound(call, query, values), "params": values}
        if reads_name(params, NAME):
            return {**rest, "query": query, "params": values}
        table = quote_name(str(fields.get("table") or "")).replace('"', quote)
        text = f"SELECT * FROM {table}" if not query else _one_statement(str(query))
        if self.start is None:
            return {**rest, "query": text, "params": values}
        self._selected = True
        column = quote_column(self.column).replace('"', quote)
        inner = f"SELECT * FROM ({text}\n) AS noetl_rows WHERE {column} >= :{PARAMETER}"
        return {**rest, "query": inner, "params": {**values, PARAMETER: self.start}}

    def _bound(self, call: ToolCall, query: str, values: dict[str, Any]) -> str:
        """The query with every expression that reads `cursor` as a bind parameter, with or without quotes around it."""
        renderer = TemplateRenderer(call)

        def replace(found: re.Match[str]) -> str:
            expression = "{{" + found[1] + "}}"
            if NAME not in {name.partition(".")[0] for name in compile_value(expression).names}:
                return str(renderer.render(DeferredTemplate(found[0])))
            plain = found[1].strip() == NAME
            if plain and self.start is None:
                raise BadInput(f"the query reads {{{{ cursor }}}}. {NO_START}")
            name = PARAMETER if plain else f"{PARAMETER}_{len(values)}"
            values[name] = self.start if plain else render_start(call, DeferredTemplate(expression), _text(self.start))
            return f":{name}"

        return _EXPRESSION.sub(replace, query)

    # ── the rows ────────────────────────────────────────────────────────────────────────

    async def batches(self, source: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        """The batches without rows before the start and without those that an earlier load has written."""
        async with aclosing(source):
            async for batch in source:
                if not isinstance(batch, Mark):
                    yield self._new_rows(batch) if batch.num_rows else batch
                elif not self._too_many:
                    yield batch._replace(reached=self.reached())
        if self._remembered().total() > MAX_BOUNDARY:
            raise BadInput(
                f"more than {MAX_BOUNDARY:,} rows have {_text(self.greatest)!r}, the greatest value of the cursor "
                f"{self.column!r}; use a target with `mode: upsert` and `key`, or a finer cursor"
            )

    def _new_rows(self, batch: Any) -> Any:

        if self.column not in batch.schema.names:
            raise BadInput(
                f"the cursor {self.column!r} is not a column of the rows; columns: {', '.join(batch.schema.names)}"
            )
        if self._bad is not None:
            batch = with_cursor(batch, self.column, self._bad)
            if not batch.num_rows:
                return batch
        values = cursor_values(batch, self.column)
        self._check_type(values.type)
        if self.start is not None:
            start = _of_type(self.start, values.type, self.column)
            if self._is_bound:
                _check_offset(self.start, values.type, self.column)
            batch = batch.filter(from_start(values, start, self.column, selected=self._selected))
        if batch.num_rows:
            self._note(batch)
        return self._without_known(batch) if self._boundary and batch.num_rows else batch

    def _check_type(self, kind: Any) -> None:
        """An error if the values have become texts: they are ordered by their characters, and numbers are not."""
        import pyarrow as pa

        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if isinstance(self._stored, int | float | Decimal) and is_text:
            raise BadInput(
                f"the stored cursor {_text(self._stored)!r} is a number, and the column {self.column!r} has texts. "
                f"Declare its type in `types` of the source, or load all rows again: `noetl state reset {self._place}`"
            )

    def _without_known(self, batch: Any) -> Any:
        """Without rows that an earlier load has written; of equal rows, as many as it has written."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = cursor_values(batch, self.column)
        stored = _of_type(self._stored, values.type, self.column)
        at_boundary = pc.equal(values, stored)
        if not self._is_stored(stored.as_py()) or not pc.any(at_boundary).as_py():
            return batch
        new = []
        for each in row_hashes(batch.filter(at_boundary), self.column):
            self._at_stored[each] += 1
            new.append(self._at_stored[each] > self._boundary[each])
        found = iter(new)
        return batch.filter(pa.array([not each or next(found) for each in at_boundary.to_pylist()]))

    def _note(self, batch: Any) -> None:
        import pyarrow.compute as pc

        values = cursor_values(batch, self.column)
        value = greatest_of(values, self.column)
        before = None if self.greatest is None else _like(self.greatest, value)
        if before is not None and value < before:
            return
        if before is None or value > before:
            self.greatest, self._hashes = value, Counter()
        if not self._by_key and not self._too_many:
            self._hashes.update(row_hashes(batch.filter(pc.equal(values, pc.max(values))), self.column))

    @property
    def _too_many(self) -> bool:
        """Whether the rows with the greatest value so far cannot be remembered."""
        return self._hashes.total() > MAX_BOUNDARY

    # ── the result ──────────────────────────────────────────────────────────────────────

    def entry(self) -> dict[str, Any]:
        """The cursor after this load."""
        if self.greatest is None:
            return self._since
        if self._stored is not None and self.greatest < _like(self._stored, self.greatest):
            return self._since  # only rows that `lag` reads again
        return self._entry(self._remembered())

    def _remembered(self) -> Counter[str]:
        """The hashes of all rows with the greatest value that the targets have."""
        return self._hashes | self._boundary if self._is_stored(self.greatest) else self._hashes

    def _is_stored(self, value: Any) -> bool:
        return None not in (value, self._stored) and bool(value == _like(self._stored, value))

    def state(self) -> dict[str, Any]:
        """What the next execution starts from, for the state of the task; empty if it is unchanged."""
        entry = self.entry()
        if entry == self._given:
            return {}
        return entry if self._name is None else {self._name: entry}

    def summary(self) -> dict[str, Any]:
        """The cursor before and after, for `output.data`."""
        before = self._stored if self._stored is not None else self._initial
        after = self.entry().get("cursor", before)
        return {"column": self.column, "from": _text(before), "to": _text(after)}


def _key(name: str) -> str:
    """The key of a named cursor in the state: a dot would separate two keys."""
    if not name:
        raise BadInput("`incremental.name` is empty: the cursors of several loads would be one")
    return name.replace("%", "%25").replace(".", "%2E")


def row_hashes(batch: Any, cursor: str) -> list[str]:
    """A short hash of every row without its cursor, for rows that have the same one. It is the same if a later load
    has other types or columns without values."""
    import pyarrow as pa

    return [_row_hash(row, cursor) for row in rows_of(without_positions(pa.Table.from_batches([batch])))]


def _row_hash(row: Mapping[str, Any], cursor: str) -> str:
    values = {
        name: each if isinstance(each, list | dict) else _scalar_text(each)
        for name, each in row.items()
        if name != cursor
    }
    return hashlib.sha256(_encode(_without_types(values))).hexdigest()[: 2 * HASH_BYTES]


def _scalar_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return text_of(_without_types(value))


def _without_types(value: Any) -> Any:
    """Plain data in which 5.0 equals 5, and a missing field equals null."""
    if isinstance(value, Mapping):
        return {name: _without_types(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_types(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _one_statement(query: str) -> str:
    statements = split(query)
    if len(statements) != 1:
        raise BadInput("the source requires `query` with one statement, or `table`")
    return statements[0].rstrip().rstrip(";")


def _encoded(value: Any) -> tuple[Any, str | None]:
    if isinstance(value, datetime):
        return value.isoformat(), "timestamp"
    if isinstance(value, date):
        return value.isoformat(), "date"
    if isinstance(value, Decimal):
        return str(value), "decimal"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BadInput(f"a value of type {type(value).__name__} cannot be a cursor; use a number, a text or a time")
    return value, None


def _entry(value: Any) -> dict[str, Any]:
    """A cursor as plain data."""
    plain, kind = _encoded(value)
    return {"cursor": plain, **({"type": kind} if kind else {})}


def _value_of(entry: Mapping[str, Any]) -> Any:
    """The cursor of an entry; None if there is none."""
    if not entry:
        return None
    value, kind = entry["cursor"], entry.get("type")
    try:
        return _decoded(value, kind)
    except (TypeError, ValueError, ArithmeticError):
        raise BadInput(
            f"the stored cursor {value!r} is not a {kind}; change it or its `type` with `noetl state set`, or load "
            "everything again after `noetl state reset`"
        ) from None


def _boundary_of(entry: Mapping[str, Any]) -> Counter[str]:
    """The hashes of the rows with the value of the cursor."""
    found = entry.get("boundary") or ""
    try:
        packed = base64.b64decode(found, validate=True)
    except (TypeError, ValueError):
        raise BadInput(
            f"`boundary` beside the stored cursor must be the text of an earlier load, not {found!r}"
        ) from None
    return Counter(packed[at : at + HASH_BYTES].hex() for at in range(0, len(packed), HASH_BYTES))


def _packed(hashes: Counter[str]) -> str:
    """Hashes as a short text."""
    return base64.b64encode(bytes.fromhex("".join(sorted(hashes.elements())))).decode()


def _decoded(value: Any, kind: Any) -> Any:
    if kind == "timestamp":
        return datetime.fromisoformat(value)
    if kind == "date":
        return date.fromisoformat(value)
    return Decimal(value) if kind == "decimal" else value


def _text(value: Any) -> Any:
    """The cursor as templates read it: times as ISO 8601 text."""
    return value if value is None else _encoded(value)[0]


def _like(value: Any, other: Any) -> Any:
    """An earlier value of the cursor in the type of the values that were read."""
    try:
        if isinstance(other, datetime):
            return _time(value, aware=other.tzinfo is not None)
        if isinstance(other, date):
            return value.date() if isinstance(value, datetime) else date.fromisoformat(str(value)[:10])
        if isinstance(other, Decimal) or (isinstance(value, str) and not isinstance(other, str)):
            return Decimal(str(value))
    except (TypeError, ValueError, ArithmeticError):
        raise BadInput(
            f"the cursor has the value {_text(other)!r}, which cannot be compared with {_text(value)!r} of earlier "
            "rows; declare the type of the column in the source"
        ) from None
    return str(_text(value)) if isinstance(other, str) else value


def _of_type(value: Any, kind: Any, column: str) -> Any:
    """The value as an Arrow scalar of the cursor's type."""
    import pyarrow as pa

    try:
        if pa.types.is_timestamp(kind):
            value = _time(value, aware=kind.tz is not None)
        elif pa.types.is_date(kind):
            value = _like(value, date.min)
        elif pa.types.is_decimal(kind):
            value = Decimal(str(value))
        elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
            value = float(value) if pa.types.is_floating(kind) else _whole(value)
        else:
            value = str(_text(value))
        return pa.scalar(value, kind)
    except (TypeError, ValueError, ArithmeticError):
        raise BadInput(f"the cursor {column!r} is of type {kind}, and its start is {value!r}") from None


def _check_offset(value: Any, kind: Any, column: str) -> None:
    """An error for a time with an offset if the column has none: a database ignores it, and compares another time."""
    import pyarrow as pa

    is_naive = pa.types.is_timestamp(kind) and kind.tz is None
    if isinstance(value, str) and is_naive and datetime.fromisoformat(value).utcoffset():
        raise BadInput(f"the cursor {column!r} has no time zone, and its start {value!r} has one; write it in UTC")


def _whole(value: Any) -> int:
    """The first whole number that is not before a start."""
    return math.ceil(value) if isinstance(value, float | Decimal) else int(value)


def _time(value: Any, *, aware: bool) -> datetime:
    if isinstance(value, date) and not isinstance(value, datetime):
        value = value.isoformat()
    found: datetime = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    if aware:
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
