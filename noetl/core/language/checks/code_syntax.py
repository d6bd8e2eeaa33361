"""Python code that does not compile."""

from __future__ import annotations

import ast
import warnings
from functools import lru_cache

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.source.nodes import Scalar

_MAX_LENGTH = 1_000_000


def check(context: AnalysisContext) -> None:
    """Compile the code of every python task."""
    for body in context.document.bodies():
        for task in body.tasks():
            code = task.parameters.get("code") if task.kind == "python" else None
            if code is not None and isinstance(code.value, Scalar) and isinstance(code.value.value, str):
                _check(context, code.value)


def _check(context: AnalysisContext, node: Scalar) -> None:
    problem = syntax_problem(node.value)
    if problem is None:
        return
    message, line, column = problem
    lines = node.value.split("\n")
    line = min(line, len(lines))
    while line > 1 and not lines[line - 1].strip():
        line -= 1  # at the end of the code: its last line
    offset = sum(len(each) + 1 for each in lines[: line - 1]) + min(column - 1, len(lines[line - 1]))
    hint = "code is not a template: pass values under `input`" if "{{" in node.value or "{%" in node.value else ""
    context.reader.findings.add_inside("code-syntax", node, offset, 1, f"the code does not compile: {message}", hint)


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
