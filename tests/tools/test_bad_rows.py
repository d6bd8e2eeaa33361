"""Bad rows: every source and every target, with the reason and the position of each row, and nothing lost."""

from __future__ import annotations

import gzip
import json
import sqlite3
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.core.model.outcome import Outcome
from noetl.core.templates.deferred import DeferredTemplate
from noetl.data.files import json_lines
from noetl.testing.tools import ToolHost, run_tool

PARTS = ("endpoint", "access_key_id", "secret_access_key", "region")
AMOUNTS = ["1", "2", "many", "4", "5", "6", "few", "8", "9", "10"]  # rows 3 and 7 are bad
IDS = list(range(1, 11))
GOOD = [1, 2, 4, 5, 6, 8, 9, 10]
TYPES = {"amount": "bigint"}


def move(folder: Path, source: Any, *targets: Any, **others: Any) -> Outcome:
    given = {"source": source} if isinstance(source, dict) else {"data": source}
    return run_tool("transfer", {**given, "targets": list(targets), **others}, host=ToolHost(folder=folder))


def good(outcome: Outcome) -> Any:
    assert outcome.error is None, outcome.error
    return outcome.data


def failure(outcome: Outcome) -> str:
    assert outcome.error is not None
    return outcome.error.message


def bad_rows(folder: Path, name: str = "bad.jsonl") -> list[dict[str, Any]]:
    """The rows of a quarantine file."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def check_counts(summary: dict[str, Any]) -> None:
    """Rows read are written, quarantined or discarded, for each target."""
    for target in summary["targets"]:
        discarded = target.get("discarded", {}).get("rows", 0)
        lost = summary["unreadable"] + target["quarantined"]
        assert summary["read"] == target["rows"] + lost + discarded


QUARANTINE = {"bad_rows": "quarantine", "quarantine": {"kind": "file", "path": "bad.jsonl"}}

# ── sources ──────────────────────────────────────────────────────────────────────────────────


class Place:
    """Where a test has its files and servers."""

    def __init__(self, folder: Path, dsn: str, s3: dict[str, Any], bucket: str) -> None:
        self.folder = folder
        self.dsn = dsn
        self.auth = {name: s3[name] for name in PARTS}
        self.bucket = bucket
        self.url = ""

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name


def rows() -> list[dict[str, Any]]:
    return [{"id": n, "amount": int(a) if a.isdigit() else a} for n, a in zip(IDS, AMOUNTS, strict=True)]


def csv_text() -> str:
    return "id,amount\n" + "".join(f"{n},{a}\n" for n, a in zip(IDS, AMOUNTS, strict=True))


def jsonl_text() -> str:
    return "".join(json.dumps(row) + "\n" for row in rows())


def xlsx(path: Path) -> None:
    names = "".join(f'<c r="{c}2" t="inlineStr"><is><t>{n}</t></is></c>' for c, n in (("A", "id"), ("B", "amount")))
    lines = [f'<row r="2">{names}</row>']
    for number, row in enumerate(rows(), 3):
        value = row["amount"]
        cell = f"<v>{value}</v>" if isinstance(value, int) else f"<is><t>{value}</t></is>"
        kind = "" if isinstance(value, int) else ' t="inlineStr"'
        cells = f'<c r="A{number}"><v>{row["id"]}</v></c><c r="B{number}"{kind}>{cell}</c>'
        lines.append(f'<row r="{number}">{cells}</row>')
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"><Default Extension="xml" '
        'ContentType="application/xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
        f'Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets>'
        '<sheet name="S" sheetId="1" r:id="r1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
        f'Type="{office}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>{"".join(lines)}</sheetData></worksheet>',
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def text_table(connect: Callable[[], Any], mark: str) -> None:
    connection = connect()
    connection.execute("create table given (id int, amount text)")
    for n, a in zip(IDS, AMOUNTS, strict=True):
        connection.execute(f"insert into given values ({mark}, {mark})", (n, a))
    connection.commit()
    connection.close()


def make_source(kind: str, place: Place) -> tuple[dict[str, Any], str, tuple[int, int]]:
    """The source, what the quarantine calls it, and the positions of the two bad rows."""
    folder = place.folder
    match kind:
        case "csv":
            return {"kind": "file", "path": place.write("in.csv", csv_text())}, "in.csv", (4, 8)
        case "csv.gz":
            (folder / "in.csv.gz").write_bytes(gzip.compress(csv_text().encode()))
            return {"kind": "file", "path": "in.csv.gz"}, "in.csv.gz", (4, 8)
        case "jsonl":
            return {"kind": "file", "path": place.write("in.jsonl", jsonl_text())}, "in.jsonl", (3, 7)
        case "json":
            return {"kind": "file", "path": place.write("in.json", json.dumps(rows()))}, "in.json", (3, 7)
        case "parquet":
            pq.write_table(pa.table({"id": IDS, "amount": AMOUNTS}), folder / "in.parquet")
            return {"kind": "file", "path": "in.parquet"}, "in.parquet", (3, 7)
        case "excel":
            xlsx(folder / "in.xlsx")
            return {"kind": "file", "path": "in.xlsx"}, "in.xlsx", (5, 9)
        case "fixed":
            text = "".join(f"{n:<4}{a:<8}\n" for n, a in zip(IDS, AMOUNTS, strict=True))
            source = {"kind": "file", "path": place.write("in.txt", text), "format": "fixed"}
            return {**source, "widths": {"id": 4, "amount": 8}, "types": {**TYPES, "id": "bigint"}}, "in.txt", (3, 7)
        case "http":
            url = f"{place.url}/rows"
            pages = {"param": "page", "start": 0, "size": 5}
            return {"kind": "http", "url": url, "pages": pages}, f"{place.url}/rows?page=0 (page 1)", (3, 2)
        case "sqlite":
            text_table(lambda: sqlite3.connect(folder / "in.sqlite"), "?")
            return {"kind": "sqlite", "file": "in.sqlite", "table": "given"}, "sqlite given", (3, 7)
        case "duckdb":
            text_table(lambda: duckdb.connect(str(folder / "in.duckdb")), "?")
            query = "select * from given order by id"
            return {"kind": "duckdb", "file": "in.duckdb", "query": query}, "duckdb query", (3, 7)
        case "postgres":
            text_table(lambda: psycopg.connect(place.dsn), "%s")
            query = "select * from given order by id"
            return {"kind": "postgres", "auth": place.dsn, "query": query}, "postgres query", (3, 7)
        case "s3":
            for name, text in (("a", csv_text()), ("b", "id,amount\n11,11\n")):
                put = {"uri": f"s3://{place.bucket}/in/{name}.csv", "auth": place.auth, "data": text, "format": "text"}
                good(run_tool("object", put))
            objects: dict[str, Any] = {"kind": "s3", "auth": place.auth, "path": f"s3://{place.bucket}/in/*.csv"}
            return objects, f"s3://{place.bucket}/in/a.csv", (4, 8)
    assert kind == "data"
    return {"kind": "data", "data": rows()}, "data", (3, 7)


SOURCES = ["csv", "csv.gz", "jsonl", "json", "parquet", "excel", "fixed", "http", "sqlite", "duckdb", "postgres", "s3",
           "data"]  # fmt: skip
TARGETS = ["postgres", "duckdb", "sqlite", "parquet", "csv", "s3", "partitions"]


def make_target(kind: str, place: Place, table: str = "t") -> dict[str, Any]:
    match kind:
        case "postgres":
            return {"kind": "postgres", "auth": place.dsn, "table": table}
        case "duckdb" | "sqlite":
            return {"kind": kind, "file": f"out.{kind}", "table": table}
        case "s3":
            return {"kind": "s3", "auth": place.auth, "path": f"s3://{place.bucket}/out/o.parquet"}
        case "partitions":
            return {"kind": "file", "path": "out", "partition_by": ["id"]}
    return {"kind": "file", "path": f"out.{kind}"}


def ids_in(kind: str, place: Place) -> list[int]:
    """The ids in the target, read by another program."""
    match kind:
        case "postgres":
            with psycopg.connect(place.dsn) as connection:
                found = connection.execute("select id from t").fetchall()
        case "duckdb":
            with duckdb.connect(str(place.folder / "out.duckdb")) as database:
                found = database.execute("select id from t").fetchall()
        case "sqlite":
            with sqlite3.connect(place.folder / "out.sqlite") as lite:
                found = lite.execute("select id from t").fetchall()
        case "s3":
            got = good(run_tool("object", {"uri": f"s3://{place.bucket}/out/o.parquet", "auth": place.auth}))
            return sorted(row["id"] for row in got["rows"])
        case _:
            path = {"partitions": "out/**/*.parquet"}.get(kind, f"out.{kind}")
            found = duckdb.execute(f"select id from '{place.folder / path}'").fetchall()
    return sorted(int(row[0]) for row in found)


@pytest.fixture
def place(tmp_path: Path, database: str, s3: dict[str, Any], bucket: str) -> Iterator[Place]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = int(self.path.rpartition("=")[2])
            body = json.dumps(rows()[page * 5 : page * 5 + 5]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    found = Place(tmp_path, database, s3, bucket)
    found.url = f"http://127.0.0.1:{server.server_port}"
    yield found
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_rows_that_cannot_be_read_are_quarantined(source: str, target: str, place: Place) -> None:
    given, name, positions = make_source(source, place)
    given = {"types": TYPES, **given}
    summary = good(move(place.folder, given, make_target(target, place), chunk={"size": 4}, **QUARANTINE))
    more = [11] if source == "s3" else []
    assert ids_in(target, place) == GOOD + more
    found = bad_rows(place.folder)
    assert [int(row["row"]["id"]) for row in found] == [3, 7]
    assert [row["row"]["amount"] for row in found] == ["many", "few"]
    assert tuple(row["position"] for row in found) == positions
    assert found[0]["source"] == name
    assert found[1]["source"] == name.replace("page=0 (page 1)", "page=1 (page 2)")
    assert all("amount" in row["reason"] and row["target"] == "the source" for row in found)
    assert (summary["read"], summary["rows"]) == (10 + len(more), 8 + len(more))
    assert (summary["unreadable"], summary["quarantined"]) == (2, 2)
    check_counts(summary)


@pytest.mark.parametrize("source", SOURCES)
def test_without_a_quarantine_the_error_names_the_first_bad_row(source: str, place: Place) -> None:
    fields, name, (first, _) = make_source(source, place)
    message = failure(move(place.folder, {**fields, "types": TYPES}, make_target("sqlite", place)))
    assert f"{name}: row {first}: the column 'amount'" in message or f"{name}: line {first}: the column" in message


@pytest.mark.parametrize("ends", [b"\r\n", b"\r", b"mixed"])
def test_every_kind_of_line_end_is_read(tmp_path: Path, ends: bytes) -> None:
    mixed = b"id,amount\r\n1,2\n2,x\r\n3,4\n"
    text = mixed if ends == b"mixed" else ends.join(mixed.splitlines()) + ends
    (tmp_path / "in.csv").write_bytes(text)
    source, target = {"kind": "file", "path": "in.csv"}, {"kind": "file", "path": "o.jsonl"}
    good(move(tmp_path, source, target))
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert rows == [{"id": 1, "amount": "2"}, {"id": 2, "amount": "x"}, {"id": 3, "amount": "4"}]
    summary = good(move(tmp_path, {**source, "types": TYPES}, target, **QUARANTINE))
    assert summary["rows"] == 2 and [row["position"] for row in bad_rows(tmp_path)] == [3]


@pytest.mark.parametrize("target", ["postgres", "duckdb", "sqlite"])
@pytest.mark.parametrize("source", SOURCES)
def test_rows_that_a_table_rejects_are_quarantined(source: str, target: str, place: Place) -> None:
    given, name, _ = make_source(source, place)
    if source in ("csv", "csv.gz", "s3", "excel", "parquet", "json"):
        given = {"types": {"amount": "text"}, **given}
    if source == "fixed":
        given["types"] = {"id": "bigint"}
    if source in ("jsonl", "http", "data"):
        given["types"] = {"amount": "text"}
    create = "create table t (id bigint primary key, amount text check (amount <> 'many' and amount <> 'few'))"
    run_sql(target, place, create, "insert into t values (5, 'here')")
    summary = good(move(place.folder, given, make_target(target, place), chunk={"size": 4}, **QUARANTINE))
    more = [11] if source == "s3" else []
    assert ids_in(target, place) == GOOD + more
    found = bad_rows(place.folder)
    assert sorted(int(row["row"]["id"]) for row in found) == [3, 5, 7]
    assert {row["source"] for row in found} <= {name, name.replace("page=0 (page 1)", "page=1 (page 2)")}
    assert all(row["target"].startswith("target 0") for row in found)
    assert all("constraint" in row["reason"].lower() for row in found)
    assert summary["unreadable"] == 0 and summary["targets"][0]["quarantined"] == 3
    check_counts(summary)


def run_sql(kind: str, place: Place, *statements: str) -> list[Any]:
    found: list[Any] = []
    if kind == "postgres":
        with psycopg.connect(place.dsn, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
                found = cursor.fetchall() if cursor.description else []
    elif kind == "duckdb":
        with duckdb.connect(str(place.folder / "out.duckdb")) as database:
            for statement in statements:
                found = database.execute(statement).fetchall()
    else:
        with sqlite3.connect(place.folder / "out.sqlite") as lite:
            for statement in statements:
                found = lite.execute(statement).fetchall()
    return found


# ── quarantine tables ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["postgres", "duckdb", "sqlite"])
def test_a_quarantine_table_beside_the_target_needs_only_its_name(kind: str, place: Place) -> None:
    target = {**make_target(kind, place), "bad_rows": "quarantine", "quarantine": {"table": "t_bad"}}
    source = {"kind": "file", "path": place.write("in.csv", csv_text()), "types": TYPES}
    for _ in range(2):
        summary = good(move(place.folder, source, {**target, "mode": "upsert", "key": "id"}))
        assert summary["quarantine"][0] | {"place": "t_bad", "rows": 2} == summary["quarantine"][0]
    found = run_sql(kind, place, "select reason, source, position from t_bad order by position")
    # The id of a row is stable within an execution: the same attempt again adds nothing.
    assert [row[1:] for row in found] == [("in.csv", 4), ("in.csv", 8)]
    assert json.loads(run_sql(kind, place, "select cast(row as text) from t_bad order by position")[0][0])["id"] in (
        3,
        "3",
    )


@pytest.mark.parametrize("kind", ["postgres", "duckdb", "sqlite"])
def test_a_quarantine_table_exists_also_without_bad_rows(kind: str, place: Place) -> None:
    target = {**make_target(kind, place), "bad_rows": "quarantine", "quarantine": {"table": "t_bad"}}
    for second, count in ((2, 0), ("x", 1), (2, 1)):
        rows = [{"id": 1, "amount": "1"}, {"id": second, "amount": "1"}]
        place.write("in.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
        source = {"kind": "file", "path": "in.jsonl", "types": {"id": "bigint"}}
        assert good(move(place.folder, source, target))["rows"] == (1 if second == "x" else 2)
        assert run_sql(kind, place, "select count(*), count(reason), count(quarantined_at) from t_bad") == [
            (count,) * 3
        ]


@pytest.mark.parametrize("path", ["bad.parquet", "bad.csv", "s3", "folder/"])
def test_a_quarantine_is_any_file_or_object(path: str, place: Place) -> None:
    source = {"kind": "file", "path": place.write("in.csv", csv_text()), "types": TYPES}
    address = f"s3://{place.bucket}/bad.parquet" if path == "s3" else path
    quarantine = {"kind": "s3", "auth": place.auth, "path": address} if path == "s3" else {"path": address}
    good(move(place.folder, source, make_target("sqlite", place), bad_rows="quarantine", quarantine=quarantine))
    if path == "s3":
        found = good(run_tool("object", {"uri": address, "auth": place.auth}))["rows"]
    else:
        files = list((place.folder / "folder").iterdir()) if path == "folder/" else [place.folder / path]
        assert len(files) == 1
        got = duckdb.execute(f"select position from '{files[0]}'").fetchall()
        found = [{"position": row[0]} for row in got]
    assert [row["position"] for row in found] == [4, 8]


@pytest.mark.parametrize("kind", ["postgres", "duckdb", "sqlite"])
def test_a_quarantine_with_other_columns_is_named_in_the_error(kind: str, place: Place) -> None:
    target = {**make_target(kind, place), "bad_rows": "quarantine", "quarantine": {"table": "t_bad"}}
    run_sql(kind, place, "create table t_bad (other int)")
    source = {"kind": "file", "path": place.write("in.csv", csv_text()), "types": TYPES}
    message = failure(move(place.folder, source, target))
    assert "the quarantine: " in message and "its columns are row, reason" in message, message


def test_a_quarantine_file_holds_the_bad_rows_of_the_last_transfer(tmp_path: Path) -> None:
    target = {"kind": "file", "path": "o.jsonl"}
    (tmp_path / "in.jsonl").write_text('{"a": 1}\nno json\n')
    good(move(tmp_path, {"kind": "file", "path": "in.jsonl"}, target, **QUARANTINE))
    assert [(row["row"], row["position"]) for row in bad_rows(tmp_path)] == [("no json", 2)]
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n')
    good(move(tmp_path, {"kind": "file", "path": "in.jsonl"}, target, **QUARANTINE))
    assert bad_rows(tmp_path) == []


# ── what is bad ──────────────────────────────────────────────────────────────────────────────


def test_lines_that_are_no_csv(tmp_path: Path) -> None:
    lines = [b"id,name", b"1,a", b"2,b,c", b"3", b"", b'4,"two', b'lines"', b"5,\xff", b'6,"open', b"7,x", b'8,5" pipe']
    (tmp_path / "in.csv").write_bytes(b"\n".join(lines) + b"\n")
    summary = good(
        move(tmp_path, {"kind": "file", "path": "in.csv"}, {"kind": "file", "path": "o.jsonl"}, **QUARANTINE)
    )
    written = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [(row["id"], row["name"]) for row in written] == [(1, "a"), (4, "two\nlines"), (7, "x"), (8, '5" pipe')]
    found = {row["position"]: row for row in bad_rows(tmp_path)}
    assert sorted(found) == [3, 4, 8, 9]
    assert found[3]["row"] == "2,b,c" and "3 values, the first line has 2" in found[3]["reason"]
    assert "1 values" in found[4]["reason"] and "UTF-8" in found[8]["reason"] and found[9]["row"] == '6,"open'
    assert summary["read"] == 8
    check_counts(summary)


def test_values_that_do_not_have_the_type_that_dominates_a_column(tmp_path: Path) -> None:
    text = "id,day\n" + "".join(f"{n},2024-01-01\n" for n in range(1, 30_001)) + "x,2024-01-01\n30002,none\n"
    (tmp_path / "in.csv").write_text(text)
    target = {"kind": "duckdb", "file": "o.duckdb", "table": "t"}
    assert "30002" in failure(move(tmp_path, {"kind": "file", "path": "in.csv"}, target))
    summary = good(move(tmp_path, {"kind": "file", "path": "in.csv"}, target, **QUARANTINE))
    assert (summary["rows"], summary["unreadable"]) == (30_000, 2)
    assert [(row["position"], row["row"]) for row in bad_rows(tmp_path)] == [
        (30_002, {"id": "x", "day": "2024-01-01"}),
        (30_003, {"id": "30002", "day": "none"}),
    ]
    with duckdb.connect(str(tmp_path / "o.duckdb")) as database:
        assert database.execute("select typeof(id), typeof(day) from t limit 1").fetchall() == [("BIGINT", "DATE")]


def test_lines_that_are_no_json_objects(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n[1]\n{"a": \n{ }\n{"a": 2, "b": {"c": 1}}\n')
    summary = good(
        move(tmp_path, {"kind": "file", "path": "in.jsonl"}, {"kind": "file", "path": "o.jsonl"}, **QUARANTINE)
    )
    written = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert written == [{"a": 1, "b": None}, {"a": None, "b": None}, {"a": 2, "b": {"c": 1}}]
    assert [(row["position"], row["row"]) for row in bad_rows(tmp_path)] == [(3, "[1]"), (4, '{"a":')]
    check_counts(summary)


@pytest.mark.parametrize("other", ["[1, 2]", "5", '"x"', "null", " null ", "true", "-1.5"])
@pytest.mark.parametrize("at", [0, 1, 3, 20_000])
def test_a_line_that_is_no_object_among_objects(tmp_path: Path, other: str, at: int) -> None:
    lines = [f'{{"a": {n}}}' for n in range(max(at, 3))]
    lines.insert(at, other)
    (tmp_path / "in.jsonl").write_text("\n\n" + "\r\n".join(lines))
    given = {"kind": "file", "path": "in.jsonl"}, {"kind": "file", "path": "o.jsonl"}
    message = failure(move(tmp_path, *given))
    assert f"in.jsonl: line {at + 3:,} is not a JSON object, and other lines are" in message
    assert not (tmp_path / "o.jsonl").exists()
    good(move(tmp_path, *given, **QUARANTINE))
    assert [(row["position"], row["row"]) for row in bad_rows(tmp_path)] == [(at + 3, other.strip())]
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) == max(at, 3)


@pytest.mark.parametrize("length", range(-3, 4))
def test_the_first_characters_of_lines_at_the_end_of_a_block(tmp_path: Path, length: int) -> None:
    blank = " " * (json_lines.BLOCK - len('{"a": 1}\n') + length)
    (tmp_path / "in.jsonl").write_text(f'{{"a": 1}}\n{blank}{{"a": 2}}\n')
    given = {"kind": "file", "path": "in.jsonl"}, {"kind": "file", "path": "o.jsonl"}
    good(move(tmp_path, *given))
    (tmp_path / "in.jsonl").write_text(f'{{"a": 1}}\n{blank}null\n{{"a": 2}}\n')
    assert "in.jsonl: line 2 is not a JSON object" in failure(move(tmp_path, *given))


def test_files_of_objects_beside_files_of_lists(tmp_path: Path) -> None:
    (tmp_path / "in1.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "in2.jsonl").write_text("[1]\n")
    given = {"kind": "file", "path": "in*.jsonl"}, {"kind": "file", "path": "o.jsonl"}
    assert "in2.jsonl: line 1 is not a JSON object" in failure(move(tmp_path, *given))


def test_lines_without_objects_are_one_column(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('1\n"x"\n[1, 2]\nnull\n')
    good(move(tmp_path, {"kind": "file", "path": "in.jsonl"}, {"kind": "file", "path": "o.jsonl"}))
    written = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert written == [{"json": 1}, {"json": "x"}, {"json": [1, 2]}, {"json": None}]


def test_the_mode_changes_nothing_for_good_rows(tmp_path: Path) -> None:
    header = "id,name,price,at,zip,flag,empty,quoted\n"
    lines = [f'{n},"n ""{n}""",{n}.50,2024-01-0{n} 10:00:00,0{n},true,,""\n' for n in range(1, 6)]
    (tmp_path / "in.csv").write_text(header + "".join(lines))
    (tmp_path / "in.jsonl").write_text(
        "".join(
            json.dumps({"id": n, "at": "2024-01-01T00:00:00", "doc": {"n": n}, "big": 2**70}) + "\n" for n in (1, 2)
        )
    )
    for name in ("in.csv", "in.jsonl"):
        good(move(tmp_path, {"kind": "file", "path": name}, {"kind": "file", "path": "plain.parquet"}))
        good(move(tmp_path, {"kind": "file", "path": name}, {"kind": "file", "path": "checked.parquet"}, **QUARANTINE))
        assert pq.read_table(tmp_path / "plain.parquet").equals(pq.read_table(tmp_path / "checked.parquet"))


@pytest.mark.parametrize("kind", ["postgres", "duckdb", "sqlite"])
def test_constraints_of_every_kind(kind: str, place: Place) -> None:
    run_sql(
        kind,
        place,
        "create table other (id int primary key)",
        "insert into other values (1)",
        "create table t (id int primary key, a int not null, b int check (b < 10), c int unique, "
        "d int references other (id))",
    )
    given = [
        {"id": 1, "a": 1, "b": 1, "c": 1, "d": 1},
        {"id": 2, "a": None, "b": 1, "c": 2, "d": 1},
        {"id": 3, "a": 1, "b": 11, "c": 3, "d": 1},
        {"id": 4, "a": 1, "b": 1, "c": 1, "d": 1},
        {"id": 5, "a": 1, "b": 1, "c": 5, "d": 7},
        {"id": 1, "a": 1, "b": 1, "c": 6, "d": 1},
        {"id": 7, "a": 1, "b": None, "c": None, "d": None},
    ]
    target = make_target(kind, place)
    assert move(place.folder, given, target).error is not None
    summary = good(move(place.folder, given, target, **QUARANTINE))
    expected = [1, 7]
    assert ids_in(kind, place) == expected
    assert len(bad_rows(place.folder)) == 7 - len(expected)
    check_counts(summary)


@pytest.mark.parametrize("kind", ["postgres", "duckdb", "sqlite"])
def test_upsert_needs_a_key_in_every_row(kind: str, place: Place) -> None:
    given = [{"id": 1, "a": "x"}, {"id": None, "a": "y"}, {"id": 1, "a": "z"}]
    target = {**make_target(kind, place), "mode": "upsert", "key": "id"}
    summary = good(move(place.folder, given, target, **QUARANTINE))
    assert run_sql(kind, place, "select id, a from t") == [(1, "z")]
    assert [(row["row"]["a"], row["position"]) for row in bad_rows(place.folder)] == [("y", 2)]
    check_counts(summary)


def test_values_that_do_not_fit_the_columns_of_a_table(place: Place) -> None:
    for kind in ("postgres", "duckdb"):
        run_sql(kind, place, "create table t (id int, day date, price decimal(5, 2))")
        given = [
            {"id": 1, "day": "2024-01-01", "price": 1.5},
            {"id": 2, "day": "soon", "price": 1.5},
            {"id": 3, "day": "2024-01-01", "price": 12345.5},
        ]
        summary = good(move(place.folder, given, make_target(kind, place), **QUARANTINE))
        assert ids_in(kind, place) == [1]
        assert [row["position"] for row in bad_rows(place.folder)] == [2, 3]
        check_counts(summary)


def test_many_bad_rows_in_a_large_chunk(place: Place) -> None:
    run_sql("postgres", place, "create table t (id int check (id % 50 <> 0), name text)")
    given = {"kind": "duckdb", "query": "select range::int as id, 'a\n' || range as name from range(1, 5001)"}
    summary = good(move(place.folder, given, make_target("postgres", place), **QUARANTINE))
    assert ids_in("postgres", place) == [n for n in range(1, 5_001) if n % 50]
    assert sorted(row["row"]["id"] for row in bad_rows(place.folder)) == list(range(50, 5_001, 50))
    assert all(row["position"] == row["row"]["id"] for row in bad_rows(place.folder))
    check_counts(summary)


def test_templates_that_fail_for_a_row(tmp_path: Path) -> None:
    given = [{"id": 1, "a": 2}, {"id": 2, "a": 0}, {"id": 3, "a": 4.0}]
    mapping = {"id": "id", "share": DeferredTemplate("{{ 8 / row.a }}")}
    target = {"kind": "file", "path": "o.jsonl", "mapping": mapping}
    summary = good(move(tmp_path, given, target, **QUARANTINE))
    written = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert written == [{"id": 1, "share": 4.0}, {"id": 3, "share": 2.0}]
    assert [(row["row"], row["position"]) for row in bad_rows(tmp_path)] == [({"id": 2, "a": 0.0}, 2)]
    check_counts(summary)


@pytest.mark.parametrize("kind", ["postgres", "duckdb"])
@pytest.mark.parametrize("columns", ["freeze", "discard_row", "discard_value", "evolve"])
def test_schema_contracts_reject_rows_instead_of_the_transfer(kind: str, columns: str, place: Place) -> None:
    run_sql(kind, place, "create table t (id smallint, name text)")
    given = [{"id": 1, "name": "a"}, {"id": 2, "name": "b", "new": 1}, {"id": 100_000, "name": "c"}]
    target = {**make_target(kind, place), "schema": {"columns": columns, "types": "freeze"}}
    summary = good(move(place.folder, given, target, **QUARANTINE))
    expected = {"freeze": [1], "discard_row": [1], "discard_value": [1, 2], "evolve": [1, 2]}[columns]
    assert ids_in(kind, place) == expected
    assert sorted(row["row"]["id"] for row in bad_rows(place.folder)) == sorted({1, 2, 100_000} - {*expected})
    check_counts(summary)


def test_decimals_that_a_file_has_no_room_for(tmp_path: Path) -> None:
    given = [{"id": 1, "n": "1.5"}, {"id": 2, "n": "1e-30"}, {"id": 3, "n": "2.5"}]
    source = {"kind": "data", "data": given, "types": {"n": "numeric"}}
    summary = good(move(tmp_path, source, {"kind": "file", "path": "o.parquet"}, chunk={"size": 1}, **QUARANTINE))
    assert pq.read_table(tmp_path / "o.parquet").column("id").to_pylist() == [1, 3]
    assert [row["row"]["id"] for row in bad_rows(tmp_path)] == [2]
    check_counts(summary)


# ── several targets, limits ──────────────────────────────────────────────────────────────────


def test_each_target_has_its_own_bad_rows(place: Place) -> None:
    run_sql("postgres", place, "create table t (id int check (id > 3), amount int)")
    source = {"kind": "file", "path": place.write("in.csv", csv_text()), "types": TYPES}
    targets = [make_target("postgres", place), make_target("parquet", place)]
    summary = good(move(place.folder, source, *targets, **QUARANTINE))
    assert ids_in("postgres", place) == GOOD[2:] and ids_in("parquet", place) == GOOD
    assert [target["quarantined"] for target in summary["targets"]] == [2, 0]
    assert (summary["unreadable"], summary["quarantined"]) == (2, 4)
    check_counts(summary)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize(("most", "fails"), [(1, True), (2, False), ("19%", True), ("20%", False), (0, True)])
def test_more_bad_rows_than_allowed_fail_the_transfer(kind: str, most: Any, fails: bool, place: Place) -> None:
    source = {"kind": "file", "path": place.write("in.csv", csv_text()), "types": TYPES}
    target = make_target(kind, place)
    outcome = move(place.folder, source, target, max_bad_rows=most, chunk={"size": 2}, **QUARANTINE)
    if not fails:
        assert good(outcome)["quarantined"] == 2
        return
    assert outcome.error is not None and outcome.error.kind == "limit"
    assert "in.csv, 4:" in outcome.error.message and "max_bad_rows" in outcome.error.message
    assert not (place.folder / "bad.jsonl").exists()
    left = [path.name for path in place.folder.rglob("*") if path.is_file() and path.name != "in.csv"]
    match kind:
        case "postgres":
            assert run_sql(kind, place, "select to_regclass('t')") == [(None,)]
        case "duckdb":
            assert run_sql(kind, place, "select * from duckdb_tables()") == []
        case "sqlite":
            assert run_sql(kind, place, "select * from sqlite_master") == []
        case "s3":
            listed = good(run_tool("object", {"action": "list", "uri": f"s3://{place.bucket}/out", "auth": place.auth}))
            assert listed["count"] == 0
        case _:
            assert left == []


def test_a_failure_of_the_target_is_no_bad_row(place: Place) -> None:
    target = {"kind": "postgres", "auth": place.dsn, "table": "t", "create": False}
    assert "does not exist" in failure(move(place.folder, rows(), target, **QUARANTINE))
    run_sql("postgres", place, "create table t (other int)")
    assert "column" in failure(move(place.folder, rows(), target, **QUARANTINE))
    assert not (place.folder / "bad.jsonl").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bad_rows": "quarantine"}, "requires `quarantine"),
        ({"bad_rows": "keep"}, "not one of fail, quarantine"),
        ({**QUARANTINE, "max_bad_rows": "many"}, "a number of rows or a share"),
        ({**QUARANTINE, "max_bad_rows": -1}, "a number of rows or a share"),
        ({**QUARANTINE, "max_bad_rows": "101%"}, "a number of rows or a share"),
        ({"bad_rows": "quarantine", "quarantine": {"kind": "http", "url": "http://x"}}, "a table or a file"),
    ],
)
def test_wrong_fields(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert said in failure(move(tmp_path, [{"a": 1}], {"kind": "file", "path": "o.csv"}, **given))


# ── errors name the object ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name", ["in.csv", "in.csv.gz", "in.jsonl", "in.jsonl.gz", "in.json", "in.parquet", "in.arrow"]
)
@pytest.mark.parametrize("where", ["file", "glob", "s3", "s3 glob"])
def test_errors_name_the_file_and_never_a_copy(name: str, where: str, place: Place) -> None:
    text = {"csv": "a,b\n1,2\n3\n", "json": '[{"a": 1}, {"a": ]', "jsonl": '{"a": 1}\n{"a":\n'}
    content = text.get(name.split(".")[1], "neither").encode()
    content = gzip.compress(content) if name.endswith(".gz") else content
    if where.startswith("s3"):
        put = {"uri": f"s3://{place.bucket}/{name}", "auth": place.auth, "data": content, "format": "bytes"}
        good(run_tool("object", put))
        path = f"s3://{place.bucket}/" + (f"*{name[2:]}" if "glob" in where else name)
        source: dict[str, Any] = {"kind": "s3", "auth": place.auth, "path": path}
        shown = f"s3://{place.bucket}/{name}"
    else:
        (place.folder / name).write_bytes(content)
        source = {"kind": "file", "path": f"*{name[2:]}" if where == "glob" else name}
        shown = name
    message = failure(move(place.folder, source, {"kind": "file", "path": "o.csv"}))
    assert shown in message and "noetl-transfer-" not in message, message


@pytest.mark.parametrize(("bad", "status"), [(0, "ok"), (28, "ok"), (29, "ok"), (30, "error"), (100, "error")])
def test_a_share_of_bad_rows_is_counted_exactly(tmp_path: Path, bad: int, status: str) -> None:
    lines = ["n", *("x" if number < bad else str(number) for number in range(100))]
    (tmp_path / "in.csv").write_text("\n".join(lines))
    source = {"kind": "file", "path": "in.csv", "types": {"n": "integer"}}
    outcome = move(tmp_path, source, {"kind": "file", "path": "out.jsonl"}, max_bad_rows="29%", **QUARANTINE)
    assert outcome.status == status, outcome.error


def test_a_share_of_no_rows_is_kept(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("n\n")
    source = {"kind": "file", "path": "in.csv", "types": {"n": "integer"}}
    outcome = move(tmp_path, source, {"kind": "file", "path": "out.jsonl"}, max_bad_rows="1%", **QUARANTINE)
    assert good(outcome)["quarantined"] == 0
