"""From "it failed" to its cause, its input and its rerun: the failure cockpit, logs, tasks and iterations."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.server.http.serving import Cluster
from tests.ui.browsing import Tab, page_work

Opened = Callable[..., Tab]

NIGHTLY = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: cockpit/nightly}
workload:
  limit: 5     # rows that are accepted
  api_token: tok-12345678
workflow:
- step: start
  tool: {kind: python, code: "print('listing'); result = list(range(8))"}
  next: {arcs: [{step: load}]}
- step: load
  loop: {in: "{{ start.data }}", iterator: row}
  tool:
  - name: put
    kind: python
    input: {row: "{{ iter.row }}", limit: "{{ workload.limit }}", token: "{{ workload.api_token }}"}
    code: |
      import sys
      print('row', row)
      if row >= limit:
          print('ERROR: too large', file=sys.stderr)
          raise ValueError(f'row {row} is above {limit}')
      result = row
"""

PRINTING = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: cockpit/printing}
workload: {lines: 10, release: /nowhere}
workflow:
- step: start
  tool:
  - name: many
    kind: python
    input: {n: "{{ workload.lines }}"}
    code: |
      import sys
      for i in range(n):
          print('line', i, '<b>bold</b>')
      print('\\x1b[31mred\\x1b[0m WARNING: odd', file=sys.stderr)
  - name: wait
    kind: shell
    command: 'echo waiting; while [ ! -e "{{ workload.release }}" ]; do sleep 0.05; done; echo released'
"""


def registered(cluster: Cluster, text: str) -> str:
    status, answer = cluster.ask("POST", "/api/catalog/register", {"content": text})
    assert status == 201, answer
    return answer["path"]


def started(cluster: Cluster, path: str, **payload: object) -> str:
    status, answer = cluster.ask("POST", "/api/execute", {"path": path, "payload": payload})
    assert status == 202, answer
    return answer["execution_id"]


@pytest.fixture(scope="module")
def nightly(cluster: Cluster) -> tuple[str, str]:
    """A success and, after it, a failure."""
    path = registered(cluster, NIGHTLY)
    good = started(cluster, path, limit=100)
    cluster.finished(good)
    bad = started(cluster, path)
    cluster.finished(bad)
    return good, bad


class Clicks:
    """Counts the clicks of a task."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.count = 0
        page.expose_function("countClick", self._add)
        page.evaluate("document.addEventListener('click', (event) => event.isTrusted && countClick(), true)")

    def _add(self) -> None:
        self.count += 1


def test_the_cause_of_a_failure_takes_at_most_two_clicks(opened: Opened, nightly):
    page = opened("/executions").page
    clicks = Clicks(page)
    began = time.monotonic()
    page.get_by_role("row").filter(has_text="row 5 is above 5").get_by_role("link").first.click()
    failure = page.get_by_role("tabpanel", name="Failure")
    expect(failure).to_contain_text("row 5 is above 5")
    expect(failure).to_contain_text("Python code raised an exception")
    assert clicks.count <= 2
    assert time.monotonic() - began < 10


def test_the_failure_shows_input_item_lines_source_and_the_last_success(opened: Opened, nightly):
    good, bad = nightly
    page = opened(f"/executions/{bad}").page
    failure = page.get_by_role("tabpanel", name="Failure")
    expect(failure).to_contain_text("step load, task put, iteration 5")
    expect(failure).to_contain_text("row: 5")
    expect(failure).to_contain_text("token: ***")
    expect(failure).to_contain_text("ERROR: too large")
    expect(failure.locator(".source-line.at")).to_contain_text("raise ValueError")
    expect(failure.get_by_role("link", name="Compare")).to_have_attribute("href", re.compile(f"/compare/{good}/{bad}"))
    assert "tok-12345678" not in page.content()
    failure.get_by_role("link", name=re.compile("Edit playbook at line")).click()
    expect(page.locator(".cm-activeLine")).to_contain_text("raise ValueError")


def test_a_failed_iteration_with_its_input_takes_at_most_three_clicks(opened: Opened, nightly):
    page = opened("/executions").page
    clicks = Clicks(page)
    page.get_by_role("row").filter(has_text="row 5 is above 5").get_by_role("link").first.click()
    page.get_by_role("tab", name="Iterations").click()
    page.get_by_role("row").filter(has_text="row 5 is above 5").click()
    opened_task = page.get_by_role("region", name="Task put")
    expect(opened_task).to_contain_text("row: 5")
    assert clicks.count <= 3
    opened_task.get_by_role("tab", name="Logs").click()
    expect(opened_task).to_contain_text("ERROR: too large")
    opened_task.get_by_role("tab", name="Output").click()
    expect(opened_task).to_contain_text("row 5 is above 5")


def test_a_rerun_from_the_failed_step_with_a_changed_value_takes_at_most_five_clicks(
    opened: Opened, cluster: Cluster, nightly
):
    _, bad = nightly
    page = opened("/executions").page
    clicks = Clicks(page)
    page.get_by_role("row").filter(has_text="row 5 is above 5").get_by_role("link").first.click()
    page.get_by_role("button", name="Fix and rerun from here").click()
    dialog = page.get_by_role("dialog", name="Rerun execution")
    expect(dialog).to_contain_text("Results of start are kept.")
    expect(dialog.get_by_label("limit")).to_have_value("5")
    dialog.get_by_label("limit").fill("50")
    dialog.get_by_role("button", name="Rerun from load").click()
    page.wait_for_url(lambda url: "/executions/" in url and bad not in url)
    assert clicks.count <= 5
    new = page.url.rsplit("/", 1)[1].partition("?")[0]
    document = cluster.finished(new)
    assert document["status"] == "success"
    assert [row["step"] for row in document["steps"] if row["runs"]] == ["load"]
    _, state = cluster.ask("GET", f"/api/executions/{new}/state")
    assert state["workload"]["limit"] == 50


def test_a_newer_version_can_be_chosen_for_a_rerun_with_its_changes(opened: Opened, cluster: Cluster, nightly):
    text = NIGHTLY.replace("cockpit/nightly", "cockpit/changed")
    bad = started(cluster, registered(cluster, text))
    cluster.finished(bad)
    registered(cluster, text.replace("row >= limit", "row >= limit + 100"))
    page = opened(f"/executions/{bad}").page
    page.get_by_role("button", name="Fix and rerun from here").click()
    dialog = page.get_by_role("dialog", name="Rerun execution")
    expect(dialog).to_contain_text("The playbook has changed since.")
    dialog.get_by_label("Version").select_option("newest")
    expect(dialog.get_by_label("Changed lines")).to_contain_text("row >= limit + 100")
    dialog.get_by_role("button", name="Rerun from load").click()
    page.wait_for_url(lambda url: "/executions/" in url and bad not in url)
    new = page.url.rsplit("/", 1)[1].partition("?")[0]
    assert cluster.finished(new)["status"] == "success"
    assert cluster.ask("GET", f"/api/executions/{new}")[1]["version"] == "2"


def test_logs_are_live_searched_filtered_and_downloaded(opened: Opened, cluster: Cluster, tmp_path):
    release = tmp_path / "go"
    execution = started(cluster, registered(cluster, PRINTING), release=str(release))
    page = opened(f"/executions/{execution}?tab=logs").page
    lines = page.get_by_role("log")
    expect(lines).to_contain_text("waiting")
    expect(page.get_by_role("button", name="Follow")).to_have_attribute("aria-pressed", "true")
    release.touch()
    expect(lines).to_contain_text("released")
    expect(lines).to_contain_text("line 3 <b>bold</b>")
    expect(lines.locator(".ansi-red")).to_have_text("red")
    page.get_by_label("Search lines").fill("line 7")
    expect(page.get_by_text("1 of 13 lines")).to_be_visible()
    expect(lines.locator("mark")).to_have_text("line 7")
    page.get_by_label("Search lines").fill("")
    page.get_by_label("Stream").select_option("stderr")
    expect(page.get_by_text("1 of 13 lines")).to_be_visible()
    page.get_by_label("Stream").select_option("")
    page.get_by_label("Level").select_option("warning")
    expect(page.get_by_text("0 of 13 lines")).to_be_visible()  # the level is not at the start of the line
    page.get_by_label("Level").select_option("")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    text = download.value.path().read_text()
    assert len(text.splitlines()) == 13 and "released" in text


def test_100_000_lines_stay_fluid(opened: Opened, cluster: Cluster):
    execution = started(cluster, registered(cluster, PRINTING), lines=100_000, release="/dev/null")
    cluster.finished(execution)
    tab = opened(f"/executions/{execution}?tab=logs")
    page = tab.page
    expect(page.get_by_text(re.compile(r"100,003 of 100,003 lines"))).to_be_visible(timeout=60_000)
    frame = page.get_by_role("log")
    assert page.locator(".log-line").count() < 200
    work = page_work(tab)
    before = work()
    page.evaluate(
        """async () => {
            const frame = document.querySelector(".log-frame");
            for (let at = 1; at <= 40; at++) {
                frame.scrollTop = (frame.scrollHeight * at) / 40;
                await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
            }
        }"""
    )
    assert (work() - before) / 40 < 0.25  # CPU seconds per frame, whatever else the machine does
    expect(frame).to_contain_text("released")
    began = time.monotonic()
    page.get_by_label("Search lines").fill("line 99999")
    expect(page.get_by_text("1 of 100,003 lines")).to_be_visible()
    assert time.monotonic() - began < 3


def test_tasks_are_sorted_and_filtered(opened: Opened, nightly):
    _, bad = nightly
    page = opened(f"/executions/{bad}?tab=tasks").page
    grid = page.get_by_role("grid", name="Tasks")
    expect(grid).to_have_attribute("aria-rowcount", "8")
    grid.get_by_role("button", name="Iteration").click()
    grid.get_by_role("button", name="Iteration").click()
    expect(grid.get_by_role("row").nth(1)).to_contain_text("row 5 is above 5")
    page.get_by_label("failed only").check()
    expect(grid).to_have_attribute("aria-rowcount", "2")
    grid.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Task put")).to_contain_text("row: 5")


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_the_views_have_no_serious_accessibility_violations(opened: Opened, nightly, width: int, height: int):
    _, bad = nightly
    tab = opened(f"/executions/{bad}", width=width, height=height)
    expect(tab.page.get_by_role("tabpanel", name="Failure")).to_contain_text("ERROR: too large")
    assert tab.violations_in_both_schemes() == []
    for name in ("Logs", "Tasks", "Iterations"):
        tab.page.get_by_role("tab", name=name).click()
        tab.page.locator(".vt-row, .log-line").first.wait_for()
        assert tab.violations_in_both_schemes() == [], name
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    tab.page.get_by_role("button", name="Rerun", exact=True).click()
    expect(tab.page.get_by_role("dialog").get_by_label("limit")).to_be_visible()
    assert tab.violations_in_both_schemes() == []
