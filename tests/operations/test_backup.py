"""`noetl backup` and `noetl restore`: consistent while running, verified, on SQLite and Postgres."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from devcluster.services import fresh_database
from noetl.server.http.access import Tokens, admin_token
from noetl.storage.backup import archive
from tests.server.http.serving import Cluster

ROOT = Path(__file__).resolve().parents[2]
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: work, path: tests/work}\n"
LARGE = HEAD + "workflow:\n  - step: start\n    tool: {name: t, kind: python, code: 'result = \"x\" * 200000'}\n"
LOOP = """\
workflow:
  - step: start
    loop: {in: "{{ range(40) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 4}}
    tool: {name: t, kind: python, input: {n: "{{ iter.n }}"}, code: "result = n * n"}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {name: s, kind: python, input: {x: "{{ start.results }}"}, code: "result = sum(x)"}
"""


def executions(noetl, *words: str) -> list[tuple[str, str]]:
    return [(one["execution_id"], one["status"]) for one in noetl("executions", "--json", *words).json]


@pytest.fixture
def used(noetl, folder):
    """An installation with executions, a large result, a registered playbook with a file, a schedule and a credential."""
    (folder / "work.yaml").write_text(HEAD + LOOP)
    (folder / "large.yaml").write_text(LARGE)
    assert noetl("run", "work.yaml").code == 0
    assert noetl("run", "large.yaml").code == 0
    assert noetl("register", "work.yaml").code == 0
    assert noetl("state", "set", "tests/work", "cursor=7").code == 0
    assert noetl("schedule", "add", "tests/work", "--cron", "@daily", "--name", "daily").code == 0
    assert noetl("credential", "set", "shop", "--data", '{"password": "swordfish"}').code == 0
    return noetl


def test_a_backup_restores_everything(used, folder, monkeypatch, tmp_path):
    before = executions(used)
    log = used("events", "last", "--json").out
    made = used("backup", "all.backup")
    assert made.code == 0, made.err
    assert "2 executions" in made.out and "verified" in made.out
    assert "master.key is not in the backup" in made.err
    assert (folder / "all.backup").stat().st_mode & 0o077 == 0
    old_home = Path(os.environ["NOETL_HOME"])
    monkeypatch.setenv("NOETL_HOME", str(tmp_path / "other"))
    assert executions(used) == []
    (tmp_path / "other" / "noetl.db").unlink()
    restored = used("restore", "all.backup")
    assert restored.code == 0, restored.err
    assert "2 executions" in restored.out
    assert "copy the master key" in restored.err
    assert executions(used) == before
    assert used("events", "last", "--json").out == log
    assert len(used("status", "last", "--json").json["output"]["data"]) == 200_000
    assert "daily" in used("schedule", "list").out
    assert [each["value"] for each in used("state", "show", "tests/work", "--json").json["entries"]] == [7]
    assert used("run", "tests/work", "--json").json["output"]["data"] == sum(n * n for n in range(40))
    (tmp_path / "other" / "master.key").write_bytes((old_home / "master.key").read_bytes())
    assert used("credential", "list", "--json").json == [{"name": "shop", "type": "generic"}]
    assert used("doctor", "--verify").code in (0, 1)


def test_the_machine_of_a_restore_gets_an_admin_token_of_its_own(used, monkeypatch, tmp_path):
    old = Tokens.prepare(Path(os.environ["NOETL_HOME"]))
    text = admin_token(Path(os.environ["NOETL_HOME"]))
    assert used("backup", "all.backup").code == 0
    monkeypatch.setenv("NOETL_HOME", str(tmp_path / "other"))
    restored = used("restore", "all.backup")
    assert "other/admin.token has a new token, admin-restored" in restored.err
    tokens = Tokens(tmp_path / "other")
    assert {each.name for each in tokens.all()} == {each.name for each in old.all()} | {"admin-restored"}
    assert tokens.caller(text).role == tokens.caller(admin_token(tmp_path / "other")).role == "admin"
    again = used("restore", "all.backup", "--force")
    assert "admin-restored" in again.err and admin_token(tmp_path / "other") is not None
    assert tokens.caller(admin_token(tmp_path / "other")).name == "admin-restored"


def test_secrets_are_not_readable_in_a_backup(used, folder):
    used("backup", "all.backup")
    with zipfile.ZipFile(folder / "all.backup") as found:
        assert not [name for name in found.namelist() if b"swordfish" in found.read(name)]
        assert not [name for name in found.namelist() if "master.key" in name]
    used("backup", "with-key.backup", "--with-key")
    with zipfile.ZipFile(folder / "with-key.backup") as found:
        assert "home/master.key" in found.namelist()


def test_a_store_in_use_is_not_overwritten(used, folder):
    used("backup", "all.backup")
    refused = used("restore", "all.backup")
    assert refused.code == 2
    assert "exists; restore into another NOETL_HOME, or use --force" in refused.err
    forced = used("restore", "all.backup", "--force")
    assert forced.code == 0, forced.err
    assert list(Path(os.environ["NOETL_HOME"]).glob("noetl.db.before-restore-*"))


def files_of(home: Path) -> dict[str, bytes]:
    passing = ("-wal", "-shm", ".lock", ".mark")  # files beside databases
    return {
        str(each.relative_to(home)): each.read_bytes()
        for each in home.rglob("*")
        if each.is_file() and not each.name.endswith(passing) and "cache" not in each.parts
    }


@pytest.mark.parametrize("written", range(3))  # store, credentials, one result
def test_a_restore_on_a_full_disk_changes_nothing(used, folder, monkeypatch, written):
    used("backup", "all.backup")
    home = Path(os.environ["NOETL_HOME"])
    before, known = files_of(home), executions(used)
    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > written and stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        answer = used("restore", "all.backup", "--force")
    assert answer.code == 1 and "the disk is full; free disk space and retry" in answer.err, answer.err
    assert files_of(home) == before and executions(used) == known
    assert used("restore", "all.backup", "--force").code == 0


def test_a_backup_on_a_full_disk_leaves_nothing(used, folder, monkeypatch):
    import io

    class Full(io.FileIO):
        def write(self, data) -> int:
            if self.tell() > 2_000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    with monkeypatch.context() as patched:
        patched.setattr(archive.os, "fdopen", lambda descriptor, mode: Full(descriptor, mode))
        answer = used("backup", "all.backup")
    assert answer.code == 1 and "all.backup: the disk is full" in answer.err, answer.err
    assert not [each for each in folder.iterdir() if "backup" in each.name]


def test_the_database_that_a_restore_puts_aside_keeps_its_write_ahead_log(used, folder, noetl):
    used("backup", "all.backup")
    home = Path(os.environ["NOETL_HOME"])
    killed = (
        "import asyncio, os, signal, sys; from noetl.embedded import open_local; "
        "from noetl.server.orchestrator.submissions import Submission\n"
        "async def main():\n"
        "    local = await open_local(store=sys.argv[1])\n"
        "    await local.orchestrator.submit(Submission(text=open(sys.argv[2]).read()))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())"
    )
    subprocess.run([sys.executable, "-c", killed, f"sqlite://{home}/noetl.db", str(folder / "large.yaml")], check=False)
    assert (home / "noetl.db-wal").stat().st_size
    assert used("restore", "all.backup", "--force").code == 0
    (aside,) = [each for each in home.glob("noetl.db.before-restore-*") if each.name[-1].isdigit()]
    assert len(executions(used)) == 2
    assert len(executions(used, "--store", str(aside))) == 3


@pytest.mark.parametrize("damage", ["cut", "flip", "text", "missing"])
def test_a_damaged_backup_is_refused_and_changes_nothing(used, folder, damage):
    used("backup", "all.backup")
    file = folder / "all.backup"
    content = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[len(content) // 3] ^= 0x10
        file.write_bytes(content)
    elif damage == "text":
        file.write_text("not a backup")
    else:
        file.unlink()
    before = executions(used)
    answer = used("restore", "all.backup", "--force")
    assert answer.code == 2, answer.err
    assert "Traceback" not in answer.err
    assert executions(used) == before


def test_a_backup_while_executions_run_has_whole_logs(noetl, folder, start, monkeypatch, tmp_path):
    (folder / "work.yaml").write_text(HEAD + LOOP)
    running = [start("run", "work.yaml") for _ in range(3)]
    made = []
    number = 0
    while any(process.poll() is None for process in running) or number < 2:
        answer = noetl("backup", f"{number}.backup")
        if answer.code == 0:
            made.append(f"{number}.backup")
        number += 1
    assert made
    for each in made:
        monkeypatch.setenv("NOETL_HOME", str(tmp_path / f"home-{each}"))
        restored = noetl("restore", each, "--json")
        assert restored.code == 0, restored.err
        assert restored.json["problems"] == []


def test_postgres_is_copied_in_one_snapshot_while_running(noetl, folder, database, postgres, tmp_path):
    cluster = Cluster(tmp_path / "cluster", NOETL_STORE=database, NOETL_RESULTS=database)
    (folder / "work.yaml").write_text(HEAD + LOOP)
    (folder / "large.yaml").write_text(LARGE)
    try:
        cluster.start_server()
        cluster.start_worker()
        environ = {**cluster.environ, "PYTHONPATH": str(ROOT)}

        def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "noetl.clictl", *words]
            return subprocess.run(command, cwd=folder, env={**environ, **more}, capture_output=True, text=True)

        assert run("execute", "large.yaml").returncode == 0
        assert run("register", "work.yaml").returncode == 0
        assert run("state", "set", "tests/work", "cursor=7").returncode == 0
        started = [run("execute", "tests/work", "--no-wait").stdout.strip() for _ in range(5)]
        made = run("backup", "pg.backup", NOETL_SERVER_URL="")
        assert made.returncode == 0, made.stderr
        for execution_id in started:
            assert cluster.finished(execution_id)["status"] == "success"
        while_running = run("restore", "pg.backup", "--force")
        assert while_running.returncode == 2
        assert "a server uses this database" in while_running.stderr
    finally:
        cluster.stop()
    with fresh_database(postgres) as other:
        restored = noetl("restore", "pg.backup", "--store", other, "--json")
        assert restored.code == 0, restored.err
        assert restored.json["problems"] == []
        assert restored.json["executions"] >= 1
        refused = noetl("restore", "pg.backup", "--store", other)
        assert refused.code == 2 and "use --force" in refused.err
        assert noetl("restore", "pg.backup", "--store", other, "--force").code == 0
        # Unfinished executions of the backup continue, and stored results are there.
        again = Cluster(tmp_path / "again", NOETL_STORE=other, NOETL_RESULTS=other)
        try:
            again.start_server()
            again.start_worker()
            _, page = again.ask("GET", "/api/executions?limit=100")
            for one in page["items"]:
                assert again.finished(one["execution_id"])["status"] == "success"
            _, state = again.ask("GET", "/api/catalog/tests/work")
            assert state["version"] == 1
            _, state = again.ask("GET", "/api/state/tests/work")
            assert [each["value"] for each in state["entries"]] == [7]
        finally:
            again.stop()


def test_a_running_server_is_not_restored(noetl, folder, used):
    used("backup", "all.backup")
    from noetl.runtime.process_table import ProcessTable

    ProcessTable(Path(os.environ["NOETL_HOME"])).record("server", os.getpid())
    answer = noetl("restore", "all.backup", "--force")
    assert answer.code == 2
    assert "is running; stop it first" in answer.err


def test_a_backup_of_the_other_kind_is_refused(used, database, folder):
    used("backup", "all.backup")
    answer = used("restore", "all.backup", "--store", database)
    assert answer.code == 2
    assert "the backup is one of sqlite, and the store is postgres" in answer.err


def test_there_is_nothing_to_back_up(noetl):
    answer = noetl("backup", "x.backup")
    assert answer.code == 2
    assert "there is nothing to back up" in answer.err
    assert not Path("x.backup").exists()
