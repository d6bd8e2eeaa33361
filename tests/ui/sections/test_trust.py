"""What the page shows is true: causes, dialogs, last runs, hidden values, and a server that is away."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable

from playwright.sync_api import expect

from tests.server.http.serving import Cluster
from tests.ui.browsing import Tab

Opened = Callable[..., Tab]

AWAY = ("ERR_CONNECTION", "Failed to load resource", "ERR_INCOMPLETE", "ERR_EMPTY")

BRANCHES = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: trust/branches}
workload: {api_token: tok-12345678, limit: 3}
workflow:
- step: start
  tool: {kind: noop}
  next: {spec: {mode: inclusive}, arcs: [{step: alpha}, {step: beta}, {step: gamma}]}
- step: alpha
  tool: {kind: shell, command: sleep 20}
  next: {arcs: [{step: join}]}
- step: beta
  tool: {kind: python, code: "import time; time.sleep(0.3); raise ValueError('rate table is empty')"}
  next: {arcs: [{step: join}]}
- step: gamma
  tool: {kind: shell, command: sleep 20}
- step: join
  tool: {kind: noop}
"""

QUIET = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: trust/quiet}
workload: {rows: 5, api_token: tok-12345678}
workflow:
- step: start
  tool: {kind: noop}
"""


def registered(cluster: Cluster, text: str) -> str:
    status, answer = cluster.ask("POST", "/api/catalog/register", {"content": text})
    assert status == 201, answer
    return answer["path"]


def started(cluster: Cluster, text: str, **payload: object) -> str:
    status, answer = cluster.ask("POST", "/api/execute", {"path": registered(cluster, text), "payload": payload})
    assert status == 202, answer
    return answer["execution_id"]


def test_the_cause_is_the_failed_step_and_not_a_cancelled_one(opened: Opened, cluster: Cluster):
    execution = started(cluster, BRANCHES)
    cluster.finished(execution)
    page = opened(f"/executions/{execution}").page
    result = page.get_by_role("tabpanel", name="Failure")
    expect(result).to_contain_text("in step beta")
    expect(result).to_contain_text("rate table is empty")
    expect(result).not_to_contain_text("alpha failed")
    expect(result).not_to_contain_text("gamma failed")


def test_the_rerun_dialog_closes_and_starts_one_execution(opened: Opened, cluster: Cluster):
    execution = started(cluster, QUIET)
    cluster.finished(execution)
    page = opened(f"/executions/{execution}").page
    page.get_by_role("button", name="Rerun", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Rerun", exact=True).click()
    page.wait_for_url(lambda url: execution not in url)
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Enter")
    _, listed = cluster.ask("GET", "/api/executions?path=trust/quiet")
    assert len(listed["items"]) == 2


def test_the_last_run_is_shown_however_many_are_newer(opened: Opened, cluster: Cluster):
    old = started(cluster, QUIET)
    cluster.finished(old)
    other = registered(cluster, QUIET.replace("trust/quiet", "trust/busy"))
    for _ in range(310):
        cluster.ask("POST", "/api/execute", {"path": other})
    page = opened("/playbooks").page
    row = page.get_by_role("row").filter(has_text="trust/quiet")
    expect(row.get_by_role("link", name="success")).to_be_visible()


def test_a_hidden_key_of_the_form_is_hidden_everywhere(opened: Opened, cluster: Cluster):
    execution = started(cluster, QUIET, api_token="tok-87654321")
    cluster.finished(execution)
    page = opened(f"/executions/{execution}?tab=state").page
    expect(page.get_by_role("tabpanel")).to_contain_text("api_token: ***")
    assert "tok-87654321" not in page.content()
    page.get_by_role("tab", name="Events").click()
    page.get_by_role("row").first.click()
    expect(page.get_by_role("tabpanel")).to_contain_text("api_token: ***")
    assert "tok-87654321" not in page.content()


def test_enter_after_ctrl_enter_runs_and_does_not_close_the_form(opened: Opened, cluster: Cluster):
    path = registered(cluster, QUIET)
    page = opened(f"/playbooks/{path}").page
    page.get_by_role("textbox", name=re.compile("Source of")).click()
    page.keyboard.press("Control+Enter")
    dialog = page.get_by_role("dialog", name=re.compile("Run"))
    expect(dialog.get_by_label("rows")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**/executions/*")


def test_pages_say_that_the_server_is_away_and_recover(opened: Opened, cluster: Cluster):
    path = registered(cluster, QUIET)
    editor, catalog = opened(f"/playbooks/{path}"), opened("/playbooks")
    listed, schedules = opened("/executions"), opened("/operations/schedules")
    tabs = (editor, catalog, listed, schedules)
    for tab in tabs:
        tab.forgiven = AWAY
    expect(editor.page.get_by_role("status").filter(has_text="no problems")).to_be_visible()
    expect(catalog.page.get_by_role("link", name=path, exact=True)).to_be_visible()
    assert cluster.server is not None
    cluster.server.send_signal(signal.SIGKILL)
    cluster.server.wait()
    editor.page.get_by_role("textbox", name=re.compile("Source of")).click()
    editor.page.keyboard.press("Control+End")
    editor.page.keyboard.type("\n# changed\n")
    expect(editor.page.get_by_text("not checked: the server is unreachable")).to_be_visible()
    expect(editor.page.get_by_role("button", name="Save")).to_be_disabled()
    expect(editor.page.get_by_text("no problems")).to_have_count(0)
    expect(catalog.page.get_by_text("Server unreachable")).to_be_visible()
    catalog.page.get_by_role("searchbox").fill("trust")  # a first load that fails
    expect(catalog.page.get_by_role("heading", name="Server unreachable")).to_be_visible()
    cluster.start_server()
    began = time.monotonic()
    expect(editor.page.get_by_role("button", name="Save")).to_be_enabled()
    expect(catalog.page.get_by_role("link", name=path, exact=True)).to_be_visible()
    for tab in tabs:
        expect(tab.page.get_by_text("Server unreachable")).to_have_count(0)
    assert time.monotonic() - began < 5


def test_schedules_fit_a_phone(opened: Opened, cluster: Cluster):
    path = registered(cluster, QUIET)
    cluster.ask(
        "POST", "/api/schedules", {"path": path, "cron": "0 6 * * *", "tz": "Europe/Amsterdam", "name": "phone"}
    )
    tab = opened("/operations/schedules", width=390, height=844)
    expect(tab.page.get_by_text("phone", exact=True)).to_be_visible()
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    for label in ("Pause phone", "Delete phone"):
        box = tab.page.get_by_role("button", name=label).bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390
    tab.page.get_by_role("button", name="Add schedule").click()
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    for field in tab.page.get_by_role("dialog").locator("input, select, textarea").all():
        box = field.bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390
