"""What a template reads and calls, found fast.

A playbook has hundreds of templates and nearly all are plain expressions. The commonest are recognised by one
regular expression, other expressions by a small parser (`expressions`), both an order of magnitude faster than
the template engine's own. Whatever they do not know (statements, comments, anything that looks wrong) is given to
`expr.names`, which has the last word on syntax. A test holds all three to the same answers.
"""

from __future__ import annotations

import re
from functools import lru_cache

from noetl.core.language.flow.expressions import (
    RUNTIME_NAMES,
    Call,
    NotSimple,
    Problem,
    Read,
    Template,
    read_expressions,
    unknown,
)
from noetl.core.templates.filters import FILTERS
from noetl.core.templates.free_names import calls as slow_calls
from noetl.core.templates.free_names import free_names as slow_names
from noetl.core.templates.free_names import syntax_error
from noetl.core.templates.functions import FUNCTIONS

__all__ = ["Call", "Problem", "Read", "Template", "analyze_template"]

_NOTHING = Template((), ())
_LONG = 20_000  # characters from which the template engine's own limits have to be asked


@lru_cache(maxsize=16_384)
def analyze_template(text: str) -> Template:
    """What a text reads and calls if it is a template."""
    if "{" not in text:
        return _NOTHING
    if "{%" in text or "{#" in text or len(text) > _LONG:
        return _thorough(text)
    expressions = text.count("{{")
    if not expressions:
        return _NOTHING
    quick = _quickly(text, expressions)
    if quick is not None:
        return quick
    try:
        return read_expressions(text)
    except (NotSimple, RecursionError):
        return _thorough(text)


# --- by the template engine ---------------------------------------------------------------------

_NO_SUCH = r'there is no (filter|test) "([^"]*)"'


def _thorough(text: str) -> Template:
    error = syntax_error(text)
    if error is not None:
        message, line, column = error
        offset = _offset(text, line, column)
        named = re.match(_NO_SUCH, message)
        if named:
            return Template((), (), unknown(named.group(1), named.group(2), offset))
        return Template((), (), Problem(message.removeprefix("the template cannot be read: "), offset))
    reads = tuple(Read(use.path, use.guarded, _offset(text, use.line, use.column)) for use in slow_names(text))
    found = tuple(Call(use.name, use.args, _offset(text, use.line, use.column)) for use in slow_calls(text))
    return Template(reads, found)


def _offset(text: str, line: int, column: int) -> int:
    at = 0
    for _ in range(line - 1):
        at = text.find("\n", at) + 1
    return at + column - 1


# --- by one regular expression: values with plain filters, compared and joined by `and`, `or` ------

_WORD = r"[^\W\d]\w*"
_LITERAL = r"""(?:\d+(?:\.\d+)?|'[^'\\]*'|"[^"\\]*")"""
_LITERALS = rf"(?:{_LITERAL}(?:\s*,\s*{_LITERAL})*)?"
_DOTTED = rf"(?!(?:and|or|not|in|is|if|else)\b){_WORD}(?:\.{_WORD})*"
_VALUE = rf"(?:{_LITERAL}|\[\s*{_LITERALS}\s*\]|{_DOTTED})(?:\s*\|\s*{_WORD}(?:\(\s*{_LITERALS}\s*\))?)*"
_QUICK = re.compile(
    rf"\{{\{{-?\s*(?:not\s+)*{_VALUE}"
    rf"(?:(?:\s*(?:[=!<>]=|[<>+*/%~])\s*|\s+-\s+|\s+(?:not\s+)?in\s+){_VALUE}|\s+(?:and|or)\s+(?:not\s+)*{_VALUE})*"
    rf"\s*-?\}}\}}"
)
_PART = re.compile(rf"""'[^']*'|"[^"]*"|(?P<filter>\|\s*{_WORD})|(?P<name>{_WORD}(?:\.{_WORD})*)""")
_NO_READS = frozenset(
    ["and", "or", "not", "in", "true", "false", "none", "True", "False", "None", *FUNCTIONS, *RUNTIME_NAMES]
)


def _quickly(text: str, expressions: int) -> Template | None:
    """The reads of a template whose every expression is of the commonest form; None when one is not."""
    found = [*_QUICK.finditer(text)]
    if len(found) != expressions:
        return None
    reads: list[Read] = []
    for expression in found:
        first = len(reads)
        for part in _PART.finditer(text, expression.start(), expression.end()):
            if part.lastgroup == "name":
                path = tuple(part["name"].split("."))
                if path[0] not in _NO_READS:
                    reads.append(Read(path, False, part.start()))
                elif len(path) > 1:
                    return None
            elif part.lastgroup == "filter":
                name = part["filter"][1:].lstrip()
                if name not in FILTERS or (name in ("default", "d") and _default_guards(text, expression, reads, part)):
                    return None
        if len(reads) - first > 1 and _may_guard(reads[first:]):
            return None
    return Template(tuple(reads), ())


def _default_guards(text: str, expression: re.Match[str], reads: list[Read], filter: re.Match[str]) -> bool:
    """Mark the read that `default` directly follows; True when it follows something else."""
    if not reads or reads[-1].offset < expression.start():
        return True
    last = reads[-1]
    if text[last.offset + len(".".join(last.path)) : filter.start()].strip():
        return True
    reads[-1] = last._replace(guarded=True)
    return False


def _may_guard(reads: list[Read]) -> bool:
    """Whether one read can prove that another exists: then the order of `and` and `or` matters."""
    paths = [read.path for read in reads]
    return any(one == other[: len(one)] for i, one in enumerate(paths) for j, other in enumerate(paths) if i != j)
