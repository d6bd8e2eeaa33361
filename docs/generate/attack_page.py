"""`docs/reference/attack-suite.md`: the classes of the attack suite, from the tests themselves."""

from __future__ import annotations

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "tests" / "security"


def attack_suite() -> str:
    """The page: one row for each class, with the number of its attacks and what is held."""
    lines = [
        "# Attack suite",
        "",
        "The tests in `tests/security/` attack the boundaries of the [trust model](../explanation/trust-model.md). The",
        "number of attempts is counted from the test data; *held* is what the tests require.",
        "",
        "| class | attempts | held |",
        "|---|---|---|",
    ]
    total = 0
    for path in sorted(FOLDER.glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        title, held = _title(ast.get_docstring(tree) or path.stem)
        attempts = _attempts(path, tree)
        total += attempts
        lines.append(f"| {title} (`{path.name}`) | {attempts:,} | {held} |")
    return "\n".join([*lines, f"| all | {total:,} | |", ""])


def _title(docstring: str) -> tuple[str, str]:
    first = docstring.splitlines()[0].rstrip(".")
    found = re.match(r'Class "([^"]+)": (.*)', first)
    return (found[1], found[2]) if found else (first.partition(":")[0], first.partition(":")[2].strip())


def _attempts(path: Path, tree: ast.Module) -> int:
    """Tests, times the payloads and cases of their parametrization where these are literal."""
    if path.name == "test_templates.py":
        from tests.security.template_attacks import cases

        return sum(1 for _ in cases(seed=1)) + _tests(tree)
    literals = {
        target.id: len(node.value.elts if isinstance(node.value, ast.List) else node.value.keys)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.List, ast.Dict))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if "PAYLOADS" in literals:
        return literals["PAYLOADS"] * sum(count for name, count in literals.items() if name != "PAYLOADS") + _tests(
            tree
        )
    return sum(_cases(node, literals) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _tests(tree: ast.Module) -> int:
    return sum(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in ast.walk(tree))


def _cases(test: ast.FunctionDef, literals: dict[str, int]) -> int:
    if not test.name.startswith("test_"):
        return 0
    count = 1
    for decorator in test.decorator_list:
        if isinstance(decorator, ast.Call) and len(decorator.args) > 1:
            values = decorator.args[1]
            if isinstance(values, ast.List):
                count *= sum(
                    literals.get(each.value.id, 1)
                    if isinstance(each, ast.Starred) and isinstance(each.value, ast.Name)
                    else 1
                    for each in values.elts
                )
            elif isinstance(values, ast.Name):
                count *= literals.get(values.id, 1)
    return count
