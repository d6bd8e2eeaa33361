"""Delta Lake tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from noetl.tool import ConnectorError
from noetl_lakehouse.spooled import SpooledTarget


class DeltaTarget(SpooledTarget):
    """A Delta Lake table."""

    def begin_table(self, schema: Any, storage: dict[str, str]) -> Any:
        """Open the table, if it exists."""
        uri = str(self.call.fields["uri"])
        self._uri = uri if "://" in uri else self.call.host.resolve_path(uri)
        self._options = {f"aws_{name}": value for name, value in storage.items()}
        if storage.get("endpoint", "").startswith("http://"):
            self._options["aws_allow_http"] = "true"
        if not DeltaTable.is_deltatable(self._uri, self._options):
            if not self.call.create:
                raise ConnectorError(f"{self.call.label}: the table does not exist, and `create` is false")
            return schema
        table = DeltaTable(self._uri, storage_options=self._options)
        self.done = table.transaction_version(self.call.idempotency_key) is not None
        columns = table.metadata().partition_columns
        if self.partition_by and self.partition_by != columns:
            raise ConnectorError(f"the table is partitioned by {columns or 'nothing'}, not by {self.partition_by}")
        if not self.partition_by and self.call.mode == "replace":
            return schema  # of a new table
        return pa.schema([pa.field(each.name, each.type) for each in pa.schema(table.schema().to_arrow())])

    def write_table(self) -> None:
        """Write one version."""
        reader = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        replaces = self.call.mode == "replace"
        if replaces and self.partition_by and not self.partitions:
            return
        exists = DeltaTable.is_deltatable(self._uri, self._options)
        transaction = Transaction(app_id=self.call.idempotency_key, version=1)
        partly = replaces and exists and bool(self.partition_by)
        write_deltalake(
            self._uri,
            reader,
            mode="overwrite" if replaces else "append",
            partition_by=self.partition_by or None,
            predicate=self._predicate() if partly else None,
            schema_mode="overwrite" if replaces and not partly else None,
            storage_options=self._options,
            commit_properties=CommitProperties(app_transactions=[transaction]),
        )

    def _predicate(self) -> str:
        """The partitions of the rows, as a condition."""
        parts = []
        for values in sorted(self.partitions, key=str):
            pairs = zip(self.partition_by, values, strict=True)
            parts.append(" AND ".join(f"{_quoted(name)} {_equals(value)}" for name, value in pairs))
        return " OR ".join(f"({part})" for part in parts)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _equals(value: Any) -> str:
    if value is None:
        return "IS NULL"
    if isinstance(value, bool):
        return f"= {str(value).lower()}"
    if isinstance(value, int | float):
        return f"= {value}"
    return "= '" + str(value).replace("'", "''") + "'"
