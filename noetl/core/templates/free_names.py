"""Static analysis of a template: the names it reads, the functions it calls, its first syntax error.

Names have a position and a flag that says whether a `default` or an `is defined` guards them; calls have their
constant arguments (`done('fetch')`). Nothing is evaluated.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from jinja2 import nodes

from noetl.core.templates.filters import FILTERS
from noetl.core.templates.functions import FUNCTIONS
from noetl.core.templates.predicates import TESTS
from noetl.core.templates.sandbox import SyntaxProblem, normal, parse_unchecked, parsed, place
from noetl.errors import TemplateError

__all__ = ["CallUse", "NameUse", "calls", "dotted_names", "filters", "free_names", "functions", "syntax_error", "tests"]

RUNTIME_NAMES = frozenset(["namespace", "cycler", "joiner"])


class NameUse(NamedTuple):
    """A read of a name: its path, whether a missing value is handled, and its position (from 1)."""

    path: tuple[str, ...]
    guarded: bool
    line: int
    column: int


class CallUse(NamedTuple):
    """A call of a function; `args` has the constant arguments, and None for the others."""

    name: str
    args: tuple[Any, ...]
    line: int
    column: int


def free_names(text: str) -> tuple[NameUse, ...]:
    """Return the names that a template reads from outside, in order; none if it cannot be parsed."""
    return _uses(text)[0]


def calls(text: str) -> tuple[CallUse, ...]:
    """Return the functions that a template calls by their bare name."""
    return _uses(text)[1]


def dotted_names(text: str) -> tuple[str, ...]:
    """Return the free names as dotted text, each once."""
    return tuple(dict.fromkeys(".".join(use.path) for use in free_names(text)))


def syntax_error(text: str) -> tuple[str, int, int] | None:
    """Return the first error of a template (unknown filters and tests included): message, line, column."""
    from noetl.core.templates.template import compile_value

    try:
        compile_value(text)
    except SyntaxProblem as problem:
        return problem.plain_message, problem.line, problem.column
    except TemplateError as problem:
        return problem.message, 1, 1
    return None


def filters() -> dict[str, str]:
    """Every filter and its one line of documentation."""
    return {name: FILTERS[name].doc for name in sorted(FILTERS)}


def tests() -> dict[str, str]:
    """Every test and its one line of documentation."""
    return {name: TESTS[name].doc for name in sorted(TESTS)}


def functions() -> dict[str, str]:
    """Every function that is always available and its one line of documentation."""
    return {name: FUNCTIONS[name][1] for name in sorted(FUNCTIONS)}


@lru_cache(maxsize=4096)
def _uses(text: str) -> tuple[tuple[NameUse, ...], tuple[CallUse, ...]]:
    from noetl.core.templates.template import is_template

    if not is_template(text):
        return (), ()
    try:
        tree = _tree(text)
        reader = _Reader(normal(text))
        reader.block(tree.body, set(), frozenset())
    except (TemplateError, RecursionError):
        return (), ()
    return tuple(reader.names), tuple(reader.calls)


def _tree(text: str) -> nodes.Template:
    try:
        return parsed(text)
    except SyntaxProblem:
        return parse_unchecked(text)  # a template with an unknown filter or test reads names all the same


_Guards = frozenset[tuple[str, ...]]


class _Reader:
    """Visits a tree with Jinja's scopes: `for`, macros and `with` open one, `if` does not."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.names: list[NameUse] = []
        self.calls: list[CallUse] = []

    # ── statements ──────────────────────────────────────────────────────────────────────

    def block(self, body: list[nodes.Node], local: set[str], guards: _Guards) -> None:
        """Statements one after the other; `set` is seen by what follows it."""
        for node in body:
            self.statement(node, local, guards)

    def statement(self, node: nodes.Node, local: set[str], guards: _Guards) -> None:
        """One statement."""
        if isinstance(node, nodes.Output):
            for part in node.nodes:
                self.expression(part, local, guards)
        elif isinstance(node, nodes.For):
            self._for(node, local, guards)
        elif isinstance(node, nodes.If):
            self._if(node, local, guards)
        elif isinstance(node, nodes.Assign):
            self.expression(node.node, local, guards)
            local |= _targets(node.target)
        elif isinstance(node, nodes.AssignBlock):
            if node.filter is not None:
                self.expression(node.filter, local, guards)
            self.block(node.body, set(local), guards)
            local |= _targets(node.target)
        elif isinstance(node, nodes.With):
            inner = set(local)
            for target, value in zip(node.targets, node.values, strict=True):
                self.expression(value, local, guards)
                inner |= _targets(target)
            self.block(node.body, inner, guards)
        elif isinstance(node, nodes.Macro):
            local.add(node.name)
            self._macro(node, local, guards)
        elif isinstance(node, nodes.CallBlock):
            self.expression(node.call, local, guards)
            self._macro(node, local, guards)
        elif isinstance(node, nodes.FilterBlock):
            self.expression(node.filter, local, guards)
            self.block(node.body, set(local), guards)
        else:
            for child in node.iter_child_nodes():
                self.statement(child, local, guards)

    def _for(self, node: nodes.For, local: set[str], guards: _Guards) -> None:
        self.expression(node.iter, local, guards)
        inner = local | _targets(node.target) | {"loop"}
        if node.test is not None:
            self.expression(node.test, inner, guards)
        self.block(node.body, set(inner), guards)
        self.block(node.else_, set(local), guards)

    def _if(self, node: nodes.If, local: set[str], guards: _Guards) -> None:
        self.expression(node.test, local, guards)
        self.block(node.body, local, guards | _proved(node.test))
        for other in node.elif_:
            self.statement(other, local, guards)
        self.block(node.else_, local, guards | _proved_by_failing(node.test))

    def _macro(self, node: nodes.Macro | nodes.CallBlock, local: set[str], guards: _Guards) -> None:
        for default in node.defaults:
            self.expression(default, local, guards)
        inner = local | {"caller", "varargs", "kwargs"}
        for argument in node.args:
            inner |= _targets(argument)
        self.block(node.body, inner, guards)

    # ── expressions ─────────────────────────────────────────────────────────────────────

    def expression(self, node: nodes.Node, local: set[str], guards: _Guards, guarded: bool = False) -> None:
        """One expression; `guarded` if an undefined value is handled."""
        if isinstance(node, (nodes.Name, nodes.Getattr, nodes.Getitem)):
            self._path(node, local, guards, guarded)
        elif isinstance(node, nodes.Filter):
            if node.node is not None:
                self.expression(node.node, local, guards, node.name in ("default", "d"))
            self._rest(node, local, guards)
        elif isinstance(node, nodes.Test):
            self.expression(node.node, local, guards, node.name in ("defined", "undefined"))
            self._rest(node, local, guards)
        elif isinstance(node, nodes.And):
            self.expression(node.left, local, guards, guarded)
            self.expression(node.right, local, guards | _proved(node.left), guarded)
        elif isinstance(node, nodes.Or):
            self.expression(node.left, local, guards, guarded)
            self.expression(node.right, local, guards | _proved_by_failing(node.left), guarded)
        elif isinstance(node, nodes.CondExpr):
            self.expression(node.test, local, guards)
            self.expression(node.expr1, local, guards | _proved(node.test), guarded)
            if node.expr2 is not None:
                self.expression(node.expr2, local, guards | _proved_by_failing(node.test), guarded)
        elif isinstance(node, nodes.Call):
            self._call(node, local, guards)
        else:
            for child in node.iter_child_nodes():
                self.expression(child, local, guards)

    def _rest(self, node: nodes.Filter | nodes.Test | nodes.Call, local: set[str], guards: _Guards) -> None:
        for argument in node.args:
            self.expression(argument, local, guards)
        for keyword in node.kwargs:
            self.expression(keyword.value, local, guards)
        for dynamic in (node.dyn_args, node.dyn_kwargs):
            if dynamic is not None:
                self.expression(dynamic, local, guards)

    def _call(self, node: nodes.Call, local: set[str], guards: _Guards) -> None:
        callee = node.node
        if isinstance(callee, nodes.Name):
            if callee.name not in local:
                line, column = place(self._text, callee.lineno)
                args = tuple(_constant(argument) for argument in node.args)
                self.calls.append(CallUse(callee.name, args, line, column))
        elif isinstance(callee, nodes.Getattr):
            self.expression(callee.node, local, guards)  # the last part is a method
        else:
            self.expression(callee, local, guards)
        self._rest(node, local, guards)

    def _path(self, node: nodes.Node, local: set[str], guards: _Guards, guarded: bool) -> None:
        keys: list[str] = []
        while True:
            if isinstance(node, nodes.Getattr):
                keys.append(node.attr)
                node = node.node
            elif isinstance(node, nodes.Getitem):
                if isinstance(node.arg, nodes.Const):
                    keys.append(str(node.arg.value))
                else:
                    self.expression(node.arg, local, guards)
                    keys.clear()  # the path after a computed key is not known
                node = node.node
            else:
                break
        if not isinstance(node, nodes.Name):
            self.expression(node, local, guards)
            return
        if node.name in local or node.name in FUNCTIONS or node.name in RUNTIME_NAMES:
            return
        path = (node.name, *reversed(keys))
        safe = guarded or any(path[: len(proved)] == proved for proved in guards)
        self.names.append(NameUse(path, safe, *place(self._text, node.lineno)))


def _targets(node: nodes.Node) -> set[str]:
    """Return the names that an assignment defines; `ns.x` defines none."""
    return {name.name for name in _names_in(node)}


def _names_in(node: nodes.Node) -> list[nodes.Name]:
    return [node] if isinstance(node, nodes.Name) else list(node.find_all(nodes.Name))


def _constant(node: nodes.Node) -> Any:
    if isinstance(node, nodes.Const):
        return node.value
    if isinstance(node, (nodes.List, nodes.Tuple)):
        return tuple(_constant(item) for item in node.items)
    return None


def _chain(node: nodes.Node) -> tuple[str, ...] | None:
    from noetl.core.templates.closures import dotted

    path = dotted(node)
    return None if path is None else tuple(path.split("."))


def _proved(test: nodes.Node) -> _Guards:
    """Return the paths that exist if a condition is true."""
    if isinstance(test, nodes.And):
        return _proved(test.left) | _proved(test.right)
    if isinstance(test, nodes.Not):
        return _proved_by_failing(test.node)
    if isinstance(test, nodes.Test) and test.name == "defined":
        path = _chain(test.node)
        return frozenset() if path is None else frozenset([path])
    if isinstance(test, (nodes.Name, nodes.Getattr, nodes.Getitem)):
        path = _chain(test)
        return frozenset() if path is None else frozenset([path])
    return frozenset()


def _proved_by_failing(test: nodes.Node) -> _Guards:
    """Return the paths that exist if a condition is false."""
    if isinstance(test, nodes.Or):
        return _proved_by_failing(test.left) | _proved_by_failing(test.right)
    if isinstance(test, nodes.Not):
        return _proved(test.node)
    if isinstance(test, nodes.Test) and test.name == "undefined":
        path = _chain(test.node)
        return frozenset() if path is None else frozenset([path])
    return frozenset()
