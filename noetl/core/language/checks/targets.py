"""Names of targets: steps of arcs, tasks of jumps, blocks of calls, the entry and return steps."""

from __future__ import annotations

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.diagnostics import did_you_mean
from noetl.core.language.flow.visibility import SCOPE_NAMES
from noetl.core.language.source.node_reader import Reader, is_template
from noetl.core.language.source.nodes import Scalar
from noetl.core.language.syntax.tree import BodySyntax, StepSyntax
from noetl.core.templates.functions import FUNCTIONS


def check(context: AnalysisContext) -> None:
    """Report every target that does not exist."""
    document, reader = context.document, context.reader
    steps = context.steps
    blocks = document.block_names()
    if document.executor is not None:
        made_later = any(step.synthesis is not None for step in document.steps)
        for word in ("entry_step", "return_step"):
            node = getattr(document.executor, word)
            if node is not None and node.text not in steps and not (word == "return_step" and made_later):
                message = f'`{word}` names the unknown step "{node.text}"'
                reader.add("unknown-step", node, message, did_you_mean(node.text, steps))
    for step in document.steps:
        for arc in step.arcs:
            if arc.target is not None and arc.target_node is not None and arc.target not in steps:
                message = f'this arc leads to the unknown step "{arc.target}"'
                reader.add("unknown-step", arc.target_node, message, did_you_mean(arc.target, steps))
    for body in document.bodies():
        _check_names(body, reader)
        _check_jumps(body, reader)
        _check_calls(body, blocks, reader)


def _check_names(body: BodySyntax, reader: Reader) -> None:
    """Report names that templates cannot read, because they have another meaning."""
    named = [("step" if isinstance(body, StepSyntax) else "block", body.name, body.name_node)]
    named += [("task", task.name, task.name_node) for task in body.tasks() if task.named]
    for what, name, node in named:
        if what != "block" and (name in SCOPE_NAMES or name in FUNCTIONS):
            message = f'a {what} named "{name}" cannot be read by its name: in templates `{name}` has another meaning'
            reader.add("shadowed-name", node, message, "choose another name")


def _check_jumps(body: BodySyntax, reader: Reader) -> None:
    labels = [task.name for task in body.tasks()] + [construct.name for construct in body.constructs()]
    for task in body.tasks():
        for rule in task.rules:
            to = rule.fields.get("to")
            if rule.do == "jump" and to is None:
                where = rule.then or rule.node
                reader.add("jump-without-target", where, "`do: jump` requires `to`", "name a task of this pipeline")
            elif isinstance(to, Scalar) and rule.do == "jump" and to.text not in labels:
                message = f'jump to the unknown task "{to.text}"'
                reader.add("unknown-jump-target", to, message, did_you_mean(to.text, labels))


def _check_calls(body: BodySyntax, blocks: list[str], reader: Reader) -> None:
    for task in body.tasks():
        called = task.parameters.get("block") if task.kind == "workbook" else None
        if called is None or not isinstance(called.value, Scalar) or is_template(called.value):
            continue
        if called.value.value is None or not called.value.text.strip():
            continue  # reported as a missing parameter
        if called.value.text not in blocks:
            message = f'unknown workbook block "{called.value.text}"'
            reader.add(
                "unknown-block",
                called.value,
                message,
                did_you_mean(called.value.text, blocks, "add it under `workbook`"),
            )
