"""Reducers by themselves: what each accepts, starts with and gives, for every type of value."""

from __future__ import annotations

from functools import reduce as fold

import pytest

from noetl.core.engine.handlers.reduce import join, mismatch, part, start

VALUES = {
    "null": None, "true/false": True, "a number": 2, "a string": "a", "a mapping": {"a": 1}, "a list": [1],
}  # fmt: skip
ACCEPTS = {
    "sum": {"a number"}, "min": {"a number", "a string"}, "max": {"a number", "a string"}, "extend": {"a list"},
    "merge": {"a mapping"}, "count": set(VALUES), "append": set(VALUES), "any": set(VALUES), "all": set(VALUES), "last": set(VALUES),
}  # fmt: skip


@pytest.mark.parametrize("reducer", list(ACCEPTS))
@pytest.mark.parametrize("kind", list(VALUES))
def test_a_value_of_the_wrong_type_is_named(reducer, kind):
    found = mismatch(reducer, VALUES[kind])
    if kind in ACCEPTS[reducer]:
        assert found is None
    else:
        assert found is not None and f"`{reducer}` requires" in found and found.endswith(f"not {kind}")


@pytest.mark.parametrize(
    ("reducer", "values", "expected"),
    [
        ("sum", [1, 2, 3.5], 6.5), ("count", ["a", None, 0], 3), ("append", [1, [2]], [1, [2]]), ("extend", [[1], [2, 3]], [1, 2, 3]),
        ("merge", [{"a": {"b": 1}}, {"a": {"c": 2}}], {"a": {"b": 1, "c": 2}}), ("any", [0, "", 1], True), ("any", [0, ""], False),
        ("all", [1, "a"], True), ("all", [1, 0, 1], False), ("last", [1, 2, None], None), ("last", [1, 2], 2),
        ("min", [3, 1, 2], 1), ("max", [1, 3, 2], 3),
        ("min", ["b", "a"], "a"), ("max", ["a", "b"], "b"), ("min", ["a", 5], 5), ("max", ["a", 5], "a"), ("max", [5, "a"], "a"),
        ("min", [5, "a"], 5), ("extend", [(1, 2), [3]], [1, 2, 3]),
    ],
)  # fmt: skip
def test_values_are_joined_in_order(reducer, values, expected):
    assert fold(lambda left, right: join(reducer, left, right), [part(reducer, value) for value in values]) == expected


@pytest.mark.parametrize(
    ("reducer", "value", "expected"),
    [
        ("append", [1], ([1], None)), ("append", (1,), ([1], None)), ("append", 1, (None, "it is a number, not a list")),
        ("extend", "a", (None, "it is a string, not a list")), ("count", 3, (3, None)), ("count", True, (None, "it is true/false, not a number")),
        ("count", "a", (None, "it is a string, not a number")), ("sum", 2, (2, None)), ("sum", None, (None, "`sum` requires a number, not null")),
        ("any", 1, (True, None)), ("all", "", (False, None)), ("last", {"a": 1}, ({"a": 1}, None)), ("merge", 1, (None, "`merge` requires a mapping, not a number")),
    ],
)  # fmt: skip
def test_the_value_before_the_loop_is_the_start(reducer, value, expected):
    assert start(reducer, value) == expected
