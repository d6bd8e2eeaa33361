"""MySQL as source and target: the conformance suites, types, and what is special about MySQL."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.testing import SourceConformance, TargetConformance, run_tool


def transfer(source, target, host=None, **others):
    return run_tool("transfer", {"source": source, "targets": [target], **others}, host=host)


def open_connections(server):
    query = "SELECT count(*) AS n FROM information_schema.processlist WHERE db = 'noetl'"
    return server.sql(query)[0]["n"]


class TestSource(SourceConformance):
    @pytest.fixture
    def place(self, server):
        return lambda rows: {"kind": "mysql", "auth": server.auth, "table": server.create_table(rows)}

    @pytest.fixture
    def missing(self, server):
        return lambda: {"kind": "mysql", "auth": server.auth, "table": "none"}

    @pytest.fixture
    def connections(self, server):
        return lambda: open_connections(server)


class TestTarget(TargetConformance):
    evolves = True
    nests = True

    @pytest.fixture
    def source(self):
        return lambda fields: {name: fields[name] for name in ("kind", "auth", "table")}

    @pytest.fixture
    def place(self, server):
        return lambda: {"kind": "mysql", "auth": server.auth, "table": server.new_name()}

    @pytest.fixture
    def read(self, server):
        return lambda fields: server.sql(f"SELECT * FROM {fields['table']}")

    @pytest.fixture
    def connections(self, server):
        return lambda: open_connections(server)


class TestTargetWithoutUniqueKey(TestTarget):
    """A table without an index on the key is merged through a temporary table."""

    modes = ("upsert",)
    evolves = False
    nests = False
    creates = False

    @pytest.fixture
    def source(self):
        return None

    @pytest.fixture
    def place(self, server):
        def place():
            table = server.create_table([], "id BIGINT, name LONGTEXT, price DOUBLE, note TEXT, title TEXT")
            return {"kind": "mysql", "auth": server.auth, "table": table, "mode": "upsert", "key": "id"}

        return place

    @pytest.fixture
    def read(self, server):
        def read(fields):
            rows = server.sql(f"SELECT * FROM {fields['table']}")
            used = [
                name for name in ("id", "name", "price", "note", "title") if any(row[name] is not None for row in rows)
            ]
            keep = {"price", "note"} if "price" in used else set()
            return [{name: row[name] for name in row if name in {*used, *keep}} for row in rows]

        return read

    def test_a_mode_that_is_not_supported_is_reported(self):
        pytest.skip("the same kind as above")


EVERY_TYPE = (
    "id BIGINT PRIMARY KEY, ti TINYINT, si SMALLINT UNSIGNED, mi MEDIUMINT, i INT, ub BIGINT UNSIGNED, "
    "dc DECIMAL(20, 4), big DECIMAL(60, 10), f FLOAT, d DOUBLE, c CHAR(3), v VARCHAR(20), t TEXT, b VARBINARY(4), "
    "bl BLOB, da DATE, dt DATETIME(6), ts TIMESTAMP(3) NULL, tm TIME(6), y YEAR, e ENUM('a','b'), s SET('x','y'), "
    "j JSON, bo BOOLEAN"
)


def test_every_type_arrives_as_itself(server, tmp_path):
    table = server.create_table([], EVERY_TYPE)
    server.sql(
        f"INSERT INTO {table} VALUES (1, -1, 65535, -8388608, 2147483647, 18446744073709551615, 1234567890123456.7891, "
        "12345678901234567890123456789012345678901234567890.0123456789, 1.5, 0.1, 'abc', 'ü', 'text', x'00ff', x'de', "
        "'2024-02-29', '2024-02-29 23:59:59.123456', '2024-02-29 12:00:00.500', '23:59:59.999999', 2024, 'b', 'x,y', "
        "'{\"a\": [1, null]}', TRUE)"
    )
    server.sql(f"INSERT INTO {table} (id) VALUES (2)")
    file = tmp_path / "types.parquet"
    outcome = transfer({"kind": "mysql", "auth": server.auth, "table": table}, {"kind": "file", "path": str(file)})
    assert outcome.error is None
    first, second = pq.read_table(file).to_pylist()
    assert {name for name, value in second.items() if value is not None} == {"id"}
    moment = datetime.datetime(2024, 2, 29, 23, 59, 59, 123456)
    expected = {
        "ti": -1, "si": 65535, "mi": -8388608, "i": 2147483647, "ub": 18446744073709551615,
        "dc": Decimal("1234567890123456.7891"), "f": 1.5, "d": 0.1, "c": "abc", "v": "ü", "t": "text", "b": b"\x00\xff",
        "bl": b"\xde", "da": datetime.date(2024, 2, 29), "dt": moment, "tm": datetime.time(23, 59, 59, 999999),
        "ts": datetime.datetime(2024, 2, 29, 12, 0, 0, 500000, tzinfo=datetime.UTC), "y": 2024, "e": "b", "s": "x,y", "bo": 1,
    }  # fmt: skip
    assert {name: first[name] for name in expected} == expected
    assert Decimal(first["big"]) == Decimal("12345678901234567890123456789012345678901234567890.0123456789")


def test_a_copy_equals_its_original(server):
    """MySQL to MySQL, created by the transfer."""
    table = server.create_table([], EVERY_TYPE)
    server.sql(f"INSERT INTO {table} (id, dc, dt, ts, tm, b, v, ub) VALUES (1, 0.0001, '1000-01-01', '1970-01-02', "
               "'00:00:00.000001', x'00', '', 18446744073709551615), (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL)")  # fmt: skip
    copy, columns = server.new_name(), "id, dc, dt, ts, tm, b, v, ub"
    target = {"kind": "mysql", "auth": server.auth, "table": copy}
    source = {"kind": "mysql", "auth": server.auth, "query": f"SELECT {columns} FROM {table}"}
    assert transfer(source, target).error is None
    text = "SELECT id, dc, CAST(dt AS CHAR) AS dt, CAST(ts AS DATETIME(6)) AS ts, tm, hex(b) AS b, v, ub FROM {} ORDER BY id"
    assert server.sql(text.format(copy)) == server.sql(text.format(table))


def test_arrow_types_are_kept_in_a_created_table(server, tmp_path):
    table = pa.table(
        {
            "k": pa.array(["a", "b"]),
            "l": pa.array([[1, None], None]),
            "s": pa.array([{"x": datetime.date(2024, 1, 1)}, None]),
            "z": pa.array([datetime.datetime(2024, 1, 1, 12), None], pa.timestamp("ns", "Europe/Berlin")),
            "n": pa.array([None, None], pa.null()),
            "ok": pa.array([True, None]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    target = {"kind": "mysql", "auth": server.auth, "table": server.new_name(), "mode": "upsert", "key": "k"}
    outcome = transfer({"kind": "file", "path": str(tmp_path / "a.parquet")}, target)
    assert outcome.error is None
    rows = server.sql(f"SELECT k, l, s, CAST(z AS CHAR) AS z, n, ok FROM {target['table']} ORDER BY k")
    assert rows[0] == {
        "k": "a",
        "l": "[1, null]",
        "s": '{"x": "2024-01-01"}',
        "z": "2024-01-01 12:00:00.000000",
        "n": None,
        "ok": 1,
    }


@pytest.mark.parametrize(
    ("target", "said"),
    [({"create": False}, "the table does not exist"), ({"mode": "upsert", "key": "none"}, "'none' is not a column")],
)
def test_an_error_says_what_is_wrong(server, target, said):
    outcome = transfer([{"id": 1}], {"kind": "mysql", "auth": server.auth, "table": server.new_name(), **target})
    assert outcome.error.kind == "schema"
    assert said in outcome.error.message


def test_a_column_that_the_table_lacks_is_named(server):
    table = server.create_table([], "id INT")
    outcome = transfer([{"id": 1, "extra": 2}], {"kind": "mysql", "auth": server.auth, "table": table})
    assert "has no column 'extra'; columns: id" in outcome.error.message


def test_a_table_that_a_failed_transfer_created_is_dropped(server):
    table = server.new_name()
    rows = [{"id": 1}, {"id": 1}]
    bad = {"kind": "mysql", "auth": {**server.auth, "port": 1}, "table": "t"}
    outcome = run_tool(
        "transfer", {"data": rows, "targets": [{"kind": "mysql", "auth": server.auth, "table": table}, bad]}
    )
    assert outcome.error.kind == "db.connection"
    query = "SELECT count(*) AS n FROM information_schema.tables WHERE table_name = %s"
    assert server.sql(query, [table]) == [{"n": 0}]


def test_a_rejected_chunk_does_not_affect_the_others(server):
    table = server.create_table([], "id INT PRIMARY KEY, v VARCHAR(2)")
    rows = [
        {"id": 1, "v": "a"},
        {"id": 2, "v": "b"},
        {"id": 3, "v": "too long"},
        {"id": 4, "v": "d"},
        {"id": 5, "v": "e"},
    ]
    target = {"kind": "mysql", "auth": server.auth, "table": table, "on_error": "continue"}
    outcome = transfer(rows, target, chunk={"size": 2})
    assert outcome.error is None
    assert outcome.data["targets"][0]["failed_chunks"] == 1
    assert [row["id"] for row in server.sql(f"SELECT id FROM {table} ORDER BY id")] == [1, 2, 5]


def test_a_user_without_rights_gets_an_auth_error(server):
    auth = {**server.auth, "user": "reader", "password": "reader"}
    outcome = transfer([{"id": 1}], {"kind": "mysql", "auth": auth, "table": server.new_name()})
    assert outcome.error.kind == "auth"


def test_names_with_quotes_and_dots(server):
    assert (
        transfer([{"a b`c%": 1}], {"kind": "mysql", "auth": server.auth, "table": "noetl.`odd .name%s`"}).error is None
    )
    assert server.sql("SELECT * FROM `odd .name%s`") == [{"a b`c%": 1}]


def test_a_transfer_with_parameters_and_chunks_in_templates(server, tmp_path):
    table = server.create_table([{"id": n, "name": f"n{n}"} for n in range(10)])
    source = {
        "kind": "mysql",
        "auth": server.auth,
        "query": f"SELECT id FROM {table} WHERE id >= :low ORDER BY id",
        "params": {"low": 4},
    }
    outcome = transfer(source, {"kind": "file", "path": str(tmp_path / "x.csv")})
    assert outcome.data["rows"] == 6


@pytest.mark.parametrize("read", ["table", "query"])
@pytest.mark.parametrize("cursor", ["id", "changed at"])
def test_an_incremental_load_reads_only_new_rows(server, tmp_path, read, cursor):
    """The names in the generated condition are quoted as MySQL does."""
    columns = "id BIGINT, `changed at` DATETIME(6)"
    table = server.create_table([{"id": n, "changed at": f"2024-01-0{n} 00:00:00"} for n in (1, 2, 3)], columns)
    place = {"table": table} if read == "table" else {"query": f"SELECT * FROM {table}"}
    source = {"kind": "mysql", "auth": server.auth, **place, "incremental": {"cursor": cursor}}
    target = {"kind": "sqlite", "file": str(tmp_path / "t.sqlite"), "table": "t", "mode": "upsert", "key": "id"}
    first = transfer(source, target)
    assert (first.error, first.data["rows"]) == (None, 3)
    server.sql(f"INSERT INTO {table} VALUES (4, '2024-01-04')")
    again = run_tool("transfer", {"source": source, "targets": [target]}, state=first.state)
    assert (again.error, again.data["rows"]) == (None, 2)  # the new row, and the one at the cursor


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_bad_rows_go_to_a_quarantine_table(server, mode):
    table = server.create_table([], "id BIGINT PRIMARY KEY, name VARCHAR(3) NOT NULL, day DATE, CHECK (id < 100)")
    rows = [
        {"id": 1, "name": "a", "day": "2024-01-31"},
        {"id": 2, "name": None, "day": "2024-01-31"},
        {"id": 3, "name": "long", "day": "2024-01-31"},
        {"id": 4, "name": "d", "day": "soon"},
        {"id": 500, "name": "e", "day": None},
        {"id": 6, "name": "f", "day": None},
    ]
    target = {"kind": "mysql", "auth": server.auth, "table": table, "mode": mode}
    target |= {"key": "id"} if mode == "upsert" else {}
    quarantine = {"table": f"{table}_bad"}
    outcome = transfer({"kind": "data", "data": rows}, target, bad_rows="quarantine", quarantine=quarantine)
    assert outcome.error is None, outcome.error
    assert [row["id"] for row in server.sql(f"SELECT id FROM {table} ORDER BY id")] == [1, 6]
    found = server.sql(f"SELECT position, reason FROM {table}_bad ORDER BY position")
    assert [row["position"] for row in found] == [2, 3, 4, 5]
    assert outcome.data["targets"][0]["rows"] == 2 and outcome.data["quarantined"] == 4
    exceeded = transfer(
        {"kind": "data", "data": rows}, {**target, "mode": "replace"}, quarantine=quarantine, max_bad_rows=3
    )
    assert exceeded.error.kind == "limit"
    assert len(server.sql(f"SELECT id FROM {table}")) == 2


def test_a_contract_keeps_the_attributes_of_a_column(server):
    columns = "id INT NOT NULL PRIMARY KEY, n SMALLINT NOT NULL DEFAULT 7 COMMENT 'of, things', code VARCHAR(3)"
    table = server.create_table([{"id": 1, "n": 5, "code": "abc"}], columns)
    target = {"kind": "mysql", "auth": server.auth, "table": table, "mode": "upsert", "key": "id", "schema": "evolve"}
    rows = [{"id": 1, "n": 1, "code": "x"}, {"id": 2**40, "n": 2**20, "code": "longer"}, {"id": 1, "n": 2, "code": "y"}]
    assert transfer({"kind": "data", "data": rows}, target, chunk={"size": 2}).error is None
    found = server.sql(f"SELECT id, n, code FROM {table} ORDER BY id")
    assert found == [{"id": 1, "n": 2, "code": "y"}, {"id": 2**40, "n": 2**20, "code": "longer"}]
    (created,) = server.sql(f"SHOW CREATE TABLE {table}")
    text = created["Create Table"].lower()
    assert "`n` int(11) not null default 7 comment 'of, things'" in text
    assert "`id` bigint(20) not null" in text and "`code` longtext" in text


def test_a_contract_in_mode_replace_changes_nothing_if_the_source_fails(server, tmp_path):
    table = server.create_table([{"id": 1, "name": "a"}])
    target = {"kind": "mysql", "auth": server.auth, "table": table, "mode": "replace", "schema": "freeze"}
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": 2, "name": "b"}\n' * 3 + "{broken\n")
    outcome = transfer({"kind": "file", "path": str(file)}, target, chunk={"size": 1})
    assert outcome.error is not None
    assert [row["id"] for row in server.sql(f"SELECT id FROM {table}")] == [1]


def test_every_type_keeps_its_value_from_every_source(server, tmp_path):
    from type_page import Missing, as_utc, check, json_text, matrix

    missing = {
        "double: NaN, infinity": Missing("there is no NaN and no infinity: such a value fails the transfer"),
        "timestamptz": Missing("there is no zone: the instant is stored as a datetime in UTC", as_utc),
        "json": Missing("in MariaDB it is text with a check, and a source gives it as text", json_text),
    }

    def read(target):
        table = target["table"]
        kinds = server.sql(
            "SELECT column_name AS name, column_type AS kind FROM information_schema.columns "
            "WHERE table_schema = 'noetl' AND table_name = %(table)s ORDER BY ordinal_position",
            {"table": table},
        )
        rows = server.sql(f"SELECT * FROM {table} ORDER BY id")
        return [
            matrix.Stored(each["kind"], [row[each["name"]] for row in rows]) for each in kinds if each["name"] != "id"
        ]

    def place():
        return {"kind": "mysql", "auth": server.auth, "table": server.new_name()}

    def source(target):
        return {"kind": "mysql", "auth": server.auth, "query": f"SELECT * FROM {target['table']} ORDER BY id"}

    page = Path(__file__).parents[1] / "types.md"
    check(page, tmp_path, {"mysql": (place, read)}, source=source, exceptions=missing)


def test_a_source_is_one_statement(server, host):
    name = server.create_table([])
    source = {"kind": "mysql", "auth": "shop", "query": f"SELECT 1 AS a; DROP TABLE {name}"}
    outcome = run_tool("transfer", {"source": source, "targets": [{"kind": "file", "path": "out.csv"}]}, host=host)
    assert (outcome.error.kind, outcome.error.message) == (
        "schema",
        "the source: `query` must be one statement, not 2",
    )
    assert server.sql(f"SELECT count(*) AS n FROM {name}") == [{"n": 0}]


# ── contracts ────────────────────────────────────────────────────────────────────────────


def load(server, table, rows, **others):
    target = {"kind": "mysql", "auth": server.auth, "table": table, "schema": "evolve", **others}
    outcome = run_tool("transfer", {"data": rows, "targets": [target]})
    assert outcome.error is None, outcome.error


@pytest.mark.parametrize("unique", [True, False])
def test_an_upsert_with_a_contract_keeps_the_columns_that_the_rows_lack(server, unique):
    table = server.new_name()
    load(server, table, [{"id": 1, "a": 1, "b": 2}], mode="upsert" if unique else "append", key="id")
    load(server, table, [{"id": 1, "a": 9}, {"id": 2, "a": 3}], mode="upsert", key="id")
    rows = server.sql(f"SELECT id, a, b FROM {table} ORDER BY id")
    assert rows == [{"id": 1, "a": 9, "b": 2}, {"id": 2, "a": 3, "b": None}]


def test_a_failed_merge_of_rows_with_other_columns_changes_nothing(server, tmp_path):
    """Rows with other columns are merged by other statements, and none of them commits."""
    table = server.create_table([{"id": 1, "a": 0}], "id BIGINT, a BIGINT, b BIGINT, CHECK (b < 5)")
    for number, text in enumerate(("id,a\n1,7\n", "id,b\n2,9\n")):
        (tmp_path / f"{number}.csv").write_text(text)
    target = {"kind": "mysql", "auth": server.auth, "table": table, "schema": "evolve", "mode": "upsert", "key": "id"}
    outcome = transfer({"kind": "file", "path": str(tmp_path / "*.csv")}, target)
    assert outcome.error.kind == "db.constraint", outcome
    assert server.sql(f"SELECT * FROM {table}") == [{"id": 1, "a": 0, "b": None}]


class Pages(BaseHTTPRequestHandler):
    """The pages of an API, each of one row."""

    rows = ({"id": 1, "a": 1}, {"id": 1, "b": 2}, {"id": 1, "a": 3})

    def do_GET(self):
        number = int(self.path.rpartition("=")[2])
        content = json.dumps(self.rows[number - 1 : number]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("unique", [True, False])
def test_pages_with_other_columns_are_merged_in_their_order(server, unique):
    table = server.new_name()
    load(server, table, [{"id": 1, "a": 0, "b": 7, "c": 7}], mode="upsert" if unique else "append", key="id")
    target = {"kind": "mysql", "auth": server.auth, "table": table, "schema": "evolve", "mode": "upsert", "key": "id"}
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as api:
        Thread(target=api.serve_forever, daemon=True).start()
        source = {"kind": "http", "url": f"http://127.0.0.1:{api.server_port}/rows", "pages": {"param": "page"}}
        outcome = transfer(source, target)
        api.shutdown()
    assert outcome.error is None, outcome.error
    assert server.sql(f"SELECT a, c FROM {table}") == [{"a": 3, "c": 7}]


def test_a_column_of_json_becomes_text(server):
    table = server.new_name()
    for value in ({"a": 1}, [1], "text", {"a": 2}):
        load(server, table, [{"v": value}])
    assert [row["v"] for row in server.sql(f"SELECT v FROM {table}")] == ['{"a":1}', "[1]", "text", '{"a":2}']


def test_numbers_that_no_decimal_holds_become_text(server):
    table = server.new_name()
    for value in (1e-40, 2**60 + 1):
        load(server, table, [{"v": value}])
    assert [row["v"] for row in server.sql(f"SELECT v FROM {table}")] == ["1e-40", str(2**60 + 1)]


def test_a_key_becomes_text_that_can_be_indexed(server):
    table = server.new_name()
    for value in (1, "x", "x"):
        load(server, table, [{"id": value}], mode="upsert", key="id")
    assert [row["id"] for row in server.sql(f"SELECT id FROM {table} ORDER BY id")] == ["1", "x"]


def test_keys_that_differ_in_spaces_or_case_are_other_rows(server):
    table = server.new_name()
    load(server, table, [{"id": value} for value in ("a", "a ", "A", "ä")], mode="upsert", key="id")
    assert {row["id"] for row in server.sql(f"SELECT id FROM {table}")} == {"a", "a ", "A", "ä"}


def test_names_that_differ_in_case_are_one_column(server):
    table = server.new_name()
    load(server, table, [{"Name": 1}])
    load(server, table, [{"name": 2}])
    assert server.sql(f"SELECT * FROM {table}") == [{"Name": 1}, {"Name": 2}]


@pytest.mark.parametrize(
    ("column", "value", "type", "stored"),
    [
        ("TINYINT(1)", 1, "tinyint(1)", "1"),
        ("TINYINT", 300, "smallint(6)", "300"),
        ("TINYINT UNSIGNED", -1, "smallint(6)", "-1"),
        ("SMALLINT UNSIGNED", 65535, "smallint(5) unsigned", "65535"),
        ("MEDIUMINT", 100_000, "mediumint(9)", "100000"),
        ("INT UNSIGNED", -1, "bigint(20)", "-1"),
        ("BIGINT UNSIGNED", -1, "decimal(20,0)", "-1"),
        ("VARCHAR(3)", 12345, "longtext", "12345"),
        ("TINYTEXT", "x" * 300, "longtext", "x" * 300),
        ("TEXT", "x" * 20_000, "text", "x" * 20_000),
        ("DATETIME", "2024-01-01T00:00:00.5", "datetime(6)", "2024-01-01 00:00:00.500000"),
        ("TIME", "10:00:00.5", "time(6)", "10:00:00.500000"),
    ],
)
def test_a_column_is_widened_as_far_as_a_value_needs_it(server, column, value, type, stored):
    table = server.create_table([], f"v {column}")
    target = {"kind": "mysql", "auth": server.auth, "table": table, "schema": "evolve"}
    assert transfer([{"v": value}], target).error is None
    assert server.sql(f"SELECT CAST(v AS CHAR) AS v FROM {table}") == [{"v": stored}]
    query = "SELECT column_type AS t FROM information_schema.columns WHERE table_name = %s"
    assert server.sql(query, [table]) == [{"t": type}]


def test_a_table_with_booleans_is_copied_again(server):
    """A source gives booleans as numbers, which are no reason to change the column."""
    table, copy = server.create_table([], "id INT PRIMARY KEY, b BOOLEAN"), server.create_table([], "id INT, b BOOLEAN")
    server.sql(f"INSERT INTO {table} VALUES (1, TRUE), (2, FALSE)")
    target = {"kind": "mysql", "auth": server.auth, "table": copy, "schema": "freeze", "mode": "replace"}
    for _ in range(2):
        assert transfer({"kind": "mysql", "auth": server.auth, "table": table}, target).error is None
    assert server.sql(f"SELECT b FROM {copy} ORDER BY id") == [{"b": 1}, {"b": 0}]


@pytest.mark.parametrize("key", ["", "PRIMARY KEY"])
def test_an_upsert_does_not_depend_on_the_pages_of_its_rows(server, tmp_path, key):
    for parts in ([[{"id": 1, "a": 1}], [{"id": 2, "b": 2}]], [[{"id": 2, "b": 2}], [{"id": 1, "a": 1}]]):
        table = server.create_table([], f"id BIGINT {key}, a BIGINT DEFAULT 5, b BIGINT, c TEXT")
        server.sql(f"INSERT INTO {table} VALUES (1, 9, 9, 'kept'), (2, 9, 9, 'kept')")
        for number, rows in enumerate(parts):
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{number}.parquet")
        target = {
            "kind": "mysql", "auth": server.auth, "table": table, "mode": "upsert", "key": "id", "schema": "evolve",
        }  # fmt: skip
        assert transfer({"kind": "file", "path": str(tmp_path / "*.parquet")}, target).error is None
        assert server.sql(f"SELECT * FROM {table} ORDER BY id") == [
            {"id": 1, "a": 1, "b": None, "c": "kept"},
            {"id": 2, "a": None, "b": 2, "c": "kept"},
        ]


@pytest.mark.parametrize("size", [1, 100])
def test_booleans_beside_texts_are_the_same_text_for_every_chunk_size(server, size):
    table = server.create_table([], "id INT, v BOOLEAN, t TEXT, j JSON")
    server.sql(f"INSERT INTO {table} VALUES (1, TRUE, 'old', '[]'), (2, 5, '1', NULL)")
    values = [True, "x", False]
    rows = [{"id": number, "v": value, "t": value, "j": number == 3} for number, value in enumerate(values, start=3)]
    target = {"kind": "mysql", "auth": server.auth, "table": table, "schema": "evolve"}
    assert transfer(rows, target, chunk={"size": size}).error is None
    found = server.sql(f"SELECT v, t, j FROM {table} ORDER BY id")
    assert [row["v"] for row in found] == ["true", "5", "true", "x", "false"]
    assert [row["t"] for row in found] == ["old", "1", "true", "x", "false"]
    assert [row["j"] for row in found][2:] == ["true", "false", "false"]


@pytest.mark.parametrize("schema", [{}, {"schema": "evolve"}])
def test_texts_beside_other_values_have_no_quotes_in_a_text_column(server, schema):
    table = server.create_table([], "id INT, v VARCHAR(20), n INT")
    rows = [{"id": 1, "v": "x", "n": 1}, {"id": 2, "v": 5, "n": "7"}, {"id": 3, "v": {"a": "b"}, "n": None}]
    assert transfer(rows, {"kind": "mysql", "auth": server.auth, "table": table, **schema}).error is None
    found = server.sql(f"SELECT v, n FROM {table} ORDER BY id")
    assert found == [{"v": "x", "n": 1}, {"v": "5", "n": 7}, {"v": '{"a":"b"}', "n": None}]
    created = {"kind": "mysql", "auth": server.auth, "table": server.new_name(), **schema}
    assert transfer(rows, created).error is None
    assert server.sql(f"SELECT v FROM {created['table']} ORDER BY id")[0] == {"v": '"x"'}


def test_a_bad_row_after_a_change_of_the_table_is_quarantined(server, tmp_path):
    """ALTER TABLE ends the transaction, and with it the savepoint of a chunk."""
    table = server.create_table([], "id INT PRIMARY KEY, v VARCHAR(3) NOT NULL")
    rows = [{"id": 1, "v": "a", "new": 1}, {"id": 2, "v": None, "new": 2}, {"id": 3, "v": "longer", "new": 3}]
    target = {"kind": "mysql", "auth": server.auth, "table": table, "schema": "evolve"}
    quarantine = {"kind": "file", "path": str(tmp_path / "bad.jsonl")}
    outcome = transfer(rows, target, bad_rows="quarantine", quarantine=quarantine, chunk={"size": 1})
    assert outcome.error is None
    assert server.sql(f"SELECT * FROM {table} ORDER BY id") == [
        {"id": 1, "v": "a", "new": 1},
        {"id": 3, "v": "longer", "new": 3},
    ]
    assert [json.loads(line)["position"] for line in (tmp_path / "bad.jsonl").read_text().splitlines()] == [2]


def test_bytes_in_lists_are_base64(server, tmp_path):
    pq.write_table(pa.table({"id": [1], "b": pa.array([[b"\x00\xff", None]])}), tmp_path / "a.parquet")
    target = {"kind": "mysql", "auth": server.auth, "table": server.new_name()}
    assert transfer({"kind": "file", "path": str(tmp_path / "a.parquet")}, target).error is None
    assert server.sql(f"SELECT b FROM {target['table']}") == [{"b": '["AP8=", null]'}]
