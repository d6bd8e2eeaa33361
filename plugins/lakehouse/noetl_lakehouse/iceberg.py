"""Iceberg tables."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterator
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, IsNull, Or
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.schema import sanitize_column_names
from pyiceberg.table.locations import load_location_provider
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from noetl.tool import ConnectorError
from noetl_lakehouse.spooled import SpooledTarget

KEY = "noetl.idempotency-key"


class IcebergTarget(SpooledTarget):
    """An Iceberg table."""

    stores_times = True
    case_matters = True

    def begin_table(self, schema: Any, storage: dict[str, str]) -> Any:
        """Open the table; a new one is created by the commit."""
        name = str(self.call.fields["table"])
        if "." not in name:
            raise ConnectorError(f"the name of an Iceberg table is `namespace.table`, not {name!r}")
        properties = self._properties()
        self._catalog = load_catalog(properties.pop("name", "default"), **{**properties, **_s3(storage)})
        self._table: Any = None
        try:
            self._table = self._catalog.load_table(name)
        except NoSuchTableError:
            if not self.call.create:
                raise ConnectorError(f"{self.call.label}: the table does not exist, and `create` is false") from None
            return schema
        snapshots = self._table.metadata.snapshots
        self.done = any(
            each.summary and each.summary.additional_properties.get(KEY) == self.call.idempotency_key
            for each in snapshots
        )
        fields = self._table.spec().fields
        columns = [self._table.schema().find_column_name(each.source_id) for each in fields]
        if all(isinstance(each.transform, IdentityTransform) for each in fields):
            self.divided_by = columns
        if self.partition_by and self.partition_by != columns:
            raise ConnectorError(f"the table is partitioned by {columns or 'nothing'}, not by {self.partition_by}")
        found = schema_to_pyarrow(self._table.schema(), include_field_ids=False)
        return pa.schema([pa.field(each.name, _narrow(each.type)) for each in found])

    def _properties(self) -> dict[str, str]:
        given = {str(key): str(value) for key, value in dict(self.call.fields["catalog"]).items()}
        warehouse = given.get("warehouse")
        if given.get("type") == "sql" and warehouse and "://" not in warehouse:
            given["warehouse"] = "file://" + self.call.host.resolve_path(warehouse)
        if given.get("uri", "").startswith("sqlite:///"):
            given["uri"] = "sqlite:///" + self.call.host.resolve_path(given["uri"].removeprefix("sqlite:///"))
        return given

    def write_table(self) -> None:
        """Write one commit."""
        replaces = self.call.mode == "replace"
        if replaces and self.partition_by and not self.partitions and self._table is not None:
            return
        key = {KEY: self.call.idempotency_key}
        with self._transaction() as transaction, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a replaced partition that has no rows yet
            if replaces and self._table is not None:
                transaction.delete(self._filter() if self.partition_by else AlwaysTrue(), snapshot_properties=key)
            if self.partitions:
                with transaction.update_snapshot(snapshot_properties=key).fast_append() as snapshot:
                    for file in self._write_files(transaction):
                        snapshot.append_data_file(file)

    def _write_files(self, transaction: Any) -> Iterator[DataFile]:
        """Write the rows as data files, which are not part of the table yet."""
        metadata, io = transaction.table_metadata, transaction._table.io
        is_divided = len(metadata.spec().fields) == len(self.divided_by)
        for values, parts in self.data_files():
            if is_divided:
                yield self._write_file(metadata, io, values, parts)
                continue
            for part in parts:  # the values of a partition are computed from those of the rows
                yield from _dataframe_to_data_files(metadata, part, io)

    def _write_file(self, metadata: Any, io: Any, values: tuple[Any, ...], parts: Iterator[Any]) -> DataFile:
        """Write the rows of one partition part by part; pyiceberg itself would need all of them in memory."""
        schema, spec = metadata.schema(), metadata.spec()
        fields = [PartitionFieldValue(field, value) for field, value in zip(spec.fields, values, strict=True)]
        key = PartitionKey(fields, spec, schema) if fields else None
        locations = load_location_provider(metadata.location, metadata.properties)
        path = locations.new_data_location(f"{uuid.uuid4()}.parquet", key)
        stored = sanitize_column_names(schema)
        arrow = schema_to_pyarrow(stored, include_field_ids=True)
        output = io.new_output(path)
        with FileFormatFactory.get(FileFormat.PARQUET).create_writer(output, stored, metadata.properties) as writer:
            for part in parts:
                columns = [part.column(number).cast(field.type) for number, field in enumerate(arrow)]
                writer.write(pa.Table.from_arrays(columns, schema=arrow))
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record() if key is None else key.partition,
            file_size_in_bytes=len(output),
            spec_id=spec.spec_id,
            **writer.result().to_serialized_dict(),
        )

    def _transaction(self) -> Any:
        if self._table is not None:
            return self._table.transaction()
        name = str(self.call.fields["table"])
        try:
            self._catalog.create_namespace(name.rpartition(".")[0])
        except NamespaceAlreadyExistsError:
            pass
        transaction = self._catalog.create_table_transaction(name, self.schema)
        if self.partition_by:
            with transaction.update_spec() as spec:
                for column in self.partition_by:
                    spec.add_identity(column)
        return transaction

    def _filter(self) -> BooleanExpression:
        """The partitions of the rows, as a condition."""
        parts = []
        for values in sorted(self.partitions, key=str):
            pairs = zip(self.partition_by, values, strict=True)
            parts.append(
                reduce(
                    And, [IsNull(name) if value is None else EqualTo(name, _literal(value)) for name, value in pairs]
                )
            )
        return reduce(Or, parts)


def _s3(storage: dict[str, str]) -> dict[str, str]:
    names = {
        "access_key_id": "access-key-id",
        "secret_access_key": "secret-access-key",
        "session_token": "session-token",
    }
    return {f"s3.{names.get(name, name)}": value for name, value in storage.items()}


def _literal(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, bool | int | float | str) else str(value)


def _narrow(type: Any) -> Any:
    """The type without 64-bit offsets, which the spooled rows do not have."""
    if pa.types.is_large_string(type):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(type) else type
