"""The main pages as the docs show them: on a desktop and on a phone, light and dark.

Every run takes the pictures; `make screenshots` keeps them in docs/images, after a while of work that the charts can show.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.server.http.serving import Cluster
from tests.ui.browsing import ROOT, Tab

Opened = Callable[..., Tab]
Picture = Callable[[Tab, str], None]

EXAMPLES = ("hello", "fan_out_and_join", "best_effort", "workbook", "quickstart/playbook")

WAITING = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: nightly_report, path: reports/nightly}
workload: {pages: 12}
workflow:
  - step: start
    loop:
      in: "{{ range(workload.pages) | list }}"
      iterator: page
      spec: {mode: parallel, max_in_flight: 12}
    tool: {kind: python, code: "import time; time.sleep(1.5)"}
"""
FAILING = WAITING.replace("nightly", "broken").replace("time.sleep(1.5)", "raise ValueError(1)")


@pytest.fixture(scope="module")
def filled(cluster: Cluster) -> Iterator[Cluster]:
    """A server with playbooks, versions and schedules on it."""
    for name in EXAMPLES:
        text = (ROOT / "examples" / f"{name}.yaml").read_text(encoding="utf-8")
        if name == "fan_out_and_join":
            older = text.replace("amount: 120", "amount: 80").replace("  # Several live branches", "  # All branches")
            assert cluster.ask("POST", "/api/catalog/register", {"content": older})[0] == 201
        assert cluster.ask("POST", "/api/catalog/register", {"content": text})[0] == 201
    for text in (WAITING, FAILING):
        assert cluster.ask("POST", "/api/catalog/register", {"content": text})[0] == 201
    for path, cron, tz in (
        ("reports/nightly", "30 2 * * *", "Europe/Amsterdam"),
        ("examples/quickstart", "*/15 8-18 * * mon-fri", "America/New_York"),
        ("examples/hello", "0 9 1 * *", "UTC"),
    ):
        assert cluster.ask("POST", "/api/schedules", {"path": path, "cron": cron, "tz": tz})[0] == 201
    assert cluster.ask("POST", "/api/schedules/examples-hello/pause")[0] == 200
    yield cluster
    for left in cluster.ask("GET", "/api/executions?status=running")[1]["items"]:
        cluster.ask("POST", f"/api/executions/{left['execution_id']}/cancel")


def test_the_catalog_and_the_form(opened: Opened, filled: Cluster, picture: Picture):
    for path in ("examples/fan_out_and_join", "examples/best_effort", "reports/broken"):
        _, started = filled.ask("POST", "/api/execute", {"path": path})
        filled.finished(started["execution_id"])
    filled.ask("POST", "/api/execute", {"path": "reports/nightly", "payload": {"pages": 60}})
    tab = opened("/playbooks")
    expect(tab.page.get_by_role("link", name="examples/quickstart", exact=True)).to_be_visible()
    expect(tab.page.locator("table .status.failed")).to_be_visible()
    picture(tab, "playbooks")
    tab.page.get_by_role("button", name="Run examples/quickstart").click()
    expect(tab.page.get_by_label("endpoints")).to_be_visible()
    picture(tab, "run-form")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_editor_next_to_its_graph(opened: Opened, filled: Cluster, picture: Picture, dark: bool):
    tab = opened("/playbooks/examples/fan_out_and_join", dark=dark)
    net = tab.page.get_by_label("Graph", exact=True)
    expect(net.get_by_text("ask_for_approval")).to_be_visible()
    expect(tab.page.locator(".cm-content")).to_contain_text("apiVersion")
    if dark:
        tab.page.locator(".cm-line", has_text="amount: 120").click()
        tab.page.keyboard.press("End")
        tab.page.keyboard.insert_text("\nworkfow: []")
        finding = tab.page.locator(".findings li.error").first
        expect(finding).to_be_visible()
        tab.page.locator(".cm-lintRange-error").first.hover()
        expect(tab.page.locator(".cm-diagnostic").first).to_be_visible()
    picture(tab, f"editor{'-dark' if dark else ''}")
    if dark:
        tab.page.locator(".findings .code").first.click()
        expect(tab.page.get_by_role("heading", name="Right")).to_be_visible()
        picture(tab, "explained")


def test_two_versions_side_by_side(opened: Opened, filled: Cluster, picture: Picture):
    tab = opened("/playbooks/examples/fan_out_and_join?tab=versions")
    expect(tab.page.locator(".line.added").first).to_be_visible()
    picture(tab, "versions")


def test_operations_under_load(opened: Opened, filled: Cluster, picture: Picture):
    until = time.monotonic() + (70 if os.environ.get("NOETL_SCREENSHOTS") else 0)
    rounds = 0
    while rounds == 0 or time.monotonic() < until:
        rounds += 1
        for path in ("reports/nightly", "examples/best_effort", "examples/hello", "reports/broken")[: 3 + rounds % 2]:
            assert (
                filled.ask("POST", "/api/execute", {"path": path, "payload": {"pages": 4 + 9 * rounds % 23}})[0] == 202
            )
        if time.monotonic() < until:
            time.sleep(2 + rounds % 3)
    tab = opened("/operations")
    expect(tab.page.get_by_label("Health")).to_contain_text("Healthy")
    expect(tab.page.get_by_role("img", name=re.compile("^Events"))).to_be_visible()
    picture(tab, "operations")
    tab = opened("/operations", dark=True, width=400, height=860)
    expect(tab.page.get_by_label("Health")).to_contain_text("Healthy")
    picture(tab, "operations-phone")
    tab = opened("/operations/schedules")
    expect(tab.page.get_by_text("Europe/Amsterdam")).to_be_visible()
    picture(tab, "schedules")


def test_home_history_and_the_calendar(opened: Opened, filled: Cluster, picture: Picture):
    for n in range(24):
        path = ("reports/nightly", "examples/best_effort", "examples/hello", "reports/broken")[n % 4]
        _, started = filled.ask("POST", "/api/execute", {"path": path, "payload": {"pages": 1}})
        filled.finished(started["execution_id"])
    past = [sys.executable, "-m", "tests.ui.past_days", str(filled.home / "noetl.db"), "reports/nightly"]
    subprocess.run(past, check=True, cwd=ROOT, timeout=120)
    for name, look in (
        ("home", {}),
        ("home-dark", {"dark": True}),
        ("home-laptop", {"width": 1280, "height": 720}),
        ("home-phone", {"width": 390, "height": 844}),
    ):
        tab = opened("/", **look)
        expect(tab.page.get_by_role("region", name="Playbooks")).to_contain_text("reports/nightly")
        expect(tab.page.get_by_role("img", name=re.compile("^Queue"))).to_be_attached()
        picture(tab, name)
    tab = opened("/playbooks/reports/nightly?tab=runs")
    expect(tab.page.get_by_role("region", name="Durations of steps")).to_contain_text("start")
    expect(tab.page.get_by_role("region", name="History")).to_contain_text("deleted by retention")
    picture(tab, "history")
    tab = opened("/operations/schedules?view=calendar", width=1280, height=720)
    expect(tab.page.get_by_role("button", name="reports-nightly").first).to_be_visible()
    picture(tab, "calendar")


def test_the_editor_on_a_phone(opened: Opened, filled: Cluster, picture: Picture):
    tab = opened("/playbooks/examples/hello", width=400, height=860)
    expect(tab.page.locator(".cm-content")).to_contain_text("apiVersion")
    expect(tab.page.get_by_label("Graph", exact=True).get_by_text("start", exact=True)).to_be_visible()
    picture(tab, "editor-phone")
