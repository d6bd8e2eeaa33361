"""Registration and application of filters.

A filter is `function(budget, value, *arguments)`. It receives plain data (views are unwrapped, undefined values are
refused) unless it is marked `raw`. The filters are defined in `texts`, `lists` and `dates`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from noetl.core.model.excerpt import excerpt
from noetl.core.templates.budget import EvaluationBudget
from noetl.core.templates.functions import call_problem
from noetl.core.templates.lookup import Undefined, View, kind_of, unwrap
from noetl.core.templates.operators import to_text
from noetl.errors import TemplateError


class Filter(NamedTuple):
    """A filter and its documentation.

    `raw`: it accepts undefined values and views. `plain`: for plain data it returns plain data.
    """

    function: Callable[..., Any]
    doc: str
    raw: bool = False
    plain: bool = True


FILTERS: dict[str, Filter] = {}


def template_filter(
    doc: str, *names: str, raw: bool = False, plain: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a filter under its function's name (without underscores) or under other names."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names or (function.__name__.strip("_"),):
            FILTERS[name] = Filter(function, doc, raw, plain)
        return function

    return register


def apply(
    budget: EvaluationBudget, name: str, value: Any, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Apply a filter by its name."""
    found = FILTERS.get(name) if isinstance(name, str) else None
    if found is None:
        raise TemplateError(f"there is no filter {excerpt(name)}")
    return apply_filter(budget, name, found, value, args, kwargs)


def apply_filter(
    budget: EvaluationBudget,
    name: str,
    found: Filter,
    value: Any,
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Apply a filter."""
    budget.operations -= 1
    if budget.operations < 0:
        budget.charge(0)
    if args:
        args = list(args)
        budget.charge(len(args) >> 2)
    if not found.raw:
        if isinstance(value, (View, Undefined)):
            value = unwrap(value)
        if args:
            args = [unwrap(arg) for arg in args]
        if kwargs:
            kwargs = {key: unwrap(arg) for key, arg in kwargs.items()}
    if type(value) is str:
        budget.operations -= len(value) >> 8  # whatever else the filter charges for it
    try:
        answer = found.function(budget, value, *args, **kwargs) if kwargs else found.function(budget, value, *args)
    except (TypeError, ValueError, LookupError, OverflowError, ArithmeticError) as problem:
        raise TemplateError(f'filter "{name}": {call_problem(problem)}') from None
    if answer is not value:
        if type(answer) is list or type(answer) is dict:
            budget.weigh(answer)
        else:
            budget.charge_width(answer)
    return answer


def elements_of(budget: EvaluationBudget, value: Any) -> list[Any]:
    """Return the elements of a list, the keys of a mapping or the characters of a text."""
    if isinstance(value, (list, tuple, range, Mapping, str)):
        budget.charge(1 + (len(value) >> 2))
        return list(value)
    raise TemplateError(f"expected a list, not {kind_of(value)}")


def text_of(budget: EvaluationBudget, value: Any) -> str:
    """Return a value as text and charge for it."""
    text = to_text(budget, value)
    budget.charge(1 + (len(text) >> 6))
    return text


def charged(budget: EvaluationBudget, text: str) -> str:
    """Charge a new text and return it."""
    budget.charge_text(len(text))
    return text
