"""Tables: Arrow batches and the rows of plain data that playbooks read.

A row is a mapping of plain JSON data. Where Arrow has no type for a value, the column is text and
its field's metadata says what the text means: `noetl: json` for structures, `noetl: number` for
decimals of any size, `noetl: uuid`. So a table gives the same rows whether it went through a file or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from noetl.data.types import extended_dates as far_dates
from noetl.data.types.intervals import interval_text
from noetl.data.values import jsonable

_encode = msgspec.json.Encoder().encode
_TEXTS = {str, type(None)}


class ColumnType(NamedTuple):
    """An Arrow type, and what its text means when it stands for something else (`json`, `number`).

    A `mixed` column is one of plain data in which texts stand beside other values; it is no column of documents, so
    where it is not kept as JSON its texts are just texts."""

    type: Any
    meaning: str | None = None
    mixed: bool = False


def schema_of(names: Sequence[str], types: Sequence[ColumnType]) -> Any:
    """An Arrow schema whose fields remember what their text means."""
    import pyarrow as pa

    fields = []
    for name, column in zip(names, types, strict=True):
        metadata = {"noetl": column.meaning} if column.meaning else {}
        if column.mixed:
            metadata["noetl_mixed"] = "true"
        fields.append(pa.field(name, column.type, metadata=metadata or None))
    return pa.schema(fields)


def batch_of_columns(columns: Sequence[Sequence[Any]], schema: Any, *, plain: bool = False) -> Any:
    """A batch of a driver's values, column by column; `plain` if they are JSON data already."""
    import pyarrow as pa

    arrays = []
    for values, field in zip(columns, schema, strict=True):
        meaning = meaning_of(field)
        if meaning == "json":
            said = values if plain else [jsonable(value) for value in values]
            values = [None if value is None else _encode(value).decode() for value in said]
        elif (meaning == "number" or pa.types.is_string(field.type)) and not set(map(type, values)) <= _TEXTS:
            values = [value if value is None or isinstance(value, str) else text_of(value) for value in values]
        elif far_dates.is_calendar(field.type):
            values = far_dates.numbered(values, field.type)
        try:
            arrays.append(pa.array(values, type=field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as wrong:
            raise pa.ArrowInvalid(f"the column {field.name!r} is {field.type}: {wrong}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def batch_of_rows(rows: Sequence[Sequence[Any]], schema: Any) -> Any:
    """A batch of a driver's rows."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return batch_of_columns(columns, schema)


def inferred_schema(rows: Sequence[Mapping[str, Any]], known: Sequence[str] = ()) -> Any:
    """The schema of rows of plain JSON data: all their keys, each with the widest type it needs."""
    seen = SeenColumns()
    seen.add(rows)
    return seen.schema(known)


class SeenColumns:
    """The columns of rows that are read in pieces: what their types depend on."""

    def __init__(self) -> None:
        self._columns: dict[str, _SeenValues] = {}

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Look at some rows."""
        for name in dict.fromkeys(key for row in rows for key in row):
            column = self._columns.setdefault(name, _SeenValues())
            column.add([row.get(name) for row in rows])

    def schema(self, first: Sequence[str] = (), last: Sequence[str] = (), *, untyped: bool = False) -> Any:
        """The schema of all rows, with some columns before the others, and some after them.

        A column without a value is text, or has no type if `untyped`."""
        import pyarrow as pa

        names = list(dict.fromkeys([*first, *self._columns, *last]))
        empty = ColumnType(pa.null() if untyped else pa.string())
        seen = [self._columns.get(name) for name in names]
        return schema_of(names, [empty if each is None else each.type() or empty for each in seen])


class _SeenValues:
    """The values of a column: their Python types, and the smallest and greatest integer."""

    def __init__(self) -> None:
        self._kinds: set[type] = set()
        self._least = self._greatest = 0
        self._others: list[Any] = []  # values of types that JSON does not have

    def add(self, values: Sequence[Any]) -> None:
        kinds = set(map(type, values)) - {type(None)}
        self._kinds |= kinds
        if int in kinds:
            numbers = [value for value in values if type(value) is int]
            self._least, self._greatest = min(self._least, *numbers), max(self._greatest, *numbers)
        if not kinds <= _JSON_TYPES:
            self._others += values

    def type(self) -> ColumnType | None:
        """The type that holds the values; None if there is none."""
        import pyarrow as pa

        kinds = self._kinds
        if not kinds:
            return None
        if kinds == {str}:
            return ColumnType(pa.string())
        if kinds == {bool}:
            return ColumnType(pa.bool_())
        if kinds == {int}:
            fits = self._least >= -(2**63) and self._greatest < 2**63
            return ColumnType(pa.int64()) if fits else ColumnType(pa.string(), "number")
        if kinds <= {int, float}:
            exact = max(-self._least, self._greatest) <= 2**53
            return ColumnType(pa.float64()) if exact else ColumnType(pa.string(), "number")
        if kinds <= {bytes, bytearray, memoryview}:
            return ColumnType(pa.binary())
        if any(issubclass(kind, Mapping | list | tuple) for kind in kinds) or len(kinds) > 1:
            return ColumnType(pa.string(), "json", mixed=str in kinds)
        return ColumnType(pa.infer_type(self._others))


_JSON_TYPES = {bool, int, float, str, list, dict, tuple, bytes, bytearray, memoryview}


def joined_field(old: Any, new: Any) -> Any:
    """A column that holds the values of two inferred columns of plain data."""
    import pyarrow as pa

    if old.equals(new, check_metadata=True) or pa.types.is_null(new.type):
        return old
    if pa.types.is_null(old.type):
        return new
    if "json" in (meaning_of(old), meaning_of(new)):
        texts = any(is_mixed(each) or (pa.types.is_string(each.type) and not meaning_of(each)) for each in (old, new))
        return schema_of([old.name], [ColumnType(pa.string(), "json", mixed=texts)]).field(0)
    numbers = (pa.int64(), pa.float64())
    if old.type in numbers and new.type in numbers:
        return pa.field(old.name, pa.float64())
    if {meaning_of(old), meaning_of(new)} <= {"number", None} and (
        (meaning_of(old) and new.type in numbers) or (meaning_of(new) and old.type in numbers)
    ):
        return pa.field(old.name, pa.string(), metadata={"noetl": "number"})
    return pa.field(old.name, pa.string())


def batch_of_mappings(rows: Sequence[Mapping[str, Any]], schema: Any, *, plain: bool = False) -> Any:
    """A batch of mappings; what the schema does not have is left out, what a row does not have is null."""
    return batch_of_columns([[row.get(name) for row in rows] for name in schema.names], schema, plain=plain)


def rows_of(batch: Any) -> list[dict[str, Any]]:
    """The rows of a batch (or table) as plain JSON data."""
    names = batch.schema.names
    columns = [plain_column(batch.column(number), field) for number, field in enumerate(batch.schema)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


_EXTENSIONS = {"arrow.json": "json", "arrow.uuid": "uuid"}


def meaning_of(field: Any) -> str | None:
    """What the text of a column means."""
    metadata = field.metadata or {}
    meaning = metadata.get(b"noetl")
    return meaning.decode() if meaning else _EXTENSIONS.get(getattr(field.type, "extension_name", ""))


def record_columns(known: dict[str, str], schema: Any) -> None:
    """Add the columns of a schema to those that are known, with the names of their types."""
    for field in schema:
        if known.get(field.name, "null") == "null":
            meaning = meaning_of(field)
            known[field.name] = {"number": "numeric"}.get(meaning, meaning) if meaning else str(field.type)


def plain_column(column: Any, field: Any) -> list[Any]:
    """The values of a column as plain JSON data."""
    import pyarrow as pa

    kind = field.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [row for chunk in getattr(column, "chunks", [column]) for row in _plain_lists(chunk, kind.value_field)]
    if pa.types.is_struct(kind):
        return [row for chunk in getattr(column, "chunks", [column]) for row in _plain_objects(chunk, kind)]
    if pa.types.is_float32(kind):  # the shortest form: 0.1, not the digits of the nearest double
        return [None if value is None else jsonable(float(value)) for value in column.cast(pa.string()).to_pylist()]
    try:
        values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    except (OverflowError, ValueError):
        if not far_dates.is_calendar(kind):
            raise
        values = far_dates.spelled(column)
    meaning = meaning_of(field)
    if meaning == "json":
        return [None if value is None else msgspec.json.decode(value) for value in values]
    if meaning == "number":
        from decimal import Decimal

        return [None if value is None else jsonable(Decimal(value)) for value in values]
    if (
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    ):
        return values
    if pa.types.is_interval(kind):
        return [None if value is None else interval_text(*value) for value in values]
    if pa.types.is_time(kind):
        return _times(column, values)
    return [jsonable(value) for value in values]


def _plain_lists(chunk: Any, element: Any) -> list[Any]:
    """Lists whose items have the same form as values of a column."""
    import pyarrow.compute as pc

    items = iter(plain_column(chunk.flatten(), element))
    lengths = pc.if_else(chunk.is_null(), None, pc.list_value_length(chunk)).to_pylist()
    return [None if length is None else list(islice(items, length)) for length in lengths]


def _plain_objects(chunk: Any, kind: Any) -> list[Any]:
    names = [field.name for field in kind]
    members = [plain_column(values, field) for values, field in zip(chunk.flatten(), kind, strict=True)]
    rows = zip(*members, strict=True) if members else iter([()] * len(chunk))
    present = chunk.is_valid().to_pylist()
    return [
        dict(zip(names, row, strict=True)) if is_there else None for is_there, row in zip(present, rows, strict=True)
    ]


def _times(column: Any, values: list[Any]) -> list[Any]:
    """Times as text; the end of the day is 24:00:00, which Python does not have."""
    import pyarrow as pa

    numbers = column.cast(pa.int64() if pa.types.is_time64(column.type) else pa.int32()).to_pylist()
    end = far_dates.ticks_per_day(column.type.unit)
    return ["24:00:00" if number == end else jsonable(value) for value, number in zip(values, numbers, strict=True)]


def text_of(value: Any) -> str:
    """A value as text: texts unchanged, everything else as JSON."""
    plain = jsonable(value)
    return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()


def is_mixed(field: Any) -> bool:
    """Whether a JSON column contains strings as well as other values."""
    return b"noetl_mixed" in (field.metadata or {})


def text_values(column: Any, field: Any) -> Any:
    """A column as an Arrow array of texts: texts unchanged, everything else as JSON."""
    import pyarrow as pa

    return pa.array([None if value is None else text_of(value) for value in plain_column(column, field)], pa.string())


# ── decimals of any size ────────────────────────────────────────────────────────────────

MAX_DIGITS = 38
DEFAULT_SCALE = 9


class Digits(NamedTuple):
    """The largest number of digits before and after the point; not `finite` if a value is NaN or an infinity."""

    whole: int = 0
    scale: int = 0
    finite: bool = True

    def wider(self, other: Digits) -> Digits:
        """What holds the values of both."""
        return Digits(max(self.whole, other.whole), max(self.scale, other.scale), self.finite and other.finite)

    def decimal_type(self) -> Any:
        """The decimal type for these numbers; None if there is none.

        It has at least nine decimals if there is room, so that later values usually fit too."""
        import pyarrow as pa

        if not self.finite or self.whole + self.scale > MAX_DIGITS:
            return None
        return pa.decimal128(MAX_DIGITS, max(self.scale, min(DEFAULT_SCALE, MAX_DIGITS - self.whole)))


def digits_of(column: Any) -> Digits:
    """The digits of a column of numbers as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if len(column) == column.null_count:
        return Digits()
    if pc.any(pc.match_substring_regex(column, "[^0-9.-]")).as_py():  # NaN, an infinity, or an exponent
        return _digits_of_values(column.to_pylist())
    point, length = pc.find_substring(column, "."), pc.binary_length(column)
    has_point, one = pc.greater_equal(point, 0), pa.scalar(1, pa.int32())
    decimals = pc.if_else(has_point, pc.subtract(pc.subtract(length, point), one), pa.scalar(0, pa.int32()))
    whole = pc.subtract(pc.if_else(has_point, point, length), pc.starts_with(column, "-").cast(pa.int32()))
    return Digits(pc.max(whole).as_py(), pc.max(decimals).as_py())


def _digits_of_values(values: Sequence[str | None]) -> Digits:
    from decimal import Decimal

    found = Digits()
    for number in (Decimal(value) for value in values if value is not None):
        if not number.is_finite():
            return Digits(finite=False)
        found = found.wider(Digits(number.adjusted() + 1, max(0, -int(number.as_tuple().exponent))))
    return found
