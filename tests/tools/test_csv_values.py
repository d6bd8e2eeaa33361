"""Values of CSV and JSON lines: the types that are detected or declared never change a value."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.core.model.outcome import Outcome
from noetl.testing.tools import ToolHost, run_tool

QUARANTINE = {"bad_rows": "quarantine", "quarantine": {"kind": "file", "path": "bad.jsonl"}}


def load(folder: Path, name: str, values: list[str], types: Any = None, **others: Any) -> Outcome:
    path = folder / name
    if name.endswith("csv"):
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["id", "v"], *([number, value] for number, value in enumerate(values))])
    else:
        path.write_text("".join(json.dumps({"id": n, "v": value}) + "\n" for n, value in enumerate(values)))
    source = {"kind": "file", "path": name, **({"types": {"v": types}} if types else {})}
    target = {"kind": "file", "path": "out.parquet"}
    return run_tool("transfer", {"source": source, "targets": [target], **others}, host=ToolHost(folder=folder))


def read(folder: Path) -> tuple[str, list[Any]]:
    column = pq.read_table(folder / "out.parquet").column("v")
    return str(column.type), column.cast(pa.string()).to_pylist()


@pytest.mark.parametrize("others", [{}, QUARANTINE], ids=["plain", "quarantine"])
@pytest.mark.parametrize(
    "values",
    [
        ["1/2/2024", "3/4/2024"],
        ["13/2/2024"],
        ["01.02.2024"],
        ["1/2/2024 10:00:00"],
        ["2024-01-01 10:00:00", "2024-01-01 10:00:00.123456789"],
        ["2024-01-01T10:00:00.123456789Z"],
        ["10:00:00.123456789"],
        ["t", "f"],
        ["yes", "no"],
        ["0x10"],
        ["007"],
        ["1e400"],
        ["inf"],
    ],
)
def test_values_that_would_change_stay_text(tmp_path: Path, values: list[str], others: dict[str, Any]) -> None:
    assert load(tmp_path, "a.csv", values, **others).error is None
    assert read(tmp_path) == ("string", values)


@pytest.mark.parametrize("others", [{}, QUARANTINE], ids=["plain", "quarantine"])
@pytest.mark.parametrize(
    ("values", "kind", "number"),
    [
        (["infinity", "2024-01-01"], "date32[day]", 2**31 - 1),
        (["10000-01-01"], "date32[day]", 2_932_897),
        (["2024-01-01 10:00:00.123456"], "timestamp[us]", 1_704_103_200_123_456),
        (["true", "FALSE"], "bool", 1),
    ],
)
def test_values_that_do_not_change_have_their_type(
    tmp_path: Path, values: list[str], others: dict[str, Any], kind: str, number: int
) -> None:
    assert load(tmp_path, "a.csv", values, **others).error is None
    column = pq.read_table(tmp_path / "out.parquet").column("v")
    assert (str(column.type), len(column)) == (kind, len(values))
    whole = pa.int32() if kind.startswith("date") else pa.int64()
    assert column.cast(pa.int8() if kind == "bool" else whole)[0].as_py() == number


WRONG = [
    ("date", "2024-01-01 10:00:00"),
    ("date", "1/2/2024"),
    ("timestamp", "2024-01-01 10:00:00+02"),
    ("timestamp", "2024-01-01T10:00:00Z"),
    ("timestamp", "2024-01-01 10:00:00.1234567"),
    ("timestamptz", "2024-01-01 10:00:00+25"),
    ("time", "10:00:00+02"),
    ("bigint", "1.5"),
    ("bigint", "0x10"),
    ("smallint", "1.5"),
    ("smallint", "40000"),
    ("double", "1e400"),
    ("boolean", "2"),
]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize(("kind", "value"), WRONG)
def test_a_value_without_its_declared_type_is_an_error_with_the_line(
    tmp_path: Path, name: str, kind: str, value: str
) -> None:
    outcome = load(tmp_path, name, [_valid(kind), value], kind)
    line = 3 if name.endswith("csv") else 2
    assert outcome.error is not None
    assert f"{name}: line {line}: the column 'v': " in outcome.error.message
    assert not (tmp_path / "out.parquet").exists()


def _valid(kind: str) -> str:
    return {"date": "2024-01-01", "boolean": "true", "time": "10:00:00"}.get(
        kind, "2024-01-01 10:00:00" if kind.startswith("timestamp") else "1"
    )


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize(("kind", "value"), WRONG)
def test_a_value_without_its_declared_type_is_quarantined(tmp_path: Path, name: str, kind: str, value: str) -> None:
    outcome = load(tmp_path, name, [_valid(kind), value], kind, **QUARANTINE)
    assert outcome.error is None
    assert len(read(tmp_path)[1]) == 1
    (bad,) = map(json.loads, (tmp_path / "bad.jsonl").read_text().splitlines())
    assert (bad["source"], bad["position"]) == (name, 3 if name.endswith("csv") else 2)
    assert f"is not a value of type {kind}" in bad["reason"]


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        ("bigint", "1e3", "1000"),
        ("bigint", "2.0", "2"),
        ("double", "-1.5", "-1.5"),
        ("boolean", "no", "false"),
        ("timestamptz", "2024-01-01T10:00:00+02:00", "2024-01-01 08:00:00.000000Z"),
        ("timestamptz", "2024-01-01 10:00:00", "2024-01-01 10:00:00.000000Z"),
        ("timestamp", "2024-01-01T10:00:00.5", "2024-01-01 10:00:00.500000"),
        ("time", "10:00:00.5", "10:00:00.500000"),
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_other_spellings_of_a_declared_type(tmp_path: Path, name: str, kind: str, value: str, stored: str) -> None:
    assert load(tmp_path, name, [value], kind).error is None
    assert read(tmp_path)[1] == [stored]


@pytest.mark.parametrize("others", [{}, QUARANTINE], ids=["plain", "quarantine"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
@pytest.mark.parametrize("rows", [[{"Name": "a", "name": "b"}], [{"Name": "a"}, {"name": "b"}]])
def test_keys_that_differ_in_case_are_an_error(
    tmp_path: Path, name: str, rows: list[Any], others: dict[str, Any]
) -> None:
    """DuckDB reads null for one of them."""
    (tmp_path / name).write_text(json.dumps(rows) if name == "a.json" else "\n".join(map(json.dumps, rows)))
    target = {"kind": "file", "path": "out.parquet"}
    given = {"source": {"kind": "file", "path": name}, "targets": [target], **others}
    outcome = run_tool("transfer", given, host=ToolHost(folder=tmp_path))
    assert outcome.error is not None
    assert "the rows have the keys Name and name, which differ only in case" in outcome.error.message


def test_a_key_that_looks_like_a_second_one_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"v": 1, "v_1": 2}\n{"v_1": 3, "V_2": 4}\n')
    target = {"kind": "file", "path": "out.parquet"}
    given = {"source": {"kind": "file", "path": "a.jsonl"}, "targets": [target]}
    assert run_tool("transfer", given, host=ToolHost(folder=tmp_path)).error is None
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert rows == [{"v": 1, "v_1": 2, "V_2": None}, {"v": None, "v_1": 3, "V_2": 4}]


BOM = b"\xef\xbb\xbf"
BIG = 2**53 + 1
FILES = {  # name, content, fields of the source, rows
    "a header with line breaks": ("a.csv", b'"a\nb";"c, d"\r\n1;x\r\n', {}, [{"a\nb": 1, "c, d": "x"}]),
    "a header with other line breaks": ("a.csv", b'"a\r\nb","c\nd"\n1,x\n', {}, [{"a\r\nb": 1, "c\nd": "x"}]),
    "a delimiter in a name": ("a.csv", b"Price, EUR;Name\n1;x\n", {}, [{"Price, EUR": 1, "Name": "x"}]),
    "a mark before quotes": ("a.csv", BOM + b'"a, b","c"\n1,x\n', {}, [{"a, b": 1, "c": "x"}]),
    "empty lines before the names": ("a.csv", b"\r\n\na,b\nx,y\n", {}, [{"a": "x", "b": "y"}]),
    "numbers of base 16": ("a.csv", b"a\n0x10\n1.5\ninf\n", {}, [{"a": "0x10"}, {"a": "1.5"}, {"a": "inf"}]),
    "latin-1": ("a.csv", "a,b\n1,é\n".encode("latin-1"), {"encoding": "latin-1"}, [{"a": 1, "b": "é"}]),
    "utf-16": ("a.tsv", "a\tb\r\n1\té\r\n".encode("utf-16"), {"encoding": "utf-16"}, [{"a": 1, "b": "é"}]),
    "JSON in latin-1": ("a.json", '[{"a": "é"}]'.encode("latin-1"), {"encoding": "latin-1"}, [{"a": "é"}]),
    "a mark before JSON": ("a.json", BOM + b'[{"a": 1}]', {}, [{"a": 1}]),
    "a mark before JSON lines": ("a.jsonl", BOM + b'{"a": 1}\n{"a": 2}', {}, [{"a": 1}, {"a": 2}]),
    "large integers and fractions": (
        "a.json", f'[{{"a": {BIG}}}, {{"a": 1.5}}]'.encode(), {}, [{"a": BIG}, {"a": 1.5}]
    ),
    "large integers of a list in a document": (
        "a.json", f'{{"list": [{{"a": 1.5}}, {{"a": -{BIG}}}]}}'.encode(), {"rows_path": "list"},
        [{"a": 1.5}, {"a": -BIG}]
    ),
}  # fmt: skip


@pytest.mark.parametrize("pattern", [False, True], ids=["path", "glob"])
@pytest.mark.parametrize(("name", "content", "fields", "rows"), FILES.values(), ids=list(FILES))
def test_unusual_files_are_read(
    tmp_path: Path, name: str, content: bytes, fields: dict[str, Any], rows: list[Any], pattern: bool
) -> None:
    (tmp_path / name).write_bytes(content)
    source = {"kind": "file", **({"glob": name.replace("a.", "*.")} if pattern else {"path": name}), **fields}
    given = {"source": source, "targets": [{"kind": "file", "path": "out.jsonl"}]}
    outcome = run_tool("transfer", given, host=ToolHost(folder=tmp_path))
    assert outcome.error is None, outcome.error
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == rows


@pytest.mark.parametrize(
    ("name", "content", "fields", "message"),
    [
        ("a.csv", "a\né\n".encode("latin-1"), {}, "a.csv: line 2 is not UTF-8: set `encoding` in the source"),
        ("a.csv", "é\n1\n".encode("latin-1"), {}, "a.csv: line 1 is not UTF-8: set `encoding` in the source"),
        ("a.csv", b"a\n1\n", {"encoding": "utf-16"}, "a.csv is not utf-16: set `encoding` in the source"),
        ("a.csv", b"a\n1\n", {"encoding": "base64"}, "the encoding 'base64' is not known"),
        ("a.csv", b"a,b\n1,2\n", {"types": {"c": "text"}}, "types.c: the source has no such column; columns: a, b"),
    ],
)
def test_texts_that_cannot_be_read_are_errors(
    tmp_path: Path, name: str, content: bytes, fields: dict[str, Any], message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    given = {"source": {"kind": "file", "path": name, **fields}, "targets": [{"kind": "file", "path": "out.jsonl"}]}
    outcome = run_tool("transfer", given, host=ToolHost(folder=tmp_path))
    assert outcome.error is not None and message in outcome.error.message
