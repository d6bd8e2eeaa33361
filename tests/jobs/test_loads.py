"""The jobs `incremental_api` and `file_quarantine`: what is loaded once, what is kept apart, and what a failure changes."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import urllib.request

import pytest

from tests.jobs.conftest import JOBS, Stub

INCREMENTAL, QUARANTINE = JOBS / "incremental_api", JOBS / "file_quarantine"


def post(service: Stub, path: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(service.url + path, data=json.dumps(body).encode(), method="POST")
    urllib.request.urlopen(request, timeout=10).close()


@pytest.fixture
def load(noetl, folder):
    shutil.copy(INCREMENTAL / "playbook.yaml", folder / "playbook.yaml")

    def load(service: Stub):
        return noetl("run", "playbook.yaml", "--json", "--set", f"api={service.url}")

    return load


def test_only_what_has_changed_is_loaded_again(load, noetl, stub, folder):
    service = stub(INCREMENTAL / "stub.py")
    first = load(service)
    assert first.code == 0, first.err
    assert first.json["ctx"]["rows"] == 250
    assert load(service).json["ctx"]["rows"] == 0
    post(service, "/orders", {"id": 7, "amount": 1, "updated_at": "2026-03-01T00:00:00Z"})
    post(service, "/orders", {"id": 999, "amount": 2, "updated_at": "2026-03-02T00:00:00Z"})
    assert load(service).json["ctx"]["rows"] == 2
    assert service.get("/served") == [100, 100, 50, 0, 2]
    with sqlite3.connect(folder / "orders.db") as database:
        assert database.execute("SELECT count(*), count(DISTINCT id) FROM orders").fetchone() == (251, 251)
        assert database.execute("SELECT amount FROM orders WHERE id = 7").fetchone() == (1,)
    assert "2026-03-02T00:00:00Z" in noetl("state", "show", "jobs/incremental_api", "--json").out


def test_after_a_failure_the_cursor_is_the_same(load, stub, folder):
    service = stub(INCREMENTAL / "stub.py", "FAIL")
    assert load(service).code == 1
    post(service, "/repair", {})
    again = load(service)
    assert again.code == 0, again.err
    assert again.json["ctx"]["rows"] == 250
    with sqlite3.connect(folder / "orders.db") as database:
        assert database.execute("SELECT count(*) FROM orders").fetchone() == (250,)


def test_bad_rows_and_files_are_kept_apart(noetl, folder):
    import duckdb

    shutil.copy(QUARANTINE / "playbook.yaml", folder / "playbook.yaml")
    send = [sys.executable, str(QUARANTINE / "stub.py"), str(folder / "inbox")]
    subprocess.run(send, check=True)
    answer = noetl("run", "playbook.yaml", "--json")
    assert answer.code == 0, answer.err
    counts = [(each["loaded"], each["bad"]) for each in answer.json["output"]["data"]["files"]]
    assert counts == [(2, 0), (2, 3)]
    assert [file.name for file in (folder / "rejected").iterdir()] == ["3-broken.csv"]
    with duckdb.connect(str(folder / "orders.duckdb")) as database:
        assert database.execute("SELECT id FROM orders ORDER BY id").fetchall() == [(1,), (2,), (3,), (6,)]
        bad = database.execute("SELECT line, reason FROM quarantine ORDER BY line").fetchall()
    assert bad == [(3, "id is not a number"), (4, "amount is not a number"), (5, "day is not a date")]
    (folder / "inbox" / "4-new.csv").write_text("id,amount,day\n9,90,2026-01-09\n")
    again = noetl("run", "playbook.yaml", "--json")
    assert [each["loaded"] for each in again.json["output"]["data"]["files"]] == [1]
