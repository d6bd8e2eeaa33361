"""A model for this job: `python stub.py PORT [WRONG]`. Its first WRONG answers do not fit; it streams every answer."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWERS = (
    "Sure! Here are two fruits: apple and pear.",
    '[{"name": "apple", "price": "cheap"}, {"name": "pear", "price": 2}]',
)
RIGHT = '[{"name": "apple", "price": 1.5}, {"name": "pear", "price": 2}]'


class Model(BaseHTTPRequestHandler):
    """POST /chat: server-sent events; GET /feedback: what the questions said."""

    protocol_version = "HTTP/1.1"
    wrong = 2
    feedback: list[str] = []

    def do_GET(self) -> None:
        body = json.dumps(self.feedback).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = len(self.feedback)
        self.feedback.append(question["feedback"])
        text = ANSWERS[number % len(ANSWERS)] if number < self.wrong else RIGHT
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for start in range(0, len(text), 8):
            self._chunk(f"data: {json.dumps({'text': text[start : start + 8]})}\n\n")
        self._chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, text: str) -> None:
        self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        return


if __name__ == "__main__":
    Model.wrong = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Model)
    print(server.server_port, flush=True)
    server.serve_forever()
