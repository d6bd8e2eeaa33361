"""Mutants of a module: every small change of its syntax tree that changes what the code does.

Left alone, because no test may assert them: docstrings, annotations, log messages and conditions that only decide on them,
texts of errors, `strict` of `zip` (which the type of a call guarantees), and whole-number sizes of modules from 32 on
(batches, caches, limits: one more is as good, and a test of the boundary reads the constant).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.Add,
}  # fmt: skip
_SIZE = 32
_LOGGERS = frozenset({"log", "_log", "metrics", "logs"})


NOTHING = -1


class Mutant(Struct, frozen=True):
    """One change of one module: the number of the change in the walk over its tree, its lines and what it does."""

    file: str
    number: int
    line: int
    last_line: int
    function: tuple[int, int] | None  # lines of the outermost function around it
    change: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.change}"

    @property
    def is_control(self) -> bool:
        """Whether it changes nothing."""
        return self.number == NOTHING


def control(mutant: Mutant) -> Mutant:
    """The same place without a change: its tests must pass."""
    return msgspec.structs.replace(mutant, number=NOTHING, change="nothing is changed")


class _Mutator(ast.NodeTransformer):
    """Walks a tree, numbers the possible changes, and applies the one with the number `target`."""

    def __init__(self, target: int | None = None) -> None:
        self.target = target
        self.found: list[tuple[int, int, tuple[int, int] | None, str]] = []
        self._function: tuple[int, int] | None = None

    def _change(self, node: ast.AST, what: str) -> bool:
        first = getattr(node, "lineno", 0)
        self.found.append((first, getattr(node, "end_lineno", first), self._function, what))
        return len(self.found) - 1 == self.target

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        for index, operator in enumerate(node.ops):
            other = _COMPARE[type(operator)]
            if self._change(node, f"{type(operator).__name__} becomes {other.__name__}"):
                node.ops[index] = other()
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if self._change(node, "and and or are exchanged"):
            node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and self._change(node, "not is removed"):
            return node.operand
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        other = _ARITHMETIC.get(type(node.op))
        if other is not None and self._change(node, f"{type(node.op).__name__} becomes {other.__name__}"):
            node.op = other()
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool):
            if self._change(node, f"{node.value} becomes {not node.value}"):
                return ast.copy_location(ast.Constant(not node.value), node)
        elif (
            isinstance(node.value, int)
            and not self._is_size(node.value)
            and self._change(node, f"{node.value} becomes {node.value + 1}")
        ):
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return node

    def _is_size(self, value: int) -> bool:
        return self._function is None and value >= _SIZE

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        return node if node.arg == "strict" else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        if not node.orelse and all(isinstance(each, ast.Expr) and _is_log(each.value) for each in node.body):
            return node  # whether a line is logged
        self.generic_visit(node)
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return node
        for value in (False, True):
            if self._change(node.test, f"the condition is always {str(value).lower()}"):
                node.test = ast.copy_location(ast.Constant(value), node.test)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        other = _ARITHMETIC.get(type(node.op))
        if other is not None and self._change(node, f"{type(node.op).__name__} becomes {other.__name__}"):
            node.op = other()
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        stored = all(isinstance(each, ast.Attribute | ast.Subscript) for each in node.targets)
        if stored and self._change(node, "the assignment is removed"):
            return ast.copy_location(ast.Pass(), node)
        return node

    def visit_Delete(self, node: ast.Delete) -> ast.AST:
        return ast.copy_location(ast.Pass(), node) if self._change(node, "the deletion is removed") else node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.copy_location(ast.Pass(), node) if self._change(node, "nothing is raised") else node

    def visit_Break(self, node: ast.Break) -> ast.AST:
        return ast.copy_location(ast.Continue(), node) if self._change(node, "break becomes continue") else node

    def visit_Continue(self, node: ast.Continue) -> ast.AST:
        return ast.copy_location(ast.Break(), node) if self._change(node, "continue becomes break") else node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant) or _is_log(node.value):
            return node  # a docstring or a log line
        self.generic_visit(node)
        if self._change(node, "the call is removed"):
            return ast.copy_location(ast.Pass(), node)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        if node.value is not None and not isinstance(node.value, ast.Constant) and self._change(node, "returns None"):
            node.value = ast.copy_location(ast.Constant(None), node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = [self.visit(each) for each in node.body]  # not its options, such as `frozen=True`
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        outermost = self._function is None
        if outermost:
            self._function = (node.lineno, node.end_lineno or node.lineno)
        node.body = [self.visit(each) for each in node.body]  # not its decorators and annotations
        if outermost:
            self._function = None
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]


def _is_log(node: ast.expr) -> bool:
    while isinstance(node, ast.Call | ast.Attribute | ast.Await):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id in _LOGGERS


def mutants_of(file: Path, root: Path) -> Iterator[Mutant]:
    """All mutants of a file."""
    mutator = _Mutator()
    mutator.visit(ast.parse(file.read_text()))
    name = str(file.relative_to(root))
    for number, (first, last, function, change) in enumerate(mutator.found):
        yield Mutant(name, number, first, last, function, change)


def mutated(source: str, number: int) -> ast.Module:
    """The tree with one change applied."""
    tree = _Mutator(number).visit(ast.parse(source))
    ast.fix_missing_locations(tree)
    assert isinstance(tree, ast.Module)
    return tree
