"""`noetl validate` of resource files: all problems with their lines, without a server."""

from __future__ import annotations

import re
from typing import Any

import yaml

from noetl.cli.projects import resource_kinds  # noqa: F401 - registers the kinds
from noetl.cli.projects.resources import KINDS, ResourceKind, resource_loader
from noetl.core.language.diagnostics import Diagnostic, did_you_mean
from noetl.errors import NoetlError

_ROOT = ("apiVersion", "kind", "metadata", "spec")


def check_resources(text: str, file: str) -> list[Diagnostic]:
    """The problems of a file with one or more resources."""
    check = _Check(file)
    try:
        documents = [node for node in yaml.compose_all(text, resource_loader()) if node is not None]
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        message = f"this is not valid YAML: {problem.problem or problem.context}"
        return [Diagnostic(file, line, column, line, column + 1, "yaml-syntax", "error", message)]
    except RecursionError:
        return [Diagnostic(file, 1, 1, 1, 2, "yaml-limit", "error", "the file is nested too deeply")]
    except yaml.YAMLError as problem:
        return [Diagnostic(file, 1, 1, 1, 2, "yaml-syntax", "error", f"this is not valid YAML: {problem}")]
    for node in documents:
        check.resource(node)
    if not documents:
        check.found.append(Diagnostic(file, 1, 1, 1, 2, "empty-document", "error", "the file has no resource"))
    return sorted(check.found)


class _Check:
    """Checks the documents of one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[Diagnostic] = []
        self._names: dict[tuple[str, str], int] = {}

    def resource(self, node: yaml.Node) -> None:
        """Check one document."""
        if not isinstance(node, yaml.MappingNode):
            self._add(node, "wrong-type", "a resource is a mapping with kind, metadata.name and spec")
            return
        fields = self._fields(node)
        for key, (key_node, _) in fields.items():
            if key not in _ROOT:
                self._add(key_node, "unknown-key", f'a resource has no key "{key}"', did_you_mean(key, _ROOT))
        for key in _ROOT:
            if key not in fields:
                self._add(node, "missing-key", f'this resource is missing the required key "{key}"')
        version = fields.get("apiVersion")
        if version is not None and _value(version[1]) != "noetl.io/v2":
            self._add(version[1], "wrong-value", "apiVersion must be noetl.io/v2")
        kind = self._kind(fields.get("kind"))
        name = self._name(fields.get("metadata"))
        if kind is not None and "spec" in fields:
            self._spec(kind, name, fields["spec"][1], fields["kind"][1])

    def _kind(self, given: tuple[yaml.Node, yaml.Node] | None) -> ResourceKind | None:
        if given is None:
            return None
        written = str(_value(given[1]))
        if written not in KINDS:
            hint = did_you_mean(written, KINDS, f"the kinds are {', '.join(sorted(KINDS))}")
            self._add(given[1], "wrong-value", f'unknown kind of resource "{written}"', hint)
        return KINDS.get(written)

    def _name(self, given: tuple[yaml.Node, yaml.Node] | None) -> str:
        if given is None:
            return "x"
        fields = self._fields(given[1]) if isinstance(given[1], yaml.MappingNode) else {}
        if "name" not in fields or not isinstance(_value(fields["name"][1]), str) or not _value(fields["name"][1]):
            self._add(given[0], "missing-key", "metadata.name is required")
            return "x"
        return str(_value(fields["name"][1]))

    def _spec(self, kind: ResourceKind, name: str, node: yaml.Node, at: yaml.Node) -> None:
        if not isinstance(node, yaml.MappingNode):
            self._add(node, "wrong-type", f"`spec` of {kind.kind} must be a mapping")
            return
        fields = self._fields(node)
        before = len(self.found)
        for key, (key_node, _) in fields.items():
            if key not in kind.fields:
                message = f'{kind.kind} has no field "{key}"'
                self._add(key_node, "unknown-key", message, did_you_mean(key, kind.fields))
        spec = _value(node)
        for key, default in kind.fields.items():
            if default is ... and spec.get(key) in (None, ""):
                where = fields[key][1] if key in fields else node
                self._add(where, "missing-key", f'{kind.kind} requires "{key}"')
        if len(self.found) > before:
            return
        own = (kind.kind, kind.key(name, spec))
        if own in self._names:
            self._add(at, "wrong-value", f"{kind.kind} {name!r} is also on line {self._names[own]}")
        self._names.setdefault(own, at.start_mark.line + 1)
        try:
            if kind.check is not None:
                kind.check(name, {field: value for field, value in spec.items() if value is not None})
        except NoetlError as problem:
            self._add(_named(str(problem), fields) or at, "wrong-value", f"{kind.kind} {name!r}: {problem}")

    def _fields(self, node: yaml.MappingNode) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        fields: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            written = str(key.value)
            if written in fields:
                self._add(key, "yaml-duplicate-key", f'duplicate key "{written}"')
            fields[written] = (key, value)
        return fields

    def _add(self, node: yaml.Node, code: str, message: str, hint: str = "") -> None:
        start, end = node.start_mark, node.end_mark
        single = end.line == start.line
        last = (end.line + 1, end.column + 1) if single else (start.line + 1, start.column + 2)
        position = (start.line + 1, start.column + 1, *last)
        self.found.append(Diagnostic(self.file, *position, code, "error", message, hint))


def _named(message: str, fields: dict[str, tuple[yaml.Node, yaml.Node]]) -> yaml.Node | None:
    """The value that a message quotes, or the value of the field that it names."""
    for _, value in fields.values():
        if isinstance(value, yaml.ScalarNode) and value.value and repr(value.value) in message:
            return value
    return next((fields[word][1] for word in re.findall(r"[a-z_]+", message) if word in fields), None)


def _value(node: yaml.Node) -> Any:
    loader = resource_loader()("")
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()
