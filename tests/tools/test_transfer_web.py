"""APIs as sources and targets of a transfer, and transfers inside playbooks."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import duckdb
import psycopg
import pyarrow.parquet as pq
import pytest

from noetl.core.model.outcome import Outcome
from noetl.core.templates.deferred import DeferredTemplate
from noetl.embedded import open_local
from noetl.testing.tools import run_tool
from noetl.tools.transfer.sources import http_source, large_pages

PAGE = 10


class Api:
    """25 rows in pages of 10, and a hook that remembers what it was sent."""

    def __init__(self) -> None:
        self.requested: list[str] = []
        self.received: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.refuse: set[int] = set()  # numbers of posts that are answered 500
        self.url = ""

    def rows(self, page: int) -> list[dict[str, Any]]:
        return [
            {"id": n, "name": f"n{n}", "doc": {"n": n}} for n in range(page * PAGE + 1, min(25, page * PAGE + PAGE) + 1)
        ]

    def get(self, path: str, query: dict[str, str]) -> tuple[int, Any, dict[str, str]]:
        page = int(query.get("page", "0"))
        rows = self.rows(page)
        more = page < 2
        match path:
            case "/all":
                return 200, {"data": {"items": [row for number in range(3) for row in self.rows(number)]}}, {}
            case "/bare":
                return 200, self.rows(0), {}
            case "/next":
                return 200, {"data": rows, "next": f"/next?page={page + 1}" if more else None}, {}
            case "/cursor":
                return 200, {"rows": rows, "cursor": page + 1 if more else None}, {}
            case "/link":
                link = {"Link": f'<{self.url}/link?page={page + 1}>; rel="next"'} if more else {}
                return 200, rows, link
            case "/counted":
                return (200, {"data": rows}, {}) if page < 3 else (404, {"error": "no such page"}, {})
            case "/circle":
                return 200, {"data": rows, "next": "/circle?page=1"}, {}
            case "/empty":
                return 200, {"data": []}, {}
            case "/busy":  # every page at its second time of asking
                busy = self.requested.count(f"/busy?page={page}") % 2 == 1
                return (503, {"error": "busy"}, {"Retry-After": "0"}) if busy else (200, {"data": rows}, {})
            case "/broken":
                return (200, {"data": rows}, {}) if page < 1 else (503, {"error": "busy"}, {})
        return 404, {"error": "nothing here"}, {}


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            api.requested.append(self.path)
            status, body, headers = api.get(parts.path, {key: value[0] for key, value in parse_qs(parts.query).items()})
            self.answer(status, body, headers)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            number = len(api.received)
            api.received.append(body)
            api.headers.append({key.lower(): value for key, value in self.headers.items()})
            self.answer(500 if number in api.refuse else 200, {}, {})

        def answer(self, status: int, body: Any, headers: dict[str, str]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            for key, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield api
    server.shutdown()
    server.server_close()


def move(source: Any, *targets: Any, **others: Any) -> Outcome:
    host = others.pop("host", None)
    given = {"source": source} if isinstance(source, dict) else {"data": source}
    return run_tool("transfer", {**given, "targets": list(targets), **others}, host=host)


@pytest.mark.parametrize(
    ("path", "source", "chunk"),
    [
        ("/all", {}, {"path": "data.items"}),
        ("/next", {"pages": {"next": DeferredTemplate("{{ page.data.next }}")}}, {"path": "data"}),
        ("/cursor", {"pages": {"param": "page", "next": DeferredTemplate("{{ page.data.cursor }}")}}, None),
        (
            "/cursor",
            {"pages": {"next": DeferredTemplate("{{ {'page': page.data.cursor} if page.data.cursor else none }}")}},
            None,
        ),
        ("/link", {"pages": "link"}, None),
        ("/counted", {"pages": {"param": "page", "start": 0}}, {"path": "data"}),
        ("/counted", {"pages": {"param": "page", "start": 0, "size": 10, "ahead": 1}}, None),
        (
            "/counted",
            {"pages": {"param": "page", "start": 0, "until": DeferredTemplate("{{ page.count < 10 }}")}},
            None,
        ),
        ("/counted", {"pages": {"param": "page", "start": 0, "last": 2}}, None),
        ("/busy", {"pages": {"param": "page", "start": 0, "last": 2}}, None),
    ],
)
def test_all_pages_of_an_api_reach_a_table(
    api: Api,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    source: dict[str, Any],
    chunk: dict[str, Any] | None,
) -> None:
    found = []
    read_rows = large_pages.read_rows
    monkeypatch.setattr(http_source, "read_rows", lambda *given: found.append(read_rows(*given)) or found[-1])
    monkeypatch.setattr(large_pages, "PIECE_BYTES", 100)
    for large in (False, True):
        monkeypatch.setattr(http_source, "LARGE_PAGE", 1 if large else 1 << 20)
        target = {"kind": "postgres", "auth": database, "table": "t", "mode": "replace"}
        outcome = move({"kind": "http", "url": api.url + path, **source}, target, chunk=chunk)
        assert outcome.error is None, outcome.error
        assert outcome.data["rows"] == 25
        with psycopg.connect(database) as connection:
            assert connection.execute("select count(distinct id), max(doc->>'n') from t").fetchall() == [(25, "9")]
    pages = [page for page in found if page is not None]
    assert sum(page.size for page in pages) == 25
    assert not any(page.path.parent.exists() for page in pages)


def test_a_template_may_read_the_rows_of_a_large_page(api: Api, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_source, "LARGE_PAGE", 1)
    url = "{{ '/next?page=%d' % (page.data.data[-1].id // 10) if page.data.data | length == 10 }}"
    source = {"kind": "http", "url": f"{api.url}/next", "pages": {"next": DeferredTemplate(url)}}
    outcome = move(source, {"kind": "postgres", "auth": database, "table": "t"})
    assert outcome.error is None, outcome.error
    assert outcome.data["rows"] == 25


def test_an_api_without_rows_moves_nothing(api: Api, tmp_path: Path) -> None:
    outcome = move({"kind": "http", "url": api.url + "/empty"}, {"kind": "file", "path": str(tmp_path / "x.json")})
    assert outcome.data["rows"] == 0


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ({"path": "/gone"}, "not_found"),
        ({"path": "/broken", "pages": {"param": "page", "start": 0}, "retry": {"attempts": 1}}, "server_error"),
        ({"path": "/circle", "pages": {"next": DeferredTemplate("{{ page.data.next }}")}}, "schema"),
        ({"path": "/all", "rows": "data.nothing"}, "schema"),
        ({"path": "/all", "pages": {"by": "magic"}}, "schema"),
        ({"path": "/all", "pages": {"param": "offset", "step": 10}}, "schema"),  # would leave out row 0
        ({"path": "/next", "pages": {"next": "{{ page.data.next }}"}}, "schema"),
    ],
)
def test_an_api_that_fails_leaves_nothing(api: Api, database: str, source: dict[str, Any], kind: str) -> None:
    rows = source.pop("rows", None)
    url = api.url + source.pop("path")
    target = {"kind": "postgres", "auth": database, "table": "t"}
    outcome = move({"kind": "http", "url": url, **source}, target, chunk={"path": rows} if rows else None)
    assert outcome.error is not None and outcome.error.kind == kind, outcome.error
    with psycopg.connect(database) as connection:
        assert connection.execute("select to_regclass('t')").fetchone() == (None,)


def test_a_hook_receives_every_chunk_as_a_list_of_rows(api: Api) -> None:
    rows = [{"id": n} for n in range(1, 26)]
    outcome = move(rows, {"kind": "http", "url": f"{api.url}/hook"}, chunk={"size": 10})
    assert outcome.error is None
    assert api.received == [rows[:10], rows[10:20], rows[20:]]
    keys = [headers["idempotency-key"] for headers in api.headers]
    assert len(set(keys)) == 3


def test_the_body_of_a_hook_can_be_a_template(api: Api) -> None:
    body = {
        "part": DeferredTemplate("{{ chunk.index + 1 }}"),
        "rows": DeferredTemplate("{{ chunk.data }}"),
        "done": DeferredTemplate("{{ chunk.last }}"),
    }
    move([{"id": 1}, {"id": 2}], {"kind": "http", "url": f"{api.url}/hook", "json": body}, chunk={"size": 1})
    assert api.received == [
        {"part": 1, "rows": [{"id": 1}], "done": False},
        {"part": 2, "rows": [{"id": 2}], "done": True},
    ]


def test_a_failing_hook_fails_the_transfer_or_warns(api: Api, database: str) -> None:
    rows = [{"id": n} for n in range(30)]
    api.refuse = {1}
    hook = {"kind": "http", "url": f"{api.url}/hook"}
    table = {"kind": "postgres", "auth": database, "table": "t"}
    failed = move(rows, hook, table, chunk={"size": 10})
    assert failed.error is not None and failed.error.kind == "server_error" and failed.error.retryable
    api.received.clear()
    warned = move(rows, {**hook, "on_error": "warn"}, table, chunk={"size": 10})
    assert warned.status == "ok"
    assert (warned.data["targets"][0]["rows"], warned.data["targets"][1]["rows"]) == (20, 30)
    assert len(api.received) == 3


# ── in playbooks ────────────────────────────────────────────────────────────────────────

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: replicate}
keychain:
  - {name: db, kind: static, value: DSN}
workload:
  day: monday
  api: API
workflow:
  - step: start
    tool:
      - name: load
        kind: transfer
        source:
          kind: http
          url: "{{ workload.api }}/next"
          pages: {next: "{{ page.data.next }}"}
        targets:
          - kind: postgres
            auth: db
            table: raw
            mapping: {id: id, name: "{{ row.name | upper }}", day: "{{ workload.day }}-{{ chunk.index }}"}
          - {kind: duckdb, file: lake.duckdb, table: raw, mode: replace}
          - {kind: file, path: "out/{{ workload.day }}/{{ execution_id }}/{{ chunk.index }}.parquet"}
        chunk: {size: 10, path: data}
      - name: check
        kind: postgres
        auth: db
        command: SELECT count(*) AS n, min(name) AS name, max(day) AS day FROM raw
    set: {ctx.moved: "{{ load.rows }}"}
    next: {arcs: [{step: end}]}
  - step: end
    tool:
      - {name: big, kind: postgres, auth: db, command: "SELECT n, repeat('x', 40) AS x FROM generate_series(1, 60000) n"}
      - {name: first, kind: noop, input: {rows: "{{ big.row_count }}", last: "{{ big.rows[-1].n }}", x: "{{ output.columns }}"}}
      - name: part
        kind: resolve
        ref: "{{ big._ref }}"
        select: [n]
        offset: 59998
    set:
      ctx.count: "{{ big.row_count }}"
      ctx.last: "{{ big.rows[-1].n }}"
"""


def test_a_playbook_transfers_rows_and_reads_them(api: Api, database: str, tmp_path: Path) -> None:
    file = tmp_path / "replicate.yaml"
    file.write_text(PLAYBOOK.replace("DSN", database).replace("API", api.url))

    async def run() -> Any:
        async with await open_local(store=f"sqlite://{tmp_path}/noetl.db", home=tmp_path / "home") as engine:
            return await engine.run(file, timeout=60)

    result = asyncio.run(run())
    assert result.status == "success", result.error
    assert result.ctx["moved"] == 25
    assert (result.ctx["count"], result.ctx["last"]) == (60_000, 60_000)
    assert result.output["data"] == {"rows": [{"n": 59_999}, {"n": 60_000}], "row_count": 2, "columns": ["n"]}
    with psycopg.connect(database) as connection:
        found = connection.execute("select count(*), min(name), max(day) from raw").fetchone()
    assert found == (25, "N1", "monday-2")
    with duckdb.connect(str(tmp_path / "lake.duckdb")) as lake:
        assert lake.execute("select count(*), max(id) from raw").fetchone() == (25, 25)
    files = sorted((tmp_path / "out" / "monday" / result.execution_id).iterdir())
    assert [pq.read_table(one).num_rows for one in files] == [10, 10, 5]


def test_the_validator_accepts_the_names_of_a_transfer(tmp_path: Path) -> None:
    from noetl.core.language.compile import compile_playbook
    from noetl.tools.registry import specs

    known = compile_playbook(PLAYBOOK, file="x.yaml", specs=specs())
    assert known.playbook is not None
    said = [problem.message for problem in known.diagnostics if "chunk" in problem.message or "row" in problem.message]
    assert said == []
    elsewhere = PLAYBOOK.replace('ctx.moved: "{{ load.rows }}"', 'ctx.moved: "{{ chunk.index }}"')
    warned = compile_playbook(elsewhere, file="x.yaml", specs=specs())
    assert any("chunk" in problem.message for problem in warned.diagnostics)
