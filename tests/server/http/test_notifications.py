"""Notifications of a server over HTTP and the command line, with a real mail server."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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


SHOP = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: shop, path: tests/shop}
workload: {order: 7}
workflow:
  - step: pay
    tool: {kind: python, input: {order: "{{ workload.order }}"}, code: "result = {'order': order, 'amount': 250}"}
    spec:
      policy:
        emit:
          events:
            - {name: order_paid, payload: {order: "{{ output.data.order }}", amount: "{{ output.data.amount }}"}}
            - {name: audit, payload: "{{ output.data.order }}"}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: noop}
"""


def test_a_custom_event_is_mailed_and_sent_over_http(cluster: Cluster, noetl):
    cluster.ask("POST", "/api/catalog/register", {"content": SHOP})
    with smtp_server() as inbox, http_receiver() as (url, received):
        cluster.ask("PUT", "/api/credentials/smtp", {"type": "smtp", "data": inbox.fields})
        code, out, err = noetl(
            "notify", "add", "sales", "--on", "event:order_*", "--path", "tests/*", "--mail", "sales@example.com",
            "--credential", "smtp", "--group", "0s", "--json",
        )  # fmt: skip
        assert code == 0, err
        assert json.loads(out)["on"] == ["event:order_*"]
        assert noetl("notify", "add", "x", "--on", "event:", "--slack", "--credential", "c")[0] == 2
        assert noetl("notify", "add", "x", "--on", "nothing", "--slack", "--credential", "c")[0] == 2
        body = {"who": "{{ notification['items'][0].data }}", "on": "{{ notification.on }}"}
        rule = {"on": ["event:custom.audit"], "to": {"kind": "http", "url": url, "body": body}, "group": 0}
        assert cluster.ask("PUT", "/api/notifications/audit", rule)[1]["on"] == ["event:audit"]
        started = cluster.ask("POST", "/api/execute", {"path": "tests/shop", "payload": {"order": 42}})[1]
        cluster.finished(started["execution_id"])
        wait_for(lambda: inbox.messages and received)
        assert inbox.messages[0]["Subject"] == "[noetl] tests/shop: order_paid"
        text = inbox.messages[0].get_content().replace("=\n", "")
        assert "'amount': 250" in text
        assert f"noetl why {started['execution_id']}" in text
        assert received == [{"who": 42, "on": "event:audit"}]

        def sent() -> bool:
            found = cluster.ask("GET", "/api/notifications/sales/deliveries")[1]["items"]
            return [(each["on"], each["status"]) for each in found] == [("event:order_paid", "sent")]

        wait_for(sent)
        for name in ("sales", "audit"):
            assert cluster.ask("DELETE", f"/api/notifications/{name}")[0] == 204


@contextmanager
def http_receiver():
    """The address of an HTTP server, and the JSON documents that it has received."""
    received: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/", received
        server.shutdown()
        thread.join()
