"""Where rows go: what every target does, and which kinds there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.model.tool import ToolCall
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.chunks import Chunk, Templates
from noetl.tools.transfer.mapping import Columns
from noetl.tools.transfer.sources.arrow_rows import Shaper
from noetl.tools.transfer.transfer_plan import DATABASES, TargetPlan, is_late


class Target:
    """One place that rows are moved to.

    `begin` comes with the first chunk, then `write` for every chunk, then `settle` and `commit` (or `abort`). A
    target that may fail without failing the transfer (`on_error: warn`) says whether it can go on after that."""

    def __init__(self, call: ToolCall, plan: TargetPlan, peers: dict[str, Any]) -> None:
        self.call = call
        self.plan = plan
        self.peers = peers  # what targets of one transfer that write into the same file share, by the file
        self.templates = Templates(call)
        self.columns = Columns(plan.mapping, self.templates, plan.label)
        self.rows = 0
        self.chunks = 0
        self._begun = False

    @property
    def goes_on(self) -> bool:
        """Whether more chunks can be written after one has failed."""
        return self._begun

    async def take(self, chunk: Chunk) -> None:
        """Write a chunk (none of whose rows are there when this fails)."""
        table = self.columns.of(chunk)
        if self.plan.mode == "upsert":
            self.plan.check_key(table.schema.names)
            if any(table.column(name).null_count for name in self.plan.key):
                raise self.plan.no_key()
        if not self._begun:
            await self.begin(table.schema)
            self._begun = True
        if chunk.size:
            await self.write(table, chunk)
            self.rows += chunk.size
            self.chunks += 1

    async def take_own(self, data: Any) -> None:
        """Write what this target gets instead of the source's rows."""
        import pyarrow as pa

        rows = [data] if isinstance(data, Mapping) else data
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            raise BadInput(f"{self.plan.label}: `data` is a row (a mapping) or a list of rows")
        if not rows:
            await self.nothing_came()
            return
        batch = Shaper(None, self.plan.label, sample=rows).batch(rows)
        await self.take(Chunk(0, pa.Table.from_batches([batch]), last=True, total=1))

    async def begin(self, schema: Any) -> None:
        """Make ready for rows of this schema."""

    async def write(self, table: Any, chunk: Chunk) -> None:
        """Write the rows of one chunk."""
        raise TypeError("a concrete target says how it writes")

    async def nothing_came(self) -> None:
        """The source had neither rows nor columns; what is to be replaced is emptied all the same."""

    async def settle(self) -> None:
        """All chunks have been written: find out whether they are accepted, while all can still be undone."""

    async def commit(self) -> None:
        """Make it last."""

    async def abort(self) -> None:
        """Undo what can be undone, and let go."""

    def explain(self, failure: Exception) -> Any:
        """An exception of `write` and its like as an error of the closed list; None if it is not one of theirs."""
        return None


def open_target(call: ToolCall, plan: TargetPlan, peers: dict[str, Any]) -> Target:
    """The target that a plan describes; nothing is connected yet."""
    if plan.kind in DATABASES and is_late(plan.fields):
        raise BadInput(f"{plan.label}: a table cannot depend on the chunk")
    if plan.kind == "postgres":
        from noetl.tools.transfer.targets.postgres_target import PostgresTarget

        return PostgresTarget(call, plan, peers)
    if plan.kind == "duckdb":
        from noetl.tools.transfer.targets.embedded_target import DuckdbTarget

        return DuckdbTarget(call, plan, peers)
    if plan.kind == "sqlite":
        from noetl.tools.transfer.targets.embedded_target import SqliteTarget

        return SqliteTarget(call, plan, peers)
    if plan.kind == "http":
        from noetl.tools.transfer.targets.http_target import HttpTarget

        return HttpTarget(call, plan, peers)
    from noetl.tools.transfer.targets.object_target import ObjectTarget

    return ObjectTarget(call, plan, peers)
