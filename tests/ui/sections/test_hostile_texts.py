"""Texts from playbooks and data are shown as text, and long ones do not widen the page."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.server.http.serving import Cluster
from tests.ui.browsing import Tab

Opened = Callable[..., Tab]

MARKUP = '"><img src=x onerror=window.ran=1><script>window.ran=1</script>'
ADDRESS = "javascript:window.ran=1//"
LONG = MARKUP + "W" * 300

FORM = {
    "type": "object",
    "title": MARKUP,
    "properties": {
        LONG: {"title": LONG, "description": LONG, "enum": [LONG, ADDRESS], "default": LONG},
        "flag": {"type": "boolean", "title": LONG},
        "address": {"type": "string", "format": "uri", "default": ADDRESS},
    },
}


def playbook(path: str, code: str) -> str:
    """A playbook whose texts are hostile; JSON is YAML."""
    return json.dumps(
        {
            "apiVersion": "noetl.io/v2",
            "kind": "Playbook",
            "metadata": {"name": LONG, "path": path, "description": LONG, "labels": {"a": MARKUP}},
            "workload": {f"k{MARKUP}": LONG},
            "workflow": [
                {"step": "say", "desc": LONG, "tool": {"kind": "python", "code": code}, "next": {"arcs": [{"step": "ask"}]}},
                {"step": "ask", "tool": {"kind": "wait", "signal": "go", "title": LONG, "form": FORM}},
            ],
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def executions(cluster: Cluster):
    """One that waits and one that failed."""
    prints = f"print({LONG!r})\nresult = {{{LONG!r}: {LONG!r}, 'address': {ADDRESS!r}}}\n"
    started = []
    for path, code in ((ADDRESS, prints), (f"x/{MARKUP}", f"{prints}raise ValueError({LONG!r})")):
        status, document = cluster.ask("POST", "/api/execute", {"content": playbook(path, code)})
        assert status == 202, document
        started.append(document["execution_id"])
    assert cluster.finished(started[1])["status"] == "failed"
    yield started
    cluster.ask("POST", f"/api/executions/{started[0]}/cancel", {})


@pytest.mark.parametrize("width", [1280, 390])
def test_texts_are_neither_run_nor_wider_than_the_page(opened: Opened, executions: list[str], width: int):
    tab = opened("/inbox", width=width, height=844)
    page = tab.page
    expect(page.get_by_role("form", name=LONG)).to_be_visible()
    places = ["/inbox", "/", "/executions", "/executions?status=failed"]
    places += [
        f"/executions/{each}{query}"
        for each in executions
        for query in ("", "?tab=logs", "?tab=tasks", "?tab=results", "?tab=events", "?tab=state")
    ]
    wide = []
    for place in places:
        tab.open(place)
        expect(page.get_by_role("main")).to_contain_text("window.ran", use_inner_text=True)  # it is in every path
        page.wait_for_timeout(300)  # the content of a tab follows
        assert page.evaluate("window.ran") is None, place
        assert page.locator("img[onerror], a[href^='javascript:' i]").count() == 0, place
        found = page.evaluate("document.documentElement.scrollWidth")
        wide += [(place, found)] if found > width else []
    assert wide == []
