"""Backoff: the delay before the next attempt of a task (LANGUAGE section 3)."""

from __future__ import annotations

from typing import Any

from noetl.core.model.outcome import ErrorInfo, Outcome
from noetl.core.model.playbook import Backoff

# Far beyond any max_delay; bounds 2**n for huge attempt counts.
_LARGEST_EXPONENT = 64


def is_retried(problem: ErrorInfo, kinds: Any) -> bool:
    """Whether `retry` repeats a call: errors that are retryable, or those of the kinds that `on` names."""
    if kinds is None:
        return problem.retryable
    return problem.kind in ([kinds] if isinstance(kinds, str) else kinds)


def delay_before_next(backoff: Backoff, delay: float, finished: int, max_delay: float) -> float:
    """Seconds between attempt number `finished` (from 1) and the next one."""
    if delay <= 0:
        return 0.0
    if backoff == "linear":
        wanted = delay * finished
    elif backoff == "exponential":
        wanted = delay * 2.0 ** min(finished - 1, _LARGEST_EXPONENT)
    else:
        wanted = delay
    return max(0.0, min(wanted, max_delay))


def with_retry_after(delay: float, outcome: Outcome, max_delay: float) -> float:
    """The delay, at least as long as a server that is overloaded (429, 503) requests, up to `max_delay`."""
    answer = outcome.helpers.get("http", {})
    requested = answer.get("retry_after")
    if outcome.error is None or not requested or answer.get("status") not in (429, 503):
        return delay
    return min(max(delay, float(requested)), max_delay)
