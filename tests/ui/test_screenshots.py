"""The screenshots of the documentation: created by `make screenshots`, and in every test run to check that they can be.

Without NOETL_SCREENSHOTS they are written to a temporary folder, so that a run of the tests changes no file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.server.http.serving import Cluster
from tests.ui.browsing import ROOT, Tab

TABLE = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: sales/table}
workflow:
- step: rows
  tool:
    kind: python
    code: |
      countries = ['Netherlands', 'France', 'Germany', 'Spain', 'Italy', 'Poland']
      result = [
          {'order': i, 'country': countries[i * 7 % 11 % 6], 'amount': round(20 + (i * 37 % 400) / 3, 2), 'paid': i % 9 != 0}
          for i in range(3000)
      ]
"""


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
    table = cluster.ask("POST", "/api/catalog/register", {"content": TABLE})
    assert table[0] == 201
    rows = started("sales/table")
    cluster.finished(rows)
    taken(
        laptop.open(f"/executions/{rows}?tab=results&step=rows"), folder / "results-stored.png", ready=".data-table td"
    )
    laptop.page.get_by_role("button", name="SQL").click()
    laptop.page.get_by_label("SQL query over the table result").fill(
        "SELECT country, count(*) AS orders, round(sum(amount)) AS amount FROM result GROUP BY country ORDER BY amount DESC"
    )
    laptop.page.get_by_role("button", name="Run query").click()
    laptop.page.get_by_role("status").filter(has_text="6 rows").wait_for()
    laptop.page.get_by_role("button", name="Chart").click()
    taken(laptop, folder / "results-sql.png", ready=".row-chart li")
    dark = new_tab(dark=True).sign_in(cluster.token)
    taken(dark.open(f"/executions/{done}"), folder / "execution-dark.png", ready=".tl-bar")
    small = new_tab(width=400, height=820).sign_in(cluster.token)
    taken(small.open(f"/executions/{failed}"), folder / "execution-small.png", ready=".log-tail")
    cluster.ask("POST", f"/api/executions/{waiting}/cancel", {})
