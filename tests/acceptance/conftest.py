"""A real HTTP server on loopback, and the embedded engine on a SQLite file of this test's own."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from noetl.embedded import open_local

HERE = Path(__file__).parent
ROWS = {"a": 7, "b": 5}


class Api:
    """What the test can say to the server and ask of it."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.failures: dict[str, int] = {}  # path -> how many times it still answers 500
        self.running = 0
        self.most_running = 0
        self.lock = threading.Lock()
        self.url = ""

    def counts(self) -> Counter[str]:
        return Counter(self.requests)

    def answer(self, path: str, query: dict[str, list[str]]) -> tuple[int, object]:
        with self.lock:
            self.requests.append(path)
            if self.failures.get(path, 0) > 0:
                self.failures[path] -= 1
                return 500, {"error": "not yet"}
        page = int(query.get("page", ["1"])[0])
        match path.strip("/").split("/"):
            case ["ok"]:
                return 200, {"answer": 42}
            case ["status", code]:
                return int(code), {"code": int(code)}
            case ["pages", name]:
                size = int(query["pageSize"][0])
                rows = [f"{name}{n}" for n in range(ROWS[name])]
                return 200, {
                    "data": rows[(page - 1) * size : page * size],
                    "paging": {"page": page, "hasMore": page * size < len(rows)},
                }
            case ["slow", number]:
                time.sleep(0.03)
                return 200, {"number": int(number)}
            case ["rooms", city, hotel]:
                return 200, {"rooms": [f"{city}-{hotel}-{page}"], "more": page < 3}
            case ["large"]:
                return 200, {"rows": [{"id": n, "text": "x" * 40} for n in range(400)]}
        return 404, {"error": "no such page"}


@pytest.fixture
def api():
    state = Api()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            with state.lock:
                state.running += 1
                state.most_running = max(state.most_running, state.running)
            try:
                status, body = state.answer(url.path, parse_qs(url.query))
            finally:
                with state.lock:
                    state.running -= 1
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Playbooks that name files by relative paths write them into the folder of the test."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["canonical", "v10"])
def surface(request) -> str:
    return request.param


class Ran:
    """A finished run: its result and its log."""

    def __init__(self, result, events) -> None:
        self.result = result
        self.events = events

    def of(self, name: str) -> list:
        return [recorded.body for recorded in self.events if name == recorded.body.NAME]


@pytest.fixture
def run(surface, tmp_path):
    import asyncio

    def run_playbook(name: str, **payload: object) -> Ran:
        async def whole() -> Ran:
            async with await open_local(home=tmp_path / "home") as engine:
                result = await engine.run(HERE / surface / f"{name}.yaml", payload, timeout=60)
                return Ran(result, await engine.orchestrator.events(result.execution_id))

        return asyncio.run(whole())

    return run_playbook
