"""Task policies: which rule applies, pre-conditions before the tool runs, all other rules after it."""

from __future__ import annotations

from typing import Any

from noetl.core.model.durations import finite
from noetl.core.model.excerpt import written
from noetl.core.model.outcome import Outcome
from noetl.core.pipeline.error_locations import MISSING_DATA, LocatedError, located
from noetl.core.pipeline.frame import Frame, Level
from noetl.core.pipeline.program import CompiledRule, CompiledTask
from noetl.core.templates.template import Compiled
from noetl.errors import TemplateError


def skip_rule(frame: Frame, level: Level, compiled: CompiledTask) -> CompiledRule | None:
    """The first `skip` rule whose guard is true."""
    for rule in compiled.skips:
        if rule.when is None or _holds(frame, level, rule, rule.when):
            return rule
    return None


def matching_rule(frame: Frame, level: Level, compiled: CompiledTask) -> CompiledRule | None:
    """The first rule whose guard is true; `else` (no guard) always is."""
    for rule in compiled.rules or ():
        if rule.when is None or _holds(frame, level, rule, rule.when):
            return rule
    return None


def default_directive(compiled: CompiledTask, outcome: Outcome) -> str:
    """The directive when no rule matches: an error fails without a policy, or if the policy says so."""
    fails = compiled.rules is None or compiled.task.on_unmatched == "fail"
    return "fail" if outcome.status == "error" and fails else "continue"


def number(frame: Frame, level: Level, value: Compiled, what: str, path: str) -> float:
    """The value of a numeric field of a directive, which may be a template."""
    try:
        found: Any = frame.evaluate(level, value)
        result = finite(found)
        if result < 0:
            raise ValueError
    except MISSING_DATA:
        raise
    except TemplateError as problem:
        raise located(frame.playbook, problem, f"{path}/then/{what}", path) from None
    except ValueError:
        where = frame.playbook.where(f"{path}/then/{what}")
        raise LocatedError(
            f"{where}: `{what}` must be a number of at least 0, not {written(found)}", where=where, kind="schema"
        ) from None
    return result


def text(frame: Frame, level: Level, value: Compiled, what: str, path: str) -> str:
    """The value of a text field of a directive, which may be a template."""
    try:
        return str(frame.evaluate(level, value))
    except MISSING_DATA:
        raise
    except TemplateError as problem:
        raise located(frame.playbook, problem, f"{path}/then/{what}", path) from None


def _holds(frame: Frame, level: Level, rule: CompiledRule, when: Compiled) -> bool:
    try:
        return frame.holds(level, when)
    except MISSING_DATA:
        raise
    except TemplateError as problem:
        raise located(frame.playbook, problem, f"{rule.path}/when", rule.path) from None
