"""Routing: by which arcs a token leaves a step, and what they set.

A boundary event (`loop.done`, `step.done`, `step.failed`) is routed once. An arc without `when` is the
success path: it does not fire on `step.failed`. `exclusive` takes the first arc that holds,
`inclusive` all of them. A loop step has two boundaries, `loop.done` and then `step.done`: each arc
fires at most once over both, and `exclusive` chooses one arc over both. At `loop.done` an exclusive
router leaves an unguarded arc alone when guarded ones stand before it, since those may still hold at
`step.done`.

All guards are evaluated after the step's own `set`, the sets of the chosen arcs after all guards,
and all of them against the same `ctx`; two chosen arcs that set one key differently are an error.
"""

from __future__ import annotations

from typing import Any

from noetl.engine.env import Env, Failure
from noetl.engine.names import ServerNames, at_arcs
from noetl.engine.net import CompiledArc, CompiledAssignment, CompiledStep
from noetl.engine.state import State, StepRun
from noetl.model.events import ArcChoice, CtxPatched, Event, NextEvaluated
from noetl.model.merge import deep_merge, put_path

_UNSET = object()


def route(state: State, env: Env, step_run: StepRun, boundary: str) -> list[Event]:
    """Choose the arcs by which a finished step's token leaves; `next.evaluated` says which."""
    step = state.net.compiled(step_run.step.name)
    run_id, name = step_run.id, step_run.step.name
    if not step.arcs:
        return [NextEvaluated(step=name, step_run_id=run_id, boundary=boundary)]
    names = at_arcs(state, env, step_run, boundary)
    try:
        looked_at, taken = _choose(env, step, step_run, boundary, names)
        patch, args = _sets(state, env, taken, names) if taken else ({}, {})
    except Failure as failure:
        return [NextEvaluated(step=name, step_run_id=run_id, boundary=boundary, error=failure.error)]
    arcs: list[ArcChoice] = []
    number = state.tokens
    for arc, held in looked_at:
        if arc in taken:
            number += 1
            carried = deep_merge(step_run.args, args[arc.index]) if args.get(arc.index) else step_run.args
            arcs.append(ArcChoice(arc.target, arc.index, held, f"t{number}", carried))
        else:
            arcs.append(ArcChoice(arc.target, arc.index, held))
    events: list[Event] = [NextEvaluated(step=name, step_run_id=run_id, boundary=boundary, arcs=tuple(arcs))]
    if patch:
        events.append(CtxPatched(patch=patch, cause="arc", step=name, run_id=run_id))
    return events


def _choose(
    env: Env, step: CompiledStep, step_run: StepRun, boundary: str, names: ServerNames
) -> tuple[list[tuple[CompiledArc, bool]], list[CompiledArc]]:
    """The arcs that were looked at, whether each held, and those that fire."""
    looked_at: list[tuple[CompiledArc, bool]] = []
    if step_run.fired and not step.inclusive:
        return looked_at, []
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
        looked_at.append((arc, held))
        if held and not step.inclusive:
            return looked_at, [arc]
    return looked_at, [arc for arc, held in looked_at if held]


def _sets(
    state: State, env: Env, taken: list[CompiledArc], names: ServerNames
) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """The ctx patch of all chosen arcs, and the args that travel along each."""
    writes: dict[tuple[str, ...], tuple[Any, CompiledArc]] = {}
    args: dict[int, dict[str, Any]] = {}
    for arc in taken:
        for assignment in arc.assignments:
            value = env.evaluate(assignment.value, names, assignment.path or arc.path)
            if assignment.scope == "args":
                args[arc.index] = put_path(args.get(arc.index, {}), assignment.target, value)
                continue
            for written, (known, other) in writes.items():
                if other is not arc and _clash(written, known, assignment, value):
                    raise env.fail(
                        "ctx.conflict",
                        f'the arcs to "{other.target}" and "{arc.target}" are both taken and set '
                        f"ctx.{'.'.join(assignment.target)} to different values",
                        assignment.path or arc.path,
                    )
            writes[assignment.target] = (value, arc)
    ctx = state.ctx
    patch: dict[str, Any] = {}
    for target, (value, _) in writes.items():
        patch[target[0]] = put_path({**ctx, **patch}, target, value)[target[0]]
    return patch, args


def _clash(written: tuple[str, ...], known: Any, assignment: CompiledAssignment, value: Any) -> bool:
    target = assignment.target
    if written == target:
        return bool(known != value)
    shorter = min(len(written), len(target))
    return written[:shorter] == target[:shorter]


def ctx_patch(ctx: dict[str, Any], writes: dict[str, Any]) -> dict[str, Any]:
    """Writes by dotted path as a patch of whole top-level values."""
    patch: dict[str, Any] = {}
    for dotted, value in writes.items():
        if "." not in dotted:
            patch[dotted] = value
            continue
        target = tuple(dotted.split("."))
        base = patch if target[0] in patch else ctx
        patch[target[0]] = put_path(base, target, value)[target[0]]
    return patch


def evaluate_sets(
    env: Env, assignments: tuple[CompiledAssignment, ...], names: ServerNames, path: str
) -> dict[str, Any]:
    """The ctx writes (dotted path -> value) of a step's own `set`, where the server evaluates it."""
    return {
        ".".join(each.target): env.evaluate(each.value, names, each.path or path)
        for each in assignments
        if each.scope == "ctx"
    }
