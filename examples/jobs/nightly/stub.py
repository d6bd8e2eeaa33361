"""The order service of this job: `python stub.py PORT [SECONDS]`. It answers after some seconds."""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Orders(BaseHTTPRequestHandler):
    """GET /orders?from=...&to=..."""

    seconds = 0.0

    def do_GET(self) -> None:
        time.sleep(self.seconds)
        body = json.dumps([{"id": 1}, {"id": 2}]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


if __name__ == "__main__":
    Orders.seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Orders)
    print(server.server_port, flush=True)
    server.serve_forever()
