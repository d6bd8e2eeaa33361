"""Workload defaults that depend on each other in a cycle.

This is a warning, because a value of the request replaces a default and can break the cycle.
"""

from __future__ import annotations

from collections.abc import Iterator

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.flow.template_analysis import analyze_template
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence

Path = tuple[str, ...]


def check(context: AnalysisContext) -> None:
    """Report each cycle once, at its first default."""
    workload = context.document.workload
    if workload is None:
        return
    places: dict[Path, Node] = {}
    reads: dict[Path, set[Path]] = {}
    for path, key, read in _templates(workload, ()):
        # A key is not defined inside its own default; this is no cycle.
        places[path] = key
        reads[path] = {name for name in read if name[0] in workload.entries and name[: len(path)] != path}
    depends_on = {
        path: {other for other in reads for name in read if _overlaps(name, other)} for path, read in reads.items()
    }
    reported: set[Path] = set()
    for start in depends_on:
        cycle = _find_cycle(start, depends_on)
        if cycle and not reported & set(cycle):
            reported |= set(cycle)
            path_back = " → ".join(".".join(path) for path in (*cycle, cycle[0]))
            message = f"these defaults depend on each other: {path_back}"
            context.reader.add("workload-cycle", places[start], message, "give one of them a constant value")


def _overlaps(name: Path, other: Path) -> bool:
    """Whether reading one path requires the other: they are equal, or one contains the other."""
    return name[: len(other)] == other or other[: len(name)] == name


def _find_cycle(start: Path, depends_on: dict[Path, set[Path]]) -> list[Path]:
    """The path from a default back to itself, or an empty list."""
    before: dict[Path, Path] = {}
    pending = [start]
    while pending:
        path = pending.pop()
        for other in sorted(depends_on[path]):
            if other == start:
                path_back = [path]
                while path_back[-1] != start:
                    path_back.append(before[path_back[-1]])
                return path_back[::-1]
            if other not in before:
                before[other] = path
                pending.append(other)
    return []


def _templates(mapping: Mapping, path: Path) -> Iterator[tuple[Path, Node, set[Path]]]:
    """The defaults that contain templates: their paths, their keys, and what they read of the workload."""
    for name, (key, value) in mapping.entries.items():
        if isinstance(value, Mapping):
            yield from _templates(value, (*path, name))
        elif read := _reads(value):
            yield (*path, name), key, read


def _reads(node: Node) -> set[Path]:
    if isinstance(node, Scalar):
        reads = analyze_template(node.value).reads if isinstance(node.value, str) else ()
        named = [read.path[1:] if read.path[0] == "workload" else read.path for read in reads]
        return {tuple(path) for path in named if path}
    if isinstance(node, Mapping):
        return {name for _, value in node.entries.values() for name in _reads(value)}
    if isinstance(node, Sequence):
        return {name for item in node.items for name in _reads(item)}
    return set()
