"""Behaviour of the SQLite event store alone: several processes, detection of damage, error messages."""

import asyncio
import itertools
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from noetl.core.model.events import CtxPatched, PlaybookProcessed
from noetl.errors import CorruptLog, NoetlError, StoreUnavailable
from noetl.storage.events import sqlite as backend
from noetl.storage.events.sqlite import SqliteEventStore
from noetl.storage.ports.events import ExecutionFilter
from noetl.storage.sqlite import database_file as sqlite_file
from noetl.storage.sqlite import wal_preallocation
from noetl.storage.sqlite.database_file import SqliteFile
from tests.conformance.event_store import BODIES, make_append


def open_store(path: Path, *, preallocate_wal: bool = False) -> SqliteEventStore:
    return SqliteEventStore(SqliteFile(str(path), preallocate_wal=preallocate_wal))


async def fill(path: Path, executions: int = 40, appends: int = 5) -> None:
    store = open_store(path)
    for n in range(executions):
        await store.append(make_append(str(1000 + n), 0, BODIES[0]))
        for m in range(1, appends):
            await store.append(make_append(str(1000 + n), m, CtxPatched(patch={"text": f"{n}.{m} " * 40})))
    await store.close()


# ── error messages ───────────────────────────────────────────────────────────────────


def test_a_file_that_is_not_a_database_is_named(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("dear diary, " * 500)
    with pytest.raises(StoreUnavailable, match=r"notes\.txt is not a NoETL database"):
        open_store(file)
    assert file.read_text().startswith("dear diary")


def test_a_database_of_another_program_is_left_alone(tmp_path):
    file = tmp_path / "app.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE users(name)")
    connection.close()
    with pytest.raises(StoreUnavailable, match="another program"):
        open_store(file)


def test_a_newer_schema_is_refused(tmp_path):
    file = tmp_path / "noetl.db"
    asyncio.run(fill(file, 1, 1))
    connection = sqlite3.connect(file)
    connection.execute("UPDATE noetl_schema SET version = 99")
    connection.commit()
    connection.close()
    with pytest.raises(StoreUnavailable, match=r"schema version 99, but this version of NoETL supports \d+"):
        open_store(file)


def test_an_older_schema_is_migrated_forward_with_its_data(tmp_path, monkeypatch):
    file = tmp_path / "noetl.db"
    asyncio.run(fill(file, 3, 2))
    newer = (*backend.SCHEMA, "ALTER TABLE executions ADD COLUMN note TEXT; CREATE TABLE extra(a)")
    monkeypatch.setattr(backend, "SCHEMA", newer)

    async def scenario():
        store = open_store(file)
        assert len(await store.read("1002")) == 2
        await store.append(make_append("1002", 2, CtxPatched(patch={})))
        await store.close()

    asyncio.run(scenario())
    connection = sqlite3.connect(file)
    assert connection.execute("SELECT version FROM noetl_schema WHERE name = 'events'").fetchone() == (len(newer),)
    assert connection.execute("SELECT count(*) FROM extra").fetchone() == (0,)
    connection.close()


def test_a_migration_that_fails_changes_nothing(tmp_path, monkeypatch):
    file = tmp_path / "noetl.db"
    asyncio.run(fill(file, 1, 1))
    monkeypatch.setattr(backend, "SCHEMA", (*backend.SCHEMA, "CREATE TABLE extra(a); CREATE TABLE log(again)"))
    with pytest.raises(StoreUnavailable, match="log already exists"):
        open_store(file)
    connection = sqlite3.connect(file)
    assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'extra'").fetchone() == (0,)
    connection.close()


def test_a_folder_without_write_permission_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("x")
    with pytest.raises(StoreUnavailable, match=r"cannot create the folder .*NOETL_HOME"):
        open_store(blocked / "sub" / "noetl.db")
    with pytest.raises(StoreUnavailable, match="is a folder"):
        open_store(tmp_path)


def test_a_full_disk_fails_one_append_and_writing_resumes_when_there_is_space(tmp_path):
    async def scenario():
        file = SqliteFile(str(tmp_path / "noetl.db"))
        store = SqliteEventStore(file)
        await store.append(make_append("1001", 0, BODIES[0]))
        pages = await file.write(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
        await file.write(lambda db: db.execute(f"PRAGMA max_page_count={pages + 8}").fetchone())
        large = make_append("1002", 0, CtxPatched(patch={"x": "y" * 1_000_000}))
        small = [make_append(str(2000 + n), 0, BODIES[0]) for n in range(3)]
        answers = await asyncio.gather(
            store.append(small[0]), store.append(large), *map(store.append, small[1:]), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [type(None), StoreUnavailable, type(None), type(None)]
        assert "disk is full" in str(answers[1])
        await file.write(lambda db: db.execute("PRAGMA max_page_count=1000000").fetchone())
        await store.append(large)
        assert len(await store.read("1002")) == 1
        await store.close()

    asyncio.run(scenario())


def test_a_failing_job_does_not_fail_the_others_of_its_group(tmp_path):
    async def scenario():
        file = SqliteFile(str(tmp_path / "noetl.db"))
        store = SqliteEventStore(file)

        def broken(db):
            db.execute("INSERT INTO snapshots VALUES (1, 1, x'00', 0)")
            raise ZeroDivisionError("mine")

        answers = await asyncio.gather(
            store.append(make_append("1001", 0, BODIES[0])),
            file.write(broken),
            file.write(lambda db: db.execute("no sql at all")),
            store.append(make_append("1002", 0, BODIES[0])),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [type(None), ZeroDivisionError, StoreUnavailable, type(None)]
        assert await file.read(lambda db: db.execute("SELECT count(*) FROM snapshots").fetchone()) == (0,)
        assert len(await store.read("1002")) == 1
        await store.close()

    asyncio.run(scenario())


# ── durability and files ────────────────────────────────────────────────────────────────


def test_commits_are_flushed_and_automatic_checkpoints_are_off(tmp_path):
    async def scenario():
        file = SqliteFile(str(tmp_path / "noetl.db"))
        assert await file.write(lambda db: db.execute("PRAGMA synchronous").fetchone()) == (2,)
        assert await file.write(lambda db: db.execute("PRAGMA journal_mode").fetchone()) == ("wal",)
        assert await file.write(lambda db: db.execute("PRAGMA wal_autocheckpoint").fetchone()) == (0,)
        await file.close()

    asyncio.run(scenario())


def test_readers_cannot_write(tmp_path):
    async def scenario():
        file = SqliteFile(str(tmp_path / "noetl.db"))
        with pytest.raises(StoreUnavailable, match="not writable"):
            await file.read(lambda db: db.execute("DELETE FROM noetl_schema"))
        await file.close()

    asyncio.run(scenario())


def test_the_write_ahead_log_stays_small(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_file, "CHECKPOINT_PAGES", 50)  # if no write waits
    monkeypatch.setattr(sqlite_file, "MAX_WAL_PAGES", 100)  # otherwise

    async def scenario():
        store = open_store(tmp_path / "noetl.db")
        await store.append(make_append("1001", 0, BODIES[0]))
        for n in range(1, 300):
            await store.append(make_append("1001", n, CtxPatched(patch={"x": "y" * 4000})))
        wal = (tmp_path / "noetl.db-wal").stat().st_size
        assert len(await store.read("1001")) == 300
        await store.close()
        return wal

    assert asyncio.run(scenario()) < 400 * 4096  # without checkpoints it has more than 1,000 pages
    assert not (tmp_path / "noetl.db-wal").exists()


def test_the_log_is_not_preallocated_by_default(tmp_path):
    async def scenario():
        store = open_store(tmp_path / "noetl.db")
        await store.append(make_append("1001", 0, BODIES[0]))
        size = (tmp_path / "noetl.db-wal").stat().st_size
        await store.close()
        return size

    assert asyncio.run(scenario()) < wal_preallocation.MIN_BYTES


def test_a_lock_of_another_process_is_reported_with_its_pid(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.1)
    path = tmp_path / "noetl.db"
    holder = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "db.execute('BEGIN IMMEDIATE'); print('locked', flush=True); sys.stdin.read()"
    )

    async def scenario():
        store = open_store(path)
        await store.append(make_append("1001", 0, BODIES[0]))
        with subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", holder, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other:
            assert other.stdout.readline() == b"locked\n"
            expected = rf"locked by another process \(pid {other.pid}\) for more than 0 s"
            with pytest.raises(StoreUnavailable, match=expected):
                await store.append(make_append("1002", 0, BODIES[0]))
            other.stdin.close()
        await store.append(make_append("1002", 0, BODIES[0]))
        await store.close()

    asyncio.run(scenario())


def test_a_preallocated_log_grows_in_large_steps_and_is_always_consistent(tmp_path):
    """Copies of the files, as a crash leaves them, contain every acknowledged commit."""
    sizes = []

    async def scenario():
        store = open_store(tmp_path / "noetl.db", preallocate_wal=True)
        for n in range(150):
            await store.append(make_append(str(1000 + n), 0, BODIES[0]))
            await store.append(make_append(str(1000 + n), 1, PlaybookProcessed(outcome="success"), status="success"))
            sizes.append((tmp_path / "noetl.db-wal").stat().st_size)
            if n % 30 == 0:
                copy = tmp_path / f"copy{n}"
                copy.mkdir()
                for name in ("noetl.db", "noetl.db-wal"):
                    shutil.copy(tmp_path / name, copy)
                found = open_store(copy / "noetl.db")
                assert await found.counts() == {"success": n + 1}
                await found.append(make_append("9000", 0, BODIES[0]))
                assert len(await found.read(str(1000 + n))) == 2
                await found.close()
        await store.close()

    asyncio.run(scenario())
    assert len(set(sizes)) < 40, "the file grows with every commit"


def test_two_writers_preallocate_the_log_only_once(tmp_path):
    async def scenario():
        stores = [open_store(tmp_path / "noetl.db", preallocate_wal=True) for _ in range(2)]
        for _ in range(10):
            for store in stores:
                await store.append(make_append(str(next(numbers)), 0, BODIES[0]))
        size = (tmp_path / "noetl.db-wal").stat().st_size
        for store in stores:
            await store.close()
        return size

    numbers = itertools.count(1000)
    assert asyncio.run(scenario()) < 8 * wal_preallocation.MIN_BYTES


def test_another_program_may_write_while_the_log_is_preallocated(tmp_path):
    """SQLite's own lock excludes it during the preallocation."""
    path = tmp_path / "noetl.db"

    async def scenario():
        store = open_store(path, preallocate_wal=True)
        other = sqlite3.connect(path, timeout=30, isolation_level=None)
        other.execute("CREATE TABLE notes (n INTEGER, filling TEXT)")
        for n in range(60):
            await store.append(make_append(str(1000 + n), 0, BODIES[0]))
            other.execute("INSERT INTO notes VALUES (?, ?)", (n, "x" * 20_000))
        assert other.execute("SELECT count(*), sum(length(filling)) FROM notes").fetchone() == (60, 60 * 20_000)
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert [len(await store.read(str(1000 + n))) for n in range(60)] == [1] * 60
        other.close()
        await store.close()

    asyncio.run(scenario())


WRITER = """
import asyncio, sys
from noetl.storage.events.sqlite import SqliteEventStore
from noetl.storage.sqlite import database_file as sqlite_file
from noetl.errors import VersionConflict
from noetl.core.model.events import CtxPatched
from tests.conformance.event_store import BODIES, make_append
sqlite_file.CHECKPOINT_PAGES = 20
path, name, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

async def main():
    store = SqliteEventStore(sqlite_file.SqliteFile(path))
    own = str(5000 + name)
    await store.append(make_append(own, 0, BODIES[0]))
    won = 0
    for n in range(1, rounds):
        await store.append(make_append(own, n, CtxPatched(patch={"n": n, "x": "y" * 500})))
        seq = (await store.summary("1001")).seq
        try:
            await store.append(make_append("1001", seq, CtxPatched(patch={"by": name})))
            won += 1
        except VersionConflict:
            pass
    await store.close()
    print(won)

asyncio.run(main())
"""


def test_two_processes_write_one_file_at_once(tmp_path):
    file = tmp_path / "noetl.db"
    asyncio.run(fill(file, 2, 1))
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(file), str(n), "120"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for n in range(2)
    ]
    won = 0
    for writer in writers:
        out, err = writer.communicate(timeout=60)
        assert writer.returncode == 0, err.decode()
        won += int(out)

    async def look():
        store = open_store(file)
        shared = await store.read("1001")
        assert len(shared) == won + 1
        for n in range(2):
            own = await store.read(str(5000 + n))
            assert [recorded.body.patch["n"] for recorded in own[1:]] == list(range(1, 120))
        await store.close()

    asyncio.run(look())
    connection = sqlite3.connect(file)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_tail_yields_the_events_of_another_connection(tmp_path):
    async def scenario():
        here, there = open_store(tmp_path / "noetl.db"), open_store(tmp_path / "noetl.db")
        await there.append(make_append("1001", 0, BODIES[0]))

        async def follow():
            return [recorded.seq async for recorded in here.tail("1001")]

        follower = asyncio.create_task(follow())
        for n in range(1, 4):
            await there.append(make_append("1001", n, CtxPatched(patch={})))
        await there.append(make_append("1001", 4, PlaybookProcessed(outcome="success"), status="success"))
        assert await asyncio.wait_for(follower, 10) == [1, 2, 3, 4, 5]
        await here.close()
        await there.close()

    asyncio.run(scenario())


# ── damage ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE log SET data = replace(CAST(data AS TEXT), '3.1', '9.9') WHERE execution = 1003 AND first = 2",
        "UPDATE log SET crc = crc + 1 WHERE execution = 1003 AND first = 3",
        "DELETE FROM log WHERE execution = 1003 AND first = 2",
        "DELETE FROM log WHERE execution = 1003 AND first = 5",
        "DELETE FROM log WHERE execution = 1003",
        "DELETE FROM executions WHERE id = 1003",
        "UPDATE executions SET seq = 4 WHERE id = 1003",
        "UPDATE log SET execution = 1003, first = 6 WHERE execution = 1004 AND first = 5",
    ],
)
def test_damage_is_detected_and_the_other_executions_stay_readable(tmp_path, damage):
    file = tmp_path / "noetl.db"
    asyncio.run(fill(file, 6, 5))
    connection = sqlite3.connect(file)
    assert connection.execute(damage).rowcount > 0
    connection.commit()
    connection.close()

    async def scenario():
        store = open_store(file)
        with pytest.raises(CorruptLog, match="1003"):
            await store.read("1003")
        assert len(await store.read("1002")) == 5
        await store.append(make_append("1002", 5, CtxPatched(patch={})))
        await store.close()

    asyncio.run(scenario())


def test_a_damaged_summary_is_listed_as_damaged(tmp_path):
    file = tmp_path / "noetl.db"
    asyncio.run(fill(file, 3, 2))
    connection = sqlite3.connect(file)
    connection.execute("UPDATE executions SET data = x'7b7d' WHERE id = 1001")
    connection.commit()
    connection.close()

    async def scenario():
        store = open_store(file)
        with pytest.raises(CorruptLog, match="1001"):
            await store.summary("1001")
        listed = await store.executions(ExecutionFilter())
        assert [(row.execution_id, bool(row.error)) for row in listed] == [
            ("1002", False),
            ("1001", True),
            ("1000", False),
        ]
        await store.close()

    asyncio.run(scenario())


def test_a_flipped_bit_is_never_read_as_valid_data(tmp_path):
    """Flip single bits anywhere in the file: every log is read as it was written, or refused."""
    clean = tmp_path / "clean.db"
    asyncio.run(fill(clean, 12, 4))
    original = clean.read_bytes()

    async def logs(path):
        store = open_store(path)
        try:
            found = {}
            for n in range(12):
                try:
                    found[n] = [recorded.body for recorded in await store.read(str(1000 + n))]
                except NoetlError:
                    found[n] = None
            return found
        finally:
            await store.close()

    truth = asyncio.run(logs(clean))
    assert all(truth.values())
    rng = random.Random(7)
    refused = 0
    for trial in range(120):
        damaged = bytearray(original)
        damaged[rng.randrange(100, len(damaged))] ^= 1 << rng.randrange(8)
        file = tmp_path / f"damaged{trial}.db"
        file.write_bytes(damaged)
        try:
            found = asyncio.run(logs(file))
        except NoetlError:
            refused += 1
            continue
        for n, log in found.items():
            assert log is None or log == truth[n], f"trial {trial}: execution {n} was read wrongly"
        refused += any(log is None for log in found.values())
    assert refused > 10


def test_several_event_loops_may_write_one_file_object(tmp_path):
    """A loop that writes much and others that write beside it: no writer starves, nothing is lost."""
    file = SqliteFile(str(tmp_path / "noetl.db"))
    store = SqliteEventStore(file)

    async def writes(number, count):
        await store.append(make_append(str(number), 0, BODIES[0]))
        for n in range(1, count):
            await store.append(make_append(str(number), n, CtxPatched(patch={"n": n})))

    async def many(base):
        await asyncio.wait_for(asyncio.gather(*(writes(base + n, 20) for n in range(5))), 60)

    threads = [threading.Thread(target=asyncio.run, args=(many(1000 * (n + 1)),)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def look():
        for base in (1000, 2000, 3000):
            for n in range(5):
                assert len(await store.read(str(base + n))) == 20
        await store.close()

    asyncio.run(look())
