"""The graph as a whole: steps without a path to them, arcs that never fire."""

from __future__ import annotations

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.flow.guard_conditions import (
    always_false,
    always_true,
    expression,
    required_events,
    tests_only_event,
)
from noetl.core.language.flow.template_analysis import analyze_template
from noetl.core.language.syntax.tree import ArcSyntax, StepSyntax

# The events that end a step, and whether they mean success.
BOUNDARIES = {"step.done": True, "loop.done": True, "call.done": True, "step.failed": False, "call.error": False}
_BOTH = frozenset({True, False})
_NONDETERMINISTIC = frozenset({"now", "uuid", "random"})


def check(context: AnalysisContext) -> None:
    """Check the arcs of every step, and the steps that they lead to."""
    for step in context.document.steps:
        arcs = step.arcs
        open_arcs = [arc for arc in arcs if arc.when is None or _may_fire(context, step, arc)]
        if step.router is not None and step.router.mode == "exclusive" and len(open_arcs) > 1:
            _check_order(context, open_arcs, looping=step.loop is not None)
    # Steps created at run time may lead anywhere.
    if not context.has_dynamic_steps:
        _check_reachable(context)


def _check_reachable(context: AnalysisContext) -> None:
    steps = {step.name: step for step in context.document.steps}
    if len(steps) < 2 or context.entry not in steps:
        return
    reached = [context.entry]
    known = set(reached)
    for name in reached:
        for arc in steps[name].arcs:
            if arc.target in steps and arc.target not in known:
                known.add(arc.target)
                reached.append(arc.target)
    for name, step in steps.items():
        if name not in known:
            message = f'no path leads from "{context.entry}" to the step "{name}"'
            context.reader.add("unreachable-step", step.name_node, message, "add an arc that leads to it, or remove it")


def _check_order(context: AnalysisContext, arcs: list[ArcSyntax], *, looping: bool) -> None:
    """Report arcs after one that always fires: `exclusive` takes the first.

    A loop succeeds with two events, `loop.done` and `step.done`: an arc for one of them leaves the other.
    """
    always_taken: dict[bool, ArcSyntax] = {}  # the first arc that is always taken after a success, and after a failure
    guards: dict[str, ArcSyntax] = {}
    for arc in arcs:
        outcomes = _outcomes(arc)
        text = expression(arc.when)
        earlier = always_taken[min(outcomes)] if always_taken.keys() >= outcomes else guards.get(text) if text else None
        if earlier is not None:
            message = f"this arc never fires: the one on line {earlier.node.line} is taken before it"
            if earlier.when is not None and not always_true(earlier.when) and earlier is guards.get(text):
                hint = f"its guard equals the one on line {earlier.node.line}: change it, or write `mode: inclusive`"
            else:
                hint = f"move it before line {earlier.node.line}, or write `mode: inclusive` to take both"
            context.reader.add("dead-arc", arc.node, message, hint)
            continue
        if text and not any(call.name in _NONDETERMINISTIC for call in analyze_template(arc.when.text).calls):  # type: ignore[union-attr]
            guards[text] = arc
        if always_true(arc.when) or (tests_only_event(arc.when) and (not looping or True not in outcomes)):
            for outcome in outcomes:
                always_taken.setdefault(outcome, arc)


def _outcomes(arc: ArcSyntax) -> frozenset[bool]:
    """The outcomes for which an arc can be taken: success (True), failure (False)."""
    if arc.when is None:
        return frozenset({True})
    required = required_events(arc.when)
    return (
        _BOTH if required is None else frozenset(BOUNDARIES[name] for name in required if name in BOUNDARIES) or _BOTH
    )


def _may_fire(context: AnalysisContext, step: StepSyntax, arc: ArcSyntax) -> bool:
    """Report a guard that is always false, or that requires an event that this step does not have."""
    required = required_events(arc.when)
    if always_false(arc.when):
        message, hint = "this guard is always false, so the arc never fires", "write a condition, or remove the arc"
    elif required is None or (required & BOUNDARIES.keys()) - ({"loop.done"} if step.loop is None else set()):
        return True
    elif not required:
        message, hint = (
            "this guard requires two different event names",
            "compare with one of them, or join them with `or`",
        )
    elif "loop.done" in required:
        message, hint = f'the step "{step.name}" has no loop, so there is no `loop.done`', "write 'step.done'"
    else:
        message = f'no step ends with the event "{min(required)}"'
        hint = "write step.done, step.failed or loop.done"
    context.reader.add("dead-arc", arc.when or arc.node, message, hint)
    return False
