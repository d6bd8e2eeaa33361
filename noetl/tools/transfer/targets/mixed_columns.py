"""Columns in which texts stand beside other values: kept as JSON, and as plain text where a target has no JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from noetl.data.arrow_tables import plain_column, text_of


def is_mixed(field: Any) -> bool:
    """Whether texts stand beside other values in a column that is kept as JSON."""
    return b"noetl_mixed" in (field.metadata or {})


def in_words(table: Any, is_structured: Callable[[str], bool]) -> Any:
    """The table with mixed columns as plain text, for columns of a target that are not `structured` themselves."""
    import pyarrow as pa

    for number, field in enumerate(table.schema):
        if is_mixed(field) and not is_structured(field.name):
            words = [None if value is None else text_of(value) for value in plain_column(table.column(number), field)]
            table = table.set_column(number, pa.field(field.name, pa.string()), pa.array(words, pa.string()))
    return table
