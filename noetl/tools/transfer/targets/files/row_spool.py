"""Rows on disk until all of their columns and types are known, for a file whose columns may change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from noetl.data.arrow_tables import meaning_of, plain_column, text_of
from noetl.runtime.temporary_folders import TemporaryFolder


class RowSpool:
    """Tables with different schemas, kept in a temporary folder, read back with one."""

    def __init__(self) -> None:
        self._folder = TemporaryFolder("noetl-transfer-")
        self._paths: list[Path] = []
        self._writer: Any = None
        self._fields: dict[str, Any] = {}
        self._last: Any = None

    def add(self, table: Any) -> None:
        """Append rows."""
        import pyarrow as pa

        if self._last is None or not table.schema.equals(self._last, check_metadata=True):
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

        return pa.schema(list(self._fields.values()))

    def tables(self) -> Iterator[Any]:
        """All rows, with the same columns."""
        import pyarrow as pa

        self._close_writer()
        schema = self.schema
        for path in self._paths:
            with pa.ipc.open_stream(path) as reader:
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
            continue
        column, given = table.column(field.name), table.schema.field(field.name)
        if given.type == field.type and meaning_of(given) == meaning_of(field):
            columns.append(column)
        elif pa.types.is_string(field.type):
            values = plain_column(column, given)
            columns.append(pa.array([None if value is None else text_of(value) for value in values], pa.string()))
        else:
            columns.append(column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)
