"""The delay before the next attempt: every rule and every bound."""

from __future__ import annotations

import pytest

from noetl.core.model.outcome import Outcome, error_info
from noetl.core.pipeline.backoff import delay_before_next, is_retried, with_retry_after


@pytest.mark.parametrize(
    ("backoff", "delay", "finished", "max_delay", "expected"),
    [
        ("none", 2.0, 1, 300, 2.0), ("none", 2.0, 5, 300, 2.0), ("linear", 2.0, 1, 300, 2.0), ("linear", 2.0, 3, 300, 6.0),
        ("exponential", 2.0, 1, 300, 2.0), ("exponential", 2.0, 2, 300, 4.0), ("exponential", 2.0, 4, 300, 16.0),
        ("exponential", 2.0, 20, 300, 300), ("exponential", 1e-12, 10_000, 1e9, 1e-12 * 2.0**64), ("linear", 2.0, 1000, 300, 300),
        ("none", 500.0, 1, 300, 300), ("none", 0.0, 1, 300, 0.0), ("exponential", -1.0, 3, 300, 0.0), ("none", 0.5, 1, 300, 0.5),
        ("none", 2.0, 1, -1.0, 0.0),
    ],
)  # fmt: skip
def test_delays(backoff, delay, finished, max_delay, expected):
    assert delay_before_next(backoff, delay, finished, max_delay) == expected


def failed(status: int | None, retry_after: float | None) -> Outcome:
    helpers = {} if status is None else {"http": {"status": status, "retry_after": retry_after}}
    return Outcome(status="error", error=error_info("server_error", "x"), helpers=helpers)


@pytest.mark.parametrize(
    ("status", "requested", "delay", "max_delay", "expected"),
    [
        (429, 7.0, 1.0, 300, 7.0), (503, 7.0, 1.0, 300, 7.0), (504, 7.0, 1.0, 300, 1.0), (428, 7.0, 1.0, 300, 1.0), (430, 7.0, 1.0, 300, 1.0),
        (502, 7.0, 1.0, 300, 1.0), (429, 7.0, 9.0, 300, 9.0), (429, 700.0, 1.0, 300, 300), (429, None, 1.0, 300, 1.0), (429, 0, 1.0, 300, 1.0),
        (None, None, 1.0, 300, 1.0),
    ],
)  # fmt: skip
def test_an_overloaded_server_is_given_its_time(status, requested, delay, max_delay, expected):
    assert with_retry_after(delay, failed(status, requested), max_delay) == expected


def test_a_success_is_not_delayed():
    outcome = Outcome(status="ok", helpers={"http": {"status": 429, "retry_after": 7.0}})
    assert with_retry_after(1.0, outcome, 300) == 1.0


@pytest.mark.parametrize(
    ("kind", "kinds", "expected"),
    [
        ("timeout", None, True), ("schema", None, False), ("schema", "schema", True), ("schema", ["schema"], True),
        ("timeout", ["schema"], False), ("timeout", [], False), ("timeout", "time", False),
    ],
)  # fmt: skip
def test_which_errors_are_retried(kind, kinds, expected):
    assert is_retried(error_info(kind, "x"), kinds) is expected
