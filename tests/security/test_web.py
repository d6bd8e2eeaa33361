"""Class "web": requests of other sites and malformed bodies are refused with 4xx and without a traceback."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse

from noetl.server.http.access import Tokens
from noetl.server.http.middleware.security import SecurityMiddleware
from noetl.server.http.routes.execute import _read


def send(
    tmp_path: Path, headers: dict[str, str], method: str = "POST", path: str = "/api/validate"
) -> tuple[int, dict]:
    """One request through the middleware; returns the status and the headers of the response."""
    tokens = Tokens.prepare(tmp_path)
    token = tokens.add("t", "admin") if not any(each.name == "t" for each in tokens.all()) else ""

    async def app(scope, receive, send):
        await PlainTextResponse("ok")(scope, receive, send)

    sent: list[dict] = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def collect(message):
        sent.append(message)

    given = {"host": "127.0.0.1:8080", "authorization": f"Bearer {token}", "content-length": "0", **headers}
    scope = {
        "type": "http", "method": method, "path": path, "root_path": "", "query_string": b"", "client": ("127.0.0.1", 1),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()], "scheme": "http",
    }  # fmt: skip
    middleware = SecurityMiddleware(app, tokens=tokens, hosts=("noetl.example.com",))
    asyncio.run(middleware(scope, receive, collect))
    start = sent[0]
    return start["status"], {name.decode().lower(): value.decode() for name, value in start["headers"]}


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"origin": "http://127.0.0.1:8080"}, True),
        ({"origin": "http://127.0.0.1:9999"}, False),
        ({"origin": "http://127.0.0.1"}, False),
        ({"origin": "http://localhost:8080"}, False),
        ({"origin": "https://127.0.0.1:8080"}, True),
        ({"origin": "https://noetl.example.com"}, True),
        ({"origin": "https://noetl.example.com:8443"}, False),
        ({"origin": "http://evil.example.com:8080"}, False),
        ({"origin": "null"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
    ],
)
def test_only_pages_of_this_server_may_change_something(tmp_path, headers, allowed):
    assert (send(tmp_path, headers)[0] == 200) is allowed


def test_responses_are_neither_stored_nor_guessed(tmp_path):
    _, headers = send(tmp_path, {})
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "body", [b"\xff", b'{"path": "\xff\xfe"}', b"[" * 100_000, b"{" * 3, b"null", b"\x00", b'{"path": 1}']
)
def test_malformed_bodies_are_refused_in_words(body):
    with pytest.raises(Exception) as caught:
        _read(body, "application/json")
    assert not isinstance(caught.value, (UnicodeDecodeError, RecursionError, MemoryError))
