"""Migrate a text of any dialect to the canonical dialect."""

from __future__ import annotations

from collections.abc import Mapping as Table

from noetl.core.language.compile import compile_playbook
from noetl.core.language.diagnostics import bounded_hints
from noetl.core.language.rewrite.concrete_edits import NeedsExpansion
from noetl.core.language.rewrite.format import format_text
from noetl.core.language.rewrite.migrate import v10_to_canonical, v2025_11_to_canonical
from noetl.core.language.rewrite.migrate.qualify_names import qualify
from noetl.core.language.rewrite.migrate.rewriting import Migration, NotEquivalent, rewritten
from noetl.core.model.tool import ToolSpec


def migrate(text: str, specs: Table[str, ToolSpec]) -> Migration:
    """Rewrite a playbook that compiles (with the legacy extension); canonical text is only formatted."""
    with bounded_hints():
        made = rewritten(text, specs, _migrate_text)
        if made.text != text or made.notes or compile_playbook(text, file="", specs=specs).playbook is None:
            return made
        return Migration(format_text(text, specs), ())


def _migrate_text(text: str, specs: Table[str, ToolSpec]) -> Migration:
    first = v2025_11_to_canonical.migrate_text(text, specs)
    second = v10_to_canonical.migrate_text(first.text, specs)
    try:
        third = qualify(second.text, specs)
    except (NeedsExpansion, NotEquivalent):
        third = Migration(second.text, ())  # a name without its scope is canonical too
    return Migration(third.text, tuple(dict.fromkeys((*first.notes, *second.notes, *third.notes))))
