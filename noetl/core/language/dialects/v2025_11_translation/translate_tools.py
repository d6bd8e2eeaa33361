"""Tools of 2025-11 as canonical tasks: the `spec` wrapper, `args`, `result`, and what sinks make of them."""

from __future__ import annotations

from collections.abc import Mapping as Table
from typing import NamedTuple

from noetl.core.language.dialects.v2025_11_translation.node_building import Entries, Remark, items_of, put
from noetl.core.language.dialects.v2025_11_translation.recognize import is_wrapped
from noetl.core.language.dialects.v2025_11_translation.sinks import Sinks
from noetl.core.language.dialects.v2025_11_translation.variables import RESERVED, Names, like
from noetl.core.language.source.node_reader import IDENTIFIER, text_of
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
_SQL = ("postgres", "duckdb", "sqlite")


class Told(NamedTuple):
    """The canonical `tool`, and the reducers its loop needs for what it collects."""

    node: Node
    reduce: dict[str, str]


class Tools:
    """Tells tools."""

    def __init__(self, specs: Table[str, ToolSpec], remarks: list[Remark], problems: list[Problem]) -> None:
        self.specs = specs
        self.remarks = remarks
        self.problems = problems

    def tell(self, node: Node, owner: str, names: Names, local: str) -> Told:
        """A step's `tool`; `local` is the scope for what only this run of it knows (`iter` in a loop)."""
        reduce: dict[str, str] = {}
        if isinstance(node, Mapping) and not any(word in node.entries for word in CONSTRUCTS):
            tasks = self._task(node, owner, names, local, reduce, alone=True)
            return Told(tasks[0] if len(tasks) == 1 else sequence_node(tasks, node), reduce)
        if isinstance(node, Sequence):
            told: list[Node] = []
            for number, item in enumerate(node.items):
                if isinstance(item, Mapping) and is_labelled(item):
                    ((label, inner),) = item.entries.values()
                    if isinstance(inner, Mapping):
                        named = like(inner, {"name": (scalar_node("name", label), label), **inner.entries})
                        told += self._task(named, owner, names, local, reduce)
                        continue
                if isinstance(item, Mapping) and "kind" in item.entries:
                    told += self._task(item, f"{owner}_{number}", names, local, reduce)
                else:
                    told.append(names.node(item))
            return Told(sequence_node(told, node), reduce)
        return Told(names.node(node), reduce)

    def _task(
        self, task: Mapping, owner: str, names: Names, local: str, reduce: dict[str, str], *, alone: bool = False
    ) -> list[Node]:
        kind_node = task.get("kind")
        kind = text_of(kind_node) or ""
        spec = self.specs.get(kind)
        given = _unwrapped(task, spec)
        result = given.pop("result", None) if spec is None or "result" not in spec.fields else None
        sink = given.pop("sink", None) or given.pop("save", None)
        chunk = given.pop("chunk", None) if kind != "transfer" else given.get("chunk")
        block = result[1] if result is not None and isinstance(result[1], Mapping) else None
        if block is not None and block.get("sink") is not None:
            sink = block.entries["sink"]
        variable = text_of(result[1]) if result is not None else None
        name = text_of(given["name"][1]) if "name" in given and kind != "workbook" else None
        entries: Entries = {}
        if name is None and variable and IDENTIFIER.match(variable) and variable not in RESERVED:
            name = variable
        if name is None and (sink is not None and kind != "transfer"):
            name = f"{owner}_task" if alone else owner
        if name is not None and ("name" not in given or kind == "workbook"):
            place: Node = result[0] if result is not None and variable == name else task
            entries["name"] = (scalar_node("name", place), scalar_node(name, place))
        for key, (key_node, value) in given.items():
            if key == "name" and kind == "workbook":
                entries.setdefault("block", (scalar_node("block", key_node), value))
            elif key == "args":
                word = "params" if kind in _SQL and "params" not in given else "input"
                entries[word] = (scalar_node(word, key_node), names.node(value))
            elif key == "code" and kind == "python":
                entries[key] = (key_node, value)
            elif kind == "transfer" and key in ("source", "chunk"):
                continue
            else:
                entries[key] = (key_node, names.node(value))
        inside = names.within(**self._locals(block, variable, name, local))
        self._results(entries, block, names, local, reduce)
        if chunk is not None:
            self._check_chunk(chunk, stored=sink is not None)
        sinks = Sinks(name or "", kind, inside, chunk[1] if chunk is not None else None, owner, self.remarks)
        if kind == "transfer":
            sinks.into_transfer(entries, given, sink)
            return [mapping_node(entries, task)]
        if kind in _SQL and sink is not None and block is None:
            told = sinks.direct(entries, sink)
            if told is not None:
                return [told]
        made: list[Node] = [mapping_node(entries, task)]
        if sink is not None:
            made += sinks.tasks(items_of(sink[1]), sink[0], picked=f"{local}.out" if block is not None else None)
        return made

    def _check_chunk(self, chunk: tuple[Scalar, Node], *, stored: bool) -> None:
        mode = chunk[1].get("mode") if isinstance(chunk[1], Mapping) else None
        if mode is not None and text_of(mode) not in ("batch", "stream"):
            message = f"the mode of a chunk must be `batch` or `stream`, not `{text_of(mode)}`"
            self.problems.append(Problem("legacy-chunk", mode, message, "both stream the rows chunk by chunk"))
        if not stored:
            self.remarks.append(Remark(chunk[0], "`chunk` without a `sink` has no effect and is removed"))

    def _locals(self, block: Mapping | None, variable: str | None, name: str | None, local: str) -> dict[str, str]:
        """What sinks know: the tool's result under its names."""
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
        self, entries: Entries, block: Mapping | None, names: Names, local: str, reduce: dict[str, str]
    ) -> None:
        """`result: {pick, as, collect}`: assignments after the task."""
        if block is None:
            return
        pick = block.get("pick")
        known = names.within(this="output.data", result="output.data")
        value = known.node(pick) if pick is not None else scalar_node("{{ output.data }}", block)
        if block.get("sink") is not None:
            put(entries, ("set", f"{local}.out"), value, block)
        as_name = text_of(block.get("as"))
        if as_name:
            put(entries, ("set", f"ctx.{as_name}"), value, block)
            if local == "iter":
                reduce.setdefault(f"ctx.{as_name}", "last")
        collect = block.get("collect")
        into = text_of(collect.get("into")) if isinstance(collect, Mapping) else text_of(collect)
        if not into:
            return
        mode = (text_of(collect.get("mode")) if isinstance(collect, Mapping) else None) or "list"
        if local == "iter":
            put(entries, ("set", f"ctx.{into}"), value, block)
            reduce[f"ctx.{into}"] = _REDUCERS.get(mode, mode)
        else:
            told = value.value if isinstance(value, Scalar) and isinstance(value.value, str) else "{{ output.data }}"
            expression = told.strip().removeprefix("{{").removesuffix("}}").strip()
            put(entries, ("set", f"ctx.{into}"), f"{{{{ (ctx.{into} | default([])) + [{expression}] }}}}", block)


def _unwrapped(task: Mapping, spec: ToolSpec | None) -> Entries:
    """The tool's words with those under `spec` beside the others."""
    entries: Entries = {}
    for key, (key_node, value) in task.entries.items():
        if key != "spec" or not isinstance(value, Mapping):
            entries[key] = (key_node, value)
            continue
        kept: Entries = {}
        for inner, (inner_key, inner_value) in value.entries.items():
            if is_wrapped(inner, spec):
                entries.setdefault(inner, (inner_key, inner_value))
            else:
                kept[inner] = (inner_key, inner_value)
        if kept:
            entries["spec"] = (key_node, like(value, kept))
    return entries
