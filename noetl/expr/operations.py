"""Operators with bounds: the same functions serve the closures and Jinja's compiled code.

Python's own operators make a gigabyte out of ten characters (`'a' * 10**9`, `10 ** 10 ** 10`,
`'%999999999d' % 1`). Here the size of an answer is known before it is made.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from noetl.errors import TemplateError
from noetl.expr.limits import MAX_BITS, MAX_WIDTH, Run, too_much
from noetl.expr.lookup import Missing, Undefined, View, kind_of, unwrap

Binary = Callable[[Run, Any, Any], Any]


def to_text(value: Any) -> str:
    """A value inside text, as Jinja writes it: `True`, `None`, `['a']`."""
    kind = type(value)
    if kind is str:
        return value  # type: ignore[no-any-return]
    if kind is int or kind is bool or kind is float or value is None:
        return str(value)
    value = unwrap(value)
    if isinstance(value, str):
        return str.__str__(value)
    from noetl.expr.views import plain

    return str(plain(value))


def write(run: Run, value: Any) -> str:
    """A value as it is written into the result, counted."""
    text = to_text(value)
    run.operations -= 1
    run.spend_text(len(text))
    return text


def truth(value: Any) -> bool:
    """Whether a value holds in `if`, `and`, `not`; an undefined raises, a quiet one does not hold."""
    return bool(value)


# ── arithmetic ──────────────────────────────────────────────────────────────────────────


def add(run: Run, left: Any, right: Any) -> Any:
    """`+`: numbers, texts, lists."""
    left, right = unwrap(left), unwrap(right)
    if isinstance(left, str) and isinstance(right, str):
        run.spend_text(len(left) + len(right))
    elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple, range)):
        run.spend_items(len(left) + len(right))
        return [*left, *right]
    return _calculate("+", operator.add, left, right)


def multiply(run: Run, left: Any, right: Any) -> Any:
    """`*`: numbers; a text or a list times a whole number."""
    left, right = unwrap(left), unwrap(right)
    if isinstance(left, int) and isinstance(right, (str, list, tuple)):
        left, right = right, left
    if isinstance(right, int):
        if isinstance(left, str):
            run.spend_text(len(left) * max(right, 0))
        elif isinstance(left, (list, tuple)):
            run.spend_items(len(left) * max(right, 0))
        elif isinstance(left, int) and left.bit_length() + right.bit_length() > MAX_BITS + 1:
            too_much("the product is too large")
    return _calculate("*", operator.mul, left, right)


def power(run: Run, left: Any, right: Any) -> Any:
    """`**`: numbers."""
    left, right = unwrap(left), unwrap(right)
    if isinstance(left, int) and isinstance(right, int) and abs(left) > 1 and left.bit_length() * right > MAX_BITS:
        too_much("the power is too large")
    answer = _calculate("**", operator.pow, left, right)
    if isinstance(answer, complex):
        raise TemplateError('"**" of a negative number and a fraction is not a number')
    return answer


def modulo(run: Run, left: Any, right: Any) -> Any:
    """`%`: the rest of a division, or a text with `%s`, `%d` in it."""
    left = unwrap(left)
    if isinstance(left, str):
        return format_percent(run, left, right)
    return _calculate("%", operator.mod, left, unwrap(right))


def subtract(run: Run, left: Any, right: Any) -> Any:
    """`-`: numbers."""
    return _calculate("-", operator.sub, unwrap(left), unwrap(right))


def divide(run: Run, left: Any, right: Any) -> Any:
    """`/`: numbers, with a fraction."""
    return _calculate("/", operator.truediv, unwrap(left), unwrap(right))


def floor_divide(run: Run, left: Any, right: Any) -> Any:
    """`//`: numbers, rounded down."""
    return _calculate("//", operator.floordiv, unwrap(left), unwrap(right))


BINARY: dict[str, Binary] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "//": floor_divide,
    "%": modulo,
    "**": power,
}


def negate(value: Any) -> Any:
    """`-x`."""
    value = unwrap(value)
    try:
        return -value
    except TypeError:
        raise TemplateError(f'"-" does not work on {kind_of(value)}') from None


def positive(value: Any) -> Any:
    """`+x`."""
    value = unwrap(value)
    try:
        return +value
    except TypeError:
        raise TemplateError(f'"+" does not work on {kind_of(value)}') from None


def _calculate(sign: str, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    try:
        return function(left, right)
    except TypeError:
        raise TemplateError(f'"{sign}" does not work between {kind_of(left)} and {kind_of(right)}') from None
    except ZeroDivisionError:
        raise TemplateError(f'"{sign}" divides by zero') from None
    except OverflowError:
        raise TemplateError(f'the answer of "{sign}" is too large for a number') from None


def concat(run: Run, parts: Iterable[Any]) -> str:
    """`~`: everything as text, joined."""
    texts = [to_text(part) for part in parts]
    run.spend_text(sum(map(len, texts)))
    return "".join(texts)


# ── comparison ──────────────────────────────────────────────────────────────────────────


def _contains(item: Any, container: Any) -> bool:
    container = unwrap(container)
    if isinstance(container, str) and not isinstance(item, str):
        item = unwrap(item)
    try:
        return item in container
    except TypeError:
        if isinstance(container, str):
            raise TemplateError(f'"in" a text looks for text, not for {kind_of(item)}') from None
        if isinstance(container, (Mapping, set, frozenset)):
            return False
        raise TemplateError(f'"in" needs a list, a mapping or text on its right, not {kind_of(container)}') from None


def contains(item: Any, container: Any) -> bool:
    """`item in container`."""
    if isinstance(item, (View, Undefined)) and not isinstance(item, Missing):
        item = unwrap(item)
    return _contains(item, container)


def misses(item: Any, container: Any) -> bool:
    """`item not in container`."""
    return not contains(item, container)


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": contains,
    "notin": misses,
}


def key_of(value: Any) -> Any:
    """A key of a mapping that a template writes."""
    if isinstance(value, (View, Undefined)):
        value = unwrap(value)
    try:
        hash(value)
    except TypeError:
        raise TemplateError(f"{kind_of(value)} cannot be a key of a mapping") from None
    return value


# ── slices and loops ────────────────────────────────────────────────────────────────────


def slice_of(run: Run, value: Any, start: Any, stop: Any, step: Any) -> Any:
    """`value[start:stop:step]`."""
    if isinstance(value, Undefined):
        return value
    value = unwrap(value)
    bounds = slice(unwrap(start), unwrap(stop), unwrap(step))
    if not isinstance(value, (str, list, tuple, range)):
        raise TemplateError(f"only lists and text can be sliced, not {kind_of(value)}")
    try:
        part = value[bounds]
    except (TypeError, ValueError):
        raise TemplateError("a slice needs whole numbers, and a step that is not zero") from None
    run.spend(1 + (len(part) >> 3))
    return part


def each(run: Run, value: Any, text: int = 0) -> Iterator[Any]:
    """The elements of what a `for` goes over, each turn counted with the text it writes."""
    value = unwrap(value)
    try:
        elements = iter(value)
    except TypeError:
        raise TemplateError(f"a for loop needs a list or a mapping, not {kind_of(value)}") from None
    return _counted(run, elements, text)


def _counted(run: Run, elements: Iterator[Any], text: int) -> Iterator[Any]:
    for element in elements:
        run.spend(2)
        if text:
            run.spend_text(text)
        yield element


# ── %-formatting and str.format ─────────────────────────────────────────────────────────

_CONVERSION = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\*|\d+)?(?:\.(\*|\d+))?[hlL]?(.)", re.DOTALL)


def format_percent(run: Run, template: str, values: Any) -> str:
    """`template % values`, its widths bounded."""
    if isinstance(values, list):
        values = unwrap(values)
    elif isinstance(values, tuple):
        values = tuple(unwrap(value) for value in values)
    else:
        values = unwrap(values)
    room = len(template)
    for width, precision, kind in _CONVERSION.findall(template):
        if "*" in (width, precision):
            raise TemplateError('"*" as a width is not supported in a format')
        room += check_width(width) + check_width(precision)
        room += 0 if kind == "%" else _longest(values)
    run.spend_text(room)
    try:
        return str(template % values)
    except (TypeError, ValueError, KeyError, OverflowError) as problem:
        raise TemplateError(f"the format does not fit its values: {problem}") from None


def check_width(width: str) -> int:
    """A width or precision that a format asks for, as a number."""
    if not width:
        return 0
    if len(width) > 9 or int(width) > MAX_WIDTH:
        too_much(f"a format asks for a width of {width[:20]} (at most {MAX_WIDTH:,})")
    return int(width)


def _longest(values: Any) -> int:
    """An upper bound for one value inside a format."""
    if isinstance(values, Mapping):
        parts: Iterable[Any] = values.values()
    else:
        parts = values if isinstance(values, tuple) else (values,)
    return max((len(part) if isinstance(part, str) else 2000 for part in parts), default=0)


# ── words for Python's own complaints ───────────────────────────────────────────────────

_BETWEEN = re.compile(r"'([^']+)' not supported between instances of '([^']+)' and '([^']+)'")
_PYTHON_KINDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true/false",
    "NoneType": "none",
    "dict": "a mapping",
    "list": "a list",
    "tuple": "a list",
}


def explain(problem: Exception) -> str:
    """A Python exception in the author's words."""
    text = str(problem)
    between = _BETWEEN.search(text)
    if between:
        sign, left, right = between.groups()
        return f'"{sign}" does not work between {_PYTHON_KINDS.get(left, left)} and {_PYTHON_KINDS.get(right, right)}'
    if isinstance(problem, RecursionError):
        return "the template is nested too deeply"
    if isinstance(problem, MemoryError):
        return "the template needs too much memory"
    return text or type(problem).__name__
