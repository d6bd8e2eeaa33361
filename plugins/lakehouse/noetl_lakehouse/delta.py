"""Delta Lake tables.

Data files are written first, and one commit adds them to the table. deltalake can write rows too, but its memory grows
with them.
"""

from __future__ import annotations

import json
import time
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyarrow.fs import PyFileSystem

from noetl.tool import ConnectorError
from noetl_lakehouse.spooled import SpooledTarget

COMMITS = 10  # attempts to replace partitions while others write to the table


class DeltaTarget(SpooledTarget):
    """A Delta Lake table."""

    def begin_table(self, schema: Any, storage: dict[str, str]) -> Any:
        """Open the table, if it exists."""
        uri = str(self.call.fields["uri"])
        self._uri = uri if "://" in uri else self.call.host.resolve_path(uri)
        self._options = {f"aws_{name}": value for name, value in storage.items()}
        if storage.get("endpoint", "").startswith("http://"):
            self._options["aws_allow_http"] = "true"
        if not self._exists():
            if not self.call.create:
                raise ConnectorError(f"{self.call.label}: the table does not exist, and `create` is false")
            return schema
        table = self._table()
        self.done = table.transaction_version(self.call.idempotency_key) is not None
        columns = table.metadata().partition_columns
        if self.partition_by and self.partition_by != columns:
            raise ConnectorError(f"the table is partitioned by {columns or 'nothing'}, not by {self.partition_by}")
        self.divided_by = columns
        if not self.partition_by and self.call.mode == "replace":  # the columns are replaced too
            missing = [name for name in columns if name not in schema.names]
            if missing:
                raise ConnectorError(f"the table is partitioned by {missing[0]!r}, which the rows do not have")
            return schema
        return pa.schema([pa.field(each.name, each.type) for each in pa.schema(table.schema().to_arrow())])

    def _exists(self) -> bool:
        return bool(DeltaTable.is_deltatable(self._uri, self._options))

    def _table(self) -> DeltaTable:
        return DeltaTable(self._uri, storage_options=self._options)

    def write_table(self) -> None:
        """Write the data files, and one version that has them."""
        if self._replaces_partitions and not self.partitions:
            return
        if "://" not in self._uri:
            Path(self._uri).mkdir(parents=True, exist_ok=True)
        files = PyFileSystem(DeltaStorageHandler(self._uri, self._options))
        written: list[AddAction] = []
        try:
            self._write_files(files, written)
        except BaseException:
            for each in written:  # not after a commit was sent: it may have succeeded
                files.delete_file(each.path)
            raise
        self._commit(written)

    @property
    def _replaces_partitions(self) -> bool:
        return self.call.mode == "replace" and bool(self.partition_by)

    def _write_files(self, files: Any, written: list[AddAction]) -> None:
        schema = pa.schema([field for field in self.schema if field.name not in self.divided_by])
        partitions = {values: self._partition(values) for values in self.partitions}
        for values, parts in self.data_files():
            path = f"part-{uuid.uuid4()}.parquet"
            count = 0
            with files.open_output_stream(path) as out, pq.ParquetWriter(out, schema, compression="zstd") as writer:
                for part in parts:
                    writer.write_table(part.select(schema.names))
                    count += part.num_rows
            size = files.get_file_info(path).size
            now = int(time.time() * 1000)
            # No bounds of columns: a reader takes the missing bound of one column for null, and hides its rows.
            counted = json.dumps({"numRecords": count})
            written.append(AddAction(path, size, partitions[values], now, True, counted))

    def _partition(self, values: tuple[Any, ...]) -> dict[str, str | None]:
        if "" in values:
            name = self.divided_by[values.index("")]
            raise ConnectorError(f"the partition column {name!r} has an empty text, which Delta Lake reads as null")
        return dict(zip(self.divided_by, map(_partition_value, values), strict=True))

    # ── the commit ──────────────────────────────────────────────────────────────────────

    def _commit(self, written: list[AddAction]) -> None:
        key = [Transaction(app_id=self.call.idempotency_key, version=1)]
        if not self._exists():
            create_table_with_add_actions(
                self._uri,
                Schema.from_arrow(self.schema),
                written,
                partition_by=self.divided_by,
                storage_options=self._options,
                commit_properties=CommitProperties(app_transactions=key),
            )
        elif self._replaces_partitions:
            self._replace_partitions(written, CommitProperties(app_transactions=key, max_commit_retries=0))
        else:
            mode = "overwrite" if self.call.mode == "replace" else "append"
            once = CommitProperties(app_transactions=key)
            self._table().create_write_transaction(written, mode, self.schema, self.divided_by, commit_properties=once)

    def _replace_partitions(self, written: list[AddAction], once: CommitProperties) -> None:
        """Commit on the version whose files are removed; if another writer was faster, on the next one."""
        for remaining in reversed(range(COMMITS)):
            table = self._table()
            actions = [*written, *self._removed_files(table)]
            try:
                table.create_write_transaction(actions, "append", self.schema, self.divided_by, commit_properties=once)
                return
            except CommitFailedError:
                if not remaining:
                    raise

    def _removed_files(self, table: DeltaTable) -> list[RemoveAction]:
        """The files of the replaced partitions."""
        if "deletionVectors" in (table.protocol().writer_features or ()):
            raise ConnectorError("partitions of a table with deletion vectors cannot be replaced")
        now = int(time.time() * 1000)
        found = []
        for file in pa.table(table.get_add_actions()).select(["path", "size_bytes", "partition"]).to_pylist():
            values = tuple(file["partition"][name] for name in self.divided_by)
            if values in self.partitions:
                found.append(RemoveAction(file["path"], True, now, file["size_bytes"], self._partition(values)))
        return found


def _partition_value(value: Any) -> str | None:
    """A value as the log of the table has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds")
    return None if value is None else str(value)
