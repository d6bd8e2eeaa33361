"""Results as tables: values that DuckDB would change, a full disk, and little memory."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.data import query_process, result_tables
from noetl.data.query_process import QueryFailed
from noetl.data.result_tables import ResultTables
from noetl.errors import StoreUnavailable


def test_a_query_that_gets_no_file_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> None:
        raise duckdb.IOException("IO Error: Could not write file: No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(duckdb, "connect", full)
    with pytest.raises(StoreUnavailable, match=f"a file in {tmp_path}.*No space left"):
        ResultTables()
    assert not list(tmp_path.iterdir())


def test_an_export_holds_only_some_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_tables, "LOAD_MEMORY", "24MB")
    monkeypatch.setattr(result_tables, "MEMORY", "24MB")
    rows = tmp_path / "rows.parquet"
    values = [f"{number:060}" for number in range(300_000)]
    pq.write_table(pa.table({"value": values}), rows, row_group_size=len(values))

    async def content() -> AsyncIterator[bytes]:
        yield rows.read_bytes()

    with closing(ResultTables()) as tables:
        asyncio.run(tables.add_payload(("step", "s"), "parquet", content()))
        tables.lock()
        exported = tables.export("SELECT * FROM step.s", "csv")
    with exported.open("rb") as file:
        assert file.read().decode().split() == ["value", *values]
    exported.unlink()


@pytest.mark.parametrize(
    "rows",
    [
        [{"id": 1, "doc": {"p": 1}}, {"id": 2, "doc": {"P": "x"}}],
        [{"id": 1, "doc": {"n": 2**63 + 1}}, {"id": 2, "doc": {"n": 10**30 + 1}}],
        [{"id": 1, "doc": [2**64, 1]}, {"id": 2, "doc": [-(10**40)]}],
    ],
    ids=["keys that differ in case", "large members", "large items"],
)
def test_nested_values_are_not_changed(rows: list[dict[str, object]]):
    tables = ResultTables()
    try:
        tables.add_value(("step", "fetch"), rows)
        tables.lock()
        assert tables.rows("SELECT * FROM step.fetch ORDER BY id", 10).rows == rows
        path = tables.export("SELECT * FROM step.fetch ORDER BY id", "json")
        assert json.loads(path.read_text()) == rows
        path.unlink()
    finally:
        tables.close()


LARGE = 2**53 + 1


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([LARGE, 1.5], [f"{LARGE}.0", 1.5]),
        ([2**64, 1.5, None], [f"{2**64}.0", 1.5, None]),
        ([-LARGE, 0.1 + 0.2], [f"-{LARGE}.{'0' * 17}", 0.1 + 0.2]),
        ([2**70, 1e300], [str(2**70), "1e+300"]),
        ([[LARGE, 1.5]], [[LARGE, 1.5]]),
        ([{"a": LARGE}, {"a": 1.5}], [{"a": LARGE}, {"a": 1.5}]),
        ([{"a": LARGE, "b": 1.5}], [{"a": LARGE, "b": 1.5}]),
        ([1, 1.5], [1.0, 1.5]),
    ],
)
@pytest.mark.parametrize("stored", [False, True], ids=["value", "stored"])
def test_integers_beside_fractions_keep_all_digits(values: list[object], found: list[object], *, stored: bool) -> None:
    rows = [{"v": value} for value in values]

    async def content() -> AsyncIterator[object]:
        for row in rows:
            yield row

    with closing(ResultTables()) as tables:
        if stored:
            asyncio.run(tables.add_rows(("step", "t"), content()))
        else:
            tables.add_value(("step", "t"), rows)
        assert [row["v"] for row in tables.rows("SELECT v FROM step.t", 10).rows] == found


def test_values_of_a_stored_csv_are_not_changed() -> None:
    async def content() -> AsyncIterator[bytes]:
        yield f"code,n\n007,{2**70}\n012,0.12345678901234567890\n".encode()

    with closing(ResultTables()) as tables:
        asyncio.run(tables.add_payload(("step", "t"), "csv", content()))
        rows = tables.rows("SELECT * FROM step.t", 10).rows
    assert rows == [{"code": "007", "n": str(2**70)}, {"code": "012", "n": "0.12345678901234567890"}]


def test_one_large_document_is_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(result_tables, "LOAD_MEMORY", "16MB")
    monkeypatch.setattr(result_tables, "LONG_LINE", 1 << 20)
    with closing(ResultTables()) as tables:
        tables.add_value(("step", "s"), {"text": "x" * 4_000_000, "list": ["y" * 90] * 20_000})
        found = tables.rows("SELECT length(text) AS n, len(list) AS k FROM step.s", 1).rows
    assert found == [{"n": 4_000_000, "k": 20_000}]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT range(300000000) AS a",  # the values of a list are not counted by DuckDB
        "SELECT max(length(repeat('x', 200000000) || n::varchar)) FROM range(100) AS t(n)",
        "SELECT repeat('x', 100000000) AS a FROM range(50)",  # more than Arrow has in a column
    ],
)
def test_a_query_that_needs_too_much_memory_is_refused(sql: str) -> None:
    with closing(ResultTables()) as tables:
        tables.add_value(("step", "s"), [{"id": 1}])
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        with pytest.raises(QueryFailed, match="the query needs more than 512MB of memory"):
            tables.rows(sql, 1000)
        # Afterwards the same tables can be queried.
        assert tables.rows("SELECT * FROM step.s", 10).rows == [{"id": 1}]
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert used <= max(before, 1_400_000)  # kilobytes; it was 7 GB


def test_a_reply_of_many_bytes_is_refused() -> None:
    with closing(ResultTables()) as tables:
        with pytest.raises(QueryFailed, match=r"the rows have [0-9,]+ bytes, the limit is .* export them"):
            tables.rows("SELECT repeat('x', 1000000) AS a FROM range(90)", 1000)
        exported = tables.export("SELECT repeat('x', 1000000) AS a FROM range(90)", "csv")
        assert exported.stat().st_size > 90_000_000
        exported.unlink()


def test_a_query_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_tables, "SECONDS", 0.5)
    endless = "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT max(i) FROM r"
    with closing(ResultTables()) as tables:
        with pytest.raises(QueryFailed, match=r"stopped after 0\.5 s"):
            tables.rows(endless, 1)
        monkeypatch.setattr(query_process, "GRACE", 0.0)  # also one that does not react
        with pytest.raises(QueryFailed, match=r"stopped after 0\.5 s"):
            tables.rows(endless, 1)


def test_the_process_of_a_query_has_no_settings_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def start(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        assert not [name for name in options["env"] if name.startswith("NOETL_")]
        started.append(popen(*args, **options))
        return started[-1]

    popen = subprocess.Popen
    monkeypatch.setenv("NOETL_TOKEN", "secret")
    monkeypatch.setattr(subprocess, "Popen", start)
    with closing(ResultTables()) as tables:
        assert tables.rows("SELECT 1 AS a", 1).rows == tables.rows("SELECT 1 AS a", 1).rows == [{"a": 1}]
    (process,) = started
    assert process.returncode is not None
