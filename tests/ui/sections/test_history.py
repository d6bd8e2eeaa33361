"""Home and the history of a playbook; the list of executions by trigger, label and duration, sorted by the server."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.server.http.serving import Cluster
from tests.ui.browsing import Tab

Opened = Callable[..., Tab]

JOB = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: history/job, labels: {team: data}}
workload: {wait: 0}
workflow:
- step: start
  tool: {kind: python, input: {wait: "{{ workload.wait }}"}, code: "import time; time.sleep(wait)"}
  next: {arcs: [{step: check}]}
- step: check
  tool: {kind: python, input: {wait: "{{ workload.wait }}"}, code: "assert wait < 1, f'waited {wait} seconds'"}
"""


@pytest.fixture(scope="module")
def jobs(cluster: Cluster) -> list[str]:
    """Six executions: five of a user, the slowest of which fails, and one of a schedule."""
    cluster.ask("POST", "/api/catalog/register", {"content": JOB})
    ids = []
    for wait in (0, 0.4, 0, 1.1, 0):
        request = {"path": "history/job", "payload": {"wait": wait}, "labels": {"wait": f"{wait:g}"}}
        ids.append(cluster.ask("POST", "/api/execute", request)[1]["execution_id"])
    schedule = {"path": "history/job", "cron": "0 6 * * *", "name": "morning", "labels": {"owner": "ops"}}
    assert cluster.ask("POST", "/api/schedules", schedule)[0] == 201
    ids.append(cluster.ask("POST", "/api/schedules/morning/run", {})[1]["execution_id"])
    for each in ids:
        cluster.finished(each)
    return ids


def test_home_shows_days_playbooks_failures_and_next_runs(opened: Opened, jobs: list[str]):
    page = opened("/").page
    expect(page.get_by_role("heading", level=1)).to_have_text("Home")
    playbooks = page.get_by_role("region", name="Playbooks")
    row = playbooks.get_by_role("row").filter(has_text="history/job")
    expect(row).to_contain_text("83.3 %")
    expect(row.get_by_role("group", name="Last 6 executions").get_by_role("button")).to_have_count(6)
    expect(page.get_by_role("region", name="Next runs")).to_contain_text("morning")
    expect(page.get_by_role("region", name="Next runs")).to_contain_text("late")
    days = page.get_by_role("region", name="Executions per day")
    expect(days.get_by_role("button")).to_have_count(7)
    page.get_by_label("Time range").select_option("30 days")
    expect(page).to_have_url(re.compile("days=30"))
    expect(days.get_by_role("button")).to_have_count(30)
    page.get_by_role("region", name="Failures").get_by_role("link").first.click()
    expect(page.get_by_role("tabpanel", name="Failure")).to_contain_text("waited 1.1 seconds")


def test_a_playbook_shows_its_days_and_the_durations_of_its_steps(opened: Opened, jobs: list[str]):
    page = opened("/playbooks/history/job?tab=runs").page
    history = page.get_by_role("region", name="History")
    expect(history).to_contain_text("6 executions in 30 days")
    expect(history).to_contain_text("next run")
    steps = page.get_by_role("region", name="Durations of steps")
    expect(steps.get_by_role("row")).to_have_count(3)
    expect(steps.get_by_role("row").nth(1)).to_contain_text("start")
    expect(steps.get_by_role("img", name=re.compile(r"Durations of start: median .*, longest \d"))).to_be_visible()
    page.get_by_role("region", name="Executions per day").get_by_role("button", disabled=False).last.click()
    expect(page).to_have_url(re.compile(r"range=\d+-\d+&path=history"))
    expect(page.locator("tr[data-id]")).to_have_count(6)


def shown(page: object) -> list[str]:
    return page.locator("tr[data-id]").evaluate_all("rows => rows.map((row) => row.dataset.id)")  # type: ignore[attr-defined]


def test_the_list_is_sorted_by_the_server_and_the_order_is_in_the_address(opened: Opened, jobs: list[str]):
    page = opened("/executions?path=history/job").page
    expect(page.locator("tr[data-id]")).to_have_count(6)
    assert shown(page) == jobs[::-1]
    page.get_by_role("button", name="Duration", exact=True).click()
    expect(page).to_have_url(re.compile("sort=duration"))
    expect(page.get_by_role("columnheader", name="Duration")).to_have_attribute("aria-sort", "descending")
    expect(page.locator("tr[data-id]").first).to_have_attribute("data-id", jobs[3])
    expect(page.locator("tr[data-id]").nth(1)).to_have_attribute("data-id", jobs[1])
    page.get_by_role("button", name="Duration", exact=True).click()
    expect(page.locator("tr[data-id]").last).to_have_attribute("data-id", jobs[3])
    page.reload()
    expect(page.locator("tr[data-id]").last).to_have_attribute("data-id", jobs[3])
    page.locator("tr[data-id] a.name").last.click()
    expect(page).to_have_url(re.compile(jobs[3]))
    page.go_back()
    expect(page.locator("tr[data-id]").last).to_have_attribute("data-id", jobs[3])


def test_the_list_is_filtered_by_trigger_label_and_duration(opened: Opened, cluster: Cluster, jobs: list[str]):
    page = opened("/executions?path=history/job").page
    page.get_by_role("button", name="schedule morning").click()
    expect(page.locator("tr[data-id]")).to_have_count(1)
    expect(page.get_by_role("region", name="Summary")).to_contain_text("1 execution")
    page.get_by_role("button", name="started by schedule morning", exact=False).last.click()
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Started by", exact=True).fill("user")
    page.get_by_label("Started by", exact=True).press("Enter")
    expect(page.locator("tr[data-id]")).to_have_count(5)
    rows = cluster.ask("GET", "/api/executions?path=history/job&trigger=user")[1]["items"]
    taken = sorted(each["duration_ms"] / 1000 for each in rows)
    page.get_by_label("Took at least (seconds)").fill(str((taken[1] + taken[2]) / 2))
    page.get_by_label("Took at least (seconds)").press("Enter")
    expect(page.locator("tr[data-id]")).to_have_count(3)
    page.get_by_label("Took at most (seconds)").fill(str((taken[3] + taken[4]) / 2))
    page.get_by_label("Took at most (seconds)").press("Enter")
    expect(page.locator("tr[data-id]")).to_have_count(2)
    page.goto(page.url.split("?")[0] + "?label=owner=ops,team=data")
    expect(page.locator("tr[data-id]")).to_have_count(1)
    page.goto(page.url.split("?")[0] + "?path=history/job")
    page.get_by_role("button", name="wait=0.4").click()
    expect(page.locator("tr[data-id]")).to_have_count(1)


def test_an_action_applies_to_all_matches(opened: Opened, cluster: Cluster, jobs: list[str]):
    page = opened("/executions?path=history/job&status=success").page
    before = cluster.ask("GET", "/api/executions/statistics?path=history/job")[1]["total"]
    page.get_by_label("Select all shown").check()
    page.get_by_role("region", name="Selected executions").get_by_role("button", name="Rerun 5").click()
    page.get_by_role("dialog").get_by_role("button", name="Rerun", exact=True).click()
    expect(page.get_by_text("Rerun: 5")).to_be_visible()
    assert cluster.ask("GET", "/api/executions/statistics?path=history/job")[1]["total"] == before + 5
    reruns = cluster.ask("GET", "/api/executions?path=history/job&trigger=rerun")[1]["items"]
    assert len(reruns) == 5


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_home_has_no_serious_accessibility_violations(
    opened: Opened, jobs: list[str], dark: bool, width: int, height: int
):
    tab = opened("/", dark=dark, width=width, height=height)
    expect(tab.page.get_by_role("region", name="Playbooks")).to_contain_text("history/job")
    assert tab.serious_violations() == []
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
