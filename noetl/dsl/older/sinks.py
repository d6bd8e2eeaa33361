"""Sinks and chunks of 2025-11 as `transfer` tasks behind the tool.

Sinks that take the tool's records share one transfer, so that they run side by side for every chunk. A sink
whose `args` name columns stores one row of them. An `http` sink with a `body` and an `s3` sink with a `body`
are tasks of their own kind. The tool's own result stays the step's: a last task hands it on.
"""

from __future__ import annotations

import re
from typing import Any

from noetl.dsl.nodes import Mapping, Node, Scalar, scalar_node, sequence_node
from noetl.dsl.older.building import Entries, entry, items_of, made
from noetl.dsl.older.names import Names
from noetl.dsl.reading import text_of
from noetl.dsl.templates import glance

_SQL = ("postgres", "duckdb", "sqlite")
_ROWS = ("rows", "data", "records", "items")
_ALONE = re.compile(r"\s*\{\{-?\s*([A-Za-z_][\w.]*)\s*-?\}\}\s*\Z")
_WHOLE = re.compile(r"\s*\{\{-?(.*?)-?\}\}\s*\Z", re.S)
_RESULTS = ("this", "out", "result", "tool_result")


class Sinks:
    """Tells the sinks of one tool; `task` is the name under which its result can be read."""

    def __init__(self, task: str, kind: str, names: Names, chunk: Node | None, owner: str) -> None:
        self.task = task
        self.kind = kind
        self.names = names
        self.chunk = chunk if isinstance(chunk, Mapping) else None
        self.owner = owner

    # --- behind a tool ---

    def tasks(self, sinks: list[Node], at: Scalar, *, picked: str | None) -> list[Node]:
        """The tasks that store a tool's result, and the one that hands it on."""
        shared: dict[str, list[Node]] = {}
        single: list[tuple[str, dict[str, Any], Node]] = []
        for sink in sinks:
            fields = _sink_fields(sink)
            if fields is None:
                shared.setdefault(self._records(picked), []).append(self.names.node(sink))
                continue
            own = self._own_task(fields)
            if own is not None:
                single.append(("", own, sink))
                continue
            columns, records = self._columns(fields, picked)
            if columns is not None:
                target = self._target({**fields, "args": None})
                row = [{key: self.names.node(value) for key, (_, value) in columns.items()}]
                single.append(("transfer", {"kind": "transfer", "data": row, "targets": [target]}, sink))
            else:
                shared.setdefault(records, []).append(made(self._target(fields), sink))
        told: list[Node] = []
        for records, targets in shared.items():
            fields_of: dict[str, Any] = {
                "name": self._name(told),
                "kind": "transfer",
                "data": records,
                "targets": sequence_node(targets, at),
            }
            size = self.chunk.get("size") if self.chunk is not None else None
            if size is not None:
                fields_of["chunk"] = {"size": self.names.node(size)}
            told.append(made(fields_of, at))
        for _, task, sink in single:
            told.append(made({"name": self._name(told), **task}, sink))
        payload = f"{self.task}.body" if self.kind == "http" else self.task
        told.append(made({"name": f"{self.owner}_result", "kind": "noop", "returns": f"{{{{ {payload} }}}}"}, at))
        return told

    def _name(self, told: list[Node]) -> str:
        return f"{self.owner}_sink" + (f"_{len(told) + 1}" if told else "")

    def _records(self, picked: str | None, expression: str | None = None) -> str:
        """The template for the records that sinks get."""
        path = text_of(self.chunk.get("path")) if self.chunk is not None else None
        if path:
            inner = path.removeprefix("$").lstrip(".").replace("[*]", "")
            return f"{{{{ {self.task}.{inner} }}}}" if inner else f"{{{{ {self.task}.data }}}}"
        if picked is not None and expression is None:
            expression = picked
        if self.kind in _SQL and expression in (None, self.task, f"{self.task}.data"):
            return f"{{{{ {self.task}.rows }}}}"
        records = expression or f"{self.task}.data"
        return f"{{{{ [{records}] if {records} is mapping else {records} }}}}"

    def _columns(self, fields: dict[str, tuple[Scalar, Node]], picked: str | None) -> tuple[Entries | None, str]:
        """The columns of the one row a sink stores, or None and the records it takes."""
        args = fields["args"][1] if "args" in fields else None
        if "mapping" in fields or not isinstance(args, Mapping) or not args.entries:
            return None, self._records(picked)
        if len(args.entries) == 1:
            ((key, (_, value)),) = args.entries.items()
            alone = _ALONE.match(value.value) if isinstance(value, Scalar) and isinstance(value.value, str) else None
            if alone and self._is_rows(key, tuple(alone.group(1).split("."))):
                if alone.group(1) == "chunk.data":
                    return None, self._records(picked)
                told = self.names.text(f"{{{{ {alone.group(1)} }}}}")[2:-2].strip()
                return None, self._records(picked, told)
        if self.chunk is not None:
            return None, self._records(picked)
        return args.entries, ""

    def _is_rows(self, key: str, path: tuple[str, ...]) -> bool:
        if path == ("chunk", "data"):
            return True
        return (path[0] in self.names.local and key in _ROWS) or (len(path) > 1 and path[-1] in ("rows", "records"))

    # --- targets ---

    def _target(self, fields: dict[str, Any]) -> dict[str, Any]:
        target: dict[str, Any] = {}
        for key, each in fields.items():
            if each is None or key == "args":
                continue
            value = each[1] if isinstance(each, tuple) else each
            if key in ("kind", "storage"):
                kind = text_of(value) or ""
                target["kind"] = "object" if kind == "s3" else kind
                if kind == "s3":
                    target["provider"] = "s3"
            elif key == "mapping" and isinstance(value, Mapping):
                target["mapping"] = {name: self._per_row(each) for name, (_, each) in value.entries.items()}
            elif key == "body" and target.get("kind") == "http":
                continue  # the chunk itself is what is posted
            elif key == "spec" and isinstance(value, Mapping):
                target.update({name: self.names.node(each) for name, (_, each) in value.entries.items()})
            else:
                target[key] = self.names.node(value)
        args = fields["args"][1] if fields.get("args") else None
        if isinstance(args, Mapping) and len(args.entries) > 1 and "mapping" not in target:
            target["mapping"] = {name: self._per_row(each) for name, (_, each) in args.entries.items()}
        return target

    def _per_row(self, value: Node) -> Node:
        """A column's template, evaluated for every row: what named the tool's result names the row."""
        if not isinstance(value, Scalar) or not isinstance(value.value, str) or "{" not in value.value:
            return value
        rows = {
            name: "row"
            for name, told in self.names.local.items()
            if told in ("", self.task) or told.endswith(".out") or name in _RESULTS
        }
        alone = _ALONE.match(value.value)
        if alone:
            path = alone.group(1).split(".")
            if path[0] in rows and len(path) == 2 and path[1] in _ROWS:
                return scalar_node("{{ row }}", value)
        told = Names(self.names.variables, self.names.step, {**self.names.local, **rows}).text(value.value)
        if any(read.path[0] in ("row", "chunk") for read in glance(told).reads):
            return scalar_node(told, value)
        whole = _WHOLE.match(told)
        if whole and "{{" not in whole.group(1):
            return scalar_node(f"{{{{ ({whole.group(1).strip()}) if row is defined else none }}}}", value)
        return scalar_node(told + "{{ '' if row is defined }}", value)

    def _own_task(self, fields: dict[str, tuple[Scalar, Node]]) -> dict[str, Any] | None:
        """The task of a sink that is no transfer: a body that is sent or put as it is."""
        kind = text_of(fields["kind"][1]) if "kind" in fields else None
        if "body" not in fields or self.chunk is not None or kind not in ("http", "s3"):
            return None
        task: dict[str, Any] = {}
        for key, (_, value) in fields.items():
            if key == "kind":
                task["kind"] = "object" if kind == "s3" else "http"
                if kind == "s3":
                    task.update(provider="s3", action="put")
            elif key == "on_error":
                if text_of(value) == "warn":
                    rule = {"when": "{{ output.status == 'error' }}", "then": {"do": "continue"}}
                    task["spec"] = {"policy": {"rules": [rule]}}
            else:
                task["uri" if key == "path" else "data" if key == "body" and kind == "s3" else key] = self.names.node(
                    value
                )
        if kind == "http":
            task.setdefault("method", "POST")
        return task

    # --- kind: transfer ---

    def into_transfer(self, entries: Entries, given: Entries, sink: tuple[Scalar, Node] | None) -> None:
        """A `transfer` of 2025-11: its `sink` are the targets, the source's `chunk` is the transfer's."""
        source = given.get("source")
        chunk = given.get("chunk")
        if source is not None:
            inner = source[1]
            if isinstance(inner, Mapping):
                kept = dict(inner.entries)
                chunk = kept.pop("chunk", None) or chunk
                _unwrap(kept)
                inner = self.names.node(made({key: value for key, (_, value) in kept.items()}, inner))
            entries["source"] = (source[0], inner)
        if sink is not None:
            known = dict.fromkeys((*_RESULTS, *((self.task,) if self.task else ())), "")
            names = Names(self.names.variables, self.names.step, {**self.names.local, **known})
            teller = Sinks(self.task, "transfer", names, self.chunk, self.owner)
            targets: list[Node] = []
            for item in items_of(sink[1]):
                fields = _sink_fields(item)
                targets.append(self.names.node(item) if fields is None else made(teller._target(fields), item))
            entries["targets"] = (scalar_node("targets", sink[0]), sequence_node(targets, sink[1]))
        if chunk is not None:
            held = chunk[1]
            if isinstance(held, Mapping):
                held = made({key: value for key, (_, value) in held.entries.items() if key != "mode"}, held)
            entries["chunk"] = (chunk[0], self.names.node(held))


def _sink_fields(sink: Node) -> dict[str, tuple[Scalar, Node]] | None:
    """A sink's words, `kind` first; `- postgres: {...}` is `- kind: postgres` with the rest."""
    if not isinstance(sink, Mapping):
        return None
    entries = dict(sink.entries)
    if "storage" in entries and "kind" not in entries:
        entries = {"kind": entries.pop("storage"), **entries}
    if "kind" in entries:
        entries = {"kind": entries.pop("kind"), **entries}
    elif len(entries) == 1:
        ((kind, (key_node, inner)),) = entries.items()
        rest = dict(inner.entries) if isinstance(inner, Mapping) else {}
        entries = {"kind": entry("kind", kind, key_node), **rest}
    _unwrap(entries)
    return entries


def _unwrap(entries: dict[str, tuple[Scalar, Node]]) -> None:
    wrapped = entries.get("spec")
    if wrapped is not None and isinstance(wrapped[1], Mapping):
        del entries["spec"]
        for key, each in wrapped[1].entries.items():
            entries.setdefault(key, each)
