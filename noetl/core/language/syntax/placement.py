"""Read where a step may run: `spec.pool`, `spec.placement` and `spec.cost` of executor, step and task."""

from __future__ import annotations

from noetl.core.language.source.node_reader import Fields, Reader, describe_node, is_template
from noetl.core.language.source.nodes import Node, Scalar
from noetl.core.language.syntax.tree import BodySyntax, PlacementSyntax, StepSyntax, TaskSyntax

_KEYS = ("pool", "placement", "cost")


def read_placement(reader: Reader, fields: Fields) -> PlacementSyntax:
    """The placement among the fields of a spec."""
    found = PlacementSyntax()
    if "placement" in fields:
        found.labels = _read_labels(reader, fields["placement"][1])
    pool = fields["pool"][1] if "pool" in fields else None
    if is_template(pool):
        assert pool is not None
        reader.add("wrong-value", pool, "`pool` cannot be a template", "write the name itself")
    elif isinstance(pool, Scalar) and (isinstance(pool.value, bool) or not pool.text.strip()):
        reader.add(
            "wrong-value", pool, f"`pool` must be the name of a pool, not {describe_node(pool)}", "write the name"
        )
    elif isinstance(pool, Scalar):
        found.pool = pool
    if "cost" in fields and isinstance(fields["cost"][1], Scalar):
        found.cost = fields["cost"][1]
    return found


def _read_labels(reader: Reader, node: Node) -> dict[str, Scalar]:
    fields = reader.shape(node, "placement")
    labels = reader.mapping(fields["labels"][1], "`labels` block") if "labels" in fields else None
    found = {}
    for name, (_, value) in labels.entries.items() if labels is not None else ():
        if not isinstance(value, Scalar) or value.value is None:
            message = f"the label `{name}` must be text, not {describe_node(value)}"
            reader.add("wrong-type", value, message, f'write `{name}: "true"`')
        elif is_template(value):
            reader.add("wrong-value", value, f"the label `{name}` cannot be a template", "write the value itself")
        else:
            found[name] = value
    return found


def check_body(reader: Reader, body: BodySyntax) -> None:
    """Report tasks of one step that no worker can run together, and placements that have no effect."""
    for task in body.tasks():
        if not isinstance(body, StepSyntax):
            _report_unused(reader, task)
    tasks = [task for task in body.tasks() if task.placement.pool is not None]
    for task in tasks[1:]:
        first, pool = tasks[0].placement.pool, task.placement.pool
        assert first is not None and pool is not None
        if pool.text != first.text:
            message = (
                f'the tasks of a step run on one worker: this pool is "{pool.text}", that of line {first.line} is '
            )
            reader.add("wrong-value", pool, f'{message}"{first.text}"', "move the task to a step of its own")
    labels: dict[str, Scalar] = {}
    for task in body.tasks():
        for name, value in task.placement.labels.items():
            known = labels.setdefault(name, value)
            if known.text != value.text:
                message = f'the tasks of a step run on one worker: the label `{name}` is "{value.text}" here, and '
                message += f'"{known.text}" on line {known.line}'
                reader.add("wrong-value", value, message, "move the task to a step of its own")


def _report_unused(reader: Reader, task: TaskSyntax) -> None:
    for key in _KEYS if task.spec is not None else ():
        assert task.spec is not None
        if key in task.spec.entries:
            message = f"`{key}` of a task in a workbook block or a compensation has no effect: it runs with its step"
            reader.add("unused-field", task.spec.entries[key][0], message, "write it at the step")
