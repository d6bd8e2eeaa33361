"""Columns of a target from columns of the source: renamed, chosen, or made by a template over `row`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.drivers import tables
from noetl.drivers.moving.chunks import Chunk, Templates
from noetl.drivers.moving.plan import is_late
from noetl.drivers.sqltask import BadInput
from noetl.expr.late import Late


class Columns:
    """What a target's `mapping` makes of a chunk.

    `{column: name}` takes the source's column of that name; a template is evaluated for each row with
    `row` (and `chunk`); `{column: {value: ...}}` and whatever is not text is the same for all rows."""

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
        return all(isinstance(source, str) and not isinstance(source, Late) for source in self._mapping.values())

    def of(self, chunk: Chunk) -> Any:
        """The chunk's table as the target wants it."""
        if self._mapping is None:
            return chunk.table
        if self._by_row:
            return self._made_by_row(chunk)
        return self._chosen(chunk)

    def _chosen(self, chunk: Chunk) -> Any:
        import pyarrow as pa

        assert self._mapping is not None
        table = chunk.table
        arrays, fields = [], []
        for name, source in self._mapping.items():
            if isinstance(source, str):
                if source not in table.schema.names:
                    raise BadInput(
                        f"{self._label}: mapping.{name}: the source has no column {source!r}, it has "
                        f"{', '.join(table.schema.names)}; for a fixed value write {{value: {source}}}"
                    )
                fields.append(table.schema.field(source).with_name(name))
                arrays.append(table.column(source))
            else:
                column = _constant(source, table.num_rows)
                fields.append(column[0].with_name(name))
                arrays.append(column[1])
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def _made_by_row(self, chunk: Chunk) -> Any:
        import pyarrow as pa

        assert self._mapping is not None
        names = chunk.names(data=False)
        made: list[dict[str, Any]] = []
        for row in chunk.rows:
            values = {}
            for name, source in self._mapping.items():
                if isinstance(source, Late) or is_late(source):
                    values[name] = self._templates.render(source, row=row, chunk=names)
                elif isinstance(source, str):
                    if source not in row:
                        raise BadInput(f"{self._label}: mapping.{name}: the source has no column {source!r}")
                    values[name] = row[source]
                else:
                    values[name] = source["value"] if _is_value(source) else source
            made.append(values)
        if self._schema is None:
            self._schema = tables.inferred_schema(made, list(self._mapping))
        return pa.Table.from_batches([conforming(made, self._schema, self._label)])


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

    value = source["value"] if _is_value(source) else source
    schema = tables.inferred_schema([{"value": value}])
    one = tables.batch_of_mappings([{"value": value}], schema).column(0)
    return schema.field(0), pa.concat_arrays([one]).take(pa.array([0] * count, pa.int32()))
