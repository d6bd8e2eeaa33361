"""The summary of a playbook without compiling it: name, description, number of steps."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from noetl.core.language.source.nodes import Mapping, Scalar, Sequence
from noetl.core.language.source.yaml_source import read_source


class Summary(NamedTuple):
    """Name, description and number of steps of a playbook."""

    name: str
    description: str
    steps: int


@lru_cache(maxsize=512)
def summarize(text: str) -> Summary:
    """The summary of a text; missing parts are empty."""
    root = read_source(text).root
    if not isinstance(root, Mapping):
        return Summary("", "", 0)
    metadata, workflow = root.get("metadata"), root.get("workflow")
    known = metadata if isinstance(metadata, Mapping) else None
    return Summary(
        _text(known, "name"),
        _text(known, "description") or _text(known, "desc"),
        len(workflow.items) if isinstance(workflow, Sequence) else 0,
    )


def _text(mapping: Mapping | None, key: str) -> str:
    node = mapping.get(key) if mapping is not None else None
    return node.text.strip() if isinstance(node, Scalar) else ""
