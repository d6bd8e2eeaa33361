"""The screenshots of the documentation: created by `make screenshots`, and in every test run to check that they can be.

Without NOETL_SCREENSHOTS they are written to a temporary folder, so that a run of the tests changes no file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.server.http.serving import Cluster
from tests.ui.browsing import ROOT, Tab


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return ROOT / "docs" / "images" if os.environ.get("NOETL_SCREENSHOTS") else tmp_path


def taken(tab: Tab, file: Path, *, ready: str, height: int | None = None) -> None:
    """A screenshot, taken when `ready` is visible and nothing moves."""
    tab.page.locator(ready).first.wait_for()
    tab.page.wait_for_timeout(400)
    clip = {"x": 0, "y": 0, "width": 1280, "height": height} if height else None
    tab.page.screenshot(path=file, animations="disabled", clip=clip)
    assert file.stat().st_size > 10_000


def test_the_screenshots_of_the_documentation_can_be_created(new_tab, cluster: Cluster, started, folder: Path):
    for _ in range(2):
        done = started("shop/orders")
    failed = started("billing/nightly")
    waiting = started("people/approval", seconds=40)
    cluster.finished(done)
    cluster.finished(failed)
    tab = new_tab().sign_in(cluster.token)
    taken(tab.open("/executions"), folder / "executions.png", ready=f"tr[data-id='{waiting}'] .running", height=480)
    taken(tab.open(f"/executions/{done}"), folder / "execution.png", ready=".tl-bar")
    middle = cluster.ask("GET", f"/api/executions/{done}")[1]["seq"] * 2 // 5
    taken(tab.open(f"/executions/{done}?at={middle}&step=fetch"), folder / "moment.png", ready=".why li")
    taken(tab.open(f"/executions/{failed}"), folder / "failure.png", ready=".log-tail")
    taken(tab.open(f"/executions/{done}?tab=logs"), folder / "logs.png", ready=".log-line")
    taken(tab.open(f"/executions/{done}?tab=results&step=report"), folder / "results.png", ready=".data-table td")
    taken(tab.open(f"/executions/{waiting}?tab=state"), folder / "waiting.png", ready=".small-table")
    laptop = new_tab(width=1280, height=720).sign_in(cluster.token)
    taken(laptop.open(f"/executions/{failed}"), folder / "failure-laptop.png", ready=".log-tail")
    dark = new_tab(dark=True).sign_in(cluster.token)
    taken(dark.open(f"/executions/{done}"), folder / "execution-dark.png", ready=".tl-bar")
    small = new_tab(width=400, height=820).sign_in(cluster.token)
    taken(small.open(f"/executions/{failed}"), folder / "execution-small.png", ready=".log-tail")
    cluster.ask("POST", f"/api/executions/{waiting}/cancel", {})
