"""The API that the playbooks of the cookbook call: python examples/cookbook/api.py --port 8765.

| request | response |
|---|---|
| GET /orders?page=N | pages of three orders, seven in all |
| GET /changes?after=CURSOR | the same with a cursor, `next` is null at the end |
| GET /busy | 429 with `Retry-After: 1` once, then 200 |
| GET /items/N | an item, 404 for 13 |
| POST /token, GET /private | client credentials of OAuth 2.0, and a resource that needs the token |
| POST /jobs, GET /jobs/N | a job that is done at the third question |
| POST /messages | the body, with a number; the same `Idempotency-Key` gives the same answer |
"""

from __future__ import annotations

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

ORDERS = [
    {"id": number, "customer": "abc"[number % 3], "amount": number * 10, "updated_at": f"2026-01-{number:02}T00:00:00Z"}
    for number in range(1, 8)
]
PAGE = 3


class CookbookServer(ThreadingHTTPServer):
    """The API and what it remembers."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.lock = threading.Lock()
        self.calls: dict[str, int] = {}
        self.messages: dict[str, dict[str, Any]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def count(self, name: str) -> int:
        """How often this was asked for, this time included."""
        with self.lock:
            self.calls[name] = self.calls.get(name, 0) + 1
            return self.calls[name]


class Handler(BaseHTTPRequestHandler):
    """One method per resource."""

    protocol_version = "HTTP/1.1"
    server: CookbookServer

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        name, _, rest = address.path.strip("/").partition("/")
        match name:
            case "orders":
                page = int(query.get("page", "1"))
                rows = ORDERS[(page - 1) * PAGE : page * PAGE]
                self.respond(200, {"items": rows, "page": page, "pages": -(-len(ORDERS) // PAGE)})
            case "changes":
                after = int(query.get("after") or 0)
                rows = [order for order in ORDERS if order["id"] > after][:PAGE]
                last = rows[-1]["id"] if rows else None
                self.respond(200, {"items": rows, "next": last if last and last < len(ORDERS) else None})
            case "busy" if self.server.count("busy") == 1:
                self.respond(429, {"error": "too many requests"}, {"Retry-After": "1"})
            case "busy":
                self.respond(200, {"answer": 42})
            case "items" if rest != "13":
                self.respond(200, {"id": int(rest), "name": f"item {rest}"})
            case "private" if self.headers.get("Authorization") == "Bearer token-of-reporting":
                self.respond(200, {"secret_number": 7})
            case "private":
                self.respond(401, {"error": "a token is needed"})
            case "jobs":
                self.respond(
                    200, {"id": int(rest), "state": "done" if self.server.count(f"job {rest}") > 2 else "running"}
                )
            case _:
                self.respond(404, {"error": f"{address.path} does not exist"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        match self.path.strip("/"):
            case "token":
                self.respond(200, {"access_token": "token-of-reporting", "token_type": "Bearer", "expires_in": 3600})
            case "jobs":
                self.respond(202, {"id": 5})
            case "messages":
                key = self.headers.get("Idempotency-Key") or str(self.server.count("no key"))
                with self.server.lock:
                    number = len(self.server.messages) + 1
                    answer = self.server.messages.setdefault(key, {"number": number, "received": json.loads(body)})
                self.respond(201, answer)
            case _:
                self.respond(404, {"error": f"{self.path} does not exist"})

    def respond(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description="The API of the cookbook.")
    parser.add_argument("--port", type=int, default=8765)
    server = CookbookServer(parser.parse_args().port)
    print(f"serving {server.url}; press Ctrl-C to stop", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
