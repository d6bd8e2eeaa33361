"""`noetl backfill` in this process and on a server."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.cli.test_executions import wait_for
from tests.server.http.serving import Cluster

TEXT = """
workload: {slot: null, fails: "", out: out.txt}
workflow:
  - step: start
    tool:
      kind: python
      input: {day: "{{ workload.slot.date }}", fails: "{{ workload.fails }}", out: "{{ workload.out }}"}
      code: |
        import os, time
        with open(out, "a") as file:
            file.write(day + "\\n")
        if day == fails and not os.path.exists("fixed"):
            raise ValueError(day)
        while os.path.exists("hold"):
            time.sleep(0.02)
        result = day
"""
JANUARY = ("--from", "2026-01-01", "--to", "2026-01-11", "--every", "1d")


def days(folder) -> Counter[str]:
    file = folder / "out.txt"
    return Counter(file.read_text().split() if file.exists() else [])


def test_a_backfill_runs_in_this_process_and_failed_slots_are_repeated(noetl, playbook, folder):
    file = playbook(TEXT, "export")
    answer = noetl("backfill", file, *JANUARY, "--concurrency", "3", "--name", "jan", "--set", "fails=2026-01-05")
    assert answer.code == 1 and "9 of 10 slots succeeded, 1 failed" in answer.err
    assert days(folder) == Counter({f"2026-01-{day:02}": 1 for day in range(1, 11)})
    shown = noetl("backfill", "show", "jan", "--json").json
    assert [(each["date"], bool(each["execution_id"])) for each in shown["failures"]] == [("2026-01-05", True)]
    (folder / "fixed").touch()
    again = noetl("backfill", "retry", "jan", "--json")
    assert again.code == 0 and (again.json["succeeded"], again.json["failed"]) == (10, 0)
    assert days(folder)["2026-01-05"] == 2 and sum(days(folder).values()) == 11
    (row,) = noetl("backfill", "list", "--json").json
    assert (row["name"], row["status"]) == ("jan", "done")
    assert noetl("backfill", "pause", "nothing").code == 2


def test_a_killed_backfill_is_resumed_without_losing_or_doubling_a_slot(noetl, playbook, folder, start):
    (folder / "hold").touch()
    process = start("backfill", playbook(TEXT, "export"), *JANUARY, "--concurrency", "2", "--name", "jan")
    wait_for(lambda: sum(days(folder).values()) == 2)
    wait_for(lambda: noetl("backfill", "show", "jan", "--json").json["running"] == 2)
    process.kill()
    process.communicate()
    (folder / "hold").unlink()
    answer = noetl("backfill", "resume", "jan", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["succeeded"] == 10
    assert len(noetl("executions", "--limit", "100", "--json").json) == 10
    ran = days(folder)
    assert len(ran) == 10 and sum(ran.values()) <= 12, "the two tools that were killed run again"


def test_ctrl_c_stops_a_backfill_and_resume_continues_it(noetl, playbook, folder, start):
    import signal

    (folder / "hold").touch()
    process = start("backfill", playbook(TEXT, "export"), *JANUARY, "--name", "jan")
    wait_for(lambda: sum(days(folder).values()) == 1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "`noetl backfill resume jan` continues it" in err
    (folder / "hold").unlink()
    assert noetl("backfill", "resume", "jan", "--json").json["succeeded"] == 10


def test_wrong_ranges_are_refused(noetl, playbook):
    file = playbook(TEXT, "export")
    answer = noetl("backfill", file, "--from", "x", "--to", "2026-01-02", "--every", "1d")
    assert answer.code == 2 and "'x' is not an instant" in answer.err
    assert noetl("backfill", file, "--from", "2026-01-01").code == 2
    assert noetl("backfill", "nowhere", *JANUARY).code == 2


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def cluster(request, tmp_path_factory):
    from tests.conftest import services

    settings, closing = {}, None
    if request.param == "postgres":
        closing = services.fresh_database(request.getfixturevalue("postgres"))
        settings["NOETL_STORE"] = closing.__enter__()
    cluster = Cluster(tmp_path_factory.mktemp("home"), **settings)
    try:
        cluster.start_server()
        cluster.start_worker()
        yield cluster
    finally:
        cluster.stop()
        if closing is not None:
            closing.__exit__(None, None, None)


def test_a_server_runs_a_backfill_also_after_it_was_killed(noetl, playbook, folder, cluster, monkeypatch):
    monkeypatch.setenv("NOETL_TOKEN", cluster.token)
    server = ("--server", cluster.url)
    file = folder / playbook(TEXT, "export")
    text = file.read_text().replace('"hold"', repr(str(folder / "hold")))
    file.write_text(text.replace('"fixed"', repr(str(folder / "fixed"))))
    path = noetl("register", str(file), *server, "--json").json[0]["path"]
    (folder / "hold").touch()
    out = folder / "out.txt"
    answer = noetl(
        "backfill", path, *JANUARY, "--concurrency", "3", "--name", "jan", "--set", f"out={out}", "--no-wait", *server
    )
    assert answer.code == 0, answer.err
    wait_for(lambda: sum(days(folder).values()) >= 3)
    cluster.server.kill()
    cluster.server.wait()
    (folder / "hold").unlink()
    cluster.start_server()
    wait_for(lambda: noetl("backfill", "show", "jan", *server, "--json").json["status"] == "done")
    document = noetl("backfill", "show", "jan", *server, "--json").json
    assert (document["succeeded"], document["failed"]) == (10, 0)
    assert len(days(folder)) == 10
    rows = noetl("executions", "--limit", "100", *server, "--json").json
    assert len(rows) == 10
    refused = noetl("backfill", path, "--from", "b", "--to", "a", "--every", "1d", *server)
    assert refused.code == 2 and "is not an instant" in refused.err


def test_a_backfill_on_the_store_of_a_server_is_followed_to_its_end(noetl, playbook, folder, cluster, monkeypatch):
    for name in ("NOETL_HOME", "NOETL_STORE"):
        if name in cluster.environ:
            monkeypatch.setenv(name, cluster.environ[name])
    path = noetl("register", playbook(TEXT, "export"), "--json").json[0]["path"]
    answer = noetl("backfill", path, *JANUARY, "--concurrency", "3", "--set", f"out={folder / 'out.txt'}")
    assert answer.code == 0, answer.err
    assert "done: 10 of 10 slots succeeded" in answer.err
    assert len(days(folder)) == 10
