"""The tests of the template language (`x is defined`), each with the line that documents it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from noetl.core.model.excerpt import excerpt
from noetl.core.templates.budget import EvaluationBudget
from noetl.core.templates.filters import FILTERS
from noetl.core.templates.functions import Function, call_problem
from noetl.core.templates.lookup import Missing, Undefined, View, kind_of, unwrap
from noetl.core.templates.operators import has, is_key, modulo, to_text
from noetl.errors import TemplateError


class Test(NamedTuple):
    """A test, its documentation, and whether it accepts undefined values."""

    function: Callable[..., bool]
    doc: str
    raw: bool = False
    budgeted: bool = False  # its first argument is the budget


def check(
    budget: EvaluationBudget, name: str, value: Any, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> bool:
    """Apply a test by its name."""
    found = TESTS.get(name) if isinstance(name, str) else None
    if found is None:
        raise TemplateError(f"there is no test {excerpt(name)}")
    if not found.raw:
        value = unwrap(value)
        args = [unwrap(arg) for arg in args]
    else:
        value = value.value() if isinstance(value, View) else value
        args = [arg.value() if isinstance(arg, View) else arg for arg in args]
    if kwargs:
        kwargs = {key: arg.value() if isinstance(arg, View) else arg for key, arg in kwargs.items()}
        budget.charge_walk(value, *args, *kwargs.values())
    elif args:
        budget.charge_walk(value, *args)
    else:  # a test of the type; those that read the value charge for it themselves
        budget.charge()
    try:
        if found.budgeted:
            return found.function(budget, value, *args, **(kwargs or {}))
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


def _remainder(budget: EvaluationBudget, value: Any, number: Any) -> Any:
    if not _number(value) or not _number(number):
        raise TemplateError(f"expected a number, not {kind_of(number if _number(value) else value)}")
    return modulo(budget, value, number)


def _cased(method: Callable[[str], bool]) -> Callable[[EvaluationBudget, Any], bool]:
    def test(budget: EvaluationBudget, value: Any) -> bool:
        text = to_text(budget, value)
        budget.charge(len(text) >> 5)
        return method(text)

    return test


def _affix(method: Callable[[str, Any], bool]) -> Callable[[EvaluationBudget, Any, Any], bool]:
    def test(budget: EvaluationBudget, value: Any, part: Any) -> bool:
        return method(to_text(budget, value), part)

    return test


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
    "odd": Test(lambda budget, value: _remainder(budget, value, 2) == 1, "it is an odd number", budgeted=True),
    "even": Test(lambda budget, value: _remainder(budget, value, 2) == 0, "it is an even number", budgeted=True),
    "divisibleby": Test(
        lambda budget, value, number: _remainder(budget, value, number) == 0,
        "it is divisible by that number",
        budgeted=True,
    ),
    "lower": Test(_cased(str.islower), "all its letters are in lower case", budgeted=True),
    "upper": Test(_cased(str.isupper), "all its letters are in upper case", budgeted=True),
    "sameas": Test(_same, "it is the same value, of the same type"),
    "in": Test(has, "it is in that list, mapping or text", budgeted=True),
    "contains": Test(
        lambda budget, value, item: has(budget, item, value), "it has that element, key or text in it", budgeted=True
    ),
    "filter": Test(lambda value: is_key(value) and value in FILTERS, "a filter of that name exists"),
    "test": Test(lambda value: is_key(value) and value in TESTS, "a test of that name exists"),
    "escaped": Test(lambda value: False, "never: text is not escaped automatically"),
    "startswith": Test(_affix(str.startswith), "its text starts with that text", budgeted=True),
    "endswith": Test(_affix(str.endswith), "its text ends with that text", budgeted=True),
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
