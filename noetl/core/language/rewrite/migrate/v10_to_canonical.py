"""Migrate v10 text to canonical text in place: comments, blank lines and order stay.

`args` becomes `input`, `outcome` becomes `output`, `set_ctx` and `set_iter` become `set`, a labelled task gets a
`name`. The `args` of an arc, which travel with the token, become a `set` on `ctx`, and the steps that read them get an
`input`. What cannot be translated exactly is marked with a comment and listed with its line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping as Table
from typing import NamedTuple

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.compile import compile_playbook
from noetl.core.language.diagnostics import Findings
from noetl.core.language.flow import visibility as at
from noetl.core.language.flow.template_analysis import Read
from noetl.core.language.flow.template_sites import TemplateSite
from noetl.core.language.rewrite.format import labelled_items
from noetl.core.language.rewrite.migrate.token_args import TokenArgs
from noetl.core.language.rewrite.text_edits import Editor, dotted, entries_in_place, lines_inside, name_task
from noetl.core.language.source.node_reader import Reader
from noetl.core.language.source.nodes import Mapping, Node, Scalar
from noetl.core.language.syntax.tree import DocumentSyntax, StepSyntax, TaskSyntax
from noetl.core.model.tool import ToolSpec

COMMENT_PREFIX = "noetl migrate:"

# Where `args` has only the values of the token, because the step's `input` is not evaluated yet.
BEFORE_INPUT = (at.ADMIT, at.STEP_INPUT, at.LOOP_INPUT, at.LOOP_IN, at.INNER_LOOP_IN, at.LIMIT)


class Note(NamedTuple):
    """Something that was not translated exactly, with its line."""

    line: int
    message: str


class Migration(NamedTuple):
    """The new text, and notes for the author."""

    text: str
    notes: tuple[Note, ...]


def migrate(text: str, specs: Table[str, ToolSpec]) -> Migration:
    """Rewrite a v10 playbook that compiles; canonical text is returned unchanged."""
    ends = "\r\n" if "\r\n" in text else "\n"
    plain = text.removeprefix("\ufeff").replace("\r\n", "\n")
    compiled = compile_playbook(plain, file="", specs=specs)
    if compiled.document is None or compiled.playbook is None or compiled.document.surface != "v10":
        return Migration(text, ())
    migration = _V10Migration(plain, compiled.document, specs)
    migration.run()
    new_text = migration.editor.apply()
    notes = [*migration.notes, *_remaining_errors(new_text, specs)]
    return Migration(new_text.replace("\n", ends), tuple(sorted(notes)))


def _remaining_errors(text: str, specs: Table[str, ToolSpec]) -> list[Note]:
    """Errors that strict validation reports for the new text."""
    found = compile_playbook(text, file="", specs=specs, strict=True).diagnostics
    return [Note(one.line, f"{one.message} ({one.hint})") for one in found if one.severity == "error"]


class _V10Migration:
    """One migration: the editor and the notes."""

    def __init__(self, text: str, document: DocumentSyntax, specs: Table[str, ToolSpec]) -> None:
        self.editor = Editor(text)
        self.editor.inside.update(lines_inside(document.node))
        self.document = document
        self.context = AnalysisContext(document, Reader(Findings("", text), specs))
        self.token_args = TokenArgs(document, self.context)
        self.notes: list[Note] = []
        self.marked: set[tuple[int, str]] = set()

    def run(self) -> None:
        """Apply all rewrites to the document."""
        for body in self.document.bodies():
            self._rename(body.node, "args", "input")
            for task in body.tasks():
                self._task(task)
        for item in labelled_items(self.document.node):
            self._label(item)
        for site in self.context.sites.templates:
            self._template(site)
        for step in self.document.steps:
            self._arcs(step)
            self._inputs(step)

    # ── keys ─────────────────────────────────────────────────────────────────────────────

    def _rename(self, node: Node, old: str, new: str) -> None:
        if isinstance(node, Mapping) and old in node.entries:
            key = node.entries[old][0]
            if new in node.entries:
                self._note(key, f"both `{old}` and `{new}` are given; `{new}` is used, remove `{old}`")
            else:
                self.editor.key(key, new)

    def _label(self, item: Mapping) -> None:
        ((label, inner),) = item.entries.values()
        if isinstance(inner, Mapping) and "name" in inner.entries:
            kind = inner.get("kind")
            if isinstance(kind, Scalar) and kind.value == "workbook" and "block" not in inner.entries:
                self.editor.key(inner.entries["name"][0], "block")
            else:
                self._note(label, "this task has a label and a `name`; keep the label as its `name`")
                return
        if not name_task(self.editor, item, named=True):
            self._note(label, f"write this task as `name: {label.text}` beside `kind`")

    def _task(self, task: TaskSyntax) -> None:
        self._rename(task.node, "args", "input")
        for rule in task.rules:
            if rule.then is not None:
                self._sets(rule.then)

    def _sets(self, then: Mapping) -> None:
        """Rewrite `set_ctx` and `set_iter` to one `set`."""
        words = [word for word in then.entries if word in _SCOPE_OF or word == "set"]
        if not any(word in _SCOPE_OF for word in words):
            return
        blocks = [then.entries[word] for word in words]
        ready = entries_in_place(then) and all(isinstance(v, Mapping) and entries_in_place(v) for _, v in blocks)
        host_key, host = blocks[0]
        if not ready or not isinstance(host, Mapping):
            self._note(host_key, "write this as `set` with the scope before each name")
            return
        for (_, block), word in zip(blocks[1:], words[1:], strict=True):
            if not isinstance(block, Mapping) or not self._can_join(then, host, word, block):
                self._note(host_key, "join " + ", ".join(f"`{word}`" for word in words) + " into one `set`")
                return
        self.editor.key(host_key, "set")
        self._prefix(host, _SCOPE_OF.get(words[0]))
        for word in words[1:]:
            self._join(then, host, word)

    def _can_join(self, then: Mapping, host: Mapping, word: str, block: Mapping) -> bool:
        if not host.entries or not block.entries or host.flow != block.flow:
            return False
        key = then.entries[word][0]
        text = self.editor.text
        if host.flow:
            alone = then.flow or not _rest_of_line(text, block.end).strip()
            return alone and "\n" not in text[key.start : block.end] and "#" not in text[block.start : block.end]
        between = text[self.editor.end(_before(then, word)) : key.start]
        return (
            block.column == host.column
            and block.line > key.line
            and _before(then, word) is _last_joined(then, word)
            and not between.strip()
            and re.fullmatch(r"\s*:\s*", text[key.end : block.start]) is not None
        )

    def _join(self, then: Mapping, host: Mapping, word: str) -> None:
        key, block = then.entries[word]
        assert isinstance(block, Mapping)
        editor = self.editor
        scope = _SCOPE_OF.get(word)
        if not host.flow:
            editor.replace(editor.starts[key.line - 1], editor.starts[block.line - 1], "")
            self._prefix(block, scope)
            return
        text = editor.text
        parts = [
            f"{dotted(scope, inner) if scope else text[inner.start : inner.end]}: {self._value(value)}"
            for inner, value in block.entries.values()
        ]
        editor.replace(host.end - 1, host.end - 1, ", " + ", ".join(parts))
        if then.flow:
            editor.replace(editor.end(_before(then, word)), block.end, "")
        else:
            line = editor.line_at(block.end)
            stop = editor.starts[line + 1] if line + 1 < len(editor.starts) else len(text)
            editor.replace(editor.starts[key.line - 1], stop, "")

    def _value(self, node: Node) -> str:
        """The text of a moved value, with its templates rewritten."""
        text = self.editor.text[node.start : node.end]
        inner = Editor(text)
        for site in self.context.sites.templates:
            if node.start <= site.node.start and site.node.end <= node.end:
                for start, end, new in self._replacements(site):
                    inner.replace(start - node.start, end - node.start, new)
        return inner.apply()

    def _prefix(self, block: Mapping, scope: str | None) -> None:
        for key, _ in block.entries.values():
            if scope is not None:
                self.editor.key(key, dotted(scope, key))

    # ── templates ────────────────────────────────────────────────────────────────────────

    def _template(self, site: TemplateSite) -> None:
        for start, end, new in self._replacements(site):
            self.editor.replace(start, end, new)

    def _replacements(self, site: TemplateSite) -> list[tuple[int, int, str]]:
        found = []
        value = site.node.value
        for read in site.template.reads:
            if read.path[0] not in _ROOTS or not value.startswith(read.path[0], read.offset):
                continue
            old, new = self._replacement(site, read, value)
            if old == new:
                continue
            span = self.editor.span(site.node, read.offset, len(old))
            if span is None:
                self._note(site.node, f"write `{new}` for `{old}`")
            else:
                found.append((*span, new.replace("'", "''") if site.node.style == "'" else new))
        return found

    def _replacement(self, site: TemplateSite, read: Read, value: str) -> tuple[str, str]:
        """The characters of a read that change, and their replacement."""
        root = read.path[0]
        if root == "args":
            name = read.path[1] if len(read.path) > 1 else ""
            base = self.token_args.base(site.body, name) if isinstance(site.body, StepSyntax) else None
            written = _ATTRIBUTE.match(value, read.offset)
            if base is not None and written and any(site.visibility is visibility for visibility in BEFORE_INPUT):
                return written.group(), f"ctx.{base}"
            return "args", "input"
        found = _RESULT.match(value, read.offset)
        if found is None:
            return root, "output"
        if found.group("data") and not _has_closed_payload(site):
            return self._nested_data(found.group(), _BELOW.match(value, found.end()))
        return found.group(), "output.data"

    def _nested_data(self, old: str, below: re.Match[str] | None) -> tuple[str, str]:
        """v10 reads the payload's own `data` key, and the payload itself if there is none."""
        if below is None:
            return old, "(output.data.data | default(output.data))"
        key = below.group("name") or below.group("text")
        field = below.group().replace(" ", "")
        other = f"output.data{field}" + (f" | default(output{field})" if key in _HTTP_FIELDS else "")
        return old + below.group(), f"(output.data.data{field} | default({other}))"

    # ── arguments of the token ───────────────────────────────────────────────────────────

    def _arcs(self, step: StepSyntax) -> None:
        for arc in step.arcs:
            node = arc.node
            if not isinstance(node, Mapping) or "args" not in node.entries:
                continue
            key, block = node.entries["args"]
            if not isinstance(block, Mapping) or not entries_in_place(block) or "set" in node.entries:
                self._note(key, "write these values under the arc's `set` as `ctx.<name>`")
                continue
            self.editor.key(key, "set")
            for inner, _ in block.entries.values():
                name, _, rest = inner.text.removeprefix("args.").partition(".")
                base = self.token_args.bases[arc.target or "", name]
                self.editor.key(inner, f"ctx.{base}" + (f".{rest}" if rest else ""))

    def _inputs(self, step: StepSyntax) -> None:
        """Add the values that arcs pass to a step to its `input`."""
        wanted = self.token_args.wanted(step)
        lines = []
        for name in wanted:
            bases = self.token_args.reaching(step, name)
            known = sorted(base for base in bases if base)
            if len(known) > 1:
                words = " or ".join(f"`ctx.{base}`" for base in known)
                self._note(step.name_node, f"different arcs set `input.{name}`; read it from {words}")
            elif None in bases:
                self._note(step.name_node, f"only some arcs set `input.{name}`; it is null on the others")
                lines.append(f'{name}: "{{{{ ctx.{known[0]} | default(none) }}}}"')
            else:
                lines.append(f'{name}: "{{{{ ctx.{known[0]} }}}}"')
        if lines:
            self._add_input(step, lines)

    def _add_input(self, step: StepSyntax, lines: list[str]) -> None:
        editor = self.editor
        node = step.node
        if not isinstance(node, Mapping):
            return
        block = step.input
        if block is not None and block.entries and entries_in_place(block):
            if block.flow:
                editor.replace(block.start + 1, block.start + 1, ", ".join(lines) + ", ")
            else:
                indent = " " * (block.column - 1)
                start = editor.starts[block.line - 1]
                editor.replace(start, start, "".join(f"{indent}{line}\n" for line in lines))
        elif "input" in node.entries or "args" in node.entries:
            self._note(step.name_node, "add to this step's `input`: " + ", ".join(lines))
        elif node.flow:
            end = step.name_node.end
            editor.replace(end, end, ", input: {" + ", ".join(lines) + "}")
        else:
            key = node.entries["step"][0]
            indent = " " * (key.column - 1)
            line = editor.line_at(step.name_node.end)
            end = editor.starts[line] + len(editor.line(line))
            editor.replace(end, end, f"\n{indent}input:" + "".join(f"\n{indent}  {each}" for each in lines))

    # ── notes for the author ─────────────────────────────────────────────────────────────

    def _note(self, node: Node, message: str) -> None:
        if (node.line, message) in self.marked:
            return
        self.marked.add((node.line, message))
        self.notes.append(Note(node.line, message))
        self.editor.comment(node, f"{COMMENT_PREFIX} {message}")


def _has_closed_payload(site: TemplateSite) -> bool:
    """Whether a template reads the payload of a kind that has no key `data`."""
    task = site.task if site.visibility in (at.RULE, at.TASK_SET) else None
    if task is None and site.visibility in (at.STEP_SET, at.ARC) and site.body is not None and site.body.loop is None:
        tasks = list(site.body.tasks())
        task = tasks[0] if len(tasks) == 1 else None
    return task is not None and task.kind in _CLOSED_PAYLOADS


def _before(then: Mapping, word: str) -> Node:
    """The value of the entry before this one."""
    words = list(then.entries)
    return then.entries[words[words.index(word) - 1]][1]


def _last_joined(then: Mapping, word: str) -> Node:
    """The value of the last `set` block before this one."""
    words = [each for each in then.entries if each in _SCOPE_OF or each == "set"]
    return then.entries[words[words.index(word) - 1]][1]


def _rest_of_line(text: str, offset: int) -> str:
    stop = text.find("\n", offset)
    return text[offset:] if stop < 0 else text[offset:stop]


# Kinds whose payload has fixed keys without `data`.
_CLOSED_PAYLOADS = frozenset({"postgres", "duckdb", "sqlite", "shell"})
_SCOPE_OF = {"set_ctx": "ctx", "set_iter": "iter"}
_ROOTS = frozenset({"outcome", "output", "args"})
_ATTRIBUTE = re.compile(r"args\s*(?:\.\s*\w+|\[\s*(['\"])\w+\1\s*\])")
_BELOW = re.compile(r"""\s*\.\s*(?P<name>[^\W\d]\w*)\b(?!\s*\()|\s*\[\s*(['"])(?P<text>[^'"]*)\2\s*\]""")
_HTTP_FIELDS = frozenset({"body", "status_code", "headers", "url"})
_PART = r"""(?:\s*\.\s*{0}\b|\s*\[\s*(?:'{0}'|"{0}")\s*\])"""
_RESULT = re.compile(r"(?:outcome|output)" + _PART.format("result") + "(?P<data>" + _PART.format("data") + ")?")
