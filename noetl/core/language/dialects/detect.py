"""Which surface a document is written in."""

from __future__ import annotations

from noetl.core.language.source.node_reader import Reader
from noetl.core.model.playbook import Surface


def detect(reader: Reader) -> Surface:
    """The surface, by the words that were met while reading."""
    if reader.rejected_words:
        return "2025-11"
    return "v10" if reader.older_words else "canonical"
