"""The order service of this job: `python stub.py PORT`. One request in seven fails, and Sundays have no orders."""

from __future__ import annotations

import json
import sys
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

COUNTS = {"requests": 0}


class Orders(BaseHTTPRequestHandler):
    """GET /orders?day=2026-01-05, GET /requests."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/requests":
            return self._answer(200, COUNTS["requests"])
        COUNTS["requests"] += 1
        if COUNTS["requests"] % 7 == 0:
            return self._answer(503, {"error": "try again"})
        day = date.fromisoformat(parse_qs(url.query)["day"][0])
        rows = [] if day.weekday() == 6 else [{"id": 100 * day.day + n, "amount": 10 * n} for n in range(1, 4)]
        return self._answer(200, rows)

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
