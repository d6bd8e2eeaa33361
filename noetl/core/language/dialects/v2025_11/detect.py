"""Recognize documents in 2025-11 syntax."""

from __future__ import annotations

from collections.abc import Mapping as Table

from noetl.core.language.dialects.v2025_11.node_building import items_of
from noetl.core.language.flow.template_analysis import analyze_template
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence
from noetl.core.language.syntax.grammar import SHAPES
from noetl.core.model.tool import ToolSpec

_STEP = ("when", "result", "bind", "type", "save", "sink", "data", "with")
_LOOP = ("collection", "element", "mode", "until")
_TASK = ("result", "sink", "sinks", "save", "chunk", "bind", "collect", "pick")


def enables_legacy(root: Node) -> bool:
    """Whether the document itself enables the legacy extension."""
    for word in ("executor", "spec", "extensions"):
        found = root.get(word) if isinstance(root, Mapping) else None
        if found is None:
            return False
        root = found
    return any(isinstance(item, Scalar) and item.text == "legacy" for item in items_of(root))


def uses_v2025_11(root: Mapping, specs: Table[str, ToolSpec]) -> bool:
    """Whether any key or template of a document is 2025-11 syntax."""
    book = root.get("workbook")
    blocks = [value for _, value in book.entries.values()] if isinstance(book, Mapping) else items_of(book)
    for step in [*items_of(root.get("workflow")), *blocks]:
        if isinstance(step, Mapping) and _body_uses_v2025_11(step, specs):
            return True
    return not defines_context(root) and _reads_context(root)


def defines_context(root: Mapping) -> bool:
    """Whether the document defines `context` itself: as a step, a workload key, or by `set`."""
    workload = root.get("workload")
    if isinstance(workload, Mapping) and "context" in workload.entries:
        return True
    return _declares_context(root.get("workflow"))


def _declares_context(node: Node | None) -> bool:
    if isinstance(node, Sequence):
        return any(_declares_context(item) for item in node.items)
    if not isinstance(node, Mapping):
        return False
    step = node.get("step")
    if isinstance(step, Scalar) and step.text == "context" and "arcs" not in node.entries:
        return True
    return "ctx.context" in node.entries or any(_declares_context(value) for _, value in node.entries.values())


def _body_uses_v2025_11(step: Mapping, specs: Table[str, ToolSpec]) -> bool:
    if any(word in step.entries for word in _STEP) or isinstance(step.get("next"), Sequence | Scalar):
        return True
    loop = step.get("loop")
    if isinstance(loop, Mapping) and any(word in loop.entries for word in _LOOP):
        return True
    tool = step.get("tool") or (step if "kind" in step.entries else None)
    return any(isinstance(task, Mapping) and _task_uses_v2025_11(task, specs) for task in items_of(tool))


def _task_uses_v2025_11(task: Mapping, specs: Table[str, ToolSpec]) -> bool:
    kind = task.get("kind")
    spec = specs.get(kind.text) if isinstance(kind, Scalar) else None
    own = spec.fields if spec is not None else {}
    if any(word in task.entries and word not in own for word in _TASK):
        return True
    if kind is not None and isinstance(kind, Scalar) and kind.text == "transfer" and "sink" in task.entries:
        return True
    wrapped = task.get("spec")
    return isinstance(wrapped, Mapping) and any(is_tool_parameter(key, spec) for key in wrapped.entries)


def is_tool_parameter(key: str, spec: ToolSpec | None) -> bool:
    """Whether a key under a tool's `spec` is one of the tool's parameters."""
    if key == "input":
        return True
    if spec is None or key in SHAPES["task.spec"].keys or key in spec.spec_keys:
        return False
    return key in ("input", "args") or key in spec.fields or any(key in field.aliases for field in spec.fields.values())


def _reads_context(node: Node) -> bool:
    if isinstance(node, Scalar):
        text = node.value
        if not isinstance(text, str) or "context" not in text or "{" not in text:
            return False
        return any(read.path[0] == "context" for read in analyze_template(text).reads)
    if isinstance(node, Mapping):
        return any(_reads_context(value) for key, (_, value) in node.entries.items() if key != "code")
    return isinstance(node, Sequence) and any(_reads_context(item) for item in node.items)
