"""Notifications of a server over HTTP and the command line, with a real mail server."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from typing import Any

import pytest

from noetl.cli import app as program
from noetl.server.http.access import Tokens
from tests.server.http.serving import Cluster
from tests.smtp import smtp_server

TEXT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: fragile, path: tests/fragile}
workload: {bad: false}
workflow:
  - step: start
    tool: {kind: python, input: {bad: "{{ workload.bad }}"}, code: "assert not bad, 'broken'"}
"""


WAITING = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: approval, path: tests/approval}
workflow:
  - step: start
    tool: {kind: wait, signal: approve, title: "Pay 250 to Bob?"}
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


def test_a_failure_of_a_server_is_mailed_and_logged(cluster: Cluster, noetl):
    with smtp_server() as inbox:
        cluster.ask("PUT", "/api/credentials/smtp", {"type": "smtp", "data": inbox.fields})
        code, out, err = noetl(
            "notify", "add", "ops", "--on", "failed", "--on", "recovered", "--path", "tests/*", "--mail", "ops@example.com",
            "--credential", "smtp", "--group", "0s", "--json",
        )  # fmt: skip
        assert code == 0, err
        assert json.loads(out)["on"] == ["failed", "recovered"]
        assert noetl("notify", "add", "ops", "--mail", "a@b.c", "--credential", "smtp")[0] == 2
        assert "accepted for ops@example.com" in noetl("notify", "test", "ops")[1]
        assert "test of ops" in inbox.messages[0]["Subject"]
        for bad in (True, False):
            started = cluster.ask("POST", "/api/execute", {"path": "tests/fragile", "payload": {"bad": bad}})[1]
            cluster.finished(started["execution_id"])
        wait_for(lambda: len(inbox.messages) >= 3)
        subjects = [each["Subject"] for each in inbox.messages[1:]]
        assert "tests/fragile failed" in subjects[0]
        assert subjects[1] == "[noetl] tests/fragile succeeded again"

        def sent() -> list[dict[str, Any]] | None:
            found = cluster.ask("GET", "/api/notifications/ops/deliveries")[1]["items"]
            return found if all(each["status"] == "sent" for each in found) else None

        log = wait_for(sent)
        assert [each["on"] for each in log] == ["recovered", "failed"]
        assert "tests/fragile failed" in noetl("notify", "log", "ops")[1]
        assert "ops@example.com" in noetl("notify", "list")[1]
        cluster.ask("DELETE", "/api/credentials/smtp")
        code, _, err = noetl("notify", "test", "ops")
        assert code != 0 and "no credential 'smtp'" in err
        assert noetl("notify", "remove", "ops")[0] == 0
        assert noetl("notify", "show", "ops")[0] == 2


def test_only_an_admin_changes_rules(cluster: Cluster):
    operator = Tokens(cluster.home).add("notify-operator", "operator")
    rule = {"on": ["failed"], "to": {"kind": "slack", "credential": "chat"}}
    assert cluster.ask("PUT", "/api/notifications/chat", rule, token=operator)[0] == 403
    status, problem = cluster.ask("PUT", "/api/notifications/chat", rule)
    assert status == 400 and "there is no credential 'chat'; create it with" in problem["detail"]
    secret = {"type": "slack", "data": {"url": "https://hooks.example.com/x"}}
    assert cluster.ask("PUT", "/api/credentials/chat", secret)[0] in (200, 204)
    assert cluster.ask("PUT", "/api/notifications/chat", rule)[0] == 200
    assert cluster.ask("GET", "/api/notifications", token=operator)[1]["items"][0]["name"] == "chat"
    assert cluster.ask("POST", "/api/notifications/chat/test", token=operator)[0] == 403
    assert cluster.ask("PUT", "/api/notifications/chat", {**rule, "on": ["x"]})[0] == 400
    assert cluster.ask("DELETE", "/api/notifications/chat")[0] == 204
    assert cluster.ask("GET", "/api/notifications/chat")[0] == 404


def test_a_waiting_execution_is_mailed_with_its_question(cluster: Cluster, noetl):
    cluster.ask("POST", "/api/catalog/register", {"content": WAITING})
    with smtp_server() as inbox:
        cluster.ask("PUT", "/api/credentials/smtp", {"type": "smtp", "data": inbox.fields})
        rule: dict[str, Any] = {"on": "waiting", "paths": "tests/approval", "group": 0, "answer_url": cluster.url}
        rule["to"] = {"kind": "mail", "to": "boss@example.com", "credential": "smtp"}
        assert cluster.ask("PUT", "/api/notifications/boss", rule)[0] == 200
        started = cluster.ask("POST", "/api/execute", {"path": "tests/approval"})[1]["execution_id"]
        wait_for(lambda: inbox.messages)
        assert "tests/approval waits" in inbox.messages[0]["Subject"]
        assert started in inbox.messages[0].get_content()
        text = inbox.messages[0].get_content()
        assert "Pay 250 to Bob?" in text
        (url,) = re.findall(r"http://\S+/answer/\S+", text.replace("=\n", ""))
        with urllib.request.urlopen(urllib.request.Request(url, data=b"", method="POST"), timeout=10) as answer:
            assert b"Thank you" in answer.read()
        assert cluster.finished(started)["status"] == "success"
        assert "/answer/" not in json.dumps(cluster.ask("GET", "/api/notifications/boss/deliveries")[1])
        assert cluster.ask("DELETE", "/api/notifications/boss")[0] == 204
