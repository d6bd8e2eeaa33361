"""The net as a whole: steps that no arc leads to, arcs that can never fire."""

from __future__ import annotations

import re

from noetl.dsl.checks.scene import Scene
from noetl.dsl.nodes import Scalar
from noetl.dsl.syntax import ArcSyntax, StepSyntax

BOUNDARIES = ("step.done", "step.failed", "loop.done", "call.done")


def check(scene: Scene) -> None:
    """Look at the arcs of every step, and at the steps they lead to."""
    for step in scene.document.steps:
        arcs = step.router.arcs if step.router else []
        for arc in arcs:
            _check_event(scene, step, arc)
        if step.router is not None and step.router.mode == "exclusive":
            _check_order(scene, arcs)
    # Steps that are made at run time may lead anywhere.
    if not scene.open_ctx:
        _check_reach(scene)


def _check_reach(scene: Scene) -> None:
    steps = {step.name: step for step in scene.document.steps}
    executor = scene.document.executor
    entry = executor.entry_step.text if executor and executor.entry_step else "start" if "start" in steps else ""
    reached = [entry or next(iter(steps), "")]
    if reached[0] not in steps or len(steps) < 2:
        return
    known = set(reached)
    for name in reached:
        router = steps[name].router
        for arc in router.arcs if router else ():
            if arc.target in steps and arc.target not in known:
                known.add(arc.target)
                reached.append(arc.target)
    for name, step in steps.items():
        if name not in known:
            message = f'no way leads from "{reached[0]}" to the step "{name}"'
            scene.reader.add("unreachable-step", step.name_node, message, "add an arc that leads to it, or remove it")


def _check_order(scene: Scene, arcs: list[ArcSyntax]) -> None:
    """Behind an arc that always fires no other can: `exclusive` takes the first."""
    on_success: ArcSyntax | None = None
    for arc in arcs:
        if on_success is not None and _only_on_success(arc):
            message = f"this arc never fires: the one in line {on_success.node.line} is taken before it"
            hint = f"put it before line {on_success.node.line}, or write `mode: inclusive` to take both"
            scene.reader.add("dead-arc", arc.node, message, hint)
        if on_success is None and (arc.when is None or _bare(arc) in ("true", "True")):
            on_success = arc


def _check_event(scene: Scene, step: StepSyntax, arc: ArcSyntax) -> None:
    """A guard that asks for an event this step never has."""
    asked = _EVENT.fullmatch(_bare(arc))
    if asked is None:
        return
    name = asked.group(2)
    if name not in BOUNDARIES:
        message = f'the event "{name}" never ends a step'
        scene.reader.add("dead-arc", arc.when or arc.node, message, "write step.done, step.failed or loop.done")
    elif name == "loop.done" and step.loop is None:
        message = f'the step "{step.name}" has no loop, so there is no `loop.done`'
        scene.reader.add("dead-arc", arc.when or arc.node, message, "write 'step.done'")


def _only_on_success(arc: ArcSyntax) -> bool:
    if arc.when is None:
        return True
    asked = _EVENT.fullmatch(_bare(arc))
    return asked is not None and asked.group(2) in ("step.done", "loop.done", "call.done")


def _bare(arc: ArcSyntax) -> str:
    if not isinstance(arc.when, Scalar):
        return ""
    text = arc.when.text.strip()
    return text[2:-2].strip() if text.startswith("{{") and text.endswith("}}") else text


_EVENT = re.compile(r"""event\.name\s*==\s*(['"])([^'"]*)\1""")
