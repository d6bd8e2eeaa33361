"""Which changes of a schema are backward compatible."""

from __future__ import annotations

import pytest

from noetl.core.model.schemas.compatibility import incompatibilities

OLD = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "state": {"enum": ["new", "paid"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 10}},
    },
}


def changed(**more):
    return {**OLD, **more}


def with_property(name, schema):
    return changed(properties={**OLD["properties"], name: schema})


@pytest.mark.parametrize(
    "new",
    [
        OLD,
        changed(title="orders"),
        changed(required=[]),
        with_property("note", {"type": "string"}),
        with_property("id", {"type": "number", "minimum": 0}),
        with_property("state", {"enum": ["new", "paid", "sent"]}),
        with_property("state", {}),
        with_property("tags", {"type": ["array", "null"], "items": {"type": "string"}}),
        changed(properties={"id": OLD["properties"]["id"]}),
        True,
    ],
)
def test_a_wider_schema_is_compatible(new):
    assert list(incompatibilities(OLD, new)) == []


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (changed(required=["id", "state"]), "state: is required now"),
        (with_property("id", {"type": "string"}), "id: the type integer is not accepted any more"),
        (with_property("id", {"type": "integer", "minimum": 2}), "id: `minimum` was added or raised"),
        (with_property("state", {"enum": ["new"]}), "state: 'paid' is not accepted any more"),
        (with_property("id", {"type": "integer", "minimum": 1, "enum": [1]}), "id: `enum` was added"),
        (
            with_property("tags", {"type": "array", "items": {"type": "string", "maxLength": 5}}),
            "tags[]: `maxLength` was added or lowered",
        ),
        (changed(additionalProperties=False), "*: no value is accepted any more"),
        (changed(anyOf=[{"required": ["tags"]}]), "`anyOf` was added or changed, which cannot be compared"),
        (with_property("state", False), "state: no value is accepted any more"),
    ],
)
def test_a_narrower_schema_is_not_compatible(new, reason):
    assert reason in list(incompatibilities(OLD, new))
