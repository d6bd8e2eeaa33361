"""`{{ cursor }}` in a source before there is one: left out, replaced by a default, or an error; never the text None."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.core.templates.deferred import DeferredTemplate
from tests.tools.test_transfer_incremental import Pipeline, made
from tests.tools.test_transfer_web import Api, api  # noqa: F401 - a fixture


def api_load(api: Api, tmp_path: Any, **fields: Any) -> Pipeline:  # noqa: F811
    side = {"kind": "http", "url": f"{api.url}/counted", "rows_path": "data", **fields}
    to = {"kind": "duckdb", "file": str(tmp_path / "target.duckdb"), "table": "orders"}
    return Pipeline(tmp_path, side, to, cursor="id")


@pytest.mark.parametrize(
    ("template", "sent"),
    [("{{ cursor }}", None), ("{{cursor}}", None), ("{{ cursor | default(0) }}", "since=0")],
)
def test_a_first_request_without_a_cursor(tmp_path, api, template, sent):  # noqa: F811
    outcome = api_load(api, tmp_path, params={"since": DeferredTemplate(template)}).load()
    assert outcome.status == "ok", outcome.error
    assert sent in api.requested[0] if sent else "since" not in api.requested[0]


@pytest.mark.parametrize("place", ["params", "url", "headers", "body"])
def test_a_text_with_the_cursor_requires_one(tmp_path, api, place):  # noqa: F811
    text = DeferredTemplate(f"{api.url}/counted?since={{{{ cursor | urlencode }}}}")
    load = api_load(api, tmp_path, **{place: text if place in ("url", "body") else {"since": text}})
    outcome = load.load()
    assert outcome.status == "error" and not api.requested
    assert "There is no cursor before the first load: set `incremental.initial`" in outcome.error.message


@pytest.mark.parametrize(
    ("fields", "rows"),
    [
        ({"query": "select * from orders where seen >= :since", "params": {"since": "{{ cursor }}"}}, None),
        ({"query": "select * from orders where seen >= :since", "params": {"since": "{{ cursor | default(2) }}"}}, 1),
        ({"query": DeferredTemplate("select * from orders where seen >= {{ cursor }}")}, None),
        ({"query": DeferredTemplate("select * from orders where seen >= {{ cursor | default(2) }}")}, 1),
    ],
)
def test_a_query_does_not_compare_with_null(tmp_path, fields, rows):
    place = str(tmp_path / "source.sqlite")
    made(place, "integer", "1", "2")
    params = {name: DeferredTemplate(each) for name, each in fields.get("params", {}).items()}
    side = {"kind": "sqlite", "file": place, **fields, "params": params}
    outcome = Pipeline(tmp_path, side, {"kind": "duckdb", "file": str(tmp_path / "t.duckdb"), "table": "o"}).load()
    if rows is None:
        assert outcome.status == "error" and "There is no cursor before the first load" in outcome.error.message
    else:
        assert outcome.status == "ok" and outcome.data["rows"] == rows, outcome.error
