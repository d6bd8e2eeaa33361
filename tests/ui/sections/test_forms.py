"""What the command line can do, on the page: schedules, backfills, triggers, notifications, schemas, tokens."""

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
metadata: {name: forms/job}
workload: {n: 0, slot: null}
workflow:
- step: start
  tool: {kind: noop}
"""


@pytest.fixture(scope="module", autouse=True)
def registered(cluster: Cluster) -> None:
    assert cluster.ask("POST", "/api/catalog/register", {"content": JOB})[0] == 201


def test_a_schedule_is_edited_and_shown_in_the_calendar(opened: Opened, cluster: Cluster):
    schedule = {
        "path": "forms/job",
        "cron": "0 6 * * *",
        "name": "early",
        "tz": "Europe/Amsterdam",
        "payload": {"n": 3},
    }
    assert cluster.ask("POST", "/api/schedules", schedule)[0] == 201
    page = opened("/operations/schedules").page
    page.get_by_role("button", name="Edit early").click()
    dialog = page.get_by_role("dialog", name="Edit early")
    expect(dialog.get_by_label("Name")).to_be_disabled()
    expect(dialog.get_by_label(re.compile("Payload"))).to_have_value(re.compile('"n": 3'))
    dialog.get_by_label("Cron expression").fill("30 7 * * *")
    dialog.get_by_label(re.compile("^Deadline")).fill("2h")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("row").filter(has_text="early")).to_contain_text("30 7 * * *")
    changed = cluster.ask("GET", "/api/schedules/early")[1]
    assert (changed["cron"], changed["deadline"], changed["payload"]) == ("30 7 * * *", 7200.0, {"n": 3})
    page.get_by_role("button", name="calendar").click()
    expect(page).to_have_url(re.compile("view=calendar"))
    entries = page.get_by_role("list", name="Next runs by day").get_by_role("button", name="early")
    expect(entries.first).to_contain_text("07:30")
    assert entries.count() > 14
    entries.first.click()
    expect(page.get_by_role("dialog", name="Edit early")).to_be_visible()


def test_a_backfill_is_started_from_a_schedule_and_its_progress_shown(opened: Opened, cluster: Cluster):
    schedule = {"path": "forms/job", "cron": "0 6 * * *", "name": "daily", "tz": "UTC"}
    assert cluster.ask("POST", "/api/schedules", schedule)[0] == 201
    page = opened("/operations/schedules").page
    page.get_by_role("row").filter(has_text="daily").get_by_role("button", name="Backfill forms/job").click()
    dialog = page.get_by_role("dialog", name="Start backfill")
    expect(dialog.get_by_label("Playbook")).to_have_value("forms/job")
    dialog.get_by_label("From").fill("2026-10-01")
    dialog.get_by_label(re.compile("^To ")).fill("2026-10-04")
    dialog.get_by_role("button", name="Start").click()
    row = page.get_by_role("row").filter(has_text="forms/job")
    expect(row).to_contain_text("3 of 3")
    expect(row).to_contain_text("success")
    row.get_by_role("link", name="3 of 3").click()
    expect(page.locator("tr[data-id]")).to_have_count(3)


def test_a_trigger_is_added_edited_and_deleted(opened: Opened, cluster: Cluster):
    page = opened("/operations/triggers").page
    page.get_by_role("button", name="Add trigger").click()
    dialog = page.get_by_role("dialog", name="Add trigger")
    dialog.get_by_label("Name").fill("after-reports")
    dialog.get_by_label("Playbook", exact=False).first.fill("forms/job")
    dialog.get_by_label(re.compile("Of playbook")).fill("reports/*")
    dialog.get_by_label(re.compile("^Status")).fill("success, failed")
    dialog.get_by_role("button", name="Save").click()
    row = page.get_by_role("row").filter(has_text="after-reports")
    expect(row).to_contain_text("execution")
    known = cluster.ask("GET", "/api/triggers/execution/after-reports")[1]
    assert (known["of"], known["status"]) == ("reports/*", ["success", "failed"])
    page.get_by_role("button", name="Edit after-reports").click()
    dialog = page.get_by_role("dialog", name="Edit after-reports")
    expect(dialog.get_by_label(re.compile("Of playbook"))).to_have_value("reports/*")
    dialog.get_by_label(re.compile("Of playbook")).fill("")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Of playbook")
    dialog.get_by_label(re.compile("Of playbook")).fill("sales/*")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    assert cluster.ask("GET", "/api/triggers/execution/after-reports")[1]["of"] == "sales/*"
    page.get_by_role("button", name="Delete after-reports").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)


def test_a_notification_rule_is_added_and_edited(opened: Opened, cluster: Cluster):
    cluster.ask("PUT", "/api/credentials/hook", {"type": "generic", "data": {"url": "https://example.com/hook"}})
    page = opened("/operations/notifications").page
    page.get_by_role("button", name="Add notification rule").click()
    dialog = page.get_by_role("dialog", name="Add notification rule")
    dialog.get_by_label("Name").fill("night")
    dialog.get_by_label("an execution waits for an answer").check()
    dialog.get_by_label("Channel").select_option("Slack (webhook)")
    dialog.get_by_label(re.compile("^Credential")).fill("hook")
    dialog.get_by_label(re.compile("^Playbooks")).fill("reports/*, sales/*")
    dialog.get_by_role("button", name="Save").click()
    row = page.get_by_role("row").filter(has_text="night")
    expect(row).to_contain_text("failed, waiting")
    expect(row).to_contain_text("reports/*, sales/*")
    page.get_by_role("button", name="Edit night").click()
    dialog = page.get_by_role("dialog", name="Edit night")
    dialog.get_by_label("an execution fails").uncheck()
    dialog.get_by_role("button", name="Save").click()
    expect(row.get_by_role("cell").nth(1)).to_have_text("waiting")


def test_a_schema_is_registered_with_a_new_version(opened: Opened, cluster: Cluster):
    tab = opened("/operations/schemas")
    tab.forgiven = ("400", "409")
    page = tab.page
    page.get_by_role("button", name="Register schema").click()
    dialog = page.get_by_role("dialog", name="Register schema")
    dialog.get_by_label("Name").fill("forms/orders")
    dialog.get_by_label(re.compile("JSON Schema")).fill("type: object\nproperties: {id: {type: integer}}")
    dialog.get_by_role("button", name="Register").click()
    expect(page.get_by_role("row").filter(has_text="forms/orders")).to_contain_text("v1")
    page.get_by_role("button", name="New version of forms/orders").click()
    dialog = page.get_by_role("dialog", name="New version of forms/orders")
    dialog.get_by_label(re.compile("JSON Schema")).fill("type: object\nproperties: {id: {type: string}}")
    dialog.get_by_role("button", name="Register").click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    dialog.get_by_label("Compatibility").select_option("not checked")
    dialog.get_by_role("button", name="Register").click()
    expect(page.get_by_role("row").filter(has_text="forms/orders")).to_contain_text("v2")


def test_a_token_is_created_shown_once_and_revoked(opened: Opened, new_tab: Callable[..., Tab], cluster: Cluster):
    tab = opened("/operations/tokens")
    tab.forgiven = ("409",)
    page = tab.page
    page.get_by_role("button", name="Create token").click()
    dialog = page.get_by_role("dialog", name="Create token")
    dialog.get_by_label(re.compile("^Name")).fill("vera")
    dialog.get_by_role("button", name="Create", exact=True).click()
    shown = page.get_by_role("dialog", name="Token vera")
    text = shown.get_by_label("Token", exact=True).text_content()
    assert text is not None and cluster.ask("GET", "/api/session", token=text.strip())[1]["role"] == "viewer"
    shown.get_by_role("button", name="Close").first.click()
    expect(page.get_by_text(text.strip())).to_have_count(0)
    page.get_by_role("button", name="Revoke vera").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("row").filter(has_text="vera")).to_have_count(0)
    page.get_by_role("button", name="Revoke admin").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(page.get_by_text("is the only admin token")).to_be_visible()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_the_pages_have_no_serious_accessibility_violations(
    opened: Opened, cluster: Cluster, dark: bool, width: int, height: int
):
    schedule = {"path": "forms/job", "cron": "*/10 * * * *", "name": f"often-{dark}-{width}".lower(), "tz": "UTC"}
    cluster.ask("POST", "/api/schedules", schedule)
    tab = opened("/operations/schedules", dark=dark, width=width, height=height)
    for path, text in (
        ("/operations/schedules?view=calendar", "often"),
        (f"/operations/schedules?edit={schedule['name']}", "Catch-up"),
        ("/operations/backfills?path=forms/job", "Start backfill"),
        ("/operations/tokens", "Create token"),
        ("/operations/schemas", "Schemas"),
    ):
        tab.open(path)
        expect(tab.page.get_by_text(text).first).to_be_visible()
        assert tab.serious_violations() == [], path
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width, path
