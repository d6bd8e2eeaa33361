"""CPU time of the requests of an execution: the ASGI application with stores in memory, without sockets."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from chaos.access import create_test_app
from noetl.server.http.access import Tokens

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: one, path: bench/one}
workflow:
  - {step: start, tool: {kind: noop}}
"""
EXECUTIONS = 400
WARM_UP = 50

Measured = tuple[str, float, str]  # name, value, unit


class _Requests:
    """Sends requests to an application and adds up their CPU time by kind."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._headers = [
            (b"host", b"127.0.0.1"), (b"authorization", f"Bearer {token}".encode()),
            (b"content-type", b"application/json"),
        ]  # fmt: skip
        self.spent: dict[str, float] = {}

    async def send(self, kind: str, method: str, path: str, body: Any = None) -> bytes:
        """One request; the whole response body."""
        data = b"" if body is None else msgspec.json.encode(body)
        messages = [{"type": "http.request", "body": data, "more_body": False}]
        parts: list[bytes] = []
        disconnected = asyncio.get_running_loop().create_future()

        async def receive() -> Any:
            return messages.pop() if messages else await disconnected

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 300:
                raise RuntimeError(f"{method} {path} responded {message['status']}")
            parts.append(message.get("body", b""))

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": self._headers,
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8642),
        }  # fmt: skip
        began = time.process_time()
        await self._app(scope, receive, send)
        for _ in range(3):  # what the request leaves to the event loop
            await asyncio.sleep(0)
        self.spent[kind] = self.spent.get(kind, 0.0) + time.process_time() - began
        disconnected.cancel()
        return b"".join(parts)


async def _measure(folder: Path) -> dict[str, float]:
    tokens = Tokens.prepare(folder)
    app = create_test_app(tokens, folder)
    requests = _Requests(app, (folder / "admin.token").read_text().strip())
    for number in range(WARM_UP + EXECUTIONS):
        if number == WARM_UP:
            requests.spent.clear()
        reply = await requests.send("execute", "POST", "/api/execute", {"content": PLAYBOOK})
        execution_id = msgspec.json.decode(reply)["execution_id"]
        await app.state.app_state.orchestrator.cancel(execution_id)
        log = await requests.send("event stream", "GET", f"/api/executions/{execution_id}/events/stream")
        if b"playbook.processed" not in log:
            raise RuntimeError("the stream has no end")
        await requests.send("summary", "GET", f"/api/executions/{execution_id}")
    return {kind: spent / EXECUTIONS * 1e6 for kind, spent in requests.spent.items()}


def measure() -> Iterator[Measured]:
    """CPU microseconds of each request."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for kind, cost in asyncio.run(_measure(Path(folder))).items():
            yield f"request: {kind}", cost, "us"
