"""One rewrite of a playbook: the tree that changes, the templates that are replaced, the notes, and the verification.

The result is accepted only if it has every comment of the source and compiles to the model of the source, in which
only the templates that the rewrite replaced differ.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping as Table
from typing import Any, NamedTuple

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.compile import Compilation, compile_playbook, compile_source, gc_paused
from noetl.core.language.diagnostics import Findings
from noetl.core.language.flow.template_sites import TemplateSite
from noetl.core.language.rewrite.concrete_edits import NeedsExpansion, expand_aliases, quoted, uses_aliases
from noetl.core.language.rewrite.concrete_syntax import (
    ConcreteCollection,
    ConcreteNode,
    ConcreteScalar,
    Element,
    Unsupported,
    parse,
)
from noetl.core.language.rewrite.concrete_writer import write
from noetl.core.language.rewrite.format import format_text, without_line_ends
from noetl.core.language.rewrite.verification import first_difference, has_comments, has_same_data, model_of
from noetl.core.language.source.node_reader import Reader
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence
from noetl.core.language.source.scalar_offsets import characters
from noetl.core.language.source.yaml_source import read_source
from noetl.core.language.syntax.tree import DocumentSyntax
from noetl.core.model.tool import ToolSpec

COMMENT_PREFIX = "noetl migrate:"


class Note(NamedTuple):
    """Something that was not translated exactly, with its line."""

    line: int
    message: str


class Migration(NamedTuple):
    """The new text, and notes for the author."""

    text: str
    notes: tuple[Note, ...]


class NotEquivalent(Exception):
    """The rewritten text does not mean the same."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line
        self.what = what


Attempt = Callable[[str, Table[str, ToolSpec]], Migration]


def rewritten(text: str, specs: Table[str, ToolSpec], attempt: Attempt) -> Migration:
    """Rewrite a text; if that is not possible with its anchors and aliases, without them.

    `attempt` gets text with `\\n` as line end and returns it unchanged if there is nothing to do. A text that cannot be
    rewritten is returned unchanged, with a note.
    """
    plain, ends = without_line_ends(text)
    try:
        with gc_paused():
            made = _attempt(plain, specs, attempt)
    except Unsupported as problem:
        message = f"the file was not changed: {problem} cannot be rewritten; write it in another way and migrate again"
        made = Migration(plain, (Note(problem.line, message),))
    except NotEquivalent as problem:
        message = f"the file was not changed: its translation would not mean the same ({problem.what})"
        made = Migration(plain, (Note(problem.line, f"{message}; translate this place by hand and migrate again"),))
    return Migration(text if made.text == plain else made.text.replace("\n", ends), made.notes)


def _attempt(plain: str, specs: Table[str, ToolSpec], attempt: Attempt) -> Migration:
    try:
        return attempt(plain, specs)
    except (NeedsExpansion, NotEquivalent):
        document = parse(plain)
        if not uses_aliases(document):
            raise
    expand_aliases(document)
    expanded = write(document)
    if not has_same_data(plain, expanded) or not has_comments(expanded, document.comments):
        raise NotEquivalent(1, "its anchors and aliases cannot be expanded")
    try:
        return attempt(expanded, specs)
    except NeedsExpansion:
        raise NotEquivalent(1, "anchors and aliases") from None


def remaining_errors(text: str, specs: Table[str, ToolSpec], *, strict: bool) -> list[Note]:
    """Errors that validation reports for a new text."""
    found = compile_playbook(text, file="", specs=specs, strict=strict).diagnostics
    return [Note(one.line, f"{one.message} ({one.hint})") for one in found if one.severity == "error"]


class Rewriting:
    """A text that is being rewritten."""

    def __init__(self, text: str, specs: Table[str, ToolSpec], compiled: Compilation, syntax: DocumentSyntax) -> None:
        self.text = text
        self.specs = specs
        self.compiled = compiled
        self.syntax = syntax
        self.document = parse(text)
        self.context = AnalysisContext(syntax, Reader(Findings("", text), specs))
        self.notes: list[Note] = []
        self._places = _block_elements(self.document.root)
        self._replaced: dict[int, tuple[Scalar, dict[int, tuple[str, str]]]] = {}

    # --- templates ---

    def replace(self, site: TemplateSite, replacements: dict[int, tuple[str, str]]) -> None:
        """Replace characters of a template: offset -> what is there, and what takes its place."""
        known = self._replaced.get(site.node.start)
        if known is not None and known[1] != replacements:
            raise NeedsExpansion
        self._replaced[site.node.start] = (site.node, replacements)

    def _replace_templates(self) -> dict[int, str]:
        """Write all new templates; the result maps the start of each changed scalar to its new value."""
        values: dict[int, str] = {}
        for start, (node, replacements) in self._replaced.items():
            found = self.document.scalars.get(start)
            if found is None or not replacements:
                continue
            value = node.value
            for offset, (old, new) in sorted(replacements.items(), reverse=True):
                value = value[:offset] + new + value[offset + len(old) :]
            self._write_template(found, node, replacements, value)
            values[start] = value
        return values

    def _write_template(
        self, found: ConcreteScalar, node: Scalar, replacements: dict[int, tuple[str, str]], value: str
    ) -> None:
        body = found.body
        positions = [at for _, at in characters(self.text, node)]
        text = found.text
        for offset, (old, new) in sorted(replacements.items(), reverse=True):
            start, end = positions[offset], positions[offset + len(old) - 1] + 1
            if node.style == "'":
                old, new = old.replace("'", "''"), new.replace("'", "''")
                end += self.text[start:end].endswith("'") and old.endswith("''")
            exact = self.text[start:end] == old
            if not exact or _needs_quotes(node.style, new):
                text = quoted(value)
                found.style = text[0]
                break
            text = text[: start - body] + new + text[end - body :]
        found.text, found.value = text, value

    # --- notes ---

    def note(self, node: Node, message: str) -> None:
        """Mark a place that was not translated, and list it."""
        place = self._places.get(node.start)
        line = f"# {COMMENT_PREFIX} {message}"
        if place is not None and line not in place.above:
            place.above.append(line)
        if Note(node.line, message) not in self.notes:
            self.notes.append(Note(node.line, message))

    # --- result ---

    def finish(self, expect: Callable[[Any], Any] = lambda model: model) -> Migration:
        """The new text, verified and formatted; `expect` changes the source's model to the one that is expected."""
        values = self._replace_templates()
        made = write(self.document)
        if made == self.text or made == write(parse(self.text)):
            return Migration(self.text, tuple(sorted(self.notes)))
        made = format_text(made, self.specs)
        verify(self.text, made, expect(self._expected(values)), self.specs, self.compiled)
        return Migration(made, tuple(sorted(self.notes)))

    def _expected(self, values: dict[int, str]) -> Any:
        source = read_source(self.text)
        for node in _scalars(source.root):
            if node.start in values and isinstance(node.value, str):
                node.value = node.text = values[node.start]
        return model_of(compile_source(source, specs=self.specs))


def verify(text: str, made: str, expected: Any, specs: Table[str, ToolSpec], compiled: Compilation) -> None:
    """Raise `NotEquivalent` if the new text has another meaning than expected, or lost a comment."""
    after = compile_playbook(made, file="", specs=specs)
    if after.playbook is None:
        error = next(one for one in after.diagnostics if one.severity == "error")
        raise NotEquivalent(1, error.message)
    model = model_of(after)
    if model != expected:
        where = first_difference(expected, model)
        raise NotEquivalent(_line_of(compiled, where), f"at {where.strip('/').replace('/', '.')}")
    if not has_comments(made, parse(text).comments, added=COMMENT_PREFIX):
        raise NotEquivalent(1, "a comment would be lost")


def _line_of(compiled: Compilation, where: str) -> int:
    """The line of a step of the model."""
    parts = where.strip("/").split("/")
    document = compiled.document
    if document is not None and parts[0] == "steps" and parts[1:2] and parts[1].isdigit():
        number = int(parts[1])
        if number < len(document.steps):
            return document.steps[number].node.line
    return 1


def _needs_quotes(style: str, new: str) -> bool:
    if style == '"':
        return '"' in new or "\\" in new
    return style == "" and any(each in new for each in ":#,[]{}")


def _scalars(root: Node | None) -> list[Scalar]:
    found: list[Scalar] = []
    seen: set[int] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Scalar):
            found.append(node)
        elif isinstance(node, Mapping):
            pending += [value for _, value in node.entries.values()]
        elif isinstance(node, Sequence):
            pending += node.items
    return found


def _block_elements(root: ConcreteNode) -> dict[int, Element]:
    """The entry or item in block style that contains each value and key, by its start."""
    found: dict[int, Element] = {}
    pending: list[tuple[ConcreteNode, Element | None]] = [(root, None)]
    while pending:
        node, place = pending.pop()
        if place is not None:
            found.setdefault(node.start, place)
        if isinstance(node, ConcreteCollection):
            for element in node.elements:
                inner = element if place is None or not node.flow else place
                if element.key is not None:
                    found[element.key.start] = inner
                pending.append((element.value, inner))
    return found
