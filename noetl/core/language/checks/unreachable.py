"""The net as a whole: steps that no arc leads to, arcs that can never fire."""

from __future__ import annotations

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.flow.guard_conditions import always, asks_nothing_else, events, expression, never
from noetl.core.language.flow.template_analysis import analyze_template
from noetl.core.language.syntax.tree import ArcSyntax, StepSyntax

# The events that end a step, and whether they tell of a success.
BOUNDARIES = {"step.done": True, "loop.done": True, "call.done": True, "step.failed": False, "call.error": False}
_BOTH = frozenset({True, False})
_CHANGING = frozenset({"now", "uuid", "random"})


def check(scene: AnalysisContext) -> None:
    """Look at the arcs of every step, and at the steps they lead to."""
    for step in scene.document.steps:
        arcs = step.router.arcs if step.router else []
        open_arcs = [arc for arc in arcs if arc.when is None or _may_fire(scene, step, arc)]
        if step.router is not None and step.router.mode == "exclusive" and len(open_arcs) > 1:
            _check_order(scene, open_arcs, looping=step.loop is not None)
    # Steps that are made at run time may lead anywhere.
    if not scene.open_ctx:
        _check_reach(scene)


def _check_reach(scene: AnalysisContext) -> None:
    steps = {step.name: step for step in scene.document.steps}
    if len(steps) < 2 or scene.entry not in steps:
        return
    reached = [scene.entry]
    known = set(reached)
    for name in reached:
        router = steps[name].router
        for arc in router.arcs if router else ():
            if arc.target in steps and arc.target not in known:
                known.add(arc.target)
                reached.append(arc.target)
    for name, step in steps.items():
        if name not in known:
            message = f'no path leads from "{scene.entry}" to the step "{name}"'
            scene.reader.add("unreachable-step", step.name_node, message, "add an arc that leads to it, or remove it")


def _check_order(scene: AnalysisContext, arcs: list[ArcSyntax], *, looping: bool) -> None:
    """Behind an arc that always fires no other can: `exclusive` takes the first.

    A loop succeeds in two events, `loop.done` and `step.done`: an arc that asks for one leaves the other."""
    takers: dict[bool, ArcSyntax] = {}  # the first arc that is always taken after a success, and after a failure
    guards: dict[str, ArcSyntax] = {}
    for arc in arcs:
        after = _endings(arc)
        text = expression(arc.when)
        earlier = takers[min(after)] if takers.keys() >= after else guards.get(text) if text else None
        if earlier is not None:
            message = f"this arc never fires: the one on line {earlier.node.line} is taken before it"
            if earlier.when is not None and not always(earlier.when) and earlier is guards.get(text):
                hint = f"its guard equals the one on line {earlier.node.line}: change it, or write `mode: inclusive`"
            else:
                hint = f"move it before line {earlier.node.line}, or write `mode: inclusive` to take both"
            scene.reader.add("dead-arc", arc.node, message, hint)
            continue
        if text and not any(call.name in _CHANGING for call in analyze_template(arc.when.text).calls):  # type: ignore[union-attr]
            guards[text] = arc
        if always(arc.when) or (asks_nothing_else(arc.when) and (not looping or True not in after)):
            for ending in after:
                takers.setdefault(ending, arc)


def _endings(arc: ArcSyntax) -> frozenset[bool]:
    """After what an arc can be taken: a success (True), a failure (False)."""
    if arc.when is None:
        return frozenset({True})
    asked = events(arc.when)
    return _BOTH if asked is None else frozenset(BOUNDARIES[name] for name in asked if name in BOUNDARIES) or _BOTH


def _may_fire(scene: AnalysisContext, step: StepSyntax, arc: ArcSyntax) -> bool:
    """Tell a guard that never holds, or asks for an event this step never has."""
    asked = events(arc.when)
    if never(arc.when):
        message, hint = "this guard is always false, so the arc never fires", "write a condition, or remove the arc"
    elif asked is None or (asked & BOUNDARIES.keys()) - ({"loop.done"} if step.loop is None else set()):
        return True
    elif not asked:
        message, hint = "this guard requires two different event names", "compare with one of them, or join them with `or`"
    elif "loop.done" in asked:
        message, hint = f'the step "{step.name}" has no loop, so there is no `loop.done`', "write 'step.done'"
    else:
        message = f'no step ends with the event "{min(asked)}"'
        hint = "write step.done, step.failed or loop.done"
    scene.reader.add("dead-arc", arc.when or arc.node, message, hint)
    return False
