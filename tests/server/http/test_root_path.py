"""A server behind a reverse proxy with a path prefix."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from noetl.server.http.access import Tokens
from noetl.server.http.app import create_app


@pytest.mark.parametrize("path", ["/flows/healthz", "/healthz"], ids=["the proxy leaves it", "the proxy takes it away"])
def test_a_server_is_reachable_under_its_prefix(path: str, tmp_path: Path):
    async def readiness() -> list[str]:
        return []

    async def requested() -> list[dict[str, Any]]:
        app = create_app(
            lambda: None,  # type: ignore[arg-type, return-value]
            Tokens.prepare(tmp_path),
            readiness=readiness,
            version="0",
            root_path="/flows",
        )
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
        headers = [(b"host", b"127.0.0.1:8080")]
        await app({**scope, "headers": headers, "client": ("127.0.0.1", 1), "scheme": "http"}, receive, send)  # type: ignore[arg-type]
        return sent

    sent = asyncio.run(requested())
    assert sent[0]["status"] == 200, sent
