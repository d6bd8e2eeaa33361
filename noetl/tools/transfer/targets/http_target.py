"""Web hooks as targets."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from noetl.data import arrow_tables as tables
from noetl.tools.http import task as http_task
from noetl.tools.transfer.chunks import Chunk, reads
from noetl.tools.transfer.failures import HttpError
from noetl.tools.transfer.targets import Target
from noetl.tools.transfer.transfer_plan import is_late


class HttpTarget(Target):
    """A web hook: each chunk is sent as a JSON list of rows."""

    @property
    def goes_on(self) -> bool:
        """Chunks have nothing to do with each other."""
        return True

    async def write(self, table: Any, chunk: Chunk) -> None:
        """Send a chunk; an answer other than 2xx is a failure."""
        fields = dict(self.plan.fields)
        if is_late(fields):
            fields = self.templates.render(fields, chunk=chunk.names(data=reads(fields, "chunk.data")))
        has_body = any(fields.get(name) is not None for name in ("body", "json", "form", "data", "payload"))
        if not has_body:
            fields["json"] = chunk.rows if self.plan.mapping is None else tables.rows_of(table)
        await self._send(fields, chunk.index)

    async def take_own(self, data: Any) -> None:
        """Send what this web hook gets, as it is."""
        await self._send({**self.plan.fields, "body": data}, 0)
        self.chunks = 1

    async def _send(self, fields: dict[str, Any], index: int) -> None:
        fields.setdefault("method", "POST")
        # A chunk that is sent again, by the next attempt, is known to be the same.
        call = replace(self.call, part=f"-{index}")
        nulls = dict.fromkeys(("status", "headers", "url", "elapsed_ms", "request_id", "retry_after"))
        outcome = await http_task.perform(call, fields, nulls)
        if outcome.error is not None:
            raise HttpError(outcome.error)

    def explain(self, failure: Exception) -> Any:
        """What the server said."""
        return failure.info if isinstance(failure, HttpError) else None
