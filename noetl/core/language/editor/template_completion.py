"""Completion inside a template: names, fields, steps in quotes, and filters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from noetl.core.language.editor.line_structure import keyed_lines, named_entries, step_lines, steps
from noetl.core.language.editor.schema_fields import Completion, schema_fields
from noetl.core.language.flow.visibility import OLDER_SCOPES, SCOPES, STATUS_HELPERS
from noetl.core.language.syntax.grammar import ITERATION_NAMES
from noetl.core.templates.free_names import filters

ENVELOPE = {
    "status": "`ok` or `error`.",
    "data": "The payload.",
    "ref": "Where a large payload is stored.",
    "error": "The error: `kind`, `message`, `retryable`.",
    "http": "Status, headers, url of an http task.",
}


_DOTTED = re.compile(r"[\w.]*$")


_FILTER = re.compile(r"\|\s*(\w*)$")


_QUOTED_STEP = re.compile(rf"""(?:\b(?:{"|".join(sorted(STATUS_HELPERS))})\([^)]*|\bsteps\[)['"]([\w-]*)$""")


def complete_template(
    current: str, lines: list[str], line: int, schemas: Mapping[str, Any]
) -> tuple[str, list[Completion]]:
    """The typed text and the names that can stand at the end of `current`, which ends inside a template."""
    inside = current[current.rfind("{{") :]
    quoted = _QUOTED_STEP.search(inside)
    if quoted:
        return quoted[1], [Completion(step, "", True) for step in steps(lines)]
    filter = _FILTER.search(inside)
    if filter:
        return filter[1], [Completion(name, doc, True) for name, doc in filters().items()]
    *path, typed = _DOTTED.findall(current)[0].split(".")
    if path[:2] == ["output", "data"]:  # of this step
        own = [name for name, at, _ in step_lines(lines) if at <= line]
        path[:1] = own[-1:]
    return typed, list(_names(path, lines)) or list(schema_fields(path, lines, line, schemas))


def _names(path: list[str], lines: list[str]) -> Iterator[Completion]:
    """The names that can follow `{{`, or a dot inside it."""
    if not path:
        yield from (Completion(scope, doc, True) for scope, doc in SCOPES.items() if scope not in OLDER_SCOPES)
        yield from (Completion(step, "The output of this step.", True) for step in steps(lines))
    elif path == ["iter"]:
        yield from (Completion(name, "The current item.", True) for name in _find_all(lines, r"iterator: *([\w-]+)"))
        yield from (Completion(name, "", True) for name in ITERATION_NAMES)
    elif path == ["ctx"] or path == ["step"]:
        yield from (Completion(name, "", True) for name in _find_all(lines, rf"\b{path[0]}\.(\w+) *:"))
    elif path == ["output"]:
        yield from (Completion(name, doc, True) for name, doc in ENVELOPE.items())
    elif path == ["steps"]:
        yield from (Completion(step, "", True) for step in steps(lines))
    elif path == ["keychain"]:
        yield from (Completion(name, "", True) for name in named_entries(lines, "keychain"))
    elif path[0] == "workload":
        for _, (line, parents) in keyed_lines(lines):
            if parents == path and line.key:
                yield Completion(line.key, f"default: {line.value}" if line.value else "", True)


def _find_all(lines: list[str], pattern: str) -> list[str]:
    return list(dict.fromkeys(name for line in lines for name in re.findall(pattern, line)))
