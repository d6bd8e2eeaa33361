"""Class "schemas": no JSON Schema, name of a signal or cron expression takes long or much memory on a server."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.core.language.compile import compile_playbook
from noetl.core.model.schemas.json_schema import InvalidSchema, problems_of
from noetl.core.model.schemas.schema_cost import is_affordable
from noetl.core.model.text_matching import has_parts
from noetl.errors import RequestRefused
from noetl.server.scheduling.cron import Cron
from noetl.tools.registry import specs

SECONDS = 3.0


def doubling(keyword: str, levels: int = 40, *, anchors: bool = False):
    """A schema of which each level applies the next one twice."""
    names = [f"a{level}" for level in range(levels + 1)]
    reference = "#{}" if anchors else "#/$defs/{}"
    schemas = {name: {keyword: [{"$ref": reference.format(following)}] * 2} for name, following in pairwise(names)}
    schemas[names[-1]] = {"type": "string"}
    if anchors:
        schemas = {name: {"$anchor": name, **schema} for name, schema in schemas.items()}
    return {"$defs": schemas, "$ref": reference.format("a0")}


def nested(keyword: str, depth: int):
    """A schema that applies itself twice to each element, and a deep list."""
    value: list = []
    for _ in range(depth):
        value = [value]
    return {"$defs": {"a": {keyword: [{"items": {"$ref": "#/$defs/a"}}] * 2}}, "$ref": "#/$defs/a"}, value


SCHEMAS = {
    **{keyword: (doubling(keyword), 1) for keyword in ("allOf", "anyOf", "oneOf")},
    "anchors": (doubling("anyOf", anchors=True), 1),
    **{f"nested {keyword}": nested(keyword, 60) for keyword in ("allOf", "anyOf", "oneOf")},
    "enumerations": ({"items": {"enum": [[number] for number in range(5000)]}}, [[-1]] * 5000),
    "divisions": ({"items": {"multipleOf": 1e-308}}, [1e308] * 100_000),
    "patterns": ({"patternProperties": {f"a{n}": {"type": "string"} for n in range(3000)}}, dict.fromkeys("abcdefghijklmnopqrstuvwxyz0123456789")),
    "names": ({**doubling("anyOf"), "$ref": "#/$defs/a40", "propertyNames": {"$ref": "#/$defs/a0"}}, {"a": 1}),
    "resources": ({"allOf": [{"$id": "http://a/b", **doubling("anyOf")}]}, 1),
    "escaped pointers": ({**doubling("anyOf"), "$ref": "#/%24defs/a0"}, 1),
    "conditions": ({"$defs": {f"a{n}": {"if": {"$ref": f"#/$defs/a{n + 1}"}, "then": {"$ref": f"#/$defs/a{n + 1}"}} for n in range(40)}, "$ref": "#/$defs/a0"}, 1),
    "unevaluated": ({"$defs": {f"a{n}": {"unevaluatedProperties": False, "$ref": f"#/$defs/a{n + 1}"} for n in range(60)}, "$ref": "#/$defs/a0"}, {"x": 1}),
    "dependent": ({"$defs": {f"a{n}": {"dependentSchemas": {"x": {"$ref": f"#/$defs/a{n + 1}"}, "y": {"$ref": f"#/$defs/a{n + 1}"}}} for n in range(40)}, "$ref": "#/$defs/a0"}, {"x": 1, "y": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_with_too_many_branches_is_refused(name):
    schema, value = SCHEMAS[name]
    began = time.process_time()
    with pytest.raises(InvalidSchema, match="steps"):
        problems_of(schema, value)
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_a_playbook_with_such_a_schema_is_refused_without_checking_its_input(keyword):
    playbook = {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "a", "path": "a"},
        "workflow": [
            {
                "step": "start",
                "input": {"x": 1},
                "spec": {"validation": {"input": doubling(keyword)}},
                "tool": {"kind": "noop"},
            }
        ],
    }
    began = time.process_time()
    found = compile_playbook(yaml.safe_dump(playbook), file="a.yaml", specs=specs())
    assert time.process_time() - began < SECONDS
    assert "steps" in str(found.diagnostics)


TREE = {
    "$defs": {"node": {"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string"}, "left": {"$ref": "#/$defs/node"}, "right": {"$ref": "#/$defs/node"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}},
    "$ref": "#/$defs/node",
}  # fmt: skip


def tree(depth: int):
    node = {"name": "a"}
    return node if depth == 0 else {**node, "left": tree(depth - 1), "right": tree(depth - 1)}


def test_ordinary_schemas_are_used():
    assert problems_of(TREE, tree(9)) == []
    rows = {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "integer"}}}}
    assert problems_of(rows, [{"id": number} for number in range(5000)]) == []
    assert problems_of({"allOf": [{"$ref": "#"}]}, 1) == []
    assert is_affordable({"enum": list(range(500))}, 7)
    assert problems_of(TREE, {"name": 1})


@pytest.mark.parametrize("text", ["b" * 5000, "b" * 5000 + "c", "bc" * 2500])
def test_names_of_signals_are_matched_in_linear_time(text):
    began = time.process_time()
    has_parts(text, ["", *["b"] * 60, "c"])
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize(
    "expression",
    [",".join(["*/1"] * 60_000) + " * * * *", ",".join(["0-59"] * 60_000) + " * * * *", "*/" + "9" * 5000 + " * * * *"],
    ids=["steps", "ranges", "digits"],
)
def test_a_cron_expression_has_a_limited_length(expression):
    with pytest.raises(RequestRefused, match="at most 500 characters"):
        Cron(expression)
    assert Cron(",".join(map(str, range(60))) + " * * * *").next(0.0) == 60.0


@given(st.lists(st.text("ab", max_size=3), min_size=1, max_size=4), st.text("ab", max_size=8))
@settings(max_examples=300, deadline=None)
def test_parts_are_matched_as_by_an_expression(parts, text):
    expression = ".*".join(map(re.escape, parts))
    assert has_parts(text, parts) is (re.fullmatch(expression, text, re.DOTALL) is not None)
