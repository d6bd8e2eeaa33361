"""The pages of operations in a real browser: health, charts, workers, limits, schedules, credentials."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from noetl.server.http.access import Tokens
from tests.server.http.serving import Cluster
from tests.ui.browsing import Tab

Opened = Callable[..., Tab]

NOOP = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: ticked, path: tests/ticked}
workflow:
  - step: start
    tool: {kind: noop}
"""

LONG = NOOP.replace("ticked", "long").replace("{kind: noop}", "{kind: python, code: 'import time; time.sleep(60)'}")
NOBODY = NOOP.replace("ticked", "nobody") + "    spec: {pool: gpu}\n"


@pytest.fixture(autouse=True)
def empty_rooms(cluster: Cluster) -> Iterator[None]:
    """Removes what a test leaves behind."""
    yield
    for kind in ("limits", "schedules", "webhooks", "credentials"):
        for left in cluster.ask("GET", f"/api/{kind}")[1]["items"]:
            name = f"{left['subject']}/{left['name']}" if kind == "limits" else left["name"]
            assert cluster.ask("DELETE", f"/api/{kind}/{name}")[0] == 204


def test_the_overview_shows_health_and_missing_workers(opened: Opened, cluster: Cluster):
    tab = opened("/operations")
    page = tab.page
    expect(page.get_by_label("Health")).to_contain_text("Healthy")
    expect(page.get_by_role("img", name=re.compile("^Queue"))).to_be_visible()
    expect(page.get_by_label("Pools").get_by_text("default", exact=True)).to_be_visible()
    status, document = cluster.ask("POST", "/api/execute", {"content": NOBODY})
    assert status == 202
    expect(page.get_by_label("Pools")).to_contain_text("noetl worker start --pool gpu")
    cluster.ask("POST", f"/api/executions/{document['execution_id']}/cancel")


def test_health_shows_why_the_server_is_not_ready(opened: Opened):
    tab = opened("/operations")
    health = tab.page.get_by_label("Health")
    tab.page.clock.install()
    tab.page.reload()
    expect(health).to_contain_text("Healthy")
    tab.forgiven = ("503", "ERR_FAILED")
    reasons = {"ready": False, "problems": ["the event store: the disk is full"], "warnings": []}
    tab.page.route("**/readyz", lambda route: route.fulfill(status=503, json=reasons))
    tab.page.clock.fast_forward(5000)
    expect(health).to_contain_text("Not ready")
    expect(health).to_contain_text("the disk is full")
    tab.page.unroute("**/readyz")
    tab.page.route("**/*", lambda route: route.abort())
    tab.page.clock.fast_forward(5000)
    expect(health).to_contain_text("server unreachable")
    expect(tab.page.get_by_role("img", name=re.compile("^Queue"))).to_be_visible()  # what was known stays
    tab.page.unroute("**/*")
    tab.page.clock.fast_forward(5000)
    expect(health).to_contain_text("Healthy")


def test_a_chart_can_be_read_with_the_keyboard(opened: Opened):
    tab = opened("/operations")
    page = tab.page
    chart = page.get_by_role("img", name=re.compile("^Events"))
    chart.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("figure", has=chart).locator("circle")).to_have_count(1)


def test_workers_are_shown_with_their_leases(opened: Opened, cluster: Cluster):
    _, document = cluster.ask("POST", "/api/execute", {"content": LONG})
    tab = opened("/operations/workers")
    page = tab.page
    held = page.get_by_role("table").get_by_role("link", name="start")
    expect(held).to_have_attribute("href", re.compile(document["execution_id"]))
    expect(page.get_by_text(re.compile(r"lease expires in \d+ s"))).to_be_visible()
    expect(page.get_by_role("meter")).to_have_accessible_name(re.compile(r"^1 of \d+ slots in use"))
    cluster.ask("POST", f"/api/executions/{document['execution_id']}/cancel")
    expect(page.get_by_text("none", exact=True)).to_be_visible()


def test_a_credential_is_written_and_never_shown(opened: Opened, cluster: Cluster):
    tab = opened("/operations/credentials")
    page = tab.page
    expect(page.get_by_role("heading", name="No credentials yet")).to_be_visible()
    page.get_by_role("button", name="Add credential").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name", exact=True).fill("shop db")
    form.get_by_label("Type").fill("postgres")
    expect(form.get_by_label("Value of password")).to_have_attribute("type", "password")
    form.get_by_label("Value of host").fill("db.example")
    form.get_by_label("Value of password").fill("correct-horse")
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("alert")).to_contain_text("A name starts with a letter")
    form.get_by_label("Name", exact=True).fill("shop_db")
    form.get_by_role("button", name="Save").click()
    expect(page.get_by_role("cell", name="shop_db", exact=True)).to_be_visible()
    assert "correct-horse" not in page.content()
    assert "correct-horse" not in str(cluster.ask("GET", "/api/credentials/shop_db"))
    page.reload()
    expect(page.get_by_role("cell", name="shop_db", exact=True)).to_be_visible()
    assert "correct-horse" not in page.content()

    page.get_by_role("button", name="Replace shop_db").click()
    expect(page.get_by_label("Value of password")).to_have_value("")
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Delete shop_db").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="No credentials yet")).to_be_visible()
    assert cluster.ask("GET", "/api/credentials/shop_db")[0] == 404


def test_a_schedule_is_previewed_added_paused_and_deleted(opened: Opened, cluster: Cluster):
    cluster.ask("POST", "/api/catalog/register", {"content": NOOP})
    tab = opened("/operations/schedules")
    page = tab.page
    page.get_by_role("button", name="Add schedule").click()
    form = page.get_by_role("dialog")
    tab.forgiven = ("400",)
    form.get_by_label("Cron expression").fill("61 * * * *")
    expect(form.get_by_text("is not a cron expression")).to_be_visible()
    form.get_by_label("Playbook").fill("tests/ticked")
    form.get_by_label("Cron expression").fill("30 6 * * mon-fri")
    form.get_by_label("Time zone").fill("Europe/Berlin")
    expect(form.locator(".ticks time")).to_have_count(3)
    form.get_by_role("button", name="Add", exact=True).click()
    row = page.get_by_role("row", name=re.compile("tests-ticked"))
    expect(row).to_contain_text("Europe/Berlin")
    expect(row.locator("time").first).to_be_visible()
    row.get_by_role("button", name="Pause").click()
    expect(row).to_contain_text("paused")
    assert cluster.ask("GET", "/api/schedules/tests-ticked")[1]["paused"] is True
    row.get_by_role("button", name="Resume").click()
    expect(row.get_by_text("paused")).to_have_count(0)
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="No schedules yet")).to_be_visible()


def test_a_webhook_is_added_and_deleted_and_its_secret_shown_once(opened: Opened, cluster: Cluster):
    cluster.ask("POST", "/api/catalog/register", {"content": NOOP})
    tab = opened("/operations/webhooks")
    page = tab.page
    page.get_by_role("button", name="Add webhook").click()
    page.get_by_role("dialog").get_by_label(re.compile("^Playbook")).fill("tests/ticked")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    secret = page.get_by_label("Secret", exact=True)
    expect(secret).to_be_visible()
    secret = secret.inner_text().strip()
    assert len(secret) > 20
    assert tab.serious_violations() == []
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("cell", name=f"{cluster.url}/api/webhooks/tests-ticked")).to_be_visible()
    page.reload()
    expect(page.get_by_role("cell", name=f"{cluster.url}/api/webhooks/tests-ticked")).to_be_visible()
    assert secret not in page.content()
    page.get_by_role("button", name="Delete tests-ticked").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="No webhooks yet")).to_be_visible()


def test_a_limit_is_added_shows_its_holders_and_is_deleted(opened: Opened, cluster: Cluster):
    _, first = cluster.ask("POST", "/api/execute", {"content": LONG})
    tab = opened("/operations/limits")
    page = tab.page
    page.get_by_role("button", name="Add limit").click()
    form = page.get_by_role("dialog")
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("alert")).to_have_text("Enter a name.")
    form.get_by_label("Applies to", exact=True).select_option("playbook")
    form.get_by_label("Name").fill("tests/long")
    form.get_by_label("Maximum").fill("one")
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("alert")).to_have_text("one is not an integer.")
    form.get_by_label("Maximum").fill("1")
    form.get_by_role("button", name="Save").click()
    row = page.get_by_role("row", name=re.compile("executions of a playbook"))
    expect(row.get_by_role("link", name="tests/long")).to_have_attribute("href", re.compile(first["execution_id"]))
    _, second = cluster.ask("POST", "/api/execute", {"content": LONG})
    expect(row).to_contain_text("since")
    assert tab.serious_violations() == []
    row.get_by_role("button", name="Edit").click()
    form.get_by_label("Weight").fill("3")
    form.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("weight 3")
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="No limits yet")).to_be_visible()
    page.get_by_role("button", name="Add limit").click()
    form.get_by_label("Applies to", exact=True).select_option("label")
    form.get_by_label("Name").fill("tenant=acme")
    form.get_by_label("Weight").fill("2")
    form.get_by_label("Maximum queued").fill("1000")
    form.get_by_role("button", name="Save").click()
    row = page.get_by_role("row", name=re.compile("runs with a label"))
    expect(row).to_contain_text("weight 2")
    expect(row).to_contain_text("0 queued, at most 1000")
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="No limits yet")).to_be_visible()
    for started in (first, second):
        cluster.ask("POST", f"/api/executions/{started['execution_id']}/cancel")


def test_a_viewer_sees_operations_without_credentials_and_actions(opened: Opened, cluster: Cluster):
    token = Tokens(cluster.home).add("ida", "viewer")
    tab = opened("/operations/schedules", token=token)
    page = tab.page
    expect(page.get_by_role("heading", name="No schedules yet")).to_be_visible()
    expect(page.get_by_role("button", name="Add schedule")).to_have_count(0)
    expect(page.get_by_role("tab", name="Credentials")).to_have_count(0)
    assert cluster.ask("GET", "/api/credentials", token=token)[0] == 403


def test_the_pages_have_no_serious_accessibility_violations(opened: Opened):
    tab = opened("/operations")
    page = tab.page
    expect(page.get_by_role("img", name=re.compile("^Queue"))).to_be_visible()
    assert tab.violations_in_both_schemes() == []
    for name, sign in (
        ("Workers", "Pool"),
        ("Limits", "noetl limit set"),
        ("Schedules", "noetl schedule add"),
        ("Credentials", "noetl credential set"),
    ):
        page.get_by_role("tab", name=name).click()
        expect(page.get_by_text(sign).first).to_be_visible()
        assert tab.violations_in_both_schemes() == [], name
    page.get_by_role("button", name="Add credential").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert tab.violations_in_both_schemes() == []


def test_the_pages_fit_a_phone(opened: Opened, cluster: Cluster):
    tab = opened("/operations", width=400, height=800)
    page = tab.page
    pages = {
        "": "Pool",
        "/workers": "Leases",
        "/limits": "noetl limit set",
        "/schedules": "noetl schedule add",
        "/webhooks": "noetl webhook add",
        "/credentials": "noetl credential set",
    }
    for path, sign in pages.items():
        page.goto(f"{cluster.url}/operations{path}")
        expect(page.get_by_text(sign).first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, path
