"""Deliveries of GitHub, Stripe and Slack, sent to a server as these services send them."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.server.http.serving import Cluster

ECHO = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: echo, path: tests/echo}
workload: {sleep: 0}
workflow:
  - step: start
    tool:
      kind: python
      input: {all: "{{ workload }}"}
      code: |
        import time
        time.sleep(all["sleep"])
        result = all
"""
SECRET = "whsec_5f1c"

PUSH = {
    "ref": "refs/heads/main",
    "before": "6113728f27ae82c7b1a177c8d03f9e96e0adf246",
    "after": "0000000000000000000000000000000000000000",
    "repository": {"id": 186853002, "full_name": "Codertocat/Hello-World", "private": False},
    "pusher": {"name": "Codertocat", "email": "21031067+Codertocat@users.noreply.github.com"},
}
PAYMENT = {
    "id": "evt_1NG8Du2eZvKYlo2CUI79vXWy",
    "object": "event",
    "api_version": "2019-02-19",
    "created": 1686089970,
    "data": {"object": {"id": "seti_1NG8Du2eZvKYlo2C9XMqbR0x", "object": "setup_intent", "status": "succeeded"}},
    "livemode": False,
    "type": "setup_intent.succeeded",
}
MENTION = {
    "token": "XXYYZZ",
    "team_id": "T123ABC456",
    "api_app_id": "A123ABC456",
    "event": {"type": "app_mention", "user": "U123ABC456", "text": "deploy", "ts": "123456789.9876"},
    "type": "event_callback",
    "event_id": "Ev123ABC456",
    "event_time": 1234567890,
}


@pytest.fixture(scope="module", autouse=True)
def playbook(cluster: Cluster):
    cluster.ask("POST", "/api/catalog/register", {"content": ECHO})
    cluster.ask("PUT", "/api/credentials/service", {"type": "webhook", "data": {"secret": SECRET}})


@pytest.fixture
def add(cluster: Cluster):
    names: list[str] = []

    def add(name: str, **fields: Any) -> dict[str, Any]:
        body = {"path": "tests/echo", "name": name, "credential": "service", **fields}
        status, added = cluster.ask("POST", "/api/webhooks", {k: v for k, v in body.items() if v is not None})
        assert status == 201, added
        names.append(name)
        return added

    yield add
    for name in names:
        cluster.ask("DELETE", f"/api/webhooks/{name}")


def post(cluster: Cluster, name: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
    request = urllib.request.Request(f"{cluster.url}/api/webhooks/{name}", data=body, method="POST", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def mac(text: bytes) -> str:
    return hmac.new(SECRET.encode(), text, hashlib.sha256).hexdigest()


def github(cluster: Cluster, body: bytes, event: str = "push", id: str = "72d3162e", name: str = "github"):
    headers = {
        "User-Agent": "GitHub-Hookshot/044aadd",
        "Content-Type": "application/json",
        "X-GitHub-Delivery": id,
        "X-GitHub-Event": event,
        "X-GitHub-Hook-ID": "292430182",
        "X-Hub-Signature-256": "sha256=" + mac(body),
    }
    return post(cluster, name, body, headers)


def slack(cluster: Cluster, body: bytes, at: int | None = None, kind: str = "application/json"):
    stamp = str(at or int(time.time()))
    headers = {
        "Content-Type": kind,
        "X-Slack-Request-Timestamp": stamp,
        "X-Slack-Signature": "v0=" + mac(f"v0:{stamp}:".encode() + body),
    }
    return post(cluster, "slack", body, headers)


def output(cluster: Cluster, started: dict[str, Any]) -> Any:
    return cluster.finished(started["execution_id"])["output"]["data"]


def test_a_push_to_github_starts_once_and_a_ping_starts_nothing(cluster: Cluster, add):
    add("github", preset="github", headers=["X-GitHub-Event"])
    assert github(cluster, b'{"zen": "Keep it logically awesome."}', "ping", "0") == (200, {"status": "ok"})
    body = json.dumps(PUSH).encode()
    status, started = github(cluster, body)
    assert status == 202
    found = output(cluster, started)
    assert found["repository"]["full_name"] == "Codertocat/Hello-World"
    assert found["webhook"] == {"headers": {"X-GitHub-Event": "push"}}
    assert github(cluster, body) == (202, started)  # redelivered by hand
    assert github(cluster, body, id="72d3162f")[1]["execution_id"] != started["execution_id"]
    assert post(cluster, "github", body, {"X-Hub-Signature-256": "sha256=" + "0" * 64})[0] == 401
    assert post(cluster, "github", body, {})[0] == 401


def test_an_event_of_stripe_starts_once_although_its_retries_have_new_signatures(cluster: Cluster, add):
    add("stripe", preset="stripe", payload={"status": "{{ event.body.data.object.status }}", "id": "{{ event.id }}"})
    body = json.dumps(PAYMENT, indent=2).encode()
    now = int(time.time())

    def send(at: int) -> tuple[int, Any]:
        signed = mac(f"{at}.".encode() + body)
        return post(
            cluster, "stripe", body, {"Stripe-Signature": f"t={at},v1={signed}", "Content-Type": "application/json"}
        )

    status, started = send(now)
    assert status == 202
    found = output(cluster, started)
    assert (found["status"], found["id"]) == ("succeeded", "evt_1NG8Du2eZvKYlo2CUI79vXWy")
    assert "livemode" not in found  # templates say what is taken
    assert send(now - 60) == (202, started)
    assert send(now - 400)[0] == 401


def test_slack_verifies_the_address_sends_events_and_commands(cluster: Cluster, add):
    add("slack", preset="slack", raw_body=True)
    hello = {"token": "Jhj5dZrVaK7ZwHHjRyZWjbDl", "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"}
    assert slack(cluster, json.dumps({**hello, "type": "url_verification"}).encode()) == (
        200,
        {"challenge": hello["challenge"]},
    )
    body = json.dumps(MENTION).encode()
    status, started = slack(cluster, body)
    assert status == 202
    assert output(cluster, started)["event"]["text"] == "deploy"
    assert slack(cluster, body, int(time.time()) - 1) == (202, started)  # a retry of Slack after a timeout
    form = urlencode({"command": "/deploy", "text": "prod now", "user_id": "U2CERLKJA"}).encode()
    _, command = slack(cluster, form, kind="application/x-www-form-urlencoded")
    found = output(cluster, command)
    assert (found["command"], found["text"]) == ("/deploy", "prod now")
    assert found["webhook"]["raw_body"] == form.decode()
    assert slack(cluster, form, int(time.time()) - 301)[0] == 401


def ask(cluster: Cluster, name: str, **query: str) -> tuple[int, str]:
    """The question of a service whether it may send, without a token."""
    given = urlencode({f"hub.{key}": value for key, value in query.items()})
    try:
        with urllib.request.urlopen(f"{cluster.url}/api/webhooks/{name}?{given}", timeout=30) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, ""


def test_meta_verifies_the_address_with_the_token_and_sends_events(cluster: Cluster, add):
    data = {"secret": SECRET, "verify_token": "page-token"}
    cluster.ask("PUT", "/api/credentials/page", {"type": "webhook", "data": data})
    add("meta", preset="meta", credential="page")
    asked = {"mode": "subscribe", "challenge": "1158201444", "verify_token": "page-token"}
    assert ask(cluster, "meta", **asked) == (200, "1158201444")
    assert ask(cluster, "meta", **{**asked, "verify_token": "guess"})[0] == 401
    assert ask(cluster, "meta", **{**asked, "verify_token": ""})[0] == 401
    assert ask(cluster, "meta", **{**asked, "challenge": ""})[0] == 401
    assert ask(cluster, "meta", **{**asked, "mode": "unsubscribe"})[0] == 401
    assert ask(cluster, "unknown", **asked)[0] == 401
    with pytest.raises(urllib.error.HTTPError, match="401"):  # the definition still needs a token
        urllib.request.urlopen(f"{cluster.url}/api/webhooks/meta", timeout=30)
    body = json.dumps({"object": "page", "entry": [{"id": "1", "time": 1520383571, "messaging": []}]}).encode()
    headers = {"X-Hub-Signature-256": "sha256=" + mac(body), "Content-Type": "application/json"}
    status, started = post(cluster, "meta", body, headers)
    assert status == 202
    assert output(cluster, started)["object"] == "page"
    assert post(cluster, "meta", body, headers) == (202, started)  # repeated by Meta
    assert post(cluster, "meta", body, {"X-Hub-Signature-256": "sha256=" + "0" * 64})[0] == 401


def test_a_hub_of_websub_is_confirmed_by_its_topic(cluster: Cluster, add):
    add("feed", preset="websub", topic="https://example.org/feed")
    asked = {"mode": "subscribe", "topic": "https://example.org/feed", "challenge": "x1", "lease_seconds": "864000"}
    assert ask(cluster, "feed", **asked) == (200, "x1")
    assert ask(cluster, "feed", **{**asked, "topic": "https://example.org/other"})[0] == 401
    assert ask(cluster, "feed", **{**asked, "mode": "denied"}) == (200, "")
    assert ask(cluster, "feed", **{**asked, "mode": "unsubscribe"})[0] == 401
    body = b"<feed><entry>new</entry></feed>"
    for algorithm in ("sha256", "sha512", "sha1"):
        signed = hmac.new(SECRET.encode(), body, algorithm).hexdigest()
        headers = {"X-Hub-Signature": f"{algorithm}={signed}", "Content-Type": "application/atom+xml"}
        status, started = post(cluster, "feed", body, headers)
        assert status == 202
        assert output(cluster, started)["body"] == body.decode()
    assert post(cluster, "feed", body, {"X-Hub-Signature": f"md5={signed}"})[0] == 401
    assert cluster.ask("POST", "/api/triggers/webhook/feed/pause")[0] == 200
    assert ask(cluster, "feed", **{**asked, "mode": "unsubscribe"}) == (200, "x1")
    assert ask(cluster, "feed", **asked)[0] == 401


def test_a_webhook_responds_with_the_result(cluster: Cluster, add):
    add("answer", preset="github", respond="result", wait=20)
    status, found = github(cluster, b'{"n": 7}', id="a1", name="answer")
    assert (status, found["n"]) == (200, 7)
    assert github(cluster, b'{"n": 7}', id="a1", name="answer") == (200, found)
    status, failed = github(cluster, b'{"sleep": "x"}', id="a2", name="answer")
    assert status == 500
    assert "ended as failed" in failed["detail"]
    cluster.ask("DELETE", "/api/webhooks/answer")
    add("answer", preset="github", respond="result", wait=0.2)
    status, found = github(cluster, b'{"sleep": 0.6}', id="a3", name="answer")
    assert (status, found["status"]) == (202, "running")
    assert output(cluster, found)["sleep"] == 0.6


def test_a_webhook_without_signatures_needs_the_flag(cluster: Cluster, add):
    body = {"path": "tests/echo", "name": "open", "preset": "none"}
    status, problem = cluster.ask("POST", "/api/webhooks", body)
    assert status == 400 and "allow_unsigned" in problem["detail"]
    add("open", preset="none", allow_unsigned=True, credential=None)
    one = post(cluster, "open", b'{"n": 1}', {})
    assert one[0] == 202
    assert post(cluster, "open", b'{"n": 1}', {})[1]["execution_id"] != one[1]["execution_id"]
    keyed = [post(cluster, "open", b'{"n": 1}', {"Idempotency-Key": "k"})[1]["execution_id"] for _ in range(2)]
    assert keyed[0] == keyed[1]


def test_a_custom_signature_and_a_wrong_definition(cluster: Cluster, add):
    add("own", preset="hmac", signature={"header": "X-Own", "prefix": "s=", "id_header": "X-Id"})
    sent = {"X-Own": "s=" + mac(b"{}"), "X-Id": "1"}
    assert post(cluster, "own", b"{}", sent)[0] == 202
    for wrong, words in (
        ({"preset": "hmac"}, "signature"),
        ({"preset": "hmac", "signature": {"header": "X", "algorithm": "md5"}}, "algorithm"),
        ({"preset": "hmac", "signature": {"heder": "X"}}, "heder"),
        ({"preset": "github", "signature": {"header": "X"}}, "signature"),
    ):
        status, problem = cluster.ask("POST", "/api/webhooks", {"path": "tests/echo", "name": "bad", **wrong})
        assert status == 400 and words in problem["detail"]


def test_a_delivery_that_cannot_start_is_recorded_and_refused(cluster: Cluster, add):
    add("broken", preset="github", payload={"x": "{{ event.body.missing.x }}"})
    status, problem = github(cluster, b"{}", id="b1", name="broken")
    assert status == 400 and "missing" in problem["detail"]
