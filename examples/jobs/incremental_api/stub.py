"""The order service of this job: `python stub.py PORT`. Pages of 50 orders; one request in nine fails."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

PAGE = 50
COUNTS = {"requests": 0}
ORDERS: dict[int, dict[str, object]] = {}
CLOCK = {"minute": 0}


def change(first: int, last: int) -> None:
    """Add or change orders; three of them have the same time."""
    for number in range(first, last + 1):
        minute = CLOCK["minute"] + (number - first) // 3
        at = f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00Z"
        ORDERS[number] = {"id": number, "updated_at": at, "version": CLOCK["minute"]}
    CLOCK["minute"] += (last - first) // 3


class Orders(BaseHTTPRequestHandler):
    """GET /orders?since=TIME&page=0, GET /change?first=1&last=9, GET /all, GET /requests."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        given = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path == "/change":
            change(int(given["first"]), int(given["last"]))
            return self._answer(200, len(ORDERS))
        if url.path == "/requests":
            return self._answer(200, COUNTS["requests"])
        rows = sorted(ORDERS.values(), key=lambda row: (row["updated_at"], row["id"]))
        if url.path == "/all":
            return self._answer(200, rows)
        COUNTS["requests"] += 1
        if COUNTS["requests"] % 9 == 0:
            return self._answer(503, {"error": "try again"})
        new = [row for row in rows if str(row["updated_at"]) >= given.get("since", "")]
        start = int(given.get("page", "0")) * PAGE
        return self._answer(200, {"orders": new[start : start + PAGE]})

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
    change(1, 200)
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Orders)
    print(server.server_port, flush=True)
    server.serve_forever()
