"""Parameters of `wait` tasks: the form is a JSON Schema, durations and instants can be read, roles exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.diagnostics import did_you_mean
from noetl.core.language.source.node_reader import is_template
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence, data_of
from noetl.core.language.syntax.tree import Parameter, TaskSyntax
from noetl.core.model.durations import instant_of, seconds
from noetl.core.model.roles import ROLES
from noetl.core.model.schemas.json_schema import schema_problem
from noetl.core.templates.template import compile_value

_DURATION = "write a duration such as 90s, 15m, 48h or 2d"


def check(context: AnalysisContext) -> None:
    """Check every `wait` task."""
    for body in context.document.bodies():
        for task in body.tasks():
            if task.kind == "wait":
                _check(context, task)


def _check(context: AnalysisContext, task: TaskSyntax) -> None:
    given = task.parameters
    for name in ("timeout", "for"):
        _check_scalar(context, given.get(name), _duration, f"`{name}` is not a duration longer than 0", _DURATION)
    _check_scalar(context, given.get("until"), instant_of, "`until` is not an instant", "write 2026-03-31T18:00:00Z")
    signal = given["signal"].value if "signal" in given else None
    if isinstance(signal, Scalar) and not signal.text.strip():
        context.reader.add("wrong-value", signal, "`signal` is empty", "write the name of the signal, or remove it")
    if "until" in given and "for" in given:
        key = given["for"].key
        context.reader.add("wrong-value", key, "a wait has either `until` or `for`", "remove one of them")
    if "roles" in given:
        _check_roles(context, given["roles"].value)
    form = given.get("form")
    if form is not None and isinstance(form.value, Mapping):
        _check_form(context, form.value)
    if task.spec is not None and "timeout" in task.spec.entries:
        key = task.spec.entries["timeout"][0]
        message = "`spec.timeout` does not apply to a wait: it limits the call of a tool"
        context.reader.add("unknown-spec-key", key, message, "write `timeout` beside `kind`")


def _duration(value: Any) -> None:
    if seconds(value) == 0:
        raise ValueError


def _check_scalar(
    context: AnalysisContext, given: Parameter | None, read: Callable[[Any], object], message: str, hint: str
) -> None:
    if given is None or is_template(given.value):
        return
    try:
        if not isinstance(given.value, Scalar):
            raise ValueError
        read(given.value.value)
    except ValueError:
        context.reader.add("wrong-value", given.value, message, hint)


def _check_roles(context: AnalysisContext, node: Node) -> None:
    for each in node.items if isinstance(node, Sequence) else ():
        if isinstance(each, Scalar) and not is_template(each) and each.value not in ROLES:
            hint = did_you_mean(str(each.value), ROLES, "roles: " + ", ".join(ROLES))
            context.reader.add("wrong-value", each, f'unknown role "{each.value}"', hint)


def _check_form(context: AnalysisContext, node: Mapping) -> None:
    form = data_of(node)
    if not compile_value(form).static:
        return
    problem = schema_problem(form)
    if problem is not None:
        context.reader.add("wrong-value", node, f"the form is not a JSON Schema: {problem}", "correct the schema")
