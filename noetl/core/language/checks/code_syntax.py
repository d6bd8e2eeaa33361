"""Python code that does not compile, or that reads a name or has a parameter of `main` without a value."""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.diagnostics import did_you_mean
from noetl.core.language.flow.visibility import OLDER_SCOPES, SCOPE_NAMES
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence
from noetl.core.language.syntax.tree import BodySyntax, StepSyntax, TaskSyntax

_MAX_LENGTH = 1_000_000
_GIVEN = frozenset({*SCOPE_NAMES, *OLDER_SCOPES, "context", "inputs", "input_data", "results", "steps", "self"})
_IN_CODE = frozenset(
    {*dir(builtins), "__file__", "__annotations__", "context", "ctx", "args", "input", "input_data", "json"}
)
# Code that mentions one of these may define names in ways that cannot be seen, or expects that one is missing.
_DYNAMIC = frozenset({"exec", "eval", "globals", "locals", "vars", "__builtins__", "NameError"})


def check(context: AnalysisContext) -> None:
    """Compile the code of every python task."""
    for body in context.document.bodies():
        for task in body.tasks():
            code = task.parameters.get("code") if task.kind == "python" else None
            node = code.value if code is not None else None
            if isinstance(node, Scalar) and isinstance(node.value, str) and _compiles(context, node):
                _check_names(context, body, task, node)


def _compiles(context: AnalysisContext, node: Scalar) -> bool:
    problem = syntax_problem(node.value)
    if problem is None:
        return True
    message, line, column = problem
    lines = node.value.split("\n")
    line = min(line, len(lines))
    while line > 1 and not lines[line - 1].strip():
        line -= 1  # at the end of the code: its last line
    offset = sum(len(each) + 1 for each in lines[: line - 1]) + min(column - 1, len(lines[line - 1]))
    hint = "code is not a template: pass values under `input`" if "{{" in node.value or "{%" in node.value else ""
    context.reader.findings.add_inside("code-syntax", node, offset, 1, f"the code does not compile: {message}", hint)
    return False


def _check_names(context: AnalysisContext, body: BodySyntax, task: TaskSyntax, code: Scalar) -> None:
    """Report names of the code without a value; the inputs of a block are those of its callers."""
    own = task.node.get("input") if isinstance(task.node, Mapping) else None
    args = task.parameters["args"].value if "args" in task.parameters else None
    if not isinstance(body, StepSyntax) or not isinstance(own, Mapping | None) or not isinstance(args, Mapping | None):
        return
    inputs = {*task.parameters, *(body.input.entries if body.input is not None else ()), *_texts(args)}
    steps = context.document.step_names()
    for name, line, column in main_parameters(code.value):
        if name not in inputs and name not in _GIVEN and name not in steps:
            hint = did_you_mean(name, inputs, f"add it: `input: {{{name}: ...}}`, or give the parameter a default")
            message = f"main() requires {name!r}, which is not in the input of the task"
            _report(context, "main-parameter", code, (name, line, column), message, hint)
    libraries = task.parameters["libs"].value if "libs" in task.parameters else None
    known = {*inputs, *_IN_CODE, *(word for text in _texts(libraries) for word in re.findall(r"\w+", text))}
    for name, line, column in undefined_names(code.value):
        if name not in known:
            hint = did_you_mean(name, inputs - {"code"}, f"define it, or pass it: `input: {{{name}: ...}}`")
            message = f"the code reads {name!r}, which nothing defines"
            _report(context, "undefined-name", code, (name, line, column), message, hint)


def _texts(node: Node | None) -> Iterator[str]:
    """The keys and texts of a value."""
    match node:
        case Mapping():
            for key, (_, value) in node.entries.items():
                yield str(key)
                yield from _texts(value)
        case Sequence():
            for item in node.items:
                yield from _texts(item)
        case Scalar():
            yield str(node.value)


def _report(
    context: AnalysisContext, kind: str, code: Scalar, place: tuple[str, int, int], message: str, hint: str
) -> None:
    name, line, column = place
    lines, starts = _lines(code.value)
    offset = starts[line - 1] + len(lines[line - 1].encode()[:column].decode())
    context.reader.findings.add_inside(kind, code, offset, len(name), message, hint)


@lru_cache(maxsize=4)
def _lines(code: str) -> tuple[list[str], list[int]]:
    """The lines of code, and where each starts."""
    lines = code.split("\n")
    return lines, [0, *accumulate(len(each) + 1 for each in lines)]


@lru_cache(maxsize=1024)
def undefined_names(code: str) -> tuple[tuple[str, int, int], ...]:
    """The names that the code reads and binds nowhere, each at its first place: name, line (from 1), column (from 0).

    Scopes are not told apart: a name that is bound anywhere in the code counts as defined."""
    if len(code) > _MAX_LENGTH or "{{" in code:  # templates in code are another finding
        return ()
    nodes = list(ast.walk(_parse(code)))
    read = [each for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)]
    bound = set(_bound_names(nodes))
    if "*" in bound or any(each.id in _DYNAMIC for each in read):
        return ()
    first: dict[str, tuple[str, int, int]] = {}
    for each in sorted(read, key=lambda name: (name.lineno, name.col_offset)):
        if each.id not in bound:
            first.setdefault(each.id, (each.id, each.lineno, each.col_offset))
    return tuple(first.values())


def _bound_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=alias):
                yield alias or name.partition(".")[0]
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                yield from names
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name
            case _ if type(node).__name__ in ("TypeVar", "ParamSpec", "TypeVarTuple"):  # since 3.12
                yield node.name  # type: ignore[attr-defined]


@lru_cache(maxsize=1024)
def main_parameters(code: str) -> tuple[tuple[str, int, int], ...]:
    """The parameters of the function `main` that have no default: name, line (from 1), column (from 0).

    Empty if another value than that of `main` is the output, or may be."""
    if len(code) > _MAX_LENGTH or "main" not in code:
        return ()
    tree = _parse(code)
    functions = [each for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = [each for each in functions if each.name == "main" and not each.decorator_list]
    others = [each for each in tree.body if each not in functions]
    named = {each.id for node in others for each in ast.walk(node) if isinstance(each, ast.Name)}
    if len(found) != 1 or named & {"main", "result"} or any(isinstance(each, ast.Return) for each in others):
        return ()
    arguments = found[0].args
    positional = [*arguments.posonlyargs, *arguments.args]
    required = positional[: len(positional) - len(arguments.defaults)]
    required += [name for name, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value is None]
    return tuple((each.arg, each.lineno, each.col_offset) for each in required)


@lru_cache(maxsize=1024)
def syntax_problem(code: str) -> tuple[str, int, int] | None:
    """The first error of Python code: message, line, column (from 1); top-level `return` and `await` are allowed."""
    if len(code) > _MAX_LENGTH:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                compile(code, "<code>", "exec", dont_inherit=True)
            except SyntaxError as problem:
                if "outside function" not in (problem.msg or ""):
                    raise
                _compile_as_body(code)
    except SyntaxError as problem:
        line, column = problem.lineno or 1, problem.offset or 1
        return problem.msg, line, max(1, column)
    except ValueError as problem:  # a null character
        return str(problem), 1, 1
    except (RecursionError, MemoryError):
        return "it is nested too deeply", 1, 1
    return None


def _parse(code: str) -> ast.Module:
    """The tree of code that compiles."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def _compile_as_body(code: str) -> None:
    """Compile code with top-level `return` or `await` as the body of a function."""
    tree = ast.parse(code)
    future = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    wrapped = ast.parse("async def body(): pass")
    function = wrapped.body[0]
    assert isinstance(function, ast.AsyncFunctionDef)
    function.body = [node for node in tree.body if node not in future] or [ast.Pass()]
    wrapped.body = [*future, function]
    has_value = any(isinstance(node, ast.Return) and node.value is not None for node in ast.walk(tree))
    if has_value and not _awaits(tree):
        wrapped.body = [*future, _plain(function)]
    compile(ast.fix_missing_locations(wrapped), "<code>", "exec", dont_inherit=True)


def _awaits(tree: ast.AST) -> bool:
    return any(isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) for node in ast.walk(tree))


def _plain(function: ast.AsyncFunctionDef) -> ast.FunctionDef:
    """The same function without `async`: a generator may return a value there."""
    plain = ast.FunctionDef(function.name, function.args, function.body, [], None)
    if "type_params" in ast.FunctionDef._fields:  # since 3.12
        plain.type_params = []  # type: ignore[attr-defined,unused-ignore]
    return plain
