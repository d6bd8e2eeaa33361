"""The parameters of a task: read beside `kind` or under `input`, stored under their canonical names.

The `ToolSpec` of a kind declares its fields; other spellings of a field are read as the field. `input` takes precedence
over parameters beside `kind`. If a kind declares a field `input` (the input of a child playbook), the block is the
value of that field, unless required fields of the kind occur only inside it. Calls of playbooks and blocks pass their
`input` as `payload`.
"""

from __future__ import annotations

from noetl.core.language.diagnostics import closest, did_you_mean
from noetl.core.language.source.node_reader import Fields, Reader, describe_node, is_template, shorten
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence, mapping_node
from noetl.core.language.syntax.grammar import SHAPES
from noetl.core.language.syntax.tree import Parameter, TaskSyntax
from noetl.core.model.tool import Field, ToolSpec

_NO_SPEC = ToolSpec(kind="", open_fields=True)


def bind_parameters(reader: Reader, task: TaskSyntax, fields: Fields) -> None:
    """Add the parameters to a task, and report those that its kind does not accept."""
    spec = task.tool or _NO_SPEC
    names = field_names(spec)
    beside = {key: entry for key, entry in fields.items() if key not in SHAPES["task"].keys}
    if "retry" in spec.fields and "retry" in fields:
        beside["retry"] = fields["retry"]
    if "timeout" in beside and "timeout" not in names:
        key_node, _ = beside.pop("timeout")
        reader.add("old-spelling", key_node, "`timeout` belongs under `spec`", "write `spec: {timeout: ...}`")
    for key, (key_node, value) in beside.items():
        _bind(reader, task, spec, names, key, key_node, value, beside=True)
    word = "input" if "input" in fields else "args" if "args" in fields else ""
    if word:
        _bind_input(reader, task, spec, names, fields[word])
    _check_required(reader, task, spec, fields)


def field_names(spec: ToolSpec) -> dict[str, str]:
    """Every accepted spelling of a kind's fields -> the field."""
    names = {alias: field for field, known in spec.fields.items() for alias in known.aliases}
    names.update({field: field for field in spec.fields})
    return names


def _bind_input(
    reader: Reader, task: TaskSyntax, spec: ToolSpec, names: dict[str, str], entry: tuple[Scalar, Node]
) -> None:
    key_node, node = entry
    own = names.get("input") or ("payload" if spec.open_fields and "payload" in spec.fields else None)
    if own is not None and not _holds_parameters(task, spec, names, node):
        if isinstance(node, Mapping) and own in task.parameters:
            node = _merge_payload(task.parameters.pop(own).value, node)
        _bind(reader, task, spec, names, own, key_node, node, beside=False)
        return
    if isinstance(node, Scalar) and node.value is None:
        return
    mapping = reader.mapping(node, "task's `input`")
    if mapping is not None:
        for key, (inner_key, value) in mapping.entries.items():
            _bind(reader, task, spec, names, key, inner_key, value, beside=False)


def _merge_payload(outer: Node, inner: Mapping) -> Node:
    """Merge `payload` and `input` of one call: keys of `input` take precedence."""
    if not isinstance(outer, Mapping):
        return inner
    return mapping_node({**outer.entries, **inner.entries}, inner)


def _holds_parameters(task: TaskSyntax, spec: ToolSpec, names: dict[str, str], node: Node) -> bool:
    """Whether an `input` block contains the kind's own fields: a required field is in it and not beside it."""
    if not isinstance(node, Mapping):
        return False
    inside = {names.get(key, key) for key in node.entries}
    required = {field for field, known in spec.fields.items() if known.required}
    return bool(required & inside - set(task.parameters))


def _bind(
    reader: Reader,
    task: TaskSyntax,
    spec: ToolSpec,
    names: dict[str, str],
    key: str,
    key_node: Scalar,
    value: Node,
    *,
    beside: bool,
) -> None:
    name = names.get(key)
    if name is None:
        if not _accepts(reader, task, spec, key, key_node, beside):
            return
        name = key
    known = task.parameters.get(name)
    if known is not None:
        again = f"`{key}`" if key == known.key.text else f"`{key}` and `{known.key.text}`"
        hint = f"remove one of them; the one on line {key_node.line} is used"
        reader.add("parameter-twice", key_node, f"{again}: the parameter `{name}` is given twice", hint)
    field = spec.fields.get(name)
    if field is not None:
        _check_value(reader, key, value, field, spec)
    raw = field.raw if field is not None else False
    late = field.late if field is not None else ()
    task.parameters[name] = Parameter(key_node, value, f"{task.path}/input/{name}", raw, late)


def _accepts(reader: Reader, task: TaskSyntax, spec: ToolSpec, key: str, key_node: Scalar, beside: bool) -> bool:
    """Whether a parameter that the kind does not declare is passed to the tool."""
    if beside and task.tool is not None and reader.report_rejected("task", key, key_node):
        return False
    if spec.open_fields:
        near = closest(key, field_names(spec)) if beside and len(key) > 3 else None
        if near is not None and near not in task.parameters:
            hint = f'did you mean "{near}"? Values for the code belong under `input`'
            reader.add("unknown-parameter", key_node, f'{spec.kind} has no parameter "{key}"', hint)
        return True
    known = sorted(spec.fields)
    hint = did_you_mean(
        key, field_names(spec), "valid parameters: " + ", ".join(known) if known else "it has no parameters"
    )
    reader.add("unknown-parameter", key_node, f'{spec.kind} has no parameter "{key}"', hint)
    return True


def _check_required(reader: Reader, task: TaskSyntax, spec: ToolSpec, fields: Fields) -> None:
    if task.tool is None:
        return
    if any(("task", key) in reader.rejected and key not in spec.fields for key in fields):
        return  # replaced keys are reported, and the parameters that they replace are not missing
    spec_node = fields["spec"][1] if "spec" in fields else None
    inside = spec_node.entries if isinstance(spec_node, Mapping) else {}
    for name, known in spec.fields.items():
        if not known.required or name in task.parameters or not inside.keys().isdisjoint({name, *known.aliases}):
            continue
        where = task.kind_node or task.node
        hint = f"`{name}`: {known.doc}" if known.doc else f"add `{name}: ...`"
        reader.add("missing-parameter", where, f'{spec.kind} requires "{name}"', hint)


def _check_value(reader: Reader, key: str, value: Node, field: Field, spec: ToolSpec) -> None:
    """Report a literal with a type or value that the field does not accept; templates are checked at run time."""
    if is_template(value) or (isinstance(value, Scalar) and value.value is None):
        return
    if isinstance(value, Mapping) and value.broken:
        return
    expected = _TYPE_NAMES.get(field.type)
    if expected is not None and not _has_type(value, field.type):
        reader.add(
            "parameter-type", value, f"`{key}` of {spec.kind} must be {expected}, not {describe_node(value)}", field.doc
        )
    elif field.choices and isinstance(value, Scalar) and value.text.lower() not in [c.lower() for c in field.choices]:
        hint = did_you_mean(value.text, field.choices, "write one of: " + ", ".join(field.choices))
        reader.add("parameter-type", value, f'`{key}` of {spec.kind} cannot be "{shorten(value.text)}"', hint)


_TYPE_NAMES = {
    "string": "text",
    "code": "code",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "mapping": "a mapping",
    "list": "a list",
}


def _has_type(value: Node, type: str) -> bool:
    if type == "mapping":
        return isinstance(value, Mapping)
    if type == "list":
        return isinstance(value, Sequence)
    if not isinstance(value, Scalar):
        return False
    if type == "boolean":
        return isinstance(value.value, bool)
    if type == "integer":
        return isinstance(value.value, int) and not isinstance(value.value, bool)
    if type == "number":
        return isinstance(value.value, int | float) and not isinstance(value.value, bool)
    return True  # any scalar can be read as text
