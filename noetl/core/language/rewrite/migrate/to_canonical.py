"""Migrate a text of any dialect to the canonical dialect."""

from __future__ import annotations

from collections.abc import Mapping as Table

from noetl.core.language.rewrite.migrate import v10_to_canonical, v2025_11_to_canonical
from noetl.core.language.rewrite.migrate.v10_to_canonical import Migration
from noetl.core.model.tool import ToolSpec


def migrate(text: str, specs: Table[str, ToolSpec]) -> Migration:
    """Rewrite a playbook that compiles (with the legacy extension); canonical text is returned unchanged."""
    first = v2025_11_to_canonical.migrate(text, specs)
    second = v10_to_canonical.migrate(first.text, specs)
    return Migration(second.text, (*first.notes, *second.notes))
