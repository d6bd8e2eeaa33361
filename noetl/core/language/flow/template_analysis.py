"""Which names a template reads and which functions it calls.

A playbook has hundreds of templates, and about nine of ten have a form that one regular expression recognises; that
takes an order of magnitude less time than Jinja's parser. All other templates (calls, conditions, statements, anything
that looks wrong) are parsed by Jinja, which alone decides about syntax. A test compares the two.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from noetl.core.templates.filters import FILTERS
from noetl.core.templates.free_names import RUNTIME_NAMES, calls, free_names, syntax_error
from noetl.core.templates.functions import FUNCTIONS
from noetl.core.templates.sandbox import CHECKED, takes_arguments

__all__ = ["Call", "Problem", "Read", "Template", "analyze_template"]


class Read(NamedTuple):
    """A read of a name from outside the template; `guarded` if a missing value is handled."""

    path: tuple[str, ...]
    guarded: bool
    offset: int


class Call(NamedTuple):
    """A call of a function by its bare name; arguments that are not constant are None."""

    name: str
    args: tuple[Any, ...]
    offset: int


class Problem(NamedTuple):
    """Why a template is invalid: a syntax error, or an unknown filter or test (then `word` is its name)."""

    message: str
    offset: int
    what: str = "syntax"
    word: str = ""


class Template(NamedTuple):
    """The result of analyzing a template."""

    reads: tuple[Read, ...]
    calls: tuple[Call, ...]
    problem: Problem | None = None


_NOTHING = Template((), ())
_LONG = 20_000  # characters from which a template may exceed the limits of the parser


@lru_cache(maxsize=16_384)
def analyze_template(text: str) -> Template:
    """Return what a text reads and calls if it is a template."""
    if "{" not in text:
        return _NOTHING
    if "{%" in text or "{#" in text or len(text) > _LONG:
        return _analyze_with_jinja(text)
    expressions = text.count("{{")
    if not expressions:
        return _NOTHING
    return _analyze_quickly(text, expressions) or _analyze_with_jinja(text)


# --- by Jinja's parser ----------------------------------------------------------------------------

_UNKNOWN = re.compile(r'there is no (filter|test) "([^"]*)"')


def _analyze_with_jinja(text: str) -> Template:
    problem = _problem(text)
    if problem is not None and problem.what == "syntax":
        return Template((), (), problem)
    reads = tuple(Read(use.path, use.guarded, _offset(text, use.line, use.column)) for use in free_names(text))
    found = tuple(Call(use.name, use.args, _offset(text, use.line, use.column)) for use in calls(text))
    return Template(reads, found, problem)


def _problem(text: str) -> Problem | None:
    error = syntax_error(text)
    if error is None:
        return None
    message, line, column = error
    offset = _offset(text, line, column)
    unknown = _UNKNOWN.match(message)
    if unknown:
        return Problem(unknown.group(), offset, unknown.group(1), unknown.group(2))
    return Problem(message.removeprefix("the template cannot be read: "), offset)


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
_ARGUMENTS = re.compile(rf"\(\s*{_LITERALS}\s*\)")
_EACH = re.compile(_LITERAL)
_NO_READS = frozenset(
    ["and", "or", "not", "in", "true", "false", "none", "True", "False", "None", *FUNCTIONS, *RUNTIME_NAMES]
)


def _analyze_quickly(text: str, expressions: int) -> Template | None:
    """Return the reads of a template if the regular expression recognises each of its expressions."""
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
                arguments = _ARGUMENTS.match(text, part.end())
                count = len(_EACH.findall(arguments[0])) if arguments else 0
                if name not in FILTERS or name in CHECKED or not takes_arguments(name, count):
                    return None
                if name in ("default", "d") and _default_guards(text, expression, reads, part):
                    return None
        if len(reads) - first > 1 and _may_guard(reads[first:]):
            return None
    return Template(tuple(reads), ())


def _default_guards(text: str, expression: re.Match[str], reads: list[Read], filter: re.Match[str]) -> bool:
    """Mark the read that `default` directly follows; return True if it follows something else."""
    if not reads or reads[-1].offset < expression.start():
        return True
    last = reads[-1]
    if text[last.offset + len(".".join(last.path)) : filter.start()].strip():
        return True
    reads[-1] = last._replace(guarded=True)
    return False


def _may_guard(reads: list[Read]) -> bool:
    """Whether one read can prove that another exists; then the order of `and` and `or` matters."""
    paths = [read.path for read in reads]
    return any(one == other[: len(one)] for i, one in enumerate(paths) for j, other in enumerate(paths) if i != j)
