"""Detect the dialect of a document."""

from __future__ import annotations

from noetl.core.language.source.node_reader import Reader
from noetl.core.model.playbook import Surface


def detect(reader: Reader) -> Surface:
    """The dialect, by the keys and names that were found while reading."""
    if reader.rejected_count:
        return "2025-11"
    return "v10" if reader.deprecated_count else "canonical"
