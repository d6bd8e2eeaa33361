"""What failures and cancellations of a transfer leave behind: connections, locks, files, threads, settings."""

from __future__ import annotations

import asyncio
import gzip
import sqlite3
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.connections import duckdb as duck
from noetl.connections import sqlite as lite
from noetl.core.model.tool import Timeout
from noetl.data.files import compression
from noetl.runtime.resources import close_loop_resources
from noetl.testing.tools import ToolHost, run_tool, tool_call
from noetl.tools.registry import load
from noetl.tools.transfer.engine import prefetch
from noetl.tools.transfer.targets import sqlite_target

ROWS = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


def test_a_transaction_that_could_not_begin_is_begun_by_the_next_target(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sqlite")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    transaction = sqlite_target._SharedTransaction()

    async def scenario() -> None:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await transaction.join(path, 0.1)
        assert transaction.connection is None
        holder.execute("ROLLBACK")
        await transaction.join(path, 0.1)
        assert transaction.connection is not None and transaction.connection.in_transaction
        await transaction.leave()

    asyncio.run(scenario())
    holder.close()


def test_transfers_into_one_sqlite_file_take_turns(tmp_path: Path) -> None:
    """Those that waited for the lock of the file occupied the threads that the others needed, until all had failed."""

    async def one(number: int) -> Any:
        target = {"kind": "sqlite", "file": "a.sqlite", "table": f"t{number}"}
        fields = {"data": ROWS * 500, "targets": [target], "chunk": {"size": 100}}
        timeout = Timeout(connect=1.0)
        return await load("transfer")(tool_call("transfer", fields, host=ToolHost(folder=tmp_path), timeout=timeout))

    async def scenario() -> list[Any]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        try:
            return await asyncio.gather(*map(one, range(12)))
        finally:
            await close_loop_resources()

    assert [outcome.error for outcome in asyncio.run(scenario())] == [None] * 12


def test_a_transfer_waits_for_the_turn_of_another_one_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lite, "TURN_S", 0.1)
    path = str(tmp_path / "a.sqlite")

    async def scenario() -> None:
        first, second = sqlite_target._SharedTransaction(), sqlite_target._SharedTransaction()
        await first.join(path, 1.0)
        with pytest.raises(sqlite3.OperationalError, match="database is locked by other tasks"):
            await second.join(path, 1.0)
        await first.leave()
        await second.join(path, 1.0)
        await second.leave()

    asyncio.run(scenario())


def test_keys_of_a_table_in_another_schema_are_not_those_of_the_target(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
        connection.execute("create schema other; create table other.t (id bigint primary key, name text)")
        connection.execute("create table t (id bigint, name text); insert into t values (1, 'old')")
    target = {"kind": "duckdb", "file": "a.duckdb", "table": "t", "mode": "upsert", "key": "id"}
    outcome = run_tool("transfer", {"data": ROWS, "targets": [target]}, host=ToolHost(folder=tmp_path))
    assert outcome.error is None, outcome.error
    with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
        assert connection.execute("select * from t order by id").fetchall() == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("tables", ["t", "tu"])
def test_the_tables_of_a_file_restore_its_memory_limit(tmp_path: Path, tables: str) -> None:
    targets = [{"kind": "duckdb", "file": "a.duckdb", "table": name} for name in tables]
    call = tool_call("transfer", {"data": ROWS, "targets": targets}, host=ToolHost(folder=tmp_path))

    async def scenario() -> tuple[Any, Any]:
        async with duck.database(str(tmp_path / "a.duckdb")).cursor(writes=False) as cursor:
            limit = "SELECT current_setting('memory_limit')"
            before = cursor.execute(limit).fetchone()
            outcome = await load("transfer")(call)
            assert outcome.error is None, outcome.error
            after = cursor.execute(limit).fetchone()
        await close_loop_resources()
        return before, after

    before, after = asyncio.run(scenario())
    assert before == after


def test_a_file_that_could_not_get_its_name_is_removed(tmp_path: Path) -> None:
    (tmp_path / "o.csv").mkdir()
    outcome = run_tool(
        "transfer", {"data": ROWS, "targets": [{"kind": "file", "path": "o.csv"}]}, host=ToolHost(folder=tmp_path)
    )
    assert outcome.error is not None
    assert [path.name for path in tmp_path.iterdir()] == ["o.csv"]


def test_a_damaged_object_ends_the_fetching_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "temp").mkdir()
    for number in range(8):
        (tmp_path / "in" / f"{number}.csv.gz").write_bytes(gzip.compress(b"id\n1\n") if number else b"no gzip")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    begun, ended = [], threading.Semaphore(0)
    original = compression.decompress_file

    def slow(source: str, *others: Any) -> None:
        begun.append(source)
        try:
            time.sleep(0.0 if source.endswith("0.csv.gz") else 0.3)
            original(source, *others)
        finally:
            ended.release()

    monkeypatch.setattr(compression, "decompress_file", slow)
    source, target = {"kind": "file", "path": "in/*.csv.gz"}, {"kind": "sqlite", "file": "o.sqlite", "table": "t"}
    call = tool_call("transfer", {"source": source, "targets": [target]}, host=ToolHost(folder=tmp_path))

    async def scenario() -> Any:
        outcome = await load("transfer")(call)
        assert all(ended.acquire(blocking=False) for _ in begun), "a thread goes on"
        await close_loop_resources()
        return outcome

    outcome = asyncio.run(scenario())
    assert outcome.error is not None and "0.csv.gz" in outcome.error.message
    assert list((tmp_path / "temp").iterdir()) == []


def test_a_source_that_ends_with_a_cancellation_does_not_wait_forever() -> None:
    async def chunks() -> Any:
        raise asyncio.CancelledError("of a part of the source")
        yield

    async def scenario() -> None:
        async with asyncio.timeout(5), aclosing(prefetch(chunks())) as stream:
            await anext(stream)

    with pytest.raises(asyncio.CancelledError, match="of a part of the source"):
        asyncio.run(scenario())


class _CleanupWaits(ThreadPoolExecutor):
    """A busy pool: what removes a folder waits for a thread until it is cancelled."""

    def submit(self, call: Any, /, *arguments: Any, **named: Any) -> Any:
        if "cleanup" in repr(call):
            return Future()
        return super().submit(call, *arguments, **named)


def test_a_failed_target_leaves_no_folder_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for number, value in enumerate((1, 1.5, "x")):
        pq.write_table(pa.table({"a": [value]}), tmp_path / f"in{number}.parquet")
    given = {"source": {"kind": "file", "glob": "in*.parquet"}, "targets": [{"kind": "file", "path": "o.parquet"}]}

    async def scenario() -> None:
        asyncio.get_running_loop().set_default_executor(_CleanupWaits())
        outcome = await load("transfer")(tool_call("transfer", given, host=ToolHost(folder=tmp_path)))
        assert outcome.error is not None and "'a' is int64 in the first rows" in outcome.error.message
        await close_loop_resources()

    asyncio.run(scenario())
    assert not list(tmp_path.glob("noetl-transfer-*"))
