"""Columns of a target from columns of the source: renamed, chosen, or made by a template over `row`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.templates.deferred import DeferredTemplate, Rendered
from noetl.data import arrow_tables as tables
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.chunks import Chunk, Templates
from noetl.tools.transfer.transfer_plan import is_late


class Columns:
    """What a target's `mapping` makes of a chunk.

    `{column: name}` takes the source's column of that name; a template that reads `row` or `chunk` is evaluated
    for each row; what other templates made, `{column: {value: ...}}`, and whatever is not text is the same for all."""

    def __init__(self, mapping: Mapping[str, Any] | None, templates: Templates, label: str) -> None:
        self._mapping = mapping
        self._templates = templates
        self._label = label
        self._by_row = mapping is not None and is_late(mapping)
        self._schema: Any = None

    @property
    def renames_only(self) -> dict[str, str] | None:
        """Target column -> source column, if that is all there is to it (None: all columns as they are)."""
        if self._mapping is None:
            return None
        return {name: str(source) for name, source in self._mapping.items()}

    @property
    def is_simple(self) -> bool:
        """Whether columns are taken as they are, at most under another name."""
        if self._mapping is None:
            return True
        return all(
            isinstance(source, str) and not isinstance(source, DeferredTemplate | Rendered)
            for source in self._mapping.values()
        )

    def of(self, chunk: Chunk) -> Any:
        """The chunk's table as the target wants it."""
        import pyarrow as pa

        if self._mapping is None:
            return chunk.table
        made = self._made_by_row(chunk) if self._by_row else None
        arrays, fields = [], []
        for name, source in self._mapping.items():
            if made is not None and name in made.schema.names:
                field, array = made.schema.field(name), pa.chunked_array([made.column(name)])
            else:
                field, array = self._taken(name, source, chunk.table)
            fields.append(field)
            arrays.append(array)
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def _taken(self, name: str, source: Any, table: Any) -> tuple[Any, Any]:
        """A column of the source under its new name, or one that is the same for all rows."""
        if isinstance(source, str) and not isinstance(source, Rendered):
            if source not in table.schema.names:
                raise BadInput(
                    f"{self._label}: mapping.{name}: the source has no column {source!r}, it has "
                    f"{', '.join(table.schema.names)}; for a fixed value write {{value: {source}}}"
                )
            return table.schema.field(source).with_name(name), table.column(source)
        field, array = _constant(source, table.num_rows)
        return field.with_name(name), array

    def _made_by_row(self, chunk: Chunk) -> Any:
        """The columns that templates make, as a batch."""
        assert self._mapping is not None
        names = chunk.names(data=False)
        late = {name: source for name, source in self._mapping.items() if is_late(source)}
        made = [
            {name: self._templates.render(source, row=row, chunk=names) for name, source in late.items()}
            for row in chunk.rows
        ]
        if self._schema is None:
            self._schema = tables.inferred_schema(made, list(late))
        return conforming(made, self._schema, self._label)


def conforming(rows: list[dict[str, Any]], schema: Any, label: str) -> Any:
    """Rows of plain data as a batch of a schema that earlier rows have set."""
    import pyarrow as pa

    try:
        return tables.batch_of_mappings(rows, schema, plain=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError):
        for field in schema:
            for row in rows:
                try:
                    tables.batch_of_mappings([row], pa.schema([field]), plain=True)
                except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError):
                    raise BadInput(
                        f"{label}: the column {field.name!r} was {field.type} in the first rows, and now has "
                        f"{row.get(field.name)!r}; say its type with `types: {{{field.name}: ...}}` in the source"
                    ) from None
        raise


def _is_value(source: Any) -> bool:
    return isinstance(source, Mapping) and set(source) == {"value"}


def _constant(source: Any, count: int) -> tuple[Any, Any]:
    import pyarrow as pa

    value = source["value"] if _is_value(source) else str(source) if isinstance(source, Rendered) else source
    schema = tables.inferred_schema([{"value": value}])
    one = tables.batch_of_mappings([{"value": value}], schema).column(0)
    return schema.field(0), pa.concat_arrays([one]).take(pa.array([0] * count, pa.int32()))
