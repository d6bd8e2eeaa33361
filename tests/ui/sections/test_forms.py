"""What the command line can do, on the page: schedules, backfills, triggers, webhooks, notifications, schemas, state, tokens."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

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


def test_every_kind_of_trigger_has_its_form(opened: Opened, cluster: Cluster, tmp_path: Path):
    page = opened("/operations/triggers").page
    for kind, fields, stored in (
        ("event", {"Event": "order_*", "Of playbook": "shop/*"}, {"event": "order_*", "of": "shop/*"}),
        (
            "object",
            {"Address": str(tmp_path), "Names": "*.csv", "List every": "1m", "Files: unchanged for": "5s"},
            {"glob": "*.csv", "poll": 60.0, "settle": 5.0, "changed": True, "existing": False},
        ),
        (
            "nats",
            {"Server": "nats://127.0.0.1:9", "Subject": "orders", "Stream": "ORDERS", "Durable consumer": "import"},
            {"subject": "orders", "stream": "ORDERS", "consumer": "import", "start": "new"},
        ),
    ):
        page.get_by_role("button", name="Add trigger").click()
        dialog = page.get_by_role("dialog", name="Add trigger")
        dialog.get_by_label("Starts on").select_option(kind)
        dialog.get_by_label(re.compile("^Playbook")).fill("forms/job")
        for label, value in fields.items():
            dialog.get_by_label(re.compile(f"^{label}")).fill(value)
        dialog.get_by_label("Concurrent executions").fill("3")
        dialog.get_by_label("Labels").fill("team=data")
        dialog.get_by_role("button", name="Save").click()
        expect(dialog).to_have_count(0)
        known = cluster.ask("GET", f"/api/triggers/{kind}/forms-job")[1]  # the default name comes from the path
        assert {key: known[key] for key in stored} == stored
        assert (known["concurrency"], known["labels"]) == (3, {"team": "data"})
        assert cluster.ask("DELETE", f"/api/triggers/{kind}/forms-job")[0] == 204


def test_editing_a_trigger_keeps_what_its_form_does_not_change(opened: Opened, cluster: Cluster):
    definition = {
        "path": "forms/job",
        "of": "reports/*",
        "overlap": "queue",
        "concurrency": 4,
        "paused": True,
        "labels": {"a": "b"},
    }
    assert cluster.ask("PUT", "/api/triggers/execution/kept", definition)[0] == 200
    page = opened("/operations/triggers").page
    page.get_by_role("button", name="Add trigger").click()
    dialog = page.get_by_role("dialog", name="Add trigger")
    dialog.get_by_label("Name", exact=False).first.fill("kept")
    dialog.get_by_label(re.compile("^Playbook")).fill("forms/job")
    dialog.get_by_label("Of playbook").fill("other/*")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("There is already a trigger kept")
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Edit kept").click()
    dialog = page.get_by_role("dialog", name="Edit kept")
    dialog.get_by_label("Of playbook").fill("sales/*")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    known = cluster.ask("GET", "/api/triggers/execution/kept")[1]
    assert {key: known[key] for key in definition} == {**definition, "of": "sales/*"}
    cluster.ask("DELETE", "/api/triggers/execution/kept")


def test_a_webhook_is_edited(opened: Opened, cluster: Cluster):
    _, added = cluster.ask("POST", "/api/webhooks", {"path": "forms/job", "name": "edited", "payload": {"n": 1}})
    page = opened("/operations/triggers").page
    page.get_by_role("button", name="Edit edited").click()  # the same form as on the page of webhooks
    expect(page.get_by_role("dialog", name="Edit edited").get_by_label("Greatest age of a signature")).to_have_value(
        "300s"
    )
    page.goto(f"{cluster.url}/operations/webhooks")
    page.get_by_role("button", name="Edit edited").click()
    dialog = page.get_by_role("dialog", name="Edit edited")
    dialog.get_by_label("Greatest age of a signature").fill("2m")
    dialog.get_by_label("Respond").select_option("with the output of the execution")
    dialog.get_by_label("Wait for the output").fill("20s")
    dialog.get_by_label("Headers for the playbook").fill("X-Shop, X-Kind")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("dialog")).to_have_count(0)  # no new secret: the senders keep theirs
    known = cluster.ask("GET", "/api/webhooks/edited")[1]
    changed = {"window": 120.0, "respond": "result", "wait": 20.0, "headers": ["X-Shop", "X-Kind"], "payload": {"n": 1}}
    assert {key: known[key] for key in changed} == changed
    assert known["credential"] == added["credential"]
    cluster.ask("DELETE", "/api/webhooks/edited")


def test_a_delivery_shows_what_was_received_and_is_replayed(opened: Opened, cluster: Cluster):
    schedule = {"path": "forms/job", "cron": "0 6 * * *", "name": "shown", "tz": "UTC", "payload": {"n": 7}}
    assert cluster.ask("POST", "/api/schedules", schedule)[0] == 201
    page = opened("/operations/schedules").page
    page.get_by_role("button", name="Run now shown").click()
    expect(page.get_by_text("Started forms/job")).to_be_visible()
    page.goto(f"{cluster.url}/operations/deliveries?name=shown")
    row = page.get_by_role("row").filter(has_text="schedule")
    expect(row).to_contain_text("started")
    row.get_by_role("button", name=re.compile("^Show delivery")).click()
    expect(page.locator("tr.detail")).to_contain_text("n: 7")
    row.get_by_role("button", name=re.compile("^Replay")).click()
    expect(page.locator("tbody tr:not(.detail)")).to_have_count(2)


STATEFUL = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: forms/stateful}
workflow:
- step: start
  tool: {name: keep, kind: noop, set: {state.cursor: "2026-11-01", state.api_token: "tok-12345678", state.pages: {orders: 3}}}
"""


def test_state_is_shown_set_and_reset(opened: Opened, cluster: Cluster):
    tab = opened("/operations/state")
    page = tab.page
    expect(page.get_by_role("heading", name="No state yet")).to_be_visible()
    assert tab.serious_violations() == []
    page.get_by_role("button", name="Set value").click()
    dialog = page.get_by_role("dialog", name="Set state")
    dialog.get_by_label("Key").fill("cursor")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_have_text("Enter the path of a playbook.")
    dialog.get_by_label("Playbook").fill("forms/job")
    dialog.get_by_label(re.compile("^Value")).fill("{a: 1")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Value: ")
    dialog.get_by_label(re.compile("^Value")).fill("{a: 1}")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_label("State of forms/job", exact=True)).to_contain_text("a: 1")
    assert cluster.ask("GET", "/api/state/forms/job")[1]["entries"][0]["value"] == {"a": 1}

    _, started = cluster.ask("POST", "/api/execute", {"content": STATEFUL})
    cluster.finished(started["execution_id"])
    page.reload()
    page.get_by_role("button", name="Show state of forms/stateful").click()
    entries = page.get_by_label("State of forms/stateful", exact=True)
    expect(entries).to_contain_text("2026-11-01")
    expect(entries.get_by_role("link", name=started["execution_id"]).first).to_be_visible()
    assert "tok-12345678" not in page.content()  # hidden because of its name
    assert tab.serious_violations() == []
    page.get_by_role("button", name="Set pages of forms/stateful", exact=True).click()
    dialog = page.get_by_role("dialog", name="Set state of forms/stateful")
    expect(dialog.get_by_label("Key")).to_be_disabled()
    dialog.get_by_label(re.compile("^Value")).fill("{orders: 9}")
    dialog.get_by_role("button", name="Save").click()
    expect(entries).to_contain_text("orders: 9")
    page.get_by_role("button", name="Reset cursor of forms/stateful").click()
    page.get_by_role("dialog").get_by_role("button", name="Reset").click()
    expect(entries).not_to_contain_text("cursor")
    page.get_by_role("button", name="Reset state of forms/stateful").click()
    page.get_by_role("dialog").get_by_role("button", name="Reset").click()
    expect(page.get_by_role("link", name="forms/stateful")).to_have_count(0)
    assert cluster.ask("GET", "/api/state/forms/stateful")[1]["entries"] == []


def test_state_of_many_keys_and_long_values_is_a_list(opened: Opened, cluster: Cluster):
    values = {"a": 1, "b": "x" * 20_000, "c": {"list": list(range(300))}, "long " * 30: True}
    assert cluster.ask("PATCH", "/api/state/forms/many", {"values": values})[0] == 200
    page = opened("/operations/state").page
    page.get_by_role("button", name="Show state of forms/many").click()
    rows = page.get_by_label("State of forms/many", exact=True).locator("> div")
    expect(rows).to_have_count(4)
    boxes = [rows.nth(number).bounding_box() for number in range(4)]
    assert all(box is not None and box["height"] < 360 for box in boxes)
    assert all(above["y"] + above["height"] <= below["y"] for above, below in itertools.pairwise(boxes))
    for number in range(4):
        parts = [part.bounding_box() for part in rows.nth(number).locator("> *").all()]
        assert all(left["x"] + left["width"] <= right["x"] for left, right in itertools.pairwise(parts))


def test_a_value_that_another_user_has_changed_is_not_replaced(opened: Opened, cluster: Cluster):
    cluster.ask("PATCH", "/api/state/forms/shared", {"values": {"cursor": 1}})
    tab = opened("/operations/state")
    tab.forgiven = ("409",)
    page = tab.page
    page.get_by_role("button", name="Show state of forms/shared").click()
    page.get_by_role("button", name="Set cursor of forms/shared", exact=True).click()
    cluster.ask("PATCH", "/api/state/forms/shared", {"values": {"cursor": 2}})
    dialog = page.get_by_role("dialog", name="Set state of forms/shared")
    dialog.get_by_label(re.compile("^Value")).fill("3")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("was changed")
    assert cluster.ask("GET", "/api/state/forms/shared")[1]["entries"][0]["value"] == 2


@pytest.mark.parametrize("value", ["007", "20260101", "true", "2026-01-01T10:00:00Z", "a: b", "plain text", " padded "])
def test_a_text_that_is_saved_again_is_the_same(opened: Opened, cluster: Cluster, value: str):
    cluster.ask("PATCH", "/api/state/forms/text", {"values": {"cursor": value}})
    before = cluster.ask("GET", "/api/state/forms/text")[1]["entries"][0]["version"]
    page = opened("/operations/state").page
    page.get_by_role("button", name="Show state of forms/text").click()
    page.get_by_role("button", name="Set cursor of forms/text", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    (entry,) = cluster.ask("GET", "/api/state/forms/text")[1]["entries"]
    assert entry["value"] == value and entry["version"] != before


def test_an_execution_is_forked_from_the_shown_event(opened: Opened, cluster: Cluster):
    text = JOB.replace("forms/job", "forms/fork") + "  next: {arcs: [{step: end}]}\n- step: end\n  tool: {kind: noop}\n"
    _, started = cluster.ask("POST", "/api/execute", {"content": text, "payload": {"n": 4}})
    id = started["execution_id"]
    cluster.finished(id)
    events = cluster.ask("GET", f"/api/executions/{id}/events?limit=1000")[1]["items"]
    at = next(each["seq"] for each in events if each["name"] == "step.done")
    page = opened(f"/executions/{id}").page
    expect(page.get_by_role("button", name="Rerun")).to_be_visible()
    expect(page.get_by_role("button", name="Fork")).to_have_count(0)
    page.get_by_label("Position in the log").fill(str(at))
    page.get_by_role("button", name="Fork").click()
    dialog = page.get_by_role("dialog", name=f"Fork from event {at}")
    expect(dialog.get_by_label("n", exact=True)).to_have_value("4")
    expect(dialog).to_contain_text("Results of start are kept.")
    dialog.get_by_label("n", exact=True).fill("5")
    dialog.get_by_role("button", name="Fork").click()
    page.wait_for_url(lambda url: "/executions/" in url and id not in url)
    forked = page.url.split("/executions/")[1].split("?")[0]
    cluster.finished(forked)
    state = cluster.ask("GET", f"/api/executions/{forked}/state")[1]
    assert (state["status"], state["workload"]["n"]) == ("success", 5)


def test_an_execution_is_started_with_labels(opened: Opened, cluster: Cluster):
    page = opened("/playbooks/forms/job").page
    page.get_by_role("button", name=re.compile("^Run")).first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Labels", exact=True).click()
    dialog.get_by_label("Labels").fill("team")
    expect(dialog.get_by_text("team is not NAME=VALUE.")).to_be_visible()
    dialog.get_by_label("Labels").fill("team=data, owner=ada")
    dialog.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_url("**/executions/*")
    started = cluster.ask("GET", f"/api/executions/{page.url.rsplit('/', 1)[1].split('?')[0]}")[1]
    assert started["labels"] == ["owner=ada", "team=data"]


def test_a_notification_rule_is_added_and_edited(opened: Opened, cluster: Cluster):
    cluster.ask("PUT", "/api/credentials/hook", {"type": "generic", "data": {"url": "https://example.com/hook"}})
    page = opened("/operations/notifications").page
    page.get_by_role("button", name="Add notification rule").click()
    dialog = page.get_by_role("dialog", name="Add notification rule")
    dialog.get_by_label("Name", exact=True).fill("night")
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
    page.get_by_role("button", name="Log of night").click()
    expect(page.get_by_text("No message yet.")).to_be_visible()


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
    row = page.get_by_role("row").filter(has_text="forms/orders").first
    expect(row).to_contain_text("v2")
    row.get_by_role("button", name="Show forms/orders").click()
    expect(page.locator("tr.detail")).to_contain_text('"string"')
    page.get_by_role("group", name="Versions of forms/orders").get_by_role("button", name="v1").click()
    expect(page.locator("tr.detail")).to_contain_text('"integer"')


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


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_the_pages_have_no_serious_accessibility_violations(opened: Opened, cluster: Cluster, width: int, height: int):
    schedule = {"path": "forms/job", "cron": "*/10 * * * *", "name": f"often-{width}", "tz": "UTC"}
    cluster.ask("POST", "/api/schedules", schedule)
    tab = opened("/operations/schedules", width=width, height=height)
    for path, text in (
        ("/operations/schedules?view=calendar", "often"),
        (f"/operations/schedules?edit={schedule['name']}", "Catch-up"),
        ("/operations/backfills?path=forms/job", "Start backfill"),
        ("/operations/tokens", "Create token"),
        ("/operations/schemas", "Schemas"),
    ):
        tab.open(path)
        expect(tab.page.get_by_text(text).first).to_be_visible()
        assert tab.violations_in_both_schemes() == [], path
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width, path
