"""The event stream is served before the framework, with the same answers as its route."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chaos.access import create_test_app
from noetl.server.http.access import Tokens
from noetl.server.orchestrator.submissions import Submission

TEXT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: one, path: tests/one}
workflow:
  - {step: start, tool: {kind: noop}}
"""


class Server:
    """An application with one cancelled execution."""

    def __init__(self, folder: Path) -> None:
        self.app: Any = create_test_app(Tokens.prepare(folder), folder)
        self.token = (folder / "admin.token").read_text().strip()

    async def begin(self) -> str:
        orchestrator = self.app.state.app_state.orchestrator
        execution_id = await orchestrator.submit(Submission(text=TEXT))
        await orchestrator.cancel(execution_id)
        return str(execution_id)

    async def get(
        self, path: str, query: bytes = b"", headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> tuple[int, bytes]:
        """Status and body of a GET request; `scope` shows whether the framework has routed it."""
        forever = asyncio.get_running_loop().create_future()
        status, parts, first = 0, [], [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            return first.pop() if first else await forever

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            parts.append(message.get("body", b""))

        self.scope = {
            "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": path,
            "raw_path": path.encode(), "query_string": query, "root_path": "", "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 1), "headers": [(b"host", b"127.0.0.1"), *headers],
        }  # fmt: skip
        await self.app(self.scope, receive, send)
        return status, b"".join(parts)

    @property
    def signed(self) -> tuple[bytes, bytes]:
        return (b"authorization", f"Bearer {self.token}".encode())


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_both_paths_send_the_same_stream(server: Server) -> None:
    async def scenario() -> None:
        path = f"/api/executions/{await server.begin()}/events/stream"
        direct = await server.get(path, headers=(server.signed,))
        assert "endpoint" not in server.scope  # the framework was not asked
        assert server.scope["route"].path == "/api/executions/{execution_id}/events/stream"
        framework = await server.get(path, b"after=0", (server.signed,))
        assert "endpoint" in server.scope
        assert direct == framework
        assert direct[0] == 200
        assert direct[1].startswith(b"retry: 1000\n\nid: 1\n")
        assert direct[1].endswith(b"event: end\ndata: {}\n\n")
        last = await server.get(path, headers=(server.signed, (b"last-event-id", b"2")))
        assert last[1].startswith(b"retry: 1000\n\nid: 3\n")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "signed", "status"),
    [
        ("/api/executions/7/events/stream", True, 404),
        ("/api/executions/7/events/stream", False, 401),
        ("/api/executions/x7/events/stream", True, 404),
        ("/api/executions/12345678901234567890/events/stream", True, 404),
        ("/api/executions//events/stream", True, 404),
        ("/api/executions/7/more/events/stream", True, 404),
    ],
)
def test_errors_are_those_of_the_route(server: Server, path: str, signed: bool, status: int) -> None:
    found = asyncio.run(server.get(path, headers=(server.signed,) if signed else ()))
    assert found[0] == status, found
    assert b'"status":%d' % status in found[1]
