"""Expressions as Python closures: the common case without Jinja's machinery.

Each node of Jinja's tree becomes a function of `(names, run)`. The operations are the ones the
sandbox gives to Jinja's compiled code, so both ways answer the same; a property test holds them
together. What is not an expression (`{% for %}`, macros) is `None` here and goes through Jinja.

`run` is None when nothing in the expression can grow or be counted (`needs_run` False): a path, a
comparison and a boolean operator cost no more than the text of the template allows.
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
# These live in Jinja's runtime and make sense with statements only.
_JINJA_ONLY = frozenset(["namespace", "cycler", "joiner", "self", "super", "caller", "loop", "varargs", "kwargs"])


class NotSimple(Exception):
    """The tree has a node that only Jinja's compiled code evaluates."""


class Builder:
    """Builds the closure of one template and notes whether it needs a run."""

    def __init__(self) -> None:
        self.needs_run = False
        self.makes_data = False  # the answer may hold tuples, views or undefined inside

    def build(self, node: nodes.Node) -> Closure:
        """The closure of an expression."""
        make = _MAKERS.get(type(node))
        if make is None:
            raise NotSimple(type(node).__name__)
        return make(self, node)

    def build_plain(self, node: nodes.Node) -> Closure:
        """The closure of an expression whose answer is wanted as plain data.

        Data that came in plain is passed on as it is; only what the template itself made is converted.
        """
        if isinstance(node, nodes.List):
            items = [self.build_plain(item) for item in node.items]
            return lambda names, run: [item(names, run) for item in items]
        if isinstance(node, nodes.Dict) and all(
            isinstance(pair.key, nodes.Const) and isinstance(pair.key.value, str) for pair in node.items
        ):
            pairs = [(_constant_key(pair.key), self.build_plain(pair.value)) for pair in node.items]
            return lambda names, run: {key: value(names, run) for key, value in pairs}
        self.makes_data = False
        closure = self.build(node)
        if self.makes_data:
            self.needs_run = True
            return lambda names, run: plain(closure(names, run), run)

        def convert(names: Mapping[str, Any], run: Any) -> Any:
            value = closure(names, run)
            return value if type(value) in _PLAIN_TYPES else plain(value)

        return convert


def _constant_key(node: nodes.Node) -> str:
    assert isinstance(node, nodes.Const)
    return str(node.value)


def _const(builder: Builder, node: nodes.Const) -> Closure:
    value = node.value
    return lambda names, run: value


def _name(builder: Builder, node: nodes.Name) -> Closure:
    name = node.name
    known = _GLOBALS.get(name)

    def read(names: Mapping[str, Any], run: Any) -> Any:
        try:
            return names[name]
        except KeyError:
            return undefined_name(names, name) if known is None else known

    return read


def dotted(node: nodes.Node) -> str | None:
    """`ctx.a.b` of a chain of names and constant keys."""
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
    return lambda names, run: lookup(owner(names, run), key(names, run))


def _constant_field(builder: Builder, node: nodes.Getattr | nodes.Getitem, key: Any) -> Closure:
    path = dotted(node)
    if isinstance(node.node, nodes.Name) and isinstance(key, str) and node.node.name not in _GLOBALS:
        return _field_of_name(node.node.name, key, path)
    owner = builder.build(node.node)

    def read(names: Mapping[str, Any], run: Any) -> Any:
        obj = owner(names, run)
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

    def read(names: Mapping[str, Any], run: Any) -> Any:
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
    builder.needs_run = True
    value = builder.build(node.node)
    start, stop, step = (
        (lambda names, run: None) if part is None else builder.build(part)
        for part in (bounds.start, bounds.stop, bounds.step)
    )
    return lambda names, run: operations.slice_of(
        run, value(names, run), start(names, run), stop(names, run), step(names, run)
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
        return lambda names, run: function(run, left(names, run), right(names, run))
    chain = [(operand.op, builder.build(operand.expr)) for operand in node.ops]
    return lambda names, run: operations.compare_all(
        run, left(names, run), [(name, operand(names, run)) for name, operand in chain]
    )


def _equal(left: Closure, right: Closure) -> Closure:
    """`output.status == 'error'`, the most frequent guard."""

    def test(names: Mapping[str, Any], run: Any) -> Any:
        a, b = left(names, run), right(names, run)
        kind = type(a)
        if kind in _ATOMS or type(b) in _ATOMS or (kind is str and len(a) < _SHORT):
            return a == b
        return operations.equal(run, a, b)

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
    """`x in [200, 201]`, without making the list each time."""

    def test(names: Mapping[str, Any], run: Any) -> bool:
        value = left(names, run)
        if type(value) in _SCALARS:
            return (value in constants) is wanted
        return operations.contains(run, value, constants) is wanted

    return test


def _and(builder: Builder, node: nodes.And) -> Closure:
    left, right = builder.build(node.left), builder.build(node.right)
    return lambda names, run: left(names, run) and right(names, run)


def _or(builder: Builder, node: nodes.Or) -> Closure:
    left, right = builder.build(node.left), builder.build(node.right)
    return lambda names, run: left(names, run) or right(names, run)


def _not(builder: Builder, node: nodes.Not) -> Closure:
    value = builder.build(node.node)
    return lambda names, run: not value(names, run)


def _condition(builder: Builder, node: nodes.CondExpr) -> Closure:
    test, yes = builder.build(node.test), builder.build(node.expr1)
    no: Closure = (lambda names, run: "") if node.expr2 is None else builder.build(node.expr2)
    return lambda names, run: yes(names, run) if test(names, run) else no(names, run)


def _binary(builder: Builder, node: nodes.BinExpr) -> Closure:
    builder.needs_run = True
    left, right = builder.build(node.left), builder.build(node.right)
    function = operations.BINARY[node.operator]
    return lambda names, run: function(run, left(names, run), right(names, run))


def _negative(builder: Builder, node: nodes.Neg) -> Closure:
    value = builder.build(node.node)
    return lambda names, run: operations.negate(value(names, run))


def _positive(builder: Builder, node: nodes.Pos) -> Closure:
    value = builder.build(node.node)
    return lambda names, run: operations.positive(value(names, run))


def _concat(builder: Builder, node: nodes.Concat) -> Closure:
    builder.needs_run = True
    parts = [builder.build(part) for part in node.nodes]
    return lambda names, run: operations.concat(run, [part(names, run) for part in parts])


def _list(builder: Builder, node: nodes.List | nodes.Tuple) -> Closure:
    builder.makes_data = True
    items = [builder.build(item) for item in node.items]
    builder.needs_run = True
    if isinstance(node, nodes.Tuple):
        return lambda names, run: literal(run, tuple([item(names, run) for item in items]))
    return lambda names, run: literal(run, [item(names, run) for item in items])


def _mapping(builder: Builder, node: nodes.Dict) -> Closure:
    builder.makes_data = True
    pairs = [(builder.build(pair.key), builder.build(pair.value)) for pair in node.items]

    def make(names: Mapping[str, Any], run: Any) -> Any:
        return literal(run, {operations.key_of(key(names, run)): value(names, run) for key, value in pairs})

    builder.needs_run = True
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
    builder.needs_run = True
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
            return lambda names, run: apply_filter(run, name, found, value(names, run))

        def unchanged(names: Mapping[str, Any], run: Any) -> Any:
            got = value(names, run)
            return got if type(got) is types else apply_filter(run, name, found, got)

        return unchanged
    if not kwargs:
        return lambda names, run: apply_filter(run, name, found, value(names, run), [arg(names, run) for arg in args])
    return lambda names, run: apply_filter(
        run,
        name,
        found,
        value(names, run),
        [arg(names, run) for arg in args],
        {key: arg(names, run) for key, arg in kwargs.items()},
    )


# What a filter leaves as it is.
_SAME: dict[str, type] = {"int": int, "float": float, "string": str, "bool": bool}


def _default(value: Closure, args: list[Closure], kwargs: dict[str, Closure]) -> Closure | None:
    """`x | default(y)`; y is evaluated as well, so that an error in it does not hide."""
    if kwargs or len(args) != 1:
        return None
    (other,) = args

    def choose(names: Mapping[str, Any], run: Any) -> Any:
        found = value(names, run)
        instead = other(names, run)
        return instead if isinstance(found, Undefined) else found

    return choose


def _test(builder: Builder, node: nodes.Test) -> Closure:
    value = builder.build(node.node)
    args, kwargs = _arguments(builder, node)
    name = node.name
    if name == "defined" and not args and not kwargs:
        return lambda names, run: not isinstance(value(names, run), Undefined)
    if name == "undefined" and not args and not kwargs:
        return lambda names, run: isinstance(value(names, run), Undefined)
    builder.needs_run = True
    return lambda names, run: check(
        run,
        name,
        value(names, run),
        [arg(names, run) for arg in args],
        {key: arg(names, run) for key, arg in kwargs.items()},
    )


def _call(builder: Builder, node: nodes.Call) -> Closure:
    if isinstance(node.node, nodes.Name) and node.node.name in _JINJA_ONLY:
        raise NotSimple(node.node.name)
    builder.needs_run = builder.makes_data = True
    function = builder.build(node.node)
    args, kwargs = _arguments(builder, node)
    return lambda names, run: invoke(
        run,
        function(names, run),
        [arg(names, run) for arg in args],
        {key: arg(names, run) for key, arg in kwargs.items()},
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
    """The closure of text with expressions in it."""
    builder.needs_run = True
    parts: list[tuple[str, Closure | None]] = [
        (part.data, None) if isinstance(part, nodes.TemplateData) else ("", builder.build(part))
        for part in output.nodes
    ]

    def write(names: Mapping[str, Any], run: EvaluationBudget) -> str:
        pieces = [data if build is None else operations.write(run, build(names, run)) for data, build in parts]
        text = "".join(pieces)
        if len(text) > run.max_text:
            run.spend_text(len(text))
        return text

    return write
