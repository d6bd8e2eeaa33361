"""Rendered parameters of plug-ins are checked against their declarations before the plug-in is called."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.core.model.tool import Field
from noetl.tools._common.plugin_fields import field_problem

FIELDS = {
    "limit": Field("any", accepts=("integer",), least=1, aliases=("most",)),
    "format": Field("string", choices=("json", "text"), also=("ndjson",)),
    "commit": Field("boolean"),
    "options": Field("mapping"),
    "rows": Field("list"),
    "command": Field("any", accepts=("string", "list")),
    "topic": Field("string"),
    "value": Field("any"),
}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, None),
        ({"limit": None, "commit": None, "options": "", "rows": ""}, None),
        ({"limit": "5", "format": "JSON", "commit": False, "options": {}, "rows": (1,), "topic": 5, "value": {}}, None),
        ({"command": ["a"]}, None),
        ({"format": "ndjson"}, None),
        ({"limit": "many"}, "`limit` must be a number, not 'many'"),
        ({"most": 0}, "`most` must be at least 1, not 0"),
        ({"format": "xml"}, "`format` must be one of json, text, not 'xml'"),
        ({"commit": "false"}, "`commit` must be true or false, not 'false'"),
        ({"options": [1]}, "`options` must be a mapping, not a list"),
        ({"rows": {"a": 1}}, "`rows` must be a list, not a mapping"),
        ({"topic": ["a"]}, "`topic` must be text, not a list"),
        ({"command": {"a": 1}}, "`command` must be a list or text, not a mapping"),
        ({"options": "x" * 500}, "`options` must be a mapping, not a text of 502 characters"),
    ],
)
def test_problems(given: dict[str, Any], problem: str | None) -> None:
    assert field_problem(FIELDS, given) == problem


REQUIRED = {
    "path": Field("string", required=True, aliases=("file",)),
    "query": Field("string"),
    "table": Field("string"),
}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"file": "x", "query": "select 1"}, None),
        ({"path": "", "table": "t"}, None),
        ({"path": None, "table": "t"}, "`path` is required, and has no value"),
        ({"path": "x", "query": None}, "`query` or `table` is required, and has no value"),
    ],
)
def test_a_required_field_whose_template_has_no_value(given: dict[str, Any], problem: str | None) -> None:
    assert field_problem(REQUIRED, given, (("query", "table"),)) == problem
