"""Symbols: where steps, tasks, blocks, keychain entries and workload keys are defined and used, and renaming.

Arcs, templates, jumps and calls name symbols; every use is found in the syntax tree, so text that looks like a name
is not one. Lines and columns start at 1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.compile import Compilation, compile_playbook
from noetl.core.language.diagnostics import Findings
from noetl.core.language.flow.template_analysis import Read
from noetl.core.language.flow.template_sites import TemplateSite
from noetl.core.language.flow.visibility import LOCALS, SCOPE_NAMES
from noetl.core.language.source.node_reader import Reader
from noetl.core.language.source.nodes import Node, Scalar
from noetl.core.language.source.scalar_offsets import locate
from noetl.core.language.source.yaml_source import LINE_BREAK
from noetl.core.language.syntax.tree import BodySyntax, DocumentSyntax, TaskSyntax
from noetl.core.model.tool import ToolSpec

SymbolKind = Literal["step", "task", "block", "keychain", "workload"]


class Symbol(NamedTuple):
    """What a name refers to; `owner` is the step or block of a task."""

    kind: SymbolKind
    name: str
    owner: str = ""


class Occurrence(NamedTuple):
    """A definition or use of a symbol."""

    symbol: Symbol
    line: int
    column: int
    is_definition: bool = False
    in_template: bool = False

    @property
    def end_column(self) -> int:
        """The column after its last character."""
        return self.column + len(self.symbol.name)


class CannotRename(Exception):
    """A symbol cannot be renamed; the message says why."""


class Edit(NamedTuple):
    """A replacement of some characters of one line."""

    line: int
    column: int
    end_column: int
    text: str


def occurrences(document: DocumentSyntax, text: str, specs: Mapping[str, ToolSpec]) -> list[Occurrence]:
    """All definitions and uses of a document, in text order."""
    lines = LINE_BREAK.split(text)
    context = AnalysisContext(document, Reader(Findings("", text), specs))
    found = [*_written(document), *_read(context, text)]
    return sorted({each for each in found if _is_there(each, lines)}, key=lambda each: (each.line, each.column))


def occurrence_at(found: list[Occurrence], line: int, column: int) -> Occurrence | None:
    """The occurrence at a position; its end counts too."""
    return next((each for each in found if each.line == line and each.column <= column <= each.end_column), None)


def _is_there(found: Occurrence, lines: list[str]) -> bool:
    """Whether the text has the name there; names of translated or escaped text may be elsewhere."""
    line = lines[found.line - 1] if found.line <= len(lines) else ""
    return line[found.column - 1 : found.end_column - 1] == found.symbol.name


# --- names outside templates --------------------------------------------------------------------


def _written(document: DocumentSyntax) -> Iterator[Occurrence]:
    for step in document.steps:
        yield _at(Symbol("step", step.name), step.name_node, is_definition=True)
        for arc in step.arcs:
            if arc.target is not None and arc.target_node is not None:
                yield _at(Symbol("step", arc.target), arc.target_node)
    for block in document.blocks:
        yield _at(Symbol("block", block.name), block.name_node, is_definition=True)
    for entry in document.keychain:
        yield _at(Symbol("keychain", entry.name), entry.name_node, is_definition=True)
    if document.workload is not None:
        for key, (node, _) in document.workload.entries.items():
            yield _at(Symbol("workload", key), node, is_definition=True)
    if document.executor is not None:
        for named in (document.executor.entry_step, document.executor.return_step):
            if named is not None:
                yield _at(Symbol("step", named.text), named)
    entries = {entry.name for entry in document.keychain}
    for body in document.bodies():
        for task in body.tasks():
            yield from _in_task(task, body, entries)


def _in_task(task: TaskSyntax, body: BodySyntax, entries: set[str]) -> Iterator[Occurrence]:
    if task.named:
        yield _at(Symbol("task", task.name, body.path), task.name_node, is_definition=True)
    for rule in task.rules:
        target = rule.fields.get("to")
        if isinstance(target, Scalar):
            yield _at(Symbol("task", target.text, body.path), target)
    for name, parameter in task.parameters.items():
        value = parameter.value
        if not isinstance(value, Scalar):
            continue
        if task.kind == "workbook" and name == "block":
            yield _at(Symbol("block", value.text), value)
        elif name == "auth" and value.text in entries:
            yield _at(Symbol("keychain", value.text), value)


def _at(symbol: Symbol, node: Node, is_definition: bool = False) -> Occurrence:
    quoted = isinstance(node, Scalar) and node.style in ("'", '"')
    return Occurrence(symbol, node.line, node.column + (1 if quoted else 0), is_definition)


# --- names in templates -------------------------------------------------------------------------


def _read(context: AnalysisContext, text: str) -> Iterator[Occurrence]:
    own_state = {each.keys[0] for body in context.document.bodies() for each in context.sets_of(body)
                 if each.scope == "state"}  # fmt: skip
    for site in context.sites.templates:
        found = [each for read in site.template.reads for each in _symbols_read(context, site, read, own_state)]
        for symbol, offset in (*found, *_literals(context, site)):
            yield Occurrence(symbol, *locate(text, site.node, offset), in_template=True)


def _symbols_read(
    context: AnalysisContext, site: TemplateSite, read: Read, own_state: set[str]
) -> Iterator[tuple[Symbol, int]]:
    """The symbols that a read names, and the offsets of their names in the template."""
    first, *fields = read.path
    tasks = _tasks_at(context, site)
    body = site.body.path if site.body is not None else ""
    symbols: list[Symbol] = []
    if first == "keychain" and fields:
        symbols = [Symbol("keychain", fields[0])]
    elif first == "workload" and fields:
        symbols = [Symbol("workload", fields[0])]
    elif first == "steps" and fields:
        symbols = [Symbol("task", fields[0], body) if fields[0] in tasks else Symbol("step", fields[0])]
    elif first == "state" and fields and fields[0] in context.steps and fields[0] not in own_state:
        symbols = [Symbol("step", fields[0])]
        owner = next(step for step in context.document.steps if step.name == fields[0])
        symbols += [Symbol("task", name, owner.path) for name in fields[1:2] if name in context.body(owner).tasks]
    offset: int | None = read.offset + len(first)
    for symbol in symbols:
        offset = _field_offset(site.node.value, offset, symbol.name) if offset is not None else None
        if offset is not None:
            yield symbol, offset
            offset = _after_name(site.node.value, offset + len(symbol.name))
    if not symbols and not _is_scope(context, site, first):
        if first in tasks:
            yield Symbol("task", first, body), read.offset
        elif site.visibility.results and first in context.steps:
            yield Symbol("step", first), read.offset


def _tasks_at(context: AnalysisContext, site: TemplateSite) -> frozenset[str]:
    """The tasks whose results a template can read."""
    return context.body(site.body).tasks if site.body is not None and site.visibility.tasks else frozenset()


def _is_scope(context: AnalysisContext, site: TemplateSite, name: str) -> bool:
    """Whether a name is that of a scope or iterator, which hides tasks and steps."""
    if name in site.visibility.scopes or name in SCOPE_NAMES or (name in LOCALS and site.visibility.locals):
        return True
    return site.body is not None and bool(site.depth) and name in context.body(site.body).iterators[: site.depth]


def _field_offset(template: str, after: int, field: str) -> int | None:
    found = re.compile(rf"""\s*(?:\.\s*|\[\s*['"])({re.escape(field)})""").match(template, after)
    return found.start(1) if found else None


def _after_name(template: str, offset: int) -> int:
    """The offset after `']` if the name before it is in brackets."""
    closed = re.compile(r"""['"]\s*\]""").match(template, offset)
    return closed.end() if closed else offset


def _literals(context: AnalysisContext, site: TemplateSite) -> Iterator[tuple[Symbol, int]]:
    """Names in quotes: arguments of `done('fetch')`, and comparisons with `event.step` and `_task`."""
    value = site.node.value
    for call in site.template.calls:
        names = {name for each in call.args for name in (each if isinstance(each, tuple) else (each,))}
        end = value.find(")", call.offset)
        for name, offset in _quoted({*names} & context.steps, value, call.offset, end if end >= 0 else len(value)):
            yield Symbol("step", name), offset
    paths = {read.path[:2] for read in site.template.reads}
    if ("event", "step") in paths:
        yield from ((Symbol("step", name), at) for name, at in _quoted(context.steps, value, 0, len(value)))
    if ("_task",) in paths and site.body is not None:
        owner, tasks = site.body.path, _tasks_at(context, site)
        yield from ((Symbol("task", name, owner), at) for name, at in _quoted(tasks, value, 0, len(value)))


def _quoted(names: frozenset[str] | set[str], value: str, begin: int, end: int) -> Iterator[tuple[str, int]]:
    for found in re.compile(r"""(['"])([^'"]+)\1""").finditer(value, begin, end):
        if found[2] in names:
            yield found[2], found.start(2)


# --- rename -------------------------------------------------------------------------------------

RENAMED: tuple[SymbolKind, ...] = ("step", "task", "block")


def rename(
    compiled: Compilation, text: str, symbol: Symbol, new_name: str, specs: Mapping[str, ToolSpec], *, legacy: bool
) -> list[Edit]:
    """The edits that give a step, task or block another name everywhere; raises `CannotRename`."""
    document = compiled.document
    if document is None:
        raise CannotRename("the playbook cannot be read; fix its errors first")
    if symbol.kind not in RENAMED:
        raise CannotRename(f"a {symbol.kind} cannot be renamed; only steps, tasks and blocks can")
    if document.surface == "2025-11":
        raise CannotRename("the playbook is in the 2025-11 dialect; migrate it first")
    before = occurrences(document, text, specs)
    found = [each for each in before if each.symbol == symbol]
    _check_name(document, symbol, new_name)
    if not any(each.is_definition for each in found):
        raise CannotRename(f'the {symbol.kind} "{symbol.name}" has no `name` in the text: write one first')
    if not new_name.isidentifier() and any(each.in_template for each in found):
        raise CannotRename(f'templates read "{symbol.name}" by its name: use letters, digits and underscores')
    edits = [Edit(each.line, each.column, each.end_column, new_name) for each in found]
    changed = apply_edits(text, edits)
    after = compile_playbook(changed, file="", specs=specs, legacy=legacy)
    known = Counter(each.code for each in compiled.diagnostics)
    known["dashed-name"] += 1
    for diagnostic in after.diagnostics:
        known[diagnostic.code] -= 1
        if known[diagnostic.code] < 0:
            raise CannotRename(f'"{new_name}" causes a problem on line {diagnostic.line}: {diagnostic.message}')
    if after.document is not None:
        _check_meaning(before, occurrences(after.document, changed, specs), symbol, new_name)
    return edits


def _check_meaning(before: list[Occurrence], after: list[Occurrence], symbol: Symbol, new_name: str) -> None:
    """Raise `CannotRename` if a name refers to something else than before, such as a value of the same name."""

    def meanings(found: list[Occurrence], name: str) -> Counter[tuple[int, str, str]]:
        return Counter((each.line, each.symbol.kind, name if each.symbol == symbol else each.symbol.name)
                       for each in found)  # fmt: skip

    expected, actual = meanings(before, new_name), meanings(after, symbol.name)
    different = sorted((expected - actual) + (actual - expected))
    if different:
        line, _, name = different[0]
        raise CannotRename(f'"{name}" on line {line} would no longer refer to the same {symbol.kind} or value')


def _check_name(document: DocumentSyntax, symbol: Symbol, new_name: str) -> None:
    if new_name in _names(document, symbol) and new_name != symbol.name:
        raise CannotRename(f'there is already a {symbol.kind} named "{new_name}"')
    if symbol.kind != "step":
        return
    order = [step.name for step in document.steps]
    renamed = [new_name if name == symbol.name else name for name in order]
    explicit = document.executor is not None and document.executor.entry_step is not None
    if not explicit and _entry(order) != _entry(renamed):
        raise CannotRename(
            'the step named "start" is the entry: name the entry in `executor.spec.entry_step` before renaming'
        )
    last = [step.name for step in document.steps if not step.arcs]
    returned = document.executor is not None and document.executor.return_step is not None
    if "end" in (symbol.name, new_name) and len(last) > 1 and not returned:
        raise CannotRename(
            'the step named "end" has the output of the playbook: write `executor.spec.return_step` before renaming'
        )


def _names(document: DocumentSyntax, symbol: Symbol) -> list[str]:
    """The names that the symbol must not share."""
    if symbol.kind == "task":
        return [task.name for body in document.bodies() if body.path == symbol.owner for task in body.tasks()]
    return [*(document.step_names() if symbol.kind == "step" else document.block_names())]


def _entry(names: list[str]) -> int:
    """The index of the entry step, as `DocumentSyntax.entry` chooses it."""
    return names.index("start") if "start" in names else 0


def apply_edits(text: str, edits: list[Edit]) -> str:
    """The text with edits that do not overlap."""
    starts = [0, *(found.end() for found in LINE_BREAK.finditer(text))]
    for edit in sorted(edits, reverse=True):
        start = starts[edit.line - 1]
        text = text[: start + edit.column - 1] + edit.text + text[start + edit.end_column - 1 :]
    return text
