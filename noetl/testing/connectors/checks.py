"""Checks of the conformance suites: a failure says the rule, and what differs from it."""

from __future__ import annotations

from typing import Any

from noetl.core.model.outcome import ErrorInfo, Outcome

Rows = list[dict[str, Any]]
SHOWN = 5  # rows and values in a message


def succeeded(outcome: Outcome, what: str = "the transfer") -> None:
    """The transfer has no error."""
    __tracebackhide__ = True
    if outcome.error is not None:
        raise AssertionError(f"{what} failed: {outcome.error.kind}: {outcome.error.message}")


def refused(outcome: Outcome, rule: str, *words: str) -> ErrorInfo:
    """The error of the transfer; its message has all of the words."""
    __tracebackhide__ = True
    if outcome.error is None:
        raise AssertionError(f"{rule}, but the transfer succeeded with {outcome.data['rows']} rows")
    missing = [word for word in words if word not in outcome.error.message]
    if missing:
        raise AssertionError(f"{rule}: the message does not name {missing[0]!r}: {outcome.error.message}")
    return outcome.error


def same_rows(found: Any, expected: Any, rule: str) -> None:
    """Two lists of rows are equal, or what a test class compares instead (`_sorted`)."""
    __tracebackhide__ = True
    if found != expected:
        rows = _are_rows(found) and _are_rows(expected)
        shown = _difference(found, expected) if rows else f"{found!r:.500} instead of {expected!r:.500}"
        raise AssertionError(f"{rule}: {shown}")


def _are_rows(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)


def _difference(found: Rows, expected: Rows) -> str:
    """What differs first: the number of rows, the columns, a value."""
    if len(found) != len(expected):
        texts = [str(row)[:200] for row in found]
        wanted = [str(row)[:200] for row in expected]
        more = [row for row in texts if row not in wanted]
        less = [row for row in wanted if row not in texts]
        parts = [f"{len(found)} rows instead of {len(expected)}"]
        parts += [f"missing: {', '.join(less[:SHOWN])}"] if less else []
        parts += [f"not expected: {', '.join(more[:SHOWN])}"] if more else []
        return "; ".join(parts)
    for number, (row, wanted_row) in enumerate(zip(found, expected, strict=True), 1):
        if set(row) != set(wanted_row):
            return f"row {number} has the columns {sorted(row)} instead of {sorted(wanted_row)}"
        for name, value in wanted_row.items():
            if row[name] != value:
                return f"row {number}: {name!r} is {row[name]!r:.200} instead of {value!r:.200}"
    return "the rows are in another order"
