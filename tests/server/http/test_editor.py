"""Language services: formatting, migration, completion, hover, forms, versions."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.server.http.serving import Cluster

TEXT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: edited, path: tests/edited, description: For editors.}
workload:
  pages: 3  # how many
workflow:
  - step: start
    tool:
      - name: work
        kind: python
        input: {n: "{{ workload.pages }}"}
        code: "result = n"
"""

OLDER = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: older}
workflow:
  - step: start
    tool:
      kind: python
      args: {n: 1}
      code: "result = n"
"""


def requested(cluster: Cluster, route: str, **body: Any) -> Any:
    status, document = cluster.ask("POST", route, body)
    assert status == 200, document
    return document


def test_a_text_is_formatted(cluster: Cluster):
    document = requested(cluster, "/api/format", content=TEXT + "   \n\n")
    assert document == {"content": TEXT, "changed": True}
    assert requested(cluster, "/api/format", content="a: [")["changed"] is False


def test_a_text_is_migrated_or_its_errors_are_reported(cluster: Cluster):
    document = requested(cluster, "/api/migrate", content=OLDER)
    assert document["changed"]
    assert "input: {n: 1}" in document["content"]
    assert document["notes"] == []
    status, problem = cluster.ask("POST", "/api/migrate", {"content": "kind: Playbook\n"})
    assert status == 422
    assert problem["diagnostics"]


def test_completions_and_hover_texts_come_from_the_grammar(cluster: Cluster):
    document = requested(cluster, "/api/complete", content=TEXT + "wor", line=13, column=4)
    assert document["column"] == 1
    assert [item["word"] for item in document["items"]] == ["workbook"]
    found = requested(cluster, "/api/hover", content=TEXT, line=4, column=3)["hover"]
    assert (found["word"], found["column"], found["end_column"]) == ("workload", 1, 9)
    assert requested(cluster, "/api/hover", content=TEXT, line=5, column=4) == {"hover": None}
    assert cluster.ask("POST", "/api/complete", {"content": "", "line": 0, "column": 1})[0] == 422


def test_registered_schemas_are_completed(cluster: Cluster):
    schema = {"type": "object", "properties": {"paid": {"type": "boolean"}}}
    assert cluster.ask("PUT", "/api/schemas/shop/orders", {"json_schema": schema})[0] == 201
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: a}\nworkflow:\n  - step: start\n"

    def offered(text: str) -> list[str]:
        line = text.count("\n") + 1
        column = len(text.rpartition("\n")[2]) + 1
        document = requested(cluster, "/api/complete", content=text, line=line, column=column)
        return [item["word"] for item in document["items"]]

    assert offered(head + "    output: {schema: shop") == ["shop/orders", "shop/orders/v1"]
    named = head + "    output: {schema: shop/orders/v1}\n    tool: {kind: noop}\n"
    assert offered(named + '  - step: next\n    tool: {kind: python, input: {x: "{{ start.data.') == ["paid"]


def test_diagnostics_have_their_range_and_a_documentation_page(cluster: Cluster):
    document = requested(cluster, "/api/validate", content=TEXT.replace("kind: python", "kind: pyton"))
    (found,) = [each for each in document["diagnostics"] if each["line"] == 10]
    assert found["end_column"] > found["column"]
    assert document["docs"].startswith("https://")


def test_the_form_of_a_text_and_of_a_registered_playbook(cluster: Cluster):
    cluster.ask("POST", "/api/catalog/register", {"content": TEXT})
    by_text = requested(cluster, "/api/form", content=TEXT)
    assert by_text == requested(cluster, "/api/form", path="tests/edited")
    assert by_text["description"] == "For editors."
    assert by_text["fields"] == [
        {"name": "pages", "type": "integer", "required": False, "secret": False, "help": "how many", "default": 3}
    ]
    assert cluster.ask("POST", "/api/form", {})[0] == 400
    assert cluster.ask("POST", "/api/form", {"path": "tests/none"})[0] == 404
    assert cluster.ask("POST", "/api/form", {"content": "x"})[0] == 422


def test_versions_of_a_playbook_are_listed_by_page(cluster: Cluster):
    for pages in (1, 2, 3):
        text = TEXT.replace("tests/edited", "tests/versions").replace("pages: 3", f"pages: {pages}")
        assert cluster.ask("POST", "/api/catalog/register", {"content": text})[0] == 201
    status, first = cluster.ask("GET", "/api/versions/tests/versions?limit=2")
    assert status == 200
    assert [row["version"] for row in first["items"]] == [3, 2]
    _, second = cluster.ask("GET", f"/api/versions/tests/versions?limit=2&before={first['next']}")
    assert [row["version"] for row in second["items"]] == [1]
    assert second["next"] is None
    assert cluster.ask("GET", "/api/versions/tests/none")[0] == 404


def test_every_diagnostic_has_a_page(cluster: Cluster):
    status, document = cluster.ask("GET", "/api/diagnostics/unknown-key")
    assert status == 200
    assert (document["severity"], document["title"]) == ("error", "A key that is not valid here")
    assert "## Right" in document["text"]
    assert cluster.ask("GET", "/api/diagnostics/no-such-code")[0] == 404
    assert cluster.ask("GET", "/api/diagnostics/..%2F..%2Findex")[0] in (404, 422)


@pytest.mark.parametrize("route", ["format", "migrate", "complete", "hover", "form"])
def test_editing_needs_a_token(cluster: Cluster, route: str):
    assert cluster.ask("POST", f"/api/{route}", {}, token="")[0] == 401


def test_a_large_text_does_not_block_other_requests(cluster: Cluster):
    steps = "".join(
        f"  - step: s{n}\n    tool: {{kind: noop}}\n    next: {{arcs: [{{step: s{n + 1}}}]}}\n" for n in range(1500)
    )
    large = TEXT.partition("  - step")[0] + steps + "  - step: s1500\n    tool: {kind: noop}\n"
    thinking = threading.Thread(target=cluster.ask, args=("POST", "/api/format", {"content": large}))
    thinking.start()
    answered = 0
    while thinking.is_alive():
        assert cluster.ask("GET", "/healthz")[0] == 200
        answered += 1
    assert answered > 3
