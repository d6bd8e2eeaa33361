"""Stored results as data: sorted and filtered by the server, profile, chart, SQL, export; graphs with groups."""

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
metadata: {name: results/rows}
workflow:
- step: rows
  tool:
    kind: python
    code: |
      result = [{'id': i, 'name': f'item {i % 7}', 'price': None if i % 5 == 0 else i / 4} for i in range(4000)]
"""


@pytest.fixture(scope="module")
def stored(cluster: Cluster) -> str:
    cluster.ask("POST", "/api/catalog/register", {"content": JOB})
    id: str = cluster.ask("POST", "/api/execute", {"path": "results/rows"})[1]["execution_id"]
    cluster.finished(id)
    return id


def test_a_stored_table_is_sorted_filtered_and_paged_by_the_server(opened: Opened, stored: str):
    page = opened(f"/executions/{stored}?tab=results&step=rows").page
    table = page.get_by_role("region", name="Rows")
    expect(page.get_by_text("4,000 rows").last).to_be_visible()
    table.get_by_role("button", name="id").click()
    table.get_by_role("button", name="id").click()
    expect(table.get_by_role("row").nth(1)).to_contain_text("3999")
    page.get_by_role("button", name="Next →").click()
    expect(table.get_by_role("row").nth(1)).to_contain_text("3899")
    page.get_by_label("Filter rows").fill("ITEM 3")
    expect(page.get_by_role("status").filter(has_text="571 rows")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    lines = download.value.path().read_text().splitlines()
    assert (len(lines), lines[0], lines[1]) == (572, "id,name,price", "3993,item 3,998.25")
    with page.expect_download() as download:
        page.get_by_role("link", name="Parquet").click()
    assert download.value.path().read_bytes()[:4] == b"PAR1"


def test_a_stored_table_is_profiled_charted_and_queried(opened: Opened, stored: str):
    tab = opened(f"/executions/{stored}?tab=results&step=rows")
    tab.forgiven = ("400",)
    page = tab.page
    page.get_by_role("button", name="Profile").click()
    profile = page.get_by_role("table", name="Profile of the columns")
    expect(profile.get_by_role("row").filter(has_text="price")).to_contain_text("800")
    expect(profile.get_by_role("img", name="Distribution of price")).to_be_visible()
    assert tab.serious_violations() == []
    page.get_by_role("button", name="SQL").click()
    box = page.get_by_label("SQL query over the table result")
    box.fill("SELECT name, count(*) AS n FROM result GROUP BY name ORDER BY name")
    box.press("Control+Enter")
    expect(page.get_by_role("status").filter(has_text="7 rows")).to_be_visible()
    page.get_by_role("button", name="Chart").click()
    expect(page.get_by_role("list", name="n by name").get_by_role("listitem")).to_have_count(7)
    assert tab.serious_violations() == []
    box.fill("SELECT * FROM read_csv('/etc/passwd')")
    page.get_by_role("button", name="Run query").click()
    expect(page.get_by_role("alert")).to_contain_text("the query")
    page.get_by_role("button", name="Show all rows").click()
    page.get_by_role("button", name="Rows", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="4,000 rows")).to_be_visible()


def test_sequences_of_a_large_graph_are_grouped_and_opened(opened: Opened, cluster: Cluster):
    steps = ["apiVersion: noetl.io/v2", "kind: Playbook", "metadata: {name: results/long}", "workflow:"]
    for n in range(60):
        tool = "{kind: python, code: 'raise ValueError(1)'}" if n == 55 else "{kind: noop}"
        steps += [f"- step: s{n}", f"  tool: {tool}"]
        if n == 30:
            steps += [
                "  next: {arcs: [{step: s31, when: \"{{ output.status == 'ok' }}\"}, {step: s59, when: '{{ false }}'}]}"
            ]
        elif n < 59:
            steps += [f"  next: {{arcs: [{{step: s{n + 1}}}]}}"]
    cluster.ask("POST", "/api/catalog/register", {"content": "\n".join(steps)})
    id = cluster.ask("POST", "/api/execute", {"path": "results/long"})[1]["execution_id"]
    cluster.finished(id)
    page = opened(f"/executions/{id}?tab=timeline", width=1280, height=720).page
    graph = page.get_by_role("region", name="Graph of results/long")
    groups = graph.get_by_role("group", name=re.compile("^group of"))
    expect(groups).to_have_count(2)
    expect(graph.get_by_role("group", name=re.compile("s31 … s58, failed"))).to_be_visible()
    graph.get_by_role("button", name="1 failed").click()
    expect(page).to_have_url(re.compile("step=s55"))
    expect(graph.get_by_role("group", name="step s55, failed")).to_be_visible()
    graph.get_by_role("button", name="group", exact=True).click()
    expect(groups).to_have_count(0)
    graph.get_by_label("Find a step in the graph").fill("s12")
    graph.get_by_label("Find a step in the graph").press("Enter")
    expect(page).to_have_url(re.compile("step=s12"))
    handle = page.get_by_role("separator", name="Width of the side pane")
    before = float(handle.get_attribute("aria-valuenow") or 0)
    handle.press("ArrowLeft")
    expect(handle).to_have_attribute("aria-valuenow", str(int(before) + 24))
