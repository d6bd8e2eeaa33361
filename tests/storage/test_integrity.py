"""Damage outside of the logs is found: pages of indexes and tables, texts, and the write-ahead log."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from functools import partial
from types import SimpleNamespace

import pytest

from noetl.cli.operations.schema_parts import schema_parts
from noetl.core.model.task_log import LogChunk, LogLine, LogSource
from noetl.embedded import open_local, run_async
from noetl.errors import CorruptLog, StoreUnavailable
from noetl.server.lifecycle.log_verifier import repair, verify
from noetl.server.lifecycle.retention import delete_old
from noetl.server.orchestrator.catalog import Catalog, Source
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.factory import open_stores, open_task_logs
from noetl.storage.integrity import Remedy, database_problems, definitions, rebuild_derived
from noetl.storage.ports.events import ExecutionFilter
from noetl.storage.results import open_results
from noetl.storage.sqlite.database_file import store_error
from noetl.tools.registry import specs

TEXT = (
    "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n  - {step: start, tool: {kind: noop}}\n"
)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with twenty executions, closed."""
    monkeypatch.setenv("NOETL_HOME", str(tmp_path))
    store = f"sqlite://{tmp_path}/noetl.db"

    async def fill() -> None:
        for number in range(20):
            await run_async(TEXT + f"# {number}\n", store=store)

    asyncio.run(fill())
    return tmp_path / "noetl.db"


def problems(file) -> list[str]:
    async def check() -> list[str]:
        events, _ = open_stores(f"sqlite://{file}")
        try:
            found = [str(each) async for each in database_problems(events.sql, schema_parts(events.sql.dialect))]
            return found + (await verify(events))[2]
        finally:
            await events.close()

    return asyncio.run(check())


def test_an_intact_database_has_no_problems(home):
    assert problems(home) == []


@pytest.mark.parametrize("name", ["executions_active", "executions", "playbook_texts", "catalogue", "log_of_execution"])
def test_an_overwritten_page_is_found(home, name):
    with sqlite3.connect(home) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    with open(home, "r+b") as file:
        file.seek((page - 1) * size)
        file.write(bytes([7]) + os.urandom(size - 1))
    assert problems(home)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE playbook_texts SET text = text || ' ' WHERE digest = (SELECT min(digest) FROM playbook_texts)",
        "INSERT INTO catalogue(path, version, digest, registered_at) VALUES ('p', 1, 'none', 0)",
    ],
)
def test_a_changed_text_is_found(home, change):
    with sqlite3.connect(home) as db:
        db.execute(change)
    assert len(problems(home)) == 1


def test_what_is_derived_is_rebuilt_from_the_logs(home):
    with sqlite3.connect(home) as db:
        db.execute("UPDATE executions SET data = x'00' WHERE id = (SELECT min(id) FROM executions)")
        db.execute("UPDATE executions SET status = 'failed', crc = 1 WHERE id = (SELECT max(id) FROM executions)")
    assert len(problems(home)) == 2

    async def rebuild() -> tuple[int, list[str]]:
        events, playbooks = open_stores(f"sqlite://{home}")
        try:
            await rebuild_derived(events.sql, schema_parts(events.sql.dialect))
            return await repair(events, Catalog(playbooks, specs).load)
        finally:
            await events.close()

    assert asyncio.run(rebuild()) == (2, [])
    assert problems(home) == []


def schema_of(file) -> list[tuple[str, str]]:
    with sqlite3.connect(file) as db:
        return sorted(db.execute("SELECT name, sql FROM sqlite_master WHERE name <> 'quotas'").fetchall(), key=str)


def overwrite_root(file, name) -> None:
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    with open(file, "r+b") as data:
        data.seek((page - 1) * size)
        data.write(bytes(size))


def drop(file, kind, name) -> None:
    with sqlite3.connect(file) as db:
        db.execute(f"DROP {kind} {name}")


DAMAGED = ["executions", "executions_key", "executions_path", "log_of_execution", "snapshots", "executions_active"]


@pytest.mark.parametrize(
    "hurt",
    [
        *(pytest.param(partial(overwrite_root, name=name), id=f"page of {name}") for name in DAMAGED),
        pytest.param(partial(drop, kind="INDEX", name="executions_key"), id="an index"),
        pytest.param(partial(drop, kind="TABLE", name="executions"), id="the table of executions"),
    ],
)
def test_a_damaged_file_is_repaired_if_the_damage_is_in_what_is_derived(home, capsys, hurt):
    from noetl.cli import app

    schema = schema_of(home)
    hurt(home)
    assert app.run(["doctor", "--verify"]) == 1
    assert app.run(["doctor", "--repair"]) == 0, capsys.readouterr().out
    assert problems(home) == []
    assert schema_of(home) == schema

    async def listed() -> dict[str, int]:
        events, _ = open_stores(f"sqlite://{home}")
        try:
            return await events.counts()
        finally:
            await events.close()

    assert asyncio.run(listed()) == {"success": 20}


@pytest.mark.parametrize("hurt", [partial(overwrite_root, name="log"), partial(drop, kind="TABLE", name="days")])
def test_a_repair_of_a_table_that_is_not_derived_fails_and_keeps_the_rest(home, capsys, hurt):
    from noetl.cli import app

    schema = [each for each in schema_of(home) if not each[0].startswith("days")]
    hurt(home)
    assert app.run(["doctor", "--repair"]) == 1
    assert "restore a backup" in capsys.readouterr().out
    assert [each for each in schema_of(home) if not each[0].startswith("days")] == schema


def test_retention_returns_the_space_of_deleted_executions(home):
    async def forget() -> None:
        events, _ = open_stores(f"sqlite://{home}")
        results = open_results(f"blob://{home.parent}/results")
        try:
            await delete_old(events, results, time.time() + 86_400)
            await events.tidy(0.0)
        finally:
            await results.close()
            await events.close()

    with sqlite3.connect(home) as db:
        (before,) = db.execute("PRAGMA page_count").fetchone()
    asyncio.run(forget())
    with sqlite3.connect(home) as db:
        (after,) = db.execute("PRAGMA page_count").fetchone()
        (free,) = db.execute("PRAGMA freelist_count").fetchone()
    assert after < before and free == 0


WRITER = """
import asyncio, sys
from noetl.embedded import run_async
from noetl.storage.factory import open_stores
text, store = sys.argv[1:]
async def main():
    events, _ = open_stores(store)  # stays open, so that the write-ahead log is not copied
    for number in range(5):
        await run_async(text + f"# {number}", store=store)
    print("ready", flush=True)
    sys.stdin.read()
asyncio.run(main())
"""


@pytest.fixture
def killed(tmp_path, monkeypatch):
    """The database of a killed process, with two intact executions before and five in its write-ahead log."""
    monkeypatch.setenv("NOETL_HOME", str(tmp_path))
    store = f"sqlite://{tmp_path}/noetl.db"
    for number in range(2):
        asyncio.run(run_async(TEXT + f"# earlier {number}", store=store))
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, TEXT, store], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert writer.stdout.readline() == b"ready\n"
    finally:
        writer.kill()
        writer.communicate()
    return tmp_path / "noetl.db"


def flipped(data: bytes) -> bytes:
    place = len(data) // 2
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def of_another_time(_: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder, closing(sqlite3.connect(f"{folder}/other.db")) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE t(a)")
        with open(f"{folder}/other.db-wal", "rb") as log:
            return log.read()


DAMAGES = {
    "of another time": of_another_time,
    "cut": lambda data: data[:-5000],
    "flipped": flipped,
    "header": lambda data: data[:17] + bytes([data[17] ^ 1]) + data[18:],
    "emptied": lambda data: b"",
    "deleted": lambda data: None,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_no_command_continues_after_commits_are_lost_with_the_write_ahead_log(killed, capsys, damage):
    from noetl.cli import app

    log = killed.with_name("noetl.db-wal")
    changed = damage(log.read_bytes())
    if changed is None:
        log.unlink()
    else:
        log.write_bytes(changed)
    for command in (["executions"], ["doctor"], ["executions"]):
        assert app.run(command) != 0, command
        captured = capsys.readouterr()
        assert "the last acknowledged events are lost" in captured.out + captured.err
    assert app.run(["doctor", "--repair"]) == 0, capsys.readouterr().out
    assert "are lost for good" in capsys.readouterr().out
    assert app.run(["doctor", "--verify"]) == 0, capsys.readouterr().out
    assert app.run(["executions"]) == 0


def test_an_intact_write_ahead_log_of_a_killed_process_is_read(killed, capsys):
    assert problems(killed) == []
    with sqlite3.connect(killed) as db:
        assert db.execute("SELECT count(*) FROM executions").fetchone() == (7,)


def without_its_log(file, _: bytes) -> None:
    for suffix in ("-wal", "-shm"):
        file.with_name(file.name + suffix).unlink()


def overwritten_by_an_older_copy(file, older: bytes) -> None:
    without_its_log(file, older)
    file.write_bytes(older)


def replaced_by_an_older_copy(file, older: bytes) -> None:
    without_its_log(file, older)
    copy = file.with_name("copy.db")
    copy.write_bytes(older)
    copy.rename(file)


def emptied(file, _: bytes) -> None:
    overwritten_by_an_older_copy(file, b"")


@pytest.mark.parametrize("damage", [without_its_log, overwritten_by_an_older_copy, replaced_by_an_older_copy, emptied])
def test_no_command_continues_with_a_database_that_is_older_than_its_commits(killed, capsys, damage):
    from noetl.cli import app

    with tempfile.TemporaryDirectory() as folder:
        older = f"sqlite://{folder}/noetl.db"
        asyncio.run(run_async(TEXT, store=older))
        with open(f"{folder}/noetl.db", "rb") as file:
            content = file.read()
    damage(killed, content)
    for command in (["executions"], ["doctor", "--verify"], ["executions"]):
        assert app.run(command) != 0, command
        captured = capsys.readouterr()
        assert damage is emptied or "is older than its last acknowledged commits" in captured.out + captured.err
    assert app.run(["doctor", "--repair"]) == 0, capsys.readouterr().out
    assert "are lost for good" in capsys.readouterr().out
    assert app.run(["doctor", "--verify"]) == 0, capsys.readouterr().out
    assert app.run(["executions"]) == 0


def test_a_database_that_another_program_closed_is_not_older(killed):
    with closing(sqlite3.connect(killed)) as db:  # copies the log into the database, and deletes it
        assert db.execute("SELECT count(*) FROM executions").fetchone() == (7,)
    assert not killed.with_name("noetl.db-wal").exists()
    assert problems(killed) == []


def test_a_copy_of_a_folder_that_was_written_meanwhile_is_not_refused(killed, tmp_path_factory, monkeypatch):
    other = tmp_path_factory.mktemp("copy")
    for name in ("noetl.db", "noetl.db.mark"):  # its log had not been there yet
        (other / name).write_bytes(killed.with_name(name).read_bytes())
    asyncio.run(run_async(TEXT, store=f"sqlite://{other}/noetl.db"))
    assert problems(other / "noetl.db") == []


def test_a_deleted_database_begins_again(killed):
    without_its_log(killed, b"")
    killed.unlink()
    asyncio.run(run_async(TEXT, store=f"sqlite://{killed}"))
    assert problems(killed) == []


@pytest.mark.parametrize("deleted", [False, True])
def test_a_restored_database_may_be_older(killed, tmp_path_factory, capsys, deleted):
    from noetl.cli import app

    backup = tmp_path_factory.mktemp("backup") / "backup.noetl"
    assert app.run(["backup", str(backup)]) == 0
    for number in range(3):
        asyncio.run(run_async(TEXT + f"# later {number}", store=f"sqlite://{killed}"))
    if deleted:
        killed.unlink()
    assert app.run(["restore", "--force", str(backup)]) == 0, capsys.readouterr().err
    assert app.run(["doctor", "--verify"]) == 0, capsys.readouterr().out


def test_commits_are_counted_once_a_second_and_after_every_checkpoint(tmp_path, monkeypatch):
    from noetl.storage.sqlite import commit_mark
    from noetl.storage.sqlite.database_file import SqliteFile

    path = str(tmp_path / "a.db")

    async def scenario() -> list[int]:
        file = SqliteFile(path)
        counts = []

        async def commit() -> None:
            await file.write(lambda db: None)
            counts.append(commit_mark.marked_count(path))

        try:
            await commit()
            await commit()
            await asyncio.to_thread(file._truncate_wal)
            await commit()
            await commit()
            monkeypatch.setattr(file._mark, "_due", time.monotonic() - 1)
            await commit()
        finally:
            await file.close()
        return counts

    assert asyncio.run(scenario()) == [1, 1, 2, 2, 3]


def test_the_tables_and_texts_of_postgres_are_checked(database):
    async def check() -> list[list[str]]:
        events, playbooks = open_stores(database)
        found = []
        try:
            text = "apiVersion: noetl.io/v2"
            digest = hashlib.sha256(f"\0{text}".encode()).hexdigest()[:32]
            await playbooks.save_text(digest, text, "")
            found.append([str(each) async for each in database_problems(events.sql, schema_parts(events.sql.dialect))])
            await events.sql.execute("UPDATE noetl_playbook_texts SET text = $1", "another text")
            found.append([str(each) async for each in database_problems(events.sql, schema_parts(events.sql.dialect))])
            await rebuild_derived(events.sql, schema_parts(events.sql.dialect))
            return found
        finally:
            await events.close()

    intact, damaged = asyncio.run(check())
    assert intact == [] and "does not match its digest" in damaged[0]


async def dropped_and_repaired(store) -> dict[str, list[str]]:
    """Drop each table and index of all parts; the problems found, and those after a repair of the indexes."""
    events, _ = open_stores(store)
    database = events.sql
    parts = schema_parts(database.dialect)
    for part in parts.keys() - {"events", "playbooks"}:
        database.migrate(part, parts[part])
    found = {"intact": [str(each) async for each in database_problems(database, parts)]}
    run = database.execute if database.dialect == "sqlite" else database.row
    try:
        defined = [(kind, name) for kind, name, _ in definitions(script for each in parts.values() for script in each)]
        for kind, name in defined:
            if kind == "index":
                await run(f"DROP INDEX {name}")
        found["indexes"] = [str(each) async for each in database_problems(database, parts)]
        await rebuild_derived(database, parts)
        found["repaired"] = [str(each) async for each in database_problems(database, parts)]
        for name in ("task_logs", "triggers"):
            await run(f"DROP TABLE {database.prefix}{name}")
        found["tables"] = [str(each) async for each in database_problems(database, parts)]
        found["expected"] = [
            f"index {name} does not exist; {Remedy.REPAIR.value}" for kind, name in defined if kind == "index"
        ]
        return found
    finally:
        await events.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_dropped_indexes_and_tables_are_found_and_indexes_created_again(kind, home, request):
    store = f"sqlite://{home}" if kind == "sqlite" else request.getfixturevalue("database")
    found = asyncio.run(dropped_and_repaired(store))
    prefix = "" if kind == "sqlite" else "noetl_"
    assert found["intact"] == found["repaired"] == []
    assert sorted(found["indexes"]) == sorted(found["expected"]) and len(found["expected"]) > 10
    assert {f"table {prefix}{name} does not exist; restore a backup" for name in ("task_logs", "triggers")} <= set(
        found["tables"]
    )


LARGE = TEXT.replace(
    "{step: start, tool: {kind: noop}}", "{step: start, tool: {kind: python, code: \"result = 'x' * 300000\"}}"
)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """The folder of the stored results of three executions."""
    monkeypatch.setenv("NOETL_HOME", str(tmp_path))
    for number in range(3):
        assert (
            asyncio.run(run_async(LARGE + f"# {number}\n", store=f"sqlite://{tmp_path}/noetl.db")).status == "success"
        )
    folder = tmp_path / "results"
    assert len(payloads(folder)) == 3
    return folder


def payloads(folder):
    return [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]


def verified(capsys) -> tuple[int, str]:
    from noetl.cli import app

    code = app.run(["doctor", "--verify"])
    return code, capsys.readouterr().out


@pytest.mark.parametrize("damage", ["none", "flipped", "cut", "removed"])
def test_doctor_reads_every_stored_result(results, capsys, damage):
    file = payloads(results)[1]
    data = bytearray(file.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elif damage == "cut":
        file.write_bytes(data[:-10])
    elif damage == "removed":
        file.unlink()
    code, shown = verified(capsys)
    assert ("3 stored results have valid checksums" in shown) is (damage == "none"), shown
    assert (code == 0) is (damage == "none"), shown


def test_retention_returns_the_space_of_stored_results(results):
    async def forget() -> None:
        events, _ = open_stores(f"sqlite://{results.parent}/noetl.db")
        store = open_results(f"blob://{results}")
        try:
            await delete_old(events, store, time.time() + 86_400)
        finally:
            await store.close()
            await events.close()

    asyncio.run(forget())
    assert payloads(results) == []
    assert [path for path in results.rglob("*") if path.is_dir() and path.name.isdigit()] == []


def test_an_emptied_or_deleted_database_is_noticed(results, capsys):
    from noetl.cli import app

    file = results.parent / "noetl.db"
    file.write_bytes(b"")
    assert app.run(["doctor"]) == 1
    assert f"{file} is empty, which no database is" in capsys.readouterr().out
    file.unlink()
    app.run(["doctor", "--verify"])
    assert f"has no executions, but {results} has results of some" in capsys.readouterr().out


def test_one_damaged_log_does_not_hide_other_damage(results, capsys):
    with sqlite3.connect(results.parent / "noetl.db") as db:
        db.execute("UPDATE log SET crc = 1 WHERE execution = (SELECT max(execution) FROM log)")
        db.execute("DELETE FROM playbook_texts WHERE digest = (SELECT min(digest) FROM playbook_texts)")
    payloads(results)[0].write_bytes(b"x")
    payloads(results)[1].write_bytes(b"x")
    code, shown = verified(capsys)
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert code == 1
    assert sum(line.startswith("results failed") for line in lines) >= 1, shown
    assert sum("the log is damaged at seq" in line for line in lines) == 1, shown
    assert any("the text of playbook" in line and "run the same playbook again" in line for line in lines), shown


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_version_without_its_text_is_reported_and_can_be_registered_again(kind, home, request):
    store = f"sqlite://{home}" if kind == "sqlite" else request.getfixturevalue("database")

    async def scenario() -> None:
        events, playbooks = open_stores(store)
        try:
            first = await Catalog(playbooks, specs).register(Source(TEXT), 5.0)
            await events.sql.execute(f"DELETE FROM {events.sql.prefix}playbook_texts WHERE digest = $1", first.digest)
        finally:
            await events.close()
        events, playbooks = open_stores(store)
        catalog = Catalog(playbooks, specs)
        try:
            with pytest.raises(CorruptLog, match=r"version 1 of playbook .* is damaged; restore a backup, or register"):
                await catalog.find(first.path)
            assert [each.version for each in await playbooks.list()] == [1]
            async with asyncio.timeout(10):
                second = await catalog.register(Source(TEXT + "# changed\n"), 6.0)
            assert second.version == 2
        finally:
            await events.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("change", ["first = 'x'", "count = 'x'", "total = x'00'"])
def test_a_damaged_position_of_a_task_log_is_an_error_of_that_log(home, capsys, change):
    from noetl.cli import app

    async def add() -> str:
        events, _ = open_stores(f"sqlite://{home}")
        try:
            (found,) = await events.executions(ExecutionFilter(limit=1))
            chunk = LogChunk(found.execution_id, [LogSource("start", "task")], [LogLine(0, 5.0, "stdout", "hello")])
            await open_task_logs(events).append(chunk)
            await events.sql.execute(f"UPDATE task_logs SET {change}")
            with suppress(CorruptLog):
                await open_task_logs(events).append(chunk)
            return found.execution_id
        finally:
            await events.close()

    execution_id = asyncio.run(add())
    app.run(["logs", execution_id])
    assert "internal error" not in capsys.readouterr().err
    assert any("the task log of execution" in each for each in problems(home))


def test_no_execution_is_committed_before_the_text_of_its_playbook(tmp_path, monkeypatch):
    """A server that is killed between both could not continue it."""

    async def scenario() -> None:
        async with await open_local(store=f"sqlite://{tmp_path}/noetl.db", home=tmp_path) as engine:
            orchestrator = engine.orchestrator

            async def fail(*_: object) -> None:
                raise StoreUnavailable("the disk is full")

            monkeypatch.setattr(orchestrator.catalog.playbooks, "save_text", fail)
            with pytest.raises(StoreUnavailable):
                await orchestrator.submit(Submission(text=TEXT))
            assert await orchestrator.store.executions(ExecutionFilter()) == []

    asyncio.run(scenario())


@pytest.mark.parametrize(("free", "shown"), [(0, "the disk is full"), (1 << 40, "check the disk")])
def test_an_input_output_error_names_the_remedy(tmp_path, monkeypatch, free, shown):
    """SQLite reports a full disk as such an error if its shared memory cannot be created."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    failure = sqlite3.OperationalError("disk I/O error")
    failure.sqlite_errorname = "SQLITE_IOERR_SHMSIZE"
    assert shown in str(store_error(failure, str(tmp_path / "noetl.db")))
