"""A source that a plug-in adds: its batches as Arrow batches with one schema."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

from noetl.core.model.connector import ConnectorError, SourceCall, SourceSpec
from noetl.core.model.outcome import ErrorInfo
from noetl.core.model.tool import ToolCall
from noetl.tools._common.plugin_addresses import check_addresses
from noetl.tools._common.plugin_fields import field_problem
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.failures import ExplainedError
from noetl.tools.transfer.quarantine.bad_rows import NumberedRows, SourceRows
from noetl.tools.transfer.sources.arrow_rows import BATCH_ROWS, BatchBuilder
from noetl.tools.transfer.sources.file_source import normalize_batch
from noetl.tools.transfer.transfer_plan import Plan


class PluginSource:
    """The rows of a source of a plug-in."""

    def __init__(
        self, call: ToolCall, spec: SourceSpec, fields: dict[str, Any], plan: Plan, rows: SourceRows | None = None
    ) -> None:
        self._spec = spec
        self._builder = BatchBuilder(fields.get("types"), "the source", evolves=plan.evolves)
        place = next((str(fields[name]) for name in ("table", "topic", "path", "name") if fields.get(name)), "")
        self._rows = NumberedRows(rows, f"{spec.kind} {place}".strip())
        self._call = SourceCall(spec.kind, fields, call.host, call.timeout, min(plan.size, BATCH_ROWS))

    async def batches(self) -> AsyncGenerator[Any, None]:
        """The rows."""
        import pyarrow as pa

        await self._check()
        stream = cast(AsyncGenerator[Any, None], self._spec.read(self._call))
        async with aclosing(stream):
            while True:
                try:
                    batch = await anext(stream, None)
                except Exception as failure:
                    raise self._explained(failure) from failure
                if batch is None:
                    return
                if isinstance(batch, pa.Table):
                    for part in batch.to_batches() or [pa.RecordBatch.from_pylist([], batch.schema)]:
                        for each in self._rows.converted(_checked, part):
                            yield each
                elif isinstance(batch, pa.RecordBatch):
                    for each in self._rows.converted(_checked, batch):
                        yield each
                elif isinstance(batch, list):
                    for each in self._rows.built(self._builder.batch, batch) if batch else ():
                        yield each
                else:
                    raise TypeError(
                        f"source {self._spec.kind}: a batch is a list of rows, a pyarrow.RecordBatch or a "
                        f"pyarrow.Table, not {type(batch).__name__}"
                    )

    async def count(self) -> int | None:
        """The number of rows, if the source knows it."""
        if self._spec.count is None:
            return None
        await self._check()
        try:
            return await self._spec.count(self._call)
        except Exception as failure:
            raise self._explained(failure) from failure

    async def finish(self) -> None:
        """Acknowledge the rows, which all targets have committed."""
        if self._spec.finish is None:
            return
        try:
            await self._spec.finish(self._call)
        except Exception as failure:
            raise self._explained(failure) from failure

    async def close(self) -> None:
        """No resources to release: the generator has released its own."""

    async def _check(self) -> None:
        problem = field_problem(self._spec.fields, self._call.fields, self._spec.requires)
        if problem is not None:
            raise ConnectorError(f"the source: {problem}")
        await check_addresses(self._call.fields, self._call.host)

    def _explained(self, failure: Exception) -> Exception:
        info: ErrorInfo | None = None if self._spec.explain is None else self._spec.explain(failure)
        return failure if info is None else ExplainedError(info)


def _checked(batch: Any) -> Any:
    """The batch in types that every target supports; texts of a plug-in may have any bytes, and must be UTF-8."""
    import pyarrow as pa

    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
            try:
                array.validate(full=True)
            except pa.ArrowInvalid:
                raise BadInput(
                    f"the column {name!r} has bytes that are no UTF-8 text: select it as hexadecimal or base64 text"
                ) from None
    return normalize_batch(batch)
