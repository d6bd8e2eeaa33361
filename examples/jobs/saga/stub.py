"""The booking service of this job: `python stub.py PORT [WHAT...]`. It has no cars, rooms or flights that are named."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BOOKINGS: dict[str, dict[str, object]] = {}  # by idempotency key
LOG: list[str] = []


class Bookings(BaseHTTPRequestHandler):
    """POST /bookings, DELETE /bookings/ID, GET /bookings and GET /log."""

    def do_GET(self) -> None:
        self._answer(200, LOG if self.path == "/log" else list(BOOKINGS.values()))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        key = self.headers["Idempotency-Key"]
        if body["what"] in sys.argv[2:]:
            self._answer(409, {"error": f"no {body['what']} in {body['where']}"})
            return
        if key not in BOOKINGS:
            BOOKINGS[key] = {"id": len(BOOKINGS) + 1, "status": "booked", **body}
            LOG.append(f"book {body['what']} {body['where']}")
        self._answer(200, BOOKINGS[key])

    def do_DELETE(self) -> None:
        booking = next(each for each in BOOKINGS.values() if str(each["id"]) == self.path.rpartition("/")[2])
        if booking["status"] != "cancelled":
            booking["status"] = "cancelled"
            LOG.append(f"cancel {booking['what']} {booking['where']}")
        self._answer(200, booking)

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
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Bookings)
    print(server.server_port, flush=True)
    server.serve_forever()
