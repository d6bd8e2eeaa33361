"""The objects of the control plane are constructed only in the composition root."""

from __future__ import annotations

import ast
from pathlib import Path

import noetl

COMPONENTS = {"Orchestrator", "WorkerService", "ExecutionCache", "ExecutionActor", "ExecutionStarter", "EffectHandler"}
PACKAGE = Path(noetl.__file__).parent


def constructed(file: Path) -> set[str]:
    """The components that a module constructs."""
    calls = (node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    names = (getattr(call, "id", getattr(call, "attr", "")) for call in calls)
    return COMPONENTS.intersection(names)


def test_components_are_constructed_only_in_the_composition_root():
    found = {str(file.relative_to(PACKAGE)): constructed(file) for file in PACKAGE.rglob("*.py")}
    assert {file: names for file, names in found.items() if names} == {"server/composition.py": COMPONENTS}
