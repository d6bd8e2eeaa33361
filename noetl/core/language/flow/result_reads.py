"""Which results are read where: `Step.exports` and `Step.reads`.

`exports` of a step are the parts of its output that server-side templates read; the worker stores them inline when
the payload itself is stored elsewhere. `reads` are the steps whose results a step's worker-side templates read by
name. If they cannot be determined, the value is `*`, which includes all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from noetl.core.language.flow.template_analysis import analyze_template
from noetl.core.model.playbook import ALL, Assignment, Block, Loop, Quota, Step, Task

_CONTEXT = re.compile(r"\b(?:context|results)\b")

# Parts of the envelope: everything else is the payload's.
_ENVELOPE = frozenset({"status", "data", "ref", "_ref", "error", "meta", "http", "pg", "py", "loop", "stats"})


def exports_of(steps: Iterable[Step]) -> dict[str, tuple[str, ...]]:
    """The parts of each step's output that server-side templates read."""
    steps = tuple(steps)
    found: dict[str, dict[str, None]] = {step.name: {} for step in steps}
    for step in steps:
        for text in template_texts(_own_server_values(step)):
            for name, _, _ in analyze_template(text).reads:
                _export_own(found, step.name, name)
                _export_named(found, name)
        for text in template_texts(_other_server_values(step)):
            for name, _, _ in analyze_template(text).reads:
                _export_named(found, name)
    return {name: tuple(paths) for name, paths in found.items()}


def _export_own(found: dict[str, dict[str, None]], step: str, name: tuple[str, ...]) -> None:
    if name[0] in ("output", "outcome"):
        rest = name[1:]
        if rest and rest[0] == "result":
            _export_result(found[step], rest[1:])
        elif rest and rest[0] in _ENVELOPE:
            found[step][".".join(rest)] = None
        elif rest:
            found[step][".".join(("data", *rest))] = None
        else:
            found[step]["data"] = None
    elif name[0] == "result":
        _export_result(found[step], name[1:])


def _export_named(found: dict[str, dict[str, None]], name: tuple[str, ...]) -> None:
    if name[0] == "steps" and len(name) > 1:
        name = name[1:]
        if len(name) > 1 and name[1] in ("status", "output"):
            name = (name[0], *name[2:]) if name[1] == "output" else name[:1]
            if len(name) == 1:
                return
    if name[0] in found:
        _export_result(found[name[0]], name[1:])
        if name[1:2] == ("result",):
            _export_result(found[name[0]], name[2:])


def _export_result(paths: dict[str, None], rest: tuple[str, ...]) -> None:
    """Add the payload field and the envelope field: a result by name reads the payload first, then the envelope."""
    if not rest:
        paths["data"] = None
        return
    if rest[0] in _ENVELOPE:
        paths[".".join(rest)] = None
    if rest[0] != "data" or len(rest) == 1:
        paths[".".join(("data", *rest))] = None


def _own_server_values(step: Step) -> Iterator[Any]:
    for arc in step.router.arcs:
        yield (arc.when, arc.dedupe, arc.partition, arc.priority)
        yield from (assignment.value for assignment in arc.assignments)
    yield from (assignment.value for assignment in step.assignments if step.loop is not None)
    if step.synthesize is not None:
        yield step.synthesize.source
    if step.compensation is not None:
        yield step.compensation.when
    yield from ((emit.when, emit.payload) for emit in step.emits)


def _other_server_values(step: Step) -> Iterator[Any]:
    for rule in step.admission.rules:
        yield rule.when
        yield rule.allow
    loop = step.loop
    if loop is None:
        yield step.input
    while loop is not None:
        yield loop.collection
        yield loop.until
        yield loop.max_in_flight
        loop = loop.inner
    yield step.timeout_s
    yield step.deadline_s


def reads_of(steps: Iterable[Step], blocks: Mapping[str, Block]) -> dict[str, tuple[str, ...]]:
    """The steps whose results each step reads on the worker."""
    steps = tuple(each for step in steps for each in (step, step.compensation and step.compensation.step) if each)
    order = {step.name: number for number, step in enumerate(steps)}
    of_block = {name: _worker_names(_block_values(block), block.tasks) for name, block in blocks.items()}
    calls = {name: _called(block.tasks) for name, block in blocks.items()}
    reads = {}
    for step in steps:
        read = _worker_names(_step_values(step), step.tasks)
        for block in _reached(_called(step.tasks), calls):
            read |= of_block.get(block, set())
        reads[step.name] = (ALL,) if ALL in read else tuple(sorted(read & order.keys(), key=order.__getitem__))
    return reads


def _called(tasks: Iterable[Task]) -> set[str]:
    """The blocks that tasks call; `*` if the name is a template."""
    called = set()
    for task in tasks:
        if task.kind == "workbook":
            block = task.input.get("block")
            called.add(block if isinstance(block, str) and "{" not in block else ALL)
    return called


def _reached(called: set[str], calls: Mapping[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    pending = list(called)
    while pending:
        name = pending.pop()
        if name == ALL:
            pending += [other for other in calls if other not in reached]
            continue
        if name not in reached:
            reached.add(name)
            pending += calls.get(name, ())
    return reached


def _worker_names(values: Iterable[Any], tasks: Iterable[Task]) -> set[str]:
    read: set[str] = set()
    for text in template_texts(values):
        for name, _, _ in analyze_template(text).reads:
            if name[0] == "steps":
                read.add(name[1] if len(name) > 1 and not name[1].isdigit() else ALL)
            elif name[0] == "context":
                read.add(ALL)
            else:
                read.add(name[0])
    for task in tasks:
        for field in task.raw:
            code = task.input.get(field)
            if isinstance(code, str) and _CONTEXT.search(code):
                read.add(ALL)
        if task.kind == "python" and "code" not in task.input:
            read.add(ALL)  # code of a file or of a module: what it reads is unknown
    return read


def _quota_values(quota: Quota | None) -> Iterator[Any]:
    if quota is not None:
        yield (quota.rate, quota.burst, quota.key)


def _step_values(step: Step) -> Iterator[Any]:
    yield from _quota_values(step.quota)
    yield from _task_values(step.tasks)
    yield from (assignment.value for assignment in step.assignments)
    if step.loop is not None:
        yield step.input
    yield from _loop_values(step.loop)


def _block_values(block: Block) -> Iterator[Any]:
    yield from _task_values(block.tasks)
    yield from (assignment.value for assignment in block.assignments)
    yield block.input
    loop = block.loop
    while loop is not None:
        yield loop.collection
        loop = loop.inner
    yield from _loop_values(block.loop)


def _loop_values(loop: Loop | None) -> Iterator[Any]:
    while loop is not None:
        yield loop.until
        if loop.inner is not None:
            yield loop.inner.collection
        loop = loop.inner


def _task_values(tasks: Iterable[Task]) -> Iterator[Any]:
    for task in tasks:
        for name, value in task.input.items():
            if name not in task.raw:
                yield value
        yield task.spec
        yield from _quota_values(task.quota)
        yield from _assigned_values(task.assignments)
        for rule in task.rules or ():
            yield rule.when
            yield (rule.then.attempts, rule.then.delay, rule.then.max_delay, rule.then.message)
            yield from _assigned_values(rule.then.assignments)


def _assigned_values(assignments: Iterable[Assignment]) -> Iterator[Any]:
    for assignment in assignments:
        yield assignment.value


def template_texts(values: Iterable[Any]) -> Iterator[str]:
    """Every text with a template in nested data."""
    for value in values:
        if isinstance(value, str):
            if "{{" in value or "{%" in value:
                yield value
        elif isinstance(value, dict):
            yield from template_texts(value.values())
        elif isinstance(value, list | tuple):
            yield from template_texts(value)
