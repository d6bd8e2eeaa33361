"""Stores of earlier releases: migrated forward, checked without a change, and upgraded while executions run."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from devcluster.servers import free_port
from devcluster.services import fresh_database
from noetl.cli.operations.schema_parts import schema_parts
from noetl.client import Client
from noetl.storage.backup.archive import BackupReader
from noetl.storage.backup.postgres_copy import restore_tables
from tests.operations.old_release import LAYOUTS, PREVIOUS, ROOT, WORK, checkout

BACKUPS = sorted(LAYOUTS.glob("*.backup"))
STARTED = 40


def parts(noetl, store: str) -> dict[str, tuple[int, int]]:
    found = noetl("upgrade", "--check", "--json", "--store", store).json["parts"]
    return {one["part"]: (one["version"], one["supported"]) for one in found}


@pytest.fixture(params=BACKUPS, ids=lambda file: file.name)
def old_store(request, folder, tmp_path):
    """The store of an earlier release, with its own layout."""
    reader = BackupReader(request.param)
    try:
        if reader.manifest.kind == "sqlite":
            reader.extract("noetl.db", tmp_path / "home" / "noetl.db")
            yield f"sqlite://{tmp_path}/home/noetl.db"
            return
        with fresh_database(request.getfixturevalue("postgres")) as dsn:
            asyncio.run(restore_tables(dsn, reader, schema_parts("postgres"), force=False))
            yield dsn
    finally:
        reader.close()


def test_there_are_backups_of_both_stores():
    assert {re.sub(r".*\.(\w+)\.backup", r"\1", file.name) for file in BACKUPS} == {"sqlite", "postgres"}


def test_a_store_of_an_earlier_release_is_checked_and_migrated(noetl, old_store):
    before = parts(noetl, old_store)
    checked = noetl("upgrade", "--check", "--store", old_store)
    assert checked.code == 1
    assert "; make a backup" in checked.err
    assert parts(noetl, old_store) == before, "--check has changed the store"
    migrated = noetl("upgrade", "--store", old_store)
    assert migrated.code == 0, migrated.err
    assert all(version == supported for version, supported in parts(noetl, old_store).values())
    assert noetl("upgrade", "--check", "--store", old_store).code == 0
    found = noetl("executions", "--store", old_store, "--json").json
    assert sorted((one["path"], one["status"]) for one in found) == [
        ("tests/fails", "failed"),
        ("tests/work", "success"),
    ]
    for one in found:
        assert noetl("why", one["execution_id"], "--store", old_store).code == 0
        assert noetl("replay", one["execution_id"], "--store", old_store).code == 0
    assert noetl("run", "tests/work", "--store", old_store, "--json").json["output"]["data"] == 14
    work = next(one for one in found if one["path"] == "tests/work")
    assert noetl("rerun", work["execution_id"], "--store", old_store, "--json").json["status"] == "success"
    assert noetl("schedule", "list", "--store", old_store, "--json").json[0]["name"] == "daily"


@pytest.mark.parametrize("backup", BACKUPS, ids=lambda file: file.name)
def test_a_backup_of_an_earlier_release_is_restored(noetl, request, backup):
    if ".postgres." in backup.name:
        with fresh_database(request.getfixturevalue("postgres")) as dsn:
            restored = noetl("restore", str(backup), "--store", dsn, "--json")
    else:
        restored = noetl("restore", str(backup), "--json")
    assert restored.code == 0, restored.err
    assert (restored.json["executions"], restored.json["problems"]) == (2, [])


def test_a_store_of_a_newer_release_is_refused(noetl, folder, playbook):
    assert noetl("run", playbook("workflow: [{step: start, tool: {kind: noop}}]\n")).code == 0
    file = Path(os.environ["NOETL_HOME"]) / "noetl.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("UPDATE noetl_schema SET version = 99 WHERE name = 'events'")
        database.commit()
    answer = noetl("upgrade", "--check")
    assert answer.code == 2
    assert "written by a newer NoETL" in answer.err
    assert noetl("upgrade").code == 2


def test_parts_that_were_never_used_are_not_migrations(noetl, folder, playbook):
    assert noetl("run", playbook("workflow: [{step: start, tool: {kind: noop}}]\n")).code == 0
    answer = noetl("upgrade", "--check")
    assert answer.code == 0, answer.out
    assert "parts without tables" in answer.err
    assert "parts created" in noetl("upgrade").err
    assert "is up to date" in noetl("upgrade", "--check").err


def test_an_empty_installation(noetl):
    assert "the store has no tables yet" in noetl("upgrade", "--check").err
    assert noetl("upgrade").code == 0
    assert noetl("upgrade", "--check").code == 0


def test_every_part_of_a_database_is_known():
    """A store that registers migrations must be in schema_parts, or backups and upgrades miss it."""
    registered = set()
    for file in {*(ROOT / "noetl").rglob("*.py")} - {Path(schema_parts.__code__.co_filename)}:
        registered |= set(re.findall(r"\.migrate\(\s*\"(\w+)\"", file.read_text()))
    assert registered == {*schema_parts("postgres"), *schema_parts("sqlite")}


class Process:
    """A server or a worker of one release."""

    def __init__(self, source: Path, home: Path, store: str, port: int, *words: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        environ = {
            **os.environ,
            "PYTHONPATH": str(source),
            "NOETL_HOME": str(home),
            "NOETL_STORE": store,
            "NOETL_RESULTS": store,
            "NOETL_SERVER_PORT": str(port),
            "NOETL_LOG_FORMAT": "text",
        }
        for name in ("NOETL_SERVER_URL", "NOETL_TOKEN"):
            environ.pop(name, None)
        with (home / f"{words[0]}-{port}.log").open("ab") as log:
            command = [sys.executable, "-m", "noetl.clictl", *words]
            self.process = subprocess.Popen(command, env=environ, cwd=home, stderr=log)

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(60) == 0


def test_a_rolling_upgrade_loses_no_request(database, tmp_path):
    """Servers and workers of the previous release are replaced one by one, while requests go on."""
    from noetl.runtime.process_table import wait_ready

    old = checkout(PREVIOUS, tmp_path / "old")
    if old is None:
        pytest.skip(f"the history of this checkout does not have {PREVIOUS}")
    home = tmp_path / "home"
    home.mkdir()
    ports = [free_port(), free_port()]
    first = Process(old, home, database, ports[0], "server", "start")
    wait_ready(first.url, lambda: first.process.poll() is None)
    old_worker = Process(old, home, database, ports[0], "worker", "start")
    token = (home / "admin.token").read_text().strip()
    started: list[str] = []
    problems: list[str] = []
    done = threading.Event()

    def request() -> None:
        with Client(",".join(f"http://127.0.0.1:{port}" for port in ports), token) as client:
            client.register(WORK)
            while not done.is_set():
                try:
                    started.append(client.submit("tests/work", key=f"k{len(started)}"))
                except Exception as problem:
                    problems.append(str(problem))
                time.sleep(0.02)

    thread = threading.Thread(target=request)
    thread.start()
    processes = [first, old_worker]
    try:
        _wait(lambda: len(started) >= STARTED or problems)
        second = Process(ROOT, home, database, ports[1], "server", "start", "--name", "new")
        processes.append(second)
        wait_ready(second.url, lambda: second.process.poll() is None)
        new_worker = Process(ROOT, home, database, ports[1], "worker", "start", "--server", second.url)
        processes.append(new_worker)
        _wait(lambda: len(started) >= 2 * STARTED or problems)
        old_worker.stop()
        first.stop()
        _wait(lambda: len(started) >= 3 * STARTED or problems)
        done.set()
        thread.join()
        assert not problems
        with Client(second.url, token) as client:
            statuses = {client.wait(execution_id, timeout=60).status for execution_id in started}
        assert statuses == {"success"}
        new_worker.stop()
        second.stop()
    finally:
        done.set()
        thread.join()
        for each in processes:
            if each.process.poll() is None:
                each.process.kill()
                each.process.wait()


def _wait(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
