"""A flame graph as SVG: one rectangle for each function and its callers, as wide as its share of the samples."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from html import escape

WIDTH = 1200
ROW = 16
MIN_WIDTH = 3.0  # pixels; narrower rectangles are omitted
CHARACTER = 6.5  # pixels

Stack = tuple[str, ...]


def svg(title: str, counts: Mapping[Stack, int]) -> str:
    """The picture of these stacks, outermost frame at the bottom."""
    total = sum(counts.values())
    boxes: list[tuple[int, float, float, str, int]] = []
    _place(list(counts.items()), 0, 0.0, WIDTH / max(1, total), boxes)
    depth = max((level for level, *_ in boxes), default=0) + 1
    height = (depth + 2) * ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace" '
        'font-size="10">',
        f"<title>{escape(title)}</title>",
        f'<text x="4" y="12" font-size="12">{escape(title)}, {total} samples</text>',
    ]
    for level, left, width, name, count in boxes:
        top = height - (level + 1) * ROW
        shown = name if len(name) * CHARACTER < width else name[: max(0, int(width / CHARACTER) - 1)]
        parts.append(
            f"<g><title>{escape(name)}: {100 * count / total:.1f} %</title>"
            f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{ROW - 1}" fill="{_colour(name)}"/>'
            f'<text x="{left + 2:.1f}" y="{top + 11}">{escape(shown)}</text></g>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _place(
    stacks: Sequence[tuple[Stack, int]],
    level: int,
    left: float,
    scale: float,
    boxes: list[tuple[int, float, float, str, int]],
) -> None:
    below: dict[str, list[tuple[Stack, int]]] = {}
    for stack, count in stacks:
        if level < len(stack):
            below.setdefault(stack[level], []).append((stack, count))
    for name, found in sorted(below.items()):
        count = sum(number for _, number in found)
        if count * scale >= MIN_WIDTH:
            boxes.append((level, left, count * scale, name, count))
            _place(found, level + 1, left, scale, boxes)
        left += count * scale


def _colour(name: str) -> str:
    """Our own code is orange, libraries are grey, with a shade by module."""
    shade = zlib.crc32(name.partition(":")[0].encode()) % 40
    return (
        f"rgb(245,{150 + shade},{90 + shade})"
        if name.startswith("noetl/")
        else f"rgb({190 + shade},{195 + shade},{200 + shade})"
    )
