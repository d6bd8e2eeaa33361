"""Object target with `partition_by`: a folder of partitions, each replaced or extended as a whole.

Mode `replace` replaces the partitions of which there are rows and leaves the others: running a day again gives the same
files. Until the transfer commits, the rows are in temporary files; then every partition is replaced with one atomic
operation. In an object store that is the upload of its one object.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import obstore

from noetl.connections import objects
from noetl.core.model.tool import ToolCall
from noetl.data.content import file_blocks, unfinished
from noetl.data.files import formats
from noetl.runtime.temporary_folders import TemporaryFolder
from noetl.runtime.threads import in_thread
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.chunks import Chunk
from noetl.tools.transfer.sources.file_source import resolve_address
from noetl.tools.transfer.targets.files.object_target import FileEncoder, ObjectTarget
from noetl.tools.transfer.targets.files.partitions import MAX_PARTITIONS, read_partitioning, replace_partition, split
from noetl.tools.transfer.transfer_plan import TargetPlan, is_deferred

MAX_WAITING = 32 << 20  # bytes of rows that wait to be divided into partitions
MAX_PENDING = 64 << 20  # bytes of rows in memory, over all encoders
MAX_ENCODERS = 32  # partitions that are encoded while rows arrive; the rows of others wait on disk
_SUFFIXES = {"gzip": ".gz", "zstd": ".zst", "bz2": ".bz2", "xz": ".xz"}


class _Partition:
    """The new file of one partition; with `spool` its rows are in that file until they are encoded all at once."""

    def __init__(self, temporary: Path, encoder: FileEncoder, schema: Any, spool: Path | None) -> None:
        self.temporary = temporary
        self._encoder = encoder
        self._schema = schema
        self._spool = spool
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(b"")

    def write(self, table: Any) -> None:
        """Append rows."""
        import pyarrow as pa

        if self._spool is None:
            self._append(self._encoder.write(table))
            return
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with self._spool.open("ab") as file, pa.ipc.new_stream(file, table.schema, options=options) as stream:
            stream.write_table(table)

    @property
    def pending(self) -> int:
        """Bytes of rows that are not in the file yet."""
        return self._encoder.pending

    def flush(self) -> None:
        """Write the rows that wait for more."""
        self._append(self._encoder.flush())

    def close(self) -> None:
        """Complete the file."""
        if self._spool is not None:
            for table in _spooled(self._spool):
                self._append(self._encoder.write(table))
            self._spool.unlink()
        self._append(self._encoder.close(self._schema))

    def _append(self, data: bytes) -> None:
        if data:
            with self.temporary.open("ab") as file:
                file.write(data)


def _spooled(path: Path) -> Iterator[Any]:
    """The tables of a file of several Arrow streams."""
    import pyarrow as pa

    with pa.OSFile(str(path)) as file:
        while file.tell() < file.size():
            for batch in pa.ipc.open_stream(file):
                yield pa.Table.from_batches([batch])


class PartitionedTarget(ObjectTarget):
    """A folder of partitions in an object store or the file system."""

    def __init__(self, call: ToolCall, plan: TargetPlan, peers: dict[str, Any]) -> None:
        super().__init__(call, plan, peers)
        self._parts = read_partitioning(plan.fields["partition_by"], f"target {plan.number}")
        if is_deferred(plan.fields):
            raise BadInput(f"{plan.label}: a path with `partition_by` cannot depend on `chunk`")
        self._partitions: dict[str, _Partition] = {}
        self._waiting: list[Any] = []
        self._folder: Any = None

    @property
    def can_continue(self) -> bool:
        """A chunk that failed may have been written in part."""
        return False

    async def write_empty(self) -> None:
        """Leave all partitions: those without rows are not replaced."""

    async def begin(self, schema: Any) -> None:
        """Determine the folder and the format."""
        fields = self.plan.fields
        address = str(fields["uri"]).rstrip("/")
        credential = await self._get_credential()
        self._base = resolve_address(self.call, fields, address + "/x", credential)
        self._format = self._row_format({**fields, "format": fields.get("format") or "parquet"}, address)
        codec = self._codec(fields, "", self._format)
        suffix = "" if self._format in ("parquet", "arrow") else _SUFFIXES.get(codec or "", "")
        stem = "part-0" if self.plan.mode == "replace" else f"part-{self.call.idempotency_key}"
        self._name = f"{stem}.{self._format}{suffix}"
        await self._fix_columns(schema)
        self._folder = TemporaryFolder("noetl-transfer-")

    async def write(self, table: Any, chunk: Chunk) -> None:
        """Append the rows of a chunk to the files of their partitions, or keep them until all columns are known."""
        await in_thread(partial(self._write if self._spool is None else self._spool.add, table))

    async def _existing_schema(self) -> Any:
        """The files of partitions may have different columns: those of the first rows count."""
        return None

    def _write(self, table: Any) -> None:
        if self._waiting and not table.schema.equals(self._waiting[0].schema, check_metadata=True):
            self._divide()
        self._waiting.append(table)
        if sum(each.nbytes for each in self._waiting) > MAX_WAITING:
            self._divide()

    def _divide(self) -> None:
        """Append the rows that wait to the files of their partitions."""
        import pyarrow as pa

        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting).combine_chunks()  # a `take` of several chunks would combine them again
        self._waiting.clear()
        for path, rows in split(table, self._parts, self.plan.label):
            partition = self._partitions.get(path) or self._new_partition(path, rows.schema)
            partition.write(rows)
        if sum(partition.pending for partition in self._partitions.values()) > MAX_PENDING:
            for partition in self._partitions.values():
                partition.flush()

    def _new_partition(self, path: str, schema: Any) -> _Partition:
        number = len(self._partitions)
        if number >= MAX_PARTITIONS:
            raise BadInput(f"{self.plan.label}: `partition_by` makes more than {MAX_PARTITIONS:,} partitions")
        encoder = self._new_encoder(self._format, "", self.plan.fields)
        spool = Path(self._folder.name, f"{number}.rows") if number >= MAX_ENCODERS else None
        self._partitions[path] = partition = _Partition(self._temporary(path), encoder, schema, spool)
        return partition

    def _temporary(self, path: str) -> Path:
        if self._uploads:
            return Path(self._folder.name, path, self._name)
        return unfinished(Path(self._base.bucket, path, self._name))

    @property
    def _uploads(self) -> bool:
        return self._base.scheme != "file"

    async def prepare(self) -> None:
        """Complete the files; in an object store, check that replacing them is atomic."""
        if self._spool is not None:
            async for table in self._spooled(self._spool):
                await in_thread(partial(self._write, table))
        await in_thread(self._divide)
        for partition in self._partitions.values():
            await in_thread(partition.close)
        if self._uploads and self.plan.mode == "replace":
            store = await self._store(self._base)
            for path in self._partitions:
                await self._check_replaceable(store, self._key(path))

    async def _check_replaceable(self, store: Any, key: str) -> None:
        """BadInput if a partition has other objects: it could be replaced only in several steps."""
        folder = key.rpartition("/")[0]
        async for page in obstore.list(store, prefix=folder, chunk_size=1000):
            others = [entry["path"] for entry in page if entry["path"] != key]
            if others:
                raise BadInput(
                    f"{self.plan.label}: the partition {folder} has objects that mode replace did not write "
                    f"({others[0]}); delete them, as an object store cannot replace several objects at once"
                )

    def _key(self, path: str) -> str:
        return f"{self._base.key.removesuffix('x')}{path}/{self._name}"

    async def commit(self) -> None:
        """Replace each partition, or add its file."""
        for path, partition in self._partitions.items():
            if self._uploads:
                blocks = file_blocks(str(partition.temporary))
                content_type = formats.CONTENT_TYPES[self._format]
                await objects.upload(await self._store(self._base), self._key(path), blocks, content_type=content_type)
            elif self.plan.mode == "replace":
                folder = Path(self._base.bucket, path)
                await in_thread(
                    partial(replace_partition, Path(self._base.bucket), folder, partition.temporary, self._name)
                )
            else:
                await in_thread(partial(partition.temporary.replace, Path(self._base.bucket, path, self._name)))
        await self._clean_up()

    async def abort(self) -> None:
        """Delete the temporary files."""
        for partition in self._partitions.values():
            partition.temporary.unlink(missing_ok=True)
        await self._clean_up()

    async def _clean_up(self) -> None:
        await self._close_spool()
        folder, self._folder = self._folder, None
        if folder is not None:
            await in_thread(folder.cleanup)
