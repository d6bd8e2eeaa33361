"""`python -m tests.mutation.one FILE NUMBER SEEDS TESTS...`: run tests and simulation seeds with one mutant loaded.

The mutant exists only in this process: the module is compiled from the changed tree when it is imported.
Exit codes: 0 the mutant survived, 1 a test or the simulation noticed it, 3 the mutant was not loaded.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from tests.mutation.mutants import mutated

ROOT = Path(__file__).parents[2]
NOT_LOADED = 3


class _MutantFinder(importlib.abc.MetaPathFinder):
    """Finds the mutated module, and leaves all others to the usual finders."""

    def __init__(self, file: str, number: int) -> None:
        self.name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self._path = str(ROOT / file)
        self._number = number

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The specification of the mutated module."""
        if name != self.name:
            return None
        return importlib.util.spec_from_loader(name, _MutantLoader(name, self._path, self._number), origin=self._path)


class _MutantLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, number: int) -> None:
        super().__init__(name, path)
        self._number = number

    def get_code(self, fullname: str) -> CodeType:
        """The code of the changed tree; never from the bytecode cache."""
        return compile(mutated(Path(self.path).read_text(), self._number), self.path, "exec")


def main(arguments: list[str]) -> int:
    """Run the tests and the simulation with the mutant."""
    file, number, seeds, *tests = arguments
    finder = _MutantFinder(file, int(number))
    sys.meta_path.insert(0, finder)
    # pytest rewrites the modules of a plug-in's distribution, so it would load the original instead of the mutant.
    options = ["-q", "-x", "--assert=plain", "--no-header", "-p", "no:cacheprovider", "--tb=no"]
    if pytest.main([*options, *tests]) != 0:
        return 1
    from tests.simulation import simulate

    noticed = any(simulate(seed, 50).violations for seed in range(int(seeds)))
    loaded = sys.modules.get(finder.name)
    if loaded is not None and not isinstance(loaded.__loader__, _MutantLoader):
        return NOT_LOADED
    return noticed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
