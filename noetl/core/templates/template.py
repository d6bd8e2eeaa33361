"""Templates: compile a value once, evaluate it against names many times.

Any string of a playbook may be a template. One that is exactly one `{{ ... }}` (white space around
it does not count) yields the value with its type; anything else yields text. Keys of mappings
are never templates. What comes out is plain JSON data: lists, mappings, text, numbers,
booleans, none.

Evaluation has no side effects; time and random values come from the `NondeterminismSource`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes

from noetl.core.templates.budget import MAX_TEXT, EvaluationBudget, Meter, NeedsBudget, NondeterminismSource
from noetl.core.templates.closures import Builder, Closure, NotSimple, text_of
from noetl.core.templates.free_names import dotted_names, free_names
from noetl.core.templates.lookup import Undefined, UndefinedUse, View, key_text, lookup
from noetl.core.templates.operators import describe_exception
from noetl.core.templates.sandbox import MAX_CACHED, SANDBOX, bounded, parse, parsed
from noetl.core.templates.views import plain
from noetl.errors import TemplateError

__all__ = ["Compiled", "compile_value", "evaluate", "holds", "is_template"]

_KEEP = "_value_of_the_whole_"
CACHED_TEMPLATES = 16_384
MAX_MESSAGE = 10_000  # characters of the message of an error


# Exceptions that a template can cause; all others are defects of this package and are not converted.
_AUTHORS_MISTAKES = (
    TemplateError,
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


class Compiled:
    """A compiled value; `static` if it contains no template."""

    __slots__ = ()
    static: bool = True
    names: tuple[str, ...] = ()

    def evaluate(
        self,
        names: Mapping[str, Any],
        nondeterminism: NondeterminismSource | None = None,
        *,
        max_text: int = MAX_TEXT,
        meter: Meter | None = None,
    ) -> Any:
        """Return the value as plain data.

        `max_text` limits every text that is created, `meter` what several evaluations cost together."""
        raise AssertionError("abstract")

    def holds(
        self,
        names: Mapping[str, Any],
        nondeterminism: NondeterminismSource | None = None,
        meter: Meter | None = None,
    ) -> bool:
        """Whether it is true as a guard."""
        return _holds(self.evaluate(names, nondeterminism, meter=meter))


class _Static(Compiled):
    """Data without templates."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def evaluate(
        self,
        names: Mapping[str, Any],
        nondeterminism: NondeterminismSource | None = None,
        *,
        max_text: int = MAX_TEXT,
        meter: Meter | None = None,
    ) -> Any:
        return self.value


class _Text(Compiled):
    """One template: `_plain` returns its value as plain data, `_raw` the value for a guard."""

    __slots__ = ("_names", "_needs_budget", "_plain", "_raw", "text")
    static = False

    def __init__(self, text: str, raw: Closure, plain: Closure, *, needs_budget: bool) -> None:
        self.text = text
        self._raw = raw
        self._plain = plain
        self._needs_budget = needs_budget
        self._names: tuple[str, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The dotted names it reads."""
        if self._names is None:
            self._names = dotted_names(self.text)
        return self._names

    def evaluate(
        self,
        names: Mapping[str, Any],
        nondeterminism: NondeterminismSource | None = None,
        *,
        max_text: int = MAX_TEXT,
        meter: Meter | None = None,
    ) -> Any:
        budget = EvaluationBudget(nondeterminism, max_text, meter) if self._needs_budget else None
        try:
            value = self._plain(names, budget)
            if meter is not None:
                meter.charge_result(value)
            return value
        except NeedsBudget:
            self._needs_budget = True
            return self.evaluate(names, nondeterminism, max_text=max_text, meter=meter)
        except _AUTHORS_MISTAKES as problem:
            raise self._in_words(problem, names) from None
        finally:
            if meter is not None and budget is not None:
                meter.spend(budget)

    def holds(
        self,
        names: Mapping[str, Any],
        nondeterminism: NondeterminismSource | None = None,
        meter: Meter | None = None,
    ) -> bool:
        budget = EvaluationBudget(nondeterminism, meter=meter) if self._needs_budget else None
        try:
            value = self._raw(names, budget)
            if value is True or value is False:
                return value
            return _holds(value.value() if isinstance(value, View) else value)
        except NeedsBudget:
            self._needs_budget = True
            return self.holds(names, nondeterminism, meter)
        except _AUTHORS_MISTAKES as problem:
            raise self._in_words(problem, names) from None
        finally:
            if meter is not None and budget is not None:
                meter.spend(budget)

    def _in_words(self, problem: Exception, names: Mapping[str, Any]) -> Exception:
        """Convert the problem to a TemplateError with the text of the template."""
        if isinstance(problem, UndefinedUse) and problem.undefined.path is None:
            path = _path_of(problem.undefined, self.text, names)
            if path is not None:
                problem = problem.named(path)
        if isinstance(problem, TemplateError):
            problem.text = problem.text or self.text
            if len(problem.message) > MAX_MESSAGE:  # names and values of the data; a part could be a part of a secret
                problem.message = f"the error has a message of {len(problem.message):,} characters, in {self._shown()}"
                problem.args = (problem.message,)
            return problem
        if isinstance(problem, (RecursionError, MemoryError)):
            return TemplateError(describe_exception(problem), text=self.text, kind="limit")
        return TemplateError(f"{describe_exception(problem)}, in {self._shown()}", text=self.text)

    def _shown(self) -> str:
        """The text of the template for a message."""
        shown = " ".join(self.text.split())
        return shown if len(shown) <= 120 else shown[:117] + "..."


def _path_of(undefined: Undefined, text: str, names: Mapping[str, Any]) -> str | None:
    """Return the dotted name of an undefined value (Jinja's code gives the last part only)."""
    for use in free_names(text):
        value: Any = names.get(use.path[0])
        for depth, key in enumerate(use.path[1:], start=2):
            if isinstance(value, Undefined):
                break
            if value is undefined.container and key == key_text(undefined.key):
                return ".".join(use.path[:depth])
            value = lookup(value, int(key) if key.isdigit() and not isinstance(value, Mapping) else key)
    return None


class _List(Compiled):
    """A list with templates in it."""

    __slots__ = ("_items", "names")
    static = False

    def __init__(self, items: list[Compiled]) -> None:
        self._items = items
        self.names = _joined(items)

    def evaluate(
        self,
        names: Mapping[str, Any],
        nondeterminism: NondeterminismSource | None = None,
        *,
        max_text: int = MAX_TEXT,
        meter: Meter | None = None,
    ) -> Any:
        made = []
        for index, item in enumerate(self._items):
            try:
                made.append(item.evaluate(names, nondeterminism, max_text=max_text, meter=meter))
            except TemplateError as problem:
                problem.path = f"{index}/{problem.path}" if problem.path else str(index)
                raise
        return made


class _Mapping(Compiled):
    """A mapping with templates in its values."""

    __slots__ = ("_items", "names")
    static = False

    def __init__(self, items: dict[str, Compiled]) -> None:
        self._items = items
        self.names = _joined(list(items.values()))

    def evaluate(
        self,
        names: Mapping[str, Any],
        nondeterminism: NondeterminismSource | None = None,
        *,
        max_text: int = MAX_TEXT,
        meter: Meter | None = None,
    ) -> Any:
        made = {}
        for key, item in self._items.items():
            try:
                made[key] = item.evaluate(names, nondeterminism, max_text=max_text, meter=meter)
            except TemplateError as problem:
                problem.path = f"{key}/{problem.path}" if problem.path else key
                raise
        return made


def _joined(items: list[Compiled]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for item in items for name in item.names))


# ── compiling ───────────────────────────────────────────────────────────────────────────


def is_template(text: str) -> bool:
    """Whether a string is a template; `${#array[@]}` of a shell is not."""
    if "{" not in text:
        return False
    if "{{" in text or "{%" in text:
        return True
    start = text.find("{#")
    return start >= 0 and text.find("#}", start + 2) >= 0


def compile_value(value: Any) -> Compiled:
    """Compile any value of a playbook; raise TemplateError if a template is invalid."""
    if isinstance(value, str):
        return _compile_text(value) if is_template(value) else _Static(value)
    if isinstance(value, Compiled):
        return value
    if isinstance(value, Mapping):
        fields: dict[str, Compiled] = {}
        for key, each in value.items():
            try:
                fields[key] = compile_value(each)
            except TemplateError as problem:
                problem.path = f"{key}/{problem.path}" if problem.path else str(key)
                raise
        return _Static(value) if all(each.static for each in fields.values()) else _Mapping(fields)
    if isinstance(value, (list, tuple)):
        items: list[Compiled] = []
        for index, each in enumerate(value):
            try:
                items.append(compile_value(each))
            except TemplateError as problem:
                problem.path = f"{index}/{problem.path}" if problem.path else str(index)
                raise
        return _Static(value) if all(item.static for item in items) else _List(items)
    return _Static(value)


def _compile_text(text: str) -> Compiled:
    return _compile_cached(text) if len(text) <= MAX_CACHED else _compile(text)


@lru_cache(maxsize=CACHED_TEMPLATES)
def _compile_cached(text: str) -> Compiled:
    return _compile(text)


def _compile(text: str) -> Compiled:
    tree = parsed(text)
    whole = whole_expression(tree)
    builder = Builder()
    try:
        if whole is not None:
            return _Text(text, builder.build(whole), builder.build_plain(whole), needs_budget=builder.needs_budget)
        closure = _text_closure(builder, tree)
    except NotSimple:
        closure = jinja_closure(text, whole=whole is not None)
        return _Text(text, closure, lambda names, budget: plain(closure(names, budget), budget), needs_budget=True)
    except RecursionError:
        raise TemplateError("the template is nested too deeply", text=text, kind="limit") from None
    return _Text(text, closure, closure, needs_budget=builder.needs_budget)


def whole_expression(tree: nodes.Template) -> nodes.Expr | None:
    """Return the expression of a template that is exactly one `{{ ... }}`, apart from white space around it."""
    if len(tree.body) != 1 or not isinstance(tree.body[0], nodes.Output):
        return None
    parts = [part for part in tree.body[0].nodes if not isinstance(part, nodes.TemplateData) or not part.data.isspace()]
    return parts[0] if len(parts) == 1 and not isinstance(parts[0], nodes.TemplateData) else None


def _text_closure(builder: Builder, tree: nodes.Template) -> Closure:
    if not tree.body:
        return lambda names, budget: ""
    if len(tree.body) != 1 or not isinstance(tree.body[0], nodes.Output):
        raise NotSimple("statements")
    return text_of(builder, tree.body[0])


def jinja_closure(text: str, *, whole: bool) -> Closure:
    """Return the closure that runs Jinja's compiled code; the value of a `whole` template is its expression's."""
    tree = parse(text)  # a separate tree, because it is changed below
    expression = whole_expression(tree) if whole else None
    if expression is not None:
        keep = nodes.ExprStmt(lineno=1)
        keep.node = nodes.Call(nodes.Name(_KEEP, "load", lineno=1), [expression], [], None, None, lineno=1)
        tree = nodes.Template([keep], lineno=1)
    try:
        code = SANDBOX.compile(bounded(tree))
        template = SANDBOX.template_class.from_code(SANDBOX, code, dict(SANDBOX.globals))
    except (RecursionError, MemoryError, SyntaxError):  # the last: too many blocks for Python's compiler
        raise TemplateError("the template is nested too deeply", text=text, kind="limit") from None

    def render(names: Mapping[str, Any], budget: EvaluationBudget) -> Any:
        context: Any = template.new_context({}, shared=False)
        context.budget = budget
        context.names = names
        if expression is not None:
            return _kept(template, context)
        pieces: list[str] = []
        length = 0
        for piece in template.root_render_func(context):
            pieces.append(piece)
            length += len(piece)
            if length > budget.max_text:
                budget.charge_text(length)
        return "".join(pieces)

    return render


def _kept(template: Any, context: Any) -> Any:
    from noetl.core.templates.functions import Function

    held: list[Any] = []
    context.vars[_KEEP] = Function("value", lambda budget, value: held.append(value))
    for _ in template.root_render_func(context):
        pass
    return held[0]


# ── evaluating ──────────────────────────────────────────────────────────────────────────


def evaluate(value: Any, names: Mapping[str, Any], nondeterminism: NondeterminismSource | None = None) -> Any:
    """Compile and evaluate a value."""
    return compile_value(value).evaluate(names, nondeterminism)


def holds(
    value: Any,
    names: Mapping[str, Any],
    nondeterminism: NondeterminismSource | None = None,
    meter: Meter | None = None,
) -> bool:
    """Evaluate a guard: text is false if it is empty or `false` (in any case), other values as in Python."""
    if isinstance(value, str):
        return compile_value(value).holds(names, nondeterminism, meter)
    if isinstance(value, Compiled):
        return value.holds(names, nondeterminism, meter)
    return bool(value)


def _holds(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() not in ("", "false")
    return bool(value)
