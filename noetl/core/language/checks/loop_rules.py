"""Loops: reducers, `until`, and writes of parallel iterations."""

from __future__ import annotations

from noetl.core.language.checks.analysis import AnalysisContext, blocks_called
from noetl.core.language.diagnostics import did_you_mean
from noetl.core.language.flow.template_analysis import analyze_template
from noetl.core.language.source.node_reader import is_template
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence
from noetl.core.language.syntax.grammar import REDUCERS
from noetl.core.language.syntax.tree import BodySyntax, LoopSyntax, SetSyntax, StepSyntax, TaskSyntax
from noetl.core.templates.sandbox import parsed
from noetl.core.templates.template import whole_expression
from noetl.errors import TemplateError


def check(context: AnalysisContext) -> None:
    """Check every loop, and the writes that require one."""
    for body in context.document.bodies():
        names: dict[str, None] = {}
        for level in body.loops():
            _check_level(context, level)
            if level.iterator in names:
                message = f'the inner loop has the iterator name of an outer loop, "{level.iterator}"'
                hint = f"use another name; the outer value is only `iter.parent.{level.iterator}`"
                context.reader.add("shadowed-name", level.node.entries["iterator"][1], message, hint)
            if level.iterator:
                names[level.iterator] = None
        _check_reducers(context, body)
        if body.loop is not None and any(level.mode == "parallel" for level in body.loops()):
            _check_parallel(context, body, body.loop)
        if body.loop is None and isinstance(body, StepSyntax):
            _check_writes(context, body)


def _check_level(context: AnalysisContext, loop: LoopSyntax) -> None:
    collection = loop.node.entries["in"][1] if "in" in loop.node.entries else None
    if isinstance(collection, Scalar) and is_template(collection) and not _is_expression(collection.value):
        message = "text beside `{{ }}` makes this text; a loop iterates over a list or a mapping"
        context.reader.add("loop-collection", collection, message, 'write one expression: "{{ workload.items }}"')
    if loop.until is not None and loop.mode == "parallel":
        message = "`until` requires a sequential loop: parallel iterations have no order"
        context.reader.add("until-in-parallel", loop.until, message, "write `mode: sequential`, or remove `until`")
    if loop.max_in_flight is not None and loop.mode == "sequential":
        message = "`max_in_flight` has no effect: this loop is sequential"
        context.reader.add("unused-field", loop.max_in_flight, message, "write `mode: parallel`, or remove it")
    for text, (key, value) in loop.reduce.entries.items() if loop.reduce else ():
        scope, _, rest = text.partition(".")
        if scope not in ("ctx", "step", "state") or not rest:
            hint = (
                f"write `ctx.{text}`" if scope != "iter" else "only `ctx`, `step` and `state` are shared by iterations"
            )
            message = f"a reducer applies to `ctx.*`, `step.*` or `state.*`, not to `{text}`"
            context.reader.add("reduce-target", key, message, hint)
        if not isinstance(value, Scalar) or value.text not in REDUCERS:
            word = value.text if isinstance(value, Scalar) else ""
            hint = did_you_mean(word, REDUCERS, "reducers: " + ", ".join(REDUCERS))
            context.reader.add("unknown-reducer", value, f'unknown reducer "{word}"', hint)


_REDUCED = ("ctx.", "step.", "state.")


def _check_reducers(context: AnalysisContext, body: BodySyntax) -> None:
    """Report reducers for keys that nothing in the loop writes."""
    if blocks_called(body) is None:
        return  # the block is known only at run time
    sets = [each for task in body.tasks() for each in task.all_sets()]
    for task in body.tasks():
        sets += [each for block in context.blocks_called_by(task) for each in context.sets_of(block)]
    written = [".".join((each.scope, *each.keys)) for each in sets]
    for level in body.loops():
        for text, (key, _) in level.reduce.entries.items() if level.reduce else ():
            if text.startswith(_REDUCED) and not any(f"{each}.".startswith(f"{text}.") for each in written):
                message = f"no task of this loop writes `{text}`, so there is nothing to combine"
                context.reader.add(
                    "unused-field", key, message, f"write `set: {{{text}: ...}}` in a task, or remove it"
                )


def _check_parallel(context: AnalysisContext, body: BodySyntax, loop: LoopSyntax) -> None:
    """Report writes to `ctx` and `step` from parallel iterations without a reducer."""
    reduced = {
        tuple(key.split(".")) for level in loop.levels() if level.reduce is not None for key in level.reduce.entries
    }
    shared = ("ctx", "step", "state") if isinstance(body, StepSyntax) else ("ctx", "state")
    for assigned in (assigned for task in body.tasks() for assigned in task.all_sets()):
        if assigned.scope not in shared or _is_reduced(assigned, reduced):
            continue
        if _may_differ(assigned.value):
            message = f"parallel iterations write `{assigned.target}`: different values cause a conflict"
            hint = f"declare a reducer: `loop.spec.policy.reduce: {{{assigned.target}: append}}`, or write `iter.*`"
            context.reader.add("parallel-ctx-write", assigned.key, message, hint)
    for task in body.tasks():
        if task.kind == "workbook":
            _check_called(context, task, reduced)


def _check_called(context: AnalysisContext, task: TaskSyntax, reduced: set[tuple[str, ...]]) -> None:
    """Report writes of a block that parallel iterations call."""
    for block in context.blocks_called_by(task):
        for assigned in context.sets_of(block):
            if assigned.scope not in ("ctx", "state") or _is_reduced(assigned, reduced):
                continue
            if _may_differ(assigned.value):
                message = f'parallel iterations call "{block.name}", which writes `{assigned.target}`'
                hint = f"declare a reducer: `loop.spec.policy.reduce: {{{assigned.target}: append}}`"
                context.reader.add("parallel-ctx-write", task.parameters["block"].value, message, hint)
                return


def _is_expression(text: str) -> bool:
    """Whether a template is exactly one expression; one with a syntax error is reported elsewhere."""
    try:
        return whole_expression(parsed(text)) is not None
    except TemplateError:
        return True


def _is_reduced(assigned: SetSyntax, reduced: set[tuple[str, ...]]) -> bool:
    path = (assigned.scope, *assigned.keys)
    return any(path[: len(each)] == each for each in reduced)


def _may_differ(node: Node) -> bool:
    """Whether iterations may write different values; equal ones are no conflict."""
    if isinstance(node, Scalar):
        if not isinstance(node.value, str):
            return False
        template = analyze_template(node.value)
        return bool(template.calls) or any(read.path[0] not in _SAME_FOR_ALL for read in template.reads)
    if isinstance(node, Mapping):
        return any(_may_differ(value) for _, value in node.entries.values())
    return isinstance(node, Sequence) and any(_may_differ(item) for item in node.items)


_SAME_FOR_ALL = frozenset({"workload", "execution_id", "job"})


def _check_writes(context: AnalysisContext, body: BodySyntax) -> None:
    for assigned in (*(assigned for task in body.tasks() for assigned in task.all_sets()), *body.sets):
        if assigned.scope == "iter":
            message = f'the step "{body.name}" has no loop, so there is no iteration to write to'
            hint = f"write `step.{'.'.join(assigned.keys)}`"
            context.reader.add("iter-outside-loop", assigned.key, message, hint)
