"""Runs the statement of kind `clickhouse`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from noetl.tool import Outcome, SqlResult, ToolCall, error, run_sql
from noetl_clickhouse.connection import Client, connected, explain
from noetl_clickhouse.results import batches

ROWS = 10_000


async def run(call: ToolCall) -> Outcome:
    """Run the statement and return its result."""
    if not isinstance(call.input.get("params") or {}, dict):
        return error("schema", "params must be a mapping: values of {name:Type} in the statement")
    given = call.input

    @asynccontextmanager
    async def session(call: ToolCall) -> AsyncIterator[Session]:
        async with connected(given["auth"], call.host, call.timeout) as client:
            yield Session(client, given)

    # Parameters are ClickHouse's own: {name:Type}.
    bare = {name: value for name, value in given.items() if name not in ("params", "parameters")}
    return await run_sql(replace(call, input=bare), session, explain)


class Session:
    """One client; ClickHouse has no transactions over HTTP."""

    def __init__(self, client: Client, given: dict[str, Any]) -> None:
        self._client, self._given = client, given

    async def execute(self, statement: str, values: list[Any]) -> SqlResult:
        """Execute a statement."""
        context = self._client.request(
            statement, params=self._given.get("params"), settings=self._given.get("settings")
        )
        response = await context.__aenter__()

        async def found() -> Any:
            try:
                async for batch in batches(response, ROWS):
                    yield batch
            finally:
                await context.__aexit__(None, None, None)

        return SqlResult(batches=found())

    async def begin(self) -> None:
        """Statements are not joined."""
        await asyncio.sleep(0)

    async def commit(self) -> None:
        """Statements are not joined."""
        await asyncio.sleep(0)

    async def rollback(self) -> None:
        """Statements are not joined."""
        await asyncio.sleep(0)
