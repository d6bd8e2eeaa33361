"""Several targets of one transfer and concurrent transfers to one target, with bounded memory."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from noetl.core.model.outcome import Outcome
from noetl.core.templates.deferred import DeferredTemplate, Rendered
from noetl.runtime.resources import close_loop_resources
from noetl.testing.tools import ToolHost, run_tool, tool_call
from noetl.tools.registry import load
from tests.e2e.api import serving
from tests.tools.test_transfer import ROWS, ids, query

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def host(tmp_path: Path, s3: dict[str, Any]) -> ToolHost:
    return ToolHost(folder=tmp_path, credentials={"store": s3})


def several(host: ToolHost, *calls: dict[str, Any]) -> list[Outcome]:
    async def run() -> list[Outcome]:
        tool = load("transfer")
        try:
            return await asyncio.gather(*(tool(tool_call("transfer", call, host=host)) for call in calls))
        finally:
            await close_loop_resources()

    return asyncio.run(run())


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
@pytest.mark.parametrize("on_error", ["fail", "warn"])
def test_two_tables_of_one_file_are_written_together(host: ToolHost, kind: str, on_error: str, tmp_path: Path) -> None:
    place = str(tmp_path / f"x.{kind}")
    targets = [{"kind": kind, "file": place, "table": name, "on_error": on_error} for name in ("a", "b", "c")]
    outcome = run_tool("transfer", {"data": ROWS, "targets": targets, "chunk": {"size": 10}}, host=host, timeout=20)
    assert outcome.error is None
    assert [ids(place, name) for name in ("a", "b", "c")] == [list(range(1, 26))] * 3


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_a_failing_table_rolls_back_all_targets_in_its_file(host: ToolHost, kind: str, tmp_path: Path) -> None:
    place = str(tmp_path / f"x.{kind}")
    good = {"kind": kind, "file": place, "table": "good"}
    bad = {"kind": kind, "file": place, "table": "bad", "create": False}
    both = {"data": ROWS, "targets": [good, bad]}
    assert run_tool("transfer", both, host=host, timeout=20).error is not None
    outcome = run_tool(
        "transfer", {"data": ROWS, "targets": [good, {**bad, "on_error": "warn"}]}, host=host, timeout=20
    )
    assert outcome.error is None
    assert [target["status"] for target in outcome.data["targets"]] == ["ok", "failed"]
    assert ids(place, "good") == list(range(1, 26))  # once: the first transfer left nothing


def test_a_file_may_be_called_like_a_schema_in_it(host: ToolHost, tmp_path: Path) -> None:
    place = str(tmp_path / "analytics.duckdb")
    targets = [{"kind": "duckdb", "file": place, "table": f"analytics.{name}"} for name in ("facts", "more")]
    assert run_tool("transfer", {"data": ROWS, "targets": targets}, host=host, timeout=20).error is None
    again = {"data": ROWS, "targets": [{**targets[0], "mode": "upsert", "key": "id"}]}
    assert run_tool("transfer", again, host=host, timeout=20).error is None
    assert ids(place, "analytics.analytics.facts") == list(range(1, 26))


@pytest.mark.parametrize("mode", [{"mode": "append"}, {"mode": "upsert", "key": "id"}])
@pytest.mark.parametrize("kind", ["data", "postgres"])
def test_concurrent_transfers_can_create_the_same_table(
    host: ToolHost, database: str, mode: dict[str, str], kind: str
) -> None:
    calls = []
    for number in range(8):
        row = {"id": number, "name": f"n{number}"}
        source: dict[str, Any] = {"data": [row]}
        if kind == "postgres":  # the quickest way, which needs no look at the rows
            source = {"source": {"kind": "postgres", "auth": database, "query": f"SELECT {number} AS id, 'x' AS name"}}
        calls.append({**source, "targets": [{"kind": "postgres", "auth": database, "table": "shop.t", **mode}]})
    outcomes = several(host, *calls)
    assert [outcome.error for outcome in outcomes] == [None] * 8
    assert ids(database, "shop.t") == list(range(8))


def test_a_target_can_have_static_data(host: ToolHost, database: str, bucket: str, tmp_path: Path) -> None:
    with serving() as api:
        targets = [
            {"kind": "postgres", "auth": database, "table": "rows"},
            {"kind": "postgres", "auth": database, "table": "runs", "data": {"run": 7, "items": [1, 2]}},
            {"kind": "s3", "auth": "store", "path": f"s3://{bucket}/note.json", "data": {"note": "ä"}},
            {"kind": "http", "url": f"{api}/hook", "data": {"done": True}},
            {"kind": "file", "path": "few.csv", "data": [{"a": 1}, {"a": 2}]},
        ]
        outcome = run_tool("transfer", {"data": ROWS, "targets": targets, "chunk": {"size": 10}}, host=host)
    assert outcome.error is None
    assert outcome.data["rows"] == 25
    assert [target["rows"] for target in outcome.data["targets"][:2]] == [25, 1]
    assert query(database, "SELECT run, items::text FROM runs") == [(7, "[1, 2]")]
    assert (tmp_path / "few.csv").read_text().split() == ["a", "1", "2"]
    got = run_tool("object", {"uri": f"s3://{bucket}/note.json", "auth": "store"}, host=host)
    assert got.data == {"note": "ä"}


def test_without_a_source_all_targets_need_data(host: ToolHost, tmp_path: Path) -> None:
    place = str(tmp_path / "x.sqlite")
    own = {"kind": "sqlite", "file": place, "table": "t", "data": {"id": 1}}
    assert run_tool("transfer", {"targets": [own]}, host=host).error is None
    assert ids(place) == [1]
    failed = run_tool("transfer", {"targets": [own, {"kind": "sqlite", "file": place, "table": "u"}]}, host=host)
    assert "no source" in failed.error.message


def test_a_bucket_may_be_the_credentials(host: ToolHost, s3: dict[str, Any], bucket: str) -> None:
    host.credentials["archive"] = {**s3, "bucket": bucket}
    target = {"kind": "s3", "auth": "archive", "path": "backups/x.parquet"}
    assert run_tool("transfer", {"data": ROWS, "targets": [target]}, host=host).error is None
    got = run_tool("object", {"provider": "s3", "auth": "archive", "key": "backups/x.parquet"}, host=host)
    assert got.data["row_count"] == 25


MEMORY = """
import asyncio, json, sys
from bench.measurements import peak_mb
from noetl.testing.tools import ToolHost, tool_call
from noetl.runtime.resources import close_loop_resources
from noetl.tools.registry import load

given = json.load(sys.stdin)
host = ToolHost(folder=given["folder"], credentials={"store": given["s3"]})
host.progress = lambda **counts: None

async def main():
    run = load("transfer")
    rss = []
    for rows in given["rows"]:
        query = given["query"].replace("ROWS", str(rows))
        targets = [{**target, "table": f"t{rows}"} if "table" in target else target for target in given["targets"]]
        source = {"kind": "postgres", "auth": given["pg"], "query": query}
        call = {"source": source, "targets": targets, "chunk": {"size": 10000}}
        outcome = await run(tool_call("transfer", call, host=host))
        assert outcome.status == "ok", outcome.error
        assert outcome.data["rows"] == rows, outcome.data
        rss.append(peak_mb())
    await close_loop_resources()
    print(json.dumps(rss))

asyncio.run(main())
"""


def test_rows_for_three_targets_are_never_all_in_memory(
    database: str, s3: dict[str, Any], bucket: str, tmp_path: Path
) -> None:
    targets = [
        {"kind": "postgres", "auth": database, "table": "t"},
        {"kind": "duckdb", "file": str(tmp_path / "x.duckdb"), "table": "t"},
        {"kind": "s3", "auth": "store", "path": f"s3://{bucket}/all.parquet"},
    ]
    query = "SELECT n AS id, repeat(md5(n::text), 16) AS text FROM generate_series(1, ROWS) AS g(n)"
    given = {
        "pg": database,
        "s3": s3,
        "folder": str(tmp_path),
        "rows": [200_000, 600_000],
        "query": query,
        "targets": targets,
    }
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], input=json.dumps(given), capture_output=True, text=True, timeout=120,
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    small, large = json.loads(done.stdout.splitlines()[-1])
    # The first transfer fills the buffers of Postgres, DuckDB and the upload. The second one has 210 MB of text more for each target.
    assert large - small < 120, (small, large)
    assert large < 500, (small, large)


ZONED = """
import asyncio, datetime, json, sys
from noetl.testing.tools import ToolHost, run_tool
host = ToolHost(folder=sys.argv[1])
moment = "SELECT timestamptz '2024-01-01 12:00:00+00' AS at, timestamp '2024-01-01 12:00:00' AS wall"
for file in (None, "x.duckdb"):
    got = run_tool("duckdb", {"file": file, "query": moment + ", (timestamptz '2024-01-01 12:00:00+00')::text AS text"}, host=host)
    print(json.dumps(got.data["rows"][0]))
run_tool("transfer", {"source": {"kind": "duckdb", "query": moment}, "targets": [{"kind": "file", "path": "x.json"}]}, host=host)
print(json.dumps(json.load(open(sys.argv[1] + "/x.json"))))
"""


def test_duckdb_timestamps_are_in_utc_on_every_machine(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ZONED, str(tmp_path)], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TZ": "America/New_York"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    memory, file, moved = (json.loads(line) for line in done.stdout.splitlines())
    for row in (memory, file, *moved):
        assert row["at"] == "2024-01-01T12:00:00+00:00"
        assert row["wall"] == "2024-01-01T12:00:00"
    assert memory["text"] == "2024-01-01 12:00:00+00"


@pytest.mark.parametrize("count", [100_000, 200_000])
def test_many_rows_of_a_round_number_are_stored_as_a_table(host: ToolHost, database: str, count: int) -> None:
    given = {"auth": database, "query": f"SELECT n FROM generate_series(1, {count}) AS g(n)"}
    outcome = run_tool("postgres", given, host=host)
    assert outcome.error is None
    assert outcome.ref.meta.rows == count


def test_a_mapping_keeps_types_and_uses_template_values_as_constants(host: ToolHost, database: str) -> None:
    query = "SELECT 1 AS id, date '2024-01-01' AS day, 2.50::numeric(8,2) AS price"
    mapping = {
        "id": "id",
        "day": "day",
        "price": "price",
        "twice": DeferredTemplate("{{ row.id * 2 }}"),
        "run": Rendered("id"),
        "n": 5,
    }
    target = {"kind": "postgres", "auth": Rendered(database), "table": Rendered("t"), "mapping": mapping}
    given = {"source": {"kind": "postgres", "auth": database, "query": query}, "targets": [target]}
    outcome = run_tool("transfer", given, host=host)
    assert outcome.error is None, outcome.error
    found = query_one(database, "SELECT id, day::text, price::text, twice, run, n, pg_typeof(day)::text FROM t")
    assert found == (1, "2024-01-01", "2.50", 2, "id", 5, "date")
    target["mapping"] = {"run": Rendered("id"), "id": "id"}
    target["mode"] = "replace"
    assert run_tool("transfer", given, host=host).error is None
    assert query_one(database, "SELECT run FROM t") == ("id",)


def query_one(database: str, text: str) -> Any:
    (row,) = query(database, text)
    return row
