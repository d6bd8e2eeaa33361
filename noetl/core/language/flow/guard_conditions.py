"""Static properties of guards: whether a guard is always true, always false, or what it requires.

Only some forms are recognized: `{{ true }}`, the name of an event, the status of a step, a value of `ctx`. All others
are unknown, and checks report nothing about them.
"""

from __future__ import annotations

import re
from functools import lru_cache

from noetl.core.language.flow.template_analysis import analyze_template
from noetl.core.language.source.nodes import Node, Scalar

_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\W\d][\w.]*|[()\[\]{}]|.""", re.S)
_EVENT = re.compile(r"""event\.name\s*==\s*(['"])([^'"]*)\1|(['"])([^'"]*)\3\s*==\s*event\.name""")
_EVENT_IN = re.compile(r"""event\.name\s+in\s*[\[(]((?:\s*(?:'[^']*'|"[^"]*")\s*,?)+)[\])]""")
_QUOTED = re.compile(r"""'([^']*)'|"([^"]*)\"""")
_CONDITIONAL = re.compile(r"\{%|\b(?:if|and|or)\b")
# Names of the outcome of the step's own run, which no earlier guard can have tested.
_OUTCOME_FIELDS = {
    ("event", "name"),
    ("output", "status"),
    ("output", "error"),
    ("outcome", "status"),
    ("outcome", "error"),
}


def expression(node: Node | None) -> str:
    """The expression of a guard that consists of one; else an empty text."""
    return _expression(node.text) if isinstance(node, Scalar) and isinstance(node.value, str) else ""


@lru_cache(maxsize=4096)
def _expression(text: str) -> str:
    text = text.strip()
    if not (text.startswith("{{") and text.endswith("}}")) or text.count("{{") != 1 or "{%" in text:
        return ""
    return text[2:-2].strip().strip("-").strip()


def always_true(node: Node | None) -> bool:
    """Whether a guard is always true; a missing guard is."""
    return node is None or (isinstance(node, Scalar) and _constant(node) == "true")


def always_false(node: Node | None) -> bool:
    """Whether a guard is always false."""
    return isinstance(node, Scalar) and _constant(node) in ("false", "none", "")


def _constant(node: Scalar) -> str | None:
    if not isinstance(node.value, str):
        return None if node.value is None else str(bool(node.value)).lower()
    text = node.value.strip().lower()
    if "{" in text:
        text = expression(node).lower()
        return text if text in ("true", "false", "none") else None
    return text if text in ("true", "false", "") else None


@lru_cache(maxsize=4096)
def conjuncts(text: str) -> tuple[str, ...]:
    """The parts of an expression that must all be true for it to be true."""
    text = _without_parentheses(text)
    parts = _split(text, "and", ("or", "if"))
    return parts if len(parts) == 1 else tuple(inner for part in parts for inner in conjuncts(part))


@lru_cache(maxsize=4096)
def alternatives(text: str) -> tuple[str, ...]:
    """The parts of an expression of which one must be true for it to be true."""
    return _split(_without_parentheses(text), "or", ("if",))


def _split(text: str, operator: str, others: tuple[str, ...]) -> tuple[str, ...]:
    """The operands of an operator outside brackets; the whole text if another operator binds it."""
    if operator not in text:
        return (text,)
    parts: list[str] = []
    depth = first = 0
    for token in _TOKEN.finditer(text):
        word = token.group()
        if word in "([{":
            depth += 1
        elif word in ")]}":
            depth -= 1
        elif depth == 0 and word in others:
            return (text,)
        elif depth == 0 and word == operator:
            parts.append(text[first : token.start()].strip())
            first = token.end()
    return (*parts, text[first:].strip())


def _without_parentheses(text: str) -> str:
    text = text.strip()
    while text.startswith("(") and text.endswith(")"):
        depth = 0
        for token in _TOKEN.finditer(text):
            depth += {"(": 1, ")": -1}.get(token.group(), 0)
            if depth == 0 and token.end() < len(text):
                return text
        text = text[1:-1].strip()
    return text


def required_events(node: Node | None) -> frozenset[str] | None:
    """The events for which a guard can be true; None if it does not name any."""
    required: frozenset[str] | None = None
    text = expression(node)
    for part in conjuncts(text) if "event.name" in text else ():
        single, several = _EVENT.fullmatch(part), _EVENT_IN.fullmatch(part)
        if single is not None:
            named = frozenset({single.group(2) or single.group(4) or ""})
        elif several is not None:
            named = frozenset(one or other for one, other in _QUOTED.findall(several.group(1)))
        else:
            continue
        required = named if required is None else required & named
    return required


def tests_only_event(node: Node | None) -> bool:
    """Whether a guard tests nothing but the name of the event."""
    text = expression(node)
    return _EVENT.fullmatch(text) is not None or _EVENT_IN.fullmatch(text) is not None


def tests_only_outcome(node: Node | None) -> bool:
    """Whether a guard tests only the outcome of its step; a missing guard does (it requires success)."""
    if node is None:
        return True
    reads = analyze_template(node.text).reads if isinstance(node, Scalar) else ()
    return bool(reads) and all(read.path[:2] in _OUTCOME_FIELDS for read in reads)


def is_conditional(text: str) -> bool:
    """Whether a template may leave some of its names unread."""
    return _CONDITIONAL.search(text) is not None
