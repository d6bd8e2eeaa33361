"""Variables of a 2025-11 document: which step sets which variable, and how names translate at a place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from noetl.core.language.dialects.v2025_11.template_names import Replacement, translate_template
from noetl.core.language.source.node_reader import text_of
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence, scalar_node

_METHODS = frozenset(["get", "keys", "values", "update"])
SINGLE_NAME = re.compile(r"\s*\{\{-?\s*([A-Za-z_][\w.]*)\s*-?\}\}\s*\Z")
RESERVED = ("step", "steps", "workload", "ctx", "iter", "input", "output", "keychain", "event", "args", "execution_id")


class Setter(NamedTuple):
    """A step that sets a variable; `by_name` when the step's own result is exactly that variable."""

    step: str
    by_name: bool
    http: str | None = None  # the name of the http result that the step returns


class Variables:
    """The variables of a document, the steps that set them, and the edges between steps."""

    def __init__(self, workflow: Node | None, *, defines_context: bool = False) -> None:
        self.defines_context = defines_context
        self.steps: set[str] = set()
        self.setters: dict[str, list[Setter]] = {}
        self._edges: dict[str, set[str]] = {}
        for step in _mappings(workflow):
            name = text_of(step.get("step"))
            if name:
                self.steps.add(name)
                self._edges[name] = set(targets_of(step.get("next")))
                http = _http_result(step, name)
                for variable, by_name in _variables_set_by(step):
                    self.setters.setdefault(variable, []).append(Setter(name, by_name, http))

    def incoming(self) -> dict[str, int]:
        """How many edges lead to each step."""
        count: dict[str, int] = {}
        for targets in self._edges.values():
            for target in targets:
                count[target] = count.get(target, 0) + 1
        return count

    def leads_to(self, first: str, last: str) -> bool:
        """Whether a path leads from one step to another."""
        seen: set[str] = set()
        todo = [first]
        while todo:
            for target in self._edges.get(todo.pop(), ()):
                if target == last:
                    return True
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        return False


class NameTranslator:
    """Translates names at one place; `local` contains the names that exist only there."""

    def __init__(
        self,
        variables: Variables,
        step: str | None = None,
        local: dict[str, str] | None = None,
        http: str | None = None,
    ) -> None:
        self.variables = variables
        self.step = step
        self.local = local or {}
        self.http = http  # the task of kind http among the local names

    def with_locals(self, **local: str) -> NameTranslator:
        """The same place with more local names."""
        return NameTranslator(self.variables, self.step, {**self.local, **local}, self.http)

    def with_http(self, task: str | None) -> NameTranslator:
        """The same place, where the task's result is that of an HTTP request."""
        return NameTranslator(self.variables, self.step, self.local, task)

    def translate_text(self, text: str) -> str:
        """Translate a template to canonical names."""
        single = SINGLE_NAME.match(text)
        if single:
            path = tuple(single.group(1).split("."))
            replacement = self.rename(path)
            if replacement is not None and self._may_be_unset(path):
                return f"{{{{ {replacement.text} | default(none) }}}}"
        return translate_template(text, self.rename)

    def translate_node(self, node: Node) -> Node:
        """Translate all templates of a tree; a node without 2025-11 names is returned as it is."""
        if isinstance(node, Scalar):
            if isinstance(node.value, str) and "{" in node.value:
                translated = self.translate_text(node.value)
                if translated != node.value:
                    return scalar_node(translated, node)
            return node
        if isinstance(node, Mapping):
            entries = {key: (name, self.translate_node(value)) for key, (name, value) in node.entries.items()}
            if any(entries[key][1] is not node.entries[key][1] for key in entries):
                return with_entries(node, entries)
            return node
        if isinstance(node, Sequence):
            items = [self.translate_node(item) for item in node.items]
            if any(new is not old for new, old in zip(items, node.items, strict=True)):
                copy = Sequence()
                copy.items, copy.flow, copy.first, copy.last = items, node.flow, node.first, node.last
                return copy
        return node

    def rename(self, path: tuple[str, ...]) -> Replacement | None:
        """The canonical form of a dotted name, or None if it does not change."""
        head = path[0]
        if head == "context" and not self.variables.defines_context:
            if len(path) == 1 or path[1] in _METHODS:
                return Replacement(1, "ctx")
            if path[1] in ("workload", "execution_id"):
                return Replacement(2, path[1])
            translated = self._variable(path[1:])
            return self._http_field(path[1:], translated, 2) or Replacement(
                2, translated if translated is not None else f"ctx.{path[1]}"
            )
        if head in self.local:
            translated = self._variable(path)
            field = _HTTP_FIELDS.get(path[1]) if len(path) > 1 and translated == self.http else None
            if field is not None:
                return Replacement(2, f"{translated}.{field}")
            return Replacement(1, translated) if translated is not None and translated != head else None
        if head == "step" and len(path) > 2 and path[2] == "status" and path[1] in self.variables.steps:
            return Replacement(1, "steps")
        if head in self.variables.setters and head not in self.variables.steps and head not in RESERVED:
            translated = self._variable(path)
            found = Replacement(1, translated) if translated is not None else None
            return self._http_field(path, translated, 1) or found
        return None

    def _http_field(self, path: tuple[str, ...], translated: str | None, parts: int) -> Replacement | None:
        """`status` and `timestamp` of an http step's result: those of the payload, else those of the answer."""
        one = self.variables.setters.get(path[0], [Setter("", False)])[0]
        if one.http is None or translated != one.step or len(path) < 2 or path[1] not in ("status", "timestamp"):
            return None
        answer = f"{one.http}.{_HTTP_FIELDS[path[1]]}"
        return Replacement(parts + 1, f"({one.step}.data.{path[1]} | default({answer}))")

    def _variable(self, path: tuple[str, ...]) -> str | None:
        name = path[0]
        if name in self.local:
            return self.local[name]
        setters = self.variables.setters.get(name)
        if setters is None:
            return name if name in self.variables.steps else None
        one = setters[0]
        dotted = len(path) > 1 and path[1] not in _METHODS
        if dotted and len(setters) == 1 and one.by_name and one.step != self.step and one.step.isidentifier():
            return one.step  # the step's name reads both the payload's fields and the envelope's
        return f"ctx.{name}"

    def _may_be_unset(self, path: tuple[str, ...]) -> bool:
        """Whether no step that sets the variable precedes this one; then it reads as none."""
        rest = path[1:] if path[0] == "context" else path
        if len(rest) != 1 or rest[0] in self.local or self.step is None:
            return False
        setters = self.variables.setters.get(rest[0], [])
        return bool(setters) and not any(self.variables.leads_to(each.step, self.step) for each in setters)


# Fields of an http result in 2025-11, and below the result of a task.
_HTTP_FIELDS = {"body": "http.body", "status": "http.status", "headers": "http.headers", "timestamp": "meta.ts"}


def _http_result(step: Mapping, name: str) -> str | None:
    """The name under which the http result of a step with one tool can be read."""
    tool = step.get("tool")
    if not isinstance(tool, Mapping) or text_of(tool.get("kind")) != "http" or not name.isidentifier():
        return None
    if tool.get("sink") is None:
        return name
    return f"{name}.results.{text_of(tool.get('name')) or text_of(tool.get('result')) or f'{name}_task'}"


def with_entries(node: Mapping, entries: dict[str, tuple[Scalar, Node]]) -> Mapping:
    """A copy of the mapping with other entries."""
    copy = Mapping()
    copy.entries, copy.merges, copy.flow, copy.broken = entries, node.merges, node.flow, node.broken
    copy.first, copy.last = node.first, node.last
    return copy


def targets_of(following: Node | None) -> list[str]:
    """The target steps of a `next` in either dialect."""
    if isinstance(following, Mapping):
        following = following.get("arcs") or following
    if isinstance(following, Scalar):
        return [following.text] if following.value is not None else []
    items: list[Node] = following.items if isinstance(following, Sequence) else [following] if following else []
    found = [text_of(item.get("step")) if isinstance(item, Mapping) else text_of(item) for item in items]
    return [name for name in found if name]


def _mappings(node: Node | None) -> Iterator[Mapping]:
    for item in node.items if isinstance(node, Sequence) else ():
        if isinstance(item, Mapping):
            yield item


def _variables_set_by(step: Mapping) -> Iterator[tuple[str, bool]]:
    """The variables a step sets."""
    result = step.get("result")
    name = text_of(result) or (text_of(result.get("as")) if isinstance(result, Mapping) else None)
    if name:
        yield name, isinstance(result, Scalar) and step.get("loop") is None
    if isinstance(result, Mapping):
        into = _collected(result)
        if into:
            yield into, False
    bound = step.get("bind")
    if isinstance(bound, Mapping):
        for key in bound.entries:
            yield key, False
    tool = step.get("tool")
    for task in [tool] if isinstance(tool, Mapping) else list(_mappings(tool)):
        inner = task.get("result")
        if isinstance(inner, Mapping):
            as_name = text_of(inner.get("as"))
            if as_name:
                yield as_name, False
            into = _collected(inner)
            if into:
                yield into, False


def _collected(result: Mapping) -> str | None:
    collect = result.get("collect")
    return text_of(collect.get("into")) if isinstance(collect, Mapping) else text_of(collect)
