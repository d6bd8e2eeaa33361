"""Every type keeps its value from every source to every target; the page of the matrix states what the test has found."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from devcluster import services
from noetl.core.model.outcome import Outcome
from noetl.testing.tools import ToolHost, run_tool
from tests.tools import type_matrix as matrix
from tests.tools.sheet_files import write_workbook


@pytest.fixture(scope="module")
def ends(postgres: dict[str, Any], s3: dict[str, Any]) -> Iterator[matrix.Ends]:
    with matrix.open_ends(postgres, s3) as found:
        yield found


def test_every_type_keeps_its_value_on_every_pair_of_ends(ends: matrix.Ends) -> None:
    cells, wrong = matrix.measure(ends)
    assert wrong == []
    assert matrix.PAGE.read_text() == matrix.page(cells), "run python -m tests.tools.type_matrix"


def move(folder: Path, source: Any, *targets: Any) -> Outcome:
    return run_tool("transfer", {"source": source, "targets": list(targets)}, host=ToolHost(folder=folder))


def one(dsn: str, query: str) -> Any:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(query).fetchone()  # type: ignore[call-overload]
        assert row is not None
        return row[0]


# The value of a Postgres expression, as each target has it.
EDGES = [
    ("'NaN'::numeric", "NaN", "NaN", "NaN"),
    ("'infinity'::date", "infinity", "infinity", "infinity"),
    ("'-infinity'::timestamptz", "-infinity", "-infinity", "-infinity"),
    ("'0044-03-15 BC'::date", "0044-03-15 BC", "0044-03-15 (BC)", "0044-03-15 BC"),
    ("'24:00'::time", "24:00:00", "24:00:00", "24:00:00"),
    ("'12:30:00+02'::timetz", "12:30:00+02", "12:30:00+02", "12:30:00+02"),
    ("'10.1.2.3/24'::inet", "10.1.2.3/24", "10.1.2.3/24", "10.1.2.3/24"),
    ("'[1,5)'::int4range", "[1,5)", "[1,5)", "[1,5)"),
    ("'null'::jsonb", "null", "null", None),
    ("'$12.50'::money", "$12.50", "$12.50", "$12.50"),
    ("repeat('9', 200)::numeric", "9" * 200, "9" * 200, int("9" * 200)),
    ("'{24:00,NULL}'::time[]", "{24:00:00,NULL}", "['24:00:00', NULL]", ["24:00:00", None]),
    (
        "'{infinity,0044-03-15 BC}'::date[]",
        '{infinity,"0044-03-15 BC"}',
        "[infinity, '0044-03-15 (BC)']",
        ["infinity", "0044-03-15 BC"],
    ),
    ("'{0.1}'::real[]", "{0.1}", "[0.1]", [0.1]),
    ("1e-30::numeric", "0." + "0" * 29 + "1", "0." + "0" * 29 + "1", 1e-30),
]


@pytest.mark.parametrize(("expression", "in_postgres", "in_duckdb", "in_json"), EDGES, ids=[e[0] for e in EDGES])
def test_rare_values_keep_their_meaning(
    tmp_path: Path, database: str, expression: str, in_postgres: str, in_duckdb: str, in_json: Any
) -> None:
    source = {"kind": "postgres", "auth": database, "query": f"SELECT {expression} AS v"}
    outcome = move(
        tmp_path,
        source,
        {"kind": "postgres", "auth": database, "table": "out"},
        {"kind": "duckdb", "file": "o.duckdb", "table": "out"},
        {"kind": "file", "path": "o.jsonl"},
    )
    assert outcome.error is None, outcome.error
    assert one(database, "SELECT v::text FROM out") == in_postgres
    with duckdb.connect(str(tmp_path / "o.duckdb")) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        assert connection.execute("SELECT v::VARCHAR FROM out").fetchall() == [(in_duckdb,)]
    assert json.loads((tmp_path / "o.jsonl").read_text())["v"] == in_json


@pytest.mark.parametrize("kind", ["sqlite", "xlsx", "fixed"])
def test_text_of_json_keeps_every_digit(tmp_path: Path, kind: str) -> None:
    text = '{"n": 0.1000000000000000055511151231257827, "m": 1.10}'
    sources = {
        "sqlite": {"kind": "sqlite", "file": "in.sqlite", "table": "t"},
        "xlsx": {"kind": "file", "path": "in.xlsx"},
        "fixed": {"kind": "file", "path": "in.txt", "format": "fixed", "widths": {"v": 80}},
    }
    with sqlite3.connect(tmp_path / "in.sqlite") as connection:
        connection.execute("CREATE TABLE t (v)")
        connection.execute("INSERT INTO t VALUES (?)", [text])
    write_workbook(tmp_path / "in.xlsx", [["v"], [text]])
    (tmp_path / "in.txt").write_text(text + "\n")
    source = {**sources[kind], "types": {"v": "json"}}
    outcome = move(tmp_path, source, {"kind": "file", "path": "o.parquet"})
    assert outcome.error is None, outcome.error
    assert pq.read_table(tmp_path / "o.parquet").column("v").to_pylist() == [text]
    (tmp_path / "in.txt").write_text("[1\n")
    outcome = move(tmp_path, {**sources["fixed"], "types": {"v": "json"}}, {"kind": "file", "path": "o.parquet"})
    assert outcome.error is not None and '"[1" is not JSON' in outcome.error.message


STATEMENTS = {"bulk": "SELECT v FROM t", "rows": "WITH w AS (INSERT INTO log VALUES (1)) SELECT v FROM t"}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_documents_and_ranges_keep_every_digit_of_a_statement(tmp_path: Path, database: str, statement: str) -> None:
    documents = ['{"n": 0.1000000000000000055511151231257827}', "null", "12345678901234567890.10"]
    source = {"kind": "postgres", "auth": database, "query": STATEMENTS[statement]}
    for kind, values in {"jsonb": documents, "int4range": ["(,5)", "[1,)", "empty"]}.items():
        with psycopg.connect(database) as connection:
            connection.execute("DROP TABLE IF EXISTS t, log, out; CREATE TABLE log (n int)")
            connection.execute(f"CREATE TABLE t (v {kind})")  # type: ignore[arg-type]
            for value in values:
                connection.execute(f"INSERT INTO t VALUES (%s::text::{kind})", [value])  # type: ignore[arg-type]
        target = {"kind": "postgres", "auth": database, "table": "out", "schema": "evolve"}
        outcome = move(tmp_path, source, target, {"kind": "file", "path": "o.jsonl"})
        assert outcome.error is None, outcome.error
        assert one(database, "SELECT array_agg(v::text) FROM out") == values
        texts = values if kind == "jsonb" else [json.dumps(value) for value in values]
        assert (tmp_path / "o.jsonl").read_text() == "".join(f'{{"v":{text.replace(": ", ":")}}}\n' for text in texts)


def test_lists_are_written_as_documents_and_as_bytes_to_their_columns(tmp_path: Path, database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE out (d jsonb[], n numeric[], b bytea[])")
    documents = [{"a": 1}, "null", None, [1]]
    arrays = {
        "d": pa.array([json.dumps(documents)], pa.json_()),
        "n": pa.array(["[0.1000000000000000055511151231257827]"], pa.json_()),
        "b": pa.array([[b"\x00A", None]], pa.list_(pa.binary())),
    }
    pq.write_table(pa.table(arrays), tmp_path / "in.parquet")
    target = {"kind": "postgres", "auth": database, "table": "out"}
    outcome = move(tmp_path, {"kind": "file", "path": "in.parquet"}, target)
    assert outcome.error is None, outcome.error
    assert one(database, "SELECT d FROM out") == documents
    assert one(database, "SELECT n::text || b::text FROM out") == (
        '{0.1000000000000000055511151231257827}{"\\\\x0041",NULL}'
    )


def test_values_do_not_depend_on_the_settings_of_the_database(tmp_path: Path, database: str, postgres: Any) -> None:
    query = "SELECT n::numeric, d, r, i FROM dated"
    with services.fresh_database(postgres) as other:
        with psycopg.connect(other, autocommit=True) as connection:
            name = connection.info.dbname
            connection.execute("CREATE TABLE dated (n int, d date, r daterange, i interval)")
            connection.execute("INSERT INTO dated VALUES (1, '2024-02-01', '[2024-02-01,2024-02-03)', '-1 day 1:00')")
            for setting in ("DateStyle = 'SQL, DMY'", "IntervalStyle = 'sql_standard'"):
                connection.execute(f"ALTER DATABASE {name} SET {setting}")  # type: ignore[arg-type]
        for contract in ({}, {"schema": "evolve"}):
            target = {"kind": "postgres", "auth": database, "table": "out", "mode": "replace", **contract}
            outcome = move(tmp_path, {"kind": "postgres", "auth": other, "query": query}, target)
            assert outcome.error is None, outcome.error
            stored = one(database, "SELECT row(n, d, r, i)::text FROM out")
            assert stored == '(1,2024-02-01,"[2024-02-01,2024-02-03)","-1 days +01:00:00")'


def test_what_cannot_be_kept_is_an_error_that_names_the_column(tmp_path: Path, database: str) -> None:
    target = {"kind": "file", "path": "out.parquet"}
    for expression, part in [
        ("'{{1,2},{3,4}}'::int[]", "the column v has multidimensional arrays"),
        ("'NaN'::numeric(5,2)", "the column 'v' does not fit decimal128(5, 2)"),
        ("'infinity'::interval", "the column 'v' does not fit the range of intervals"),
        ("'294276-12-31'::timestamp", "the column 'v' does not fit timestamp[us]: a timestamp after the year 294246"),
    ]:
        source = {"kind": "postgres", "auth": database, "query": f"SELECT {expression} AS v"}
        outcome = move(tmp_path, source, target)
        assert outcome.error is not None and part in outcome.error.message, outcome.error
    assert not (tmp_path / "out.parquet").exists()


# ── numbers of any size ──────────────────────────────────────────────────────────────────────


def test_a_number_column_of_duckdb_becomes_wider_when_later_values_need_it(tmp_path: Path, database: str) -> None:
    query = """SELECT n, CASE WHEN n < 3 THEN 1.5 WHEN n < 5 THEN 0.123456789012 ELSE 'NaN' END::numeric AS v
               FROM generate_series(1, {last}) n"""
    for last, kind in ((2, "DECIMAL(38,9)"), (4, "DECIMAL(38,12)"), (5, "VARCHAR")):
        file = f"{last}.duckdb"
        source = {"kind": "postgres", "auth": database, "query": query.format(last=last), "chunk": {"size": 2}}
        outcome = run_tool(
            "transfer",
            {
                "source": source,
                "targets": [{"kind": "duckdb", "file": file, "table": "t", "mode": "upsert", "key": "n"}],
                "chunk": {"size": 2},
            },
            host=ToolHost(folder=tmp_path),
        )
        assert outcome.error is None, outcome.error
        with duckdb.connect(str(tmp_path / file)) as connection:
            assert connection.execute("SELECT DISTINCT typeof(v) FROM t").fetchall() == [(kind,)]
            values = [row[0] for row in connection.execute("SELECT v::VARCHAR FROM t ORDER BY n").fetchall()]
        wanted = [Decimal("1.5"), Decimal("1.5"), Decimal("0.123456789012"), Decimal("0.123456789012")]
        assert [Decimal(value) for value in values[:4]] == wanted[:last]
        assert values[4:] == ["NaN"][: max(0, last - 4)]


def test_a_file_reports_a_later_number_that_does_not_fit(tmp_path: Path, database: str) -> None:
    query = "SELECT CASE WHEN n < 3 THEN 1.5 ELSE 0.123456789012 END::numeric AS v FROM generate_series(1, 4) n"
    source = {"kind": "postgres", "auth": database, "query": query}
    target = {"kind": "file", "path": "o.parquet"}

    def run(**types: str) -> Outcome:
        given = {"source": {**source, "types": types}, "targets": [target], "chunk": {"size": 2}}
        return run_tool("transfer", given, host=ToolHost(folder=tmp_path))

    failed = run()
    assert failed.error is not None and "types: {v: decimal(38, 12)}" in failed.error.message
    assert run(v="decimal(38, 12)").error is None
    assert pq.read_table(tmp_path / "o.parquet").schema.field("v").type == pa.decimal128(38, 12)


# ── files without types ──────────────────────────────────────────────────────────────────────


def test_csv_without_types_loses_no_digit_and_no_empty_text(tmp_path: Path) -> None:
    lines = ["id,zip,big,price,measured,note"]
    lines += [f'{n},{n},{n},{n}.5,{0.1 + n / 3!r},""' for n in range(10, 30_000)]
    lines += ["30000,007,123456789012345678901234567890,12345678901234567.89,1.5,"]
    (tmp_path / "in.csv").write_text("\n".join(lines) + "\n")
    outcome = move(tmp_path, {"kind": "file", "path": "in.csv"}, {"kind": "duckdb", "file": "o.duckdb", "table": "t"})
    assert outcome.error is None, outcome.error
    with duckdb.connect(str(tmp_path / "o.duckdb")) as connection:
        found = connection.execute("SELECT zip, big, price, measured, note FROM t WHERE id = 30000").fetchall()
        large = Decimal("123456789012345678901234567890")
        assert found == [("007", large, Decimal("12345678901234567.89"), 1.5, None)]
        assert connection.execute("SELECT DISTINCT note FROM t WHERE id < 30000").fetchall() == [("",)]
        kinds = connection.execute("SELECT typeof(measured), typeof(id) FROM t LIMIT 1").fetchall()
        assert kinds == [("DOUBLE", "BIGINT")]


def test_a_quoted_empty_value_is_null_in_a_file_that_quotes_its_numbers(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('"id","n","s"\n"1","5",""\n"2","","x"\n')
    outcome = move(tmp_path, {"kind": "file", "path": "in.csv"}, {"kind": "file", "path": "o.jsonl"})
    assert outcome.error is None
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert rows == [{"id": 1, "n": 5, "s": None}, {"id": 2, "n": None, "s": "x"}]


def test_large_integers_of_json_stay_integers(tmp_path: Path, database: str) -> None:
    (tmp_path / "in.jsonl").write_text('{"n": 123456789012345678901234567890}\n{"n": 1}\n')
    data = [{"n": 123456789012345678901234567890}, {"n": 0.5}]
    for source in ({"kind": "file", "path": "in.jsonl"}, {"kind": "data", "data": data}):
        target = {"kind": "postgres", "auth": database, "table": "t", "mode": "replace"}
        outcome = move(tmp_path, source, target)
        assert outcome.error is None, outcome.error
        assert one(database, "SELECT max(n)::text FROM t") == "123456789012345678901234567890"


# ── declared types ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("bigint", "5x", '"5x" is not a value of type bigint'),
        ("bigint", 2**70, "is not a value of type bigint"),
        ("decimal(5, 2)", "1.239", "does not fit decimal(5, 2)"),
        ("decimal(5, 2)", 12345, "does not fit decimal(5, 2)"),
        ("numeric", "ten", "is not a value of type numeric"),
        ("timestamp", "2024-01-01T00:00:00+02:00", "is not a value of type timestamp"),
        ("timestamptz", "yesterday", "is not a value of type timestamptz"),
        ("timestamp", "2024-01-01 00:00:00.1234567", "is not a value of type timestamp"),
        ("date", "2024-02-30", "is not a value of type date"),
        ("time", "25:00", "is not a value of type time"),
        ("interval", "soon", "is not a value of type interval"),
        ("uuid", "123", "is not a value of type uuid"),
        ("bytes", "not base64!", "is not a value of type bytes"),
        ("bigint[]", 5, "is not a list"),
        ("boolean", "maybe", "is not a value of type boolean"),
        ("decimal(39, 2)", 1, "types.v: 'decimal(39, 2)' is not one of"),
        ("json[]", [], "types.v: 'json[]' is not one of"),
    ],
)
def test_a_value_that_does_not_have_its_declared_type_is_an_error(
    tmp_path: Path, kind: str, value: Any, message: str
) -> None:
    source = {"kind": "data", "data": [{"v": value}], "types": {"v": kind}}
    outcome = move(tmp_path, source, {"kind": "file", "path": "o.parquet"})
    assert outcome.error is not None and message in outcome.error.message, outcome.error
