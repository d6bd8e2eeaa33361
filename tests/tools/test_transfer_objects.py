"""Loads of new objects (`only_new`) that stop in the middle: what was committed is not loaded again."""

from __future__ import annotations

import asyncio
import gzip
import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from noetl.testing.tools import ToolHost, run_tool
from noetl.tools.transfer.chunks import Chunk, Mark, chunked
from noetl.tools.transfer.sources import object_source
from tests.tools.test_transfer_files import PARTS, count, failure, good, move

SOURCE = {"kind": "file", "glob": "in/*.csv", "only_new": True}
GROUP = 2


@pytest.fixture(params=["postgres", "duckdb", "sqlite"])
def table(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "postgres":
        return {"kind": "postgres", "table": "t", "auth": request.getfixturevalue("database")}
    return {"kind": request.param, "table": "t", "file": f"t.{request.param}"}


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    _shrink(monkeypatch.setattr)


def _shrink(setattr: Any) -> None:
    """Groups of two objects, each committed at once."""
    from noetl.tools.transfer.progress import load_progress

    setattr(load_progress, "SHARE", 0)
    setattr(object_source, "GROUP_OBJECTS", GROUP)


def _objects(folder: Path, numbers: range, rows: int = 3) -> None:
    (folder / "in").mkdir(exist_ok=True)
    for number in numbers:
        ids = [f"{number * rows + each}\n" for each in range(rows)]
        (folder / "in" / f"{number:03}.csv").write_text("id\n" + "".join(ids))


def _load_and_die(folder: str, table: dict[str, Any], method: str, calls: int) -> None:
    """Load in a process that is killed before a call of a method of the target."""
    from noetl.tools.transfer.targets import open_target

    _shrink(setattr)
    from noetl.tools.transfer import engine

    def opened(*given: Any) -> Any:
        target = open_target(*given)
        function, left = getattr(target, method), calls

        async def dies(*values: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return await function(*values)

        setattr(target, method, dies)
        return target

    engine.open_target = opened
    move(Path(folder), SOURCE, table)


@pytest.mark.parametrize(
    ("method", "calls", "committed"),
    [("checkpoint", 2, 2), ("record_objects", 3, 4), ("commit", 1, 6)],
)
def test_a_killed_load_continues_with_the_objects_that_are_not_committed(tmp_path, table, method, calls, committed):
    _objects(tmp_path, range(8))
    process = multiprocessing.get_context("spawn").Process(
        target=_load_and_die, args=(str(tmp_path), table, method, calls)
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert count(table, tmp_path) == [(committed * 3, committed * 3)]
    assert good(move(tmp_path, SOURCE, table))["objects"] == {"loaded": 8 - committed, "skipped": committed}
    assert count(table, tmp_path) == [(24, 24)]


@pytest.mark.parametrize("size", [1, 3, 6, 7, 1000])
def test_groups_are_committed_with_every_size_of_chunks(tmp_path, size):
    table = {"kind": "sqlite", "table": "t", "file": "t.sqlite"}
    _objects(tmp_path, range(4))
    (tmp_path / "in" / "004.csv").write_text("id\nx\n")
    source = {**SOURCE, "types": {"id": "bigint"}}
    outcome = move(tmp_path, source, table, chunk={"size": size})
    assert "004.csv" in failure(outcome)
    assert outcome.data["objects"] == {"loaded": 4, "skipped": 0}
    assert count(table, tmp_path) == [(12, 12)]
    (tmp_path / "in" / "004.csv").write_text("id\n12\n")
    assert good(move(tmp_path, source, table))["objects"] == {"loaded": 1, "skipped": 4}
    assert count(table, tmp_path) == [(13, 13)]


def test_a_load_can_be_one_transaction(tmp_path, table):
    _objects(tmp_path, range(4))
    (tmp_path / "in" / "004.csv").write_text("id\nx\n")
    source = {**SOURCE, "types": {"id": "bigint"}, "resume": False}
    outcome = move(tmp_path, source, table)
    assert outcome.data["objects"] == {"loaded": 0, "skipped": 0}
    (tmp_path / "in" / "004.csv").unlink()
    assert good(move(tmp_path, source, table))["objects"] == {"loaded": 4, "skipped": 0}
    assert count(table, tmp_path) == [(12, 12)]


def test_a_changed_object_is_loaded_again_in_upsert(tmp_path, table):
    _objects(tmp_path, range(4))
    merged = {**table, "mode": "upsert", "key": "id"}
    good(move(tmp_path, SOURCE, merged))
    (tmp_path / "in" / "001.csv").write_text("id\n3\n4\n100\n")
    assert good(move(tmp_path, SOURCE, merged))["objects"] == {"loaded": 1, "skipped": 3}
    assert count(table, tmp_path) == [(13, 13)]


def test_two_loads_into_postgres_wait_for_each_other(tmp_path, database):
    """The lock is kept over the checkpoints, so that the second load finds all objects in the list."""
    table = {"kind": "postgres", "table": "t", "auth": database}
    _objects(tmp_path, range(12))

    with ThreadPoolExecutor(2) as threads:
        loads = [threads.submit(move, tmp_path, SOURCE, table) for _ in range(2)]
        summaries = [good(load.result()) for load in loads]
    assert sorted(each["objects"]["loaded"] for each in summaries) == [0, 12]
    assert count(table, tmp_path) == [(36, 36)]


def test_objects_that_another_execution_has_loaded_are_not_written_twice(tmp_path, database, monkeypatch):
    """The lock is lost with its connection; then the list itself decides."""
    from noetl.tools.transfer.targets.postgres_target import PostgresTarget

    table = {"kind": "postgres", "table": "t", "auth": database}
    _objects(tmp_path, range(4))
    original = PostgresTarget.record_objects

    async def overtaken(self: Any, found: Any, known: Any) -> None:
        with psycopg.connect(database) as other:
            insert = "insert into noetl_loaded_objects values ('t', %s, %s, 'now') on conflict do nothing"
            other.execute(insert, next(iter(found.items())))
        await original(self, found, known)

    monkeypatch.setattr(PostgresTarget, "record_objects", overtaken)
    outcome = move(tmp_path, SOURCE, table)
    assert outcome.error.kind == "state.conflict"
    assert "another execution" in outcome.error.message


def test_the_version_that_was_read_is_remembered(tmp_path, s3, bucket, monkeypatch):
    table = {"kind": "duckdb", "table": "t", "file": "t.duckdb"}
    auth = {name: s3[name] for name in PARTS}
    source = {"kind": "s3", "auth": auth, "glob": f"s3://{bucket}/in/*.jsonl", "only_new": True}

    def put(number: int, value: int) -> None:
        uri = f"s3://{bucket}/in/{number}.jsonl"
        good(run_tool("object", {"uri": uri, "auth": auth, "data": [{"id": value}]}))

    put(1, 1)
    put(2, 2)
    original = object_source.ObjectSource._find

    async def changed_meanwhile(self: Any, *given: Any) -> Any:
        found = await original(self, *given)
        await asyncio.to_thread(put, 2, 22)
        return found

    monkeypatch.setattr(object_source.ObjectSource, "_find", changed_meanwhile)
    good(move(tmp_path, source, table))
    monkeypatch.undo()
    assert good(move(tmp_path, source, table))["objects"] == {"loaded": 0, "skipped": 2}
    assert count(table, tmp_path) == [(2, 2)]


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_a_file_that_changes_during_a_load_is_loaded_once(tmp_path, monkeypatch, ending):
    table = {"kind": "duckdb", "table": "t", "file": "t.duckdb"}
    source = {"kind": "file", "glob": f"*.{ending}", "only_new": True}
    path = tmp_path / f"a.{ending}"

    def write(rows: int) -> None:
        content = "id\n" + "".join(f"{number}\n" for number in range(rows))
        path.write_bytes(content.encode() if ending == "csv" else gzip.compress(content.encode()))

    find, rows = object_source.ObjectSource._find, object_source.ObjectSource._rows

    async def changed_before(self: Any, *given: Any) -> Any:
        found = await find(self, *given)
        write(3)
        return found

    async def changed_meanwhile(self: Any, *given: Any) -> Any:
        async for batch in rows(self, *given):
            write(4)
            yield batch

    write(2)
    monkeypatch.setattr(object_source.ObjectSource, "_find", changed_before)
    good(move(tmp_path, source, table))
    monkeypatch.undo()
    assert good(move(tmp_path, source, table))["objects"] == {"loaded": 0, "skipped": 1}
    assert count(table, tmp_path) == [(3, 3)]
    write(5)
    monkeypatch.setattr(object_source.ObjectSource, "_rows", changed_meanwhile)
    outcome = move(tmp_path, source, table)
    assert outcome.error is not None and outcome.error.kind == "state.conflict"
    assert f"file://{path} was changed while it was read" in outcome.error.message
    assert count(table, tmp_path) == [(3, 3)]


def test_a_mark_at_the_end_of_a_full_chunk_is_passed_on():
    async def batches() -> Any:
        for number in range(3):
            yield pa.record_batch({"id": [1, 2]})
            yield Mark(number, {})

    async def read() -> list[Any]:
        parts = chunked(batches(), 2, lookahead=False, due=lambda: True)
        return [part.size if isinstance(part, Chunk) else part.position async for part in parts]

    assert asyncio.run(read()) == [2, 0, 2, 1, 2, 2]


def test_a_rollback_that_fails_does_not_hide_the_reason(tmp_path, monkeypatch):
    from noetl.tools.transfer.targets.sqlite_target import SqliteTarget

    async def unreachable(self: Any) -> None:
        raise ConnectionError("gone")

    monkeypatch.setattr(SqliteTarget, "abort", unreachable)
    host = ToolHost(folder=tmp_path)
    source = {"kind": "data", "data": [{"id": 1}, {"id": "x"}], "types": {"id": "bigint"}}
    table = {"kind": "sqlite", "table": "t", "file": "t.sqlite"}
    outcome = run_tool("transfer", {"source": source, "targets": [table]}, host=host)
    assert "is not a value of type bigint" in failure(outcome)
    assert any("target 0 (sqlite t) was not rolled back: ConnectionError: gone" in str(line) for line in host.lines)
