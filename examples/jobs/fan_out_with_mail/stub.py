"""The sales service of this job: `python stub.py PORT [FAILING...]`. The regions that are named fail."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REGIONS = ["north", "south", "east", "west", "mid", "far"]
FAILING: set[str] = set()


class Sales(BaseHTTPRequestHandler):
    """GET /regions, GET /sales/REGION."""

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        if self.path == "/regions":
            self._answer(200, REGIONS)
        elif name in FAILING:
            self._answer(503, {"error": f"{name} is closed"})
        else:
            self._answer(200, {"region": name, "amount": 10 * (REGIONS.index(name) + 1)})

    def _answer(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


if __name__ == "__main__":
    FAILING.update(sys.argv[2:])
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Sales)
    print(server.server_port, flush=True)
    server.serve_forever()
