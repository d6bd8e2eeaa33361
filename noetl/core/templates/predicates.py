"""The tests of the template language (`x is defined`), each with the line that documents it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from noetl.core.templates.budget import EvaluationBudget
from noetl.core.templates.filters import FILTERS
from noetl.core.templates.functions import Function, call_problem
from noetl.core.templates.lookup import Missing, Undefined, unwrap
from noetl.core.templates.operators import has
from noetl.errors import TemplateError


class Test(NamedTuple):
    """A test, its documentation, and whether it accepts undefined values and views."""

    function: Callable[..., bool]
    doc: str
    raw: bool = False


def check(
    budget: EvaluationBudget, name: str, value: Any, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> bool:
    """Apply a test by its name."""
    found = TESTS.get(name)
    if found is None:
        raise TemplateError(f'there is no test "{name}"')
    budget.operations -= 1
    if budget.operations < 0:
        budget.charge(0)
    if not found.raw:
        value = unwrap(value)
        args = [unwrap(arg) for arg in args]
    budget.charge_walk(value, *args)
    try:
        return found.function(value, *args, **(kwargs or {}))
    except (TypeError, ValueError, ArithmeticError) as problem:
        raise TemplateError(f'test "is {name}": {call_problem(problem)}') from None


def _is_none(value: Any) -> bool:
    if isinstance(value, Missing):
        return True
    return unwrap(value) is None


def _iterable(value: Any) -> bool:
    return isinstance(value, (str, list, tuple, range, Mapping))


def _number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _same(value: Any, other: Any) -> bool:
    return value is other or (type(value) is type(other) and bool(value == other))


TESTS: dict[str, Test] = {
    "defined": Test(lambda value: not isinstance(value, Undefined), "it exists", raw=True),
    "undefined": Test(lambda value: isinstance(value, Undefined), "it does not exist", raw=True),
    "none": Test(_is_none, "it is none (null)", raw=True),
    "boolean": Test(lambda value: value is True or value is False, "it is true or false"),
    "true": Test(lambda value: value is True, "it is exactly true"),
    "false": Test(lambda value: value is False, "it is exactly false"),
    "integer": Test(lambda value: isinstance(value, int) and not isinstance(value, bool), "it is a whole number"),
    "float": Test(lambda value: isinstance(value, float), "it is a number with a fraction"),
    "number": Test(_number, "it is a number"),
    "string": Test(lambda value: isinstance(value, str), "it is text"),
    "mapping": Test(lambda value: isinstance(value, Mapping), "it is a mapping"),
    "sequence": Test(_iterable, "it has ordered elements: a list, text, a mapping's keys"),
    "iterable": Test(_iterable, "a loop can iterate over it"),
    "callable": Test(lambda value: isinstance(value, Function), "it can be called"),
    "odd": Test(lambda value: value % 2 == 1, "it is an odd number"),
    "even": Test(lambda value: value % 2 == 0, "it is an even number"),
    "divisibleby": Test(lambda value, number: value % number == 0, "it is divisible by that number"),
    "lower": Test(lambda value: str(value).islower(), "all its letters are in lower case"),
    "upper": Test(lambda value: str(value).isupper(), "all its letters are in upper case"),
    "sameas": Test(_same, "it is the same value, of the same type"),
    "in": Test(has, "it is in that list, mapping or text"),
    "contains": Test(lambda value, item: has(item, value), "it has that element, key or text in it"),
    "filter": Test(lambda value: value in FILTERS, "a filter of that name exists"),
    "test": Test(lambda value: value in TESTS, "a test of that name exists"),
    "escaped": Test(lambda value: False, "never: text is not escaped automatically"),
    "startswith": Test(lambda value, start: str(value).startswith(start), "its text starts with that text"),
    "endswith": Test(lambda value, end: str(value).endswith(end), "its text ends with that text"),
}

for _function, _names, _doc in [
    (lambda value, other: bool(value == other), ("==", "eq", "equalto"), "it is equal"),
    (lambda value, other: bool(value != other), ("!=", "ne"), "it is not equal"),
    (operator.lt, ("<", "lt", "lessthan"), "it is less"),
    (operator.le, ("<=", "le"), "it is less or equal"),
    (operator.gt, (">", "gt", "greaterthan"), "it is greater"),
    (operator.ge, (">=", "ge"), "it is greater or equal"),
]:
    for _name in _names:
        # Equality accepts a `Missing`, which is equal to none.
        TESTS[_name] = Test(_function, _doc, raw=_name in ("==", "eq", "equalto", "!=", "ne"))
