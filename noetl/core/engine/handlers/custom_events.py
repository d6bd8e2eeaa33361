"""Custom events (`spec.policy.emit.events`): appended at the end of a step, before its arcs are evaluated."""

from __future__ import annotations

from noetl.core.engine.evaluation.context import EvaluationContext, Failure
from noetl.core.engine.evaluation.names import at_arcs
from noetl.core.engine.state import State, StepRun
from noetl.core.model.events import CustomEvent, Event
from noetl.core.templates.views import plain


def custom_events(state: State, env: EvaluationContext, step_run: StepRun) -> list[Event]:
    """The custom events of a step that has ended; one that cannot be evaluated is recorded with its error."""
    names = at_arcs(state, env, step_run)
    found: list[Event] = []
    for emit, payload, when in state.net.compiled(step_run.step.name).emits:
        try:
            if step_run.failed if when is None else not env.holds(when, names, f"{emit.path}/when"):
                continue
            data = env.for_log(plain(env.evaluate(payload, names, f"{emit.path}/payload")))
            found.append(CustomEvent(step_run.step.name, step_run.id, emit.name, data))
        except Failure as failure:
            found.append(CustomEvent(step_run.step.name, step_run.id, emit.name, error=failure.error))
    return found
