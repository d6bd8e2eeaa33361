"""Results as data: `noetl query` locally and on a server, exports, limits, and what the SQL may not do."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.server.http.serving import Cluster

MIXED = """
workflow:
  - step: fetch
    tool:
      - name: rows
        kind: python
        code: "result = [{'id': n, 'status': 'odd' if n % 2 else 'even', 'doc': {'n': n}} for n in range(5000)]"
      - {name: last, kind: noop}
    next: {arcs: [{step: small}]}
  - step: small
    tool: {kind: python, code: "result = {'rows': [{'a': 1}, {'a': None}], 'columns': ['a']}"}
    next: {arcs: [{step: each}]}
  - step: each
    loop: {in: [1, 2, 3], iterator: n}
    tool: {kind: python, input: {n: "{{ iter.n }}"}, code: "result = {'n': n, 'square': n * n}"}
    next: {arcs: [{step: duck}]}
  - step: duck
    tool:
      kind: duckdb
      query: "select i as id, i::decimal(10,2) as price, timestamp '2026-01-01' + interval (i) minute as seen from range(3000) t(i)"
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: python, code: "result = 5"}
"""

CONSTANT = """
workflow:
  - step: fetch
    tool: {kind: python, input: {given: 'ROWS'}, code: "import json; result = json.loads(given)"}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(Path(tmp_path_factory.mktemp("home")))
    try:
        cluster.start_server()
        cluster.start_worker()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(params=["local", "server"])
def ran(request: pytest.FixtureRequest, noetl, playbook, monkeypatch):
    """The command line, after one execution."""
    if request.param == "server":
        cluster = request.getfixturevalue("cluster")
        monkeypatch.setenv("NOETL_SERVER_URL", cluster.url)
        monkeypatch.setenv("NOETL_TOKEN", cluster.token)
        assert noetl("execute", playbook(MIXED)).code == 0
    else:
        assert noetl("run", playbook(MIXED)).code == 0
    return noetl


def rows(noetl, sql: str) -> list[dict]:
    answer = noetl("query", "last", sql, "--json")
    assert answer.code == 0, answer.err
    return answer.json["rows"]


def test_results_are_tables(ran, folder):
    listed = {each["sql"] for each in ran("query", "last", "--json").json}
    assert listed >= {"step.fetch", 'task."fetch.rows"', "step.small", "step.each", "step.duck", "step.end"}
    assert rows(
        ran, 'select status, count(*) as n, max(doc.n) as top from task."fetch.rows" group by 1 order by 1'
    ) == [
        {"status": "even", "n": 2500, "top": 4998},
        {"status": "odd", "n": 2500, "top": 4999},
    ]
    assert rows(ran, "select * from step.small") == [{"a": 1}, {"a": None}]
    assert rows(ran, "select sum(square) as s from step.each") == [{"s": 14}]
    assert rows(ran, "from step.end") == [{"value": 5}]
    joined = 'select count(*) as n from step.duck join task."fetch.rows" using (id)'
    assert rows(ran, joined) == [{"n": 3000}]
    shown = ran("query", "last", "select id from step.duck order by id", "--limit", "3")
    assert shown.out.split() == ["ID", "0", "1", "2"] and "only the first 3 rows" in shown.err

    sql = "select id, price, seen from step.duck order by id"
    for name in ("x.csv", "x.parquet", "x.json"):
        assert ran("query", "last", sql, "--output", name).code == 0
    table = pq.read_table(io.BytesIO((folder / "x.parquet").read_bytes()))
    assert table.num_rows == 3000
    assert (folder / "x.csv").read_text().splitlines()[:2] == ["id,price,seen", "0,0.0,2026-01-01 00:00:00"]
    assert len(json.loads((folder / "x.json").read_text())) == 3000


def test_a_csv_export_has_json_for_nested_and_texts_for_mixed_values(noetl, playbook, folder):
    rows = [
        {"a": 1, "b": {"c": [1, "x"], "d": "it's"}, "l": ["p, q", "r"], "n": 2**80},
        {"a": 'q"uote,comma', "b": None, "l": []},
        {"a": {"k": None}, "b": {"c": []}, "l": None},
        {"a": "5"},
    ]
    assert noetl("run", playbook(CONSTANT.replace("ROWS", json.dumps(rows).replace("'", "''")))).code == 0
    sql = "select a, b, l, n from step.fetch -- the rows"
    assert noetl("query", "last", sql, "--output", "x.csv").code == 0
    found = list(csv.DictReader(io.StringIO((folder / "x.csv").read_text())))
    assert [each["a"] for each in found] == ["1", 'q"uote,comma', '{"k":null}', "5"]
    assert json.loads(found[0]["b"]) == rows[0]["b"] and found[1]["b"] == ""
    assert [each["l"] and json.loads(each["l"]) for each in found] == [["p, q", "r"], [], "", ""]
    assert found[0]["n"] == str(2**80)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("select * from read_csv('/etc/passwd')", "disabled by configuration"),
        ("select * from read_text('../noetl.db')", "disabled by configuration"),
        ("select * from 'http://127.0.0.1:1/x.parquet'", "disabled by configuration"),
        ("copy (select 1) to 'x.csv'", "one SELECT"),
        ("create table t(a int)", "one SELECT"),
        ("select 1; select 2", "one SELECT"),
        ("attach 'x.duckdb'", "one SELECT"),
        ("set enable_external_access = true", "one SELECT"),
        ("select nothing from step.end", "nothing"),
        ("select * from step.unknown", "there is no result step.unknown; the results are: step.fetch"),
        ("select * from orders", "there is no result orders; the results are: step.fetch"),
        ("select getenv('HOME')", "getenv"),
        (" ", "the SQL is empty"),
        ("selec 1", "syntax error"),
    ],
)
def test_the_sql_reads_results_and_nothing_else(noetl, playbook, sql, message):
    text = "workflow:\n  - {step: fetch, tool: {kind: noop}, next: {arcs: [{step: end}]}}\n"
    assert noetl("run", playbook(text + "  - {step: end, tool: {kind: python, code: 'result = [1]'}}\n")).code == 0
    answer = noetl("query", "last", sql)
    assert answer.code == 2 and message in answer.err, answer.err
    assert "Traceback" not in answer.err


def test_the_sql_can_come_from_stdin(noetl, playbook, monkeypatch):
    def typed(text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    assert noetl("run", playbook("workflow:\n  - {step: a, tool: {kind: python, code: 'result = [1, 2]'}}\n")).code == 0
    typed("select sum(value) as s\nfrom step.a -- all\n")
    answer = noetl("query", "last", "-", "--json")
    assert (answer.code, json.loads(answer.out)["rows"]) == (0, [{"s": 3}])
    typed("")
    assert noetl("query", "last", "-").code == 2


def test_large_integers_keep_their_digits(noetl, playbook):
    code = "result = [{'n': 12345678901234567890123, 'm': 10 ** 50, 'k': n} for n in range(2)]"
    text = f'workflow:\n  - {{step: numbers, tool: {{kind: python, code: "{code}"}}}}\n'
    assert noetl("run", playbook(text)).code == 0
    (row, _) = rows(noetl, "select n::varchar as n, m, k from step.numbers")
    assert row == {"n": "12345678901234567890123", "m": "1" + "0" * 50, "k": 0}


def test_an_interrupted_export_leaves_no_file(folder, monkeypatch):
    """The server closes the connection in the middle of the body."""
    import socket
    import threading

    from noetl.client import Client
    from noetl.errors import StoreUnavailable

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/csv\r\nContent-Length: 1000\r\n\r\na,b\n1,2\n")
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):  # closing with unread data would reset the connection
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        with Client(f"http://127.0.0.1:{listener.getsockname()[1]}", "t") as client:
            received = io.BytesIO()
            with pytest.raises(StoreUnavailable, match="broke during the download"):
                client.export_query("1", "select 1", "csv", received)
        thread.join()
    from noetl.cli.executions.query import _written

    try:
        with _written(folder / "x.csv") as file:
            file.write(b"a,b")
            raise StoreUnavailable("it broke")
    except StoreUnavailable:
        pass
    assert list(folder.glob("x.csv*")) == []


def test_the_api_filters_sorts_and_pages_a_result(cluster: Cluster):
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: mixed}\n"
    _, document = cluster.ask("POST", "/api/execute", {"content": head + MIXED})
    execution_id = document["execution_id"]
    assert cluster.finished(execution_id)["status"] == "success"

    def ask(**body):
        return cluster.ask("POST", f"/api/executions/{execution_id}/query", body)

    where = [{"column": "status", "op": "eq", "value": "odd"}, {"column": "id", "op": "ge", "value": 10}]
    sort = [{"column": "id", "descending": True}]
    status, page = ask(table="task.fetch.rows", where=where, sort=sort, limit=2, offset=1, count=True)
    assert status == 200, page
    assert [row["id"] for row in page["rows"]] == [4997, 4995]
    assert (page["total"], page["truncated"]) == (2495, True)
    assert page["columns"][0] == {"name": "id", "type": "int64"}
    assert ask(table="small", where=[{"column": "a", "op": "is_null"}])[1]["rows"] == [{"a": None}]
    odd = {"column": "status", "op": "contains", "value": "OD"}
    assert ask(table="task.fetch.rows", where=[odd], limit=1)[1]["rows"][0]["id"] == 1
    injected = {"column": "status", "op": "eq", "value": "x' or '1'='1"}
    assert ask(table="task.fetch.rows", where=[injected])[1]["rows"] == []
    assert ask(table="nothing")[0] == 404
    assert ask()[0] == 400 and ask(sql="select 1", table="small")[0] == 400
    assert ask(table="small", where=[{"column": "a", "op": "eq", "value": None}])[0] == 400
    assert cluster.ask("POST", "/api/executions/123/query", {"sql": "select 1"})[0] == 404
