"""The parameters of a task: read beside `kind` or under `input`, stored under their canonical names.

The `ToolSpec` of a kind declares its fields; other spellings of a field are read as the field. `input` takes precedence
over parameters beside `kind`. If a kind declares a field `input` (the input of a child playbook), the block is the
value of that field, unless required fields of the kind occur only inside it. Calls of playbooks and blocks pass their
`input` as `payload`.
"""

from __future__ import annotations

import re

from noetl.core.language.diagnostics import did_you_mean
from noetl.core.language.source.node_reader import Fields, Reader
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence, data_of, mapping_node
from noetl.core.language.syntax.grammar import SHAPES
from noetl.core.language.syntax.misplaced_keys import TASK_WORDS, place_of
from noetl.core.language.syntax.parameter_values import (
    Given,
    check_alternatives,
    check_required,
    check_value,
    field_names,
    has_type,
)
from noetl.core.language.syntax.tree import Parameter, TaskSyntax
from noetl.core.model.tool import ToolSpec

_NO_SPEC = ToolSpec(kind="", open_fields=True)


def bind_parameters(reader: Reader, task: TaskSyntax, fields: Fields) -> None:
    """Add the parameters to a task, and report those that its kind does not accept."""
    _Binder(reader, task).bind_all(fields)


class _Binder:
    def __init__(self, reader: Reader, task: TaskSyntax) -> None:
        self.reader = reader
        self.task = task
        self.spec = task.tool or _NO_SPEC
        self.names = field_names(self.spec)

    def bind_all(self, fields: Fields) -> None:
        beside = {key: entry for key, entry in fields.items() if key not in SHAPES["task"].keys}
        for own in ("retry", "timeout"):  # keys of every task that a kind may declare as parameters of its own
            if own in self.spec.fields and own in fields:
                beside[own] = fields[own]
        if "timeout" in beside and "timeout" not in self.names:
            key_node, _ = beside.pop("timeout")
            self.reader.add("old-spelling", key_node, "`timeout` belongs under `spec`", "write `spec: {timeout: ...}`")
        for key, (key_node, value) in beside.items():
            self._bind(key, key_node, value, beside=True)
        listed = fields.get("args")
        if listed is not None and isinstance(listed[1], Sequence) and ("args" in self.names or self.task.tool is None):
            self._bind("args", *listed, beside=True)  # a parameter of the kind, such as the arguments of a container
            fields = {key: each for key, each in fields.items() if key != "args"}
        entry = fields.get("input") or fields.get("args")
        if entry is not None:
            self._bind_input(*entry)
        self._check_required(fields)

    def _bind_input(self, key_node: Scalar, node: Node) -> None:
        spec, task = self.spec, self.task
        own = self.names.get("input") or ("payload" if spec.open_fields and "payload" in spec.fields else None)
        if own is not None and not self._holds_parameters(node):
            if isinstance(node, Mapping) and own in task.parameters:
                node = _merge_payload(task.parameters.pop(own).value, node)
            self._bind(own, key_node, node, beside=False)
            return
        if isinstance(node, Scalar) and node.value is None:
            return
        mapping = self.reader.mapping(node, "task's `input`")
        if mapping is not None:
            for key, (inner_key, value) in mapping.entries.items():
                self._bind(key, inner_key, value, beside=False)

    def _holds_parameters(self, node: Node) -> bool:
        """Whether an `input` block contains the kind's own fields: a required field is in it and not beside it."""
        if not isinstance(node, Mapping):
            return False
        inside = {self.names.get(key, key) for key in node.entries}
        required = {field for field, known in self.spec.fields.items() if known.required}
        return bool(required & inside - set(self.task.parameters))

    def _bind(self, key: str, key_node: Scalar, value: Node, *, beside: bool) -> None:
        name = self.names.get(key)
        if name is None:
            if not self._accepts(key, key_node, beside):
                return
            name = key
        known = self.task.parameters.get(name)
        if known is not None:
            again = f"`{key}`" if key == known.key.text else f"`{key}` and `{known.key.text}`"
            hint = f"remove one of them; the one on line {key_node.line} is used"
            self.reader.add("parameter-twice", key_node, f"{again}: the parameter `{name}` is given twice", hint)
        field = self.spec.fields.get(name)
        if field is not None and (beside or not field.or_input or has_type(value, field)):
            check_value(self.reader, key, value, field, self.spec.kind)
        raw, late = (field.raw, field.late) if field is not None else (False, ())
        self.task.parameters[name] = Parameter(key_node, value, f"{self.task.path}/input/{name}", raw, late)

    def _accepts(self, key: str, key_node: Scalar, beside: bool) -> bool:
        """Whether a parameter that the kind does not declare is passed to the tool."""
        spec = self.spec
        if self.task.tool is None:
            return not (beside and key in TASK_WORDS and self._report_misplaced(key, key_node))
        if beside and (self.reader.report_rejected("task", key, key_node) or self._report_misplaced(key, key_node)):
            return False
        if not beside and (spec.open_fields or self._reads_input(key)):
            return True
        if key in spec.elsewhere:
            self.reader.add("misplaced-key", key_node, f"{spec.kind} has no `{key}` here", spec.elsewhere[key])
            return False
        known = "valid parameters: " + ", ".join(sorted(spec.fields)) if spec.fields else "it has no parameters"
        words = {*self.names, *(SHAPES["task"].keys if beside else ())}
        hint = did_you_mean(key, words, "pass values under `input`" if spec.open_fields else known)
        message = f'{spec.kind} has no parameter "{key}"' + (": it is ignored" if spec.open_fields else "")
        self.reader.add("unknown-parameter", key_node, message, hint)
        return not spec.open_fields

    def _report_misplaced(self, key: str, key_node: Scalar) -> bool:
        """Report a word that has its meaning at another place."""
        place = place_of(key, self.spec)
        if place:
            self.reader.add("misplaced-key", key_node, f"`{key}` is not valid beside `kind`", place)
        return bool(place)

    def _reads_input(self, key: str) -> bool:
        """Whether a template of the task reads the value as `input.<key>`."""
        return re.search(rf"\b(?:input|args)\.{re.escape(key)}\b", repr(data_of(self.task.node))) is not None

    def _check_required(self, fields: Fields) -> None:
        task, spec = self.task, self.spec
        if task.tool is None:
            return
        if any(("task", key) in self.reader.rejected and key not in spec.fields for key in fields):
            return  # replaced keys are reported, and the parameters that they replace are not missing
        given = {name: Given(parameter.key, parameter.value) for name, parameter in task.parameters.items()}
        spec_node = fields["spec"][1] if "spec" in fields else None
        for key, entry in spec_node.entries.items() if isinstance(spec_node, Mapping) else ():
            if key in self.names:
                given.setdefault(self.names[key], Given(*entry))  # reported as a parameter under `spec`
        check_required(self.reader, spec, given, spec.kind, task.kind_node or task.node)
        check_alternatives(self.reader, spec, given, spec.kind)


def _merge_payload(outer: Node, inner: Mapping) -> Node:
    """Merge `payload` and `input` of one call: keys of `input` take precedence."""
    if not isinstance(outer, Mapping):
        return inner
    return mapping_node({**outer.entries, **inner.entries}, inner)
