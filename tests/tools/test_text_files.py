"""Text files that are damaged, and files with unusual names."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from noetl.core.model.outcome import Outcome
from noetl.testing.tools import ToolHost, run_tool


def move(folder: Path, source: dict[str, Any], **others: Any) -> Outcome:
    targets = [others.pop("target", {"kind": "file", "path": "out.jsonl"})]
    return run_tool("transfer", {"source": source, "targets": targets, **others}, host=ToolHost(folder=folder))


def failure(outcome: Outcome) -> str:
    assert outcome.error is not None
    return outcome.error.message


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("in.csv", 'a,b\n1,2\n"x\ny",2,3\n', "in.csv: line 3 has 3 values, the first line has 2"),
        ("in.csv", 'a,b\n1,2\n"x\r\ny\xff",2\n', "in.csv: line 3 is not UTF-8: set `encoding`"),
        ("in.jsonl", '{"a": 1}\n\n\n{"a": 2\n', "in.jsonl: line 4 is not JSON: Input data was truncated"),
        ("in.jsonl", '{"a": 1}\n\n{"a": "\xff"}\n', "in.jsonl: line 3 is not UTF-8"),
        ("in.jsonl", '{"a": 1}\n\n{"a": 2, "a": 3}\n', "in.jsonl: line 3 has the key 'a' twice"),
    ],
)
def test_an_error_names_the_first_line_of_the_wrong_row(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    outcome = move(tmp_path, {"kind": "file", "path": name})
    assert message in failure(outcome)
    assert outcome.error is not None
    assert outcome.error.kind == ("parse" if "jsonl: line" in message and "twice" not in message else "schema")


@pytest.mark.parametrize("head", [",b", "a,,b", 'a,"b,c",,', "a,column1,", " ;b;c", "," * 9, "," * 10])
def test_columns_without_a_name_are_the_same_with_a_quarantine(tmp_path: Path, head: str) -> None:
    delimiter = ";" if ";" in head else ","
    values = delimiter.join(str(number) for number in range(head.replace("b,c", "b").count(delimiter) + 1))
    (tmp_path / "in.csv").write_text(f"{head}\n{values}\n")
    source = {"kind": "file", "path": "in.csv"}
    assert move(tmp_path, source).error is None
    expected = lines_of(tmp_path / "out.jsonl")
    quarantine = {"bad_rows": "quarantine", "quarantine": {"kind": "file", "path": "bad.jsonl"}}
    assert move(tmp_path, source, **quarantine).error is None
    assert lines_of(tmp_path / "out.jsonl") == expected


def test_a_compressed_file_with_another_name_is_recognized(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    source = {"kind": "file", "path": "in.csv"}
    assert "it is compressed; set `compression: gzip`" in failure(move(tmp_path, source))
    assert move(tmp_path, {**source, "compression": "gzip"}).error is None


def test_a_key_that_occurs_twice_is_a_bad_row(tmp_path: Path) -> None:
    rows = ['{"id": 1, "a": "id"}', '{"id": 2, "id": 3}', '{"id": 4, "a": {"id": 5}}']
    (tmp_path / "in.jsonl").write_text("\n".join(rows))
    quarantine = {"bad_rows": "quarantine", "quarantine": {"kind": "file", "path": "bad.jsonl"}}
    assert move(tmp_path, {"kind": "file", "path": "in.jsonl"}, **quarantine).error is None
    assert [row["id"] for row in lines_of(tmp_path / "out.jsonl")] == [1, 4]
    bad = lines_of(tmp_path / "bad.jsonl")
    assert [(row["position"], row["reason"]) for row in bad] == [(2, "the line has the key 'id' twice")]


def test_a_row_with_nul_is_stored_in_a_table_of_postgres(tmp_path: Path, database: str) -> None:
    rows = [{"id": 1, "a": "x"}, {"id": 2, "a": "y\0z", "b": [{"c": "\0", "d": "\\u0000"}]}, {"id": "\0"}]
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    target = {"kind": "postgres", "auth": database, "table": "t", "mapping": {"id": "id", "a": "a"}}
    source = {"kind": "file", "path": "in.jsonl", "types": {"id": "bigint", "a": "text"}}
    outcome = move(tmp_path, source, target=target, bad_rows="quarantine", quarantine={"table": "bad"})
    assert outcome.error is None, outcome.error
    with psycopg.connect(database) as connection:
        assert connection.execute("select id from t").fetchall() == [(1,)]
        found = connection.execute('select "row", reason from bad order by position').fetchall()
    assert found[0][0] == {"id": 2, "a": "y\\u0000z", "b": [{"c": "\\u0000", "d": "\\u0000"}]}
    assert found[1][0]["id"] == "\\u0000" and "bigint" in found[1][1]


def test_the_reason_of_postgres_names_the_column(tmp_path: Path, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create table t (id int, note varchar(3), amount numeric(4, 2), d date)")
    rows = [(1, "long", "1", None), (2, "a", "1234", None), (3, "a", "1", "none"), (4, "a", "1", "2024-01-01")]
    names = ("id", "note", "amount", "d")
    text = "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
    (tmp_path / "in.jsonl").write_text(text)
    target = {"kind": "postgres", "auth": database, "table": "t"}
    source = {"kind": "file", "path": "in.jsonl", "types": {"amount": "text", "d": "text"}}
    quarantine = {"bad_rows": "quarantine", "quarantine": {"kind": "file", "path": "bad.jsonl"}}
    assert "the column 'note': value too long" in failure(move(tmp_path, source, target=target))
    assert move(tmp_path, source, target=target, **quarantine).error is None
    reasons = [row["reason"] for row in lines_of(tmp_path / "bad.jsonl")]
    assert [reason.partition(":")[0] for reason in reasons] == [
        "the column 'note'",
        "the column 'amount'",
        "the column 'd'",
    ]


# ── names ────────────────────────────────────────────────────────────────────────────────────

NAMES = ["report [final].csv", "a[1].csv.gz", "in [x]/a.csv", "what?.csv", "a{b,c}.csv", "new\nline.csv", "o'h.csv"]


@pytest.mark.parametrize("quarantine", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_plain_name_may_have_the_characters_of_a_pattern(tmp_path: Path, name: str, quarantine: bool) -> None:
    content = b"id\n1\n2\n"
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    bad = {"bad_rows": "quarantine", "quarantine": {"kind": "file", "path": "bad.jsonl"}} if quarantine else {}
    assert move(tmp_path, {"kind": "file", "path": name}, **bad).error is None
    assert [row["id"] for row in lines_of(tmp_path / "out.jsonl")] == [1, 2]


@pytest.mark.parametrize("ending", ["csv", "json", "jsonl"])
def test_the_folder_of_a_playbook_is_no_pattern(tmp_path: Path, ending: str) -> None:
    folder = tmp_path / "load [2024] *"
    folder.mkdir()
    for number in (1, 2):
        text = {"csv": f"id\n{number}\n", "json": f'[{{"id": {number}}}]', "jsonl": f'{{"id": {number}}}'}[ending]
        (folder / f"{number}.{ending}").write_text(text)
    for path, expected in ((f"1.{ending}", [1]), (f"*.{ending}", [1, 2]), (f"[2].{ending}", [2])):
        assert move(folder, {"kind": "file", "path": path}, target={"kind": "file", "path": "o.jsonl"}).error is None
        assert [row["id"] for row in lines_of(folder / "o.jsonl")] == expected
        (folder / "o.jsonl").unlink()


def test_a_key_with_brackets_is_read_from_an_object_store(tmp_path: Path, s3: dict[str, Any], bucket: str) -> None:
    auth = {name: s3[name] for name in ("endpoint", "access_key_id", "secret_access_key", "region")}
    uri = f"s3://{bucket}/in/report [final].csv"
    assert run_tool("object", {"uri": uri, "auth": auth, "data": "id\n7\n", "format": "text"}).error is None
    assert move(tmp_path, {"kind": "s3", "path": uri, "auth": auth}).error is None
    assert lines_of(tmp_path / "out.jsonl") == [{"id": 7}]
    missing = {"kind": "s3", "path": f"s3://{bucket}/in/none[1].csv", "auth": auth}
    assert "none[1].csv: not found" in failure(move(tmp_path, missing))


@pytest.mark.parametrize("codec", ["gz", "zst", "bz2", "xz"])
def test_several_compressed_objects_are_read_from_a_store(
    tmp_path: Path, s3: dict[str, Any], bucket: str, codec: str
) -> None:
    auth = {name: s3[name] for name in ("endpoint", "access_key_id", "secret_access_key", "region")}
    for number in (1, 2):
        put = {"uri": f"s3://{bucket}/in/{number}.csv.{codec}", "auth": auth, "data": [{"id": number}]}
        assert run_tool("object", put).error is None
    assert move(tmp_path, {"kind": "s3", "path": f"s3://{bucket}/in/*.csv.{codec}", "auth": auth}).error is None
    assert lines_of(tmp_path / "out.jsonl") == [{"id": 1}, {"id": 2}]


def test_the_extension_of_a_key_is_stronger_than_its_content_type(
    tmp_path: Path, s3: dict[str, Any], bucket: str
) -> None:
    auth = {name: s3[name] for name in ("endpoint", "access_key_id", "secret_access_key", "region")}
    uri = f"s3://{bucket}/in/a.csv"
    put = {"uri": uri, "auth": auth, "data": "id\n7\n", "format": "text", "content_type": "text/plain"}
    assert run_tool("object", put).error is None
    assert move(tmp_path, {"kind": "s3", "path": uri, "auth": auth}).error is None
    assert lines_of(tmp_path / "out.jsonl") == [{"id": 7}]
    assert run_tool("object", {"uri": uri, "auth": auth}).data["rows"] == [{"id": "7"}]
