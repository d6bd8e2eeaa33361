"""Migrate a text of any dialect to the canonical dialect."""

from __future__ import annotations

from collections.abc import Mapping as Table

from noetl.core.language.rewrite.concrete_edits import NeedsExpansion
from noetl.core.language.rewrite.migrate import v10_to_canonical, v2025_11_to_canonical
from noetl.core.language.rewrite.migrate.qualify_names import qualify
from noetl.core.language.rewrite.migrate.rewriting import Migration, NotEquivalent, rewritten
from noetl.core.model.tool import ToolSpec


def migrate(text: str, specs: Table[str, ToolSpec]) -> Migration:
    """Rewrite a playbook that compiles (with the legacy extension); canonical text is returned unchanged."""
    return rewritten(text, specs, _migrate_text)


def _migrate_text(text: str, specs: Table[str, ToolSpec]) -> Migration:
    first = v2025_11_to_canonical.migrate_text(text, specs)
    second = v10_to_canonical.migrate_text(first.text, specs)
    try:
        third = qualify(second.text, specs)
    except (NeedsExpansion, NotEquivalent):
        third = Migration(second.text, ())  # a name without its scope is canonical too
    return Migration(third.text, tuple(dict.fromkeys((*first.notes, *second.notes, *third.notes))))
