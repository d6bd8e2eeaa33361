"""The runner of mutants notices a bad change in a running and in a new process, and no test notices a control."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from tests.mutation.equivalent import EQUIVALENT, is_equivalent
from tests.mutation.mutants import Mutant, control, mutants_of, mutated
from tests.mutation.runner import _by_new_lines, _in_turn

ROOT = Path(__file__).parents[2]
ACCEPT = "noetl/core/engine/accept.py"
RULES = "noetl/core/engine/lease_rules.py"
STALE, POISON = (
    f"tests/core/engine/test_engine_leases.py::{name}"
    for name in ("test_a_stale_expiry_is_rejected", "test_a_run_that_loses_two_workers_and_then_one_alone_is_poison")
)

PROGRAM = """
import json, sys
import msgspec
from tests.mutation.mutants import Mutant
from tests.mutation.runner import run

class Recorded:
    seconds = dict.fromkeys(sys.argv[2:], 0.1)
    def tests_of(self, file, lines):
        return set(self.seconds)
    def focus(self, file):
        return {}
    def lines_of(self, folder):
        return {}
    def runs_at_import(self, mutant):
        return mutant.function is None

verdicts = run(msgspec.json.decode(sys.argv[1], type=list[Mutant]), Recorded(), jobs=1)
print("\\n" + json.dumps([[each.noticed, each.by] for each in verdicts]))
"""


def mutant(file: str, text: str, change: str) -> Mutant:
    """The mutant of the line with this text."""
    lines = (ROOT / file).read_text().splitlines()
    return next(
        each for each in mutants_of(ROOT / file, ROOT) if text in lines[each.line - 1] and each.change == change
    )


def verdicts(mutants: list[Mutant], tests: list[str]) -> list[list[object]]:
    import msgspec

    words = [msgspec.json.encode(mutants).decode(), *tests]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_bad_mutants_are_noticed_and_controls_are_not():
    bad = mutant(ACCEPT, "run.epoch != command.epoch", "the condition is always false")
    of_the_module = mutant(RULES, "POISON = SUSPECT + 1", "Add becomes Sub")
    found = verdicts([bad, control(bad), of_the_module], [STALE, POISON])
    assert sorted(found, key=str) == [[False, ""], [True, "a new process"], [True, STALE]]


def test_the_first_tests_of_a_mutant_differ():
    class Recorded:
        seconds: ClassVar[dict[str, float]] = {"short": 0.01, "same": 0.02, "other": 0.03, "all": 5.0, "long": 50.0}

    lines = {"short": 0b0011, "same": 0b0011, "other": 0b0101, "all": 0b1111, "long": 0b1111}
    assert list(_by_new_lines(sorted(lines), lines, Recorded())) == ["short", "other", "all", "same", "long"]
    assert _in_turn(sorted(lines), Recorded(), 8.0) == ["short", "same", "other"]


@pytest.mark.parametrize("text", ["a < b", "not a", "a + 1", "a and b"])
def test_every_mutant_differs_from_the_original(text, tmp_path):
    source = f"def f(a, b):\n    if {text}:\n        b.c = a\n        return [a]\n    raise ValueError\n"
    file = tmp_path / "module.py"
    file.write_text(source)
    found = list(mutants_of(file, tmp_path))
    changed = {ast.unparse(mutated(source, each.number)) for each in found}
    assert len(changed | {ast.unparse(ast.parse(source))}) == len(found) + 1
    assert all(each.function == (1, 5) for each in found)


def test_every_equivalent_mutant_exists():
    files = {file for file, _, _ in EQUIVALENT}
    found = [each for file in files for each in mutants_of(ROOT / file, ROOT) if is_equivalent(each, ROOT)]
    assert len({(each.file, each.change, each.line) for each in found}) >= len(EQUIVALENT) and all(EQUIVALENT.values())
    for file, text, change in EQUIVALENT:
        assert mutant(file, text, change) in found


def test_sizes_and_strict_are_no_mutants(tmp_path):
    file = tmp_path / "module.py"
    file.write_text("BATCH = 500\nRETRIES = 3\n\ndef f(a, b):\n    g(zip(a, b, strict=True), 40)\n")
    changes = [each.change for each in mutants_of(file, tmp_path)]
    assert changes == ["3 becomes 4", "40 becomes 41", "the call is removed"]
