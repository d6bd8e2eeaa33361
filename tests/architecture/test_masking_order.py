"""No message contains a cut value: secrets are masked in messages, and a cut secret is not recognized."""

from __future__ import annotations

import ast
from pathlib import Path

import noetl

ROOT = Path(noetl.__file__).parent
FOLDERS = ("tools", "connections", "secrets", "worker", "core/templates", "core/pipeline", "data", "runtime")
# Slices in messages of texts that are no values: names of this program, times, texts of the author.
ALLOWED = {
    "worker/event_masking.py": 1,  # the message of an error, which is masked
    "tools/shell/value_binding.py": 1,  # the author's line, in which values are marks
    "core/templates/operators.py": 1,  # digits of a format
    "core/templates/reference_rules.py": 1,  # rules for the documentation
    "core/templates/lookup.py": 1,  # names of keys
    "tools/python/child/data.py": 1,  # the path to a value, not the value
    "tools/python/child/serve.py": 1,  # a million characters, which the parent masks before it cuts them
    "tools/shell/task.py": 1,  # the output, which is masked
    "tools/transfer/targets/duckdb_target.py": 1,  # a list
}


def cut_values(tree: ast.Module) -> list[int]:
    """Lines of f-strings in which a value is cut, unless `mask(...)` is applied to it before."""
    parts = (part for node in ast.walk(tree) if isinstance(node, ast.FormattedValue) for part in ast.walk(node.value))
    slices = [part for part in parts if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Slice)]
    cuts = [part for part in slices if isinstance(part.slice, ast.Slice) and part.slice.upper is not None]
    return [
        part.lineno
        for part in cuts
        if not (isinstance(part.value, ast.Call) and "mask" in ast.unparse(part.value.func))
    ]


def test_no_message_has_a_cut_value():
    problems = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            lines = cut_values(ast.parse(path.read_text(encoding="utf-8")))
            if len(lines) > ALLOWED.get(name, 0):
                problems.append(f"{name}: lines {lines}")
    assert not problems, "show values whole or not at all (`core.model.excerpt`), or mask them first: " + "; ".join(
        problems
    )


def test_the_check_finds_a_cut_value():
    assert cut_values(ast.parse("raise E(f'{value[:60]} is wrong')"))
    assert not cut_values(ast.parse("raise E(f'{mask(value)[:60]} is wrong')"))
    assert not cut_values(ast.parse("raise E(f'{excerpt(value)} is wrong')"))
