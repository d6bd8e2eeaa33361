"""Rows on disk until all of their columns and types are known, for a file whose columns may change, and the conversion
of rows to the columns of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from noetl.data.arrow_tables import meaning_of, plain_column, text_values
from noetl.data.types.column_types import WrongValue, declared_type
from noetl.data.types.type_lattice import kind_of_field, kind_of_stored, needed_type
from noetl.runtime.temporary_folders import TemporaryFolder


class RowSpool:
    """Tables with different schemas, kept in a temporary folder, read back with one.

    `schema` are the columns so far, which the rows get too. Those of a file that is replaced keep their types if these
    hold all values."""

    def __init__(self, schema: Any, *, replaces: bool) -> None:
        self._folder = TemporaryFolder("noetl-transfer-")
        self._paths: list[Path] = []
        self._writer: Any = None
        self._fields: dict[str, Any] = {}
        self._last: Any = None
        self._kept = {field.name: field for field in schema} if replaces else {}
        self.add(schema.empty_table())

    def add(self, table: Any) -> None:
        """Append rows."""
        import pyarrow as pa

        for field in table.schema:
            wanted = self._kept.get(field.name)
            if wanted is not None and _fitted(table.column(field.name), field, wanted)[1] is not wanted:
                del self._kept[field.name]
        if self._writer is None or not table.schema.equals(self._last, check_metadata=True):
            self._close_writer()
            self._paths.append(Path(self._folder.name, f"{len(self._paths)}.arrow"))
            self._writer = pa.ipc.new_stream(self._paths[-1], table.schema)
            self._last = table.schema
            for field in table.schema:
                known = self._fields.get(field.name)
                self._fields[field.name] = field if known is None else joined(known, field)
        self._writer.write_table(table)

    @property
    def schema(self) -> Any:
        """The columns of all rows."""
        import pyarrow as pa

        return pa.schema([self._kept.get(name, field) for name, field in self._fields.items()])

    def tables(self) -> Iterator[Any]:
        """All rows, with the same columns."""
        import pyarrow as pa

        self._close_writer()
        schema = self.schema
        for path in self._paths:
            # Not by its name: pages of a mapped file count as memory.
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
                for batch in reader:
                    yield _conformed(pa.Table.from_batches([batch]), schema)

    def close(self) -> None:
        """Remove the folder."""
        self._close_writer()
        self._folder.cleanup()

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def joined(old: Any, new: Any) -> Any:
    """A column that holds the values of both: the wider number, otherwise text."""
    import pyarrow as pa

    if old.equals(new, check_metadata=True) or pa.types.is_null(new.type):
        return old
    if pa.types.is_null(old.type):
        return new
    if meaning_of(old) == meaning_of(new) is None:
        try:
            (field,) = pa.unify_schemas([pa.schema([old]), pa.schema([new])], promote_options="permissive")
        except pa.ArrowTypeError:
            return pa.field(old.name, pa.string())
        is_lossy = pa.types.is_floating(field.type) and pa.int64() in (old.type, new.type)
        return pa.field(old.name, pa.string(), metadata={"noetl": "number"}) if is_lossy else field
    return pa.field(old.name, pa.string())


def _conformed(table: Any, schema: Any) -> Any:
    import pyarrow as pa

    columns = []
    for field in schema:
        if field.name not in table.schema.names:
            columns.append(pa.nulls(table.num_rows, field.type))
        else:
            columns.append(_converted(table.column(field.name), table.schema.field(field.name), field))
    return pa.Table.from_arrays(columns, schema=schema)


def in_file_columns(table: Any, file: Any) -> Any:
    """The rows with all columns of a file, in its order and types; a column whose values do not fit keeps its type."""
    import pyarrow as pa

    columns, fields = [], []
    for field in file:
        if field.name in table.schema.names:
            column, kind = _fitted(table.column(field.name), table.schema.field(field.name), field)
        else:
            column, kind = pa.nulls(table.num_rows, field.type), field
        columns.append(column)
        fields.append(kind)
    for number, field in enumerate(table.schema):
        if field.name not in file.names:
            columns.append(table.column(number))
            fields.append(field)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _fitted(column: Any, given: Any, wanted: Any) -> tuple[Any, Any]:
    """A column and its field: of the wanted type if that holds the values, otherwise as they are."""
    import pyarrow as pa

    is_nested = pa.types.is_nested(given.type) or pa.types.is_nested(wanted.type)
    if is_nested or needed_type(column, given, kind_of_stored(wanted)) is not None:
        return column, given
    try:
        return _converted(column, given, wanted), wanted
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, WrongValue):  # nanoseconds, for example
        return column, given


def _converted(column: Any, given: Any, wanted: Any) -> Any:
    """The values of a column in another type, which holds them."""
    import pyarrow as pa

    kind, meaning = wanted.type, meaning_of(wanted)
    if given.type == kind and meaning_of(given) == meaning:
        return column
    if meaning_of(given) == "json":
        column, given = pa.chunked_array([text_values(column, given)]), pa.field(given.name, pa.string())
    is_text = pa.types.is_string(given.type) and meaning_of(given) is None
    if pa.types.is_string(kind) and (meaning != "json" or is_text):  # a text is the text of JSON
        return column if is_text else text_values(column, given)
    declared = declared_type(str(kind_of_field(wanted)))
    exact = is_text or meaning == "json" or (pa.types.is_floating(given.type) and pa.types.is_decimal(kind))
    if declared is None or not exact:
        return column.cast(kind)
    return pa.chunked_array([declared.column(plain_column(column, given))]).cast(kind)
