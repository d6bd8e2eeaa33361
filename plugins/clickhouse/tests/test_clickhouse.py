"""ClickHouse's engine behind its HTTP contract."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import certificates
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tls_proxy import tls_proxy

from noetl.testing import SourceConformance, TargetConformance, run_tool
from noetl.tool import jsonable


class TestSource(SourceConformance):
    @pytest.fixture
    def place(self, server):
        def store(rows):
            table = server.new_name()
            server.rows(
                f"CREATE TABLE {table} (id Int64, name String, price Float64, note Nullable(String)) ENGINE = Memory"
            )
            target = {"kind": "clickhouse", "auth": server.auth, "table": table}
            if rows:
                assert run_tool("transfer", {"data": rows, "targets": [target]}).error is None
            return target

        return store

    @pytest.fixture
    def missing(self, server):
        return lambda: {"kind": "clickhouse", "auth": server.auth, "table": "none"}


class TestTarget(TargetConformance):
    @pytest.fixture
    def place(self, server):
        return lambda: {"kind": "clickhouse", "auth": server.auth, "table": server.new_name()}

    @pytest.fixture
    def read(self, server):
        return lambda fields: server.rows(f"SELECT * FROM {fields['table']}")


@pytest.mark.parametrize("read", ["table", "query"])
@pytest.mark.parametrize(
    ("cursor", "type"),
    [
        ("id", "Int64"), ("changed at", "DateTime64(6, 'UTC')"), ("changed at", "DateTime"), ("changed at", "Date32"),
        ("code", "String"), ("price", "Decimal(20, 4)"), ("price", "Float64"),
    ],
)  # fmt: skip
def test_an_incremental_load_reads_only_new_rows(server, tmp_path, read, cursor, type):
    """The value of the cursor is a parameter of its type."""
    table = server.new_name()
    columns = {"id": "Int64", "changed at": "DateTime64(6, 'UTC')", "code": "String", "price": "Float64"} | {
        cursor: type
    }
    server.rows(f"CREATE TABLE {table} ({', '.join(f'`{n}` {t}' for n, t in columns.items())}) ENGINE = Memory")
    for number in (1, 2, 3, 4):
        if number == 4:
            source = {"kind": "clickhouse", "auth": server.auth, "incremental": {"cursor": cursor}}
            source |= (
                {"table": table} if read == "table" else {"query": f"SELECT * FROM {table} WHERE id < {{most:Int64}}"}
            )
            source |= {"params": {"most": 100}} if read == "query" else {}
            target = {"kind": "sqlite", "file": str(tmp_path / "t.sqlite"), "table": "t", "mode": "upsert", "key": "id"}
            first = run_tool("transfer", {"source": source, "targets": [target]})
            assert (first.error, first.data["rows"]) == (None, 3)
        day = f"2024-01-0{number}" + ("" if type == "Date32" else " 10:00:00")
        server.rows(f"INSERT INTO {table} VALUES ({number}, '{day}', 'a\\'{number}', {number}.25)")
    again = run_tool("transfer", {"source": source, "targets": [target]}, state=first.state)
    assert (again.error, again.data["rows"]) == (None, 2)  # the new row, and the one at the cursor


def run(server, command, **given):
    return run_tool("clickhouse", {"auth": server.auth, "command": command, **given})


def test_a_query_with_parameters(server):
    outcome = run(
        server, "SELECT {a:String} AS a, {n:Int64} + 1 AS n, 1 ? 'yes' : 'no' AS c", params={"a": "it's", "n": 4}
    )
    assert outcome.error is None
    assert outcome.data["rows"] == [{"a": "it's", "n": 5, "c": "yes"}]


def test_a_statement_without_a_result(server):
    table = server.new_name()
    assert run(server, f"CREATE TABLE {table} (n Int64) ENGINE = Memory").data["rows"] == []
    assert run(server, f"SELECT count() AS n FROM {table}").data["rows"] == [{"n": 0}]


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"command": "SELEC 1"}, "db.syntax", "Syntax error"),
        ({"command": "SELECT * FROM nowhere"}, "not_found", "nowhere"),
        ({"command": "SELECT 1", "auth": {"host": "127.0.0.1", "port": 1}}, "db.connection", "clickhouse"),
        ({"command": "SELECT 1", "auth": "ftp://x"}, "schema", "http://"),
    ],
)
def test_an_error_says_what_is_wrong(server, given, kind, said):
    outcome = run_tool("clickhouse", {"auth": server.auth, **given})
    assert (outcome.error.kind, said in outcome.error.message) == (kind, True), outcome.error


def test_a_wrong_password_is_an_auth_error(server):
    outcome = run_tool("clickhouse", {"auth": {**server.auth, "password": "wrong"}, "command": "SELECT 1"})
    assert outcome.error.kind == "auth"


def test_no_staging_table_remains(server):
    names = {row["name"] for row in server.rows("SELECT name FROM system.tables WHERE database = 'noetl'")}
    assert not {name for name in names if name.startswith("noetl_")}


def test_every_type_keeps_its_value_from_every_source(server, tmp_path):
    from type_page import Missing, as_local, check, json_text, matrix

    missing = {
        "timestamp": Missing(
            "there is none without a zone: a source gives the instant in the zone of the server", as_local
        ),
        "json": Missing("it is stored as text, and a source gives text", json_text),
        "bytes": Missing("a target stores bytes in a String; a source needs UTF-8 text: select hex(...) of them"),
    }

    def read(target):
        kinds = server.rows(
            "SELECT name, type FROM system.columns "
            f"WHERE database = 'noetl' AND table = '{target['table']}' ORDER BY position"
        )
        stored = []
        for each in kinds:
            if each["name"] == "id":
                continue
            name, is_array = each["name"], each["type"].startswith("Array")
            text = f"concat(toString({name}), 'Z')" if "UTC" in each["type"] else f"toString({name})"
            text = f"arrayMap(x -> toString(x), {name})" if is_array else text
            rows = server.rows(f"SELECT {text} AS v FROM {target['table']} ORDER BY id")
            stored.append(matrix.Stored(each["type"], [row["v"] for row in rows]))
        return stored

    def place():
        return {"kind": "clickhouse", "auth": server.auth, "table": server.new_name()}

    def source(target):
        return {"kind": "clickhouse", "auth": server.auth, "query": f"SELECT * FROM {target['table']} ORDER BY id"}

    page = Path(__file__).parents[1] / "types.md"
    check(page, tmp_path, {"clickhouse": (place, read)}, source=source, exceptions=missing)


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("String", "x'; DROP \\ \t\n\r\"ü😀"),
        ("Array(String)", ["a','b", 'c"d', "e\\f", "g\nh", "ü"]),
        ("Array(Array(String))", [["x'"], []]),
        ("Array(Nullable(Int32))", [1, None, 3]),
        ("Array(Bool)", [True, False]),
        ("Map(String, String)", {"k'x": 'v"y'}),
        ("Nullable(String)", None),
    ],
)
def test_a_parameter_has_exactly_its_value(server, type, value):
    command = f"SELECT {{v:{type}}} AS v"
    outcome = run_tool("clickhouse", {"auth": server.auth, "command": command, "params": {"v": value}})
    assert outcome.error is None, outcome.error
    assert outcome.data["rows"] == [{"v": value}]


@pytest.mark.parametrize("name", ["query", "param_x", "user", "database"])
def test_a_setting_cannot_change_the_request(server, name):
    given = {"auth": server.auth, "command": "SELECT 1 AS a", "settings": {name: "x"}}
    outcome = run_tool("clickhouse", given)
    assert outcome.error.kind == "schema"
    assert name in outcome.error.message


def test_a_connection_that_fails_names_the_address_and_what_to_check(server):
    given = {"auth": {**server.auth, "tls": True}, "command": "SELECT 1 AS a"}
    outcome = run_tool("clickhouse", given)
    assert outcome.error.kind == "db.connection"
    assert f"cannot connect to 127.0.0.1:{server.auth['port']}" in outcome.error.message
    assert "check `tls`" in outcome.error.message


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(server, status):
    """They would send the password to another server."""
    import http.server
    import threading

    requests: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(self.path)
            self.send_response(status)
            self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as redirecting:
        threading.Thread(target=redirecting.serve_forever, daemon=True).start()
        auth = {"host": "127.0.0.1", "port": redirecting.server_address[1], "user": "u", "password": "p"}
        outcome = run_tool("clickhouse", {"auth": auth, "command": "SELECT 1"})
        redirecting.shutdown()
    assert outcome.status == "error"
    assert str(status) in outcome.error.message
    assert len(requests) == 1


def test_a_parameter_that_is_too_long_is_explained(server):
    given = {"auth": server.auth, "command": "SELECT {a:String} AS a", "params": {"a": "x" * 200_000}}
    outcome = run_tool("clickhouse", given)
    assert outcome.error.kind == "limit", outcome.error
    assert "<" not in outcome.error.message


def test_texts_beside_other_values_have_no_quotes(server):
    rows = [{"id": 1, "v": 'say "x"'}, {"id": 2, "v": 5}, {"id": 3, "v": {"a": "b"}}, {"id": 4, "v": None}]
    target = {"kind": "clickhouse", "auth": server.auth, "table": server.new_name()}
    for _ in range(2):
        assert run_tool("transfer", {"data": rows, "targets": [{**target, "mode": "replace"}]}).error is None
        found = server.rows(f"SELECT v FROM {target['table']} ORDER BY id")
        assert [row["v"] for row in found] == ['say "x"', "5", '{"a":"b"}', None]


def test_values_in_lists_are_plain_json(server, tmp_path):
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    table = pa.table(
        {"b": pa.array([[b"\x00\xff", None]]), "t": pa.array([[moment]]), "d": pa.array([[Decimal("1.50")]])}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    target = {"kind": "clickhouse", "auth": server.auth, "table": server.new_name()}
    source = {"kind": "file", "path": str(tmp_path / "a.parquet")}
    assert run_tool("transfer", {"source": source, "targets": [target]}).error is None
    [found] = server.rows(f"SELECT b, t, d FROM {target['table']}")
    plain = {"b": ["AP8=", None], "t": jsonable([moment]), "d": jsonable([Decimal("1.50")])}
    assert {name: json.loads(text) for name, text in found.items()} == plain


@pytest.fixture
def answering(server):
    """A server that answers every statement with the status 200 and these bytes."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    content: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            self.end_headers()  # HTTP/1.0: the end of the connection is the end of the response
            self.wfile.write(content[0])

        def log_message(self, *_) -> None:
            return

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()

    def answer(given: bytes) -> dict:
        content[:] = [given]
        return {"host": "127.0.0.1", "port": http.server_port}

    yield answer
    http.shutdown()
    thread.join()
    http.server_close()


def stream(*, end: bool) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("n", pa.int64())])) as writer:
        for _ in range(2):
            writer.write_batch(pa.record_batch({"n": pa.array([1, 2])}))
    return sink.getvalue().to_pybytes()[: None if end else -8]


LIMIT = b"Code: 241. DB::Exception: Memory limit exceeded. (MEMORY_LIMIT_EXCEEDED)\n"


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        (stream(end=False) + LIMIT, "limit", "Memory limit exceeded"),
        (stream(end=True) + LIMIT, "limit", "Memory limit exceeded"),
        (LIMIT, "limit", "Memory limit exceeded"),
        (stream(end=False), "db.connection", "not a complete Arrow stream"),
        (b"<html>", "db.connection", "not a complete Arrow stream"),
    ],
    ids=["error between rows", "error after rows", "error without rows", "cut", "a page"],
)
def test_an_answer_that_breaks_off_is_an_error(answering, tmp_path, content, kind, said):
    auth = answering(content)
    source = {"kind": "clickhouse", "auth": auth, "query": "SELECT 1"}
    file = tmp_path / "x.parquet"
    for outcome in (
        run_tool("clickhouse", {"auth": auth, "command": "SELECT 1"}),
        run_tool("transfer", {"source": source, "targets": [{"kind": "file", "path": str(file)}]}),
    ):
        assert (outcome.error.kind, said in outcome.error.message, file.exists()) == (kind, True, False)


@pytest.fixture(scope="module")
def tls_ports(server, tmp_path_factory):
    folders = tmp_path_factory.mktemp("right"), tmp_path_factory.mktemp("other")
    right, other = certificates.create(folders[0]), certificates.create(folders[1], "DNS:elsewhere.example")
    address = ("127.0.0.1", server.auth["port"])
    with tls_proxy(right, address) as first, tls_proxy(other, address) as second:
        yield {"right": (str(right.ca), first), "other": (str(other.ca), second)}


@pytest.mark.parametrize(
    ("fields", "port", "said"),
    [
        ({"ca": "right"}, "right", None),
        ({"tls": True, "verify": False}, "right", None),
        ({"tls": True}, "right", "certificate verify failed"),
        ({"ca": "other"}, "right", "certificate verify failed"),
        ({"ca": "other"}, "other", "certificate is not valid for '127.0.0.1'"),
    ],
    ids=["authority", "not verified", "unknown authority", "other authority", "other name"],
)
def test_the_certificate_of_the_server_is_checked(server, tls_ports, fields, port, said):
    given = {name: tls_ports[value][0] if name == "ca" else value for name, value in fields.items()}
    auth = {**server.auth, "port": tls_ports[port][1], **given}
    outcome = run_tool("clickhouse", {"auth": auth, "command": "SELECT 1 AS n"})
    if said is None:
        assert (outcome.error, outcome.data["rows"]) == (None, [{"n": 1}])
    else:
        assert (outcome.error.kind, said in outcome.error.message) == ("db.connection", True)
        assert "check `tls`, `port`, `ca` and `verify`" in outcome.error.message
