"""ClickHouse's engine (chdb) behind an HTTP server that follows the contract of ClickHouse's HTTP interface.

The SQL, the types and the formats are those of a current ClickHouse; the HTTP server is written for these tests.
"""

from __future__ import annotations

import itertools
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from chdb import session

numbers = itertools.count()
USER, PASSWORD = "noetl", "pass word"


class Server:
    def __init__(self, folder: str) -> None:
        self.engine = session.Session(folder)
        self._lock = threading.Lock()
        self._files = itertools.count()
        self._folder = folder
        self.engine.query("CREATE DATABASE IF NOT EXISTS noetl ENGINE = Atomic")
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if (self.headers.get("X-ClickHouse-User"), self.headers.get("X-ClickHouse-Key")) != (USER, PASSWORD):
                    return self._answer(403, b"Code: 516. DB::Exception: noetl: Authentication failed", 516)
                given = {
                    name: values[-1]
                    for name, values in parse_qs(urlsplit(self.path).query, keep_blank_values=True).items()
                }
                try:
                    return self._answer(200, outer.run(given, body))
                except Exception as problem:
                    found = re.search(r"Code: (\d+)", str(problem))
                    return self._answer(500, str(problem).encode(), int(found[1]) if found else 0)

            def _answer(self, status: int, content: bytes, code: int = 0) -> None:
                self.send_response(status)
                if code:
                    self.send_header("X-ClickHouse-Exception-Code", str(code))
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_) -> None:
                return

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever)
        self.thread.start()
        self.auth = {
            "host": "127.0.0.1",
            "port": self.http.server_port,
            "user": USER,
            "password": PASSWORD,
            "database": "noetl",
        }

    def run(self, given: dict, body: bytes) -> bytes:
        with self._lock:
            self.engine.query("USE noetl")
            for name, value in given.items():
                if name.startswith("param_"):
                    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
                    self.engine.query(f"SET {name} = '{quoted}'")
            if "query" in given:  # an INSERT with its data in the body
                file = f"{self._folder}-{next(self._files)}.arrow"
                with open(file, "wb") as out:
                    out.write(body)
                insert = re.sub(r"FORMAT ArrowStream$", f"SELECT * FROM file('{file}', 'ArrowStream')", given["query"])
                self.engine.query(insert)
                return b""
            return self.engine.query(body.decode(), given.get("default_format", "TabSeparated")).bytes() or b""

    def rows(self, query: str) -> list[dict]:
        import pyarrow as pa

        content = self.run({"default_format": "ArrowStream"}, query.encode())
        return pa.ipc.open_stream(content).read_all().to_pylist() if content else []

    def new_name(self) -> str:
        return f"t{next(numbers)}"

    def stop(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()
        self.engine.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    running = Server(str(tmp_path_factory.mktemp("clickhouse") / "data"))
    yield running
    running.stop()
