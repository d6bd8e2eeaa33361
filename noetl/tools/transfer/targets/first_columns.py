"""Later rows in the columns of a table or file that a transfer has created from its first rows.

Files that are read together may have other types and another order of columns. A value is converted only if nothing of
it is lost: a database would round 1.5 in a column of integers.
"""

from __future__ import annotations

from typing import Any

from noetl.data.arrow_tables import meaning_of
from noetl.tools.transfer.quarantine.bad_rows import RowError

EVOLVE = "set `schema: evolve` in the target"
EXTRA = "which the first rows do not have"


def as_first(table: Any, first: Any, label: str, *, complete: bool) -> Any:
    """The rows with the types and the order of the first ones; `complete`: missing columns are null."""
    import pyarrow as pa

    if table.schema.equals(first):
        return table
    names = table.schema.names
    if extra := [name for name in names if name not in first.names]:
        raise RowError(f"{label}: the rows have the column {', '.join(extra)}, {EXTRA}; {EVOLVE}")
    columns, fields = [], []
    for field in first:
        if field.name in names:
            column, kind = _converted(table.column(field.name), table.schema.field(field.name), field, label)
        elif complete:
            column, kind = pa.nulls(table.num_rows, field.type), field
        else:
            continue
        columns.append(column)
        fields.append(kind)
    return pa.table(columns, schema=pa.schema(fields))


def _converted(column: Any, given: Any, wanted: Any, label: str) -> tuple[Any, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if given.type == wanted.type or not (_is_plain(given) and _is_plain(wanted)):
        return column, given
    try:
        converted = column.cast(wanted.type)
        back = converted.cast(given.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        back = None
    if back is None or not pc.all(pc.fill_null(pc.equal(back, column), True)).as_py():
        raise RowError(
            f"{label}: the column {wanted.name!r} is {wanted.type} in the first rows, and {given.type} in later ones, "
            f"whose values do not fit; declare its type in the source (`types`), or {EVOLVE}"
        )
    return converted, wanted


def _is_plain(field: Any) -> bool:
    """Whether the type says what the values are; numbers of any size have their own rules."""
    import pyarrow as pa

    return meaning_of(field) is None and not pa.types.is_decimal(field.type) and not pa.types.is_nested(field.type)
