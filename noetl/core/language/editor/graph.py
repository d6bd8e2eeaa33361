"""The graph of a playbook as Mermaid or Graphviz text, and the labels that all drawings share."""

from __future__ import annotations

from typing import Any

Net = dict[str, Any]  # the result of `net_document`

MAX_LABEL = 44  # characters


def as_mermaid(net: Net) -> str:
    """A mermaid flowchart."""
    ids = _mermaid_ids(net)
    lines = ["flowchart TD"]
    for node in net["nodes"]:
        text = "<br/>".join(_escape_mermaid(line) for line in (node["step"], *marks(node)))
        left, right = ('(["', '"])') if node["entry"] else ('{{"', '"}}') if node["gate"] else ('["', '"]')
        lines.append(f"  {ids[node['step']]}{left}{text}{right}")
    for arc in net["arcs"]:
        label = "<br/>".join(_escape_mermaid(line) for line in arc_labels(arc))
        line = "-.->" if arc.get("synthesized") else "-->"
        middle = f'{line}|"{label}"|' if label else line
        lines.append(f"  {ids[arc['source']]} {middle} {ids[arc['target']]}")
    return "\n".join(lines) + "\n"


def as_dot(net: Net) -> str:
    """A graph for Graphviz."""
    lines = [
        f"digraph {_quote_dot(net['name'])} {{",
        "  rankdir=TB;",
        '  node [shape=box, style=rounded, fontname="sans-serif"];',
        '  edge [fontname="sans-serif", fontsize=10];',
    ]
    for node in net["nodes"]:
        more = ", penwidth=2" if node["entry"] else ""
        more += ", shape=hexagon" if node["gate"] else ""
        label = "\\n".join(_quote_dot(line)[1:-1] for line in (node["step"], *marks(node)))
        lines.append(f'  {_quote_dot(node["step"])} [label="{label}"{more}];')
    for arc in net["arcs"]:
        label = "\\n".join(_quote_dot(line)[1:-1] for line in arc_labels(arc))
        options = [f'label="{label}"'] if label else []
        options += ["style=dashed"] if arc.get("synthesized") else []
        more = f" [{', '.join(options)}]" if options else ""
        lines.append(f"  {_quote_dot(arc['source'])} -> {_quote_dot(arc['target'])}{more};")
    return "\n".join([*lines, "}"]) + "\n"


# ── labels ──────────────────────────────────────────────────────────────────────────────────


def marks(node: dict[str, Any]) -> list[str]:
    """The lines below the name of a step."""
    lines = []
    if node["gate"]:
        lines.append("gate: waits for its rules")
    if node["join"] == "each":
        lines.append("runs once per token")
    loop = node["loop"]
    while loop is not None:
        over = f" in {_bare(loop['in'])}" if loop["in"] else ""
        lines.append(_shorten(f"↻ {loop['iterator']}{over}" + (" ∥" if loop["mode"] == "parallel" else "")))
        loop = loop["inner"]
    tasks = [f"{task['name']} · {task['kind']}" for task in node["tasks"]]
    lines += [_shorten(task) for task in tasks[:5]]
    if len(tasks) > 5:
        lines.append(f"… {len(tasks) - 5} more")
    if node["compensation"] is not None:
        lines.append(_shorten("undo: " + ", ".join(task["name"] for task in node["compensation"]["tasks"])))
    if node["labels"] or node["pool"]:
        lines.append(
            _shorten("on " + ", ".join([*([f"pool {node['pool']}"] if node["pool"] else []), *node["labels"]]))
        )
    if node["synthesizes"] is not None:
        lines.append(f"may add up to {node['synthesizes']['steps']} steps")
    if node["synthesized"]:
        lines.append("added at run time")
    return lines


def arc_labels(arc: dict[str, Any]) -> list[str]:
    """The lines beside an arc: its guard, and how its tokens are treated."""
    lines = [guard_label(arc)]
    for name, words in (("dedupe", "merged by"), ("partition", "in order by"), ("priority", "priority")):
        if arc[name] is not None:
            lines.append(_shorten(f"{words} {_bare(str(arc[name]))}"))
    lines += ["adds at run time"] if arc.get("synthesized") else []
    return [line for line in lines if line]


def guard_label(arc: dict[str, Any]) -> str:
    """The guard of an arc as a label; empty if it has none."""
    when = arc["when"]
    if when is None or when is True:
        return ""
    return _shorten(_bare(str(when) if not isinstance(when, bool) else "never"))


def _bare(text: str) -> str:
    """A template without its braces."""
    text = " ".join(text.split())
    if text.startswith("{{") and text.endswith("}}") and text.count("{{") == 1:
        text = text[2:-2].strip()
    return text


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "…"


def _mermaid_ids(net: Net) -> dict[str, str]:
    """Ids that are not Mermaid keywords (`end`)."""
    return {node["step"]: f"s{number}" for number, node in enumerate(net["nodes"])}


def _escape_mermaid(text: str) -> str:
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;"), ("|", "#124;")):
        text = text.replace(character, entity)
    return text


def _quote_dot(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
