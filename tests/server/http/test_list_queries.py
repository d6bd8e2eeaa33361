"""The number of queries of a list does not depend on the number of its rows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from noetl.server.http.app import Application
from noetl.server.process import Server
from noetl.settings import load
from noetl.storage.postgres.database import PostgresDatabase

pytestmark = pytest.mark.integration

MANY = 20
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: p{0}, path: many/p{0}}}
workflow:
  - step: start
    tool: {{kind: noop}}
"""
QUERIES: ContextVar[list[int] | None] = ContextVar("queries", default=None)
# Routes of all rows of their kind, and how many more queries a page makes at most, however many rows there are.
LISTS: dict[str, int] = {
    "/api/backfills": 0,
    "/api/catalog": 0,
    "/api/credentials": 0,
    "/api/deliveries": 0,
    "/api/executions": 0,
    "/api/executions/statistics": 20,  # causes of failures
    "/api/history": 30,  # 20 playbooks and 10 schedules of the home page
    "/api/history/load": 0,
    "/api/inbox": 0,
    "/api/limits": 0,
    "/api/lineage": 6,  # logs of 200 executions, 50 at once
    "/api/notifications": 0,
    "/api/operations": 0,
    "/api/schedules": 0,
    "/api/schedules/calendar": 0,
    "/api/schemas": 0,
    "/api/state": 0,
    "/api/tokens": 0,
    "/api/triggers": 0,
    "/api/webhooks": 0,
    "/api/workers": 0,
    "/metrics": 0,
}
# Routes whose answer has no rows of the store.
OTHERS = {"/api/history/playbook", "/api/session", "/api/tools", "/healthz", "/readyz", "/schema/playbook.json"}


class Client:
    """Sends requests to an application in this process."""

    def __init__(self, app: Application, token: str) -> None:
        self._app = app
        self._headers = [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer " + token.encode())]

    async def send(self, method: str, path: str, body: Any = None) -> None:
        """Send a request, which must succeed."""
        content = b"" if body is None else json.dumps(body).encode()
        kind = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        messages: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Any) -> None:
            messages.append(message)

        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
        headers = [*self._headers, *(kind if body is not None else ())]
        scope |= {"headers": headers, "client": ("127.0.0.1", 1), "scheme": "http", "http_version": "1.1"}
        await self._app(scope, receive, send)  # type: ignore[arg-type]
        assert messages[0]["status"] < 300, (method, path, messages)


@asynccontextmanager
async def served(home: Path, database: str) -> AsyncIterator[tuple[Application, Client]]:
    """A server in this process, and a client with the admin's token."""
    app = Server(load({"home": str(home), "store": database}).settings).app()
    assert isinstance(app, Application)
    async with app.router.lifespan_context(app):
        yield app, Client(app, (home / "admin.token").read_text().strip())


async def add_rows(client: Client, numbers: range) -> None:
    """One row of each kind for each number."""
    for n in numbers:
        path = f"many/p{n}"
        await client.send("POST", "/api/catalog/register", {"content": PLAYBOOK.format(n)})
        await client.send("POST", "/api/execute", {"path": path})
        await client.send("POST", "/api/schedules", {"path": path, "cron": "0 3 * * *", "name": f"s{n}"})
        await client.send("POST", f"/api/schedules/s{n}/run")
        await client.send("POST", "/api/webhooks", {"path": path, "name": f"w{n}"})
        await client.send("PUT", f"/api/triggers/execution/e{n}", {"path": path, "of": "other/*"})
        await client.send(
            "PUT", f"/api/notifications/r{n}", {"on": ["failed"], "to": {"kind": "http", "url": "http://127.0.0.1:9/"}}
        )
        await client.send("PUT", f"/api/limits/playbook/{path}", {"most": 3})
        await client.send("PUT", f"/api/limits/label/tenant=t{n}", {"weight": 2})
        await client.send("PUT", f"/api/schemas/s{n}", {"json_schema": {"type": "object"}})
        await client.send("PATCH", f"/api/state/{path}", {"values": {"cursor": n}})
        slots = {"from": "2024-01-01", "to": "2024-01-02", "every": "1d"}
        await client.send("POST", "/api/backfills", {"path": path, "name": f"b{n}", **slots})


async def counts(client: Client) -> dict[str, int]:
    """The queries of each list."""
    found = {}
    for path in LISTS:
        count = [0]
        token = QUERIES.set(count)
        await client.send("GET", path)
        QUERIES.reset(token)
        found[path] = count[0]
    return found


def test_every_list_makes_as_many_queries_for_many_rows(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = PostgresDatabase.acquire

    async def counted(self: PostgresDatabase) -> Any:
        count = QUERIES.get()
        if count is not None:
            count[0] += 1
        return await original(self)

    monkeypatch.setattr(PostgresDatabase, "acquire", counted)

    async def scenario() -> None:
        async with served(tmp_path, database) as (app, client):
            routes = {path for path, methods in app.openapi()["paths"].items() if "get" in methods}
            assert {each for each in routes if "{" not in each} == {*LISTS, *OTHERS}
            await add_rows(client, range(1))
            few = await counts(client)
            await add_rows(client, range(1, MANY))
            many = await counts(client)
            assert few["/api/triggers"] > 0
            grown = {path: (few[path], many[path]) for path in LISTS if many[path] > few[path] + LISTS[path]}
            assert not grown

    asyncio.run(scenario())
