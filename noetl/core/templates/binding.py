"""Templates for text that another program interprets as code, such as a shell command.

In `echo {{ name }}` the text around the expression is code, but the value of the expression is data and must not be
interpreted as code. So the values of expressions are marked in the rendered text, and `bound_parts` splits
it again into code and values. The whole template language is available, statements included, except blocks that write
what a filter or a call returned (`{% filter %}`, `{% call %}`, recursive loops): it may be data. What a `{% set %}`
block or a macro writes is marked where it is used.

A text that is exactly one expression is marked too: `whole_value` returns its value.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from json import loads
from typing import Any, NamedTuple

from jinja2 import TemplateSyntaxError, nodes

from noetl.core.templates.budget import MAX_TEXT, EvaluationBudget, Meter, NondeterminismSource
from noetl.core.templates.operators import to_text
from noetl.core.templates.sandbox import SANDBOX, parsed, problem_at
from noetl.core.templates.template import Compiled, compile_value, is_template
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
        parts.append(Bound(loads(b64decode(found[1]))))
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


def bound_text(text: str) -> str:
    """Remove the marks from a rendered text, for uses where it is not code."""
    if _OPEN not in text:
        return text
    return "".join(part if isinstance(part, str) else part.text for part in bound_parts(text))


def writing_block(text: str) -> tuple[int, str] | None:
    """The first block of a template that writes values as code: its offset, and what is wrong with it."""
    if "{%" not in text:
        return None
    for node in parsed(text).find_all((nodes.FilterBlock, nodes.CallBlock, nodes.For)):
        if not isinstance(node, nodes.For):
            word = "filter" if isinstance(node, nodes.FilterBlock) else "call"
        elif node.recursive:
            word = "for ... recursive"
        else:
            continue
        message = f"{{% {word} %}} cannot be used in code such as a command, because it writes values as code"
        return node.lineno - 1, f"{message}; write {{{{ ... }}}}"
    return None


def _marking(value: Any) -> Any:
    if isinstance(value, str):
        return _marking_text(value)
    if isinstance(value, list | tuple):
        return [_marking(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _marking(each) for key, each in value.items()}
    return value


def _marking_text(text: str) -> str:
    if not is_template(text):
        return text
    block = writing_block(text)
    if block is not None:
        raise problem_at(text, block[0] + 1, block[1])
    try:
        tokens = list(SANDBOX.lexer.tokeniter(text, None))
    except TemplateSyntaxError:
        return text  # evaluation reports the error
    made: list[str] = []
    inside = 0  # blocks whose text is a value: `{% set x %}`, `{% macro m() %}`
    for kind, texts in _parts_of(tokens):
        keyword = next((each for each in texts[1:] if not each.isspace()), "")
        inside += _opened(keyword, texts)
        if keyword == "print":
            texts[texts.index(keyword)] = ""
            texts[0], texts[-1] = texts[0].replace("{%", "{{"), texts[-1].replace("+%}", "%}").replace("%}", "}}")
        if not inside and (kind == "variable_begin" or keyword == "print"):
            texts[0] = f"{texts[0]} {_BEFORE}"
        if not inside and (kind == "variable_end" or keyword == "print"):
            texts[-1] = f"{_AFTER} {texts[-1]}"
        made += texts
    return "".join(made)


def _parts_of(tokens: Iterable[tuple[int, str, str]]) -> Iterator[tuple[str, list[str]]]:
    """The tokens with their kinds, those of a statement together."""
    statement: list[str] = []
    for _, kind, value in tokens:
        if statement or kind == "block_begin":
            statement.append(value)
            if kind == "block_end":
                yield "block", statement
                statement = []
        else:
            yield kind, [value]
    if statement:
        yield "block", statement


_DEPTH = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


def _opened(keyword: str, texts: list[str]) -> int:
    """How many more blocks whose text is a value are open after a statement."""
    if keyword in ("endset", "endmacro"):
        return -1
    if keyword != "set":
        return int(keyword == "macro")
    depth = 0
    for text in texts:
        depth += _DEPTH.get(text, 0)
        if text == "=" and depth == 0:
            return 0  # `{% set x = 1 %}`
    return 1  # `{% set x %}`


def _unmarked(text: str) -> str:
    return text.replace(f" {_BEFORE}", "").replace(f"{_AFTER} ", "").replace(_BEFORE, "").replace(_AFTER, "")
