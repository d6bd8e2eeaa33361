"""One call of a tool: timeout, retries of `spec.retry`, and conversion of exceptions to outcomes.

A tool returns an Outcome; an exception that it raises becomes an error outcome. Cancelling a call (lease lost, timeout)
cancels the tool, which stops its work: a process group is killed, a query cancelled, a socket closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from noetl.core.model.durations import finite
from noetl.core.model.outcome import ERROR_KINDS, Outcome, error
from noetl.core.model.playbook import Backoff
from noetl.core.model.tool import Timeout, ToolCall, ToolFunction
from noetl.core.pipeline.backoff import delay_before_next, is_retried, with_retry_after
from noetl.errors import NoetlError, RequestRefused
from noetl.runtime.clock import Clock
from noetl.tools.lineage import KINDS as LINEAGE_KINDS
from noetl.tools.lineage import with_lineage

MAX_RETRIES = 100
GRACE = 0.1  # seconds that a tool has to report its own timeout
_BACKOFFS: dict[str, Backoff] = {"none": "none", "fixed": "none", "linear": "linear", "exponential": "exponential"}

_log = logging.getLogger("noetl.work")


class BadSpec(ValueError):
    """An invalid value of `spec` that the worker reads itself."""


def timeout_of(spec: Mapping[str, Any]) -> Timeout:
    """`spec.timeout`: seconds, or `{connect, read, total}`."""
    value = spec.get("timeout")
    if value is None:
        return _NO_TIMEOUT
    if type(value) is dict or isinstance(value, Mapping):
        parts = value.get("connect"), value.get("read"), value.get("total")
        try:
            return _timeout(*parts)
        except TypeError:  # an unhashable value cannot be cached
            return _timeout.__wrapped__(*parts)
    return Timeout(total=_seconds(value, "timeout"))


_NO_TIMEOUT = Timeout()


@lru_cache(256, typed=True)  # few distinct values
def _timeout(connect: Any, read: Any, total: Any) -> Timeout:
    return Timeout(
        connect=_seconds(connect, "timeout.connect"),
        read=_seconds(read, "timeout.read"),
        total=_seconds(total, "timeout.total"),
    )


def _seconds(value: Any, what: str) -> float | None:
    if value is None:
        return None
    try:
        seconds = finite(value)
    except ValueError:
        raise BadSpec(f"spec.{what} must be a number of seconds, not {value!r}") from None
    if seconds <= 0:
        raise BadSpec(f"spec.{what} must be more than 0 seconds, not {value!r}")
    return seconds


BeforeRetry = Callable[[Outcome], Awaitable[None]]  # called with the failed outcome, after the delay


async def call_tool(run: ToolFunction, call: ToolCall, clock: Clock, again: BeforeRetry | None = None) -> Outcome:
    """Call the tool, with the retries of `spec.retry`."""
    outcome = await _with_retries(run, call, clock, again)
    return await with_lineage(call, outcome) if call.kind in LINEAGE_KINDS else outcome


async def _with_retries(run: ToolFunction, call: ToolCall, clock: Clock, again: BeforeRetry | None) -> Outcome:
    retry = call.spec.get("retry")
    if retry is None or not isinstance(retry, Mapping):
        return await _once(run, call)
    attempts = min(int(_number(retry.get("attempts"), 3, "retry.attempts")), MAX_RETRIES)
    delay = _number(retry.get("delay"), 0.0, "retry.delay")
    most = _number(retry.get("max_delay"), 300.0, "retry.max_delay")
    backoff = _BACKOFFS.get(str(retry.get("backoff", "none")).lower(), "none")
    number = 1
    while True:
        outcome = await _once(run, call)
        problem = outcome.error
        if problem is None or number >= attempts or not is_retried(problem, retry.get("on")):
            return outcome if number == 1 else replace(outcome, meta={**outcome.meta, "tool_attempts": number})
        await clock.sleep(with_retry_after(delay_before_next(backoff, delay, number, most), outcome, most))
        if again is not None:
            await again(outcome)
        number += 1


def _number(value: Any, default: float, what: str) -> float:
    if value is None:
        return default
    try:
        number = finite(value)
    except ValueError:
        raise BadSpec(f"spec.{what} must be a number, not {value!r}") from None
    if number < 0:
        raise BadSpec(f"spec.{what} must not be negative, not {value!r}")
    return number


async def _once(run: ToolFunction, call: ToolCall) -> Outcome:
    total = call.timeout.total
    try:
        if total is None or getattr(run, "own_timeout", False):
            return await run(call)
        # Most tools enforce the timeout themselves and report more details; this is the fallback. Those with
        # `own_timeout` need none: their calls may wait for their turn, which is not part of their time.
        async with asyncio.timeout(total + GRACE) as limit:
            return await run(call)
    except TimeoutError as late:
        if total is not None and limit.expired():
            return error("timeout", f"the task exceeded its timeout of {total:g} s (spec.timeout)")
        return outcome_of(late, call)
    except asyncio.CancelledError as problem:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return outcome_of(problem, call)  # something inside of the tool was cancelled, not the call
    except Exception as problem:  # noqa: BLE001 - every exception of a tool becomes an outcome
        return outcome_of(problem, call)


def outcome_of(problem: BaseException, call: ToolCall) -> Outcome:
    """The outcome of an exception that a tool raised."""
    kind = getattr(problem, "kind", None)
    if isinstance(problem, NoetlError) and kind in ERROR_KINDS:
        return error(str(kind), str(problem) or type(problem).__name__)
    if isinstance(problem, RequestRefused):
        return error("client_error", str(problem))
    if isinstance(problem, TimeoutError):
        return error("timeout", str(problem) or "timeout")
    if isinstance(problem, OSError):
        refused = isinstance(problem, ConnectionError)
        return error("connection" if refused else "unknown", str(problem) or type(problem).__name__)
    _log.error("tool %s raised in task run %s", call.kind, call.task_run_id, exc_info=problem)
    return error("unknown", f"{type(problem).__name__}: {problem}")
