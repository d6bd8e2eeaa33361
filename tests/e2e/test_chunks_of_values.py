"""Rows that are no mappings keep their values in `chunk.data`."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import pytest

VALUES = "[1, 'two', None, 4.5, [5], {'a': 6}, True]"


@pytest.fixture
def hook() -> Iterator[tuple[str, list[object]]]:
    """A web hook and the bodies it received."""
    bodies: list[object] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()
    server.server_close()


def test_values_reach_a_web_hook_and_the_templates_of_columns(play, hook, tmp_path):
    address, bodies = hook
    ran = play(f"""
    workflow:
      - step: start
        tool:
          - {{name: made, kind: python, code: "result = {VALUES}"}}
          - name: move
            kind: transfer
            data: "{{{{ made }}}}"
            chunk: {{size: 4}}
            targets:
              - {{kind: http, url: "{address}/plain"}}
              - {{kind: http, url: "{address}/own", json: {{part: "{{{{ chunk.data }}}}"}}}}
              - kind: duckdb
                file: {tmp_path}/x.duckdb
                table: t
                mapping: {{part: "{{{{ chunk.data | tojson }}}}", n: "{{{{ chunk.index }}}}"}}
        next: {{arcs: [{{step: end}}]}}
      - step: end
        tool: {{kind: duckdb, file: {tmp_path}/x.duckdb, query: "SELECT n, part, count(*) AS rows FROM t GROUP BY ALL ORDER BY n"}}
    """)
    assert ran.status == "success", ran.error
    first, second = [1, "two", None, 4.5], [[5], {"a": 6}, True]
    assert sorted(bodies, key=str) == sorted([first, second, {"part": first}, {"part": second}], key=str)
    assert [(row["n"], json.loads(row["part"]), row["rows"]) for row in ran.data["rows"]] == [
        (0, first, 4),
        (1, second, 3),
    ]


def test_values_reach_a_legacy_sink(play, hook):
    address, bodies = hook
    ran = play(
        f"""
    workflow:
      - step: start
        tool:
          kind: python
          spec: {{code: "result = [1, 2, 'x']"}}
          chunk: {{size: 2}}
          sink: [{{kind: http, url: "{address}", body: "{{{{ chunk.data }}}}"}}]
    """,
        legacy=True,
    )
    assert ran.status == "success", ran.error
    assert bodies == [[1, 2], ["x"]]
