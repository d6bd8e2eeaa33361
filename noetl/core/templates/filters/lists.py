"""Filters over lists and mappings: choosing, changing, sorting, grouping, joining.

Results are lists: `map` and `select` return no generators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from noetl.core.model.merge import deep_merge
from noetl.core.templates.budget import MAX_DEPTH, EvaluationBudget, limit_exceeded
from noetl.core.templates.filters.registry import apply, elements_of, template_filter
from noetl.core.templates.functions import FUNCTIONS, join_texts, mapping_of, recase
from noetl.core.templates.lookup import Group, Missing, Undefined, kind_of, lookup, unwrap
from noetl.core.templates.operators import add, to_text
from noetl.errors import TemplateError


def _getter(
    budget: EvaluationBudget, attribute: Any, default: Any = None, *, lower: bool = False
) -> Callable[[Any], Any]:
    """Reads `a.b.0` from an element; text in lower case unless case matters."""
    keys: list[Any] = []
    label = None
    if attribute is not None:
        label = to_text(budget, attribute)
        budget.charge(len(label) >> 3)
        keys = (
            [attribute]
            if isinstance(attribute, int)
            else [int(part) if part.isdigit() and len(part) < 10 else part for part in label.split(".")]
        )

    def get(element: Any) -> Any:
        budget.charge(1 + len(keys))
        for key in keys:
            element = lookup(element, key)
        if isinstance(element, Undefined):
            if default is not None:
                return default
            if element.path is None:
                element.path = label
            return element
        return recase(budget, element, str.lower) if lower and isinstance(element, str) else element

    return get


def _compared(budget: EvaluationBudget, elements: Any) -> None:
    """Charge the comparisons of a sort, of which each element takes part in at most log2(n)."""
    budget.charge(budget.whole_weight(elements) * len(elements).bit_length() >> 4)


@template_filter("how many elements, keys or characters", "length", "count")
def _length(budget: EvaluationBudget, value: Any) -> int:
    try:
        return len(value)
    except TypeError:
        raise TemplateError(f"{kind_of(value)} has no length") from None


@template_filter("the first element")
def _first(budget: EvaluationBudget, value: Any) -> Any:
    for element in elements_of(budget, value):
        return element
    return Undefined("the list is empty, so it has no first element")


@template_filter("the last element")
def _last(budget: EvaluationBudget, value: Any) -> Any:
    elements = elements_of(budget, value)
    return elements[-1] if elements else Undefined("the list is empty, so it has no last element")


@template_filter("a random element, recorded like `random()`", "random")
def _random(budget: EvaluationBudget, value: Any) -> Any:
    elements = elements_of(budget, value)
    if not elements:
        return Undefined("the list is empty, so it has no random element")
    drawn = FUNCTIONS["random"][0].function(budget)
    return elements[min(int(drawn * len(elements)), len(elements) - 1)]


@template_filter("the elements as text, joined: `join(', ')`, `join(', ', attribute='name')`")
def _join(budget: EvaluationBudget, value: Any, separator: str = "", attribute: Any = None) -> str:
    elements: Iterable[Any] = elements_of(budget, value)
    if attribute is not None:
        get = _getter(budget, attribute)
        elements = [get(element) for element in elements]
    return join_texts(budget, to_text(budget, separator), elements)


@template_filter("in reverse order; text too")
def _reverse(budget: EvaluationBudget, value: Any) -> Any:
    if isinstance(value, str):
        budget.charge(1 + (len(value) >> 6))
        budget.charge_text(len(value))
        return value[::-1]
    return elements_of(budget, value)[::-1]


@template_filter("sorted: `sort(reverse=false, case_sensitive=false, attribute='a,b')`")
def _sort(
    budget: EvaluationBudget, value: Any, reverse: bool = False, case_sensitive: bool = False, attribute: Any = None
) -> list[Any]:
    elements = elements_of(budget, value)
    _compared(budget, elements)
    parts = str(attribute).split(",") if isinstance(attribute, str) else [attribute]
    getters = [_getter(budget, part, lower=not case_sensitive) for part in parts]
    if len(getters) == 1:
        return sorted(elements, key=getters[0], reverse=reverse)
    return sorted(elements, key=lambda element: [get(element) for get in getters], reverse=reverse)


@template_filter(
    "the pairs of a mapping, sorted: `dictsort(case_sensitive=false, by='key', reverse=false)`", plain=False
)
def _dictsort(
    budget: EvaluationBudget, value: Any, case_sensitive: bool = False, by: str = "key", reverse: bool = False
) -> list[Any]:
    if by not in ("key", "value"):
        raise TemplateError('dictsort: by is "key" or "value"')
    at = 0 if by == "key" else 1
    _compared(budget, value)
    get = _getter(budget, None, lower=not case_sensitive)
    return sorted(_pairs(budget, value), key=lambda pair: get(pair[at]), reverse=reverse)


def _pairs(budget: EvaluationBudget, value: Any) -> list[tuple[Any, Any]]:
    if not isinstance(value, Mapping):
        raise TemplateError(f"expected a mapping, not {kind_of(value)}")
    budget.charge(1 + (len(value) >> 2))
    return list(value.items())


@template_filter("the pairs of a mapping", raw=True, plain=False)
def _items(budget: EvaluationBudget, value: Any) -> list[Any]:
    return [] if isinstance(value, Missing) else list(_pairs(budget, unwrap(value)))


@template_filter("a mapping as a list of `{key, value}`; `dict2items(key_name, value_name)`")
def _dict2items(budget: EvaluationBudget, value: Any, key_name: str = "key", value_name: str = "value") -> list[Any]:
    pairs = _pairs(budget, value)
    budget.charge(len(pairs))
    return [{key_name: key, value_name: each_value} for key, each_value in pairs]


@template_filter("a mapping from a list of `{key, value}`; `items2dict(key_name, value_name)`", plain=False)
def _items2dict(
    budget: EvaluationBudget, value: Any, key_name: str = "key", value_name: str = "value"
) -> dict[Any, Any]:
    elements = elements_of(budget, value)
    return mapping_of(budget, ((lookup(each, key_name), unwrap(lookup(each, value_name))) for each in elements))


@template_filter("without repetitions, in order; `unique(case_sensitive=false, attribute='id')`")
def _unique(budget: EvaluationBudget, value: Any, case_sensitive: bool = False, attribute: Any = None) -> list[Any]:
    get = _getter(budget, attribute, lower=not case_sensitive)
    seen: set[Any] = set()
    kept = []
    for element in elements_of(budget, value):
        mark = _mark(budget, unwrap(get(element)))
        if mark not in seen:
            seen.add(mark)
            kept.append(element)
    return kept


def _mark(budget: EvaluationBudget, value: Any) -> Any:
    """Return a hashable form of data that is equal for equal data.

    Only the hash value of text cannot be chosen by an author: many numbers or lists of numbers that are searched at the
    same places would make each lookup as slow as a search. So numbers, lists and mappings are marked by a text."""
    return (_written(budget, value, 0),) if isinstance(value, (int, float, list, tuple, Mapping)) else value


def _written(budget: EvaluationBudget, value: Any, depth: int) -> str:
    """Write data so that equal data gives equal text; `1`, `1.0` and `true` are equal."""
    if isinstance(value, str):
        budget.charge_text(len(value))
        return f"{len(value)}:{value}"
    if isinstance(value, (list, tuple, Mapping)):
        if depth > MAX_DEPTH:
            limit_exceeded(f"data nested more than {MAX_DEPTH} levels deep")
        budget.charge(1 + len(value))
        if isinstance(value, Mapping):
            pairs = [f"{_written(budget, key, 0)}={_written(budget, value[key], depth + 1)}" for key in value]
            made = "{" + ",".join(sorted(pairs)) + "}"
        else:
            made = "[" + ",".join([_written(budget, each, depth + 1) for each in value]) + "]"
        budget.charge_text(len(made))
        return made
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int):
        budget.charge_number(value)
        return f"i{int(value):x}"
    return repr(value)


@template_filter("the smallest element; `min(case_sensitive=false, attribute='n')`", "min")
def _min(budget: EvaluationBudget, value: Any, case_sensitive: bool = False, attribute: Any = None) -> Any:
    elements = elements_of(budget, value)
    if not elements:
        return Undefined("the list is empty, so it has no smallest element")
    _compared(budget, elements)
    return min(elements, key=_getter(budget, attribute, lower=not case_sensitive))


@template_filter("the largest element; `max(case_sensitive=false, attribute='n')`", "max")
def _max(budget: EvaluationBudget, value: Any, case_sensitive: bool = False, attribute: Any = None) -> Any:
    elements = elements_of(budget, value)
    if not elements:
        return Undefined("the list is empty, so it has no largest element")
    _compared(budget, elements)
    return max(elements, key=_getter(budget, attribute, lower=not case_sensitive))


@template_filter("all elements added up: `sum(attribute='n', start=0)`", "sum")
def _sum(budget: EvaluationBudget, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    get = _getter(budget, attribute)
    total = start
    for element in elements_of(budget, value):
        total = add(budget, total, get(element))
    return total


@template_filter("lists with that many elements each: `batch(3, fill)`")
def _batch(budget: EvaluationBudget, value: Any, linecount: int, fill_with: Any = None) -> list[Any]:
    if linecount < 1:
        raise TemplateError("batch: at least 1 element in each")
    elements = elements_of(budget, value)
    budget.charge(len(elements) // linecount)
    rows = [elements[at : at + linecount] for at in range(0, len(elements), linecount)]
    if fill_with is not None and rows:
        budget.charge_items(linecount)
        rows[-1] += [fill_with] * (linecount - len(rows[-1]))
    return rows


@template_filter("that many lists with the elements distributed over them: `slice(3, fill)`", "slice")
def _slice(budget: EvaluationBudget, value: Any, slices: int, fill_with: Any = None) -> list[Any]:
    if slices < 1:
        raise TemplateError("slice: at least 1 list")
    elements = elements_of(budget, value)
    budget.charge_items(slices)
    budget.charge(slices >> 1)
    per_slice, more = divmod(len(elements), slices)
    made, at = [], 0
    for number in range(slices):
        size = per_slice + (1 if number < more else 0)
        part = elements[at : at + size]
        at += size
        if fill_with is not None and number >= more and more:
            part.append(fill_with)
        made.append(part)
    return made


@template_filter(
    "`groupby('city')`: a list of `(value, elements)`, sorted; `groupby(attribute, default, case_sensitive)`",
    plain=False,
)
def _groupby(
    budget: EvaluationBudget, value: Any, attribute: Any, default: Any = None, case_sensitive: bool = False
) -> list[Any]:
    get = _getter(budget, attribute, default)
    fold = _getter(budget, None, lower=not case_sensitive)
    elements = elements_of(budget, value)
    _compared(budget, elements)
    budget.charge_walk(elements)
    groups: list[list[Any]] = []
    before: Any = None
    for element in sorted(elements, key=lambda element: fold(get(element))):
        mark = fold(get(element))
        if not groups or mark != before:
            groups.append([get(element), []])
            before = mark
        groups[-1][1].append(element)
    return [Group(key, budget.weigh(group)) for key, group in groups]


@template_filter("each element changed: `map('upper')`, `map(attribute='name', default='')`", "map", plain=False)
def _map(budget: EvaluationBudget, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
    elements = elements_of(budget, value)
    budget.charge(len(elements))
    if not args and "attribute" in kwargs:
        get = _getter(budget, kwargs.pop("attribute"), kwargs.pop("default", None))
        if kwargs:
            raise TemplateError(f'map: "{next(iter(kwargs))}" is not one of its options')
        return [get(element) for element in elements]
    if not args:
        raise TemplateError("map needs the name of a filter, or attribute=...")
    name, *rest = args
    return [apply(budget, name, element, rest, kwargs) for element in elements]


def _chosen(
    budget: EvaluationBudget, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, keep: bool, by: bool
) -> list[Any]:
    from noetl.core.templates.predicates import check

    elements = elements_of(budget, value)
    budget.charge(len(elements))
    rest = args
    get: Callable[[Any], Any] = lambda element: element  # noqa: E731
    if by:
        if not rest:
            raise TemplateError("expected the name of a field")
        get, rest = _getter(budget, rest[0]), rest[1:]
    if not rest:
        return [
            element for element in elements if bool(None if isinstance(got := get(element), Undefined) else got) is keep
        ]
    name, *more = rest
    return [element for element in elements if check(budget, name, get(element), more, kwargs) is keep]


@template_filter("the elements that pass a test: `select('odd')`; without one, the true elements")
def _select(budget: EvaluationBudget, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
    return _chosen(budget, value, args, kwargs, keep=True, by=False)


@template_filter("the elements that do not pass a test")
def _reject(budget: EvaluationBudget, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
    return _chosen(budget, value, args, kwargs, keep=False, by=False)


@template_filter("the elements with a field that passes a test: `selectattr('age', 'gt', 17)`")
def _selectattr(budget: EvaluationBudget, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
    return _chosen(budget, value, args, kwargs, keep=True, by=True)


@template_filter("the elements with a field that does not pass a test")
def _rejectattr(budget: EvaluationBudget, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
    return _chosen(budget, value, args, kwargs, keep=False, by=True)


@template_filter("one field of a value: `x | attr('name')` is `x.name`", raw=True)
def _attr(budget: EvaluationBudget, value: Any, name: Any) -> Any:
    return lookup(value, unwrap(name))


@template_filter("that field of every element: `pluck('id')` is `map(attribute='id')`")
def _pluck(budget: EvaluationBudget, value: Any, attribute: Any, default: Any = None) -> list[Any]:
    return [unwrap(element) for element in _map(budget, value, attribute=attribute, default=default)]


@template_filter("nested lists as one list; `flatten(1)` flattens one level only")
def _flatten(budget: EvaluationBudget, value: Any, levels: int | None = None) -> list[Any]:
    made: list[Any] = []

    def walk(elements: Iterable[Any], depth: int) -> None:
        for element in elements:
            budget.charge(1)
            if isinstance(element, (list, tuple)) and (levels is None or depth < levels):
                walk(element, depth + 1)
            else:
                made.append(element)

    walk(elements_of(budget, value), 0)
    return made


@template_filter("lists side by side: `a | zip(b)` is `[[a0, b0], ...]`", "zip")
def _zip(budget: EvaluationBudget, value: Any, *others: Any) -> list[Any]:
    lists = [elements_of(budget, value), *(elements_of(budget, other) for other in others)]
    budget.charge(sum(map(len, lists)) >> 2)
    return [list(row) for row in zip(*lists, strict=False)]


@template_filter("merged mappings, the last one wins: `a | combine(b, recursive=true)`", "combine", "merge")
def _combine(budget: EvaluationBudget, value: Any, *others: Any, recursive: bool = False) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for layer in (value, *others):
        if not isinstance(layer, Mapping):
            raise TemplateError(f"combine: expected mappings, not {kind_of(layer)}")
        budget.charge(1 + (len(merged) + len(layer) >> 2))
        if recursive:  # every mapping on both sides may be copied
            budget.charge(budget.whole_weight(merged) + budget.whole_weight(layer) >> 2)
        merged = deep_merge(merged, layer) if recursive else {**merged, **layer}
        budget.charge_keys(merged)
    return merged


def _marks(budget: EvaluationBudget, value: Any) -> set[Any]:
    return {_mark(budget, element) for element in elements_of(budget, value)}


@template_filter("the elements that are in both lists")
def _intersect(budget: EvaluationBudget, value: Any, other: Any) -> list[Any]:
    marks = _marks(budget, other)
    return [element for element in _unique(budget, value, True) if _mark(budget, element) in marks]


@template_filter("the elements that are not in the other list")
def _difference(budget: EvaluationBudget, value: Any, other: Any) -> list[Any]:
    marks = _marks(budget, other)
    return [element for element in _unique(budget, value, True) if _mark(budget, element) not in marks]


@template_filter("the elements of both lists, each once")
def _union(budget: EvaluationBudget, value: Any, other: Any) -> list[Any]:
    return list(_unique(budget, add(budget, elements_of(budget, value), elements_of(budget, other)), True))
