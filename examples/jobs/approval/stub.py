"""The payment service of this job: `python stub.py PORT`. It keeps the payments in memory."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAYMENTS: list[dict[str, object]] = []


class Payments(BaseHTTPRequestHandler):
    """POST /payments, POST /payments/ID/execute, POST /payments/ID/refuse, GET /payments."""

    def do_GET(self) -> None:
        self._answer(PAYMENTS)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        parts = self.path.strip("/").split("/")
        if len(parts) == 1:
            PAYMENTS.append({"id": len(PAYMENTS) + 1, "status": "requested", **body})
            self._answer(PAYMENTS[-1])
        else:
            payment = PAYMENTS[int(parts[1]) - 1]
            payment["status"] = {"execute": "paid", "refuse": "refused"}[parts[2]]
            self._answer(payment)

    def log_message(self, *_: object) -> None:
        """Requests are not printed."""

    def _answer(self, document: object) -> None:
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Payments)
    print(server.server_port, flush=True)
    server.serve_forever()
