"""Directives: one function per `do:`; each returns the next position of the program counter.

Attempts. `attempts: N` means N executions in total, including the first one. They are counted per
*visit*: entering a task again by `jump` starts a new count, and `_visit` counts the entries. A lost
worker uses up the attempt that it had started. After the last attempt `retry` becomes `fail`, with
the error of the last execution.

With `retry`, `delay` is the base of the `backoff`, and an HTTP server's `Retry-After` is honoured; with `jump`
and `continue` it is a fixed pause before the next task (a polling loop).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from msgspec.structs import replace

from noetl.core.model.outcome import ERROR_KINDS, MAX_MESSAGE, ErrorInfo, Outcome, error_info
from noetl.core.model.playbook import DEFAULT_ATTEMPTS, DEFAULT_MAX_DELAY, WORKBOOK
from noetl.core.pipeline.backoff import delay_before_next, is_retried, with_retry_after
from noetl.core.pipeline.frame import Frame, Level
from noetl.core.pipeline.policy import number, text
from noetl.core.pipeline.program import PLAYBOOK, CompiledRule, CompiledTask
from noetl.core.templates.template import compile_value

Do = Literal["continue", "skip", "retry", "jump", "break", "fail"]


class Move(NamedTuple):
    """The next move of the pipeline: to a task, after `delay`, or to the end."""

    do: Do
    target: int | None = None  # index of the next task; None: the pipeline ends, or the same task runs again
    to: str | None = None
    delay: float = 0.0
    error: ErrorInfo | None = None  # why it failed


def do_continue(frame: Frame, level: Level, rule: CompiledRule | None, outcome: Outcome) -> Move:
    """Go to the next task."""
    return Move("continue", target=level.current + 1, delay=_pause(frame, level, rule))


def do_jump(frame: Frame, level: Level, rule: CompiledRule | None, outcome: Outcome) -> Move:
    """Go to the task that `to` names."""
    assert rule is not None
    to = str(rule.then.to)
    return Move("jump", target=level.program.entry(to), to=to, delay=_pause(frame, level, rule))


def do_break(frame: Frame, level: Level, rule: CompiledRule | None, outcome: Outcome) -> Move:
    """End the pipeline successfully."""
    return Move("break")


def do_fail(frame: Frame, level: Level, rule: CompiledRule | None, outcome: Outcome) -> Move:
    """End the pipeline with the task's error, or with the rule's own `message` and `kind`."""
    where = frame.playbook.where(rule.path if rule else level.task.path)
    problem = outcome.error or error_info("unknown", f'{where}: task "{level.task.name}" failed by this rule')
    if rule is None or (rule.then.message is None and rule.then.kind is None):
        return Move("fail", error=problem)
    message = problem.message
    if rule.then.message is not None:
        message = text(frame, level, rule.then.message, "message", rule.path)
        if len(message) > MAX_MESSAGE:
            message = f"{where}: the message of this rule has {len(message):,} characters (at most {MAX_MESSAGE:,})"
    kind = rule.then.kind or problem.kind
    retryable = ERROR_KINDS[kind] if rule.then.kind else problem.retryable
    return Move("fail", error=replace(problem, kind=kind, message=message, retryable=retryable))


def do_retry(frame: Frame, level: Level, rule: CompiledRule | None, outcome: Outcome) -> Move:
    """Run the same task again while attempts are left."""
    assert rule is not None
    then = rule.then
    attempts = int(number(frame, level, then.attempts, "attempts", rule.path))
    if level.attempt >= attempts:
        return _exhausted(frame, level, rule, outcome, attempts)
    most = number(frame, level, then.max_delay, "max_delay", rule.path)
    delay = delay_before_next(then.backoff, number(frame, level, then.delay, "delay", rule.path), level.attempt, most)
    return Move("retry", delay=with_retry_after(delay, outcome, most))


def retry_call(frame: Frame, level: Level, compiled: CompiledTask, outcome: Outcome) -> Move | None:
    """The next attempt of a call of a playbook or block that has its own `retry`; other tools retry on the worker."""
    if outcome.error is None or compiled.task.kind not in (PLAYBOOK, WORKBOOK) or "retry" not in compiled.task.spec:
        return None
    path = f"{compiled.task.path}/spec"
    given = {name: compile_value(value) for name, value in compiled.task.spec["retry"].items()}

    def field(name: str, default: float) -> float:
        return number(frame, level, given[name], f"retry/{name}", path) if name in given else default

    kinds = frame.evaluate(level, given["on"]) if "on" in given else None
    if level.attempt >= field("attempts", DEFAULT_ATTEMPTS) or not is_retried(outcome.error, kinds):
        return None
    backoff = compiled.task.spec["retry"].get("backoff", "none")
    most = field("max_delay", DEFAULT_MAX_DELAY)
    delay = delay_before_next(backoff, field("delay", 0), level.attempt, most)
    return Move("retry", delay=with_retry_after(delay, outcome, most))


def _exhausted(frame: Frame, level: Level, rule: CompiledRule, outcome: Outcome, attempts: int) -> Move:
    if outcome.error is not None:
        return Move("fail", error=outcome.error)
    where = frame.playbook.where(rule.path)
    message = f'{where}: task "{level.task.name}" did not succeed after {attempts} attempts'
    return Move("fail", error=error_info("limit", message))


def _pause(frame: Frame, level: Level, rule: CompiledRule | None) -> float:
    if rule is None or (rule.then.delay.static and not rule.then.delay.evaluate({})):
        return 0.0
    wanted = number(frame, level, rule.then.delay, "delay", rule.path)
    return min(wanted, number(frame, level, rule.then.max_delay, "max_delay", rule.path))


DIRECTIVES: dict[str, Callable[[Frame, Level, CompiledRule | None, Outcome], Move]] = {
    "continue": do_continue,
    "jump": do_jump,
    "break": do_break,
    "fail": do_fail,
    "retry": do_retry,
}
