"""CSV with wide rows is read in pieces, with the same result as by DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.testing.tools import ToolHost, run_tool
from noetl.tools.transfer.sources import wide_csv

FILES = {
    "types": "i,d,t,b,x,n\n1,2024-01-31,2024-01-31 10:00:00,true,text,1.5\n2,2024-02-01,2024-01-31 10:00:01,false,,2\n",
    "quotes": 'a,b\n1,"two\nlines, and a ""quote"""\n2,"\n"\n3,plain\n',
    "quotes inside": 'a,b\n1,5" pipe\n2,6" pipe\n3,"7"" pipe"\n',
    "leading zeros": "a,b\n" + "".join(f"{n},{n}\n" for n in range(300)) + "007,300\n",
    "large numbers": "a,b\n1,1.5\n2,123456789.123456789012\n99999999999999999999,2\n",
    "dates of another format": "a,b\n31/01/2024,1\n13/02/2024,2\n",
    "empty and null": 'a,b,c\n1,"",\n2,,x\n',
    "quoted numbers": 'a,b\n"1","2"\n"",""\n"3","4"\n',
    "byte order mark": "\ufeffa,b\n1,2\n",
    "semicolons": 'a;b\n1;"x;y"\n2;z\n',
    "carriage returns": 'a,b\r\n1,x\r\n2,"y\r\nz"\r\n',
    "no last line break": "a,b\n1,2\n3,4",
    "blank lines": "a,b\n\n1,2\n\n3,4\n\n",
    "one column": 'a\n1\n\n"3"\n',
    "only names": "a,b\n",
    "names": 'a,a,,"b\nc"\n1,2,3,4\n',
    "spaces": "a,b\n 1, x \n2 ,y\n",
    "null in numbers": "a,b\n1,\n,2\n3,4\n",
    "booleans": "a,b\ntrue,t\nFALSE,f\n",
    "times": "a,b\n10:00:00,2024-01-01 00:00:00+01\n11:30:00,2024-01-01 00:00:00Z\n",
}


def move(folder: Path, **others: Any) -> Any:
    source = {"kind": "file", "path": "in.csv", **others.pop("source", {})}
    given = {"source": source, "targets": [{"kind": "file", "path": "out.parquet"}], **others}
    return run_tool("transfer", given, host=ToolHost(folder=folder))


def make_wide(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every file counts as wide and has pieces of a few bytes; returns their sizes."""
    sizes: list[int] = []
    pieces = wide_csv._pieces
    monkeypatch.setattr(wide_csv, "COLUMNS", 1)
    monkeypatch.setattr(wide_csv, "WIDE_BYTES", 0)
    monkeypatch.setattr(wide_csv, "PIECE_BYTES", 16)
    monkeypatch.setattr(
        wide_csv, "_pieces", lambda *given: (sizes.append(len(each)) or each for each in pieces(*given))
    )
    return sizes


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_pieces_give_the_same_rows_and_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "in.csv").write_text(text, newline="")
    assert move(tmp_path).error is None
    expected = pq.read_table(tmp_path / "out.parquet")
    sizes = make_wide(monkeypatch)
    outcome = move(tmp_path)
    assert outcome.error is None, outcome.error
    found = pq.read_table(tmp_path / "out.parquet")
    assert sizes
    assert found.schema.equals(expected.schema, check_metadata=True)
    assert found.to_pylist() == expected.to_pylist()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "a,b\n" + "".join(f"{n},{n}\n" for n in range(200)) + "x,200\n",
            ["row 201", "the column 'a'", '"x"', "BIGINT"],
        ),
        ("a,b\n1,2\n3\n", ["line 3 has 1 values, the first line has 2"]),
    ],
)
def test_errors_name_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: list[str]) -> None:
    (tmp_path / "in.csv").write_text(text)
    make_wide(monkeypatch)
    error = move(tmp_path).error
    assert error is not None
    assert [word for word in words if word not in error.message] == []


def test_bad_rows_go_to_the_quarantine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.csv").write_text("id,amount\n1,10\n2,wrong\n3,30,3\n4,40\n")
    make_wide(monkeypatch)
    outcome = move(
        tmp_path,
        source={"types": {"amount": "double"}},
        bad_rows="quarantine",
        quarantine={"kind": "file", "path": "bad.parquet"},
    )
    assert outcome.error is None, outcome.error
    assert (outcome.data["rows"], outcome.data["quarantined"]) == (2, 2)
    bad = pq.read_table(tmp_path / "bad.parquet")
    assert sorted(bad.column("position").to_pylist()) == [3, 4]
    assert any("'amount'" in reason for reason in bad.column("reason").to_pylist())


def test_what_is_held_does_not_depend_on_the_columns(tmp_path: Path) -> None:
    """DuckDB would hold 2,048 rows of 3,000 columns: 96 MB."""
    names = [f"c{number}" for number in range(3000)]
    with (tmp_path / "in.csv").open("w") as file:
        file.write(",".join(names) + "\n")
        for number in range(400):
            file.write(",".join([str(number)] * len(names)) + "\n")
    before = pa.total_allocated_bytes()
    import duckdb

    wide = wide_csv.WideCsv(duckdb.connect(), str(tmp_path / "in.csv"), dict.fromkeys(names, "BIGINT"))
    kinds, _ = wide.plan()
    assert wide_csv.is_wide(str(tmp_path / "in.csv")) and {kind.name for kind in kinds.values()} == {"BIGINT"}
    held = [pa.total_allocated_bytes() - before for _ in wide.texts()]
    assert len(held) > 1
    assert max(held) < 8 * wide_csv.PIECE_BYTES


# ── several files ───────────────────────────────────────────────────────────────────────

READERS = ["DuckDB", "wide", "quarantine"]


def move_several(folder: Path, monkeypatch: pytest.MonkeyPatch, reader: str, *texts: str) -> Any:
    for number, text in enumerate(texts):
        (folder / f"in{number}.csv").write_text(text, newline="")
    if reader == "wide":
        make_wide(monkeypatch)
    bad_rows = {"bad_rows": "quarantine", "quarantine": {"kind": "file", "path": "bad.jsonl"}}
    given: dict[str, Any] = {
        "source": {"kind": "file", "glob": "in*.csv"},
        "targets": [{"kind": "file", "path": "out.parquet"}],
    }
    given |= bad_rows if reader == "quarantine" else {}
    return run_tool("transfer", given, host=ToolHost(folder=folder))


@pytest.mark.parametrize("reader", READERS)
def test_columns_of_several_files_are_matched_by_their_names(tmp_path, monkeypatch, reader):
    outcome = move_several(tmp_path, monkeypatch, reader, "id,v\n1,10\n", 'v,"id"\r\n20,2\r\n', "id,v\n3,30\n")
    assert outcome.error is None, outcome.error
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert rows == [{"id": 1, "v": 10}, {"id": 2, "v": 20}, {"id": 3, "v": 30}]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("id,w\n2,20\n", "in1.csv has the columns id, w, "),
        ("id\n2\n", "in1.csv has the columns id, "),
        ("id,v,w\n2,20,200\n", "in1.csv has the columns id, v, w, "),
        ("id;v\n2;20\n", "in1.csv separates values by ';', "),
    ],
)
def test_a_file_with_other_columns_is_named(tmp_path, monkeypatch, reader, second, message):
    error = move_several(tmp_path, monkeypatch, reader, "id,v\n1,10\n", second).error
    assert error is not None and error.kind == "schema" and message in error.message, error
    assert "in0.csv" in error.message and "noetl-transfer" not in error.message
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("blank", ["", "\ufeff", "\n\n", "\r\n"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_file_without_lines_has_no_rows(tmp_path, monkeypatch, reader, blank, place):
    texts = ["id;v\n1;10\n", "id;v\n2;20\n"]
    texts.insert(place, blank)
    outcome = move_several(tmp_path, monkeypatch, reader, *texts)
    assert outcome.error is None, outcome.error
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == [{"id": 1, "v": 10}, {"id": 2, "v": 20}]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("texts", [("",), ("\n\n",), ("", "\n")])
def test_only_files_without_lines_are_no_error(tmp_path, monkeypatch, reader, texts):
    outcome = move_several(tmp_path, monkeypatch, reader, *texts)
    assert outcome.error is None, outcome.error
    assert outcome.data["rows"] == 0
