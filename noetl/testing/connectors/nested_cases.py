"""The part of `TargetConformance` for targets that divide rows into tables (`nested: tables`)."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from noetl.core.model.outcome import Outcome
from noetl.testing.connectors.checks import refused, same_rows, succeeded
from noetl.testing.tools import ToolHost

Rows = list[dict[str, Any]]
Fields = dict[str, Any]
Tables = dict[str, Rows]

CHILDREN = ("__items", "__items__tags")
FIRST: Rows = [
    {"id": 1, "to": {"city": "Oslo"}, "items": [{"sku": "a", "tags": ["x", "y"]}, {"sku": "b", "tags": ["z"]}]},
    {"id": 2, "to": {"city": "Rome"}, "items": [{"sku": "c"}]},
]
FIRST_TABLES: Tables = {
    "": [{"id": 1, "to__city": "Oslo"}, {"id": 2, "to__city": "Rome"}],
    "__items": [
        {"_root_id": 1, "_index_1": 0, "sku": "a"},
        {"_root_id": 1, "_index_1": 1, "sku": "b"},
        {"_root_id": 2, "_index_1": 0, "sku": "c"},
    ],
    "__items__tags": [
        {"_root_id": 1, "_index_1": 0, "_index_2": 0, "value": "x"},
        {"_root_id": 1, "_index_1": 0, "_index_2": 1, "value": "y"},
        {"_root_id": 1, "_index_1": 1, "_index_2": 0, "value": "z"},
    ],
}
LATER: Rows = [  # the second row replaces the first one, also if it comes in another chunk
    {"id": 1, "to": {"zip": "7"}, "items": [{"sku": "y"}, {"sku": "y", "tags": ["y"]}]},
    {"id": 1, "to": {"zip": "8"}, "items": [{"sku": "z", "price": 1.5}]},
    {"id": 3, "to": None, "items": None},
]
MERGED_TABLES: Tables = {
    "": [{"id": 1, "to__zip": "8"}, {"id": 2, "to__city": "Rome"}, {"id": 3}],
    "__items": [{"_root_id": 1, "_index_1": 0, "sku": "z", "price": 1.5}, FIRST_TABLES["__items"][2]],
    "__items__tags": [],
}


class NestedCases:
    """Child tables are written, replaced and emptied with their root table, all of them or none.

    `nests`: as in the `TargetSpec`; `read(fields)` is then called for child tables too."""

    nests = False
    modes: tuple[str, ...] = ("append", "replace", "upsert")

    @pytest.fixture
    def nested(self, place: Any) -> Fields:
        """The fields of a new target with child tables."""
        if not self.nests:
            pytest.skip("this target has no child tables")
        return {**place(), "nested": "tables", "key": "id"}

    def points(self, given: Fields, host: ToolHost) -> list[int]:
        """Numbers of points where a transfer waits."""
        raise NotImplementedError

    def cancelled(self, point: int, given: Fields, host: ToolHost) -> Outcome | None:
        """Run a transfer and cancel it at a point; its outcome if it has one."""
        raise NotImplementedError

    def test_lists_are_child_tables(self, nested: Fields, write: Any, read: Any) -> None:
        """In every mode, and whatever the size of a chunk is."""
        for mode, size in product(self.modes, (1, 100)):
            target = _at(nested, f"_{mode}_{size}") | {"mode": mode}
            outcome = write(FIRST, target, chunk={"size": size})
            succeeded(outcome)
            _same_tables(read, target, FIRST_TABLES, f"lists are child tables (mode {mode}, chunks of {size} rows)")
            counts = outcome.data["targets"][0]["tables"]
            assert sorted(counts.values()) == [3, 3], f"the summary counts the rows of child tables: {counts}"

    def test_upsert_replaces_child_rows(self, nested: Fields, write: Any, read: Any) -> None:
        """Those of the rows that are loaded; the same rows again change nothing."""
        if "upsert" not in self.modes:
            pytest.skip("this target has no mode upsert")
        for size in (1, 100):
            target = _at(nested, f"_{size}") | {"mode": "upsert"}
            for rows in (FIRST, LATER, LATER):
                succeeded(write(rows, target, chunk={"size": size}))
            rule = f"mode upsert replaces the child rows of loaded rows (`delete`; chunks of {size} rows)"
            _same_tables(read, target, MERGED_TABLES, rule)

    def test_replace_empties_child_tables(self, nested: Fields, write: Any, read: Any) -> None:
        """Also of lists that no row has, and if there is no row."""
        if "replace" not in self.modes:
            pytest.skip("this target has no mode replace")
        target = {**nested, "mode": "replace"}
        others: list[Rows] = [[{"id": 7}], []]
        for rows in others:
            succeeded(write(FIRST, target))
            succeeded(write(rows, target))
            expected: Tables = {"": rows, "__items": [], "__items__tags": []}
            _same_tables(read, target, expected, "mode replace empties the child tables that exist (`tables`)")

    def test_all_tables_are_rolled_back(self, nested: Fields, write: Any, read: Any, host: ToolHost) -> None:
        """In every mode, if it fails after some chunks were written, or at another target."""
        wrong = [*LATER[1:], {"id": 4, "items": [{"_index_1": 1}]}]
        other = {"kind": "sqlite", "file": "none.sqlite", "table": "t", "create": False}
        for mode in self.modes:
            target = _at(nested, f"_{mode}") | {"mode": mode}
            succeeded(write(FIRST, target))
            rule = f"a failed transfer in mode {mode} leaves all tables as they were"
            refused(write(wrong, target, chunk={"size": 1}), "a member `_index_1` in a list is an error")
            _same_tables(read, target, FIRST_TABLES, rule)
            refused(write(LATER[1:], other, targets=[target, other]), "another target of the transfer fails")
            _same_tables(read, target, FIRST_TABLES, rule)
            lines = [line for _, line in host.lines if "was not rolled back" in line]
            assert not lines, f"`abort` may follow any other call, or none: {lines[0]}"

    def test_a_cancelled_transfer_changes_all_tables_or_none(
        self, nested: Fields, write: Any, read: Any, host: ToolHost
    ) -> None:
        """Whatever it waits for."""
        mode = self.modes[-1]
        first = _at(nested, "_0") | {"mode": mode}
        given: Fields = {"data": LATER[1:], "chunk": {"size": 1}, "targets": [first]}
        succeeded(write(FIRST, first))
        points = self.points(given, host)
        done = _tables(read, first)
        for point in points:
            target = _at(nested, f"_{point}") | {"mode": mode}
            succeeded(write(FIRST, target))
            outcome = self.cancelled(point, {**given, "targets": [target]}, host)
            allowed = (done,) if outcome is not None and outcome.error is None else (FIRST_TABLES, done)
            assert _tables(read, target) in allowed, f"some of the tables are changed (wait {point} of {points[-1]})"

    def test_the_contract_applies_to_child_tables(self, nested: Fields, write: Any, read: Any) -> None:
        """`schema` of the target is that of every table."""
        succeeded(write(FIRST, nested))
        rows = [{"id": 5, "items": [{"sku": "d", "new": 1}]}]
        frozen = write(rows, {**nested, "mode": "append", "schema": "freeze"})
        refused(frozen, "`schema: freeze` refuses a new column of a child table", "new")
        kept = write(rows, {**nested, "mode": "append", "schema": "discard_value"})
        succeeded(kept)
        discarded = kept.data["targets"][0].get("discarded")
        assert discarded and discarded["values"] == 1, f"`discard_value` counts one discarded value: {discarded}"
        expected = [*FIRST_TABLES["__items"], {"_root_id": 5, "_index_1": 0, "sku": "d"}]
        same_rows(_tables(read, nested)["__items"], expected, "`discard_value` writes the child row without the value")


def _at(target: Fields, suffix: str) -> Fields:
    """The target with another place."""
    from noetl.tools import connectors

    plugin = connectors.targets().get(str(target["kind"]))
    field = "table" if plugin is None else plugin.place
    return {**target, field: f"{target[field]}{suffix}"}


def _same_tables(read: Any, target: Fields, expected: Tables, rule: str) -> None:
    __tracebackhide__ = True
    for suffix, rows in _tables(read, target).items():
        same_rows(rows, expected[suffix], f"{rule}; table NAME{suffix}")


def _tables(read: Any, target: Fields) -> Tables:
    """The rows of all tables, without nulls and in an order."""
    found = {suffix: read(_at(target, suffix)) for suffix in ("", *CHILDREN)}
    return {suffix: _ordered(rows) for suffix, rows in found.items()}


def _ordered(rows: Rows) -> Rows:
    plain = [{name: value for name, value in row.items() if value is not None} for row in rows]
    keys = ("id", "_root_id", "_index_1", "_index_2")
    return sorted(plain, key=lambda row: [row.get(name, 0) for name in keys])
