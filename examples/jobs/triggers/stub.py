"""The service that this job publishes to: `python stub.py PORT`. GET /results lists what it has received."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RESULTS: list[object] = []


class Results(BaseHTTPRequestHandler):
    """POST /results, GET /results."""

    def do_GET(self) -> None:
        self._answer(RESULTS)

    def do_POST(self) -> None:
        RESULTS.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer({"received": len(RESULTS)})

    def _answer(self, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Results)
    print(server.server_port, flush=True)
    server.serve_forever()
