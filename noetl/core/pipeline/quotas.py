"""Quotas of a run: which token the next task needs, and the event that suspends the run until it gets one.

A run takes the token of its step before its first task, and the token of a task before every attempt of it. Nothing of
the task has been rendered or started while it waits, so a run that waited continues as if it had just arrived.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from noetl.core.model.events import WaitStarted
from noetl.core.model.excerpt import written
from noetl.core.model.playbook import WORKBOOK
from noetl.core.model.quotas.token_bucket import MAX_KEY, Demand, Turn, burst_of, rate_of
from noetl.core.pipeline.actions import Suspend, TakeToken
from noetl.core.pipeline.error_locations import MISSING_DATA, located
from noetl.core.pipeline.frame import Frame, Level, position_of
from noetl.core.pipeline.program import CompiledQuota, CompiledTask
from noetl.core.templates.template import Compiled
from noetl.errors import TemplateError


def needed_token(frame: Frame, level: Level, compiled: CompiledTask) -> TakeToken | None:
    """The next token that the run needs before it starts the current task."""
    of_step = frame.root.program.quota
    if of_step is not None and not frame.began:
        return _needed(frame, frame.root, of_step, True)
    if compiled.quota is None or False in frame.tokens:
        return None
    if compiled.task.kind == WORKBOOK and frame.interrupted:
        return None  # the call had begun, and has its token
    return _needed(frame, level, compiled.quota, False)


def token_taken(frame: Frame, action: TakeToken) -> None:
    """The run has the token and may continue."""
    frame.tokens[action.of_step] = action.demand
    frame.began = frame.began or action.of_step
    frame.turn = None


def release_tokens(frame: Frame) -> tuple[Demand, ...]:
    """The tokens of the task that starts now; its next attempt needs another one."""
    own, whole = frame.tokens.pop(False, None), frame.tokens.get(True)
    return tuple(demand for demand in (whole, own) if demand is not None)


def next_turn(action: TakeToken, at: float) -> Turn:
    """The turn at an instant: the one that the run has, or another one."""
    number = 1 if action.turn is None else action.turn.number + (at != action.turn.at)
    return Turn(at, action.of_step, number)


def wait_for_token(frame: Frame, action: TakeToken, until: float) -> Suspend:
    """Release the run until its turn."""
    level = frame.top
    context = frame.order.context
    waiting = WaitStarted(
        step=context.step,
        step_run_id=context.step_run_id,
        task=level.label(level.task),
        until=until,
        visit=level.event_visit,
        attempt=level.attempt,
        path=frame.path,
        position=replace(position_of(frame), turn=next_turn(action, until)),
        quota=action.demand,
    )
    return Suspend((*frame.drain(), waiting))


def _needed(frame: Frame, level: Level, quota: CompiledQuota, of_step: bool) -> TakeToken:
    given = _value(frame, level, quota, "key", quota.key)
    if given is not None and (isinstance(given, bool) or not isinstance(given, str | int | float)):
        raise _wrong(frame, quota, "key", f"the key of a quota must be a text, not {written(given)}")
    key = quota.default_key if given is None else str(given).strip()
    if not key or len(key) > MAX_KEY or any(ord(each) < 32 for each in key):
        raise _wrong(frame, quota, "key", f"the key of a quota has 1 to {MAX_KEY} characters and no control characters")
    burst = _value(frame, level, quota, "burst", quota.burst)
    try:
        rate = rate_of(_value(frame, level, quota, "rate", quota.rate))
        demand = Demand(key, rate, 1 if burst is None else burst_of(burst))
    except ValueError as problem:
        raise _wrong(frame, quota, "rate", f"the quota of {key!r}: {problem}") from None
    turn = frame.turn if frame.turn is not None and frame.turn.of_step == of_step else None
    return TakeToken(demand, turn, of_step, frame.drain())


def _value(frame: Frame, level: Level, quota: CompiledQuota, name: str, value: Compiled) -> Any:
    try:
        return frame.evaluate(level, value)
    except MISSING_DATA:
        raise
    except TemplateError as problem:
        raise located(frame.playbook, problem, f"{quota.path}/{name}", quota.path) from None


def _wrong(frame: Frame, quota: CompiledQuota, name: str, message: str) -> TemplateError:
    problem = TemplateError(message, path=f"{quota.path}/{name}", kind="schema")
    return located(frame.playbook, problem, f"{quota.path}/{name}", quota.path)
