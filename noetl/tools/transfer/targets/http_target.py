"""HTTP target: sends each chunk to a web hook."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from noetl.data import arrow_tables as tables
from noetl.tools.http import task as http_task
from noetl.tools.transfer.chunks import Chunk, reads_name
from noetl.tools.transfer.failures import ResponseError
from noetl.tools.transfer.targets import Target
from noetl.tools.transfer.transfer_plan import is_deferred


class HttpTarget(Target):
    """A web hook: each chunk is sent as a JSON list of rows."""

    @property
    def can_continue(self) -> bool:
        """Chunks are independent of each other."""
        return True

    async def write(self, table: Any, chunk: Chunk) -> None:
        """Send a chunk; a status other than 2xx is a failure."""
        fields = dict(self.plan.fields)
        if is_deferred(fields):
            fields = self.templates.render(fields, chunk=chunk.template_values(data=reads_name(fields, "chunk.data")))
        has_body = any(fields.get(name) is not None for name in ("body", "json", "form", "data", "payload"))
        if not has_body:
            fields["json"] = chunk.data if self.plan.mapping is None else tables.rows_of(table)
        await self._send(fields, chunk.index)

    async def write_static(self, data: Any) -> None:
        """Send the static data as the body."""
        await self._send({**self.plan.fields, "body": data}, 0)
        self.chunks = 1

    async def _send(self, fields: dict[str, Any], index: int) -> None:
        fields.setdefault("method", "POST")
        # The idempotency key includes the index, so that a chunk has the same key in every attempt.
        call = replace(self.call, part=f"-{index}")
        outcome = await http_task.run(call, fields)
        if outcome.error is not None:
            raise ResponseError(outcome.error)

    def explain(self, failure: Exception) -> Any:
        """The error of the HTTP response."""
        return failure.info if isinstance(failure, ResponseError) else None
