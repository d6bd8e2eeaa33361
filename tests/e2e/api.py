"""A small HTTP API on loopback with faults, for playbooks under test."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    tries: Counter[str]

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        parts = url.path.strip("/").split("/")
        if parts[0] == "items":
            page = int(query.get("page", ["1"])[0])
            self._answer(200, {"items": [{"id": 2 * page - 1}, {"id": 2 * page}], "page": page, "pages": 3})
        elif parts[0] == "users":
            users = [{"id": number, "name": f"user {number}"} for number in (1, 2, 3)]
            self._answer(200, users[int(parts[1]) - 1] if len(parts) > 1 else users)
        elif parts[0] == "paged":
            page, size = (int(query.get(name, [given])[0]) for name, given in (("page", "1"), ("pageSize", "10")))
            rows = [{"id": number, "name": f"item {number}"} for number in range(1, 36)][
                (page - 1) * size : page * size
            ]
            self._answer(200, {"data": rows, "paging": {"page": page, "hasMore": page * size < 35, "total": 35}})
        elif parts[0] == "events":
            start = int(query.get("cursor", ["0"])[0] or 0)
            more = start + 10 < 35
            events = [{"id": number} for number in range(start + 1, min(start + 10, 35) + 1)]
            self._answer(200, {"events": events, "next_cursor": str(start + 10) if more else None})
        elif parts[0] == "large_dataset":
            self._answer(200, {"data": {"items": [{"id": number, "name": f"item {number}"} for number in range(250)]}})
        elif parts[0] == "broken":
            self._send(200, b'{"a": ', "application/json")
        elif parts[0] == "script":
            self._send(200, b"result = {'a': a}\n", "text/x-python")
        elif parts[0] == "status":
            self._answer(int(parts[1]), {"why": "gone"})
        elif parts[0] == "flaky":
            self.tries[parts[1]] += 1
            tries = self.tries[parts[1]]
            self._answer(200 if tries > 2 else 503, {"ok": tries > 2, "tries": tries})
        else:
            self._answer(404, {"why": "unknown"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/form":
            return self._answer(200, {"form": body.decode()})
        return self._answer(200, {"got": json.loads(body or b"null"), "key": self.headers.get("Idempotency-Key")})

    def _answer(self, status: int, document: object) -> None:
        self._send(status, json.dumps(document).encode(), "application/json")

    def _send(self, status: int, data: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[str]:
    """The address of a fresh API."""
    handler = type("Handler", (_Handler,), {"tries": Counter()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
