"""Maps the columns of the source to columns of a target: renames, selection, constants, templates over `row`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from noetl.core.templates.deferred import DeferredTemplate, Rendered
from noetl.data import arrow_tables as tables
from noetl.errors import TemplateError
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.chunks import Chunk, TemplateRenderer, reads_name
from noetl.tools.transfer.quarantine.bad_rows import RowError
from noetl.tools.transfer.transfer_plan import is_deferred


class ColumnMapping:
    """Applies a target's `mapping` to chunks.

    `{column: name}` selects the source column of that name; a template that reads `row` or `chunk` is evaluated for
    each row; the value of another template, `{column: {value: ...}}` and a value that is not a string are constants."""

    def __init__(self, mapping: Mapping[str, Any] | None, templates: TemplateRenderer, label: str) -> None:
        self._mapping = mapping
        self._templates = templates
        self._label = label
        self._by_row = mapping is not None and is_deferred(mapping)
        self._schema: Any = None

    @property
    def renames(self) -> dict[str, str] | None:
        """Target column -> source column (None: all columns, not renamed); valid only if `is_simple`."""
        if self._mapping is None:
            return None
        return {name: str(source) for name, source in self._mapping.items()}

    @property
    def is_simple(self) -> bool:
        """Whether columns are only selected and renamed."""
        if self._mapping is None:
            return True
        return all(
            isinstance(source, str) and not isinstance(source, DeferredTemplate | Rendered)
            for source in self._mapping.values()
        )

    def apply(self, chunk: Chunk, failed: dict[int, str] | None = None) -> Any:
        """The chunk's table with the columns of the target; rows whose templates fail are added to `failed`."""
        import pyarrow as pa

        if self._mapping is None:
            return chunk.table
        computed = self._template_columns(chunk, failed) if self._by_row else None
        arrays, fields = [], []
        for name, source in self._mapping.items():
            if computed is not None and name in computed.schema.names:
                field, array = computed.schema.field(name), pa.chunked_array([computed.column(name)])
            else:
                field, array = self._column(name, source, chunk.table)
            fields.append(field)
            arrays.append(array)
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def _column(self, name: str, source: Any, table: Any) -> tuple[Any, Any]:
        """A column of the source under its new name, or a constant column."""
        if isinstance(source, str) and not isinstance(source, Rendered):
            if source not in table.schema.names:
                raise BadInput(
                    f"{self._label}: mapping.{name}: the source has no column {source!r}; columns: "
                    f"{', '.join(table.schema.names)}. For a constant use {{value: {source}}}"
                )
            return table.schema.field(source).with_name(name), table.column(source)
        field, array = _constant(source, table.num_rows)
        return field.with_name(name), array

    def _template_columns(self, chunk: Chunk, failed: dict[int, str] | None) -> Any:
        """The columns computed by templates, as a batch."""
        assert self._mapping is not None
        values = chunk.template_values(data=reads_name(self._mapping, "chunk.data"))
        deferred = {name: source for name, source in self._mapping.items() if is_deferred(source)}
        rows: list[dict[str, Any]] = []
        for number, row in enumerate(chunk.rows):
            try:
                render = self._templates.render
                rows.append({name: render(source, row=row, chunk=values) for name, source in deferred.items()})
            except TemplateError as failure:
                if failed is None:
                    raise
                failed[number] = failure.message
                rows.append({})
        schema = self._schema or tables.inferred_schema(rows, list(deferred))
        if len(rows) > len(failed or ()):
            self._schema = schema
        return conform_rows(rows, schema, self._label)


def conform_rows(rows: list[dict[str, Any]], schema: Any, label: str) -> Any:
    """Rows of plain data as a batch with the schema of earlier rows."""
    import pyarrow as pa

    try:
        return tables.batch_of_mappings(rows, schema, plain=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, UnicodeEncodeError):
        for field in schema:
            if wrong := dict(_misfits(rows, field, label)):
                raise RowError.of(wrong) from None
        raise


def _misfits(rows: list[dict[str, Any]], field: Any, label: str) -> Iterator[tuple[int, str]]:
    """The numbers of the rows whose value does not fit a column, with the reasons."""
    import pyarrow as pa

    for number, row in enumerate(rows):
        try:
            tables.batch_of_mappings([row], pa.schema([field]), plain=True)
        except UnicodeEncodeError:
            reason = f"has {_shown(ascii(row[field.name]))}, which is not valid Unicode (a lone surrogate)"
            yield number, f"{label}: the column {field.name!r} {reason}"
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError):
            reason = f"is {field.type} in the first rows, but a later row has {_shown(repr(row.get(field.name)))}"
            advice = f"declare its type with `types: {{{field.name}: ...}}` in the source"
            yield number, f"{label}: the column {field.name!r} {reason}; {advice}"


def _shown(text: str) -> str:
    """A value in a reason, which many rows may have; never cut, since a part of a secret would not be masked."""
    return text if len(text) <= 1_000 else f"a value of {len(text):,} characters"


def _is_value(source: Any) -> bool:
    return isinstance(source, Mapping) and set(source) == {"value"}


def _constant(source: Any, count: int) -> tuple[Any, Any]:
    import pyarrow as pa

    value = source["value"] if _is_value(source) else str(source) if isinstance(source, Rendered) else source
    schema = tables.inferred_schema([{"value": value}])
    single = tables.batch_of_mappings([{"value": value}], schema).column(0)
    return schema.field(0), pa.concat_arrays([single]).take(pa.array([0] * count, pa.int32()))
