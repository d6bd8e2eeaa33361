"""Workload defaults that are made from each other in a circle."""

from __future__ import annotations

from noetl.dsl.checks.scene import Scene
from noetl.dsl.nodes import Mapping, Node, Scalar, Sequence
from noetl.dsl.templates import glance


def check(scene: Scene) -> None:
    """Tell each circle once, at the default it begins with."""
    workload = scene.document.workload
    if workload is None:
        return
    needs = {key: _reads(value) & workload.entries.keys() for key, (_, value) in workload.entries.items()}
    told: set[str] = set()
    for start in needs:
        circle = _circle(start, needs)
        if circle and not told & set(circle):
            told |= set(circle)
            way = " → ".join((*circle, circle[0]))
            key = workload.entries[start][0]
            scene.reader.add(
                "workload-cycle", key, f"these defaults need each other: {way}", "give one of them a value"
            )


def _circle(start: str, needs: dict[str, set[str]]) -> list[str]:
    """The way from a key back to itself, if there is one."""
    before: dict[str, str] = {}
    waiting = [start]
    while waiting:
        key = waiting.pop()
        for other in sorted(needs[key]):
            if other == start:
                way = [key]
                while way[-1] != start:
                    way.append(before[way[-1]])
                return way[::-1]
            if other not in before:
                before[other] = key
                waiting.append(other)
    return []


def _reads(node: Node) -> set[str]:
    if isinstance(node, Scalar):
        reads = glance(node.value).reads if isinstance(node.value, str) else ()
        named = [read.path[1:2] if read.path[0] == "workload" else read.path[:1] for read in reads]
        return {path[0] for path in named if path}
    if isinstance(node, Mapping):
        return {name for _, value in node.entries.values() for name in _reads(value)}
    if isinstance(node, Sequence):
        return {name for item in node.items for name in _reads(item)}
    return set()
