"""Several files in one transfer: columns by name, other columns with a schema contract, and no value that is rounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.core.model.outcome import Outcome
from noetl.testing.tools import ToolHost, run_tool
from tests.tools.test_transfer_files import failure, good, workbook

Rows = list[dict[str, Any]]
DIFFERENT: list[Rows] = [
    [{"id": 1, "a": 10}],
    [{"id": 2, "a": 20, "b": "x"}, {"id": 3, "a": None, "b": "y"}],
    [{"id": 4}],
    [{"b": "z", "id": 5}],
]
NUMBERS: list[Rows] = [[{"id": 1, "a": 10}], [{"id": 2, "a": 1.5}], [{"a": 7, "id": 3}]]


def write(path: Path, rows: Rows) -> None:
    names = list(rows[0])
    if path.suffix == ".csv":
        lines = [names, *([row[name] for name in names] for row in rows)]
        path.write_text("".join(",".join("" if each is None else str(each) for each in line) + "\n" for line in lines))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".arrow":
        table = pa.Table.from_pylist(rows)
        with pa.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table)
    else:
        lines = [names, *([row[name] for name in names] for row in rows)]
        workbook(path, *lines)


def load(folder: Path, files: list[Rows], ending: str, target: dict[str, Any], **others: Any) -> Outcome:
    for number, rows in enumerate(files):
        write(folder / f"in{number:04}.{ending}", rows)
    source = {"kind": "file", "glob": f"in*.{ending}", **others.pop("source", {})}
    return run_tool("transfer", {"source": source, "targets": [target], **others}, host=ToolHost(folder=folder))


def rows_of(folder: Path, target: dict[str, Any], names: str) -> list[tuple[Any, ...]]:
    if target["kind"] == "file":
        place = f"'{folder / target['path']}'"
        return duckdb.sql(f"select {names} from {place} order by id").fetchall()
    with duckdb.connect(str(folder / target["file"])) as connection:
        return connection.execute(f"select {names} from {target['table']} order by id").fetchall()


TABLE = {"kind": "duckdb", "file": "t.duckdb", "table": "o"}
TARGETS = [TABLE, {"kind": "file", "path": "o.parquet"}]
ENDINGS = ["csv", "parquet", "arrow", "xlsx"]


@pytest.mark.parametrize("target", TARGETS, ids=["table", "file"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_contract_loads_the_columns_of_all_files(tmp_path, ending, target):
    good(load(tmp_path, DIFFERENT, ending, {**target, "schema": {"columns": "evolve"}}))
    wanted = [(1, 10, None), (2, 20, "x"), (3, None, "y"), (4, None, None), (5, None, "z")]
    assert rows_of(tmp_path, target, "id, a, b") == wanted


@pytest.mark.parametrize("ending", ENDINGS)
def test_without_a_contract_other_columns_are_an_error(tmp_path, ending):
    for target in TARGETS:
        message = failure(load(tmp_path, DIFFERENT, ending, target))
        assert "set `schema: evolve` in the target" in message and " b" in message
    assert not (tmp_path / "o.parquet").exists()


@pytest.mark.parametrize(("policy", "rows"), [("discard_value", [1, 2, 3, 4, 5]), ("discard_row", [1, 4])])
def test_a_contract_can_leave_out_the_columns_of_later_files(tmp_path, policy, rows):
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute("create table o (id bigint, a bigint)")
    good(load(tmp_path, DIFFERENT, "csv", {**TABLE, "schema": policy}))
    assert [row[0] for row in rows_of(tmp_path, TABLE, "id, a")] == rows
    assert "freeze" in failure(load(tmp_path, DIFFERENT, "csv", {**TABLE, "schema": "freeze"}))


def test_types_are_declared_for_the_files_that_have_the_column(tmp_path):
    types = {"source": {"types": {"b": "text", "a": "decimal(8, 2)"}}}
    good(load(tmp_path, DIFFERENT, "csv", {**TABLE, "schema": "evolve"}, **types))
    assert [str(row[1]) for row in rows_of(tmp_path, TABLE, "id, a")] == ["10.00", "20.00", "None", "None", "None"]
    types = {"source": {"types": {"nothing": "text"}}}
    message = failure(load(tmp_path, DIFFERENT, "csv", {**TABLE, "schema": "evolve"}, **types))
    assert message.endswith("types.nothing: the source has no such column; columns: id, a, b")


def test_bad_rows_of_files_with_other_columns_have_their_positions(tmp_path):
    (tmp_path / "in0000.csv").write_text("id,a\n1,10\n2,20,30\n")
    (tmp_path / "in0001.csv").write_text("id;b\n3;x\n4\n")
    outcome = load(
        tmp_path, [], "csv", {**TABLE, "schema": "evolve"},
        bad_rows="quarantine", quarantine={"kind": "file", "path": "bad.jsonl"},
    )  # fmt: skip
    good(outcome)
    assert rows_of(tmp_path, TABLE, "id, a, b") == [(1, 10, None), (3, None, "x")]
    bad = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [(Path(row["source"]).name, row["position"]) for row in bad] == [("in0000.csv", 3), ("in0001.csv", 3)]


@pytest.mark.parametrize("target", TARGETS, ids=["table", "file"])
@pytest.mark.parametrize("ending", ["parquet", "arrow", "xlsx"])
def test_a_value_of_a_later_file_is_not_rounded(tmp_path, ending, target):
    message = failure(load(tmp_path, NUMBERS, ending, target))
    assert "the column 'a' is int64 in the first rows, and double in later ones" in message
    good(load(tmp_path, NUMBERS, ending, target, source={"types": {"a": "double"}}))
    assert rows_of(tmp_path, target, "id, a") == [(1, 10.0), (2, 1.5), (3, 7.0)]


@pytest.mark.parametrize("path", ["o.csv", "o.parquet", "o.jsonl"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_columns_in_another_order_are_matched_by_name(tmp_path, ending, path):
    target = {"kind": "file", "path": path}
    good(load(tmp_path, [[{"id": 1, "a": 10}], [{"a": 2.0, "id": 2}]], ending, target))
    assert rows_of(tmp_path, target, "id, a") == [(1, 10), (2, 2)]


def test_rows_that_do_not_fit_the_first_file_go_to_the_quarantine(tmp_path):
    files = [[{"id": 1, "a": 10}], [{"id": 2, "a": 1.5}, {"id": 3, "a": 7.0}]]
    outcome = load(
        tmp_path, files, "parquet", TABLE, bad_rows="quarantine", quarantine={"kind": "file", "path": "bad.jsonl"}
    )
    good(outcome)
    assert rows_of(tmp_path, TABLE, "id, a") == [(1, 10), (3, 7)]
    bad = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [(row["position"], "'a' is int64" in row["reason"]) for row in bad] == [(1, True)]


@pytest.mark.parametrize(
    ("schema", "rows"),
    [
        ("evolve", [(1, "x", None), (2, "y", None), (3, "x", 7)]),
        ({"columns": "evolve", "types": "freeze"}, [(1, "x", None), (2, "y", None), (3, "x", 7)]),
        ("discard_value", [(1, "x", None), (2, "y", None), (3, "x", None)]),
        ("discard_row", [(1, "x", None), (2, "y", None)]),
        ("freeze", None),
    ],
)
def test_partitions_have_a_contract(tmp_path, schema, rows):
    target = {"kind": "file", "path": "out", "partition_by": "r", "schema": schema}
    files = [[{"id": 1, "r": "x"}, {"id": 2, "r": "y"}], [{"id": 3, "r": "x", "n": 7}]]
    outcome = load(tmp_path, files, "csv", target)
    if rows is None:
        assert "the rows have the column n" in failure(outcome) and not list((tmp_path / "out").rglob("*.parquet"))
        return
    good(outcome)
    found = [
        row for path in sorted((tmp_path / "out").rglob("*.parquet")) for row in pq.ParquetFile(path).read().to_pylist()
    ]
    assert sorted((row["id"], row["r"], row.get("n")) for row in found) == rows
    columns = {tuple(row) for row in found}
    assert columns == {("id", "r", "n") if "evolve" in str(schema) else ("id", "r")}
