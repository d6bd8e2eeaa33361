"""Operators with limits, used by the closures and by Jinja's compiled code.

Python's operators create a gigabyte from ten characters (`'a' * 10**9`, `10 ** 10 ** 10`, `'%999999999d' % 1`).
Here the size of a result is charged before it is computed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from typing import Any

from noetl.core.templates.budget import (
    MAX_BITS,
    MAX_WIDTH,
    SMALL,
    EvaluationBudget,
    NeedsBudget,
    limit_exceeded,
    search_cost,
)
from noetl.core.templates.lookup import NO_ELEMENTS, Missing, Undefined, View, is_reference, kind_of, unwrap
from noetl.core.templates.views import plain
from noetl.errors import TemplateError

Binary = Callable[[EvaluationBudget, Any, Any], Any]


def to_text(budget: EvaluationBudget, value: Any) -> str:
    """Format a value inside text as Jinja does: `True`, `None`, `['a']`."""
    kind = type(value)
    if kind is str:
        return value  # type: ignore[no-any-return]
    if kind is float:
        budget.charge(_FLOAT_COST)
        return str(value)
    if kind is bool or value is None:
        return str(value)
    if kind is int:
        if not -SMALL < value < SMALL:
            budget.charge_digits(value)
        return str(value)
    value = unwrap(value)
    if isinstance(value, str):
        return str.__str__(value)
    if not isinstance(value, (int, float)) and value is not None:
        value = plain(value, budget)
        budget.charge_text(measure(budget, value))
    return str(value)


def write(budget: EvaluationBudget, value: Any) -> str:
    """Format a value for the result and charge it."""
    text = value if type(value) is str else to_text(budget, value)
    budget.operations -= 1
    budget.charge_text(len(text))
    return text


def measure(budget: EvaluationBudget, value: Any) -> int:
    """Return a lower bound of the length of plain data as text; raise if it exceeds the limit."""
    kind = type(value)
    if kind is str:
        return len(value) + 2
    if kind is not list and kind is not dict:
        if kind is int and not -SMALL < value < SMALL:
            budget.charge_digits(value)
            return value.bit_length() // 4  # type: ignore[no-any-return]
        return 4
    budget.charge(1 + (len(value) >> 1))
    room = budget.max_text
    length = 2 + 2 * len(value)
    if kind is dict:
        length += sum(len(key) + 4 for key in value)
        value = value.values()
    for element in value:
        kind = type(element)
        if kind in _CONTAINERS or kind is str or (kind is int and not -SMALL < element < SMALL):
            length += measure(budget, element)
        elif kind is float:
            budget.charge(_FLOAT_COST)
            length += 3
        else:
            length += 1
        if length > room:
            budget.charge_text(length)
    return length


_CONTAINERS = frozenset([list, dict])
_FLOAT_COST = 1  # operations to write a number with a fraction, beside those for an element


# ── arithmetic ──────────────────────────────────────────────────────────────────────────


def add(budget: EvaluationBudget, left: Any, right: Any) -> Any:
    """`+`: numbers, texts, lists."""
    left, right = unwrap(left), unwrap(right)
    if isinstance(left, str) and isinstance(right, str):
        budget.charge_text(len(left) + len(right))
    elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple, range)):
        budget.charge_items(len(left) + len(right))
        return budget.weigh([*left, *right])
    made = _calculate(budget, "+", operator.add, left, right)
    budget.charge_width(made)
    return made


def multiply(budget: EvaluationBudget, left: Any, right: Any) -> Any:
    """`*`: numbers; a text or a list times a whole number."""
    left, right = unwrap(left), unwrap(right)
    if isinstance(left, int) and isinstance(right, (str, list, tuple)):
        left, right = right, left
    if isinstance(right, int):
        if isinstance(left, str):
            budget.charge_text(len(left) * max(right, 0))
        elif isinstance(left, (list, tuple)):
            budget.charge_items(len(left) * max(right, 0))
            return budget.weigh(left * right)
        elif isinstance(left, int) and left.bit_length() + right.bit_length() > MAX_BITS + 1:
            limit_exceeded(f"a product of more than {MAX_BITS:,} bits")
    made = _calculate(budget, "*", operator.mul, left, right)
    budget.charge_width(made)
    return made


def power(budget: EvaluationBudget, left: Any, right: Any) -> Any:
    """`**`: numbers."""
    left, right = unwrap(left), unwrap(right)
    if isinstance(left, int) and isinstance(right, int) and abs(left) > 1 and left.bit_length() * right > MAX_BITS:
        limit_exceeded(f"a power of more than {MAX_BITS:,} bits")
    answer = _calculate(budget, "**", operator.pow, left, right)
    if isinstance(answer, complex):
        raise TemplateError('"**" of a negative number and a fraction is undefined')
    return answer


def modulo(budget: EvaluationBudget, left: Any, right: Any) -> Any:
    """`%`: the rest of a division, or a text with `%s`, `%d` in it."""
    left = unwrap(left)
    if isinstance(left, str):
        return format_percent(budget, left, right)
    return _calculate(budget, "%", operator.mod, left, unwrap(right))


def subtract(budget: EvaluationBudget, left: Any, right: Any) -> Any:
    """`-`: numbers."""
    return _calculate(budget, "-", operator.sub, unwrap(left), unwrap(right))


def divide(budget: EvaluationBudget, left: Any, right: Any) -> Any:
    """`/`: numbers, with a fraction."""
    return _calculate(budget, "/", operator.truediv, unwrap(left), unwrap(right))


def floor_divide(budget: EvaluationBudget, left: Any, right: Any) -> Any:
    """`//`: numbers, rounded down."""
    return _calculate(budget, "//", operator.floordiv, unwrap(left), unwrap(right))


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


def _calculate(budget: EvaluationBudget, sign: str, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    for operand in (left, right):
        if type(operand) is int and not -SMALL < operand < SMALL:
            budget.charge_number(operand)
    try:
        answer = function(left, right)
    except TypeError:
        raise TemplateError(f'"{sign}" does not work between {kind_of(left)} and {kind_of(right)}') from None
    except ZeroDivisionError:
        raise TemplateError(f'"{sign}" divides by zero') from None
    except OverflowError:
        raise TemplateError(f'the result of "{sign}" is too large for a number') from None
    if type(answer) is float and not isfinite(answer) and isfinite(left) and isfinite(right):
        raise TemplateError(f'the result of "{sign}" is too large for a number')
    return answer


def concat(budget: EvaluationBudget, parts: Iterable[Any]) -> str:
    """`~`: everything as text, joined."""
    texts = [part if type(part) is str else to_text(budget, part) for part in parts]
    budget.charge_text(sum(map(len, texts)))
    made = "".join(texts)
    budget.charge_width(made)
    return made


# ── comparison ──────────────────────────────────────────────────────────────────────────


def equal(budget: EvaluationBudget | None, left: Any, right: Any) -> bool:
    """`left == right`."""
    if isinstance(left, View):
        left = left.value()
    if isinstance(right, View):
        right = right.value()
    if type(left) not in _ATOMS and type(right) not in _ATOMS:
        _pay(budget, left, right)
    return bool(left == right)


def differ(budget: EvaluationBudget | None, left: Any, right: Any) -> bool:
    """`left != right`."""
    return not equal(budget, left, right)


def contains(budget: EvaluationBudget | None, item: Any, container: Any) -> bool:
    """`item in container`."""
    if isinstance(item, (View, Undefined)) and not isinstance(item, Missing):
        item = unwrap(item)
    return has(budget, item, unwrap(container))


def has(budget: EvaluationBudget | None, item: Any, container: Any) -> bool:
    """Whether data has an element, a key or a part."""
    if isinstance(container, str):
        if not isinstance(item, str):
            raise TemplateError(f'"in" a text looks for text, not for {kind_of(item)}')
        cost = search_cost(len(container), len(item))
        if budget is not None:
            budget.charge(1 + cost)
        elif cost > _FREE_COST:
            raise NeedsBudget
        return item in container
    if isinstance(container, Mapping):
        return is_key(item) and item in container
    if isinstance(container, (list, tuple, range)):
        if budget is not None:
            budget.charge_walk(container)
        elif len(container) > _SHORT or type(item) in _CONTAINERS_OR_TUPLE:
            raise NeedsBudget
        return item in container
    raise TemplateError(f'"in" needs a list, a mapping or text on its right, not {kind_of(container)}')


def is_key(value: Any) -> bool:
    """Whether a value can be a key of a mapping: text, a number, true/false or none.

    Whole numbers from 2**61 on may all have the same hash value, so a mapping of them takes quadratic time."""
    kind = type(value)
    if kind is int:
        return -_MAX_KEY < value < _MAX_KEY  # type: ignore[no-any-return]
    return kind is str or kind is bool or kind is float or value is None or isinstance(value, (str, Missing))


_MAX_KEY = (1 << 61) - 1
_FREE_COST = 100
_CONTAINERS_OR_TUPLE = frozenset([list, dict, tuple])


def misses(budget: EvaluationBudget | None, item: Any, container: Any) -> bool:
    """`item not in container`."""
    return not contains(budget, item, container)


def _ordered(function: Callable[[Any, Any], bool]) -> Compare:
    def compare(budget: EvaluationBudget | None, left: Any, right: Any) -> bool:
        if isinstance(left, View):
            left = left.value()
        if isinstance(right, View):
            right = right.value()
        if type(left) not in _ATOMS and type(right) not in _ATOMS:
            _pay(budget, left, right)
        return function(left, right)

    return compare


def _pay(budget: EvaluationBudget | None, *walked: Any) -> None:
    """Charge a traversal of lists and long texts; without a budget, raise that one is needed."""
    if budget is not None:
        budget.charge_walk(*walked)
    elif all(walked) and not (type(walked[0]) is str and len(walked[0]) <= _SHORT):
        raise NeedsBudget


_ATOMS = frozenset([int, float, bool, type(None)])
_SHORT = 1000
Compare = Callable[["EvaluationBudget | None", Any, Any], bool]

COMPARE: dict[str, Compare] = {
    "eq": equal,
    "ne": differ,
    "lt": _ordered(operator.lt),
    "lteq": _ordered(operator.le),
    "gt": _ordered(operator.gt),
    "gteq": _ordered(operator.ge),
    "in": contains,
    "notin": misses,
}


def compare_all(budget: EvaluationBudget | None, value: Any, rest: list[tuple[str, Any]]) -> bool:
    """`a < b <= c`: every adjacent pair."""
    answer = True
    for name, other in rest:
        answer = COMPARE[name](budget, value, other)
        if not answer:
            break
        value = other
    return answer


def literal(budget: EvaluationBudget, made: Any) -> Any:
    """Check and weigh a list or mapping literal; an undefined element is an error."""
    for element in made.values() if isinstance(made, dict) else made:
        if type(element) is Undefined:
            element.fail()
    return budget.weigh(made)


def key_of(value: Any) -> Any:
    """Check a key of a mapping literal."""
    if isinstance(value, (View, Undefined)):
        value = unwrap(value)
    if not is_key(value):
        size = " of more than 60 bits" if isinstance(value, int) else ""
        raise TemplateError(f"{kind_of(value)}{size} cannot be a key of a mapping")
    return value


# ── slices and loops ────────────────────────────────────────────────────────────────────


def slice_of(budget: EvaluationBudget, value: Any, start: Any, stop: Any, step: Any) -> Any:
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
    if isinstance(part, str):
        budget.charge_text(len(part))
        budget.charge_width(part)
        return part
    return part if isinstance(part, range) else budget.weigh(part)


def each(budget: EvaluationBudget, value: Any, cost: int = 2, text: int = 0) -> Iterator[Any]:
    """Return the elements that a `for` iterates over, each charged with the cost and the text of the loop body."""
    value = unwrap(value)
    if type(value) is dict and "locator" in value and is_reference(value):
        raise TemplateError(NO_ELEMENTS)
    try:
        elements = iter(value)
    except TypeError:
        raise TemplateError(f"a for loop needs a list or a mapping, not {kind_of(value)}") from None
    return _counted(budget, elements, cost, text)


def _counted(budget: EvaluationBudget, elements: Iterator[Any], cost: int, text: int) -> Iterator[Any]:
    for element in elements:
        budget.charge(cost)
        if text:
            budget.charge_text(text)
        yield element


def whole_text(text: str) -> str:
    """The text, which must be valid Unicode: nothing that is stored or sent can hold a lone surrogate."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as problem:
            raise TemplateError(
                f"\\u{ord(text[problem.start]):04x} is half of a character (a lone surrogate), which is not valid "
                "Unicode; write the character itself"
            ) from None
    return text


# ── %-formatting and str.format ─────────────────────────────────────────────────────────

_ESCAPED = 10  # characters of the longest escape of one character
_CONVERSION = re.compile(r"[#0\- +]{0,8}(\*|\d{1,10})?(?:\.(\*|\d{1,10}))?[hlL]?(.)", re.DOTALL)


def format_percent(budget: EvaluationBudget, template: str, values: Any) -> str:
    """`template % values`, with limited widths."""
    if isinstance(values, (tuple, Mapping)):
        budget.charge(len(values))
    if isinstance(values, tuple):
        values = tuple(_formattable(budget, value) for value in values)
    elif isinstance(values, Mapping):
        values = {key: _formattable(budget, value) for key, value in values.items()}
    else:
        values = _formattable(budget, values)
    room = len(template)
    longest = _longest(budget, values)
    for width, precision, kind in _conversions(template):
        budget.charge(1 + (longest >> 4 if kind in "ra" else 0))
        if "*" in (width, precision):
            raise TemplateError('"*" as a width is not supported in a format')
        room += check_width(width) + check_width(precision)
        room += 0 if kind == "%" else longest * (_ESCAPED if kind in "ra" else 1)
        if room > budget.max_text:
            break
    budget.charge_text(room)
    try:
        made = whole_text(template % values)
    except (TypeError, ValueError, KeyError, OverflowError) as problem:
        raise TemplateError(f"the format does not fit its values: {problem}") from None
    budget.charge_width(made)
    return made


def _conversions(template: str) -> Iterator[tuple[str, str, str]]:
    """The width, precision and letter of each `%` conversion; the text is read once, from left to right."""
    at = template.find("%")
    while at >= 0:
        at += 1
        if template.startswith("(", at):
            at = template.find(")", at) + 1
            if at == 0:
                raise TemplateError('the format does not fit its values: a "%(" without its ")"')
        found = _CONVERSION.match(template, at)
        if found is None:
            raise TemplateError("the format does not fit its values: a conversion is incomplete")
        yield found[1] or "", found[2] or "", found[3]
        at = template.find("%", found.end())


def _formattable(budget: EvaluationBudget, value: Any) -> Any:
    """Return text and numbers unchanged, other values as text."""
    value = unwrap(value)
    return value if isinstance(value, (str, int, float)) or value is None else to_text(budget, value)


def check_width(width: str) -> int:
    """Return a width or precision of a format as a number."""
    if not width:
        return 0
    if len(width) > 9 or int(width) > MAX_WIDTH:
        limit_exceeded(f"a format with a width of {width[:20]} (at most {MAX_WIDTH:,})")
    return int(width)


def _longest(budget: EvaluationBudget, values: Any) -> int:
    """Return an upper bound of the length of one formatted value."""
    if isinstance(values, Mapping):
        parts: Iterable[Any] = values.values()
    else:
        parts = values if isinstance(values, tuple) else (values,)
    longest = 0
    for part in parts:
        if type(part) is int and not -SMALL < part < SMALL:
            budget.charge_number(part)
        longest = max(longest, len(part) if isinstance(part, str) else 2000)
    return longest


# ── messages for Python's exceptions ────────────────────────────────────────────────────

_BETWEEN = r"'([^']+)' not supported between instances of '([^']+)' and '([^']+)'"
_UNHASHABLE = r"unhashable type: '([^']+)'"
_PYTHON_KINDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true/false",
    "NoneType": "none",
    "dict": "a mapping",
    "list": "a list",
    "tuple": "a list",
    "range": "a range",
    "Undefined": "what is not defined",
    "Missing": "what has no value",
}
_KIND_WORDS = "|".join(_PYTHON_KINDS)
_TYPE_NAME = rf"'({_KIND_WORDS})'(?: objects?| instances?)?|(?<=not )({_KIND_WORDS})\b|(?<=got )({_KIND_WORDS})\b"


_MAX_MESSAGE = 2000


def describe_exception(problem: Exception) -> str:
    """Describe a Python exception in the terms of the template language."""
    text = str(problem)
    if len(text) > _MAX_MESSAGE:
        return f"{type(problem).__name__} with a message of {len(text):,} characters"
    between = re.search(_BETWEEN, text)
    if between:
        sign, left, right = between.groups()
        return f'"{sign}" does not work between {_PYTHON_KINDS.get(left, left)} and {_PYTHON_KINDS.get(right, right)}'
    unhashable = re.search(_UNHASHABLE, text)
    if unhashable:
        return f"{_PYTHON_KINDS.get(unhashable[1], unhashable[1])} cannot be a key of a mapping"
    if isinstance(problem, RecursionError):
        return "the template is nested too deeply"
    if isinstance(problem, MemoryError):
        return "the template needs too much memory"
    told = re.sub(_TYPE_NAME, lambda found: _PYTHON_KINDS[found[1] or found[2] or found[3]], text)
    return told or type(problem).__name__
