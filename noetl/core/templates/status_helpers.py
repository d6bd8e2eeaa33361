"""Status functions of server-side templates: `done('fetch')`, `all_done(['a', 'b'])` and others.

They read a mapping of step name -> status that the caller updates. A step that is not in the mapping has not run: it is
not done, not ok, not failed, not running.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from noetl.core.templates.budget import EvaluationBudget
from noetl.core.templates.functions import Function
from noetl.core.templates.lookup import kind_of
from noetl.errors import TemplateError

# The statuses that count as ok, failed and running.
OK = frozenset(["ok", "success", "done", "completed"])
FAILED = frozenset(["error", "failed"])
RUNNING = frozenset(["running", "in_progress", "started", "scheduled"])

STATUS_FUNCTIONS: dict[str, str] = {
    "done": "`done(step)`: the step has completed or failed",
    "ok": "`ok(step)`: the step has completed successfully",
    "fail": "`fail(step)`: the step has failed",
    "running": "`running(step)`: the step has started and not ended",
    "loop_done": "`loop_done(step)`: all iterations of the loop step have ended",
    "all_done": "`all_done([steps])`: all of the steps have ended",
    "any_done": "`any_done([steps])`: at least one of the steps has ended",
}


def status_functions(
    statuses: Mapping[str, str], *, loops_done: Collection[str] | None = None, known: Collection[str] | None = None
) -> dict[str, Function]:
    """Return the functions over step statuses.

    `loops_done` are the loop steps whose iterations have all ended (without it, those whose step is done).
    `known` are the playbook's steps: the name of another one is an error instead of false.
    """

    def status(step: Any) -> str:
        if not isinstance(step, str):
            raise TemplateError(f"the name of a step is text, not {kind_of(step)}")
        if known is not None and step not in known:
            raise TemplateError(f'there is no step "{step}"')
        return statuses.get(step, "")

    def is_done(step: Any) -> bool:
        return status(step) in OK or status(step) in FAILED

    def loop_done(budget: EvaluationBudget, step: Any) -> bool:
        return is_done(step) or (loops_done is not None and step in loops_done)

    def names(budget: EvaluationBudget, steps: tuple[Any, ...]) -> Iterable[Any]:
        named = steps[0] if len(steps) == 1 and isinstance(steps[0], (list, tuple)) else steps
        budget.charge(2 * len(named))
        return named

    table: dict[str, Any] = {
        "done": lambda budget, step: is_done(step),
        "ok": lambda budget, step: status(step) in OK,
        "fail": lambda budget, step: status(step) in FAILED,
        "running": lambda budget, step: status(step) in RUNNING,
        "loop_done": loop_done,
        "all_done": lambda budget, *steps: all(is_done(step) for step in names(budget, steps)),
        "any_done": lambda budget, *steps: any(is_done(step) for step in names(budget, steps)),
    }
    return {name: Function(name, function) for name, function in table.items()}
