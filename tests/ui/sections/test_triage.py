"""Many executions: causes, filters in the address, history, comparison; the palette, triggers and results as data."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.server.http.serving import Cluster
from tests.ui.browsing import Tab, page_work

Opened = Callable[..., Tab]

JOB = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: triage/job}
workload: {n: 0}
workflow:
- step: start
  tool: {kind: python, code: "result = [{'id': i, 'name': 'item ' + str(9 - i)} for i in range(10)]"}
  next: {arcs: [{step: check}]}
- step: check
  tool:
    kind: python
    input: {n: "{{ workload.n }}"}
    code: |
      if n % 3 == 1: raise ValueError(f'row {n} is wrong')
      if n % 3 == 2: raise KeyError('column missing')
      result = n
"""


@pytest.fixture(scope="module")
def jobs(cluster: Cluster) -> list[str]:
    """Twelve executions: four of each outcome."""
    cluster.ask("POST", "/api/catalog/register", {"content": JOB})
    ids = []
    for n in range(12):
        _, answer = cluster.ask("POST", "/api/execute", {"path": "triage/job", "payload": {"n": n}})
        ids.append(answer["execution_id"])
    for each in ids:
        cluster.finished(each)
    return ids


def test_failures_are_grouped_by_cause_and_the_filter_is_in_the_address(opened: Opened, jobs: list[str]):
    page = opened("/executions?path=triage/job").page
    summary = page.get_by_role("region", name="Summary")
    expect(summary).to_contain_text("12 executions")
    expect(summary).to_contain_text("33.3 % succeeded")
    summary.get_by_text("8 failures, 2 causes").click()
    summary.get_by_role("button", name=re.compile("row … is wrong")).click()
    expect(page).to_have_url(re.compile("error=.*status=failed|status=failed.*error="))
    expect(page.locator("tr[data-id]")).to_have_count(4)
    page.get_by_role("link", name="triage/job").first.click()
    expect(page.get_by_role("tabpanel", name="Failure")).to_be_visible()
    page.go_back()
    expect(page.locator("tr[data-id]")).to_have_count(4)
    page.get_by_role("button", name=re.compile("^error:")).click()
    expect(page.locator("tr[data-id]")).to_have_count(8)


def test_a_bar_of_the_histogram_selects_its_range_and_views_are_saved(opened: Opened, jobs: list[str]):
    page = opened("/executions?path=triage/job").page
    page.get_by_role("group", name="Executions over time").get_by_role("button", disabled=False).first.click()
    expect(page).to_have_url(re.compile(r"range=\d+-\d+"))
    expect(page.locator("tr[data-id]").first).to_be_visible()
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Save this view as").fill("mine")
    page.get_by_role("button", name="Save", exact=True).click()
    saved = page.url
    page.get_by_role("link", name="Executions", exact=True).click()
    page.get_by_role("link", name="mine").click()
    assert page.url == saved


def test_statistics_survive_a_restart(opened: Opened, cluster: Cluster, jobs: list[str]):
    tab = opened("/playbooks/triage/job?tab=runs")
    tab.forgiven = ("ERR_CONNECTION", "Failed to load resource", "ERR_INCOMPLETE", "ERR_EMPTY")
    history = tab.page.get_by_role("region", name="History")
    expect(history).to_contain_text("12 executions")
    assert cluster.server is not None
    cluster.server.kill()
    cluster.server.wait()
    cluster.start_server()
    tab.page.reload()
    expect(history).to_contain_text("12 executions")
    expect(history).to_contain_text("8 failures")
    bars = history.get_by_role("group", name="Last 12 executions").get_by_role("button")
    expect(bars).to_have_count(12)
    bars.last.click()
    expect(tab.page).to_have_url(re.compile(f"/executions/{jobs[-1]}"))


def test_two_executions_are_compared(opened: Opened, jobs: list[str]):
    page = opened(f"/compare/{jobs[0]}/{jobs[1]}").page
    expect(page.get_by_role("region", name="First difference")).to_contain_text("The inputs differ (n)")
    expect(page.get_by_role("region", name="First difference")).to_contain_text("Step check")
    expect(page.get_by_role("region", name="Inputs").get_by_role("row").nth(1)).to_contain_text("n01")
    expect(page.get_by_role("region", name="Steps")).to_contain_text("row 1 is wrong")
    page.get_by_role("link", name="Swap").click()
    expect(page).to_have_url(re.compile(f"/compare/{jobs[1]}/{jobs[0]}"))


def test_5000_executions_are_listed_with_little_work(opened: Opened, cluster: Cluster, jobs: list[str]):
    tab = opened("/playbooks")
    rows = cluster.ask("GET", "/api/executions?path=triage/job&limit=1")[1]["items"]
    many = [{**rows[0], "execution_id": str(10**17 + n)} for n in range(5000)]
    tab.page.route("**/api/executions?*", lambda route: route.fulfill(json={"items": many, "next": None}))
    work = page_work(tab)
    before = work()
    tab.page.get_by_role("link", name="Executions", exact=True).click()
    tab.page.locator("tr[data-id]").first.wait_for()
    assert work() - before < 0.5
    assert tab.page.locator("tr[data-id]").count() < 300
    assert tab.page.evaluate("document.documentElement.scrollHeight") > 100_000
    before = work()
    tab.page.evaluate(
        """async () => {
            for (let at = 1; at <= 10; at++) {
                window.scrollTo(0, (document.documentElement.scrollHeight * at) / 10);
                await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
            }
        }"""
    )
    assert work() - before < 1.0  # ten jumps through the whole list
    assert tab.page.locator("tr[data-id]").count() < 300


def test_the_palette_goes_to_a_playbook_and_shortcuts_are_listed(opened: Opened, jobs: list[str]):
    page = opened("/operations").page
    page.get_by_role("tab", name="Overview").wait_for()
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("triage/j")
    expect(page.get_by_role("option").first).to_contain_text("triage/job")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/playbooks/triage/job"))
    page.get_by_role("tab", name="Versions").click()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Shortcuts")).to_contain_text("Ctrl+K")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("e")
    expect(page).to_have_url(re.compile("/executions$"))


def test_a_result_is_sorted_filtered_profiled_and_exported(opened: Opened, jobs: list[str]):
    page = opened(f"/executions/{jobs[0]}?tab=results&step=start").page
    table = page.get_by_role("region", name="Rows")
    table.get_by_role("button", name="name").click()
    expect(table.get_by_role("row").nth(1)).to_contain_text("item 0")
    page.get_by_label("Filter rows").fill("item 7")
    expect(page.get_by_text("1 rows")).to_be_visible()
    page.get_by_label("Filter rows").fill("")
    page.get_by_role("button", name="Profile").click()
    expect(page.get_by_role("table", name="Profile of the columns")).to_contain_text("4.5")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    assert download.value.path().read_text().splitlines()[:2] == ["id,name", "9,item 0"]


def test_triggers_and_deliveries_are_listed_and_replayed(opened: Opened, cluster: Cluster, jobs: list[str]):
    cluster.ask("POST", "/api/schedules", {"path": "triage/job", "cron": "0 6 * * *", "tz": "UTC", "name": "triage"})
    page = opened("/operations/schedules").page
    page.get_by_role("button", name="Run now triage").click()
    expect(page.get_by_text("Started triage/job")).to_be_visible()
    page.get_by_role("tab", name="Triggers").click()
    row = page.get_by_role("row").filter(has_text="triage")
    expect(row).to_contain_text("1 started")
    row.get_by_role("link", name="1 started").click()
    page.get_by_role("button", name=re.compile("Replay delivery")).first.click()
    expect(page.get_by_role("button", name=re.compile("Replay delivery"))).to_have_count(2)


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_the_pages_have_no_serious_accessibility_violations(opened: Opened, jobs: list[str], width: int, height: int):
    tab = opened("/executions?status=failed", width=width, height=height)
    for path, text in (
        ("/executions?status=failed", "failures, "),
        (f"/compare/{jobs[0]}/{jobs[1]}", "First difference"),
        ("/playbooks/triage/job?tab=runs", "executions"),
        ("/operations/triggers", "Triggers"),
        ("/operations/deliveries", "Deliveries"),
        ("/operations/notifications", "Notifications"),
    ):
        tab.open(path)
        expect(tab.page.get_by_text(text).first).to_be_visible()
        assert tab.violations_in_both_schemes() == [], path
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width, path
