"""The event index as a document and as a stream; parts of stored payloads; explanations of earlier states."""

from __future__ import annotations

import json
import urllib.request

import pytest

from noetl.core.model.reference import Reference, ReferenceMeta
from noetl.server.http.routes.results import encode
from tests.server.http.serving import Cluster

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: outlined, path: tests/outlined}
workflow:
  - step: start
    loop: {in: [1, 2, 3], iterator: n}
    tool: [{name: one, kind: noop}]
    next: {arcs: [{step: never, when: "{{ false }}"}, {step: rows}]}
  - step: rows
    tool: [{name: make, kind: python, code: "result = [{'n': n, 'text': 'x' * 60} for n in range(3000)]"}]
  - step: never
    tool: [{name: none, kind: noop}]
"""


@pytest.fixture(scope="module")
def done(cluster: Cluster) -> str:
    _, answer = cluster.ask("POST", "/api/execute", {"content": PLAYBOOK})
    assert cluster.finished(answer["execution_id"])["status"] == "success"
    return answer["execution_id"]


def test_the_event_index_has_a_row_for_every_event(cluster: Cluster, done: str):
    events = cluster.ask("GET", f"/api/executions/{done}/events")[1]["items"]
    outline = cluster.ask("GET", f"/api/executions/{done}/outline")[1]
    assert (outline["first"], outline["count"], outline["next"]) == (1, len(events), None)
    for event, name, step, cause in zip(events, outline["name"], outline["step"], outline["cause"], strict=True):
        assert outline["names"][name] == event["name"]
        assert (outline["steps"][step] if step >= 0 else None) == event["step"]
        assert (f"{done}-{cause}" if cause else None) == event["parent_event_id"]
    arcs = [arc for more in outline["more"].values() for arc in more.get("arcs", ())]
    assert {(target, held) for _, target, held, _ in arcs} == {("never", False), ("rows", True)}


def test_pages_of_the_event_index_have_no_gaps(cluster: Cluster, done: str):
    whole = cluster.ask("GET", f"/api/executions/{done}/outline")[1]
    after, at = 0, []
    while after is not None:
        page = cluster.ask("GET", f"/api/executions/{done}/outline?after={after}&limit=7")[1]
        assert page["first"] == after + 1
        at += page["at"]
        after = page["next"]
    assert at == whole["at"]


def test_a_page_of_large_events_is_short(cluster: Cluster):
    waits = PLAYBOOK.partition("workflow:")[0] + "workflow:\n  - {step: start, tool: {kind: wait, signal: go}}\n"
    execution_id = cluster.ask("POST", "/api/execute", {"content": waits})[1]["execution_id"]
    for number in range(14):
        payload = {f"key{number}": "x" * 700_000}
        assert cluster.ask("POST", f"/api/executions/{execution_id}/signal", {"payload": payload})[0] == 202
    after, pages, found = "0", 0, []
    while after is not None:
        page = cluster.ask("GET", f"/api/executions/{execution_id}/events?after={after}&limit=10000")[1]
        found += [int(each["event_id"].rpartition("-")[2]) for each in page["items"]]
        after, pages = page["next"], pages + 1
    assert pages > 1 and found == list(range(1, 1 + len(found)))
    cluster.ask("POST", f"/api/executions/{execution_id}/cancel", {})


def stream(cluster: Cluster, path: str, last: int) -> list[tuple[str, dict]]:
    headers = {"Authorization": f"Bearer {cluster.token}", "Last-Event-ID": str(last)}
    with urllib.request.urlopen(urllib.request.Request(cluster.url + path, headers=headers), timeout=20) as answer:
        blocks = answer.read().decode().split("\n\n")
    found = []
    for block in blocks:
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "data" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def test_the_stream_continues_after_the_last_event_id_and_ends(cluster: Cluster, done: str):
    length = cluster.ask("GET", f"/api/executions/{done}/outline")[1]["count"]
    *rows, end = stream(cluster, f"/api/executions/{done}/outline/stream", 5)
    assert end == ("end", {})
    assert rows[0][1]["first"] == 6 and sum(each["count"] for _, each in rows) == length - 5
    assert stream(cluster, f"/api/executions/{done}/outline/stream", length) == [("end", {})]
    assert stream(cluster, f"/api/executions/{done}/events/stream", length) == [("end", {})]


def test_why_explains_an_earlier_state(cluster: Cluster, done: str):
    now = cluster.ask("GET", f"/api/executions/{done}/why")[1]
    assert now["findings"][0]["subject"] == "end" and now["because"]
    then = cluster.ask("GET", f"/api/executions/{done}/why?at=8")[1]["findings"]
    assert any('"start"' in finding["text"] for finding in then)


def test_a_part_of_a_stored_payload_is_read_from_every_format(cluster: Cluster, done: str):
    state = cluster.ask("GET", f"/api/executions/{done}/state")[1]
    ref = state["steps"]["rows"]["output"]["ref"]
    import msgspec

    name = encode(msgspec.convert(ref, Reference))
    status, part = cluster.ask("GET", f"/api/results/{name}/part?offset=2990&limit=5")
    assert status == 200 and [row["n"] for row in part["data"]] == [2990, 2991, 2992, 2993, 2994]
    status, problem = cluster.ask("GET", f"/api/results/{name}/part?select=no.such")
    assert status == 404 and "no" in problem["detail"]
    gone = Reference("blob", {"name": "none"}, ReferenceMeta("application/json", 3, "0" * 64))
    assert cluster.ask("GET", f"/api/results/{encode(gone)}/part")[0] in (400, 410)


def test_an_unknown_execution_has_no_event_index(cluster: Cluster):
    assert cluster.ask("GET", "/api/executions/4711/outline")[0] == 404
    assert cluster.ask("GET", "/api/executions/4711/outline/stream")[0] == 404
