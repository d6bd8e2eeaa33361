"""The order service of this job: `python stub.py PORT [FAIL]`. With FAIL, page 2 is an error until `POST /repair`."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

PAGE = 100
ORDERS = [
    {"id": number, "amount": number * 10, "updated_at": f"2026-02-{number % 28 + 1:02}T00:00:00Z"}
    for number in range(1, 251)
]
SERVED: list[int] = []
BROKEN = sys.argv[2:]


class Orders(BaseHTTPRequestHandler):
    """GET /orders?since=INSTANT&page=N, GET /served, POST /orders (a changed order), POST /repair."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/served":
            self._answer(200, SERVED)
            return
        query = parse_qs(url.query)
        since, page = query["since"][0], int(query["page"][0])
        if BROKEN and page == 2:
            self._answer(400, {"error": "page 2 is broken"})
            return
        changed = sorted((each for each in ORDERS if each["updated_at"] > since), key=lambda each: each["updated_at"])
        orders = changed[(page - 1) * PAGE : page * PAGE]
        SERVED.append(len(orders))
        cursor = changed[-1]["updated_at"] if changed else since
        self._answer(200, {"orders": orders, "page": page, "more": page * PAGE < len(changed), "cursor": cursor})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.path == "/repair":
            BROKEN.clear()
        else:
            ORDERS[:] = [each for each in ORDERS if each["id"] != body["id"]] + [body]
        self._answer(200, body)

    def log_message(self, *_: object) -> None:
        """Requests are not printed."""

    def _answer(self, status: int, document: object) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Orders)
    print(server.server_port, flush=True)
    server.serve_forever()
