"""Migrate 2025-11 text to canonical text.

The migration writes the translation that also runs 2025-11 text (`dialects.v2025_11`), so both behave the same. Parts
without 2025-11 syntax do not change; in other parts, comments stay with the entries that they belong to.
"""

from __future__ import annotations

from collections.abc import Mapping as Table

from noetl.core.language.compile import compile_playbook
from noetl.core.language.dialects.v2025_11.detect import enables_legacy
from noetl.core.language.dialects.v2025_11.node_building import TranslationNote
from noetl.core.language.dialects.v2025_11.translate_steps import translate
from noetl.core.language.rewrite.concrete_edits import NeedsExpansion, remove
from noetl.core.language.rewrite.concrete_syntax import (
    ConcreteCollection,
    ConcreteDocument,
    ConcreteScalar,
    Element,
    parse,
)
from noetl.core.language.rewrite.concrete_writer import write
from noetl.core.language.rewrite.format import format_text
from noetl.core.language.rewrite.migrate.rebuilding import Rebuilder
from noetl.core.language.rewrite.migrate.rewriting import (
    COMMENT_PREFIX,
    Migration,
    Note,
    remaining_errors,
    rewritten,
    verify,
)
from noetl.core.language.rewrite.verification import model_of
from noetl.core.language.source.nodes import Mapping
from noetl.core.language.source.yaml_source import read_source
from noetl.core.model.tool import ToolSpec


def migrate(text: str, specs: Table[str, ToolSpec]) -> Migration:
    """Rewrite a 2025-11 playbook that compiles with the legacy extension; other text is returned unchanged."""
    return rewritten(text, specs, migrate_text)


def migrate_text(text: str, specs: Table[str, ToolSpec]) -> Migration:
    """One attempt; raises if the result would not mean the same."""
    root = read_source(text).root
    compiled = compile_playbook(text, file="", specs=specs, legacy=True)
    if not isinstance(root, Mapping) or compiled.playbook is None:
        return Migration(text, ())
    translation = translate(root, specs)
    if not translation.is_v2025_11 and not enables_legacy(root):
        return Migration(text, ())
    document = parse(text)
    document.root = Rebuilder(document, root).update(document.root, root, translation.root)
    for note in translation.notes:
        _mark(document, note)
    _remove_extension(document)
    made = format_text(write(document), specs)
    verify(text, made, model_of(compiled), specs, compiled)
    notes = [Note(each.node.line, each.message) for each in translation.notes]
    return Migration(made, tuple(sorted([*notes, *remaining_errors(made, specs, strict=False)])))


def _mark(document: ConcreteDocument, note: TranslationNote) -> None:
    """Write a note above the step or block that it is about."""
    found: Element | None = None
    for word in ("workflow", "workbook"):
        bodies = document.root.value(word) if isinstance(document.root, ConcreteCollection) else None
        for element in bodies.elements if isinstance(bodies, ConcreteCollection) else []:
            if 0 <= _first_offset(element) <= note.node.start:
                found = element if found is None or _first_offset(found) < _first_offset(element) else found
    if found is not None:
        found.above.append(f"# {COMMENT_PREFIX} {note.message}")


def _first_offset(element: Element) -> int:
    """The position in the source of an entry or item, which may have been rebuilt."""
    if element.key is not None:
        return element.key.start
    value = element.value
    if value.start < 0 and isinstance(value, ConcreteCollection):
        return min((_first_offset(each) for each in value.elements if _first_offset(each) >= 0), default=-1)
    return value.start


def _remove_extension(document: ConcreteDocument) -> None:
    """Remove `legacy` from the extensions, which is no longer needed, and what is empty without it."""
    path: list[tuple[ConcreteCollection, Element]] = []
    node = document.root
    for word in ("executor", "spec", "extensions"):
        if not isinstance(node, ConcreteCollection):
            raise NeedsExpansion
        element = node.get(word)
        if element is None:
            return
        path.append((node, element))
        node = element.value
    if isinstance(node, ConcreteCollection):
        for item in list(node.elements):
            if isinstance(item.value, ConcreteScalar) and item.value.value == "legacy":
                remove(node, item)
        if node.elements:
            return
    elif not isinstance(node, ConcreteScalar) or node.value != "legacy":
        return
    for holder, element in reversed(path):
        remove(holder, element)
        if holder.elements:
            return
