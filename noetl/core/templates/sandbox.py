"""Jinja's environment with item-first lookup, the filters and tests of this language, and limits.

It parses all templates, and it evaluates those that have statements (`{% for %}`, `{% set %}`); plain
expressions are evaluated by `closures`, which uses the same operations.

Positions. Jinja's parser stores line numbers only. Here the "line number" of every token is its offset in the
source, so each node and each syntax error has a column.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import isfinite
from typing import Any, NoReturn

from jinja2 import Environment, nodes, pass_context
from jinja2.exceptions import TemplateSyntaxError
from jinja2.lexer import Lexer, Token, TokenStream
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace, missing
from jinja2.visitor import NodeTransformer, NodeVisitor

from noetl.core.model.text_matching import close_match
from noetl.core.templates import operators as operations
from noetl.core.templates.budget import (
    MAX_BITS,
    MAX_NESTING,
    MAX_NODES,
    MAX_TEMPLATE,
    MAX_TOKENS,
    EvaluationBudget,
    limit_exceeded,
)
from noetl.core.templates.filters import FILTERS, apply
from noetl.core.templates.filters.regular_expressions import check_pattern
from noetl.core.templates.functions import FUNCTIONS, METHODS, Function, call_problem, invoke
from noetl.core.templates.lookup import Undefined, lookup
from noetl.core.templates.predicates import TESTS, check
from noetl.errors import TemplateError

# Filters that take the name of a filter or test as text, and its position among the arguments.
BY_NAME = {
    "map": ("filter", 0),
    **dict.fromkeys(("select", "reject"), ("test", 0)),
    **dict.fromkeys(("selectattr", "rejectattr"), ("test", 1)),
}
# Filters with arguments that are checked besides their number.
CHECKED = BY_NAME.keys() | {name for name in FILTERS if name.startswith("regex_")}
MAX_CACHED = 64 * 1024  # characters of a template that caches hold
_RUNTIME_CALLABLES = (LoopContext, Macro, Joiner)
_RUNTIME_METHODS = frozenset(("cycle", "changed", "next", "reset"))  # of `loop`, cycler and joiner
_RUNTIME_CLASSES = (Namespace, Cycler, Joiner)
_FORBIDDEN: dict[type[nodes.Node], str] = {
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "import",
    nodes.Extends: "extends",
    nodes.Block: "block",
    nodes.ScopedEvalContextModifier: "autoescape",
}


class SyntaxProblem(TemplateError):
    """A template with invalid syntax; line and column start at 1 in its text."""

    def __init__(self, message: str, text: str, line: int, column: int) -> None:
        super().__init__(f"{message} (line {line}, column {column} of the template)", text=text)
        self.plain_message = message
        self.line = line
        self.column = column


class BudgetContext(Context):
    """Jinja's context over any mapping of names, with the budget of the evaluation."""

    budget: EvaluationBudget
    names: Mapping[str, Any]

    def resolve_or_missing(self, key: str) -> Any:
        """A name: set by the template, given to it, or a function of the language."""
        if key in self.vars:
            return self.vars[key]
        return name_of(self.names, key, self.parent)


def name_of(names: Mapping[str, Any], key: str, functions: Mapping[str, Any]) -> Any:
    """Return the value of a bare name, or an Undefined."""
    try:
        return names[key]
    except KeyError:
        found = functions.get(key, missing)
        return undefined_name(names, key) if found is missing else found


def undefined_name(names: Mapping[str, Any], key: str) -> Undefined:
    """Return the Undefined for a name that does not exist."""
    if key == "env":
        return Undefined(
            '"env" is not defined here: the process environment is not readable from templates; '
            "declare a keychain entry of `kind: env` and read `keychain.<name>`",
            name=key,
        )
    return Undefined(name=key, path=key, container=names)


_EXPRESSION = r"(?P<variable_begin>\{\{"
_NOT_GO = _EXPRESSION + r"(?!-?\s*\.[A-Za-z_])"
_COMMENT = r"(?P<comment_begin>\{\#"
_NOT_LENGTH = r"(?P<comment_begin>(?<!\$)\{\#"


def _lexer(environment: Environment) -> Lexer:
    """Jinja's lexer, for which `{{.Name}}` is text: no expression starts with a dot, but templates of Go programs do
    (`docker ps --format '{{.ID}}'`). The length of a shell's variable (`${#name}`) is text too, and no comment."""
    lexer = Lexer(environment)
    rule, *others = lexer.rules["root"]
    pattern = rule.pattern.pattern.replace(_EXPRESSION, _NOT_GO).replace(_COMMENT, _NOT_LENGTH)
    lexer.rules["root"] = [rule._replace(pattern=re.compile(pattern, rule.pattern.flags)), *others]
    for name, rules in lexer.rules.items():
        lexer.rules[name] = [_possessive(each) if each.tokens in ("float", "integer") else each for each in rules]
    return lexer


def _possessive(rule: Any) -> Any:
    """A rule for numbers that keeps no positions to return to, which are 270 bytes for each digit."""
    pattern = rule.pattern.pattern.replace(r"(\d+_)*\d+", r"\d++(?:_\d++)*+")
    pattern = re.sub(r"\((_\?[^()]+)\)([+*])", r"(?:\1)\2+", pattern)
    return rule._replace(pattern=re.compile(pattern, rule.pattern.flags))


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment; one for the whole process, without state of an evaluation."""

    context_class = BudgetContext
    intercepted_binops = frozenset(operations.BINARY)
    intercepted_unops = frozenset("+-")

    def __init__(self) -> None:
        super().__init__(
            undefined=Undefined,
            keep_trailing_newline=True,
            autoescape=False,
            optimized=False,
            finalize=_finalize,
            cache_size=0,
        )
        self._lexer = _lexer(self)
        self.filters = {name: _jinja_filter(name) for name in FILTERS} | _INTERNAL
        self.tests = {name: _jinja_test(name) for name in TESTS}
        self.globals = {name: function for name, (function, _) in FUNCTIONS.items()} | {
            "namespace": Namespace,
            "cycler": Cycler,
            "joiner": Joiner,
        }

    @property
    def lexer(self) -> Lexer:
        """The lexer of this environment."""
        return self._lexer

    def getitem(self, obj: Any, argument: Any) -> Any:
        """`obj[argument]`."""
        return lookup(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute`: the same as an item."""
        return lookup(obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply a binary operator with limits."""
        budget: EvaluationBudget = context.budget  # type: ignore[attr-defined]
        budget.operations -= 1
        if budget.operations < 0:
            budget.charge(0)
        return operations.BINARY[operator](budget, left, right)

    def call_unop(self, context: Context, operator: str, arg: Any) -> Any:
        """Apply a sign."""
        context.budget.charge()  # type: ignore[attr-defined]
        return operations.negate(arg) if operator == "-" else operations.positive(arg)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a `Function` or one of Jinja's helpers; nothing else is callable."""
        budget: EvaluationBudget = __context.budget  # type: ignore[attr-defined]
        if isinstance(__obj, Function):
            kwargs.pop("_loop_vars", None)  # Jinja's own, for functions that take its context
            kwargs.pop("_block_vars", None)
            return invoke(budget, __obj, args, kwargs)
        budget.charge(5 + len(args) + len(kwargs))
        if isinstance(__obj, LoopContext):
            return __context.call(__obj, operations.each(budget, *args))
        if isinstance(__obj, _RUNTIME_CALLABLES) or __obj in _RUNTIME_CLASSES or _is_runtime_method(__obj):
            budget.charge_walk(*args)  # `loop.changed(x)` compares it
            if __obj is Namespace and args:
                args = (invoke(budget, FUNCTIONS["dict"][0], args, {}),)
            elif __obj is Cycler and not args:
                raise TemplateError("cycler() expects the values that it returns")
            made = __context.call(__obj, *args, **kwargs)
            if isinstance(made, str):  # the text of a macro
                budget.charge_text(len(made))
                budget.charge_width(made)
            return made
        return invoke(budget, __obj, args, kwargs)

    def _tokenize(
        self, source: str, name: str | None, filename: str | None = None, state: str | None = None
    ) -> TokenStream:
        """Return the token stream, each token with its offset in place of its line."""
        return TokenStream(_with_offsets(self, source), name, filename)


def _is_runtime_method(obj: Any) -> bool:
    """`loop.cycle(...)`, `loop.changed(...)`, a cycler's `next()`: lookup returns no other methods."""
    return isinstance(getattr(obj, "__self__", None), (LoopContext, Cycler))


def _with_offsets(environment: Sandbox, source: str) -> Iterator[Token]:
    raw = environment.lexer.tokeniter(source, None)

    def placed() -> Iterator[tuple[int, str, str]]:
        at = 0
        for number, (_, token, value) in enumerate(raw):
            if number > MAX_TOKENS:
                limit_exceeded(f"a template with more than {MAX_TOKENS:,} tokens")
            found = source.find(value, at)
            if found >= 0:
                at = found
            yield at + 1, token, value
            at += len(value) if found >= 0 else 0

    return environment.lexer.wrap(placed(), None)


@pass_context
def _finalize(context: Context, value: Any) -> str:
    return operations.write(context.budget, value)  # type: ignore[attr-defined]


def _jinja_filter(name: str) -> Any:
    @pass_context
    def call(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        return apply(context.budget, name, value, args, kwargs)

    return call


def _jinja_test(name: str) -> Any:
    @pass_context
    def call(context: Any, value: Any, *args: Any, **kwargs: Any) -> bool:
        return check(context.budget, name, value, args, kwargs)

    return call


# Replacements for constructs that Jinja compiles to plain Python; `_Bounded` inserts them.


@pass_context
def _each(context: Any, value: Any, cost: int, text: int) -> Any:
    return operations.each(context.budget, value, cost, text)


@pass_context
def _entered(context: Any, cost: int, text: int) -> None:
    context.budget.charge(cost)
    context.budget.charge_text(text)


@pass_context
def _concat(context: Any, *parts: Any) -> str:
    return operations.concat(context.budget, parts)


@pass_context
def _slice_of(context: Any, value: Any, start: Any, stop: Any, step: Any) -> Any:
    return operations.slice_of(context.budget, value, start, stop, step)


@pass_context
def _compare(context: Any, value: Any, *rest: Any) -> bool:
    context.budget.charge(len(rest))
    return operations.compare_all(context.budget, value, list(zip(rest[::2], rest[1::2], strict=True)))


@pass_context
def _made(context: Any, value: Any) -> Any:
    if isinstance(value, dict):
        for key in value:
            operations.key_of(key)
    return operations.literal(context.budget, value)


_INTERNAL: dict[str, Any] = {
    "<each>": _each,
    "<entered>": _entered,
    "<concat>": _concat,
    "<slice>": _slice_of,
    "<compare>": _compare,
    "<made>": _made,
}


def _through(name: str, node: nodes.Node, value: nodes.Expr, args: list[nodes.Expr]) -> nodes.Filter:
    return nodes.Filter(value, name, args, [], None, None, lineno=node.lineno)


def _cost(node: nodes.For | nodes.Macro | nodes.CallBlock) -> tuple[nodes.Const, nodes.Const]:
    """What one pass through a body costs, whatever it calls: operations for its nodes, and its own text."""
    entered = [*node.body, node.test] if isinstance(node, nodes.For) and node.test is not None else node.body
    inside = [each for part in entered for each in (part, *part.find_all(nodes.Node))]
    calls = sum(isinstance(each, _CALLS) for each in inside)
    text = sum(len(each.data) for each in inside if isinstance(each, nodes.TemplateData))
    return _constant(node, 2 + calls + (len(inside) >> 3)), _constant(node, text)


_CALLS = (nodes.Getattr, nodes.Getitem, nodes.Filter, nodes.Test, nodes.Call)


class _Bounded(NodeTransformer):
    """Replaces loops, literals, comparisons, `~` and slices by functions that charge the budget."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        cost = _cost(node)
        self.generic_visit(node)
        if node.recursive:  # `loop(...)` enters the body without its iterator
            return _charged(node, cost)
        node.iter = _through("<each>", node, node.iter, list(cost))  # type: ignore[arg-type]
        return node

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock) -> nodes.Node:  # noqa: N802
        cost = _cost(node)
        self.generic_visit(node)
        return _charged(node, cost)

    visit_CallBlock = visit_Macro  # noqa: N815

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        first, *rest = node.nodes
        return _through("<concat>", node, first, rest)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = [part or _constant(node, None) for part in (node.arg.start, node.arg.stop, node.arg.step)]
        return _through("<slice>", node, node.node, bounds)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        rest: list[nodes.Expr] = []
        for operand in node.ops:
            rest += (_constant(node, operand.op), operand.expr)
        return _through("<compare>", node, node.expr, rest)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("<made>", node, node, [])

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("<made>", node, node, [])

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if node.ctx == "store" else _through("<made>", node, node, [])

    def visit_CondExpr(self, node: nodes.CondExpr) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if node.expr2 is None:
            node.expr2 = _constant(node, "")
        return node


def _charged(node: nodes.For | nodes.Macro | nodes.CallBlock, cost: tuple[nodes.Const, nodes.Const]) -> nodes.Node:
    """A body that is charged whenever it is entered."""
    charge = nodes.ExprStmt(lineno=node.lineno)
    charge.node = _through("<entered>", node, cost[0], [cost[1]])
    node.body.insert(0, charge)
    return node


def _constant(node: nodes.Node, value: Any) -> nodes.Const:
    return nodes.Const(value, lineno=node.lineno)


@lru_cache(maxsize=512)
def _filter_signature(name: str) -> inspect.Signature | None:
    return _signature_of(FILTERS[name].function, 1)


@lru_cache(maxsize=512)
def takes_arguments(name: str, count: int) -> bool:
    """Whether a filter can be called with this number of arguments."""
    known = _filter_signature(name)
    try:
        return known is None or known.bind(*[None] * (1 + count)) is not None
    except TypeError:
        return False


@lru_cache(maxsize=512)
def _test_signature(name: str) -> inspect.Signature | None:
    return _signature_of(TESTS[name].function, int(TESTS[name].budgeted))


def _signature_of(function: Any, skipped: int) -> inspect.Signature | None:
    """The signature without the budget; None: it is not known."""
    try:
        known = inspect.signature(function)
    except ValueError:
        return None
    return known.replace(parameters=list(known.parameters.values())[skipped:])


class _Check(NodeVisitor):
    """Finds statements, filters and tests that do not exist, before anything is evaluated."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._seen = 0
        self._depth = 0

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(node, nodes.Stmt):
            return self._look(node)
        self._depth += 1
        if self._depth > MAX_NESTING:
            limit_exceeded(f"statements nested more than {MAX_NESTING} levels deep")
        answer = self._look(node)
        self._depth -= 1
        return answer

    def _look(self, node: nodes.Node) -> Any:
        self._seen += 1
        if self._seen > MAX_NODES:
            limit_exceeded(f"a template with more than {MAX_NODES:,} nodes")
        word = _FORBIDDEN.get(type(node))
        if word:
            raise problem_at(self._text, node.lineno, f"{{% {word} %}} is not part of this template language")
        if isinstance(node, nodes.Const):
            self._check_literal(node)
        if isinstance(node, (nodes.Filter, nodes.Test)):
            what = "filter" if isinstance(node, nodes.Filter) else "test"
            self._check_application(what, node.name, node.lineno, node.args, node)
        if isinstance(node, nodes.Filter) and node.name in BY_NAME:
            self._check_named(node)
        if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
            name = node.node.attr
            if name not in METHODS and name not in _RUNTIME_METHODS:
                self._unknown("method", name, node.lineno, list(METHODS))
        return self.generic_visit(node)

    def _check_named(self, node: nodes.Filter) -> None:
        """The filter or test that is given as text: `map('upper')`, `selectattr('age', 'gt', 17)`."""
        what, position = BY_NAME[node.name]
        if len(node.args) > position:
            named = node.args[position]
            if isinstance(named, nodes.Const) and isinstance(named.value, str):
                self._check_application(what, named.value, named.lineno, node.args[position + 1 :], node)
        elif not node.dyn_args and not node.dyn_kwargs and node.name != "select" and node.name != "reject":
            self._check_first(node, position)

    def _check_first(self, node: nodes.Filter, position: int) -> None:
        """The argument without which a filter does nothing."""
        options = {str(each.key) for each in node.kwargs}
        if position and not node.args:
            raise problem_at(self._text, node.lineno, f'filter "{node.name}": missing the name of a field')
        if not position and "attribute" not in options:
            raise problem_at(self._text, node.lineno, 'filter "map": missing the name of a filter, or attribute=...')

    def _check_application(
        self, what: str, name: str, lineno: int, args: list[nodes.Expr], node: nodes.Filter | nodes.Test
    ) -> None:
        known = FILTERS if what == "filter" else TESTS
        if name not in known:
            self._unknown(what, name, lineno, list(known))
        if node.dyn_args is None and node.dyn_kwargs is None:
            self._check_arguments(what, name, lineno, args, {str(each.key) for each in node.kwargs})

    def _check_literal(self, node: nodes.Const) -> None:
        """Literals that no JSON document can hold."""
        if isinstance(node.value, str) and not node.value.isascii():
            try:
                operations.whole_text(node.value)
            except TemplateError as problem:
                raise problem_at(self._text, node.lineno, problem.message) from None
        elif isinstance(node.value, float) and not isfinite(node.value):
            raise problem_at(self._text, node.lineno, "the number is too large")
        elif isinstance(node.value, int) and node.value.bit_length() > MAX_BITS:
            raise problem_at(self._text, node.lineno, f"the number has more than {MAX_BITS:,} bits")

    def _check_arguments(self, what: str, name: str, lineno: int, args: list[nodes.Expr], given: set[str]) -> None:
        """Filters and tests with arguments that they do not take, or without one that they require."""
        known = _test_signature(name) if what == "test" else _filter_signature(name)
        if known is None:
            return
        try:
            missing_arguments = [
                f"'{each.name}'"
                for each in list(known.parameters.values())[1 + len(args) :]
                if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD and each.name not in given
            ]
            if missing_arguments and given <= known.parameters.keys():
                raise TypeError(f"missing argument {' and '.join(missing_arguments)}")
            bound = known.bind(None, *args, **dict.fromkeys(given)).arguments
            pattern = bound.get("pattern")
            if isinstance(pattern, nodes.Const):
                check_pattern(pattern.value)
        except TemplateError as problem:
            if problem.kind == "template":  # a limit is reported by the evaluation
                raise problem_at(self._text, lineno, problem.message) from None
        except TypeError as problem:
            offset = self._text.find(name, max(lineno - 1, 0))
            message = f'{what} "{name}": {call_problem(problem)}'
            raise problem_at(self._text, offset + 1 if offset >= 0 else lineno, message) from None

    def _unknown(self, what: str, name: str, lineno: int, known: list[str]) -> NoReturn:
        close = close_match(name, known)
        hint = f'; did you mean "{close}"?' if close else ""
        offset = self._text.find(name, max(lineno - 1, 0))
        raise problem_at(self._text, offset + 1 if offset >= 0 else lineno, f'there is no {what} "{name}"{hint}')


SANDBOX: Sandbox = Sandbox()

_MISSING_END = re.compile(r"unexpected char .* at (\d+)")


def parsed(text: str) -> nodes.Template:
    """Return the cached tree of a template, which must not be changed."""
    return _cached(text) if len(text) <= MAX_CACHED else parse(text)


@lru_cache(maxsize=512)
def _cached(text: str) -> nodes.Template:
    return parse(text)


def parse(text: str) -> nodes.Template:
    """Parse and check a template; raise a `SyntaxProblem` or a limit error if it is invalid."""
    tree = parse_unchecked(text)
    try:
        _Check(normal(text)).visit(tree)
    except RecursionError:
        raise TemplateError("the template is nested too deeply", text=text, kind="limit") from None
    return tree


def parse_unchecked(text: str) -> nodes.Template:
    """Parse a template; its filters, tests and statements may be unknown."""
    if len(text) > MAX_TEMPLATE:
        limit_exceeded(f"a template of {len(text):,} characters (at most {MAX_TEMPLATE:,})")
    source = normal(text)
    try:
        return Parser(SANDBOX, source).parse()
    except TemplateSyntaxError as problem:
        raise _syntax_problem(source, problem) from None
    except RecursionError:
        raise TemplateError("the template is nested too deeply", text=text, kind="limit") from None
    except ValueError:  # Python reads no number of more than 4,300 digits
        raise TemplateError(
            f"a number of the template has more than {MAX_BITS:,} bits", text=text, kind="limit"
        ) from None


def normal(text: str) -> str:
    """Return the text to which positions refer: lines end in one newline character."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def bounded(tree: nodes.Template) -> nodes.Template:
    """Return the tree with limits inserted, for Jinja's compiler."""
    changed = _Bounded().visit(tree)
    assert isinstance(changed, nodes.Template)
    changed.set_environment(SANDBOX)
    return changed


def place(text: str, lineno: int) -> tuple[int, int]:
    """Return the line and column (from 1) of a node."""
    before = text[: max(lineno - 1, 0)]
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def problem_at(text: str, lineno: int, message: str) -> SyntaxProblem:
    """Return a syntax problem at a node."""
    line, column = place(text, lineno)
    return SyntaxProblem(message, text, line, column)


def _syntax_problem(text: str, problem: TemplateSyntaxError) -> SyntaxProblem:
    message = (problem.message or "it cannot be read").rstrip(".")
    from_lexer = _MISSING_END.search(message)
    if from_lexer:
        message = message[: message.rindex(" at ")]
        return problem_at(text, int(from_lexer[1]) + 1, _in_words(message))
    return problem_at(text, problem.lineno, _in_words(message))


def _in_words(message: str) -> str:
    message = message[:1].lower() + message[1:]
    return f"the template cannot be read: {message}"
