"""Python code that does not compile, or whose `main` has a parameter that no input gives."""

from __future__ import annotations

import ast
import warnings
from functools import lru_cache

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.diagnostics import did_you_mean
from noetl.core.language.flow.visibility import OLDER_SCOPES, SCOPE_NAMES
from noetl.core.language.source.nodes import Mapping, Scalar
from noetl.core.language.syntax.tree import BodySyntax, StepSyntax, TaskSyntax

_MAX_LENGTH = 1_000_000
_GIVEN = frozenset({*SCOPE_NAMES, *OLDER_SCOPES, "context", "inputs", "input_data", "results", "steps", "self"})


def check(context: AnalysisContext) -> None:
    """Compile the code of every python task."""
    for body in context.document.bodies():
        for task in body.tasks():
            code = task.parameters.get("code") if task.kind == "python" else None
            node = code.value if code is not None else None
            if isinstance(node, Scalar) and isinstance(node.value, str) and _compiles(context, node):
                _check_main(context, body, task, node)


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


def _check_main(context: AnalysisContext, body: BodySyntax, task: TaskSyntax, code: Scalar) -> None:
    """Report parameters of `main` without a value; the inputs of a block are those of its callers."""
    own = task.node.get("input") if isinstance(task.node, Mapping) else None
    if not isinstance(body, StepSyntax) or not isinstance(own, Mapping | None):
        return
    inputs = {*task.parameters, *(body.input.entries if body.input is not None else ())}
    steps = context.document.step_names()
    for name, line, column in main_parameters(code.value):
        if name in inputs or name in _GIVEN or name in steps:
            continue
        lines = code.value.split("\n")
        before = lines[line - 1].encode()[:column].decode()
        offset = sum(len(each) + 1 for each in lines[: line - 1]) + len(before)
        hint = did_you_mean(name, inputs, f"add it: `input: {{{name}: ...}}`, or give the parameter a default")
        message = f"main() requires {name!r}, which is not in the input of the task"
        context.reader.findings.add_inside("main-parameter", code, offset, len(name), message, hint)


@lru_cache(maxsize=1024)
def main_parameters(code: str) -> tuple[tuple[str, int, int], ...]:
    """The parameters of the function `main` that have no default: name, line (from 1), column (from 0).

    Empty if another value than that of `main` is the output, or may be."""
    if len(code) > _MAX_LENGTH or "main" not in code:
        return ()
    tree = ast.parse(code)
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
