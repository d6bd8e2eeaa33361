"""The graph of a playbook as an SVG drawing.

Layered layout: a step is drawn below the steps that lead to it; arcs that close a cycle are ignored. An arc to the
next layer is a curve, any other arc has its own lane at the right.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from noetl.core.language.editor.graph import Net, arc_labels, marks
from noetl.core.language.flow.reachability import reverse_postorder

CHARACTER, LINE, GAP_X, GAP_Y, MARGIN, LANE = 7.2, 17, 44, 64, 24, 22
STYLE = """\
  svg { --paper: #ffffff; --ink: #1f2933; --soft: #5b6b7b; --line: #8a99a8; --box: #f4f7fa; --entry: #2f6fde }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #14191f; --ink: #e6ebf0; --soft: #9fb0c0; --line: #6d7f90; --box: #1f2730; --entry: #6ea0ff }
  }
  .paper { fill: var(--paper) }
  .box { fill: var(--box); stroke: var(--line); stroke-width: 1.2 }
  .entry { stroke: var(--entry); stroke-width: 2 }
  .gate { stroke-dasharray: 5 3 }
  .made { stroke-dasharray: 2 3 }
  .name { font: 600 13px ui-sans-serif, system-ui, sans-serif; fill: var(--ink) }
  .mark { font: 11px ui-monospace, monospace; fill: var(--soft) }
  .arc { fill: none; stroke: var(--line); stroke-width: 1.3 }
  .head { fill: var(--line) }
  .guard { font: 11px ui-monospace, monospace; fill: var(--soft);
           stroke: var(--paper); stroke-width: 4px; paint-order: stroke }
"""


class Box(NamedTuple):
    """The rectangle of a step."""

    layer: int
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """The horizontal centre."""
        return self.x + self.width / 2

    @property
    def right(self) -> float:
        """The right edge."""
        return self.x + self.width


def as_svg(net: Net) -> str:
    """A standalone drawing for light and dark color schemes."""
    boxes = layout(net)
    arcs, right = _arcs(net, boxes)
    width = right + MARGIN
    height = max((box.y + box.height for box in boxes.values()), default=0.0) + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img">',
        f"<title>{escape(net['name'])}</title>",
        f"<style>\n{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path class="head" d="M0 0 8 4 0 8Z"/></marker></defs>',
        f'<rect class="paper" width="{width:.0f}" height="{height:.0f}" rx="8"/>',
        *arcs,
    ]
    for node in net["nodes"]:
        lines += _box(node, boxes[node["step"]])
    return "\n".join([*lines, "</svg>"]) + "\n"


# ── layout ──────────────────────────────────────────────────────────────────────────────────


def layout(net: Net) -> dict[str, Box]:
    """The box of each step, layer by layer; within a layer, steps follow the centres of their predecessors."""
    names = [node["step"] for node in net["nodes"]]
    sizes = [_size(node) for node in net["nodes"]]
    layers, sources = _layers(net, names)
    widths = [sum(sizes[node][0] for node in layer) + GAP_X * (len(layer) - 1) for layer in layers]
    whole = max(widths, default=0.0)
    boxes: dict[int, Box] = {}
    y = float(MARGIN)
    for number, (layer, width) in enumerate(zip(layers, widths, strict=True)):
        centres = {node: [boxes[source].middle for source in sources[node] if source in boxes] for node in layer}
        x = MARGIN + (whole - width) / 2
        for node in sorted(layer, key=lambda node: sum(centres[node]) / len(centres[node]) if centres[node] else whole):
            boxes[node] = Box(number, x, y, *sizes[node])
            x = boxes[node].right + GAP_X
        y += max(sizes[node][1] for node in layer) + GAP_Y
    return {name: boxes[node] for node, name in enumerate(names)}


def _layers(net: Net, names: list[str]) -> tuple[list[list[int]], list[list[int]]]:
    """The steps by their longest path from the entry, and the predecessors of each step."""
    number = {name: node for node, name in enumerate(names)}
    targets: list[list[int]] = [[] for _ in names]
    sources: list[list[int]] = [[] for _ in names]
    for arc in net["arcs"]:
        if arc["target"] in number:
            targets[number[arc["source"]]].append(number[arc["target"]])
            sources[number[arc["target"]]].append(number[arc["source"]])
    entry = [number[net["entry"]]] if net["entry"] in number else []
    order = reverse_postorder(targets, [*entry, *range(len(names))])
    position = {node: place for place, node in enumerate(order)}
    depth = [0] * len(names)
    for node in order:
        for target in targets[node]:
            if position[target] > position[node]:
                depth[target] = max(depth[target], depth[node] + 1)
    layers: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for node, layer in enumerate(depth):
        layers[layer].append(node)
    return layers, sources


def _size(node: dict[str, Any]) -> tuple[float, float]:
    lines = marks(node)
    longest = max([len(node["step"]) * 1.15, *map(len, lines)])
    return max(96.0, longest * CHARACTER + 28), 34.0 + LINE * len(lines)


def _box(node: dict[str, Any], box: Box) -> list[str]:
    classes = "box" + (" entry" if node["entry"] else "") + (" gate" if node["gate"] else "")
    classes += " made" if node["synthesized"] else ""
    title = f"<title>{escape(node['description'])}</title>" if node["description"] else ""
    lines = [
        f'<g>{title}<rect class="{classes}" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="7"/>',
        f'<text class="name" x="{box.x + 14:.1f}" y="{box.y + 22:.1f}">{escape(node["step"])}</text>',
    ]
    for number, mark in enumerate(marks(node)):
        y = box.y + 22 + LINE * (number + 1)
        lines.append(f'<text class="mark" x="{box.x + 14:.1f}" y="{y:.1f}">{escape(mark)}</text>')
    return [*lines, "</g>"]


# ── arcs ────────────────────────────────────────────────────────────────────────────────────


class _Route(NamedTuple):
    path: str
    x: float  # of the label
    y: float
    anchor: str


def _arcs(net: Net, boxes: dict[str, Box]) -> tuple[list[str], float]:
    """The arcs with their guards, and the right edge of the drawing."""
    arcs = [arc for arc in net["arcs"] if arc["target"] in boxes]
    outgoing = Counter(arc["source"] for arc in arcs)
    drawn: Counter[str] = Counter()
    lanes = 0
    first_lane = right = max((box.right for box in boxes.values()), default=0.0)
    lines: list[str] = []
    for arc in arcs:
        source, target = boxes[arc["source"]], boxes[arc["target"]]
        drawn[arc["source"]] += 1
        if target.layer == source.layer + 1:
            route = _down(source, target, drawn[arc["source"]] / (outgoing[arc["source"]] + 1))
        else:
            lanes += 1
            route = _around(source, target, first_lane + LANE * lanes, 14 * (lanes % 3))
        kind = "arc made" if arc.get("synthesized") else "arc"
        lines.append(f'<path class="{kind}" marker-end="url(#head)" d="{route.path}"/>')
        label = " · ".join(arc_labels(arc))
        if label:
            at = f'x="{route.x:.1f}" y="{route.y:.1f}" text-anchor="{route.anchor}"'
            lines.append(f'<text class="guard" {at}>{escape(label)}</text>')
        right = max(right, route.x + len(label) * CHARACTER * (0.5 if route.anchor == "middle" else 1))
    return lines, right


def _down(source: Box, target: Box, share: float) -> _Route:
    """A curve to the next layer; `share` separates the arcs of one step."""
    x1, y1, x2, y2 = source.x + source.width * share, source.y + source.height, target.middle, target.y
    bend = (y2 - y1) / 2
    path = f"M{x1:.1f} {y1:.1f}C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}"
    at = 0.3 + 0.4 * share
    return _Route(path, x1 + (x2 - x1) * at, y1 + (y2 - y1) * at, "middle")


def _around(source: Box, target: Box, lane: float, offset: float) -> _Route:
    """A curve through a lane at the right; `offset` separates the labels of neighbouring lanes."""
    y1, y2 = source.y + source.height * 0.7, target.y + target.height * 0.25
    middle = (y1 + y2) / 2
    path = f"M{source.right:.1f} {y1:.1f}C{lane:.1f} {y1:.1f} {lane:.1f} {y1:.1f} {lane:.1f} {middle:.1f}"
    path += f"S{lane:.1f} {y2:.1f} {target.right:.1f} {y2:.1f}"
    return _Route(path, lane + 6, middle + offset, "start")
