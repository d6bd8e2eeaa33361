"""Every page of a server that is in use: light and dark, on a desktop, a laptop and a phone.

Each look is checked for accessibility violations, errors of the console and overflow. `make screenshots` keeps the pictures of the main
pages in docs/images/gallery."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import expect

from tests.server.http.serving import Cluster
from tests.ui.browsing import ROOT, Tab

Opened = Callable[..., Tab]
PLAYBOOKS = Path(__file__).parent.parent / "playbooks"

REVIEW = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: review, path: people/review}
workflow:
  - step: start
    tool:
      - name: decide
        kind: wait
        signal: decision
        title: Publish the sales report?
        form: {type: object, required: [approved], properties: {approved: {type: boolean}, comment: {type: string}}}
"""
CURSOR = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: cursor, path: shop/cursor}
workflow:
  - step: start
    tool:
      - name: note
        kind: noop
        set: {state.cursor: "2026-11-16T22:00:00Z", state.pages: {orders: 12, customers: 3}}
"""


class Size(NamedTuple):
    name: str
    width: int
    height: int


DESKTOP, LAPTOP, PHONE = Size("desktop", 1600, 1000), Size("laptop", 1280, 720), Size("phone", 390, 844)


class Shown(NamedTuple):
    """A page: its path, what is visible when it is ready, and its name in the gallery of the documentation."""

    path: str
    ready: str
    picture: str | None = None


@pytest.fixture(scope="module")
def used(cluster: Cluster) -> Iterator[dict[str, str]]:
    """A server with something on every page; the values are ids of executions."""
    for file in sorted(PLAYBOOKS.glob("*.yaml")):
        assert cluster.ask("POST", "/api/catalog/register", {"content": file.read_text()})[0] == 201
    for text in (REVIEW, CURSOR, CURSOR.replace("orders: 12", "orders: 14")):
        status, answer = cluster.ask("POST", "/api/catalog/register", {"content": text})
        assert status == 201, answer
    ids: dict[str, str] = {}
    for name, path, payload in (
        ("done", "shop/orders", {}),
        ("other", "shop/orders", {"customers": 12}),
        ("failed", "billing/nightly", {}),
        ("cursor", "shop/cursor", {}),
    ):
        ids[name] = cluster.ask("POST", "/api/execute", {"path": path, "payload": payload})[1]["execution_id"]
        cluster.finished(ids[name])
    ids["waiting"] = cluster.ask("POST", "/api/execute", {"path": "people/review"})[1]["execution_id"]
    for method, path, body in (
        (
            "POST",
            "/api/schedules",
            {"path": "shop/orders", "cron": "0 */6 * * *", "tz": "Europe/Amsterdam", "name": "orders"},
        ),
        ("POST", "/api/schedules", {"path": "billing/nightly", "cron": "30 2 * * *", "tz": "UTC", "name": "billing"}),
        ("POST", "/api/webhooks", {"path": "shop/orders", "name": "shop"}),
        (
            "PUT",
            "/api/triggers/execution/after-orders",
            {"path": "shop/cursor", "of": "shop/orders", "status": ["success"]},
        ),
        ("PUT", "/api/credentials/chat", {"type": "generic", "data": {"url": "https://chat.example/hook"}}),
        ("PUT", "/api/notifications/night", {"on": ["failed", "late"], "to": {"kind": "slack", "credential": "chat"}}),
        ("PUT", "/api/limits/playbook/shop/orders", {"most": 4}),
        (
            "PUT",
            "/api/schemas/shop/orders",
            {"json_schema": {"type": "object", "properties": {"id": {"type": "integer"}}}},
        ),
        ("POST", "/api/backfills", {"path": "shop/cursor", "from": "2026-10-01", "to": "2026-10-04", "every": "1d"}),
        ("POST", "/api/tokens", {"name": "vera", "role": "viewer"}),
        ("POST", "/api/schedules/orders/run", {}),
    ):
        status, answer = cluster.ask(method, path, body)
        assert status in (200, 201, 202, 204), (path, answer)
    yield ids
    cluster.ask("POST", f"/api/executions/{ids['waiting']}/cancel", {})


def pages(ids: dict[str, str]) -> list[Shown]:
    """All pages of the web page."""
    done, failed = ids["done"], ids["failed"]
    operations = {
        "workers": "Leases", "limits": "Maximum", "schedules": "billing", "schedules?view=calendar": "billing",
        "backfills": "3 of 3", "triggers": "after-orders", "deliveries": "orders", "webhooks": "Signed with",
        "notifications": "night", "schemas": "shop/orders", "state": "shop/cursor", "credentials": "chat", "tokens": "vera",
    }  # fmt: skip
    named = {"schedules": "schedules", "state": "state"}
    return [
        Shown("/", "section[aria-label=Playbooks]", "home"),
        Shown("/executions", f"tr[data-id='{done}']", "executions"),
        Shown(f"/executions/{failed}", ".log-tail", "failure"),
        Shown(f"/executions/{done}", ".tl-bar", "execution"),
        Shown(f"/executions/{done}?step=fetch", ".tl-bar"),
        Shown(f"/executions/{done}?tab=logs", ".log-line", "logs"),
        Shown(f"/executions/{done}?tab=tasks", "[role=grid] [role=row]"),
        Shown(f"/executions/{done}?tab=iterations", "[role=grid] [role=row]"),
        Shown(f"/executions/{done}?tab=results&step=report", ".data-table td", "results"),
        Shown(f"/executions/{done}?tab=events", ".ev-row"),
        Shown(f"/executions/{done}?tab=state", ".panel"),
        Shown(f"/compare/{done}/{ids['other']}", "table"),
        Shown("/lineage", "h1, h2"),
        Shown("/inbox", "text=Publish the sales report?", "inbox"),
        Shown("/playbooks", "text=shop/orders"),
        Shown("/playbooks/shop/orders", ".net-step", "editor"),
        Shown("/playbooks/shop/orders?tab=runs", "section[aria-label=History]"),
        Shown("/playbooks/shop/cursor?tab=versions", ".line"),
        Shown("/operations", "figure", "operations"),
        *(Shown(f"/operations/{path}", f"text={text}", named.get(path)) for path, text in operations.items()),
    ]


def store(tab: Tab, file: Path) -> None:
    """A picture as WebP, a quarter of the size of a PNG."""
    session = tab.page.context.new_cdp_session(tab.page)
    taken = session.send("Page.captureScreenshot", {"format": "webp", "quality": 80})
    file.write_bytes(base64.b64decode(taken["data"]))
    session.detach()


class Gallery:
    """Checks the looks of an opened page, and takes its pictures."""

    def __init__(self, tab: Tab, folder: Path) -> None:
        self.tab, self.folder = tab, folder
        self.every = os.environ.get("NOETL_GALLERY")  # a folder for the pictures of all pages
        self.wrong: list[str] = []

    def check(self, shown: Shown, size: Size, dark: bool, *, violations: bool) -> None:
        """Show the page in a size and a colour scheme; only colours depend on the scheme."""
        page, look = self.tab.page, f"{size.name}{'-dark' if dark else ''}"
        page.set_viewport_size({"width": size.width, "height": size.height})
        page.emulate_media(color_scheme="dark" if dark else "light")
        if violations:
            found = self.tab.serious_violations(*(["color-contrast"] if dark else []))
            self.wrong += [f"{shown.path} ({look}): {each}" for each in found]
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > size.width:
            self.wrong.append(f"{shown.path} ({look}): {width} pixels wide")
        if self.every:
            name = re.sub(r"\d{10,}|\W", "_", shown.path).strip("_") or "home"
            page.screenshot(path=Path(self.every) / f"{name}-{look}.png")
        if shown.picture and os.environ.get("NOETL_SCREENSHOTS"):
            store(self.tab, self.folder / f"{shown.picture}-{look}.webp")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("sizes", [(DESKTOP, LAPTOP), (PHONE,)], ids=["large", "small"])
def test_every_page_is_accessible_and_fits(opened: Opened, used: dict[str, str], sizes: tuple[Size, ...]):
    """A page is opened in the first size, in one of the colour schemes, and then shown in the other looks."""
    tab = opened("/", width=sizes[0].width, height=sizes[0].height)
    gallery = Gallery(tab, ROOT / "docs" / "images" / "gallery")
    for number, shown in enumerate(pages(used)):
        schemes = (False, True) if number % 2 else (True, False)
        tab.page.emulate_media(color_scheme="dark" if schemes[0] else "light")
        tab.page.set_viewport_size({"width": sizes[0].width, "height": sizes[0].height})
        tab.open(shown.path)
        expect(tab.page.locator(shown.ready).first).to_be_visible()
        for size in sizes:
            for dark in schemes:
                gallery.check(shown, size, dark, violations=size is sizes[0])
    assert gallery.wrong == []


AWAY = ("ERR_CONNECTION", "Failed to load resource", "ERR_INCOMPLETE", "ERR_EMPTY")


@pytest.mark.timeout(300)
def test_a_server_restart_leaves_every_open_page_live(opened: Opened, used: dict[str, str], cluster: Cluster):
    paths = (
        "/", "/executions", f"/executions/{used['waiting']}", "/inbox", "/playbooks", "/playbooks/shop/orders",
        f"/compare/{used['done']}/{used['other']}", "/operations", "/operations/workers", "/operations/limits", "/operations/triggers",
        "/operations/state", "/operations/tokens",
    )  # fmt: skip
    tabs = {path: opened(path) for path in paths}
    for tab in tabs.values():
        tab.forgiven = AWAY
        tab.page.get_by_role("heading", level=1).wait_for()
    assert cluster.server is not None
    cluster.server.kill()
    cluster.server.wait()
    for tab in tabs.values():
        expect(tab.page.get_by_role("status").filter(has_text="Server unreachable")).to_be_visible()
    cluster.start_server()
    for method, path, body in (
        ("POST", "/api/executions/" + used["waiting"] + "/pause", {}),
        ("PUT", "/api/limits/pool/later", {"most": 3}),
        ("PATCH", "/api/state/later/state", {"values": {"n": 1}}),
        ("POST", "/api/tokens", {"name": "later", "role": "viewer"}),
        ("POST", "/api/catalog/register", {"content": CURSOR.replace("shop/cursor", "later/playbook")}),
    ):
        assert cluster.ask(method, path, body)[0] < 300
    new = {
        "/operations/limits": "later", "/operations/state": "later/state", "/operations/tokens": "later",
        "/playbooks": "later/playbook", f"/executions/{used['waiting']}": "paused",
    }  # fmt: skip
    for path, tab in tabs.items():
        expect(tab.page.get_by_text("Server unreachable")).to_have_count(0)
        if path in new:
            expect(tab.page.get_by_text(new[path], exact=True).first).to_be_visible()
