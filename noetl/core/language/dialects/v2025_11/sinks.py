"""Translate 2025-11 sinks and chunks to a `transfer` task after the tool, or instead of it.

All sinks of a tool become targets of one transfer, so that they run in parallel. Most store the tool's records; a
sink with named columns in `args`, or with a `body`, has its own content (`data` of the target).

With `chunk` the result of the step is a summary of the transfer (number of records and chunks, targets); a chunked
query becomes one transfer from the database, so its rows are never all in memory. Without `chunk` the result of the
step is the tool's result, which a last task returns.
"""

from __future__ import annotations

from typing import Any

from noetl.core.language.dialects.v2025_11.node_building import Entries, TranslationNote, entry, items_of, to_node
from noetl.core.language.dialects.v2025_11.variables import SINGLE_NAME, NameTranslator
from noetl.core.language.source.node_reader import text_of
from noetl.core.language.source.nodes import Mapping, Node, Scalar, scalar_node, sequence_node

_SQL = ("postgres", "duckdb", "sqlite")
_ROWS = ("rows", "data", "records", "items")
_RESULTS = ("this", "out", "result", "tool_result")
_QUERIES = ("query", "sql", "command", "statement")
_SOURCE = (
    "kind",
    "auth",
    "credential",
    *_QUERIES,
    "params",
    "file",
    "database",
    "dsn",
    "host",
    "port",
    "user",
    "password",
)


class SinkTranslator:
    """Translates the sinks of one tool; `task` is the name under which its result can be read."""

    def __init__(
        self, task: str, kind: str, names: NameTranslator, chunk: Node | None, owner: str, notes: list[TranslationNote]
    ) -> None:
        self.task = task
        self.kind = kind
        self.names = names
        self.chunk = chunk if isinstance(chunk, Mapping) else None
        self.owner = owner
        self.notes = notes

    # --- after a tool ---

    def tasks(self, sinks: list[Node], at: Scalar, *, picked: str | None) -> list[Node]:
        """The task that stores a tool's result; without chunks, also a task that returns the result."""
        fields: dict[str, Any] = {"name": f"{self.owner}_sink", "kind": "transfer"}
        targets: list[Node] = []
        shared: str | None = None
        for sink in sinks:
            known = _sink_fields(sink)
            if known is None:
                targets.append(self.names.translate_node(sink))
                shared = shared or self._records(picked)
                continue
            own, records = self._content(known, picked)
            if own is None and shared in (None, records):
                shared = records
            elif own is None:
                own = records  # other rows than those of the other sinks
            targets.append(to_node(self._target(known, own), sink))
        if shared is not None:
            fields["data"] = shared
        fields["targets"] = sequence_node(targets, at)
        size = self.chunk.get("size") if self.chunk is not None else None
        if size is not None:
            fields["chunk"] = {"size": self.names.translate_node(size)}
        tasks = [to_node(fields, at)]
        if self.chunk is None:
            payload = f"{self.task}.http.body" if self.kind == "http" else self.task
            tasks.append(
                to_node({"name": f"{self.owner}_result", "kind": "noop", "returns": f"{{{{ {payload} }}}}"}, at)
            )
        return tasks

    def as_single_transfer(self, entries: Entries, sinks: tuple[Scalar, Node]) -> Mapping | None:
        """A chunked query with its sinks as one transfer; None if the tool does more than that."""
        source = {key: each for key, each in entries.items() if key in _SOURCE}
        query = next((text_of(source[key][1]) for key in _QUERIES if key in source), None)
        if self.chunk is None or self.chunk.get("path") is not None or not _is_single_query(query):
            return None
        if set(entries) - set(_SOURCE) - {"name", "desc", "spec"}:
            return None
        at = sinks[0]
        fields: dict[str, Any] = {key: entries[key][1] for key in ("name", "desc") if key in entries}
        fields["kind"] = "transfer"
        fields["source"] = {key: each[1] for key, each in source.items()}
        targets: list[Node] = []
        for sink in items_of(sinks[1]):
            known = _sink_fields(sink)
            targets.append(
                self.names.translate_node(sink) if known is None else to_node(self._target(known, None), sink)
            )
        fields["targets"] = sequence_node(targets, at)
        size = self.chunk.get("size")
        if size is not None:
            fields["chunk"] = {"size": self.names.translate_node(size)}
        if "spec" in entries:
            fields["spec"] = entries["spec"][1]
        transfer = to_node(fields, entries["kind"][0])
        return transfer if isinstance(transfer, Mapping) else None

    def _records(self, picked: str | None, expression: str | None = None) -> str:
        """The template for the records that sinks store."""
        path = text_of(self.chunk.get("path")) if self.chunk is not None else None
        if path:
            inner = path.removeprefix("$").lstrip(".").replace("[*]", "")
            return f"{{{{ {self.task}.{inner} }}}}" if inner else f"{{{{ {self.task}.data }}}}"
        if picked is not None and expression is None:
            expression = picked
        if self.kind in _SQL and expression in (None, *(f"{self.task}{end}" for end in ("", ".data", ".rows"))):
            return f"{{{{ {self.task}.ref or {self.task}.rows }}}}"  # a large result is already in the result store
        records = expression or f"{self.task}.data"
        return f"{{{{ [{records}] if {records} is mapping else {records} }}}}"

    def _content(self, fields: dict[str, tuple[Scalar, Node]], picked: str | None) -> tuple[Any, str]:
        """The own content of a sink (a body, or the columns of one row), else None and the records that it stores."""
        args = fields["args"][1] if "args" in fields else None
        if self.chunk is None and "body" in fields and text_of(fields["kind"][1]) in ("http", "s3"):
            return self.names.translate_node(fields["body"][1]), ""
        if "mapping" in fields or not isinstance(args, Mapping) or not args.entries:
            return None, self._records(picked)
        if len(args.entries) == 1:
            ((key, (_, value)),) = args.entries.items()
            single = (
                SINGLE_NAME.match(value.value) if isinstance(value, Scalar) and isinstance(value.value, str) else None
            )
            if single and self._is_rows(key, tuple(single.group(1).split("."))):
                if single.group(1) == "chunk.data":
                    return None, self._records(picked)
                translated = self.names.translate_text(f"{{{{ {single.group(1)} }}}}")[2:-2].strip()
                return None, self._records(picked, translated)
        if self.chunk is not None:
            return None, self._records(picked)
        return {key: self.names.translate_node(value) for key, (_, value) in args.entries.items()}, ""

    def _is_rows(self, key: str, path: tuple[str, ...]) -> bool:
        if path == ("chunk", "data"):
            return True
        return (path[0] in self.names.local and key in _ROWS) or (len(path) > 1 and path[-1] in ("rows", "records"))

    # --- targets ---

    def _target(self, fields: dict[str, tuple[Scalar, Node]], own: Any) -> dict[str, Any]:
        target: dict[str, Any] = {}
        for key, (key_node, value) in fields.items():
            if key == "args" or (key == "body" and own is not None):
                continue
            if key == "kind":
                kind = text_of(value) or ""
                target["kind"] = "object" if kind == "s3" else kind
                if kind == "s3":
                    target["provider"] = "s3"
            elif key == "mapping" and isinstance(value, Mapping):
                target["mapping"] = {name: self._per_row(each) for name, (_, each) in value.entries.items()}
            elif key == "body":
                target.update(self._body_of_a_chunk(target["kind"], key_node, value))
            else:
                target[key] = self.names.translate_node(value)
        args = fields["args"][1] if "args" in fields else None
        if own is not None:
            target["data"] = own
        elif isinstance(args, Mapping) and "mapping" not in target and self._are_columns(args):
            target["mapping"] = {name: self._column(each) for name, (_, each) in args.entries.items()}
        return target

    def _are_columns(self, args: Mapping) -> bool:
        """Whether the arguments are the columns of a row; a single one may stand for all rows."""
        if len(args.entries) != 1:
            return bool(args.entries)
        ((key, (_, value)),) = args.entries.items()
        text = value.value if isinstance(value, Scalar) else None
        single = SINGLE_NAME.match(text) if isinstance(text, str) else None
        return not (single and self._is_rows(key, tuple(single.group(1).split("."))))

    def _column(self, value: Node) -> Any:
        """An argument as a column: plain text is a value, not the name of a source column."""
        if isinstance(value, Scalar) and isinstance(value.value, str) and "{" not in value.value:
            return {"value": value}
        return self._per_row(value)

    def _body_of_a_chunk(self, kind: str, key: Scalar, value: Node) -> dict[str, Any]:
        """With chunks, a body that is the tool's result is the chunk; another body is sent with every chunk."""
        single = SINGLE_NAME.match(value.value) if isinstance(value, Scalar) and isinstance(value.value, str) else None
        path = single.group(1).split(".") if single else [""]
        if path == ["chunk", "data"] or path[0] in self.names.local:
            return {}
        if kind == "http":
            return {"body": self.names.translate_node(value)}
        self.notes.append(TranslationNote(key, "with `chunk` each object contains one chunk; this `body` is removed"))
        return {}

    def _per_row(self, value: Node) -> Node:
        """A column's template, evaluated for every row: names of the tool's result become names of the row."""
        if not isinstance(value, Scalar) or not isinstance(value.value, str) or "{" not in value.value:
            return value
        rows = {
            name: "row"
            for name, translated in self.names.local.items()
            if translated in ("", self.task) or translated.endswith(".out") or name in _RESULTS
        }
        single = SINGLE_NAME.match(value.value)
        if single:
            path = single.group(1).split(".")
            if path[0] in rows and len(path) == 2 and path[1] in (*_ROWS, "body"):
                return scalar_node("{{ row }}", value)
        translated = NameTranslator(self.names.variables, self.names.step, {**self.names.local, **rows}).translate_text(
            value.value
        )
        return scalar_node(translated, value)

    # --- kind: transfer ---

    def translate_transfer(self, entries: Entries, given: Entries, sink: tuple[Scalar, Node] | None) -> None:
        """Translate a 2025-11 `transfer`: `sink` becomes `targets`, the source's `chunk` moves up."""
        source = given.get("source")
        chunk = given.get("chunk")
        if source is not None:
            inner = source[1]
            if isinstance(inner, Mapping):
                given_source = dict(inner.entries)
                chunk = given_source.pop("chunk", None) or chunk
                _unwrap(given_source)
                inner = self.names.translate_node(
                    to_node({key: value for key, (_, value) in given_source.items()}, inner)
                )
            entries["source"] = (source[0], inner)
        if sink is not None:
            known = dict.fromkeys((*_RESULTS, *((self.task,) if self.task else ())), "")
            names = NameTranslator(self.names.variables, self.names.step, {**self.names.local, **known})
            translator = SinkTranslator(self.task, "transfer", names, self.chunk, self.owner, self.notes)
            targets: list[Node] = []
            for item in items_of(sink[1]):
                fields = _sink_fields(item)
                targets.append(
                    self.names.translate_node(item)
                    if fields is None
                    else to_node(translator._target(fields, None), item)
                )
            entries["targets"] = (scalar_node("targets", sink[0]), sequence_node(targets, sink[1]))
        if chunk is not None:
            block = chunk[1]
            if isinstance(block, Mapping):
                block = to_node({key: value for key, (_, value) in block.entries.items() if key != "mode"}, block)
            entries["chunk"] = (chunk[0], self.names.translate_node(block))


def _is_single_query(text: str | None) -> bool:
    """Whether this is certainly a single statement that returns rows."""
    parts = (text or "").split(None, 1)
    return (
        bool(parts) and parts[0].lower() in ("select", "with", "values") and ";" not in str(text).rstrip().rstrip(";")
    )


def _sink_fields(sink: Node) -> dict[str, tuple[Scalar, Node]] | None:
    """The fields of a sink, `kind` first; `- postgres: {...}` is short for `- kind: postgres` with the rest."""
    if not isinstance(sink, Mapping):
        return None
    entries = dict(sink.entries)
    for word in ("storage", "tool"):  # `tool: postgres`, or `tool: {kind: postgres, ...}`
        if word in entries and "kind" not in entries:
            key_node, inner = entries.pop(word)
            known = dict(inner.entries) if isinstance(inner, Mapping) else {"kind": (key_node, inner)}
            entries = {**known, **entries}
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
