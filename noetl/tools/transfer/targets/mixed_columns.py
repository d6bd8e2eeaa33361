"""Columns with values of several types: stored as JSON, and as text if the target column is not JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from noetl.data.arrow_tables import is_mixed, text_values


def mixed_as_text(table: Any, is_structured: Callable[[str], bool]) -> Any:
    """The table with mixed columns as text, except those whose target column is structured."""
    import pyarrow as pa

    for number, field in enumerate(table.schema):
        if is_mixed(field) and not is_structured(field.name):
            texts = text_values(table.column(number), field)
            table = table.set_column(number, pa.field(field.name, pa.string()), texts)
    return table
