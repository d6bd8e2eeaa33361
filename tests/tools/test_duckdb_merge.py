"""An upsert into a DuckDB table gives the same rows whenever they are merged, in bounded memory."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from noetl.connections import duckdb as duck
from noetl.testing.tools import ToolHost, run_tool, tool_call
from noetl.tools.registry import load as load_tool
from noetl.tools.transfer.targets import Target, duckdb_limits, duckdb_merge
from noetl.tools.transfer.targets.duckdb_limits import WriteLimits
from noetl.tools.transfer.targets.duckdb_target import DuckdbTarget
from noetl.tools.transfer.targets.nested_target import NestedTarget

Row = dict[str, Any]


@pytest.fixture(params=[1, 7, 1_000_000], ids=["each chunk", "some rows", "at the end"])
def merged(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few rows, merged after each one, after some, or at the end."""
    monkeypatch.setattr(duckdb_merge, "MERGED_ROWS", request.param)
    monkeypatch.setattr(Target, "CHUNK_BYTES", 200)
    monkeypatch.setattr(NestedTarget, "CHUNK_BYTES", 200)


def load(folder: Path, rows: list[Row], **fields: Any) -> Any:
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    target = {"kind": "duckdb", "file": "t.duckdb", "table": "t", "mode": "upsert", "key": "id", **fields}
    source = {"kind": "file", "path": "in.jsonl"}
    outcome = run_tool("transfer", {"source": source, "targets": [target]}, host=ToolHost(folder=folder))
    assert outcome.error is None, outcome.error
    return outcome.data


def query(folder: Path, text: str) -> list[Any]:
    with duckdb.connect(str(folder / "t.duckdb")) as database:
        return database.execute(text).fetchall()


@pytest.mark.usefixtures("merged")
@pytest.mark.parametrize("key", [["id"], ["id", "part"]])
def test_loads_with_equal_keys_leave_the_last_row_of_each(tmp_path: Path, key: list[str]) -> None:
    numbers = random.Random(7)
    expected: dict[Any, tuple[Any, ...]] = {}
    for load_number in range(3):
        rows = [
            {"id": f"k{numbers.randrange(40)}", "part": numbers.randrange(2), "v": load_number * 1000 + number}
            for number in range(100)
        ]
        assert load(tmp_path, rows, key=key)["rows"] == 100
        expected |= {tuple(row[name] for name in key): tuple(row.values()) for row in rows}
        assert query(tmp_path, "SELECT * FROM t ORDER BY ALL") == sorted(expected.values())


@pytest.mark.usefixtures("merged")
def test_rows_with_a_key_that_the_table_has_twice_are_all_updated(tmp_path: Path) -> None:
    query(tmp_path, "CREATE TABLE t (id INT, v INT); INSERT INTO t VALUES (1, 0), (1, 5), (2, 0)")
    load(tmp_path, [{"id": number, "v": 9} for number in (1, 3, 4, 5, 6, 7)])
    assert query(tmp_path, "SELECT id, v FROM t ORDER BY ALL") == [
        (1, 9), (1, 9), (2, 0), (3, 9), (4, 9), (5, 9), (6, 9), (7, 9),
    ]  # fmt: skip


@pytest.mark.usefixtures("merged")
def test_columns_that_appear_or_are_missing_keep_their_values(tmp_path: Path) -> None:
    load(tmp_path, [{"id": number, "a": number} for number in range(20)], schema="evolve")
    load(tmp_path, [{"id": number, "b": -number} for number in range(10, 30)], schema="evolve")
    expected = [(n, n if n < 20 else None, -n if n >= 10 else None) for n in range(30)]
    assert query(tmp_path, "SELECT id, a, b FROM t ORDER BY id") == expected


@pytest.mark.usefixtures("merged")
def test_child_rows_of_a_key_that_comes_again_are_replaced(tmp_path: Path) -> None:
    rows: list[Row] = [
        {"id": number % 10, "v": number, "items": [{"n": number}] * (number % 3)} for number in range(40)
    ]
    for _ in range(2):
        load(tmp_path, rows, nested="tables")
        last = {row["id"]: row for row in rows}
        assert query(tmp_path, "SELECT id, v FROM t ORDER BY 1") == [(n, last[n]["v"]) for n in range(10)]
        found = query(tmp_path, "SELECT _root_id, _index_1, n FROM t__items ORDER BY ALL")
        assert found == [(n, index, item["n"]) for n in range(10) for index, item in enumerate(last[n]["items"])]


def test_a_failed_merge_leaves_the_table_and_the_settings_of_the_database(tmp_path: Path) -> None:
    query(tmp_path, "CREATE TABLE t (id INT, v INT CHECK (v < 10)); INSERT INTO t VALUES (1, 1)")
    target = {"kind": "duckdb", "file": "t.duckdb", "table": "t", "mode": "upsert", "key": "id"}
    outcome = run_tool(
        "transfer",
        {"data": [{"id": 1, "v": 2}, {"id": 2, "v": 20}], "targets": [target]},
        host=ToolHost(folder=tmp_path),
    )
    assert outcome.error is not None and outcome.error.kind == "db.constraint", outcome
    assert query(tmp_path, "SELECT * FROM t") == [(1, 1)]


def test_a_created_table_has_no_index_that_must_fit_in_memory(tmp_path: Path) -> None:
    load(tmp_path, [{"id": 1}])
    assert query(tmp_path, "SELECT count(*) FROM duckdb_constraints() WHERE table_name = 't'") == [(0,)]


def test_many_bytes_of_few_rows_are_not_copied_into_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged = []
    close = DuckdbTarget._close

    async def closed(self: DuckdbTarget) -> None:
        log = tmp_path / "t.duckdb.wal"
        logged.append(log.stat().st_size if log.exists() else 0)
        await close(self)

    monkeypatch.setattr(DuckdbTarget, "_close", closed)
    load(tmp_path, [{"id": number, "v": "x" * 1_000_000} for number in range(30)])
    assert logged == [0]
    assert query(tmp_path, "SELECT count(*), sum(length(v)) FROM t") == [(30, 30_000_000)]


def test_long_rows_are_merged_with_the_memory_that_a_vector_of_them_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb_limits, "BASE_MB", 24)
    for fill in ("x", "y"):
        load(tmp_path, [{"id": number, "v": f"{number} {fill}" * 4000} for number in range(3000)])
    assert query(tmp_path, "SELECT count(*), count(*) FILTER (v = repeat(id || ' y', 4000)) FROM t") == [(3000, 3000)]


def test_wide_rows_of_the_table_are_not_joined_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_limits, "BASE_MB", 20)
    columns = ", ".join(f"(i * {n + 3}) % 1000003 AS c{n}" for n in range(60))
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT i AS id, {columns} FROM range(200000) r(i)) TO '{tmp_path}/in.parquet'")
    target = {"kind": "duckdb", "file": "t.duckdb", "table": "t", "mode": "upsert", "key": "id"}
    for _ in range(2):
        given = {"source": {"kind": "file", "path": "in.parquet"}, "target": target}
        outcome = run_tool("transfer", given, host=ToolHost(folder=tmp_path))
        assert outcome.error is None, outcome.error
    assert query(tmp_path, "SELECT count(*), count(DISTINCT id), sum(c7) FROM t") == query(
        tmp_path, f"SELECT count(*), count(*), sum(c7) FROM '{tmp_path}/in.parquet'"
    )


def _limit(cursor: Any) -> float:
    size, unit = cursor.execute("SELECT current_setting('memory_limit')").fetchall()[0][0].split()
    return float(size) * {"MiB": 1.048576, "GiB": 1073.741824}[unit]


def test_the_memory_limit_follows_the_tables_and_the_widest_rows() -> None:
    limits = WriteLimits()
    with duckdb.connect() as cursor:
        usual = _limit(cursor)
        limits.add_table(cursor, 1, 4)
        assert _limit(cursor) == pytest.approx(48 + 3, 0.02)
        limits.add_table(cursor, 1, 100)  # a child table
        limits.add_table(cursor, 2, 20, small_groups=True)
        assert _limit(cursor) == pytest.approx(64 + 75 + 1.2, 0.01)
        limits.count(cursor, 1, pa.table({"n": range(10_000)}))
        assert _limit(cursor) == pytest.approx(64 + 75 + 1.2, 0.01)
        limits.count(cursor, 1, pa.table({"v": ["x" * 10_000] * 100}))  # 1 MB, and not yet a vector
        assert _limit(cursor) == pytest.approx(64 + 75 + 1.2, 0.01)
        for _ in range(30):
            limits.count(cursor, 1, pa.table({"v": ["x" * 10_000] * 100}))
        assert _limit(cursor) == pytest.approx(64 + 75 + 1.2 + 2 * (20.5 - 8), 0.05)
        limits.lift(cursor, 3)
        assert _limit(cursor) == usual
        limits.end(cursor, 3)
        limits.allow_commit(cursor, 1)
        assert 200 < _limit(cursor) < 400
        limits.end(cursor, 1)
        assert _limit(cursor) < 400
        limits.end(cursor, 2)
        assert _limit(cursor) == usual


@pytest.mark.parametrize("tables", [["a"], ["a", "b"]])
def test_the_settings_of_the_database_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: list[str]
) -> None:
    monkeypatch.setattr(duckdb_limits, "LARGE_COMMIT", 1)
    names = ("threads", "memory_limit", "checkpoint_threshold", "auto_checkpoint_skip_wal_threshold")
    place = str(tmp_path / "t.duckdb")
    seen: list[list[str]] = []

    async def main() -> None:
        async with duck.database(place).cursor(writes=False) as cursor:  # keeps the file open

            def look() -> None:
                found = dict(cursor.execute("SELECT name, value FROM duckdb_settings()").fetchall())
                seen.append([found[name] for name in names])

            look()
            targets = [
                {"kind": "duckdb", "file": place, "table": name, "mode": "upsert", "key": "id"} for name in tables
            ]
            call = tool_call("transfer", {"data": [{"id": 1}], "targets": targets}, host=ToolHost(folder=tmp_path))
            outcome = await load_tool("transfer")(call)
            assert outcome.error is None, outcome.error
            look()

    asyncio.run(main())
    assert seen[0] == seen[1]
