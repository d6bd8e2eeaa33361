"""Results of DuckDB as Arrow, in which every value is exact: Arrow has no type for large integers, JSON or UUIDs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from noetl.data.sql import quote_column
from noetl.data.values import unique_names


def exact_parts(relation: Any, batch: int) -> tuple[Any, Iterator[Any]]:
    """The schema and the batches of a relation; the batches are computed on demand."""
    columns = list(relation.columns)
    kinds = [str(kind) for kind in relation.types]
    casts = [_cast(number, kind) for number, kind in enumerate(kinds, 1)]
    if any(casts):
        selected = [
            f"{cast or f'#{number}'} AS {quote_column(name)}"
            for number, (cast, name) in enumerate(zip(casts, unique_names(columns), strict=True), 1)
        ]
        relation = relation.project(", ".join(selected))
    reader = (getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader)(batch)
    schema = _with_meanings(reader.schema, kinds)
    return schema, (_as(part, schema) for part in reader)


# Types that Arrow does not have, or for which DuckDB's Arrow columns lose a part of the value.
_AS_TEXT = ("HUGEINT", "UHUGEINT", "BIGNUM", "TIME WITH TIME ZONE", "BIT")
_METADATA = {
    "JSON": {"noetl": "json"}, "UUID": {"noetl": "uuid"}, "UUID[]": {"postgres": "uuid[]"},
    "HUGEINT": {"noetl": "number"}, "UHUGEINT": {"noetl": "number"}, "BIGNUM": {"noetl": "number"},
    "TIME WITH TIME ZONE": {"postgres": "timetz"},
}  # fmt: skip
_NESTED_PART = re.compile(r"\b(?:U?HUGEINT|BIGNUM|TIME WITH TIME ZONE|BIT|JSON|UNION)\b")


def _cast(number: int, kind: str) -> str | None:
    """The expression that gives a column as text or JSON, if its Arrow form would lose something."""
    if kind in _AS_TEXT:
        return f"#{number}::VARCHAR"
    return f"to_json(#{number})" if _is_nested(kind) and _NESTED_PART.search(kind) else None


def _is_nested(kind: str) -> bool:
    return kind.endswith("]") or kind.startswith(("STRUCT", "MAP", "UNION"))


def csv_columns(relation: Any) -> str:
    """The columns of a relation as CSV has them: lists and objects as JSON, and texts beside other JSON as texts."""
    selected = []
    for number, (name, kind) in enumerate(zip(relation.columns, map(str, relation.types), strict=True), 1):
        value = f"to_json(#{number})" if _is_nested(kind) else f"#{number}"
        if kind == "JSON":
            value = f"CASE json_type(#{number}) WHEN 'VARCHAR' THEN #{number} ->> '$' ELSE #{number}::VARCHAR END"
        selected.append(f"{value} AS {quote_column(name)}")
    return ", ".join(selected)


def _with_meanings(schema: Any, kinds: list[str]) -> Any:
    """The schema with unique names, in which columns of JSON, UUIDs and large numbers are marked as such."""
    import pyarrow as pa

    fields = [
        field.with_name(name).with_metadata(
            {"noetl": "json"} if _cast(1, kind) and kind not in _AS_TEXT else _METADATA.get(kind, field.metadata)
        )
        for field, name, kind in zip(schema, unique_names(schema.names), kinds, strict=True)
    ]
    return pa.schema(fields)


def _as(part: Any, schema: Any) -> Any:
    import pyarrow as pa

    same = part.schema.equals(schema, check_metadata=True)
    return part if same else pa.RecordBatch.from_arrays(part.columns, schema=schema)
