"""Waits on a server: API, inbox, roles, signed links, and restarts that do not load what waits."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from noetl import Client
from noetl.errors import AccessRefused, Conflict, RequestRefused
from noetl.server.http.access import Tokens
from tests.server.http.serving import Cluster

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}, path: inbox/{name}}}\n"
APPROVAL = (
    HEAD.format(name="approval")
    + """
workload: {amount: 100, timeout: 48h, roles: [operator]}
workflow:
  - step: start
    tool:
      - name: approval
        kind: wait
        signal: approve
        title: "Pay <b>{{ workload.amount }}</b>?"
        form:
          type: object
          required: [approved]
          properties:
            approved: {type: boolean}
            comment: {type: string, title: Remark}
            level: {enum: [low, high]}
            count: {type: integer}
        roles: "{{ workload.roles }}"
        timeout: "{{ workload.timeout }}"
      - name: end
        kind: python
        input: {data: "{{ approval.data }}", by: "{{ approval.meta.signal.by }}"}
        code: "result = {'data': data, 'by': by}"
"""
)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {}
    closing = None
    if request.param == "postgres":
        from tests.conftest import services

        closing = services.fresh_database(request.getfixturevalue("postgres"))
        settings["NOETL_STORE"] = closing.__enter__()
    cluster = Cluster(Path(tmp_path_factory.mktemp("home")), **settings)
    try:
        cluster.start_server()
        cluster.start_worker()
        yield cluster
    finally:
        cluster.stop()
        if closing is not None:
            closing.__exit__(None, None, None)


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.url, cluster.token) as client:
        yield client


def begin(client: Client, **payload: Any) -> str:
    client.register(APPROVAL)
    execution_id = client.submit("inbox/approval", payload)
    wait_for(lambda: client.summary(execution_id).status == "waiting")
    return execution_id


def wait_for(condition: Any, seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.02)
    return value


def token_of(cluster: Cluster, role: Any) -> str:
    tokens = Tokens(cluster.home)
    tokens.remove(f"a-{role}")
    return tokens.add(f"a-{role}", role)


def test_the_api_lists_refuses_and_takes_answers(client: Client, cluster: Cluster):
    execution_id = begin(client)
    entries = [each for each in client.inbox() if each["execution_id"] == execution_id]
    (entry,) = entries
    assert (entry["signal"], entry["step"], entry["task"], entry["may_answer"]) == (
        "approve",
        "start",
        "approval",
        True,
    )
    status, problem = cluster.ask("POST", f"/api/executions/{execution_id}/signal", {"name": "approve", "payload": {}})
    assert status == 400 and '"approved" is a required property' in problem["detail"]
    listed = cluster.ask("GET", "/api/executions?status=waiting")[1]["items"]
    assert execution_id in [each["execution_id"] for each in listed]
    findings = cluster.ask("GET", f"/api/executions/{execution_id}/why")[1]["findings"]
    assert findings[0]["subject"] == "wait" and "Pay" in findings[0]["text"]
    client.signal(execution_id, {"approved": True}, "approve", key="k")
    client.signal(execution_id, {"approved": True}, "approve", key="k")  # repeated: no second signal
    result = client.wait(execution_id, 30)
    assert result.data == {"data": {"approved": True}, "by": "admin"}
    events = [each["name"] for each in client.events(execution_id)]
    assert events.count("signal.received") == 1
    with pytest.raises(Conflict):
        client.signal(execution_id, {"approved": True}, "approve")


def test_roles_decide_who_may_answer(client: Client, cluster: Cluster):
    execution_id = begin(client, roles=["author"])
    viewer, operator, author = (token_of(cluster, role) for role in ("viewer", "operator", "author"))
    for token in (viewer, operator):
        with Client(cluster.url, token) as other:
            (entry,) = [each for each in other.inbox() if each["execution_id"] == execution_id]
            assert entry["may_answer"] is False
            with pytest.raises(AccessRefused, match="requires the role author"):
                other.signal(execution_id, {"approved": True}, "approve")
            with pytest.raises(AccessRefused, match="requires the role author"):
                other.answer_link(execution_id, "approve")
    with Client(cluster.url, viewer) as other, pytest.raises(AccessRefused, match="requires the role operator"):
        other.signal(execution_id, {"x": 1})
    with Client(cluster.url, author) as other:
        other.signal(execution_id, {"approved": False}, "approve")
    assert client.wait(execution_id, 30).data["by"] == "a-author"
    execution_id = begin(client, roles=["viewer"])
    with Client(cluster.url, viewer) as other:
        other.signal(execution_id, {"approved": False}, "approve")
    assert client.wait(execution_id, 30).data["by"] == "a-viewer"


def visit(url: str, form: dict[str, str] | None = None) -> tuple[int, str, Any]:
    data = None if form is None else urllib.parse.urlencode(form).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=30) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, problem.read().decode(), problem.headers


def test_a_link_opens_a_form_and_answers_once(client: Client):
    execution_id = begin(client)
    link = client.answer_link(execution_id, "approve", recipient="bob@example.com", expires_s=60)
    status, page, headers = visit(link["url"])
    assert status == 200 and "Pay &lt;b&gt;100&lt;/b&gt;?" in page and "<b>" not in page
    assert 'type="radio" name="approved"' in page and "Remark" in page and '<option value="high">' in page
    assert "default-src 'none'" in headers["Content-Security-Policy"] and headers["Cache-Control"] == "no-store"
    assert client.summary(execution_id).status == "waiting", "opening the page changes nothing"
    status, page, _ = visit(link["url"], {"approved": "", "comment": "<i>hm</i>"})
    assert status == 422 and "required property" in page and "&lt;i&gt;hm&lt;/i&gt;" in page
    status, page, _ = visit(link["url"], {"approved": "true", "count": "many"})
    assert status == 422 and "is not a number" in page
    form = {"approved": "true", "comment": "", "level": "high", "count": "3"}
    status, page, _ = visit(link["url"], form)
    assert status == 200 and "Thank you" in page
    assert client.wait(execution_id, 30).data == {
        "data": {"approved": True, "level": "high", "count": 3},
        "by": "bob@example.com",
    }
    for again in (None, form):
        status, page, _ = visit(link["url"], again)
        assert status == 409 and "answered already" in page


def test_links_expire_and_cannot_be_forged(client: Client, cluster: Cluster):
    execution_id = begin(client)
    link = client.answer_link(execution_id, "approve", expires_s=0.05)
    good = client.answer_link(execution_id, "approve")["url"]
    time.sleep(0.06)
    assert "has expired" in visit(link["url"])[1]
    content, _, signature = good.rpartition("/")[2].partition(".")
    for token in (content, f"{content}.", f"{content}.{signature[:-2]}AA", f"A{content}.{signature}", "x.y", "%00.a"):
        status, page, _ = visit(f"{cluster.url}/answer/{token}")
        assert (status, "is not valid" in page) == (404, True), token
        assert visit(f"{cluster.url}/answer/{token}", {"approved": "true"})[0] == 404
    with pytest.raises(RequestRefused, match="has no open wait"):
        client.answer_link(execution_id, "other")
    assert client.cancel(execution_id).execution_id == execution_id
    assert visit(good)[0] == 409


def test_a_restarted_server_answers_waits_that_it_has_not_loaded_and_fires_their_timers(cluster: Cluster):
    with Client(cluster.url, cluster.token) as client:
        kept = begin(client)
        timed = begin(client, timeout="3s")
    assert cluster.server is not None
    cluster.server.kill()
    cluster.server.wait()
    cluster.start_server()
    with Client(cluster.url, cluster.token) as client:
        metrics = urllib.request.Request(f"{cluster.url}/metrics", headers={"Authorization": f"Bearer {cluster.token}"})
        with urllib.request.urlopen(metrics, timeout=30) as answer:
            text = answer.read().decode()
        found = re.search(r"^noetl_executions_recovered_total (\d+)", text, re.MULTILINE)
        assert found is None or found[1] == "0"
        client.signal(kept, {"approved": True}, "approve")
        assert client.wait(kept, 30).data["data"] == {"approved": True}
        result = client.wait(timed, 30)
        assert (result.status, result.error["kind"]) == ("failed", "timeout")
