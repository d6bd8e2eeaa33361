"""The page in a real Chromium, against a real server and a real worker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from devcluster.servers import free_port
from tests.server.http.serving import Cluster
from tests.ui.browsing import ROOT, Tab, page_work
from tests.waiting import wait_until

EXAMPLE = ROOT / "examples" / "quickstart"


def status_of(tab: Tab):
    return tab.page.locator(".facts .status").first


def position_in_log(tab: Tab) -> tuple[int, int]:
    """The shown position and the length of the log, as displayed by the slider."""
    text = tab.page.locator(".slider-words b").inner_text()
    shown, length = text.replace(",", "").split(" / ")
    return int(shown), int(length)


# ── signing in ──────────────────────────────────────────────────────────────────────────


def test_a_wrong_token_is_rejected_and_a_valid_one_signs_in(new_tab, cluster: Cluster):
    tab = new_tab()
    tab.forgiven = ("401",)
    tab.open("/executions")
    tab.page.get_by_label("Token").fill("noetl_wrong")
    tab.page.get_by_role("button", name="Sign in").click()
    tab.page.get_by_role("alert").get_by_text("token not recognised").wait_for()
    assert tab.serious_violations() == []
    tab.page.get_by_label("Token").fill(cluster.token)
    tab.page.get_by_role("button", name="Sign in").click()
    tab.page.get_by_role("heading", name="Executions").wait_for()
    assert tab.page.evaluate("document.cookie") == ""  # scripts cannot read the session
    tab.page.get_by_role("button", name="Sign out").click()
    tab.page.get_by_label("Token").wait_for()


def test_a_viewer_cannot_cancel(new_tab, cluster: Cluster, started):
    environ = {**os.environ, "NOETL_HOME": str(cluster.home)}
    made = subprocess.run(
        [sys.executable, "-m", "noetl", "token", "add", "vera", "--role", "viewer"],
        env=environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    id = started("people/approval", seconds=30)
    tab = new_tab().sign_in(made.stdout.strip())
    tab.open(f"/executions/{id}")
    status_of(tab).get_by_text("running").wait_for()
    tab.page.get_by_text("actions require the role operator").wait_for()
    assert tab.page.get_by_role("button", name="Cancel").count() == 0
    tab.forgiven = ("403",)
    refused = tab.page.evaluate(f"fetch('/api/executions/{id}/cancel', {{method: 'POST'}}).then(a => a.status)")
    assert refused == 403
    cluster.ask("POST", f"/api/executions/{id}/cancel", {})


# ── the list ────────────────────────────────────────────────────────────────────────────


def test_the_list_is_updated_and_its_filter_is_in_the_url(tab: Tab, cluster: Cluster, started):
    tab.open("/executions?search=people")
    id = started("people/approval", seconds=30)
    row = tab.page.locator(f"tr[data-id='{id}']")
    row.locator(".status", has_text="running").wait_for()  # it came without a reload
    assert tab.page.locator("tbody tr").filter(has_text="shop/orders").count() == 0
    row.get_by_role("checkbox").check()
    tab.page.get_by_role("button", name=re.compile("Cancel 1")).click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Cancel executions").click()
    row.locator(".status", has_text="cancelled").wait_for()
    tab.page.get_by_role("button", name="failed").click()
    tab.page.wait_for_url("**/executions?search=people&status=failed")
    tab.page.get_by_text("No matching executions").wait_for()
    tab.page.go_back()
    assert tab.serious_violations() == []


# ── one execution ───────────────────────────────────────────────────────────────────────


def test_an_execution_is_shown_live_until_it_ends(tab: Tab, cluster: Cluster, started):
    id = started("shop/orders")
    tab.open(f"/executions/{id}")
    tab.page.locator(".net-step.running, .net-step.scheduled").first.wait_for()
    status_of(tab).get_by_text("success").wait_for()
    fetch = tab.page.locator(".net-step", has_text="fetch")
    assert "24/24" in fetch.inner_text()
    assert "⟳" in fetch.inner_text()  # three customers needed retries
    assert "not reached" in tab.page.locator(".net-step", has_text="alarm").inner_text()
    shown, length = position_in_log(tab)
    assert shown == length == cluster.ask("GET", f"/api/executions/{id}")[1]["seq"]
    tab.page.get_by_text("its output is the output of step end").wait_for()
    assert tab.serious_violations() == []


def test_a_failure_is_explained(tab: Tab, cluster: Cluster, started):
    id = started("billing/nightly")
    cluster.finished(id)
    wait_until(lambda: "charging" in str(cluster.ask("GET", f"/api/executions/{id}/logs")))  # sent after the result
    tab.open(f"/executions/{id}")
    status_of(tab).get_by_text("failed").wait_for()
    failure = tab.page.get_by_role("tabpanel", name="Failure")
    failure.get_by_text("in step charge").wait_for()
    assert "NoneType" in failure.inner_text()
    failure.get_by_text("charging", exact=True).wait_for()  # the last lines
    failure.get_by_text("Explanation and path of the tokens").click()
    why = tab.page.get_by_role("region", name="Why")
    why.get_by_text(re.compile("step charge failed, and none of its arcs handles a failure", re.IGNORECASE)).wait_for()
    tab.page.locator(".net-step.failed").click()
    tab.page.get_by_role("region", name="Step charge").get_by_text("TypeError").wait_for()
    tab.page.get_by_role("button", name="Logs", exact=True).click()
    tab.page.get_by_role("log").get_by_text("charging").wait_for()
    assert tab.serious_violations() == []


def test_the_time_slider_shows_an_earlier_state(tab: Tab, cluster: Cluster, started):
    id = started("shop/orders")
    cluster.finished(id)
    tab.open(f"/executions/{id}?tab=state")
    tab.page.get_by_text("orders: ").first.wait_for()  # ctx at the end
    slider = tab.page.get_by_label("Position in the log")
    slider.focus()
    slider.press("Home")
    assert position_in_log(tab)[0] == 1
    tab.page.get_by_text("Empty.").wait_for()
    assert tab.page.locator(".net-step.success").count() == 0
    slider.fill("60")
    tab.page.locator(".net-step.running", has_text="fetch").wait_for()
    assert "not reached" in (tab.page.locator(".net-step", has_text="report").get_attribute("title") or "")
    assert status_of(tab).inner_text() == "running"
    assert "at=60" in tab.page.url
    tab.page.get_by_text("Leases").wait_for()
    # The same moment from its address, and back to the end.
    tab.page.reload()
    tab.page.locator(".net-step.running", has_text="fetch").wait_for()
    tab.page.get_by_role("button", name="End", exact=True).click()
    assert status_of(tab).inner_text() == "success"


def test_events_show_their_payload_and_link_to_their_cause(tab: Tab, cluster: Cluster, started):
    id = started("billing/nightly")
    cluster.finished(id)
    tab.open(f"/executions/{id}?tab=events")
    tab.page.get_by_label("Filter events").fill("TypeError")
    rows = tab.page.locator(".ev-row")
    rows.first.locator(".ev-line").click()
    tab.page.get_by_text("payload").first.wait_for()
    tab.page.get_by_text(re.compile("caused by")).wait_for()
    tab.page.get_by_role("button", name=re.compile(r"^[a-z.]+ \(\d+\)$")).click()  # to the cause
    tab.page.locator(".ev-row.open").wait_for()
    assert tab.serious_violations() == []


def test_results_and_logs_that_contain_markup_are_shown_as_text(tab: Tab, cluster: Cluster, started):
    playbook = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: odd, path: demo/odd}
workflow:
  - step: start
    tool:
      - name: talk
        kind: python
        code: |
          print("<b>hello from python</b>")
          result = [{"name": "<img src=x onerror=alert(1)>", "n": i} for i in range(3)]
    next: {arcs: [{step: large}]}
  - step: large
    tool: [{name: many, kind: python, code: "result = [{'row': i, 'text': 'x' * 100} for i in range(2000)]"}]
"""
    _, answer = cluster.ask("POST", "/api/execute", {"content": playbook})
    id = answer["execution_id"]
    cluster.finished(id)
    tab.open(f"/executions/{id}?tab=results&step=start")
    tab.page.get_by_role("cell", name="<img src=x onerror=alert(1)>").first.wait_for()
    tab.page.get_by_label("Steps with results").get_by_text("large").click()
    tab.page.get_by_text("stored in the result store").wait_for()
    tab.page.get_by_role("button", name="Next →").click()
    tab.page.get_by_role("cell", name="150", exact=True).first.wait_for()
    with tab.page.expect_download() as downloaded:
        tab.page.get_by_role("link", name="Download").click()
    assert downloaded.value.path().stat().st_size > 200_000
    tab.open(f"/executions/{id}?tab=logs&step=start")
    tab.page.get_by_text("<b>hello from python</b>").wait_for()
    assert tab.serious_violations() == []


def test_cancel_pause_signal_and_rerun_from_a_step(tab: Tab, cluster: Cluster, started):
    id = started("people/approval", seconds=60)
    tab.open(f"/executions/{id}")
    publish = tab.page.locator(".net-step", has_text="publish")
    publish.get_by_text("waiting").wait_for()
    tab.page.get_by_role("button", name="Pause").click()
    status_of(tab).get_by_text("paused").wait_for()
    tab.page.get_by_role("button", name="Resume").click()
    status_of(tab).get_by_text("running").wait_for()
    tab.page.get_by_role("button", name="Signal").click()
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_label("Payload (JSON object)").fill('{"approved": tru}')
    dialog.get_by_text("invalid JSON").wait_for()
    dialog.get_by_label("Payload (JSON object)").fill('{"approved": true}')
    dialog.get_by_role("button", name="Send").click()
    publish.get_by_text("done").wait_for()
    tab.page.get_by_role("button", name="Cancel").click()
    dialog.get_by_label(re.compile("Reason")).fill("enough")
    dialog.get_by_role("button", name="Cancel execution").click()
    status_of(tab).get_by_text("cancelled").wait_for()
    tab.page.get_by_text("enough").first.wait_for()
    publish.click()
    tab.page.get_by_role("button", name="Rerun from here").click()
    dialog.get_by_role("button", name="Rerun from publish").click()
    tab.page.wait_for_url(lambda url: id not in url)
    status_of(tab).get_by_text("success").wait_for()


def test_a_server_restart_loses_no_event(new_tab, cluster: Cluster, started):
    tab = new_tab().sign_in(cluster.token)
    tab.forgiven = ("ERR_CONNECTION", "Failed to load resource", "ERR_INCOMPLETE", "ERR_EMPTY")
    id = started("demo/ticking")
    tab.open(f"/executions/{id}")
    tab.page.get_by_text("live", exact=True).wait_for()
    before = position_in_log(tab)[1]
    cluster.server.terminate()
    cluster.server.wait(20)
    tab.page.get_by_text("reconnecting").wait_for()
    cluster.start_server()
    status_of(tab).get_by_text("success").wait_for(timeout=40_000)
    length = cluster.finished(id)["seq"]
    assert before < length == position_in_log(tab)[1]
    assert "40/40" in tab.page.locator(".net-step", has_text="start").inner_text()


def test_everything_is_accessible_by_keyboard(tab: Tab, cluster: Cluster, started):
    id = started("billing/nightly")
    cluster.finished(id)
    tab.open("/executions")
    tab.page.locator("a.name").first.wait_for()
    tab.page.keyboard.press("/")
    assert tab.page.evaluate("document.activeElement.type") == "search"
    tab.page.locator("a.name").first.focus()
    tab.page.keyboard.press("j")
    tab.page.keyboard.press("k")
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("tab", name="Results").click()
    tab.page.keyboard.press("ArrowRight")
    tab.page.get_by_role("treegrid", name="Events").focus()
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("Enter")
    tab.page.locator(".ev-row.open").wait_for()


def test_the_page_works_at_400_pixels_and_in_dark_mode(new_tab, cluster: Cluster, started):
    id = started("billing/nightly")
    cluster.finished(id)
    tab = new_tab(width=400, dark=True).sign_in(cluster.token)
    for path in ("/executions", f"/executions/{id}", f"/executions/{id}?tab=events", f"/executions/{id}?tab=state"):
        tab.open(path)
        tab.page.locator("h1").first.wait_for()
        tab.page.wait_for_timeout(200)
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 400, path
        assert tab.serious_violations() == [], path


# ── the whole way ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[str]:
    """The API that the quickstart reads."""
    port = free_port()
    api = subprocess.Popen(
        [sys.executable, str(EXAMPLE / "api.py"), "--port", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        api.terminate()
        api.wait(10)


def test_the_quickstart_runs_from_its_form(tab: Tab, cluster: Cluster, shop: str, tmp_path: Path):
    text = (EXAMPLE / "playbook.yaml").read_text()
    assert cluster.ask("POST", "/api/catalog/register", {"content": text})[0] == 201
    tab.open("/playbooks")
    tab.page.get_by_role("link", name="examples/quickstart").first.click()
    tab.page.get_by_role("button", name=re.compile("^Run")).first.click()
    form = tab.page.get_by_role("dialog")
    form.get_by_label("api_url").fill(shop)
    form.get_by_label("build").fill(str(tmp_path))
    form.get_by_role("button", name="Run", exact=True).click()
    tab.page.wait_for_url("**/executions/*")
    status_of(tab).get_by_text("success").wait_for(timeout=60_000)
    assert "3/3" in tab.page.locator(".net-step", has_text="fetch").inner_text()
    assert (tmp_path / "shop.duckdb").exists()


def test_the_page_works_below_a_path_prefix(browser, tmp_path: Path):
    cluster = Cluster(tmp_path, NOETL_SERVER_PREFIX="/flows")
    context = browser.new_context()
    try:
        cluster.start_server()
        tab = Tab(context.new_page(), cluster.url + "/flows")
        tab.sign_in(cluster.token)
        tab.page.get_by_text("No executions yet").wait_for()
        tab.page.get_by_role("navigation", name="Pages").get_by_text("Playbooks").click()
        tab.page.wait_for_url("**/flows/playbooks")
        tab.page.reload()
        tab.page.get_by_role("heading").first.wait_for()
        assert [cookie["path"] for cookie in context.cookies()] == ["/flows"]
        assert tab.serious_violations() == [] and tab.wrong() == []
    finally:
        context.close()
        cluster.stop()


# ── large executions ────────────────────────────────────────────────────────────────────


def test_a_log_of_100_000_events_is_shown_with_little_work_and_memory(tab: Tab, browser, cluster: Cluster):
    (row,) = [
        each for each in cluster.ask("GET", "/api/executions?search=big_loop")[1]["items"] if each["seq"] > 100_000
    ]
    devtools = tab.page.context.new_cdp_session(tab.page)
    devtools.send("Performance.setTimeDomain", {"timeDomain": "threadTicks"})  # processor time, whoever else is busy
    devtools.send("Performance.enable")

    def metrics() -> dict[str, float]:
        return {each["name"]: each["value"] for each in devtools.send("Performance.getMetrics")["metrics"]}

    def work() -> float:
        """Seconds of scripts, styles and layout; painting without a graphics card is not counted."""
        found = metrics()
        return found["ScriptDuration"] + found["LayoutDuration"] + found["RecalcStyleDuration"]

    tab.open(f"/executions/{row['execution_id']}")
    tab.page.get_by_label("Position in the log").wait_for()
    assert work() < 2.0  # from here on it can be used; the rest of the log comes meanwhile
    tab.page.get_by_text("loading events").wait_for(state="hidden")
    assert position_in_log(tab) == (row["seq"], row["seq"])
    tab.page.locator(".tl-curve").wait_for()
    assert work() < 4.0
    timeline = tab.page.get_by_role("group", name=re.compile("^Timeline"))
    timeline.focus()
    for _ in range(9):
        timeline.press("+")
    tab.page.locator(".tl-bar s").first.wait_for()  # near enough, iterations and their tasks are drawn separately again
    timeline.press("0")
    before = work()
    slider = tab.page.get_by_label("Position in the log")
    for moment in (90_000, 50_000, 10_000, 70_000):
        slider.fill(str(moment))
    assert "start" in tab.page.locator(".net-step.running").inner_text()
    tab.page.get_by_role("tab", name="Events").click()
    frame = tab.page.get_by_role("treegrid", name="Events")
    for part in range(1, 11):
        frame.evaluate(f"element => element.scrollTop = element.scrollHeight * {part} / 10")
        tab.page.wait_for_timeout(20)
    tab.page.locator(".ev-row").last.wait_for()
    assert tab.page.locator(".ev-row").count() < 100  # only what is seen exists
    assert work() - before < 4.0
    devtools.send("HeapProfiler.collectGarbage")
    assert metrics()["JSHeapUsedSize"] < 100 * 2**20
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    tabs = [psutil.Process(each["id"]).memory_info().rss for each in processes if each["type"] == "renderer"]
    assert 0 < max(tabs) < 300 * 2**20  # of the tab as a whole


HUGE_LOOP = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: huge_loop, path: demo/huge_loop}
workflow:
  - step: start
    loop: {in: "{{ range(30000) | list }}", iterator: i, spec: {mode: parallel, max_in_flight: 512}}
    tool: {kind: noop}
"""


def test_30_000_iterations_are_listed_and_sorted_with_little_work(tab: Tab, cluster: Cluster, tmp_path: Path):
    file = tmp_path / "huge_loop.yaml"
    file.write_text(HUGE_LOOP)
    ran = subprocess.run(
        [sys.executable, "-m", "noetl", "run", str(file), "--json", "--store", str(cluster.home / "noetl.db")],
        env={**os.environ, "NOETL_HOME": str(cluster.home)}, capture_output=True, timeout=100,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    (row,) = cluster.ask("GET", "/api/executions?search=huge_loop")[1]["items"]
    work = page_work(tab)
    tab.page.set_default_timeout(120_000)
    tab.open(f"/executions/{row['execution_id']}?tab=iterations")
    table = tab.page.get_by_role("grid", name="Iterations").and_(tab.page.locator("[aria-rowcount='30001']"))
    table.wait_for()
    before = work()
    for part in range(1, 11):
        table.evaluate(f"element => element.scrollTop = element.scrollHeight * {part} / 10")
        tab.page.wait_for_timeout(20)
    table.get_by_text("29999").first.wait_for()
    assert table.get_by_role("row").count() < 100  # only what is seen exists
    assert work() - before < 0.8
    before = work()
    table.get_by_role("button", name=re.compile("Duration")).click()
    table.get_by_role("columnheader", name=re.compile("Duration")).and_(tab.page.locator("[aria-sort]")).wait_for()
    assert work() - before < 0.8
