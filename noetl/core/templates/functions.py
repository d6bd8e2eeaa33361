"""Callables of the template language: functions, and the methods of text, lists and mappings.

A template can call a `Function` and nothing else. Methods are looked up in tables, so no Python attribute is ever
read, and every method whose result can be large charges the budget for it first.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from noetl.core.templates import lookup as lookup_module
from noetl.core.templates.budget import (
    MAX_ITEMS,
    MAX_RANGE,
    MAX_WIDTH,
    SMALL,
    EvaluationBudget,
    limit_exceeded,
    search_cost,
)
from noetl.core.templates.lookup import Undefined, kind_of, lookup, unwrap
from noetl.core.templates.operators import describe_exception, is_key, key_of, to_text
from noetl.errors import TemplateError

RECORDED = 20  # operations for a value of `now()`, `uuid()` and `random()`, which is stored with the event


class Function:
    """A function that templates may call: `function(run, *arguments)`."""

    KIND = "a function"
    __slots__ = ("function", "name")

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.function = function

    def __repr__(self) -> str:
        return f"the function {self.name}()"


class _Method(Function):
    """A method bound to its value."""

    __slots__ = ("bound",)

    def __init__(self, name: str, function: Callable[..., Any], bound: Any) -> None:
        super().__init__(name, function)
        self.bound = bound


def invoke(budget: EvaluationBudget, function: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function or method for a template."""
    if not isinstance(function, Function):
        if isinstance(function, Undefined):
            function.fail()
        raise TemplateError(f"{kind_of(function)} is not callable")
    values = [unwrap(arg) for arg in args]
    named = {name: unwrap(arg) for name, arg in kwargs.items()}
    budget.charge(1 + (len(values) + len(named) >> 2))
    try:
        if isinstance(function, _Method):
            made = function.function(budget, function.bound, *values, **named)
        else:
            made = function.function(budget, *values, **named)
    except (TypeError, ValueError, LookupError, OverflowError) as problem:
        raise TemplateError(f"{function.name}(): {call_problem(problem)}") from None
    if type(made) is list or type(made) is dict:
        return budget.weigh(made)
    budget.charge_width(made)
    return made


def call_problem(problem: Exception) -> str:
    """Describe a failed call without the names of Python functions."""
    text = describe_exception(problem)
    if isinstance(problem, LookupError):
        return text.strip("'\"")
    if not isinstance(problem, TypeError):
        return text
    for pattern, message in _CALL_PROBLEMS:
        found = re.search(pattern, text)
        if found:
            return found.expand(message)
    return text


_CALL_PROBLEMS = [
    (r"takes .* arguments? but .* given$", "too many arguments"),
    (r"too many positional arguments", "too many arguments"),
    (r"takes no arguments", "takes no arguments"),
    (r"takes no keyword arguments", "takes no keyword arguments"),
    (r"missing \d+ required (?:positional|keyword-only) arguments?: (.*)", r"missing argument \1"),
    (r"unexpected keyword argument '(\w+)'", r'unknown argument "\1"'),
    (r"multiple values for argument '(\w+)'", r'the argument "\1" is given twice'),
]


# ── functions ───────────────────────────────────────────────────────────────────────────


def _range(budget: EvaluationBudget, first: int, stop: int | None = None, step: int = 1, /) -> range:
    made = range(first) if stop is None else range(first, stop, step)
    try:
        length = len(made)
    except OverflowError:
        length = MAX_RANGE + 1
    if length > MAX_RANGE:
        limit_exceeded(f"range() with more than {MAX_RANGE:,} elements")
    return made


def _dict(budget: EvaluationBudget, pairs: Any = (), /, **fields: Any) -> dict[str, Any]:
    if isinstance(pairs, Mapping):
        budget.charge(len(pairs))
        return {**pairs, **fields}
    return {**mapping_of(budget, map(_pair, pairs)), **fields}


def _pair(value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise TemplateError("dict() expects a mapping or a list of pairs")
    return value


def mapping_of(budget: EvaluationBudget, pairs: Iterable[Any]) -> dict[Any, Any]:
    """Return the mapping of pairs of a key and a value; numbers as keys are charged as they are added."""
    made: dict[Any, Any] = {}
    numbers = 0
    for key, value in pairs:
        key = key_of(key)
        if type(key) is not str:
            numbers += 1
        budget.charge(1 + (numbers >> 8))
        made[key] = value
    return made


def _source(budget: EvaluationBudget, name: str) -> Any:
    budget.charge(RECORDED)
    if budget.nondeterminism is None:
        raise TemplateError(f"{name}() is not available here: its value would not be recorded")
    return budget.nondeterminism


def _now(budget: EvaluationBudget, format: str | None = None) -> str:
    from noetl.core.templates.filters.dates import strftime

    moment: str = _source(budget, "now").now()
    return moment if format is None else strftime(budget, moment, format)


def _uuid(budget: EvaluationBudget) -> str:
    return str(_source(budget, "uuid").uuid())


def _random(budget: EvaluationBudget) -> float:
    return float(_source(budget, "random").random())


_FUNCTIONS: list[tuple[str, Callable[..., Any], str]] = [
    ("range", _range, "`range(stop)`, `range(start, stop, step)`: whole numbers, at most 100,000"),
    ("dict", _dict, "`dict(a=1, b=2)`: a mapping"),
    ("now", _now, "the time as ISO 8601 text, recorded; `now('%Y-%m-%d')` formats it"),
    ("uuid", _uuid, "a new UUID, recorded"),
    ("random", _random, "a number from 0 up to 1, recorded"),
]
FUNCTIONS: dict[str, tuple[Function, str]] = {
    name: (Function(name, function), doc) for name, function, doc in _FUNCTIONS
}


# ── methods ─────────────────────────────────────────────────────────────────────────────


def padding(budget: EvaluationBudget, text: str, width: int) -> int:
    """Check and charge the width to which a text is padded."""
    if width > MAX_WIDTH:
        limit_exceeded(f"a width of {width:,} (at most {MAX_WIDTH:,})")
    budget.charge_text(max(len(text), width))
    return width


def _padded(method: Callable[..., str]) -> Callable[..., str]:
    def pad(budget: EvaluationBudget, text: str, width: int, *fill: str) -> str:
        return method(text, padding(budget, text, width), *fill)

    return pad


def _plainly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method whose result is never larger than its value."""

    def call(budget: EvaluationBudget, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget.charge(1 + (len(value) >> 6))
        for arg in args:
            budget.charge_walk(arg)
        made = method(value, *args, **kwargs)
        if isinstance(made, str):
            budget.charge_text(len(made))
        return made

    return call


def recase(budget: EvaluationBudget, text: str, method: Callable[[str], str]) -> str:
    """Convert the case of a text; some letters become up to three (`ﬃ`)."""
    ascii_only = text.isascii()
    budget.charge(1 + (len(text) >> (6 if ascii_only else 3)))
    budget.charge_text(len(text) if ascii_only else 3 * len(text))
    return method(text)


def _recased(method: Callable[[str], str]) -> Callable[[EvaluationBudget, str], str]:
    return lambda budget, text: recase(budget, text, method)


def strip_text(budget: EvaluationBudget, text: str, chars: str | None, method: Callable[..., str] = str.strip) -> str:
    """Remove characters at the ends; each character of the text is looked up in `chars`."""
    budget.charge(1 + (len(text) * (1 if chars is None else 1 + len(chars)) >> 6))
    budget.charge_text(len(text))
    return method(text, chars)


def _stripped(method: Callable[..., str]) -> Callable[..., str]:
    return lambda budget, text, chars=None: strip_text(budget, text, chars, method)


def _searching(method: Callable[..., Any], *, backwards: bool = False) -> Callable[..., Any]:
    """Wrap a method that looks for a part of a text."""

    def search(budget: EvaluationBudget, text: str, part: str, *bounds: int) -> Any:
        if not isinstance(part, str):
            raise TemplateError(f"expected text, not {kind_of(part)}")
        budget.charge_search(len(text), len(part), backwards=backwards)
        found = method(text, part, *bounds)
        if isinstance(found, tuple):
            budget.charge_text(len(text))
            budget.charge_width(text)
        return found

    return search


def replace_text(budget: EvaluationBudget, text: str, old: str, new: str, count: int = -1) -> str:
    """`text.replace(old, new)`; the size of the result is charged first."""
    budget.charge(2 * search_cost(len(text), len(old)))
    times = text.count(old)
    budget.charge(1 + (times >> 3))
    if count >= 0:
        times = min(times, count)
    budget.charge_text(len(text) + times * max(len(new) - len(old), 0))
    return text.replace(old, new, count)


def join_texts(budget: EvaluationBudget, separator: str, parts: Iterable[Any]) -> str:
    """`separator.join(parts)`; the size of the result is charged first."""
    if isinstance(parts, str):
        budget.charge_text(len(parts) * (1 + len(separator)))
        budget.charge(len(parts) >> 1)
    texts = [part if type(part) is str else to_text(budget, part) for part in parts]
    budget.charge(1 + (len(texts) >> 1))
    budget.charge_text(sum(map(len, texts)) + len(separator) * max(len(texts) - 1, 0))
    return separator.join(texts)


def split_text(
    budget: EvaluationBudget, text: str, separator: str | None = None, maxsplit: int = -1, *, right: bool = False
) -> list[str]:
    """`text.split(separator, maxsplit)` with a limit on the number of pieces."""
    budget.charge(1 + (len(text) >> 6))
    if separator is not None:
        budget.charge_search(len(text), len(separator), backwards=right)
    budget.charge_text(len(text))
    budget.charge_width(text)
    most = MAX_ITEMS if maxsplit < 0 else min(maxsplit, MAX_ITEMS)
    pieces = text.rsplit(separator, most) if right else text.split(separator, most)
    budget.charge(len(pieces) >> 2)
    if maxsplit < 0 and len(pieces) > MAX_ITEMS:
        budget.charge_items(len(pieces))
    return pieces


_LINE_ENDS = ("\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")


def split_lines(budget: EvaluationBudget, text: str, keepends: bool = False) -> list[str]:
    """Split a text into its lines."""
    budget.charge(1 + (len(text) >> 6))
    budget.charge_text(len(text))
    budget.charge_width(text)
    budget.charge_items(sum(map(text.count, _LINE_ENDS)))
    return text.splitlines(keepends)


def _rsplit(budget: EvaluationBudget, text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    return split_text(budget, text, sep, maxsplit, right=True)


def _split(budget: EvaluationBudget, text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    return split_text(budget, text, sep, maxsplit)


def _expandtabs(budget: EvaluationBudget, text: str, tabsize: int = 8) -> str:
    if tabsize > MAX_WIDTH:
        limit_exceeded(f"a tab size of {tabsize:,} characters (at most {MAX_WIDTH:,})")
    budget.charge_text(len(text) + text.count("\t") * max(tabsize, 0))
    return text.expandtabs(tabsize)


class _Formatter(string.Formatter):
    """`str.format` with the field lookup of templates and a limit on widths."""

    def __init__(self, budget: EvaluationBudget) -> None:
        self._budget = budget

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        from _string import formatter_field_name_split  # type: ignore[import-not-found]

        first, rest = formatter_field_name_split(field_name)
        obj = self.get_value(first, args, kwargs)
        for _, key in rest:
            obj = lookup(obj, key)
        return unwrap(obj), first

    def format_field(self, value: Any, format_spec: str) -> str:
        from noetl.core.templates.operators import check_width, whole_text

        if len(format_spec) > 100:
            limit_exceeded("a format specification of more than 100 characters")
        for digits in "".join(sign if sign.isdigit() else " " for sign in format_spec).split():
            self._budget.charge(check_width(digits) >> 4)
        self._budget.charge(4)
        simple = isinstance(value, (str, int, float)) or value is None
        if type(value) is int and not -SMALL < value < SMALL:
            self._budget.charge_digits(value)
        text = whole_text(format(value if simple else to_text(self._budget, value), format_spec))
        self._budget.charge_text(len(text))
        return text

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if conversion is None:
            return value
        text = to_text(self._budget, value)
        if conversion == "s":
            return text
        self._budget.charge(1 + (len(text) >> 5))
        self._budget.charge_text(4 * len(text))
        return super().convert_field(value if isinstance(value, (str, int, float)) else text, conversion)


def format_text(budget: EvaluationBudget, text: str, *args: Any, **kwargs: Any) -> str:
    """`text.format(...)`."""
    budget.charge(1 + (len(text) >> 3))
    return _Formatter(budget).vformat(text, args, kwargs)


def _format_map(budget: EvaluationBudget, text: str, mapping: Mapping[str, Any]) -> str:
    budget.charge(1 + (len(text) >> 3))
    return _Formatter(budget).vformat(text, (), mapping)


def _zfill(budget: EvaluationBudget, text: str, width: int) -> str:
    return text.zfill(padding(budget, text, width))


# Methods of text that read it once, and whose result is never larger than the text.
_SAME_SIZE = (
    *("endswith", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric"),
    *("isprintable", "isspace", "istitle", "isupper", "removeprefix", "removesuffix", "startswith"),
)
_TEXT: dict[str, Callable[..., Any]] = {
    **{name: _plainly(getattr(str, name)) for name in _SAME_SIZE},
    **{
        name: _recased(getattr(str, name)) for name in ("capitalize", "casefold", "lower", "swapcase", "title", "upper")
    },
    **{name: _stripped(getattr(str, name)) for name in ("lstrip", "rstrip", "strip")},
    **{name: _searching(getattr(str, name)) for name in ("count", "find", "index", "partition")},
    **{name: _searching(getattr(str, name), backwards=True) for name in ("rfind", "rindex", "rpartition")},
    "split": _split,
    "rsplit": _rsplit,
    "splitlines": split_lines,
    **{name: _padded(getattr(str, name)) for name in ("center", "ljust", "rjust")},
    "zfill": _zfill,
    "expandtabs": _expandtabs,
    "replace": replace_text,
    "join": join_texts,
    "format": format_text,
    "format_map": _format_map,
}


def _keys(budget: EvaluationBudget, mapping: Mapping[str, Any]) -> list[Any]:
    budget.charge(1 + (len(mapping) >> 3))
    return list(mapping)


def _values(budget: EvaluationBudget, mapping: Mapping[str, Any]) -> list[Any]:
    budget.charge(1 + (len(mapping) >> 3))
    return list(mapping.values())


def _items(budget: EvaluationBudget, mapping: Mapping[str, Any]) -> list[Any]:
    budget.charge(1 + (len(mapping) >> 3))
    return [budget.weigh(pair) for pair in mapping.items()]


def _get(budget: EvaluationBudget, mapping: Mapping[str, Any], key: Any, default: Any = None) -> Any:
    return mapping.get(key, default) if is_key(key) else default


def _index(budget: EvaluationBudget, elements: Sequence[Any], value: Any, *bounds: int) -> int:
    budget.charge_walk(elements, value)
    return elements.index(value, *bounds)


def _count(budget: EvaluationBudget, elements: Sequence[Any], value: Any) -> int:
    budget.charge_walk(elements, value)
    return elements.count(value)


def _copy(budget: EvaluationBudget, value: Any) -> Any:
    budget.charge_items(len(value))
    return dict(value) if isinstance(value, Mapping) else list(value)


_MAPPING: dict[str, Callable[..., Any]] = {
    "keys": _keys,
    "values": _values,
    "items": _items,
    "get": _get,
    "copy": _copy,
}
_LIST: dict[str, Callable[..., Any]] = {"index": _index, "count": _count, "copy": _copy}


def _no_arguments(method: Callable[[Any], Any]) -> Callable[..., Any]:
    def call(budget: EvaluationBudget, value: Any) -> Any:
        return method(value)

    return call


_INT: dict[str, Callable[..., Any]] = {"bit_length": _no_arguments(int.bit_length)}
_FLOAT: dict[str, Callable[..., Any]] = {"is_integer": _no_arguments(float.is_integer)}


METHODS = frozenset(name for table in (_TEXT, _MAPPING, _LIST, _INT, _FLOAT) for name in table)


def _method_of(obj: Any, name: str) -> Any:
    if isinstance(obj, str):
        table = _TEXT
    elif isinstance(obj, Mapping):
        table = _MAPPING
    elif isinstance(obj, (list, tuple, range)):
        table = _LIST
    elif isinstance(obj, float):
        table = _FLOAT
    elif isinstance(obj, int):
        table = _INT
    else:
        return None
    function = table.get(name)
    return None if function is None else _Method(name, function, obj)


lookup_module.method_of = _method_of
