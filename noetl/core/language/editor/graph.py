"""The net of a playbook as a drawing: mermaid, dot, or svg with a layered layout of our own."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

Net = dict[str, Any]  # what `net.net_document` makes

LABEL = 44  # characters of a guard that are shown


def as_mermaid(net: Net) -> str:
    """A mermaid flowchart."""
    ids = _ids(net)
    lines = ["flowchart TD"]
    for node in net["nodes"]:
        text = "<br/>".join(_mermaid(line) for line in (node["step"], *_marks(node)))
        left, right = ('(["', '"])') if node["entry"] else ('{{"', '"}}') if node["gate"] else ('["', '"]')
        lines.append(f"  {ids[node['step']]}{left}{text}{right}")
    for arc in net["arcs"]:
        label = _guard(arc)
        middle = f'-->|"{_mermaid(label)}"|' if label else "-->"
        lines.append(f"  {ids[arc['source']]} {middle} {ids[arc['target']]}")
    return "\n".join(lines) + "\n"


def as_dot(net: Net) -> str:
    """A graph for Graphviz."""
    lines = [
        f"digraph {_dot(net['name'])} {{",
        "  rankdir=TB;",
        '  node [shape=box, style=rounded, fontname="sans-serif"];',
        '  edge [fontname="sans-serif", fontsize=10];',
    ]
    for node in net["nodes"]:
        more = ", penwidth=2" if node["entry"] else ""
        more += ", shape=hexagon" if node["gate"] else ""
        label = "\\n".join(_dot(line)[1:-1] for line in (node["step"], *_marks(node)))
        lines.append(f'  {_dot(node["step"])} [label="{label}"{more}];')
    for arc in net["arcs"]:
        label = _guard(arc)
        more = f" [label={_dot(label)}]" if label else ""
        lines.append(f"  {_dot(arc['source'])} -> {_dot(arc['target'])}{more};")
    return "\n".join([*lines, "}"]) + "\n"


# ── words ───────────────────────────────────────────────────────────────────────────────────


def _marks(node: dict[str, Any]) -> list[str]:
    """What is said about a step below its name."""
    lines = []
    if node["gate"]:
        lines.append("gate: waits for its rules")
    if node["join"] == "each":
        lines.append("runs once per token")
    loop = node["loop"]
    while loop is not None:
        over = f" in {_bare(loop['in'])}" if loop["in"] else ""
        lines.append(_short(f"↻ {loop['iterator']}{over}" + (" ∥" if loop["mode"] == "parallel" else "")))
        loop = loop["inner"]
    tasks = [f"{task['name']} · {task['kind']}" for task in node["tasks"]]
    lines += [_short(task) for task in tasks[:5]]
    if len(tasks) > 5:
        lines.append(f"… {len(tasks) - 5} more")
    return lines


def _guard(arc: dict[str, Any]) -> str:
    when = arc["when"]
    if when is None or when is True:
        return ""
    return _short(_bare(str(when) if not isinstance(when, bool) else "never"))


def _bare(text: str) -> str:
    """A template without its braces."""
    text = " ".join(text.split())
    if text.startswith("{{") and text.endswith("}}") and text.count("{{") == 1:
        text = text[2:-2].strip()
    return text


def _short(text: str) -> str:
    return text if len(text) <= LABEL else text[: LABEL - 1] + "…"


def _ids(net: Net) -> dict[str, str]:
    """Names that mermaid cannot mistake for words of its own (`end`)."""
    return {node["step"]: f"s{number}" for number, node in enumerate(net["nodes"])}


def _mermaid(text: str) -> str:
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;"), ("|", "#124;")):
        text = text.replace(character, entity)
    return text


def _dot(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# ── svg ─────────────────────────────────────────────────────────────────────────────────────

WIDE, LINE, GAP_X, GAP_Y, EDGE = 7.2, 17, 44, 64, 24
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
    """Where a step is drawn."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """The centre, from the left."""
        return self.x + self.width / 2


def as_svg(net: Net) -> str:
    """A drawing that stands alone and follows the reader's light or dark scheme."""
    boxes = layout(net)
    rights = [box.x + box.width for box in boxes.values()]
    arcs, widest = _arcs(net, boxes, max(rights, default=0.0))
    width = max([widest, *rights], default=0.0) + EDGE
    height = max((box.y + box.height for box in boxes.values()), default=0.0) + EDGE
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


def layout(net: Net) -> dict[str, Box]:
    """Where each step stands: below the steps that lead to it, arcs back aside."""
    layers = _layers(net)
    sizes = {node["step"]: _size(node) for node in net["nodes"]}
    widths = [sum(sizes[name][0] for name in layer) + GAP_X * (len(layer) - 1) for layer in layers]
    whole = max(widths, default=0.0)
    boxes: dict[str, Box] = {}
    y = float(EDGE)
    for layer, wide in zip(layers, widths, strict=True):
        x = EDGE + (whole - wide) / 2
        for name in layer:
            boxes[name] = Box(x, y, *sizes[name])
            x += sizes[name][0] + GAP_X
        y += max(sizes[name][1] for name in layer) + GAP_Y
    return boxes


def _layers(net: Net) -> list[list[str]]:
    names = [node["step"] for node in net["nodes"]]
    ways: dict[str, list[str]] = {name: [] for name in names}
    for arc in net["arcs"]:
        if arc["target"] in ways:
            ways[arc["source"]].append(arc["target"])
    order, back = _walk(names, ways, net["entry"])
    depth = dict.fromkeys(names, 0)
    for name in order:
        for target in ways[name]:
            if (name, target) not in back:
                depth[target] = max(depth[target], depth[name] + 1)
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in names:
        layers[depth[name]].append(name)
    came: dict[str, list[str]] = {name: [] for name in names}
    for source, targets in ways.items():
        for target in targets:
            if (source, target) not in back:
                came[target].append(source)
    # One sweep down: each step stands near the middle of those that lead to it.
    for above, layer in pairwise(layers):
        at = {name: position / max(1, len(above) - 1 or 1) for position, name in enumerate(above)}
        middle = {}
        for position, name in enumerate(layer):
            known = [at[source] for source in came[name] if source in at]
            middle[name] = sum(known) / len(known) if known else position / max(1, len(layer) - 1 or 1)
        layer.sort(key=middle.__getitem__)
    return layers


def _walk(names: list[str], ways: dict[str, list[str]], entry: str) -> tuple[list[str], set[tuple[str, str]]]:
    """Steps in an order in which arcs lead forward, and the arcs that lead back."""
    done: list[str] = []
    state: dict[str, int] = {}
    back: set[tuple[str, str]] = set()
    for root in [entry, *names]:
        if root in state or root not in ways:
            continue
        state[root] = 1
        stack = [(root, iter(ways[root]))]
        while stack:
            name, rest = stack[-1]
            target = next(rest, None)
            if target is None:
                state[name] = 2
                done.append(name)
                stack.pop()
            elif target not in state:
                state[target] = 1
                stack.append((target, iter(ways[target])))
            elif state[target] == 1:
                back.add((name, target))
    return done[::-1], back


def _size(node: dict[str, Any]) -> tuple[float, float]:
    marks = _marks(node)
    longest = max([len(node["step"]) * 1.15, *(len(mark) for mark in marks)])
    return max(96.0, longest * WIDE + 28), 34.0 + LINE * len(marks)


def _box(node: dict[str, Any], box: Box) -> list[str]:
    classes = "box" + (" entry" if node["entry"] else "") + (" gate" if node["gate"] else "")
    classes += " made" if node["synthesized"] else ""
    words = f"<title>{escape(node['description'])}</title>" if node["description"] else ""
    lines = [
        f'<g>{words}<rect class="{classes}" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="7"/>',
        f'<text class="name" x="{box.x + 14:.1f}" y="{box.y + 22:.1f}">{escape(node["step"])}</text>',
    ]
    for number, mark in enumerate(_marks(node)):
        y = box.y + 22 + LINE * (number + 1)
        lines.append(f'<text class="mark" x="{box.x + 14:.1f}" y="{y:.1f}">{escape(mark)}</text>')
    return [*lines, "</g>"]


def _arcs(net: Net, boxes: dict[str, Box], right: float) -> tuple[list[str], float]:
    """The arcs as paths with their guards, and how far to the right they go.

    An arc to a step further down is a curve; one that leads back, or past other steps, goes round on the right."""
    lines: list[str] = []
    widest = right
    rounds = 0
    leaving: dict[str, int] = {}
    for arc in net["arcs"]:
        if arc["target"] not in boxes:
            continue
        leaving[arc["source"]] = leaving.get(arc["source"], 0) + 1
    seen: dict[str, int] = {}
    for arc in net["arcs"]:
        if arc["target"] not in boxes:
            continue
        one, other = boxes[arc["source"]], boxes[arc["target"]]
        number = seen[arc["source"]] = seen.get(arc["source"], 0) + 1
        start = one.x + one.width * number / (leaving[arc["source"]] + 1)
        top, bottom = other.y, one.y + one.height
        label = _guard(arc)
        if top > bottom and not _passes(boxes.values(), start, bottom, other.middle, top):
            bend = min(GAP_Y * 0.7, (top - bottom) / 2)
            x2 = other.middle
            path = f"M{start:.1f} {bottom:.1f}C{start:.1f} {bottom + bend:.1f} {x2:.1f} {top - bend:.1f} "
            path += f"{x2:.1f} {top:.1f}"
            share = 0.3 + 0.4 * number / (leaving[arc["source"]] + 1)
            x, y = start + (other.middle - start) * share, bottom + (top - bottom) * share
            anchor = "middle"
        else:
            rounds += 1
            far = right + 22 * rounds
            from_y, to_y = one.y + one.height * 0.7, other.y + other.height * (0.3 if other is not one else 0.2)
            edge, end = one.x + one.width, other.x + other.width
            half = (from_y + to_y) / 2
            path = f"M{edge:.1f} {from_y:.1f}C{far:.1f} {from_y:.1f} {far:.1f} {from_y:.1f} {far:.1f} {half:.1f}"
            path += f"S{far:.1f} {to_y:.1f} {end:.1f} {to_y:.1f}"
            x, y, anchor = far + 6, half + 14 * (rounds % 3), "start"
            widest = max(widest, far + 6 + len(label) * WIDE)
        lines.append(f'<path class="arc" marker-end="url(#head)" d="{path}"/>')
        if label:
            lines.append(f'<text class="guard" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(label)}</text>')
            widest = max(widest, x + len(label) * WIDE / 2) if anchor == "middle" else widest
    return lines, widest


def _passes(boxes: Any, x: float, y: float, to_x: float, to_y: float) -> bool:
    """Whether a line between two points would cross a step."""
    for box in boxes:
        if box.y <= y or box.y + box.height >= to_y:
            continue
        for share in (0.0, 0.5, 1.0):
            at = (box.y + box.height * share - y) / (to_y - y)
            if box.x - 8 < x + (to_x - x) * at < box.x + box.width + 8:
                return True
    return False
