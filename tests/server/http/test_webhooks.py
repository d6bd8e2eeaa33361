"""Webhooks: a signed delivery starts one execution; all other requests are rejected alike."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request

import pytest

from noetl import Client
from noetl.cli import app as program
from noetl.errors import AccessRefused
from noetl.server.http.access import Tokens
from noetl.server.scheduling.webhooks import payload_of, sign
from tests.server.http.serving import Cluster

TEXT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hook, path: tests/hook}
workload: {order: {id: 0, colour: none}, body: null}
workflow:
  - step: start
    tool: {kind: python, input: {order: "{{ workload.order }}", body: "{{ workload.body }}"}, code: "result = [order, body]"}
"""


@pytest.fixture
def hook(cluster: Cluster):
    """A webhook with a secret of its own."""
    cluster.ask("POST", "/api/catalog/register", {"content": TEXT})
    status, added = cluster.ask(
        "POST", "/api/webhooks", {"path": "tests/hook", "name": "orders", "payload": {"order": {"colour": "red"}}}
    )
    assert status == 201
    yield added
    assert cluster.ask("DELETE", "/api/webhooks/orders")[0] == 204


def send(cluster: Cluster, body: bytes, secret: str, at: int | str | None = None, name: str = "orders", **headers: str):
    stamp = str(int(time.time())) if at is None else str(at)
    sent = {"X-NoETL-Timestamp": stamp, "X-NoETL-Signature": "sha256=" + sign(secret, stamp, body), **headers}
    request = urllib.request.Request(f"{cluster.url}/api/webhooks/{name}", data=body, method="POST", headers=sent)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def test_a_signed_body_becomes_the_payload_and_the_same_delivery_starts_once(cluster: Cluster, hook):
    now = int(time.time())
    status, started = send(cluster, b'{"order": {"id": 17}}', hook["secret"], now)
    assert status == 202
    done = cluster.finished(started["execution_id"])
    assert done["output"]["data"] == [{"id": 17, "colour": "red"}, None]
    assert send(cluster, b'{"order": {"id": 17}}', hook["secret"], now) == (202, started)
    _, other = send(cluster, b'{"order": {"id": 18}}', hook["secret"], now)
    assert other["execution_id"] != started["execution_id"]
    # A header that is not signed cannot turn a replay into another execution.
    again = send(cluster, b'{"order": {"id": 17}}', hook["secret"], now, **{"Idempotency-Key": "other"})
    assert again == (202, started)


def test_invalid_signatures_are_rejected(cluster: Cluster, hook):
    body, secret, now = b'{"order": {"id": 1}}', hook["secret"], int(time.time())
    wrong = send(cluster, body, "another secret")
    assert wrong[0] == 401
    assert send(cluster, body, secret, now - 301)[0] == 401
    assert send(cluster, body, secret, now + 301)[0] == 401
    for stamp in ("soon", "1e9", "-5", "9" * 15):
        assert send(cluster, body, secret, stamp)[0] == 401
    for missing in ({"X-NoETL-Signature": ""}, {"X-NoETL-Timestamp": ""}, {"X-NoETL-Signature": "sha256=zz"}):
        assert send(cluster, body, secret, **missing)[0] == 401
    # A right signature of another body or another time is a wrong one.
    stale = "sha256=" + sign(secret, str(now - 1), body)
    assert send(cluster, body, secret, now, **{"X-NoETL-Signature": stale})[0] == 401
    # A webhook that does not exist answers in the same words.
    assert send(cluster, body, secret, name="nobody") == wrong


def test_only_an_admin_manages_webhooks_and_the_secret_is_returned_once(cluster: Cluster, hook):
    author = Tokens(cluster.home).add("hook-author", "author")
    body = {"path": "tests/hook", "name": "mine"}
    assert cluster.ask("POST", "/api/webhooks", body, token=author)[0] == 403
    assert cluster.ask("DELETE", "/api/webhooks/orders", token=author)[0] == 403
    listed = cluster.ask("GET", "/api/webhooks", token=author)[1]["items"]
    assert [each["name"] for each in listed] == ["orders"]
    assert hook["secret"] not in json.dumps(listed)
    assert cluster.ask("POST", "/api/webhooks", {**body, "name": "orders"})[0] == 409
    assert cluster.ask("POST", "/api/webhooks", {**body, "path": "tests/nobody"})[0] == 404
    assert cluster.ask("POST", "/api/webhooks", {**body, "credential": "nothing"})[0] == 400


def test_both_secrets_of_a_credential_are_accepted_during_rotation(cluster: Cluster, hook):
    cluster.ask("PUT", "/api/credentials/shop", {"type": "webhook", "data": {"secret": ["old one", "new one"]}})
    cluster.ask("POST", "/api/webhooks", {"path": "tests/hook", "name": "shop", "credential": "shop"})
    assert send(cluster, b"{}", "old one", name="shop")[0] == 202
    assert send(cluster, b"{}", "new one", name="shop")[0] == 202
    cluster.ask("DELETE", "/api/credentials/shop")
    assert send(cluster, b"{}", "new one", name="shop")[0] == 401
    cluster.ask("DELETE", "/api/webhooks/shop")


def test_a_body_that_is_no_object_becomes_the_field_body():
    assert payload_of(b"") == {}
    assert payload_of(b"[1, 2]") == {"body": [1, 2]}
    assert payload_of(b"a=1&b=2") == {"body": "a=1&b=2"}
    assert payload_of(b"\xff") == {"body": "�"}
    assert payload_of(b'{"a": 1}') == {"a": 1}


def test_the_client_signs_as_openssl_does(cluster: Cluster, hook):
    with Client(cluster.url, "") as sender:
        execution_id = sender.deliver("orders", b'{"order": {"id": 3}}', hook["secret"])
        with pytest.raises(AccessRefused, match="signature"):
            sender.deliver("orders", b"{}", "wrong")
    assert cluster.finished(execution_id)["output"]["data"][0]["id"] == 3
    # What openssl answers to the command of the page.
    assert sign("s", "12", b"{}") == "62abafc6182da52eed5d78837074ad1d6e752984accc6c767660f5d262ef8fd4"


def test_the_command_line_manages_and_calls_webhooks(cluster: Cluster, tmp_path, monkeypatch, capsys):
    def noetl(*words: str) -> tuple[int, str, str]:
        code = program.run(words)
        return code, *capsys.readouterr()

    monkeypatch.setenv("NOETL_HOME", str(tmp_path))
    monkeypatch.setenv("NOETL_SERVER_URL", cluster.url)
    monkeypatch.setenv("NOETL_TOKEN", cluster.token)
    cluster.ask("POST", "/api/catalog/register", {"content": TEXT})
    added = json.loads(noetl("webhook", "add", "tests/hook", "--json")[1])
    assert added["url"] == f"{cluster.url}/api/webhooks/tests-hook"
    (tmp_path / "secret").write_text(added["secret"])
    code, out, _ = noetl("webhook", "call", "tests-hook", "--secret", f"@{tmp_path}/secret", "--body", '{"body": 5}')
    assert code == 0
    assert cluster.finished(out.strip())["output"]["data"][1] == 5
    assert noetl("webhook", "call", "tests-hook", "--secret", "wrong")[0] == 4
    assert "tests-hook" in noetl("webhook", "list")[1]
    assert noetl("webhook", "remove", "tests-hook")[0] == 0
    assert noetl("webhook", "remove", "tests-hook")[0] == 2
    assert "webhook-tests-hook" not in noetl("credential", "list")[1]
