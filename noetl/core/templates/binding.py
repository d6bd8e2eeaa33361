"""Templates for text that another program interprets as code, such as a shell command.

In `echo {{ name }}` the text around the expression is code, but the value of the expression is data and must not be
interpreted as code. So the values of expressions are marked in the rendered text, and `bound_parts` splits
it again into code and values. The whole template language is available, statements included.

A text that is exactly one expression is marked too: `whole_value` returns its value.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from json import loads
from typing import Any, NamedTuple

from jinja2 import TemplateSyntaxError

from noetl.core.templates.budget import MAX_TEXT, EvaluationBudget, Meter, NondeterminismSource
from noetl.core.templates.operators import to_text
from noetl.core.templates.sandbox import SANDBOX
from noetl.core.templates.template import Compiled, compile_value
from noetl.errors import TemplateError

# No text of a playbook has these characters, and marked values are base64: data cannot imitate a mark.
_OPEN, _CLOSE = "\x01", "\x02"
_BEFORE, _AFTER = f'"{_OPEN}" ~ ((', f') | tojson | b64encode) ~ "{_CLOSE}"'
_MARKED = re.compile(f"{_OPEN}([A-Za-z0-9+/=]*){_CLOSE}")


class Bound(NamedTuple):
    """A value of a bound text that came from an expression."""

    value: Any

    @property
    def text(self) -> str:
        """The value as a plain template would render it."""
        return to_text(EvaluationBudget(), self.value)


def compile_bound(value: Any) -> Compiled:
    """Compile a value whose rendered texts have the values of expressions marked (see `bound_parts`)."""
    compiled = compile_value(value)
    return compiled if compiled.static else _BoundValue(value, compiled)


class _BoundValue(Compiled):
    __slots__ = ("_inner", "names")
    static = False

    def __init__(self, value: Any, plain: Compiled) -> None:
        self._inner = compile_value(_marking(value))
        self.names = plain.names

    def evaluate(
        self,
        names: Mapping[str, Any],
        nondeterminism: NondeterminismSource | None = None,
        *,
        max_text: int = MAX_TEXT,
        meter: Meter | None = None,
    ) -> Any:
        try:
            return self._inner.evaluate(names, nondeterminism, max_text=max_text, meter=meter)
        except TemplateError as problem:
            problem.text = _unmarked(problem.text)
            problem.message = _unmarked(problem.message)
            problem.args = (problem.message,)
            raise


def bound_parts(text: str) -> list[str | Bound]:
    """Split a rendered text into the author's text and the values of expressions."""
    parts: list[str | Bound] = []
    done = 0
    for found in _MARKED.finditer(text):
        if found.start() > done:
            parts.append(text[done : found.start()])
        parts.append(Bound(_flat(loads(b64decode(found[1])))))
        done = found.end()
    if done < len(text):
        parts.append(text[done:])
    return parts


def whole_value(value: Any) -> Bound | None:
    """The value of a text that is one expression and nothing else; None for other values."""
    if not isinstance(value, str) or not value.strip().startswith(_OPEN):
        return None
    parts = [part for part in bound_parts(value) if isinstance(part, Bound) or part.strip()]
    return parts[0] if len(parts) == 1 and isinstance(parts[0], Bound) else None


def _flat(value: Any) -> Any:
    """Remove the marks from a value that contains marked pieces (of a `set` block, a macro)."""
    if isinstance(value, str) and _OPEN in value:
        return "".join(part if isinstance(part, str) else part.text for part in bound_parts(value))
    return value


def bound_text(text: str) -> str:
    """Remove the marks from a rendered text, for uses where it is not code."""
    return _flat(text)  # type: ignore[no-any-return]


def _marking(value: Any) -> Any:
    if isinstance(value, str):
        return _marking_text(value)
    if isinstance(value, list | tuple):
        return [_marking(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _marking(each) for key, each in value.items()}
    return value


def _marking_text(text: str) -> str:
    if "{{" not in text:
        return text
    try:
        tokens = list(SANDBOX.lexer.tokeniter(text, None))
    except TemplateSyntaxError:
        return text  # evaluation reports the error
    made = []
    for _, kind, value in tokens:
        if kind == "variable_begin":
            made.append(f"{value} {_BEFORE}")
        elif kind == "variable_end":
            made.append(f"{_AFTER} {value}")
        else:
            made.append(value)
    return "".join(made)


def _unmarked(text: str) -> str:
    return text.replace(f" {_BEFORE}", "").replace(f"{_AFTER} ", "").replace(_BEFORE, "").replace(_AFTER, "")
