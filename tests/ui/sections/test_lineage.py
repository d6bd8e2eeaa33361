"""The graph of tables and files, of one playbook and across playbooks."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.server.http.serving import Cluster
from tests.ui.browsing import Tab

LOAD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: shop/load}}
workflow:
- step: load
  tool:
    kind: transfer
    data: [{{id: 1, total: 2.5}}, {{id: 2, total: 4}}]
    targets:
      - {{kind: duckdb, file: {folder}/shop.duckdb, table: orders}}
      - {{kind: file, path: {folder}/orders.parquet}}
"""
REPORT = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: shop/report}}
workflow:
- step: report
  tool:
    kind: transfer
    source: {{kind: duckdb, file: {folder}/shop.duckdb, table: orders}}
    targets:
      - {{kind: file, path: {folder}/report.csv}}
"""


@pytest.fixture(scope="module")
def ran(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("data")
    for text, path in ((LOAD, "shop/load"), (REPORT, "shop/report")):
        cluster.ask("POST", "/api/catalog/register", {"content": text.format(folder=folder)})
        id = cluster.ask("POST", "/api/execute", {"path": path})[1]["execution_id"]
        assert cluster.finished(id)["status"] == "success"


def test_a_table_connects_the_playbooks_that_write_and_read_it(
    opened: Callable[..., Tab], ran: None, picture: Callable[[Tab, str], None]
):
    tab = opened("/playbooks")
    tab.page.get_by_role("link", name="Lineage").click()
    graph = tab.page.get_by_role("group", name="Lineage graph")
    expect(graph.get_by_role("link")).to_have_count(2)
    expect(graph.get_by_role("button")).to_have_count(3)
    expect(graph).to_contain_text("shop/load · transfer")
    table = graph.get_by_role("button", name=re.compile(r"^orders shop\.duckdb"))
    table.click()
    details = tab.page.get_by_role("region", name="shop.duckdb#orders")
    expect(details).to_contain_text("shop/load load")
    expect(details).to_contain_text("2 rows")
    expect(details).to_contain_text("shop/report report")
    expect(details).to_contain_text("total")
    assert tab.serious_violations() == []
    picture(tab, "lineage")
    graph.get_by_role("link", name="report").click()
    expect(tab.page).to_have_url(re.compile("/executions/"))


def test_edges_back_to_an_earlier_dataset_are_inside_of_the_drawing(
    opened: Callable[..., Tab], cluster: Cluster, ran: None, tmp_path
):
    tools = "".join(
        f"    - {{name: {name}, kind: sqlite, file: {tmp_path}/x.db, command: '{sql}'}}\n"
        for name, sql in (
            ("create", "CREATE TABLE a (x); CREATE TABLE b (x)"),
            ("there", "INSERT INTO b SELECT * FROM a"),
            ("back", "INSERT INTO a SELECT * FROM b"),
        )
    )
    text = f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: shop/cycle}}\nworkflow:\n- step: s\n  tool:\n{tools}"
    cluster.ask("POST", "/api/catalog/register", {"content": text})
    id = cluster.ask("POST", "/api/execute", {"path": "shop/cycle"})[1]["execution_id"]
    assert cluster.finished(id)["status"] == "success"
    tab = opened("/playbooks/shop/cycle?tab=lineage")
    graph = tab.page.get_by_role("group", name="Lineage graph")
    expect(graph.get_by_role("link")).to_have_count(3)
    numbers = graph.locator("svg g > path").evaluate_all(
        "paths => paths.flatMap((path) => path.getAttribute('d').match(/-?[\\d.]+/g).map(Number))"
    )
    assert min(numbers) >= 0


def test_a_playbook_shows_its_own_datasets(opened: Callable[..., Tab], ran: None, cluster: Cluster):
    tab = opened("/playbooks/shop/report?tab=lineage")
    graph = tab.page.get_by_role("group", name="Lineage graph")
    expect(graph.get_by_role("link")).to_have_count(1)
    expect(graph.get_by_role("button")).to_have_count(2)
    text = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: shop/none}\nworkflow:\n- {step: a, tool: {kind: noop}}\n"
    cluster.ask("POST", "/api/catalog/register", {"content": text})
    tab.open("/playbooks/shop/none?tab=lineage")
    expect(tab.page.get_by_text("No lineage yet")).to_be_visible()


def test_the_task_of_many_datasets_is_visible(opened: Callable[..., Tab], cluster: Cluster, ran: None, tmp_path):
    targets = "".join(f"      - {{kind: file, path: {tmp_path}/{number}.csv}}\n" for number in range(20))
    text = LOAD.format(folder=tmp_path).replace("shop/load", "shop/many")
    text = text[: text.index("      - {kind: duckdb")] + targets
    cluster.ask("POST", "/api/catalog/register", {"content": text})
    id = cluster.ask("POST", "/api/execute", {"path": "shop/many"})[1]["execution_id"]
    assert cluster.finished(id)["status"] == "success"
    tab = opened("/playbooks/shop/many?tab=lineage")
    graph = tab.page.get_by_role("group", name="Lineage graph")
    expect(graph.get_by_role("button")).to_have_count(20)
    expect(graph.get_by_role("link")).to_be_in_viewport()
