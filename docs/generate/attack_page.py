"""`docs/reference/attack-suite.md`: the classes of the attack suite, from the tests themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parents[2] / "tests" / "security"


def attack_suite() -> str:
    """The page: one row for each class, with the number of its attacks and what is held."""
    lines = [
        "# Attack suite",
        "",
        "The tests in `tests/security/` attack the boundaries of the [trust model](../explanation/trust-model.md). The",
        "number of attempts is counted from the cases of the tests; *held* is what the tests require.",
        "",
        "| class | attempts | held |",
        "|---|---|---|",
    ]
    total = 0
    for path in sorted(FOLDER.glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        title, held = _title(ast.get_docstring(tree) or path.stem)
        attempts = _attempts(path)
        total += attempts
        lines.append(f"| {title} (`{path.name}`) | {attempts:,} | {held} |")
    return "\n".join([*lines, f"| all | {total:,} | |", ""])


def _title(docstring: str) -> tuple[str, str]:
    first = docstring.splitlines()[0].rstrip(".")
    found = re.match(r'Class "([^"]+)": (.*)', first)
    return (found[1], found[2]) if found else (first.partition(":")[0], first.partition(":")[2].strip())


def _attempts(path: Path) -> int:
    """The cases of all tests of a module, times the attempts that each case makes (`ATTEMPTS` of the module)."""
    module = import_module(f"tests.security.{path.stem}")
    made = getattr(module, "ATTEMPTS", {})
    return sum(_cases(test) * made.get(name, 1) for name, test in _tests(module))


def _tests(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The tests that a module defines, also in classes."""
    for name, value in vars(module).items():
        if name.startswith("Test") and isinstance(value, type) and value.__module__ == module.__name__:
            yield from ((each, test) for each, test in vars(value).items() if each.startswith("test_"))
        elif name.startswith("test_") and getattr(value, "__module__", "") == module.__name__:
            yield name, value


def _cases(test: Any) -> int:
    """The number of cases of a test: the product of its parametrizations."""
    count = 1
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            count *= len(list(mark.args[1]))
    return count
