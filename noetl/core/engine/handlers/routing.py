"""Routing: which arcs a token takes out of a step, and what they set.

A boundary event (`loop.done`, `step.done`, `step.failed`) is routed once. An arc without `when` is the
success path: it does not fire on `step.failed`. `exclusive` takes the first arc whose guard is true,
`inclusive` all of them. A loop step has two boundaries, `loop.done` and then `step.done`: each arc
fires at most once over both, and `exclusive` chooses one arc over both. At `loop.done` an exclusive
router does not take an unguarded arc that follows guarded ones, since those may become true at
`step.done`.

All guards are evaluated after the step's own `set`, the sets of the taken arcs after all guards,
and all of them against the same `ctx`. Two taken arcs that set one key to different values are an error.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from noetl.core.engine.evaluation.compiled_net import CompiledArc, CompiledStep
from noetl.core.engine.evaluation.context import EvaluationContext, Failure
from noetl.core.engine.evaluation.names import ServerNames, at_arcs
from noetl.core.engine.handlers.assignments import ctx_patch, evaluate_set, evaluate_sets, merge_args
from noetl.core.engine.state import State, StepRun
from noetl.core.model.events import ArcChoice, CtxPatched, Event, NextEvaluated
from noetl.core.model.excerpt import written
from noetl.core.model.merge import put_path
from noetl.core.model.playbook import target_name
from noetl.core.templates.views import plain, with_stored

MAX_PRIORITY = 1_000_000.0
MAX_KEY = 1_000  # characters

_json = msgspec.json.Encoder(order="sorted").encode


def route(state: State, env: EvaluationContext, step_run: StepRun, boundary: str) -> list[Event]:
    """Choose the arcs that the token of a finished step takes; `next.evaluated` records them."""
    name = step_run.step.name
    step = state.net.compiled(name)
    if step.unconditional_arc is not None and boundary == "step.done":
        arc = step.unconditional_arc
        choice = ArcChoice(arc.target, arc.index, True, f"t{state.tokens + 1}", step_run.args)
        return [NextEvaluated(name, step_run.id, boundary, (choice,))]
    if not step.arcs:
        return [NextEvaluated(name, step_run.id, boundary)]
    names = at_arcs(state, env, step_run)
    try:
        evaluated, taken = _choose(env, step, step_run, boundary, names)
        keys = {arc.index: _keys(env, arc, names) for arc in taken if arc.has_keys}
        writes, args = _sets(state, env, step_run, taken, names)
        carried = {index: merge_args(env, step_run.args, values) for index, values in args.items()}
        patch = ctx_patch(env, state.ctx, writes)
    except Failure as failure:
        return [NextEvaluated(name, step_run.id, boundary, error=failure.error)]
    arcs: list[ArcChoice] = []
    number = state.tokens
    for arc, held in evaluated:
        if arc in taken:
            number += 1
            own = carried.get(arc.index, step_run.args)
            arcs.append(ArcChoice(arc.target, arc.index, held, f"t{number}", own, *keys.get(arc.index, ())))
        else:
            arcs.append(ArcChoice(arc.target, arc.index, held))
    events: list[Event] = [NextEvaluated(name, step_run.id, boundary, tuple(arcs))]
    if patch:
        events.append(CtxPatched(patch, "arc", name, step_run.id))
    return events


def _keys(env: EvaluationContext, arc: CompiledArc, names: ServerNames) -> tuple[str | None, str | None, float]:
    """The keys by which tokens of an arc are merged and partitioned, as text, and their priority."""
    parts = (("dedupe", arc.dedupe), ("partition", arc.partition))
    values = [None if each is None else env.evaluate(each, names, f"{arc.path}/spec/{word}") for word, each in parts]
    dedupe, partition = (None if value is None else _text(plain(value)) for value in values)
    if arc.priority is None:
        return dedupe, partition, 0.0
    priority = env.evaluate(arc.priority, names, f"{arc.path}/spec/priority")
    try:
        return dedupe, partition, min(max(float(priority), -MAX_PRIORITY), MAX_PRIORITY)
    except (TypeError, ValueError):
        message = f"`priority` must be a number, not {written(priority)}"
        raise env.fail("template", message, f"{arc.path}/spec/priority") from None


def _text(value: Any) -> str:
    """A key as text; a long one by its digest, as every token has it in the log."""
    text = value if isinstance(value, str) else _json(value).decode()
    return text if len(text) <= MAX_KEY else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _choose(
    env: EvaluationContext, step: CompiledStep, step_run: StepRun, boundary: str, names: ServerNames
) -> tuple[list[tuple[CompiledArc, bool]], list[CompiledArc]]:
    """The evaluated arcs with the result of each guard, and the arcs that fire."""
    evaluated: list[tuple[CompiledArc, bool]] = []
    if step_run.fired and not step.inclusive:
        return evaluated, []
    failed = boundary == "step.failed"
    guarded = False
    for arc in step.arcs:
        if arc.index in step_run.fired:
            continue
        if arc.when is None:
            if boundary == "loop.done" and guarded and not step.inclusive:
                break
            held = not failed
        else:
            guarded = True
            held = env.holds(arc.when, names, f"{arc.path}/when")
        evaluated.append((arc, held))
        if held and not step.inclusive:
            return evaluated, [arc]
    return evaluated, [arc for arc, held in evaluated if held]


def _sets(
    state: State, env: EvaluationContext, step_run: StepRun, taken: list[CompiledArc], names: ServerNames
) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """The ctx writes of all taken arcs (dotted path -> value), and the args that each token carries."""
    writes: dict[str, Any] = {}
    writers: dict[str, CompiledArc] = {}
    args: dict[int, dict[str, Any]] = {}
    for arc in taken:
        if not arc.assignments:
            continue
        names.ctx = with_stored(state.ctx, env.resolve)
        mine = evaluate_sets(env, arc.assignments, names, arc.path)
        for assignment in arc.assignments:
            if assignment.scope == "args":
                value = evaluate_set(env, assignment, names, assignment.path or arc.path)
                args[arc.index] = put_path(args.get(arc.index, {}), assignment.target, value)
        for dotted, value in mine.items():
            for before, known in writes.items():
                if writers[before] is not arc and _clash(before, known, dotted, value):
                    raise env.fail(
                        "ctx.conflict",
                        f'the arcs to "{writers[before].target}" and "{arc.target}" are both taken and set '
                        f"{target_name(dotted)} to different values",
                        arc.path,
                    )
            writes[dotted] = value
            writers[dotted] = arc
    return writes, args


def _clash(before: str, known: Any, dotted: str, value: Any) -> bool:
    if before == dotted:
        return bool(known != value)
    return before.startswith(f"{dotted}.") or dotted.startswith(f"{before}.")
