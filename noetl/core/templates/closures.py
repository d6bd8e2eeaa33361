"""Compiles expressions to Python closures, the common case, without Jinja's runtime.

Each node of Jinja's tree becomes a function of `(names, budget)`. The operations are those that the sandbox gives to
Jinja's compiled code, so both give the same result; a property test compares them. A template that is not an
expression (`{% for %}`, macros) raises `NotSimple` and is evaluated by Jinja.

`budget` is None if the cost of an expression is bounded by its text (`needs_budget` is False): a path, a
comparison, a boolean operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import nodes

from noetl.core.templates import operators as operations
from noetl.core.templates.budget import EvaluationBudget
from noetl.core.templates.filters import FILTERS, apply_filter
from noetl.core.templates.functions import FUNCTIONS, invoke
from noetl.core.templates.lookup import Undefined, lookup, no_such_key
from noetl.core.templates.operators import literal
from noetl.core.templates.predicates import check
from noetl.core.templates.sandbox import undefined_name
from noetl.core.templates.views import plain

_NOTHING: Any = object()
_SCALARS = frozenset([str, int, float, bool, type(None)])
_PLAIN_TYPES = _SCALARS | {dict, list}
Closure = Callable[[Mapping[str, Any], Any], Any]

_GLOBALS: dict[str, Any] = {name: function for name, (function, _) in FUNCTIONS.items()}
# These belong to Jinja's runtime and are of use in statements only.
_JINJA_ONLY = frozenset(["namespace", "cycler", "joiner", "self", "super", "caller", "loop", "varargs", "kwargs"])


class NotSimple(Exception):
    """The tree has a node that only Jinja's compiled code can evaluate."""


class Builder:
    """Builds the closure of one template and records whether it needs a budget."""

    def __init__(self) -> None:
        self.needs_budget = False
        self.makes_data = False  # the result may contain tuples, views or undefined values

    def build(self, node: nodes.Node) -> Closure:
        """Build the closure of an expression."""
        make = _MAKERS.get(type(node))
        if make is None:
            raise NotSimple(type(node).__name__)
        return make(self, node)

    def build_plain(self, node: nodes.Node) -> Closure:
        """Build the closure of an expression that returns plain data.

        Plain data is passed on unchanged; only values that the template creates are converted.
        """
        if isinstance(node, nodes.List):
            items = [self.build_plain(item) for item in node.items]
            return lambda names, budget: [item(names, budget) for item in items]
        if isinstance(node, nodes.Dict) and all(
            isinstance(pair.key, nodes.Const) and isinstance(pair.key.value, str) for pair in node.items
        ):
            pairs = [(_constant_key(pair.key), self.build_plain(pair.value)) for pair in node.items]
            return lambda names, budget: {key: value(names, budget) for key, value in pairs}
        self.makes_data = False
        closure = self.build(node)
        if self.makes_data:
            self.needs_budget = True
            return lambda names, budget: plain(closure(names, budget), budget)

        def convert(names: Mapping[str, Any], budget: Any) -> Any:
            value = closure(names, budget)
            return value if type(value) in _PLAIN_TYPES else plain(value)

        return convert


def _constant_key(node: nodes.Node) -> str:
    assert isinstance(node, nodes.Const)
    return str(node.value)


def _const(builder: Builder, node: nodes.Const) -> Closure:
    value = node.value
    return lambda names, budget: value


def _name(builder: Builder, node: nodes.Name) -> Closure:
    name = node.name
    known = _GLOBALS.get(name)
    if name in ("ctx", "state", "args", "input"):  # a whole scope, in which stored values are views
        builder.makes_data = builder.needs_budget = True

    def read(names: Mapping[str, Any], budget: Any) -> Any:
        try:
            return names[name]
        except KeyError:
            return undefined_name(names, name) if known is None else known

    return read


def dotted(node: nodes.Node) -> str | None:
    """Return `ctx.a.b` for a chain of names and constant keys."""
    keys: list[str] = []
    while True:
        if isinstance(node, nodes.Getattr):
            keys.append(node.attr)
            node = node.node
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
            keys.append(str(node.arg.value))
            node = node.node
        elif isinstance(node, nodes.Name):
            keys.append(node.name)
            return ".".join(reversed(keys))
        else:
            return None


def _field(builder: Builder, node: nodes.Getattr | nodes.Getitem) -> Closure:
    if isinstance(node, nodes.Getattr):
        return _constant_field(builder, node, node.attr)
    if isinstance(node.arg, nodes.Slice):
        return _slice(builder, node, node.arg)
    if isinstance(node.arg, nodes.Const):
        return _constant_field(builder, node, node.arg.value)
    owner, key = builder.build(node.node), builder.build(node.arg)
    return lambda names, budget: lookup(owner(names, budget), key(names, budget))


def _constant_field(builder: Builder, node: nodes.Getattr | nodes.Getitem, key: Any) -> Closure:
    path = dotted(node)
    if key == "results":  # of a loop: a list of views
        builder.makes_data = builder.needs_budget = True
    if isinstance(node.node, nodes.Name) and isinstance(key, str) and node.node.name not in _GLOBALS:
        return _field_of_name(node.node.name, key, path)
    owner = builder.build(node.node)

    def read(names: Mapping[str, Any], budget: Any) -> Any:
        obj = owner(names, budget)
        if type(obj) is dict:
            found = obj.get(key, _NOTHING)
            if found is not _NOTHING:
                return found
            found = no_such_key(obj, key)
        else:
            found = lookup(obj, key)
        if found.__class__ is Undefined and found.path is None:
            found.path = path
        return found

    return read


def _field_of_name(name: str, key: str, path: str | None) -> Closure:
    """`ctx.total`, the most frequent expression of all, in one closure."""

    def read(names: Mapping[str, Any], budget: Any) -> Any:
        try:
            obj = names[name]
        except KeyError:
            return undefined_name(names, name)
        if type(obj) is dict:
            found = obj.get(key, _NOTHING)
            if found is not _NOTHING:
                return found
            found = no_such_key(obj, key)
        else:
            found = lookup(obj, key)
        if found.__class__ is Undefined and found.path is None:
            found.path = path
        return found

    return read


def _slice(builder: Builder, node: nodes.Getitem, bounds: nodes.Slice) -> Closure:
    builder.needs_budget = True
    value = builder.build(node.node)
    start, stop, step = (
        (lambda names, budget: None) if part is None else builder.build(part)
        for part in (bounds.start, bounds.stop, bounds.step)
    )
    return lambda names, budget: operations.slice_of(
        budget, value(names, budget), start(names, budget), stop(names, budget), step(names, budget)
    )


def _compare(builder: Builder, node: nodes.Compare) -> Closure:
    left = builder.build(node.expr)
    if len(node.ops) == 1:
        constants = _constants(node.ops[0].expr) if node.ops[0].op in ("in", "notin") else None
        if constants is not None:
            return _member(left, constants, wanted=node.ops[0].op == "in")
        right = builder.build(node.ops[0].expr)
        if node.ops[0].op == "eq":
            return _equal(left, right)
        function = operations.COMPARE[node.ops[0].op]
        return lambda names, budget: function(budget, left(names, budget), right(names, budget))
    chain = [(operand.op, builder.build(operand.expr)) for operand in node.ops]
    return lambda names, budget: operations.compare_all(
        budget, left(names, budget), [(name, operand(names, budget)) for name, operand in chain]
    )


def _equal(left: Closure, right: Closure) -> Closure:
    """`output.status == 'error'`, the most frequent guard."""

    def test(names: Mapping[str, Any], budget: Any) -> Any:
        a, b = left(names, budget), right(names, budget)
        kind = type(a)
        if kind in _ATOMS or type(b) in _ATOMS or (kind is str and len(a) < _SHORT):
            return a == b
        return operations.equal(budget, a, b)

    return test


_ATOMS = frozenset([int, float, bool, type(None)])
_SHORT = 4096


def _constants(node: nodes.Node) -> tuple[Any, ...] | None:
    """The elements of a list of constants."""
    if not isinstance(node, (nodes.List, nodes.Tuple)):
        return None
    values = [item.value for item in node.items if isinstance(item, nodes.Const)]
    return tuple(values) if len(values) == len(node.items) else None


def _member(left: Closure, constants: tuple[Any, ...], *, wanted: bool) -> Closure:
    """`x in [200, 201]`, without creating the list each time."""

    def test(names: Mapping[str, Any], budget: Any) -> bool:
        value = left(names, budget)
        if type(value) in _SCALARS:
            return (value in constants) is wanted
        return operations.contains(budget, value, constants) is wanted

    return test


def _and(builder: Builder, node: nodes.And) -> Closure:
    left, right = builder.build(node.left), builder.build(node.right)
    return lambda names, budget: left(names, budget) and right(names, budget)


def _or(builder: Builder, node: nodes.Or) -> Closure:
    left, right = builder.build(node.left), builder.build(node.right)
    return lambda names, budget: left(names, budget) or right(names, budget)


def _not(builder: Builder, node: nodes.Not) -> Closure:
    value = builder.build(node.node)
    return lambda names, budget: not value(names, budget)


def _condition(builder: Builder, node: nodes.CondExpr) -> Closure:
    test, yes = builder.build(node.test), builder.build(node.expr1)
    no: Closure = (lambda names, budget: "") if node.expr2 is None else builder.build(node.expr2)
    return lambda names, budget: yes(names, budget) if test(names, budget) else no(names, budget)


def _binary(builder: Builder, node: nodes.BinExpr) -> Closure:
    builder.needs_budget = True
    left, right = builder.build(node.left), builder.build(node.right)
    function = operations.BINARY[node.operator]
    return lambda names, budget: function(budget, left(names, budget), right(names, budget))


def _negative(builder: Builder, node: nodes.Neg) -> Closure:
    value = builder.build(node.node)
    return lambda names, budget: operations.negate(value(names, budget))


def _positive(builder: Builder, node: nodes.Pos) -> Closure:
    value = builder.build(node.node)
    return lambda names, budget: operations.positive(value(names, budget))


def _concat(builder: Builder, node: nodes.Concat) -> Closure:
    builder.needs_budget = True
    parts = [builder.build(part) for part in node.nodes]
    return lambda names, budget: operations.concat(budget, [part(names, budget) for part in parts])


def _list(builder: Builder, node: nodes.List | nodes.Tuple) -> Closure:
    builder.makes_data = True
    items = [builder.build(item) for item in node.items]
    builder.needs_budget = True
    if isinstance(node, nodes.Tuple):
        return lambda names, budget: literal(budget, tuple([item(names, budget) for item in items]))
    return lambda names, budget: literal(budget, [item(names, budget) for item in items])


def _mapping(builder: Builder, node: nodes.Dict) -> Closure:
    builder.makes_data = True
    pairs = [(builder.build(pair.key), builder.build(pair.value)) for pair in node.items]

    def make(names: Mapping[str, Any], budget: Any) -> Any:
        return literal(budget, {operations.key_of(key(names, budget)): value(names, budget) for key, value in pairs})

    builder.needs_budget = True
    return make


def _arguments(
    builder: Builder, node: nodes.Filter | nodes.Test | nodes.Call
) -> tuple[list[Closure], dict[str, Closure]]:
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        raise NotSimple("*args")
    return [builder.build(arg) for arg in node.args], {str(arg.key): builder.build(arg.value) for arg in node.kwargs}


def _filter(builder: Builder, node: nodes.Filter) -> Closure:
    if node.node is None:
        raise NotSimple("filter block")
    builder.needs_budget = True
    value = builder.build(node.node)
    args, kwargs = _arguments(builder, node)
    name = node.name
    found = FILTERS[name]
    builder.makes_data |= not found.plain
    if name in ("default", "d"):
        quick = _default(value, args, kwargs)
        if quick is not None:
            return quick
    if not args and not kwargs:
        types = _SAME.get(name)
        if types is None:
            return lambda names, budget: apply_filter(budget, name, found, value(names, budget))

        def unchanged(names: Mapping[str, Any], budget: Any) -> Any:
            got = value(names, budget)
            return got if type(got) is types else apply_filter(budget, name, found, got)

        return unchanged
    if not kwargs:
        return lambda names, budget: apply_filter(
            budget, name, found, value(names, budget), [arg(names, budget) for arg in args]
        )
    return lambda names, budget: apply_filter(
        budget,
        name,
        found,
        value(names, budget),
        [arg(names, budget) for arg in args],
        {key: arg(names, budget) for key, arg in kwargs.items()},
    )


# Filters that return such values unchanged.
_SAME: dict[str, type] = {"int": int, "float": float, "string": str, "bool": bool}


def _default(value: Closure, args: list[Closure], kwargs: dict[str, Closure]) -> Closure | None:
    """`x | default(y)`; y is always evaluated, so that an error in it is not hidden."""
    if kwargs or len(args) != 1:
        return None
    (other,) = args

    def choose(names: Mapping[str, Any], budget: Any) -> Any:
        found = value(names, budget)
        instead = other(names, budget)
        return instead if isinstance(found, Undefined) else found

    return choose


def _test(builder: Builder, node: nodes.Test) -> Closure:
    value = builder.build(node.node)
    args, kwargs = _arguments(builder, node)
    name = node.name
    if name == "defined" and not args and not kwargs:
        return lambda names, budget: not isinstance(value(names, budget), Undefined)
    if name == "undefined" and not args and not kwargs:
        return lambda names, budget: isinstance(value(names, budget), Undefined)
    builder.needs_budget = True
    return lambda names, budget: check(
        budget,
        name,
        value(names, budget),
        [arg(names, budget) for arg in args],
        {key: arg(names, budget) for key, arg in kwargs.items()},
    )


def _call(builder: Builder, node: nodes.Call) -> Closure:
    if isinstance(node.node, nodes.Name) and node.node.name in _JINJA_ONLY:
        raise NotSimple(node.node.name)
    builder.needs_budget = builder.makes_data = True
    function = builder.build(node.node)
    args, kwargs = _arguments(builder, node)
    return lambda names, budget: invoke(
        budget,
        function(names, budget),
        [arg(names, budget) for arg in args],
        {key: arg(names, budget) for key, arg in kwargs.items()},
    )


_MAKERS: dict[type[nodes.Node], Callable[[Builder, Any], Closure]] = {
    nodes.Const: _const,
    nodes.Name: _name,
    nodes.Getattr: _field,
    nodes.Getitem: _field,
    nodes.Compare: _compare,
    nodes.And: _and,
    nodes.Or: _or,
    nodes.Not: _not,
    nodes.CondExpr: _condition,
    nodes.Neg: _negative,
    nodes.Pos: _positive,
    nodes.Concat: _concat,
    nodes.List: _list,
    nodes.Tuple: _list,
    nodes.Dict: _mapping,
    nodes.Filter: _filter,
    nodes.Test: _test,
    nodes.Call: _call,
    **dict.fromkeys((nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow), _binary),
}


def text_of(builder: Builder, output: nodes.Output) -> Closure:
    """Build the closure of text with expressions in it."""
    builder.needs_budget = True
    parts: list[tuple[str, Closure | None]] = [
        (part.data, None) if isinstance(part, nodes.TemplateData) else ("", builder.build(part))
        for part in output.nodes
    ]

    def write(names: Mapping[str, Any], budget: EvaluationBudget) -> str:
        pieces = [data if build is None else operations.write(budget, build(names, budget)) for data, build in parts]
        text = "".join(pieces)
        if len(text) > budget.max_text:
            budget.charge_text(len(text))
        return text

    return write
