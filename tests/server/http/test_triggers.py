"""Triggers of a server over HTTP and the command line; kills of the server lose and double nothing."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import uuid
from pathlib import Path
from typing import Any

import nats
import pytest

from noetl.cli import app as program
from noetl.server.http.access import Tokens
from tests.server.http.serving import Cluster

TEXT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: load, path: tests/load}
workload: {n: null, object: null}
workflow:
  - step: start
    tool: {kind: python, input: {n: "{{ workload.n }}"}, code: "result = n"}
"""


def wait_for(condition: Any, seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.05)
    return value


@pytest.fixture
def noetl(cluster: Cluster, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NOETL_HOME", str(tmp_path))
    monkeypatch.setenv("NOETL_SERVER_URL", cluster.url)
    monkeypatch.setenv("NOETL_TOKEN", cluster.token)
    cluster.ask("POST", "/api/catalog/register", {"content": TEXT})

    def run(*words: str) -> tuple[int, str, str]:
        code = program.run(words)
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--after", "tests/laod"), "'tests/laod'; did you mean 'tests/load'?"),
        (("--after", "zzz/*"), "'zzz/*'; nothing is received until one is registered"),
        (("--event", "paid", "--of", "test/load"), "'test/load'; did you mean 'tests/load'?"),
        (("--after", "tests/load"), None),
        (("--after", "tests/*"), None),
        (("--event", "paid"), None),
    ],
)
def test_a_pattern_that_matches_no_registered_playbook_is_a_warning(noetl, options, words):
    code, out, err = noetl("trigger", "add", "tests/load", *options, "--name", "warned", "--json")
    assert code == 0, err
    warnings = [] if words is None else [f"there is no registered playbook {words}"]
    assert json.loads(out)["warnings"] == warnings
    assert err == "".join(f"warning: {each}\n" for each in warnings)
    assert noetl("trigger", "remove", "warned")[0] == 0


def test_the_command_line_adds_shows_pauses_replays_and_removes(cluster: Cluster, noetl, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    code, out, err = noetl(
        "trigger", "add", "tests/load", "--object", str(folder), "--glob", "*.csv", "--settle", "100ms",
        "--set", "n={{ event.name }}", "--name", "files", "--json",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["kind"] == "object"
    assert noetl("trigger", "add", "tests/load", "--object", str(folder), "--name", "files")[0] == 2
    wait_for(lambda: cluster.ask("GET", "/api/triggers/object/files")[1]["cursor"])
    (folder / "a.csv").write_text("x")
    (delivery,) = wait_for(
        lambda: cluster.ask("GET", "/api/deliveries?kind=object&name=files&status=started")[1]["items"]
    )
    assert cluster.finished(delivery["execution_id"])["output"]["data"] == "a.csv"
    shown = cluster.ask("GET", f"/api/deliveries/{delivery['id']}")[1]
    assert shown["payload"] == {"n": "a.csv"}
    assert shown["event"]["name"] == "a.csv"
    assert delivery["id"] in noetl("trigger", "deliveries", "files")[1]
    replayed = noetl("trigger", "replay", delivery["id"])[1].strip()
    assert cluster.finished(replayed)["output"]["data"] == "a.csv"
    assert "object/files" in noetl("trigger", "show", "files")[1]
    assert "paused" in noetl("trigger", "pause", "object/files")[1]
    assert "object" in noetl("trigger", "list")[1]
    assert "active" in noetl("trigger", "resume", "files")[1]
    assert noetl("trigger", "remove", "files")[0] == 0
    assert noetl("trigger", "remove", "files")[0] == 2
    assert noetl("trigger", "add", "tests/load")[0] == 2
    assert noetl("trigger", "replay", "0123456789abcdef")[0] == 2


def test_one_list_and_one_history_have_all_kinds(cluster: Cluster, noetl):
    cluster.ask("POST", "/api/schedules", {"path": "tests/load", "cron": "0 0 1 1 *", "name": "yearly"})
    cluster.ask("PUT", "/api/triggers/execution/after", {"path": "tests/load", "of": "nothing/*"})
    status, added = cluster.ask("PUT", "/api/triggers/webhook/hook", {"path": "tests/load", "preset": "github"})
    assert status == 200 and added["secret"]
    again = cluster.ask("PUT", "/api/triggers/webhook/hook", {"path": "tests/load", "preset": "github"})[1]
    assert "secret" not in again and again["credential"] == added["credential"]
    try:
        started = cluster.ask("POST", "/api/schedules/yearly/run", headers={"Idempotency-Key": "1"})
        assert started[0] == 202
        assert cluster.ask("POST", "/api/schedules/yearly/run", headers={"Idempotency-Key": "1"}) == started
        seen: list[str] = []
        after = ""
        while True:
            found = cluster.ask("GET", f"/api/triggers?limit=1{after}")[1]
            seen += [f"{each['kind']}/{each['name']}" for each in found["items"]]
            if found["next"] is None:
                break
            after = f"&after={found['next']}"
        assert seen == ["execution/after", "schedule/yearly", "webhook/hook"]
        assert cluster.ask("GET", "/api/triggers?kind=schedule")[1]["items"][0]["deliveries"] == {"started": 1}
        history = cluster.ask("GET", "/api/deliveries?limit=1")[1]["items"]
        assert (history[0]["kind"], history[0]["execution_id"]) == ("schedule", started[1]["execution_id"])
        changed = cluster.ask("PATCH", "/api/schedules/yearly", {"cron": "@daily", "deadline": "2h", "jitter": 5})[1]
        assert (changed["cron"], changed["deadline"], changed["jitter"]) == ("@daily", 7200, 5)
        assert cluster.ask("PATCH", "/api/schedules/yearly", {"deadline": None})[1]["deadline"] is None
        assert noetl("schedule", "edit", "yearly", "--overlap", "queue", "--concurrency", "3")[0] == 0
        assert json.loads(noetl("schedule", "show", "yearly", "--json")[1])["concurrency"] == 3
        assert noetl("schedule", "run", "yearly")[0] == 0
    finally:
        for each in ("execution/after", "schedule/yearly", "webhook/hook"):
            assert cluster.ask("DELETE", f"/api/triggers/{each}")[0] == 204


def test_roles(cluster: Cluster, noetl):
    operator = Tokens(cluster.home).add("trigger-operator", "operator")
    viewer = Tokens(cluster.home).add("trigger-viewer", "viewer")
    body = {"path": "tests/load", "of": "x"}
    assert cluster.ask("PUT", "/api/triggers/execution/mine", body, token=viewer)[0] == 403
    assert cluster.ask("PUT", "/api/triggers/execution/mine", body, token=operator)[0] == 200
    assert cluster.ask("PUT", "/api/triggers/object/mine", {"path": "tests/load", "url": "/"}, token=operator)[0] == 403
    assert cluster.ask("PUT", "/api/triggers/webhook/mine", {"path": "tests/load"}, token=operator)[0] == 403
    assert cluster.ask("GET", "/api/triggers", token=viewer)[0] == 200
    assert cluster.ask("DELETE", "/api/triggers/execution/mine", token=viewer)[0] == 403
    assert cluster.ask("DELETE", "/api/triggers/execution/mine", token=operator)[0] == 204


def test_kills_of_the_server_lose_and_double_no_message(nats_server, tmp_path: Path):
    """Messages are published while the server is killed again and again; each message is one execution."""
    messages, kills = 120, 4

    async def publish(name: str) -> None:
        client = await nats.connect(nats_server)
        try:
            await client.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
        finally:
            await client.close()

    async def send(name: str, numbers: range) -> None:
        client = await nats.connect(nats_server)
        try:
            for number in numbers:
                await client.jetstream().publish(f"{name}.x", b'{"n": %d}' % number)
        finally:
            await client.close()

    name = "K" + uuid.uuid4().hex[:10]
    asyncio.run(publish(name))
    cluster = Cluster(tmp_path)
    try:
        cluster.start_server()
        cluster.ask("POST", "/api/catalog/register", {"content": TEXT})
        definition = {
            "path": "tests/load", "url": nats_server, "stream": name, "subject": f"{name}.>", "start": "all",
        }  # fmt: skip
        assert cluster.ask("PUT", "/api/triggers/nats/stream", definition)[0] == 200
        share = messages // (kills + 1)
        for kill in range(kills + 1):
            asyncio.run(send(name, range(kill * share, (kill + 1) * share)))
            if kill < kills:
                before = kill * share

                def arrived(before: int = before) -> bool:
                    found = cluster.ask("GET", "/api/deliveries?limit=1000")[1]["items"]
                    return len(found) > before

                wait_for(arrived)
                assert cluster.server is not None
                cluster.server.send_signal(signal.SIGKILL)
                cluster.server.wait()
                cluster.start_server()

        def all_started() -> list[dict[str, Any]] | None:
            found = cluster.ask("GET", "/api/deliveries?limit=1000")[1]["items"]
            done = len(found) >= messages and all(each["status"] == "started" for each in found)
            return found if done else None

        found = wait_for(all_started, 90)
        assert len(found) == messages
        assert len({each["execution_id"] for each in found}) == messages
        assert sorted(each["event"]["seq"] for each in found) == list(range(1, messages + 1))
        executions = cluster.ask("GET", "/api/executions?limit=1000")[1]["items"]
        assert len(executions) == messages
    finally:
        cluster.stop()


def test_two_servers_on_one_postgres_start_each_message_and_notify_once(nats_server, database, tmp_path: Path):
    """One of two servers listens; when it is killed, the other one continues."""
    name = "P" + uuid.uuid4().hex[:10]

    async def send(numbers: range, create: bool = False) -> None:
        client = await nats.connect(nats_server)
        try:
            if create:
                await client.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
            for number in numbers:
                await client.jetstream().publish(f"{name}.x", b'{"n": %d}' % number)
        finally:
            await client.close()

    asyncio.run(send(range(0), create=True))
    servers = [Cluster(tmp_path, NOETL_STORE=database) for _ in range(2)]
    one, two = servers
    try:
        for server in servers:
            server.start_server()
        one.ask("POST", "/api/catalog/register", {"content": TEXT})
        definition = {"path": "tests/load", "url": nats_server, "stream": name, "subject": f"{name}.>", "start": "all"}
        assert one.ask("PUT", "/api/triggers/nats/stream", definition)[0] == 200
        following = {
            "path": "tests/load",
            "of": "tests/load",
            "status": ["cancelled"],
            "payload": {"n": "{{ event.path }}"},
        }
        assert two.ask("PUT", "/api/triggers/execution/after", following)[0] == 200
        asyncio.run(send(range(20)))

        def started(count: int) -> list[dict[str, Any]] | None:
            found = two.ask("GET", "/api/deliveries?limit=1000&kind=nats&status=started")[1]["items"]
            return found if len(found) >= count else None

        wait_for(lambda: started(20), 60)
        assert one.server is not None
        one.server.send_signal(signal.SIGKILL)
        one.server.wait()
        asyncio.run(send(range(20, 40)))
        found = wait_for(lambda: started(40), 90)
        assert len(found) == 40 == len({each["execution_id"] for each in found})
        assert two.ask("POST", f"/api/executions/{found[0]['execution_id']}/cancel", {})[0] < 300
        (end,) = wait_for(lambda: two.ask("GET", "/api/deliveries?kind=execution&status=started")[1]["items"], 60)
        assert end["event"]["execution_id"] == found[0]["execution_id"]
    finally:
        for server in servers:
            server.stop()
