"""The inbox, reruns of failed iterations, and schemas."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.server.http.serving import Cluster
from tests.ui.browsing import Tab

Opened = Callable[..., Tab]

APPROVAL = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: inbox/payment}
workload: {amount: 120}
workflow:
- step: start
  tool:
  - name: approval
    kind: wait
    signal: approve
    title: "Pay {{ workload.amount }} euros?"
    form: {type: object, required: [approved], properties: {approved: {type: boolean}, comment: {type: string}}}
"""

LOOP = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: inbox/loop}
workflow:
- step: start
  loop: {in: "{{ range(6) | list }}", iterator: n}
  spec: {policy: {failure: {mode: best_effort, max_failed: 1}}}
  tool:
  - {name: one, kind: python, input: {n: "{{ iter.n }}"}, code: "if n % 3 == 1: raise ValueError(n)"}
"""


def started(cluster: Cluster, text: str) -> str:
    status, answer = cluster.ask("POST", "/api/execute", {"content": text})
    assert status == 202, answer
    return answer["execution_id"]


@pytest.fixture
def waiting(cluster: Cluster) -> str:
    return started(cluster, APPROVAL)


def test_a_wait_is_answered_in_the_inbox(opened: Opened, cluster: Cluster, waiting: str):
    page = opened(f"/executions/{waiting}").page
    expect(page.locator(".facts .status.waiting")).to_be_visible()
    page.get_by_role("link", name="Answer in the inbox").click()
    entry = page.get_by_role("form", name="Pay 120 euros?")
    entry.get_by_label("comment").fill("fine")
    entry.get_by_role("button", name="Approve").click()
    expect(entry).to_have_count(0)
    document = cluster.finished(waiting)
    assert document["status"] == "success"
    assert document["output"]["data"] == {"approved": True, "comment": "fine"}


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_the_inbox_is_accessible(opened: Opened, cluster: Cluster, waiting: str, width: int, height: int):
    tab = opened("/inbox", width=width, height=height)
    expect(tab.page.get_by_role("button", name="Reject").first).to_be_visible()
    assert tab.serious_violations() == []
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    cluster.ask("POST", f"/api/executions/{waiting}/cancel", {})


def test_a_schema_is_listed(opened: Opened, cluster: Cluster):
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    status, answer = cluster.ask("PUT", "/api/schemas/orders", {"json_schema": schema})
    assert status == 201, answer
    page = opened("/operations/schemas").page
    page.get_by_role("button", name="Show orders").click()
    expect(page.locator("tr.detail")).to_contain_text("integer")


def test_failed_iterations_are_rerun_alone(opened: Opened, cluster: Cluster):
    execution = started(cluster, LOOP)
    cluster.finished(execution)
    page = opened(f"/executions/{execution}?tab=iterations&step=start").page
    expect(page.get_by_role("tabpanel").get_by_text("2 failed")).to_be_visible()
    page.get_by_role("button", name="Rerun failed only").click()
    page.wait_for_url(lambda url: "/executions/" in url and execution not in url)
    new = re.search(r"/executions/(\d+)", page.url)[1]
    cluster.finished(new)
    _, events = cluster.ask("GET", f"/api/executions/{new}/events")
    ran = {
        event["iteration_index"]
        for event in events["items"]
        if event["name"] == "task.done" and event["step"] == "start"
    }
    assert ran <= {1, 4} and ran
