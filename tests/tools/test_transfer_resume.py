"""Loads that stop in the middle of the pages of an API, or after the target has committed, and are continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from noetl.core.model.outcome import Outcome
from noetl.core.templates.deferred import DeferredTemplate
from noetl.testing.tools import ToolHost, run_tool
from tests.tools.test_transfer_incremental import ROOT, execute

PAGE = 10
CHAINS: dict[str, Any] = {
    "link": "link",
    "url": {"next": DeferredTemplate("{{ page.data.next }}")},
    "token": {"param": "start", "next": DeferredTemplate("{{ page.data.start }}")},
    "mapping": {"next": DeferredTemplate("{{ {'start': page.data.start} if page.data.start else none }}")},
    "numbered": {"param": "start", "start": 0, "step": PAGE, "ahead": 1, "size": PAGE},
}


class Orders:
    """Rows in pages, three with each value of the cursor; the page at `broken` is refused or never answered."""

    def __init__(self) -> None:
        self.count = 120
        self.broken: int | None = None
        self.hangs = False
        self.moved: list[int] = []  # rows that were updated
        self.asked: list[int] = []  # the pages
        self.blocked = threading.Event()
        self.lock = threading.Lock()
        self.url = ""

    def rows(self, since: int) -> list[dict[str, int]]:
        found = [{"id": n, "at": n // 3} for n in range(self.count) if n // 3 >= since and n not in self.moved]
        return found + [{"id": n, "at": self.count} for n in self.moved]


@pytest.fixture
def orders() -> Iterator[Orders]:
    orders = Orders()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            since, start = int(query.get("since") or 0), int(query.get("start") or 0)
            with orders.lock:
                orders.asked.append(start // PAGE)
                broken = orders.broken == start // PAGE
            if broken and orders.hangs:
                orders.blocked.set()
                self.rfile.read()  # until the client is gone
                return
            rows = orders.rows(since)
            more = start + PAGE < len(rows)
            following = f"{orders.url}/?since={since}&start={start + PAGE}" if more else None
            body = {
                "rows": rows[start : start + PAGE],
                "next": following,
                "start": start + PAGE if more else None,
            }
            data = json.dumps({"error": "no such page"} if broken else body).encode()
            self.send_response(400 if broken else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if following:
                self.send_header("Link", f'<{following}>; rel="next"')
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    orders.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield orders
    server.shutdown()
    server.server_close()


class Load:
    """One task that is executed again and again."""

    def __init__(self, orders: Orders, target: dict[str, Any], pages: Any = "link", **incremental: Any) -> None:
        self.orders, self.target = orders, target
        self.source = {
            "kind": "http",
            "url": f"{orders.url}/",
            "params": {"since": DeferredTemplate("{{ cursor }}")},
            "pages": pages,
            "rows_path": "rows",
            "incremental": {"cursor": "at", "initial": 0, **incremental},
        }
        self.state: dict[str, Any] = {}
        self.host = ToolHost()

    def run(self, *, commits: bool = True, **changes: Any) -> Outcome:
        """One execution; without `commits` a later step fails, and the state is not stored."""
        self.orders.asked.clear()
        given = {"source": {**self.source, **changes}, "targets": [self.target]}
        outcome = run_tool("transfer", given, host=self.host, state=self.state)
        if outcome.status == "ok" and commits:
            self.state = {**self.state, **outcome.state}
        return outcome

    def ids(self, place: str | None = None) -> list[int]:
        place = place or self.target.get("file") or self.target["auth"]
        return [row[0] for row in execute(place, "select id from orders order by id")]


@pytest.fixture(params=["postgres", "duckdb", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "postgres":
        return {"kind": "postgres", "auth": request.getfixturevalue("database"), "table": "orders", "key": "id"}
    return {"kind": request.param, "file": str(tmp_path / f"t.{request.param}"), "table": "orders", "key": "id"}


@pytest.fixture
def local(tmp_path: Path) -> dict[str, Any]:
    return {"kind": "duckdb", "file": str(tmp_path / "t.duckdb"), "table": "orders", "key": "id"}


@pytest.fixture(autouse=True)
def _every_page_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetl.tools.transfer.progress.load_progress.SHARE", 0)


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("chain", CHAINS)
def test_a_load_continues_at_the_page_where_it_stopped(orders, place, chain, mode):
    load = Load(orders, {**place, "mode": mode}, CHAINS[chain])
    orders.broken = 7
    failed = load.run()
    assert failed.status == "error", failed
    assert load.ids() == list(range(70))
    orders.broken, orders.count = None, 130
    outcome = load.run()
    assert outcome.status == "ok", outcome.error
    assert orders.asked[:7] == [6, 7, 8, 9, 10, 11, 12]  # the one before is compared
    assert load.ids() == list(range(130))
    assert outcome.data["cursor"]["resumed"] == {"page": 8, "rows_before": 70}
    assert outcome.data["cursor"]["to"] == 43
    orders.count = 135
    assert load.run().status == "ok"
    assert load.ids() == list(range(135))
    assert "resumed" not in load.run().data["cursor"]


def test_a_load_that_stops_twice_continues_twice(orders, place):
    load = Load(orders, {**place, "mode": "append"})
    for broken in (3, 9):
        orders.broken = broken
        assert load.run().status == "error"
    orders.broken = None
    assert load.run().status == "ok"
    assert orders.asked == [8, 9, 10, 11]
    assert load.ids() == list(range(120))


def test_rows_of_an_execution_that_failed_later_are_not_appended_again(orders, place):
    load = Load(orders, {**place, "mode": "append"})
    assert load.run(commits=False).status == "ok"
    orders.count = 122  # one of them with the value of the cursor
    again = load.run(commits=False)
    assert again.status == "ok" and again.data["rows"] == 2
    assert any("so this load starts after them" in line for _, line in load.host.lines)
    last = load.run()
    assert last.data["rows"] == 0 and last.state["cursor"] == 40
    assert load.ids() == list(range(122))
    load.host.lines.clear()
    assert load.run().data["rows"] == load.run().data["rows"] == 0  # as usual
    assert not load.host.lines


def test_rows_of_a_table_are_not_appended_again_either(tmp_path, place):
    source = str(tmp_path / "source.duckdb")
    execute(source, "create table o (id int, seen int)", "insert into o select i, i // 3 from range(100) t(i)")
    given = {
        "source": {"kind": "duckdb", "file": source, "table": "o", "incremental": {"cursor": "seen"}},
        "targets": [{**place, "mode": "append"}],
    }
    for _ in range(3):  # the process ends before the cursor is stored
        assert run_tool("transfer", given, state={}).status == "ok"
    target = place.get("file") or place["auth"]
    assert execute(target, "select count(*), count(distinct id) from orders") == [(100, 100)]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_an_emptied_table_is_loaded_from_the_beginning(orders, place, mode):
    load = Load(orders, {**place, "mode": mode})
    orders.broken = 5
    assert load.run().status == "error"
    orders.broken = None
    execute(place.get("file") or place["auth"], "delete from orders")
    assert load.run().status == "ok"
    assert orders.asked[0] == 0 and load.ids() == list(range(120))


def test_a_changed_cursor_is_obeyed(orders, local):
    load = Load(orders, {**local, "mode": "upsert"})
    orders.broken = 5
    assert load.run().status == "error"
    orders.broken = None
    load.state = {"cursor": 0}  # as `noetl state set` does it
    assert load.run().status == "ok"
    assert orders.asked[0] == 0 and load.ids() == list(range(120))
    load.state = {}  # as `noetl state reset` does it: all rows are read again
    assert load.run().data["rows"] == 120


def test_a_page_that_is_gone(orders, local):
    load = Load(orders, {**local, "mode": "upsert"})
    orders.broken = 5
    assert load.run().status == "error"
    outcome = load.run()
    assert orders.asked == [4, 5, 0, 1, 2, 3, 4, 5]  # the position is refused, so it starts again
    assert outcome.status == "error"
    orders.broken = None
    assert load.run().status == "ok" and load.ids() == list(range(120))

    appending = Load(orders, {**local, "table": "orders_appended", "mode": "append"})
    orders.broken = 5
    assert appending.run().status == "error"
    refused = appending.run()
    assert orders.asked == [4, 5]
    assert refused.error is not None and "page 6, where the last load has stopped" in refused.error.message
    assert "noetl_load_progress" in refused.error.message


@pytest.mark.parametrize("chain", CHAINS)
def test_rows_that_have_moved_between_the_pages_are_not_lost(orders, local, chain):
    """A row of the first page is updated after the load has stopped, so that all later rows are one place earlier."""
    local["mode"] = "upsert"
    load = Load(orders, local, CHAINS[chain])
    orders.broken = 4
    assert load.run().status == "error"
    assert load.ids() == list(range(40))
    orders.broken, orders.moved = None, [2]
    again = load.run()
    assert again.status == "ok", again.error
    assert "resumed" not in again.data["cursor"]
    assert load.ids() == list(range(120))
    assert any("page 4 of the API has other rows" in line for _, line in load.host.lines), load.host.lines


def test_rows_that_have_moved_are_not_appended_at_another_place(orders, local):
    load = Load(orders, local)
    orders.broken = 4
    assert load.run().status == "error"
    orders.broken, orders.moved = None, [2]
    again = load.run()
    assert again.status == "error"
    assert "page 4 of the API has other rows" in again.error.message and "noetl_load_progress" in again.error.message
    orders.moved = []
    assert load.run().status == "ok"
    assert load.ids() == list(range(120))


def test_a_changed_source_starts_again_or_says_what_to_do(orders, local):
    load = Load(orders, {**local, "mode": "upsert"})
    orders.broken = 5
    assert load.run().status == "error"
    orders.broken = None
    assert load.run(params={"since": 0, "shop": 7}).status == "ok"
    assert orders.asked[0] == 0

    appending = Load(orders, {**local, "table": "orders_appended", "mode": "append"})
    orders.broken = 5
    assert appending.run().status == "error"
    orders.broken = None
    refused = appending.run(params={"since": 0, "shop": 7})
    assert refused.error is not None and "50 rows of a load that did not end" in refused.error.message
    assert orders.asked == []


def test_two_executions_do_not_append_the_same_page(orders, place):
    """Of two loads that continue at the same time, one fails or finds nothing left; no row is appended twice."""
    load, other = (Load(orders, {**place, "mode": "append"}) for _ in range(2))
    orders.broken = 5
    assert load.run().status == "error"
    orders.broken = None
    reading = other.host.progress
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(load.run()))

    def interrupted(**counts: float) -> None:
        reading(**counts)
        if counts.get("pages") == 8 and place["kind"] == "postgres":
            other.host.progress = reading  # type: ignore[method-assign]
            thread.start()

    other.host.progress = interrupted  # type: ignore[method-assign]
    outcomes.append(other.run())
    if place["kind"] == "postgres":  # the others have one writer at a time
        thread.join(timeout=60)
        errors = [outcome.error.kind for outcome in outcomes if outcome.error is not None]
        assert len(outcomes) == 2 and errors in ([], ["state.conflict"]), outcomes
    assert load.ids() == list(range(120))


def test_an_older_execution_does_not_append_what_a_later_one_has_loaded(orders, local):
    load = Load(orders, {**local, "mode": "append"})
    given = {"source": load.source, "targets": [load.target]}
    newer = run_tool("transfer", given, execution_id="20")
    assert newer.status == "ok"
    orders.count = 125
    assert run_tool("transfer", given, execution_id="21", state=newer.state).status == "ok"
    late = run_tool("transfer", given, execution_id="19")  # continued after both
    assert late.error is not None and late.error.kind == "state.conflict"
    assert load.ids() == list(range(125))


@pytest.mark.parametrize("first", [True, False])
def test_rows_of_an_execution_whose_cursor_conflicts_are_not_appended_again(orders, place, first):
    """It was started before another one has committed its cursor, so it cannot commit its own."""
    load = Load(orders, {**place, "mode": "append"})
    given = {"source": load.source, "targets": [load.target]}
    before: dict[str, Any] = {}
    if not first:
        before = run_tool("transfer", given, execution_id="19").state
        orders.count = 122
    one = run_tool("transfer", given, execution_id="20", state=before)
    assert one.status == "ok"
    orders.count = 125
    assert run_tool("transfer", given, execution_id="21", state=before).status == "ok"
    orders.count = 130
    following = run_tool("transfer", given, execution_id="22", state=one.state)
    assert following.status == "ok" and following.data["rows"] == 5
    assert load.ids() == list(range(130))


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_resume_can_be_turned_off(orders, local, mode):
    load = Load(orders, {**local, "mode": mode}, resume=False)
    orders.broken = 5
    assert load.run().status == "error"
    assert execute(local["file"], "select count(*) from duckdb_tables() where table_name = 'orders'") == [(0,)]
    orders.broken = None
    assert load.run().status == "ok" and orders.asked[0] == 0
    assert load.ids() == list(range(120))


def test_rows_with_child_tables_are_not_appended_again(orders, place):
    load = Load(orders, {**place, "mode": "append", "nested": "tables", "key": None})
    orders.broken = 5
    assert load.run().status == "error"
    orders.broken = None
    for _ in range(3):
        outcome = load.run(commits=False)
        assert outcome.status == "ok", outcome.error
    assert load.ids() == list(range(120))
    load.state = {"cursor": 30, "column": "at"}
    execute(place.get("file") or place["auth"], "drop table orders")
    error = load.run().error
    assert error is not None and "rows up to the cursor 30 were loaded before" in error.message, error


@pytest.mark.parametrize("where", ["beside", "file"])
def test_rows_beside_a_quarantine_are_not_appended_again(tmp_path, place, where):
    bad = (
        {**place, "table": "bad", "key": None}
        if where == "beside"
        else {"kind": "file", "path": str(tmp_path / "bad.jsonl")}
    )
    lines = tmp_path / "orders.jsonl"
    lines.write_text("".join(f'{{"id": {number}, "seen": {number}}}\n' for number in range(10)) + "{wrong\n")
    given = {
        "source": {"kind": "file", "path": str(lines), "incremental": {"cursor": "seen"}},
        "targets": [{**place, "mode": "append"}],
        "bad_rows": "quarantine",
        "quarantine": bad,
    }
    for _ in range(3):  # the process ends before the cursor is stored
        outcome = run_tool("transfer", given, state={})
        assert outcome.status == "ok", outcome.error
        assert outcome.data["quarantined"] == 1
    target = place.get("file") or place["auth"]
    assert execute(target, "select count(*), count(distinct id) from orders") == [(10, 10)]


def test_a_user_who_may_not_create_tables_can_still_load(orders, database):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create table orders (id int primary key, at int)")
        connection.execute("drop role if exists loader")
        connection.execute("create role loader login password 'x'")
        connection.execute("revoke create on schema public from public")
        connection.execute("grant all on orders to loader")
    info = {**psycopg.conninfo.conninfo_to_dict(database), "user": "loader", "password": "x"}
    target = {"kind": "postgres", "auth": psycopg.conninfo.make_conninfo(**info), "table": "orders", "key": "id"}
    try:
        load = Load(orders, {**target, "mode": "upsert"})
        outcome = load.run()
        assert outcome.status == "ok", outcome.error
        assert load.ids(database) == list(range(120))
        assert any("progress of this load is not kept" in line for _, line in load.host.lines)
    finally:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("drop owned by loader")
            connection.execute("drop role loader")


def test_a_url_with_a_secret_is_not_stored(orders, local):
    load = Load(orders, {**local, "mode": "upsert"})
    load.host = ToolHost(credentials={"api": orders.url})
    assert load.run().status == "ok"
    (record,) = execute(local["file"], "select progress from noetl_load_progress")
    assert "start=" not in record[0] and '"done":true' in record[0]


PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: load, path: tests/load}}
workflow:
  - step: orders
    tool:
      name: copy
      kind: transfer
      source:
        kind: http
        url: "{url}/"
        params: {{since: "{{{{ cursor }}}}"}}
        pages: link
        rows_path: rows
        incremental: {{cursor: at, initial: 0}}
      targets: [{{kind: sqlite, file: target.sqlite, table: orders, mode: append}}]
"""


def test_a_killed_process_is_continued_by_the_next(orders, tmp_path):
    (tmp_path / "load.yaml").write_text(PLAYBOOK.format(url=orders.url))
    environ = {**os.environ, "NOETL_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "noetl.clictl", "run", "load.yaml", "--quiet"]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    orders.broken, orders.hangs = 8, True
    process = start()
    assert orders.blocked.wait(60)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    committed = execute(str(tmp_path / "target.sqlite"), "select count(*) from orders")[0][0]
    assert committed >= PAGE
    orders.broken = None
    orders.asked.clear()
    for _ in range(5):  # the execution that the next process continues may be first
        process = start()
        _, errors = process.communicate(timeout=120)
        if process.returncode == 0:
            break
        assert b"state.conflict" in errors, errors
    assert min(orders.asked) == committed // PAGE - 1
    rows = execute(str(tmp_path / "target.sqlite"), "select id from orders order by id")
    assert [row[0] for row in rows] == list(range(120))
