"""Iceberg tables."""

from __future__ import annotations

import warnings
from functools import reduce
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, IsNull, Or
from pyiceberg.io.pyarrow import schema_to_pyarrow

from noetl.tool import ConnectorError
from noetl_lakehouse.spooled import SpooledTarget

KEY = "noetl.idempotency-key"
PART_BYTES = 32 << 20  # of rows that are written as one file for each partition


class IcebergTarget(SpooledTarget):
    """An Iceberg table."""

    stores_times = True

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
        columns = [self._table.schema().find_column_name(each.source_id) for each in self._table.spec().fields]
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
            for part in self._parts():
                transaction.append(part, snapshot_properties=key)

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

    def _parts(self) -> Any:
        batches: list[Any] = []
        for batch in self.batches():
            batches.append(batch)
            if sum(each.nbytes for each in batches) >= PART_BYTES:
                yield pa.Table.from_batches(batches)
                batches = []
        if batches:
            yield pa.Table.from_batches(batches)

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
    return value if isinstance(value, bool | int | float | str) else str(value)


def _narrow(type: Any) -> Any:
    """The type without 64-bit offsets, which the spooled rows do not have."""
    if pa.types.is_large_string(type):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(type) else type
