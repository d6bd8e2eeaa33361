"""Translate 2025-11 tools to canonical tasks: the `spec` wrapper, `args`, `result`, and sinks."""

from __future__ import annotations

import re
from collections.abc import Mapping as Table
from typing import NamedTuple

from noetl.core.language.dialects.v2025_11.detect import is_tool_parameter
from noetl.core.language.dialects.v2025_11.node_building import Entries, TranslationNote, items_of, put_nested
from noetl.core.language.dialects.v2025_11.sinks import SinkTranslator
from noetl.core.language.dialects.v2025_11.variables import RESERVED, NameTranslator, with_entries
from noetl.core.language.source.node_reader import text_of
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence, mapping_node, scalar_node, sequence_node
from noetl.core.language.source.yaml_source import Problem
from noetl.core.language.syntax.tasks import CONSTRUCTS, is_labelled
from noetl.core.model.tool import ToolSpec

_REDUCERS = {
    "list": "append",
    "append": "append",
    "extend": "extend",
    "merge": "merge",
    "dict": "merge",
    "map": "merge",
}
_NAME = re.compile(r"[^\W\d][\w.-]*\Z")
_SQL = ("postgres", "duckdb", "sqlite")


class TranslatedTool(NamedTuple):
    """The canonical `tool`, and the reducers that its loop needs for collected values."""

    node: Node
    reduce: dict[str, str]


class ToolTranslator:
    """Translates the tools of a document."""

    def __init__(self, specs: Table[str, ToolSpec], notes: list[TranslationNote], problems: list[Problem]) -> None:
        self.specs = specs
        self.notes = notes
        self.problems = problems

    def translate(self, node: Node, owner: str, names: NameTranslator, local: str) -> TranslatedTool:
        """Translate a step's `tool`; `local` is the scope of values of one run (`iter` in a loop, else `step`)."""
        reduce: dict[str, str] = {}
        if isinstance(node, Mapping) and not any(word in node.entries for word in CONSTRUCTS):
            tasks = self._task(node, owner, names, local, reduce, single=True)
            return TranslatedTool(tasks[0] if len(tasks) == 1 else sequence_node(tasks, node), reduce)
        if isinstance(node, Sequence):
            translated: list[Node] = []
            for number, item in enumerate(node.items):
                if isinstance(item, Mapping) and is_labelled(item):
                    ((label, inner),) = item.entries.values()
                    if isinstance(inner, Mapping):
                        named = with_entries(inner, {"name": (scalar_node("name", label), label), **inner.entries})
                        translated += self._task(named, owner, names, local, reduce)
                        continue
                if isinstance(item, Mapping) and "kind" in item.entries:
                    translated += self._task(item, f"{owner}_{number}", names, local, reduce)
                else:
                    translated.append(names.translate_node(item))
            return TranslatedTool(sequence_node(translated, node), reduce)
        return TranslatedTool(names.translate_node(node), reduce)

    def _task(
        self,
        task: Mapping,
        owner: str,
        names: NameTranslator,
        local: str,
        reduce: dict[str, str],
        *,
        single: bool = False,
    ) -> list[Node]:
        kind_node = task.get("kind")
        kind = text_of(kind_node) or ""
        spec = self.specs.get(kind)
        given = _with_result_block(_without_spec_wrapper(task, spec), spec)
        result = self._take_result(given, spec)
        sink = given.pop("sink", None) or given.pop("sinks", None) or given.pop("save", None)
        chunk = given.pop("chunk", None) if kind != "transfer" else given.get("chunk")
        block = result[1] if result is not None and isinstance(result[1], Mapping) else None
        if block is not None and block.get("sink") is not None:
            sink = block.entries["sink"]
        variable = text_of(result[1]) if result is not None else None
        name = text_of(given["name"][1]) if "name" in given and kind != "workbook" else None
        entries: Entries = {}
        if name is None and variable and variable.isidentifier() and variable not in RESERVED:
            name = variable
        if name is None and (sink is not None and kind != "transfer"):
            name = f"{owner}_task" if single else owner
        if name is not None and ("name" not in given or kind == "workbook"):
            place: Node = result[0] if result is not None and variable == name else task
            entries["name"] = (scalar_node("name", place), scalar_node(name, place))
        for key, (key_node, value) in given.items():
            if key == "name" and kind == "workbook":
                entries.setdefault("block", (scalar_node("block", key_node), value))
            elif key == "args":
                word = "params" if kind in _SQL and "params" not in given else "input"
                entries[word] = (scalar_node(word, key_node), names.translate_node(value))
            elif key == "code" and kind == "python":
                entries[key] = (key_node, value)
            elif kind == "transfer" and key in ("source", "chunk"):
                continue
            else:
                entries[key] = (key_node, names.translate_node(value))
        inside = names.with_locals(**self._locals(block, variable, name, local))
        inside = inside.with_http(name if kind == "http" else None)
        self._results(entries, block, names, local, reduce)
        if chunk is not None:
            self._check_chunk(chunk, stored=sink is not None)
        sinks = SinkTranslator(name or "", kind, inside, chunk[1] if chunk is not None else None, owner, self.notes)
        if kind == "transfer":
            sinks.translate_transfer(entries, given, sink)
            return [mapping_node(entries, task)]
        if kind in _SQL and sink is not None and block is None:
            transfer = sinks.as_single_transfer(entries, sink)
            if transfer is not None:
                return [transfer]
        tasks: list[Node] = [mapping_node(entries, task)]
        if sink is not None:
            tasks += sinks.tasks(items_of(sink[1]), sink[0], picked=f"{local}.out" if block is not None else None)
        return tasks

    def _take_result(self, given: Entries, spec: ToolSpec | None) -> tuple[Scalar, Node] | None:
        """Remove `result` if it says where the output goes; a value is the output of a `noop`."""
        result = given.get("result")
        if result is None or (spec is not None and "result" in spec.fields):
            return None
        del given["result"]
        if _names_result(result[1]):
            return result
        if spec is not None and "returns" in spec.fields:
            given.setdefault("returns", (scalar_node("returns", result[0]), result[1]))
        else:
            message = "the `result` of a tool is a name, or a mapping with `as`, `pick`, `collect` or `sink`"
            self.problems.append(Problem("legacy-result", result[1], message, "a value is the output of `kind: noop`"))
        return None

    def _check_chunk(self, chunk: tuple[Scalar, Node], *, stored: bool) -> None:
        mode = chunk[1].get("mode") if isinstance(chunk[1], Mapping) else None
        if mode is not None and text_of(mode) not in ("batch", "stream"):
            message = f"the mode of a chunk must be `batch` or `stream`, not `{text_of(mode)}`"
            self.problems.append(Problem("legacy-chunk", mode, message, "both stream the rows chunk by chunk"))
        if not stored:
            self.notes.append(TranslationNote(chunk[0], "`chunk` without a `sink` has no effect and is removed"))

    def _locals(self, block: Mapping | None, variable: str | None, name: str | None, local: str) -> dict[str, str]:
        """The local names of sinks: the tool's result under each of its names."""
        known: dict[str, str] = {}
        if name is not None:
            known.update({"this": name, name: name, "result": name, "tool_result": name})
        if variable is not None and name is not None:
            known[variable] = name
        if block is not None:
            known["out"] = f"{local}.out"
            as_name = text_of(block.get("as"))
            if as_name:
                known[as_name] = f"{local}.out"
        return known

    def _results(
        self, entries: Entries, block: Mapping | None, names: NameTranslator, local: str, reduce: dict[str, str]
    ) -> None:
        """Add the assignments of `result: {pick, as, collect}` after the task."""
        if block is None:
            return
        pick = block.get("pick")
        known = names.with_locals(this="output.data", result="output.data")
        value = known.translate_node(pick) if pick is not None else scalar_node("{{ output.data }}", block)
        if block.get("sink") is not None:
            put_nested(entries, ("set", f"{local}.out"), value, block)
        as_name = text_of(block.get("as"))
        if as_name:
            put_nested(entries, ("set", f"ctx.{as_name}"), value, block)
            if local == "iter":
                reduce.setdefault(f"ctx.{as_name}", "last")
        collect = block.get("collect")
        into = text_of(collect.get("into")) if isinstance(collect, Mapping) else text_of(collect)
        if not into:
            return
        mode = (text_of(collect.get("mode")) if isinstance(collect, Mapping) else None) or "list"
        if local == "iter":
            put_nested(entries, ("set", f"ctx.{into}"), value, block)
            reduce[f"ctx.{into}"] = _REDUCERS.get(mode, mode)
        else:
            translated = (
                value.value if isinstance(value, Scalar) and isinstance(value.value, str) else "{{ output.data }}"
            )
            expression = translated.strip().removeprefix("{{").removesuffix("}}").strip()
            put_nested(entries, ("set", f"ctx.{into}"), f"{{{{ (ctx.{into} | default([])) + [{expression}] }}}}", block)


def _names_result(result: Node) -> bool:
    """Whether a tool's `result` says where the output goes, rather than what it is."""
    if isinstance(result, Mapping):
        return not result.entries or any(key in result.entries for key in ("as", "pick", "collect", "sink"))
    return isinstance(result, Scalar) and (result.value is None or bool(_NAME.match(text_of(result) or "")))


def _with_result_block(given: Entries, spec: ToolSpec | None) -> Entries:
    """The tool's keys, with `pick`, `as` and `collect` moved into its `result`, and `bind` into its `input`."""
    own = spec.fields if spec is not None else {}
    words = [word for word in ("pick", "collect") if word in given and word not in own]
    bound = given.get("bind")
    if bound is not None and "bind" not in own and isinstance(bound[1], Mapping):
        del given["bind"]
        known = given.get("input") or given.get("args")
        more = known[1].entries if known is not None and isinstance(known[1], Mapping) else {}
        given.pop("args", None)
        given["input"] = (scalar_node("input", bound[0]), with_entries(bound[1], {**bound[1].entries, **more}))
    result = given.get("result")
    if not words or (result is not None and not isinstance(result[1], Mapping)):
        return given
    block: Entries = {word: given.pop(word) for word in (*words, "as") if word in given and word not in own}
    at = next(iter(block.values()))[0]
    held = result[1].entries if result is not None and isinstance(result[1], Mapping) else {}
    given["result"] = (scalar_node("result", at), mapping_node({**block, **held}, at))
    return given


def _without_spec_wrapper(task: Mapping, spec: ToolSpec | None) -> Entries:
    """The tool's keys, with its parameters moved out of `spec`."""
    entries: Entries = {}
    for key, (key_node, value) in task.entries.items():
        if key != "spec" or not isinstance(value, Mapping):
            entries[key] = (key_node, value)
            continue
        remaining: Entries = {}
        for inner, (inner_key, inner_value) in value.entries.items():
            known = entries.get(inner) or task.entries.get(inner)
            if not is_tool_parameter(inner, spec):
                remaining[inner] = (inner_key, inner_value)
            elif known is None:
                entries[inner] = (inner_key, inner_value)
            elif isinstance(known[1], Mapping) and isinstance(inner_value, Mapping):
                # `input` at both places: what is written beside `kind` counts
                entries[inner] = (known[0], with_entries(known[1], {**inner_value.entries, **known[1].entries}))
        if remaining:
            entries["spec"] = (key_node, with_entries(value, remaining))
    return entries
