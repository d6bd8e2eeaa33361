"""The plan of a playbook without running it: the order of steps, tasks with effective specs, and requirements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from noetl.core.language.diagnostics import Diagnostic
from noetl.core.language.flow.result_reads import template_texts
from noetl.core.language.flow.template_analysis import analyze_template
from noetl.core.model.playbook import Block, Loop, Playbook, Rule, Step, Task
from noetl.core.model.tool import ToolSpec

# Kinds that wait for an external system, so that a task without a timeout may wait indefinitely.
EXTERNAL_KINDS = frozenset({"http", "postgres", "duckdb", "nats", "snowflake", "mongodb", "shell", "playbook"})


def plan_document(playbook: Playbook, specs: dict[str, ToolSpec]) -> dict[str, Any]:
    """The plan as data."""
    order = reachable(playbook)
    unreached = [step.name for step in playbook.steps if step.name not in set(order)]
    return {
        "name": playbook.name,
        "path": playbook.path,
        "surface": playbook.surface,
        "entry": playbook.entry,
        "return_step": playbook.return_step,
        "steps": [_step(playbook, playbook.step(name)) for name in order],
        "unreached": unreached,
        "blocks": {name: _body(playbook, block) for name, block in playbook.blocks.items()},
        "needs": _needs(playbook, specs),
        "limits": {
            name: getattr(playbook.executor.limits, name) for name in playbook.executor.limits.__struct_fields__
        },
    }


def reachable(playbook: Playbook) -> list[str]:
    """The steps reachable from the entry, nearest first."""
    order = [playbook.entry]
    known = set(order)
    for name in order:
        for arc in playbook.step(name).router.arcs:
            if arc.target not in known and arc.target in playbook.steps_by_name:
                known.add(arc.target)
                order.append(arc.target)
    return order


def _step(playbook: Playbook, step: Step) -> dict[str, Any]:
    return {
        "step": step.name,
        "line": _line(playbook, step.path),
        "admission": [_bare(rule.when) for rule in step.admission.rules],
        "join": step.admission.join,
        **_body(playbook, step, bounded=step.timeout_s is not None or step.deadline_s is not None),
        "timeout_s": step.timeout_s,
        "deadline_s": step.deadline_s,
        "next": {
            "mode": step.router.mode,
            "arcs": [
                {
                    "step": arc.target,
                    "when": arc.when,
                    "sets": [".".join((each.scope, *each.keys)) for each in arc.assignments],
                }
                for arc in step.router.arcs
            ],
        },
    }


def _body(playbook: Playbook, body: Step | Block, *, bounded: bool = False) -> dict[str, Any]:
    return {
        "loop": _loop(body.loop),
        "tasks": [_task(playbook, task, bounded) for task in body.tasks if task.generated is None],
        "sets": [".".join((each.scope, *each.keys)) for each in body.assignments],
        "failure": body.failure,
        "max_task_runs": body.max_task_runs,
    }


def _loop(loop: Loop | None) -> dict[str, Any] | None:
    if loop is None:
        return None
    return {
        "iterator": loop.iterator,
        "in": loop.collection,
        "mode": loop.mode,
        "max_in_flight": loop.max_in_flight,
        "inner": _loop(loop.inner),
    }


def _task(playbook: Playbook, task: Task, bounded: bool) -> dict[str, Any]:
    return {
        "name": task.name,
        "kind": task.kind,
        "line": _line(playbook, task.path),
        "column": place.column if (place := playbook.location(task.path)) else None,
        "spec": task.spec,
        "effect": task.effect,
        "rules": ["ok: continue", "error: fail"] if task.rules is None else [_rule(rule) for rule in task.rules],
        "notes": [] if bounded or task.kind not in EXTERNAL_KINDS or "timeout" in task.spec else ["no timeout"],
    }


def missing_timeouts(plan: dict[str, Any], playbook: Playbook) -> tuple[Diagnostic, ...]:
    """Warnings for tasks that may wait indefinitely; the validator does not report them."""
    found = []
    for body in (*plan["steps"], *plan["blocks"].values()):
        for task in body["tasks"]:
            if "no timeout" in task["notes"] and task["line"] is not None:
                message = f'the task "{task["name"]}" ({task["kind"]}) may wait indefinitely: it has no timeout'
                hint = "set `spec: {timeout: SECONDS}` on it, or `spec.policy.lifecycle.timeout_s` on its step"
                place = (task["line"], task["column"])
                found.append(Diagnostic(playbook.file, *place, *place, "missing-timeout", "warning", message, hint))
    return tuple(found)


def _rule(rule: Rule) -> str:
    then = rule.then
    action = {"retry": f"retry up to {then.attempts} executions", "jump": f"jump to {then.to}"}.get(then.do, then.do)
    return f"{'else' if rule.when is None else _bare(rule.when)}: {action}"


def _needs(playbook: Playbook, specs: dict[str, ToolSpec]) -> dict[str, Any]:
    bodies: list[Step | Block] = [*playbook.steps, *playbook.blocks.values()]
    tasks = [task for body in bodies for task in body.tasks]
    kinds = sorted({task.kind for task in tasks if task.generated is None})
    read: set[str] = set()
    for text in template_texts(_values(playbook)):
        for path, *_ in analyze_template(text).reads:
            if path[0] == "workload" and len(path) > 1 and path[1] not in playbook.workload:
                read.add(path[1])
    read |= {name for name, value in playbook.workload.items() if value is None}
    return {
        "kinds": {kind: "installed" if kind in specs else "not installed" for kind in kinds},
        "keychain": {entry.name: entry.kind for entry in playbook.keychain},
        "workload": sorted(read),
        "playbooks": sorted(
            {str(task.input["path"]) for task in tasks if task.kind == "playbook" and "path" in task.input}
        ),
    }


def _values(playbook: Playbook) -> Iterator[Any]:
    bodies: list[Step | Block] = [*playbook.steps, *playbook.blocks.values()]
    for body in bodies:
        yield body.input
        loop = body.loop
        while loop is not None:
            yield (loop.collection, loop.until, loop.max_in_flight)
            loop = loop.inner
        yield [each.value for each in body.assignments]
        for task in body.tasks:
            yield {name: value for name, value in task.input.items() if name not in task.raw}
            yield task.spec
            yield [each.value for each in task.assignments]
            for rule in task.rules or ():
                yield (rule.when, [each.value for each in rule.then.assignments])
    for step in playbook.steps:
        yield [(rule.when, rule.allow) for rule in step.admission.rules]
        for arc in step.router.arcs:
            yield (arc.when, [each.value for each in arc.assignments])
    yield [entry.fields for entry in playbook.keychain]


def _bare(value: Any) -> str:
    text = "else" if value is None else " ".join(str(value).split())
    return text[2:-2].strip() if text.startswith("{{") and text.endswith("}}") and text.count("{{") == 1 else text


def _line(playbook: Playbook, path: str) -> int | None:
    place = playbook.location(path)
    return place.line if place else None


# ── text ────────────────────────────────────────────────────────────────────────────────────


def as_text(plan: dict[str, Any]) -> str:
    """The plan as text."""
    lines = [f"{plan['path']} ({plan['surface']}): starts at {plan['entry']}"]
    if plan["return_step"]:
        lines.append(f"its output is the output of {plan['return_step']}")
    for number, step in enumerate(plan["steps"], 1):
        lines += ["", f"{number}. {step['step']}" + (f"  (line {step['line']})" if step["line"] else "")]
        lines += [f"   waits for: {rule}" for rule in step["admission"]]
        lines += _body_lines(step)
        arcs = step["next"]["arcs"]
        for arc in arcs:
            when = f" when {_bare(arc['when'])}" if arc["when"] is not None else ""
            sets = f", sets {', '.join(arc['sets'])}" if arc["sets"] else ""
            lines.append(f"   -> {arc['step']}{when}{sets}")
        if len(arcs) > 1:
            lines.append(f"      ({step['next']['mode']})")
    for name, block in plan["blocks"].items():
        lines += ["", f"block {name}", *_body_lines(block)]
    if plan["unreached"]:
        lines += ["", "never reached: " + ", ".join(plan["unreached"])]
    needs = plan["needs"]
    lines += ["", "needs"]
    lines.append("  tools: " + (", ".join(_with_state(needs["kinds"], "installed")) or "none"))
    lines.append("  keychain: " + (", ".join(f"{name} ({kind})" for name, kind in needs["keychain"].items()) or "none"))
    lines.append("  workload from the request: " + (", ".join(needs["workload"]) or "none"))
    if needs["playbooks"]:
        lines.append("  playbooks: " + ", ".join(needs["playbooks"]))
    return "\n".join(lines) + "\n"


def _body_lines(body: dict[str, Any]) -> list[str]:
    lines = []
    loop = body["loop"]
    while loop is not None:
        bound = f", at most {loop['max_in_flight']} at once" if loop["max_in_flight"] else ""
        over = _bare(loop["in"]) if isinstance(loop["in"], str) else "a literal value"
        lines.append(f"   for each {loop['iterator']} in {over} ({loop['mode']}{bound})")
        loop = loop["inner"]
    for task in body["tasks"]:
        note = f"  [{', '.join(task['notes'])}]" if task["notes"] else ""
        lines.append(f"   - {task['name']}: {task['kind']}{note}")
        if task["spec"]:
            lines.append(f"       spec: {_flat(task['spec'])}")
        if task["rules"] != ["ok: continue", "error: fail"]:
            lines += [f"       {rule}" for rule in task["rules"]]
    if body["sets"]:
        lines.append(f"   sets {', '.join(body['sets'])}")
    return lines


def _flat(spec: dict[str, Any], before: str = "") -> str:
    parts = []
    for key, value in spec.items():
        if isinstance(value, dict) and value:
            parts.append(_flat(value, f"{before}{key}."))
        else:
            parts.append(f"{before}{key}={value}")
    return ", ".join(parts)


def _with_state(kinds: dict[str, str], expected: str) -> list[str]:
    return [kind if state == expected else f"{kind} ({state})" for kind, state in kinds.items()]
