"""The pages of playbooks in a real browser: catalog, editor, versions, the form to run with."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from devcluster.servers import free_port
from noetl.server.http.access import Tokens
from tests.server.http.serving import Cluster
from tests.ui.browsing import ROOT, Tab

Opened = Callable[..., Tab]

WRONG = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: wrong}
workflow:
  - step: start
    tool:
      - name: work
        kind: noop
    next:
      arcs:
        - step: nowhere
"""

LEGACY = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: legacy}
workflow:
  - step: start
    tool: {kind: noop}
    next: [{step: end}]
  - step: end
"""

OLDER = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: older}
workflow:
  - step: start
    tool: {kind: python, args: {n: 1}, code: "result = n"}
"""

TYPED = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata:
  name: typed
  path: tests/typed
  description: "<img src=x onerror=alert(1)> asks for everything."
workload:
  count: 3  # how many
  ratio: 0.5
  live: false
  names: [a, b]
  where: {city: Oslo}
  api_token: hunter2-hunter2
workflow:
  - step: start
    tool:
      - name: tell
        kind: python
        input: {given: "{{ workload }}", region: "{{ workload.region }}"}
        code: |
          result = {key: value for key, value in given.items() if key != "api_token"}
"""


def write(page: Page, text: str) -> None:
    """Replace the text in the editor."""
    page.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(text)


def registered(cluster: Cluster, text: str) -> str:
    status, stored = cluster.ask("POST", "/api/catalog/register", {"content": text})
    assert status == 201, stored
    return stored["path"]


@pytest.fixture
def viewer(cluster: Cluster) -> Iterator[str]:
    tokens = Tokens(cluster.home)
    yield tokens.add("eve", "viewer")
    tokens.remove("eve")


def test_an_empty_catalog_offers_an_example_that_runs(opened: Opened, cluster: Cluster):
    tab = opened("/executions")
    page = tab.page
    page.route(re.compile(r"/api/catalog(\?|$)"), lambda route: route.fulfill(json={"items": [], "next": None}))
    page.get_by_role("link", name="Playbooks", exact=True).click()
    expect(page.get_by_role("heading", name="No playbooks yet")).to_be_visible()
    expect(page.get_by_text("noetl register playbook.yaml")).to_be_visible()
    page.get_by_role("button", name="New playbook").click()
    expect(page.locator(".cm-content")).to_contain_text("apiVersion: noetl.io/v2")
    expect(page.get_by_text("No problems", exact=True)).to_be_visible()
    page.get_by_role("button", name="Save playbook").click()
    expect(page).to_have_url(re.compile("/playbooks/examples/hello$"))
    page.get_by_role("button", name="Run…").click()
    page.get_by_role("dialog").get_by_role("button", name="Run", exact=True).click()
    expect(page).to_have_url(re.compile(r"/executions/\d+"))
    document = cluster.finished(page.url.rpartition("/")[2].partition("?")[0])
    assert document["output"]["data"] == {"said": ["Hello, Ada!", "Hello, Grace!", "Hello, Katherine!"]}


def test_a_diagnostic_is_shown_at_its_line_with_hint_and_page(opened: Opened):
    tab = opened("/playbooks?new=1")
    page = tab.page
    write(page, WRONG)
    finding = page.locator(".findings li.error").filter(has_text="nowhere")
    expect(finding).to_be_visible()
    expect(finding.get_by_role("button")).to_have_text(re.compile(r"^11:\d+$"))
    expect(finding.get_by_role("link", name="unknown-step")).to_have_attribute(
        "href", re.compile(r"^https://.*/diagnostics/unknown-step$")
    )
    expect(page.locator(".cm-lintRange-error")).to_have_text(re.compile("nowhere"))
    assert page.locator(".cm-gutter-lint .cm-lint-marker-error").count() == 1
    expect(page.get_by_role("button", name="Save playbook")).to_be_disabled()

    finding.get_by_role("link", name="unknown-step").click()
    explained = page.get_by_role("dialog", name="unknown-step")
    expect(explained.get_by_role("heading", name="Right")).to_be_visible()
    expect(explained.locator("pre").first).to_contain_text("step:")
    assert tab.serious_violations() == []
    explained.get_by_role("button", name="Close").click()

    finding.get_by_role("button").click()
    expect(page.locator(".cm-activeLine")).to_have_text("        - step: nowhere")
    page.locator(".cm-lintRange-error").hover()
    expect(page.locator(".cm-tooltip-lint, .cm-tooltip-hover").first).to_contain_text("nowhere")


def test_completion_and_hover_come_from_the_grammar(opened: Opened):
    tab = opened("/playbooks?new=1")
    page = tab.page
    write(page, WRONG.replace("nowhere", "start") + "        ")
    page.keyboard.type("wh")
    offered = page.locator(".cm-tooltip-autocomplete li")
    expect(offered).to_have_text(["when"])
    page.wait_for_timeout(200)  # a list that just came up leaves Enter to the text for 75 ms
    page.keyboard.press("Enter")
    expect(page.locator(".cm-activeLine")).to_have_text("        when: ")
    page.locator(".cm-line", has_text="workflow").get_by_text("workflow").hover()
    expect(page.locator(".meaning")).to_contain_text("The steps.")


def test_a_tooltip_of_deleted_text_is_not_shown(opened: Opened):
    page = opened("/playbooks?new=1").page
    write(page, WRONG)
    held: list[Route] = []
    page.route("**/api/hover", lambda route: held.append(route))
    with page.expect_request("**/api/hover"):
        page.locator(".cm-line", has_text="workflow").get_by_text("workflow").hover()
    write(page, "# new")
    with page.expect_response("**/api/hover"):
        held[0].continue_()
    expect(page.locator(".findings li").first).to_be_visible()
    expect(page.locator(".meaning")).to_have_count(0)


def test_fast_typing_loses_no_input(opened: Opened):
    page = opened("/playbooks?new=1").page
    write(page, "")
    words = "# " + " ".join(f"word{n}" for n in range(40))
    page.keyboard.type(words)
    page.keyboard.press("Escape")
    expect(page.locator(".cm-content")).to_have_text(words)
    expect(page.locator(".findings li").first).to_be_visible()  # the validator has answered meanwhile
    expect(page.locator(".cm-content")).to_have_text(words)


def test_format_and_migrate_rewrite_the_text(opened: Opened):
    tab = opened("/playbooks?new=1")
    page = tab.page
    write(page, OLDER + "   \n\n\n")
    expect(page.locator(".findings li.warning")).to_contain_text("input")
    page.get_by_role("button", name="Migrate").click()
    expect(page.locator(".cm-content")).to_contain_text("input: {n: 1}")
    page.get_by_role("button", name="Format").click()
    expect(page.locator(".cm-line")).to_have_count(OLDER.count("\n") + 1)
    expect(page.locator(".findings")).to_have_count(0)


def test_legacy_syntax_is_accepted_when_enabled(opened: Opened):
    tab = opened("/playbooks?new=1")
    page = tab.page
    write(page, LEGACY)
    expect(page.locator(".findings li.error")).to_contain_text("noetl migrate")
    page.get_by_label("legacy syntax").check()
    expect(page.locator(".findings li.error")).to_have_count(0)
    expect(page.get_by_label("Graph", exact=True).get_by_text("end", exact=True)).to_be_visible()
    page.get_by_role("button", name="Migrate").click()
    expect(page.locator(".cm-content")).to_contain_text("arcs:")


def test_the_catalog_has_keyboard_navigation_and_shows_the_last_status(opened: Opened, cluster: Cluster):
    for name in ("first", "second"):
        registered(cluster, TYPED.replace("name: typed", f"name: {name}").replace("tests/typed", f"keys/{name}"))
    _, started = cluster.ask("POST", "/api/execute", {"path": "keys/first", "payload": {"region": "north"}})
    cluster.finished(started["execution_id"])
    page = opened("/playbooks?search=keys").page
    row = page.get_by_role("row").filter(has_text="keys/first")
    expect(row.locator(".status")).to_have_text("success")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="keys/second", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/playbooks/keys/second$"))


def test_the_graph_follows_the_source_and_links_to_its_lines(opened: Opened):
    tab = opened("/playbooks?new=1")
    page = tab.page
    write(page, WRONG.replace("nowhere", "after") + "  - step: after\n    tool: {kind: noop}\n")
    step = page.get_by_label("Graph").get_by_text("after", exact=True)
    expect(step).to_be_visible()
    step.click()
    expect(page.locator(".cm-activeLine")).to_have_text("  - step: after")
    write(page, WRONG)
    expect(page.get_by_text("Last valid version")).to_be_visible()


def test_a_new_version_is_registered_and_compared_with_the_old(opened: Opened, cluster: Cluster):
    text = (ROOT / "examples" / "fan_out_and_join.yaml").read_text(encoding="utf-8")
    path = registered(cluster, text)
    tab = opened(f"/playbooks/{path}")
    page = tab.page
    expect(page.locator(".cm-content")).to_contain_text("apiVersion")
    write(page, text.replace("description: ", "description: Better. "))
    page.keyboard.press("Control+S")
    expect(page.get_by_text("version 2")).to_be_visible()
    expect(page.locator(".pill")).to_have_text("v2")
    expect(page.locator(".cm-content")).to_be_focused()  # one goes on where one was
    page.get_by_role("tab", name="Versions").click()
    expect(page.get_by_role("heading", name="v1 → v2")).to_be_visible()
    expect(page.locator(".line.added")).to_have_count(1)
    expect(page.locator(".line.added")).to_contain_text("Better.")
    expect(page.locator(".line.removed")).to_have_count(1)
    page.get_by_role("button", name="Open version 1").click()
    expect(page.locator(".cm-content")).not_to_contain_text("Better.")
    expect(page.get_by_text("version 1 ·")).to_be_visible()


def test_a_conflicting_registration_requires_confirmation(opened: Opened, cluster: Cluster):
    text = TYPED.replace("tests/typed", "tests/shared")
    path = registered(cluster, text)
    page = opened(f"/playbooks/{path}").page
    expect(page.locator(".cm-content")).to_contain_text("apiVersion")
    registered(cluster, "# theirs\n" + text)
    write(page, "# mine\n" + text)
    page.get_by_role("button", name="Save", exact=True).click()
    requested = page.get_by_role("dialog")
    expect(requested).to_contain_text("Version 2 was saved in the meantime")
    assert cluster.ask("GET", f"/api/catalog/{path}")[1]["version"] == 2
    requested.get_by_role("button", name="Save mine as latest").click()
    expect(page.get_by_text("Saved tests/shared, version 3")).to_be_visible()
    assert cluster.ask("GET", f"/api/catalog/{path}")[1]["content"].startswith("# mine")


def test_a_draft_survives_leaving_the_page(opened: Opened, cluster: Cluster):
    path = registered(cluster, TYPED)
    tab = opened(f"/playbooks/{path}")
    page = tab.page
    expect(page.locator(".cm-content")).to_contain_text("apiVersion")
    write(page, "# begun\n" + TYPED)
    expect(page.get_by_text("changed ·")).to_be_visible()
    page.get_by_role("link", name="Operations", exact=True).click()
    page.go_back()
    expect(page.locator(".cm-content")).to_contain_text("# begun")
    page.get_by_role("button", name="Revert").click()
    expect(page.locator(".cm-content")).not_to_contain_text("# begun")


def test_the_form_has_typed_fields_and_sends_what_was_changed(opened: Opened, cluster: Cluster):
    path = registered(cluster, TYPED)
    tab = opened("/playbooks")
    page = tab.page
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=path, exact=True))
    expect(row.get_by_text("<img src=x onerror=alert(1)>")).to_be_visible()
    page.get_by_role("button", name=f"Run {path}").click()
    form = page.get_by_role("dialog")
    expect(form.get_by_label("count")).to_have_value("3")
    expect(form.get_by_text("how many")).to_be_visible()
    expect(form.get_by_label("api_token")).to_have_attribute("type", "password")
    assert "hunter2" not in page.content()

    form.get_by_label("count").fill("three")
    form.get_by_label("names").fill("- x\n- [")
    form.get_by_role("button", name="Run", exact=True).click()
    expect(form.get_by_text("This must be an integer.")).to_be_visible()
    expect(form.get_by_text("Required.")).to_be_visible()
    expect(form.get_by_label("names")).to_have_attribute("aria-invalid", "true")
    expect(form.get_by_label("count")).to_be_focused()

    form.get_by_label("count").fill("7")
    form.get_by_label("names").fill("- x\n- y")
    form.get_by_label("where").fill("{city: Bergen, rain: true}")
    form.get_by_label("live").check()
    form.get_by_label("region").fill("north")
    form.get_by_role("button", name="Run", exact=True).click()
    expect(page).to_have_url(re.compile(r"/executions/\d+"))
    document = cluster.finished(page.url.rpartition("/")[2].partition("?")[0])
    assert document["output"]["data"] == {
        "count": 7,
        "ratio": 0.5,
        "live": True,
        "names": ["x", "y"],
        "where": {"city": "Bergen", "rain": True},
        "region": "north",
    }


@pytest.fixture
def shop() -> Iterator[str]:
    """The API that the quickstart reads."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / "quickstart" / "api.py"), "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(10)


def test_the_quickstart_runs_from_the_form_and_is_shown_live(
    opened: Opened, cluster: Cluster, shop: str, tmp_path: Path
):
    path = registered(cluster, (ROOT / "examples" / "quickstart" / "playbook.yaml").read_text(encoding="utf-8"))
    tab = opened(f"/playbooks/{path}")
    page = tab.page
    expect(page.locator(".cm-content")).to_contain_text("apiVersion")
    expect(page.get_by_label("Graph").get_by_text("fetch", exact=True)).to_be_visible()
    page.get_by_role("button", name="Run…").click()
    form = page.get_by_role("dialog")
    form.get_by_label("api_url").fill(shop)
    form.get_by_label("build").fill(str(tmp_path))
    form.get_by_role("button", name="Run", exact=True).click()
    expect(page).to_have_url(re.compile(r"/executions/\d+"))
    # No reload: what ended is reported by the stream.
    expect(page.locator(".status.success").first).to_be_visible(timeout=60_000)
    assert (tmp_path / "shop.duckdb").exists()


def test_a_viewer_can_read_and_validate_but_not_register_or_run(opened: Opened, cluster: Cluster, viewer: str):
    path = registered(cluster, TYPED)
    tab = opened("/playbooks", token=viewer)
    page = tab.page
    expect(page.get_by_role("link", name=path, exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="New playbook")).to_have_count(0)
    expect(page.get_by_role("button", name=f"Run {path}")).to_have_count(0)
    page.get_by_role("link", name=path, exact=True).click()
    expect(page.locator(".cm-content")).to_contain_text("apiVersion")
    expect(page.get_by_role("button", name="Save")).to_have_count(0)
    expect(page.get_by_role("button", name="Run…")).to_have_count(0)
    expect(page.get_by_role("button", name="Format")).to_have_count(0)
    assert cluster.ask("POST", "/api/catalog/register", {"content": TYPED}, token=viewer)[0] == 403
    assert cluster.ask("POST", "/api/execute", {"path": path}, token=viewer)[0] == 403


def test_an_unknown_playbook_is_not_found(opened: Opened):
    tab = opened("/playbooks/no/such")
    page = tab.page
    tab.forgiven = ("404",)
    expect(page.get_by_role("alert")).to_contain_text("Playbook not found")


def test_the_pages_have_no_serious_accessibility_violations(opened: Opened, cluster: Cluster):
    path = registered(cluster, TYPED)
    tab = opened("/playbooks")
    page = tab.page
    expect(page.get_by_role("link", name=path, exact=True)).to_be_visible()
    assert tab.violations_in_both_schemes() == []
    page.get_by_role("button", name=f"Run {path}").click()
    expect(page.get_by_label("count")).to_be_visible()
    assert tab.violations_in_both_schemes() == []
    page.get_by_role("button", name="Close").click()
    page.get_by_role("link", name=path, exact=True).click()
    expect(page.locator(".cm-content")).to_contain_text("apiVersion")
    write(page, WRONG)
    expect(page.locator(".findings li.error")).to_be_visible()
    assert tab.violations_in_both_schemes() == []
    page.get_by_role("tab", name="Versions").click()
    expect(page.get_by_role("radio").first).to_be_visible()
    assert tab.violations_in_both_schemes() == []


def test_the_pages_fit_a_phone(opened: Opened, cluster: Cluster):
    path = registered(cluster, TYPED)
    tab = opened("/playbooks", width=400, height=800)
    page = tab.page
    for place in ("/playbooks", f"/playbooks/{path}", f"/playbooks/{path}?tab=versions"):
        page.goto(cluster.url + place)
        expect(page.get_by_text(path).first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, place
