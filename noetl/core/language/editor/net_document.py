"""The graph of a playbook as data: steps, arcs, and what a drawing needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from noetl.core.model.playbook import Loop, Playbook, Step


def net_document(playbook: Playbook, synthesized: Iterable[Step] = ()) -> dict[str, Any]:
    """Nodes and arcs in the author's order; steps created at run time are marked."""
    created = list(synthesized)
    nodes = [_node(step, playbook) for step in playbook.steps] + [
        _node(step, playbook, created=True) for step in created
    ]
    arcs = [
        {
            "source": step.name,
            "target": arc.target,
            "index": index,
            "when": arc.when,
            "mode": step.router.mode,
            "dedupe": arc.dedupe,
            "partition": arc.partition,
            "priority": arc.priority,
            "sets": [".".join((each.scope, *each.keys)) for each in arc.assignments],
        }
        for step in (*playbook.steps, *created)
        for index, arc in enumerate(step.router.arcs)
    ]
    arcs += [
        {
            "source": step.synthesized_by,
            "target": step.name,
            "index": f"+{step.name}",
            "when": None,
            "mode": "exclusive",
            "dedupe": None,
            "partition": None,
            "priority": None,
            "sets": [],
            "synthesized": True,
        }
        for step in created
        if step.synthesized_by
    ]
    return {
        "path": playbook.path,
        "name": playbook.name,
        "entry": playbook.entry,
        "return_step": playbook.return_step,
        "nodes": nodes,
        "arcs": arcs,
    }


def _node(step: Step, playbook: Playbook, *, created: bool = False) -> dict[str, Any]:
    return {
        "step": step.name,
        "description": step.description,
        "line": _line(playbook, step.path),
        "entry": step.name == playbook.entry,
        "synthesized": created,
        "synthesizes": None
        if step.synthesize is None
        else {"steps": step.synthesize.max_steps, "kinds": step.synthesize.kinds},
        "pool": step.pool,
        "labels": step.labels,
        "gate": bool(step.admission.rules),
        "join": step.admission.join,
        "loop": _loop(step.loop),
        "tasks": _tasks(step, playbook),
        "compensation": None
        if step.compensation is None
        else {"tasks": _tasks(step.compensation.step, playbook), "when": step.compensation.when},
    }


def _tasks(step: Step, playbook: Playbook) -> list[dict[str, Any]]:
    return [
        {"name": task.name, "kind": task.kind, "line": _line(playbook, task.path)}
        for task in step.tasks
        if task.generated is None
    ]


def _line(playbook: Playbook, path: str) -> int | None:
    place = playbook.location(path)
    return place.line if place else None


def _loop(loop: Loop | None) -> dict[str, Any] | None:
    if loop is None:
        return None
    return {
        "iterator": loop.iterator,
        "mode": loop.mode,
        "in": loop.collection if isinstance(loop.collection, str) else None,
        "inner": _loop(loop.inner),
    }
