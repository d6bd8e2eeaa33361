"""Translate 2025-11 steps to canonical steps: `when`, `next` lists, `loop`, `result`, `bind`.

The result is the tree of a canonical document, so reading, checking and lowering handle only the canonical dialect.
A document without 2025-11 syntax is returned unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping as Table
from typing import NamedTuple

from noetl.core.language.dialects.v2025_11.detect import defines_context, uses_v2025_11
from noetl.core.language.dialects.v2025_11.node_building import (
    Entries,
    TranslationNote,
    entry,
    items_of,
    put_nested,
    to_node,
)
from noetl.core.language.dialects.v2025_11.translate_tools import ToolTranslator
from noetl.core.language.dialects.v2025_11.variables import (
    RESERVED,
    NameTranslator,
    Variables,
    targets_of,
    with_entries,
)
from noetl.core.language.source.node_reader import text_of
from noetl.core.language.source.nodes import (
    Mapping,
    Node,
    Scalar,
    Sequence,
    data_of,
    mapping_node,
    scalar_node,
    sequence_node,
)
from noetl.core.language.source.yaml_source import Problem
from noetl.core.language.syntax.tasks import is_labelled
from noetl.core.model.tool import ToolSpec

_BLOCK = {"pick", "collect", "sink"}
_FIRST_GENERATION = ("type", "name", "data", "with", "save", "sink", "chunk")
_FIELDS = ("code", "url", "method", "query", "command", "auth", "path")
_OF_STEPS = {"step", "desc", "loop", "next", "when", "set", "spec", "input", "args", "result", "bind"}


class Translation(NamedTuple):
    """A canonical document. `is_v2025_11`: it was translated; `problems`: what could not be translated."""

    root: Node
    is_v2025_11: bool
    problems: list[Problem]
    notes: list[TranslationNote]


def translate(root: Node, specs: Table[str, ToolSpec]) -> Translation:
    """Translate a 2025-11 document to a canonical one."""
    if not isinstance(root, Mapping) or not uses_v2025_11(root, specs):
        return Translation(root, False, [], [])
    translator = Translator(root, specs)
    return Translation(translator.document(), True, translator.problems, translator.notes)


class Translator:
    """Translates one document."""

    def __init__(self, root: Mapping, specs: Table[str, ToolSpec]) -> None:
        self.root = root
        self.problems: list[Problem] = []
        self.notes: list[TranslationNote] = []
        self.variables = Variables(root.get("workflow"), defines_context=defines_context(root))
        self.tools = ToolTranslator(specs, self.notes, self.problems)
        self.incoming = self.variables.incoming()
        self.entry = self._entry()
        for name in self.variables.setters:
            if name.partition(".")[0] in RESERVED:
                self._reserved(name)

    def _entry(self) -> str | None:
        executor = data_of(self.root.get("executor"))
        spec = executor.get("spec") if isinstance(executor, dict) else None
        named = spec.get("entry_step") if isinstance(spec, dict) else None
        steps = [text_of(step.get("step")) for step in items_of(self.root.get("workflow")) if isinstance(step, Mapping)]
        return named or ("start" if "start" in steps else steps[0] if steps else None)

    def _reserved(self, name: str) -> None:
        setters = {each.step for each in self.variables.setters[name]}
        for step in items_of(self.root.get("workflow")):
            if isinstance(step, Mapping) and text_of(step.get("step")) in setters:
                message = f"`{name}` is reserved and cannot name a result"
                self.problems.append(Problem("set-read-only", step.entries["step"][1], message, "choose another name"))

    def document(self) -> Mapping:
        """The whole document."""
        entries: Entries = {}
        for key, (name, value) in self.root.entries.items():
            if key == "workflow" and isinstance(value, Sequence):
                items = [self._step(item) if isinstance(item, Mapping) else item for item in value.items]
                entries[key] = (name, sequence_node(items, value))
            elif key == "workbook":
                entries[key] = (name, self._workbook(value))
            elif key in ("workload", "keychain"):
                entries[key] = (name, NameTranslator(self.variables).translate_node(value))
            else:
                entries[key] = (name, value)
        return with_entries(self.root, entries)

    def _workbook(self, node: Node) -> Node:
        if isinstance(node, Mapping):
            blocks = {
                key: (name, self._block(block, key) if isinstance(block, Mapping) else block)
                for key, (name, block) in node.entries.items()
            }
            return with_entries(node, blocks)
        if isinstance(node, Sequence):
            named = [self._block(item, text_of(item.get("name")) or "block") if isinstance(item, Mapping) else item
                     for item in node.items]  # fmt: skip
            return sequence_node(list(named), node)
        return node

    def _block(self, block: Mapping, name: str) -> Mapping:
        names = NameTranslator(self.variables)
        block = _with_tool(block, self.tools.specs, named=True)
        if block.get("tool") is None and block.get("kind") is not None:
            bare = {key: each for key, each in block.entries.items() if key not in ("name", "desc")}
            rest = {key: each for key, each in block.entries.items() if key in ("name", "desc")}
            tool = self.tools.translate(mapping_node(bare, block), name, names, "step")
            return with_entries(block, {**rest, "tool": (scalar_node("tool", block), tool.node)})
        return self._body(block, name, names)

    # --- steps ---

    def _step(self, step: Mapping) -> Mapping:
        name = text_of(step.get("step")) or "step"
        return self._body(_with_tool(step, self.tools.specs), name, NameTranslator(self.variables, name))

    def _body(self, step: Mapping, name: str, names: NameTranslator) -> Mapping:
        given = dict(step.entries)
        self._move_result_to_tool(given)
        entries: Entries = {}
        sets: Entries = {}
        names = _bind(given.pop("bind", None), names, entries, sets)
        result = given.pop("result", None)
        variable = _variable_of(result[1]) if result is not None else None
        if variable is not None and result is not None:
            sets[f"ctx.{variable}"] = entry(f"ctx.{variable}", "{{ output.data }}", result[0])
        outside, names = names, _with_element(given.get("loop"), names)
        for key, (key_node, value) in given.items():
            if key == "when":
                continue
            if key in ("args", "input") and isinstance(value, Mapping):
                for inner, (inner_key, inner_value) in value.entries.items():
                    put_nested(entries, ("input", inner), names.translate_node(inner_value), inner_key)
            elif key == "loop" and isinstance(value, Mapping):
                entries["loop"] = (key_node, self._loop(value, outside, names))
            elif key == "tool":
                tool = self.tools.translate(value, name, names, "iter" if "loop" in given else "step")
                entries["tool"] = (key_node, tool.node)
                for target, reducer in tool.reduce.items() if "loop" in entries else ():
                    put_nested(entries, ("loop", "spec", "policy", "reduce", target), reducer, key_node)
            elif key == "next":
                entries["next"] = (key_node, self._next(value, outside))
            else:
                entries[key] = (key_node, outside.translate_node(value))
        for key, each in sets.items():
            put_nested(entries, ("set", key), each[1], each[0])
        self._admit(entries, given.get("when"), name, step, names)
        return with_entries(step, _in_order(step, entries))

    def _move_result_to_tool(self, given: Entries) -> None:
        """Move a step's `result: {pick, collect, sink}` to its tool; a loop collects the value that `as` names."""
        result, tool = given.get("result"), given.get("tool")
        if result is None or not isinstance(result[1], Mapping) or not _BLOCK & set(result[1].entries):
            return
        if tool is None or not isinstance(tool[1], Mapping) or tool[1].get("result") is not None:
            message = "`pick`, `collect` and `sink` of a step's result require a single tool without a `result`"
            self.problems.append(Problem("legacy-result", result[0], message, "write them into the tool's `result`"))
            return
        block = dict(result[1].entries)
        if "loop" in given and "as" in block and "collect" not in block:
            key, name = block.pop("as")
            block["collect"] = entry("collect", {"into": name, "mode": "list"}, key)
        fields = {**tool[1].entries, "result": (result[0], with_entries(result[1], block))}
        given["tool"] = (tool[0], with_entries(tool[1], fields))
        del given["result"]

    def _admit(
        self, entries: Entries, when: tuple[Scalar, Node] | None, name: str, step: Mapping, names: NameTranslator
    ) -> None:
        """Add the admission of a step: it waits for its `when` and runs once, even if several arcs lead to it."""
        place = ("spec", "policy", "admit")
        if when is not None:
            at = when[0]
            rules = [{"when": names.translate_node(when[1]), "then": {"allow": True}}]
            put_nested(entries, (*place, "rules"), to_node(rules, at), at)
        called = self.incoming.get(name, 0) + (name == self.entry)
        if when is not None or (called > 1 and self._is_listed(name)):
            place_of: Node = when[0] if when is not None else step
            put_nested(entries, (*place, "join"), "each", place_of)
            put_nested(entries, (*place, "once"), True, place_of)

    def _is_listed(self, name: str) -> bool:
        """Whether a `next` list names this step."""
        following = [step.get("next") for step in items_of(self.root.get("workflow")) if isinstance(step, Mapping)]
        return any(isinstance(each, Sequence) and name in targets_of(each) for each in following)

    def _loop(self, loop: Mapping, outside: NameTranslator, names: NameTranslator) -> Mapping:
        entries: Entries = {}
        mode = text_of(loop.get("mode")) or "sequential"
        mode = {"async": "parallel", "concurrent": "parallel"}.get(mode, mode)
        for key, (key_node, value) in loop.entries.items():
            if key == "collection":
                entries["in"] = (scalar_node("in", key_node), outside.translate_node(value))
            elif key == "element":
                entries["iterator"] = (scalar_node("iterator", key_node), value)
            elif key == "mode":
                put_nested(entries, ("spec", "mode"), scalar_node(mode, value), key_node)
            elif key == "until":
                if mode == "sequential":
                    put_nested(entries, ("spec", "until"), names.translate_node(value), key_node)
                else:
                    self.notes.append(
                        TranslationNote(key_node, "`until` of a parallel loop has no effect and is removed")
                    )
            elif key == "loop" and isinstance(value, Mapping):
                element = text_of(value.get("element"))
                inner = names.with_locals(**{element: f"iter.{element}"}) if element else names
                entries["loop"] = (key_node, self._loop(value, names, inner))
            else:
                entries[key] = (key_node, names.translate_node(value) if key != "in" else outside.translate_node(value))
        return with_entries(loop, entries)

    def _next(self, node: Node, names: NameTranslator) -> Node:
        if isinstance(node, Mapping) and ("arcs" in node.entries or "step" not in node.entries):
            return names.translate_node(node)
        edges: list[Node] = []
        guarded = False
        for item in items_of(node):
            if isinstance(item, Mapping):
                guarded = guarded or item.get("when") is not None
                edges += [names.translate_node(each) for each in _targets_of_then(item)]
            else:
                edges.append(to_node({"step": item}, item))
        arcs = to_node({"arcs": sequence_node(edges, node)}, node)
        if len(edges) > 1 and not guarded:
            return to_node({"spec": {"mode": "inclusive"}, "arcs": sequence_node(edges, node)}, node)
        return arcs


def _targets_of_then(item: Mapping) -> list[Mapping]:
    """An item `{when, then: [{step}, ...]}` of a `next` list as one edge for each of its targets."""
    then = item.entries.get("then") or item.entries.get("else")
    if then is None or "step" in item.entries:
        return [item]
    shared = {key: each for key, each in item.entries.items() if key in ("when", "args", "data")}
    edges = []
    for target in items_of(then[1]):
        own = target.entries if isinstance(target, Mapping) else {"step": (scalar_node("step", target), target)}
        edges.append(with_entries(item, {**shared, **own}))
    return edges or [item]


def _bind(bound: tuple[Scalar, Node] | None, names: NameTranslator, entries: Entries, sets: Entries) -> NameTranslator:
    """Translate `bind` to `input` and `set`; the result knows the bound names."""
    if bound is None or not isinstance(bound[1], Mapping):
        return names
    for key, (_, value) in bound[1].entries.items():
        path = text_of(value.get("path")) if isinstance(value, Mapping) else None
        if path is None:
            put_nested(entries, ("input", key), names.translate_node(value), bound[0])
            names = names.with_locals(**{key: f"input.{key}"})
            source = f"input.{key}"
        else:
            source = "output" + path.removeprefix("result") if path.startswith("result") else f"output.{path}"
        sets[f"ctx.{key}"] = entry(f"ctx.{key}", f"{{{{ {source} }}}}", bound[0])
    return names


def _with_element(loop: tuple[Scalar, Node] | None, names: NameTranslator) -> NameTranslator:
    """The names inside a loop: its element is `iter.<element>`."""
    if loop is None or not isinstance(loop[1], Mapping):
        return names
    element = text_of(loop[1].get("element")) or text_of(loop[1].get("iterator"))
    return names.with_locals(**{element: f"iter.{element}"}) if element else names


def _variable_of(result: Node) -> str | None:
    return text_of(result) or (text_of(result.get("as")) if isinstance(result, Mapping) else None)


def _with_tool(step: Mapping, specs: Table[str, ToolSpec], *, named: bool = False) -> Mapping:
    """Move the keys of a tool that are written beside `step` (`type`, `name`, `data`, `save`) under `tool`.

    The `name` of a block (`named`) is its own."""
    if "tool" in step.entries:
        return _with_sink_in_tool(_with_input(step))
    if "type" not in step.entries:
        return step
    spec = specs.get(text_of(step.get("type")) or "")
    fields = {*_FIRST_GENERATION, *_FIELDS} | (set(spec.fields) if spec is not None else set())
    tool: Entries = {}
    rest: Entries = {}
    for key, (key_node, value) in step.entries.items():
        if key == "type":
            tool["kind"] = (scalar_node("kind", key_node), value)
        elif key in ("data", "with"):
            tool["args"] = (scalar_node("args", key_node), value)
        elif key in fields - _OF_STEPS and not (named and key == "name"):
            tool[key] = (key_node, value)
        else:
            rest[key] = (key_node, value)
    at = step.entries["type"][0]
    rest["tool"] = (scalar_node("tool", at), mapping_node(tool, at))
    return with_entries(step, rest)


def _with_input(step: Mapping) -> Mapping:
    """A step or block whose inputs are written as `data` or `with`."""
    words = [word for word in ("data", "with") if isinstance(step.get(word), Mapping)]
    if not words:
        return step
    entries = {key: each for key, each in step.entries.items() if key not in (*words, "input")}
    given: Entries = {}
    for word in (*words, "input"):
        inputs = step.get(word)
        if isinstance(inputs, Mapping):
            given.update(inputs.entries)
    at = step.entries[words[0]][0]
    entries["input"] = (scalar_node("input", at), mapping_node(given, step.entries[words[0]][1]))
    return with_entries(step, entries)


def _with_sink_in_tool(step: Mapping) -> Mapping:
    """Move `sink`, `save` and `chunk` of a step or block to its tool, or to the last task of several."""
    moved: Entries = {key: step.entries[key] for key in ("sink", "save", "chunk") if key in step.entries}
    key, tool = step.entries["tool"]
    *others, last = tool.items if isinstance(tool, Sequence) and tool.items else [tool]
    label = next(iter(last.entries)) if isinstance(last, Mapping) and is_labelled(last) else None
    task = last.get(label) if label is not None and isinstance(last, Mapping) else last
    if not moved or not isinstance(task, Mapping) or any(word in task.entries for word in moved):
        return step
    task = with_entries(task, {**task.entries, **moved})
    if label is not None and isinstance(last, Mapping):
        task = with_entries(last, {label: (last.entries[label][0], task)})
    rest = {word: each for word, each in step.entries.items() if word not in moved}
    whole = sequence_node([*others, task], tool) if isinstance(tool, Sequence) else task
    return with_entries(step, {**rest, "tool": (key, whole)})


def _in_order(step: Mapping, entries: Entries) -> Entries:
    """The entries in the author's order: a translated key takes the place of the key that it replaces."""

    def place(key: str) -> tuple[int, bool]:
        at = entries[key][0].start
        return (at if step.start <= at <= step.end else step.end, key not in ("step", "name"))

    return {key: entries[key] for key in sorted(entries, key=place)}
