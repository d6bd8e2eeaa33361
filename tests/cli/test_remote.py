"""The same commands on a server: the same output and exit codes, and errors of the connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.servers import free_port
from noetl.server.http.access import Tokens
from tests.server.http.serving import Cluster

ONE = "workflow:\n  - step: start\n    tool: {kind: python, code: 'result = 1'}\n"
SUM = """\
workload: {numbers: [1, 2, 3]}
workflow:
  - step: start
    loop: {in: "{{ workload.numbers }}", iterator: number}
    tool: {kind: python, input: {number: "{{ iter.number }}"}, code: result = number * 10}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: python, input: {values: "{{ start.results }}"}, code: result = sum(values)}
"""
BAD = "workflow:\n  - step: start\n    tool: {kind: nope}\n"
FAILS = "workflow:\n  - step: start\n    tool: {kind: python, code: 'raise ValueError(\"no luck\")'}\n"
SLOW = "workflow:\n  - step: start\n    tool: {kind: python, code: 'import time; time.sleep(60)'}\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(Path(tmp_path_factory.mktemp("home")))
    try:
        cluster.start_server()
        cluster.start_worker()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def there(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, noetl):
    """The command line with this server in its settings."""
    monkeypatch.setenv("NOETL_SERVER_URL", cluster.url)
    monkeypatch.setenv("NOETL_TOKEN", cluster.token)
    return noetl


def test_a_playbook_is_registered_executed_and_inspected(there, playbook):
    assert there("register", playbook(SUM)).out == "tests/sample version 1\n"
    ran = there("execute", "tests/sample", "--set", "numbers=[4, 5]", "--json")
    assert ran.code == 0
    assert (ran.json["status"], ran.json["output"]["data"]) == ("success", 90)
    assert set(ran.json) == {"execution_id", "path", "status", "output", "ctx", "error", "duration_ms", "steps"}
    found = ran.json["execution_id"]
    assert there("status", found, "--json").json == ran.json
    assert there("executions", "--limit", "1", "--json").json[0]["execution_id"] == found
    log = there("events", found, "--json").lines
    assert log == there("events", "last", "--follow", "--json").lines
    assert there("events", found, "--after", "5", "--json").lines == log[5:]
    assert there("replay", found, "--at", "3", "--json").json["seq"] == 3
    assert there("replay", found, "--at", "9999").code == 2
    assert "succeeded" in there("why", found).out
    assert "s0 --> s1" in there("graph", found).out
    assert there("rerun", found, "--json").json["output"]["data"] == 90


def test_texts_and_documents_are_those_of_the_embedded_engine(there, noetl, playbook, monkeypatch):
    file = playbook(SUM, "alike")
    remote = {"run": there("execute", file, "--json").json, "id": "last"}
    looks = [("status", "last"), ("why", "last"), ("events", "last"), ("executions", "--limit", "1")]
    shown = {words: there(*words).out for words in looks}
    documents = {command: there(command, "last", "--json") for command in ("status", "why", "replay")}
    monkeypatch.delenv("NOETL_SERVER_URL")
    local = noetl("run", file, "--json").json
    assert {**remote["run"], "execution_id": "", "duration_ms": 0} == {**local, "execution_id": "", "duration_ms": 0}
    for words, there_said in shown.items():
        here_said = noetl(*words).out
        assert [line.split()[:1] for line in here_said.splitlines()] != []
        assert len(here_said.splitlines()) == len(there_said.splitlines())
    for command, answer in documents.items():
        assert set(answer.json) == set(noetl(command, "last", "--json").json)


def test_exit_codes_are_those_of_run(there, playbook):
    assert there("execute", playbook(FAILS, "fails")).code == 1
    bad = there("execute", playbook(BAD, "bad"))
    assert bad.code == 3
    assert "nope" in bad.err
    assert there("register", playbook(BAD, "bad")).code == 3
    assert there("execute", "tests/nobody").code == 2
    for command in ("status", "events", "why", "cancel", "rerun"):
        for unknown in ("123", "nope", "9" * 30):
            answer = there(command, unknown)
            assert (answer.code, answer.err) == (2, f"error: there is no execution {unknown}\n")
    timed_out = there("execute", playbook(SLOW, "slow"), "--timeout", "0.5", "--json")
    assert (timed_out.code, timed_out.json["status"]) == (124, "cancelled")


def test_a_version_follows_an_at_sign(there, playbook):
    there("register", playbook(ONE, "versions"))
    there("register", playbook(SUM, "versions"))
    assert there("execute", "tests/versions@1").out == "1\n"
    assert there("execute", "tests/versions").out == "60\n"
    assert there("execute", "tests/versions@9").code == 2
    assert there("catalog", "show", "tests/versions", "--version", "1").out.endswith(ONE)


def test_a_started_execution_is_controlled_from_the_command_line(there, playbook):
    started = there("execute", playbook(SLOW, "slow"), "--no-wait")
    found = started.out.strip()
    assert started.code == 0
    assert there("pause", found, "--json").json["status"] == "paused"
    assert there("signal", found, "--set", "go=true", "--json").json["status"] == "paused"
    assert there("replay", found, "--json").json["ctx"] == {"go": True}
    assert there("resume", found, "--json").json["status"] == "running"
    assert there("cancel", found, "--json").json["status"] == "cancelled"
    assert there("cancel", found).code == 2


def test_credentials_of_the_server(there, cluster):
    assert there("credential", "set", "db", "--data", '{"password": "x"}').code == 0
    assert there("credential", "list", "--json").json == [{"name": "db", "type": "generic"}]
    assert there("credential", "delete", "db").code == 0
    assert there("credential", "delete", "db").code == 2


@pytest.fixture(scope="module")
def named(cluster, tmp_path_factory):
    """One resource of each kind on the server."""
    folder = tmp_path_factory.mktemp("named")
    (folder / "s.json").write_text('{"type": "object"}')
    (folder / "named.yaml").write_text(
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: named, path: tests/named}\n"
        "workflow: [{step: start, tool: {kind: noop}}]\n"
    )
    from noetl.cli import app

    target = ["--server", cluster.url, "--token", cluster.token]
    for words in (
        ["register", f"{folder}/named.yaml"],
        ["schedule", "add", "tests/named", "--cron", "0 6 * * *", "--name", "nightly"],
        ["webhook", "add", "tests/named", "--name", "orders"],
        ["trigger", "add", "tests/named", "--after", "tests/named", "--name", "follow"],
        ["notify", "add", "oncall", "--on", "failed", "--http", "http://127.0.0.1:9/"],
        ["limit", "set", "pool", "large", "5"],
        ["schema", "register", "shop/orders", f"{folder}/s.json"],
        ["credential", "set", "warehouse", "--data", '{"secret": "1"}'],
        ["state", "set", "tests/named", "a=1"],
    ):
        assert app.run([*words, *target]) == 0, words


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (("schedule", "show", "nigtly"), "there is no schedule 'nigtly'; did you mean 'nightly'?"),
        (("schedule", "remove", "nigtly"), "did you mean 'nightly'?"),
        (("schedule", "run", "nigtly"), "did you mean 'nightly'?"),
        (("schedule", "remove", "tests/named"), "'tests/named' is not in schedules: a name has no `/`"),
        (("webhook", "remove", "oders"), "there is no webhook 'oders'; did you mean 'orders'?"),
        (("webhook", "add", "tests/named", "--name", "x", "--credential", "warehous"), "did you mean 'warehouse'?"),
        (("trigger", "show", "folow"), "there is no trigger 'folow'; did you mean 'follow'?"),
        (("trigger", "remove", "folow"), "did you mean 'follow'?"),
        (("notify", "show", "oncal"), "there is no notification rule 'oncal'; did you mean 'oncall'?"),
        (("notify", "log", "oncal"), "did you mean 'oncall'?"),
        (("notify", "remove", "oncal"), "did you mean 'oncall'?"),
        (("limit", "show", "pool", "lrge"), "there is no limit 'pool lrge'; did you mean 'pool large'?"),
        (("limit", "remove", "pool", "lrge"), "did you mean 'pool large'?"),
        (("limit", "show", "pol", "large"), "is not one of 'pool', 'credential', 'playbook', 'label'"),
        (("schema", "show", "shop/order"), "there is no schema 'shop/order'; did you mean 'shop/orders'?"),
        (("credential", "delete", "warehous"), "there is no credential 'warehous'; did you mean 'warehouse'?"),
        (("backfill", "show", "x"), "there is no backfill 'x'; `noetl backfill list` shows all"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(named, there, words, suggestion):
    answer = there(*words)
    assert answer.code == 2
    assert suggestion in answer.err


def test_a_misspelt_playbook_of_state_is_a_warning(named, there):
    for words in (("show", "tests/namd"), ("set", "tests/namd", "a=1")):
        answer = there("state", *words)
        assert answer.code == 0
        assert "there is no playbook 'tests/namd' in the catalog; did you mean tests/named?" in answer.err


def test_with_the_store_option_the_target_is_this_machine(there, tmp_path):
    assert there("executions", "--store", f"sqlite://{tmp_path}/own.db", "--json").json == []
    answer = there("executions", "--store", "memory:", "--server", "http://127.0.0.1:1")
    assert answer.code == 2
    assert "exclude each other" in answer.err


@pytest.mark.parametrize("words", [("status", "1"), ("execute", "x"), ("catalog", "list"), ("credential", "list")])
def test_an_unreachable_server_is_exit_code_4_and_one_line(noetl, words):
    answer = noetl(*words, "--server", f"http://127.0.0.1:{free_port()}")
    assert answer.code == 4
    assert answer.err.count("\n") == 1
    assert "connection refused" in answer.err


def test_a_wrong_token_and_an_insufficient_role_are_exit_code_4(there, cluster):
    answer = there("executions", "--token", "noetl_nonsense")
    assert (answer.code, answer.err.count("\n")) == (4, 1)
    assert "does not know this token" in answer.err
    viewer = Tokens(cluster.home).add("looker", "viewer")
    assert there("executions", "--token", viewer).code == 0
    answer = there("execute", "tests/sample", "--token", viewer)
    assert answer.code == 4
    assert "the role operator is required" in answer.err


def test_the_token_of_a_local_server_is_found(cluster, noetl, monkeypatch):
    monkeypatch.setenv("NOETL_HOME", str(cluster.home))
    assert noetl("executions", "--server", cluster.url).code == 0
    monkeypatch.setenv("NOETL_SERVER_PORT", str(cluster.port))
    assert noetl("execute", "tests/nobody").code == 2  # the server answered: there is no such playbook


def test_another_http_server_is_not_mistaken_for_a_noetl_server(noetl):
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<p>hello")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as other:
        threading.Thread(target=other.handle_request, daemon=True).start()
        answer = noetl("status", "1", "--server", f"http://127.0.0.1:{other.server_port}")
    assert answer.code == 4
    assert "is not a NoETL server" in answer.err


def test_a_server_sees_what_is_written_into_its_store(there, cluster, playbook):
    found = there("execute", playbook(SLOW, "slow"), "--no-wait").out.strip()
    store = f"sqlite://{cluster.home}/noetl.db"
    assert there("cancel", found, "--store", store, "--json").json["status"] == "cancelled"
    assert cluster.finished(found, 5)["status"] == "cancelled"
    assert there("execute", playbook(ONE, "one")).code == 0


def test_ctrl_c_stops_the_display_and_not_the_execution(there, cluster, playbook, start):
    import signal

    process = start("execute", playbook(SLOW, "slow"))
    assert process.stderr is not None
    found = process.stderr.readline().split()[1]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert f"execution {found} continues" in err
    assert there("cancel", found, "--json").json["status"] == "cancelled"


def test_ctrl_c_ends_following_at_once(there, playbook, start):
    import signal

    found = there("execute", playbook(SLOW, "slow"), "--no-wait").out.strip()
    process = start("events", found, "--follow")
    assert process.stdout is not None
    assert "requested" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err.strip()) == (130, "error: interrupted")
    there("cancel", found)
