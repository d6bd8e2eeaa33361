"""Schemas of `spec.validation` and `output.schema`: they are JSON Schemas, and literal inputs fit them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.source.node_reader import describe_node
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence, data_of
from noetl.core.language.syntax.tree import BodySyntax, TaskSyntax, ValidationSyntax
from noetl.core.model.schemas.json_schema import TOO_MANY_STEPS, compile_schema, failures_of, schema_problem
from noetl.core.model.schemas.schema_cost import is_affordable
from noetl.core.templates.template import is_template


def check(context: AnalysisContext) -> None:
    """Check every schema and every literal input."""
    for body in context.document.bodies():
        if body.validation is not None and _are_schemas(context, body.validation):
            entries = {} if body.input is None else {key: value for key, (_, value) in body.input.entries.items()}
            _check_input(context, body, body.validation, entries)
        for task in body.tasks():
            if task.validation is not None and _are_schemas(context, task.validation):
                given = {name: each.value for name, each in task.parameters.items() if not each.raw}
                _check_input(context, task, task.validation, given)


def _are_schemas(context: AnalysisContext, validation: ValidationSyntax) -> bool:
    valid = True
    for name, node in (("input", validation.input), ("output", validation.output)):
        named = isinstance(node, Scalar) and isinstance(node.value, str) and node.value.strip()
        if node is None or (isinstance(node, Scalar) and named and not is_template(node.value)):
            continue
        if named:
            problem: str | None = "the name of a schema cannot be a template"
        elif isinstance(node, Mapping):
            problem = schema_problem(data_of(node))
        else:
            problem = f"expected a mapping or the name of a registered schema, not {describe_node(node)}"
        if problem is not None:
            valid = False
            hint = "write a JSON Schema, or the name of a registered one such as `orders/v2`"
            context.reader.add("wrong-value", node, f"the schema of the {name} is not valid: {problem}", hint)
    return valid


def _check_input(
    context: AnalysisContext, owner: BodySyntax | TaskSyntax, validation: ValidationSyntax, given: dict[str, Node]
) -> None:
    """Report literal values that do not fit the schema; what a template gives is checked at run time."""
    if not isinstance(validation.input, Mapping):
        return
    literal = {name: data_of(node) for name, node in given.items() if not _has_template(node)}
    schema = data_of(validation.input)
    if not is_affordable(schema, literal):
        context.reader.add(
            "wrong-value", validation.input, f"the schema of the input is not usable: {TOO_MANY_STEPS}", ""
        )
        return
    failures, _ = failures_of(compile_schema(schema), literal)
    for failure in failures:
        first = failure["path"].partition(".")[0]
        if not first and len(literal) < len(given):
            continue  # a required value may come from a template
        where = given.get(first) or owner.name_node
        path = f"`{failure['path']}`: " if failure["path"] else ""
        message = f"the input does not fit its schema: {path}{failure['message']}"
        context.reader.add("schema-mismatch", where, message, "change the value or the schema")


def _has_template(node: Node) -> bool:
    return any(isinstance(value, str) and is_template(value) for value in _texts(node))


def _texts(node: Node) -> Iterator[Any]:
    if isinstance(node, Scalar):
        yield node.value
    elif isinstance(node, Mapping):
        for _, value in node.entries.values():
            yield from _texts(value)
    elif isinstance(node, Sequence):
        for item in node.items:
            yield from _texts(item)
