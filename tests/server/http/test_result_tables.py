"""Stored results as tables over HTTP: pages, profiles, SQL and exports."""

from __future__ import annotations

import csv
import io
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from noetl.core.model.reference import Reference
from noetl.server.http.routes.results import encode
from tests.server.http.serving import Cluster

JOB = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: tables/rows}
workflow:
- step: rows
  tool:
    kind: python
    code: |
      result = [{'id': i, 'name': f'item {i % 7}', 'price': None if i % 5 == 0 else i / 4, 'tags': [i]} for i in range(4000)]
  next: {arcs: [{step: text}]}
- step: text
  tool: {kind: python, code: "result = 'x' * 100000"}
"""


@pytest.fixture(scope="module")
def refs(cluster: Cluster) -> dict[str, str]:
    """The references of the outputs of both steps, for URLs."""
    import msgspec

    assert cluster.ask("POST", "/api/catalog/register", {"content": JOB})[0] == 201
    id = cluster.ask("POST", "/api/execute", {"path": "tables/rows"})[1]["execution_id"]
    cluster.finished(id)
    steps = cluster.ask("GET", f"/api/executions/{id}/state")[1]["steps"]
    return {name: encode(msgspec.convert(each["output"]["ref"], Reference)) for name, each in steps.items()}


def test_pages_are_sorted_and_filtered_by_the_server(cluster: Cluster, refs: dict[str, str]):
    status, page = cluster.ask("GET", f"/api/results/{refs['rows']}/table?sort=id&order=desc&limit=2")
    assert (status, page["total"]) == (200, 4000)
    assert [each["name"] for each in page["columns"]] == ["id", "name", "price", "tags"]
    assert [row["id"] for row in page["rows"]] == [3999, 3998]
    _, found = cluster.ask("GET", f"/api/results/{refs['rows']}/table?filter=ITEM%203&limit=1&offset=1")
    assert (found["total"], found["rows"][0]["id"]) == (571, 10)
    _, nulls = cluster.ask("GET", f"/api/results/{refs['rows']}/table?sort=price&limit=1")
    assert nulls["rows"][0]["id"] == 1, "rows without a value are last"
    status, refused = cluster.ask("GET", f"/api/results/{refs['rows']}/table?sort=other")
    assert status == 400 and '"other"' in refused["detail"]
    body = {"filter": "item 3", "sort": [{"column": "id", "descending": True}], "limit": 1, "count": True}
    _, posted = cluster.ask("POST", f"/api/results/{refs['rows']}/query", body)
    assert (posted["total"], posted["rows"][0]["id"]) == (571, 3993)
    _, both = cluster.ask("POST", f"/api/results/{refs['rows']}/query", body | {"sql": "FROM result WHERE id < 100;"})
    assert (both["total"], both["rows"][0]["id"]) == (14, 94)


def test_columns_are_profiled(cluster: Cluster, refs: dict[str, str]):
    _, profile = cluster.ask("GET", f"/api/results/{refs['rows']}/profile")
    by_name = {each["name"]: each for each in profile["columns"]}
    assert (by_name["price"]["missing"], by_name["price"]["distinct"]) == (800, 3200)
    assert by_name["id"]["mean"] == 1999.5
    assert sum(by_name["id"]["histogram"]["counts"]) == 4000
    assert by_name["name"]["top"][0] == {"value": "item 0", "count": 572}


def test_sql_reads_the_result_and_nothing_else(cluster: Cluster, refs: dict[str, str]):
    def ask(sql: str) -> tuple[int, dict]:
        return cluster.ask("POST", f"/api/results/{refs['rows']}/query", {"sql": sql})

    status, answer = ask("SELECT name, count(*) AS n, sum(id) AS total FROM result GROUP BY name ORDER BY name;")
    assert status == 200
    assert answer["rows"][0] == {"name": "item 0", "n": 572, "total": 1_143_142}
    for sql in (
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "COPY result TO '/tmp/stolen.csv'",
        "ATTACH '/tmp/x.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SELECT 1; SELECT 2",
        "DROP TABLE result",
        "SELECT * FROM nonsense",
        "SELECT * FROM arrow",
        "SELECT getenv('HOME')",
    ):
        status, refused = ask(sql)
        assert status == 400, (sql, refused)
        assert "root:" not in str(refused)
    assert ask("SELECT count(*) AS n FROM result")[1]["rows"] == [{"n": 4000}]


def test_a_table_is_exported(cluster: Cluster, refs: dict[str, str]):
    def download(query: str) -> bytes:
        request = Request(
            f"{cluster.url}/api/results/{refs['rows']}/export?{query}",
            headers={"Authorization": f"Bearer {cluster.token}"},
        )
        with urlopen(request, timeout=30) as answer:
            data: bytes = answer.read()
            return data

    rows = list(csv.DictReader(io.StringIO(download("format=csv&sort=id&order=desc").decode())))
    assert (len(rows), rows[0]["id"], rows[0]["tags"]) == (4000, "3999", "[3999]")
    import pyarrow.parquet as pq

    sql = quote("SELECT id, name FROM result WHERE id < 3")
    assert pq.read_table(io.BytesIO(download(f"format=parquet&sql={sql}"))).to_pylist() == [
        {"id": 0, "name": "item 0"},
        {"id": 1, "name": "item 1"},
        {"id": 2, "name": "item 2"},
    ]


def test_what_is_no_table_is_refused(cluster: Cluster, refs: dict[str, str]):
    status, refused = cluster.ask("GET", f"/api/results/{refs['text']}/table")
    assert status == 400 and "table" in refused["detail"]
