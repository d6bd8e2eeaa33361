"""Load a mutant into a process: change the code of a module that is imported already, or compile it at its import."""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from tests.mutation.mutants import Mutant, mutated

ROOT = Path(__file__).parents[2]


class NotInstalled(Exception):
    """The mutant cannot be loaded into this process; a new process can load it."""


def code_of(mutant: Mutant) -> CodeType:
    """The compiled module with the change."""
    path = ROOT / mutant.file
    return compile(mutated(path.read_text(), mutant.number), str(path), "exec", dont_inherit=True)


def module_of(mutant: Mutant) -> str:
    """The name of the changed module."""
    return mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def functions_by_file() -> dict[str, list[FunctionType]]:
    """All functions of this process by the file of their code.

    A process that forks finds them once: a search in each child would touch, and so copy, the whole memory."""
    found: dict[str, list[FunctionType]] = {}
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename.startswith(str(ROOT)):
            found.setdefault(each.__code__.co_filename, []).append(each)
    return found


def install(mutant: Mutant, functions: Mapping[str, Sequence[FunctionType]]) -> None:
    """Load a mutant into this process, in which the original may be imported already."""
    if mutant.is_control:
        return
    if module_of(mutant) in sys.modules:
        _replace_code(mutant, functions)
    else:
        install_at_import(mutant)


def install_at_import(mutant: Mutant) -> None:
    """Compile the changed module when it is imported."""
    if module_of(mutant) in sys.modules:
        raise NotInstalled(f"{module_of(mutant)} is imported already")
    sys.meta_path.insert(0, _Finder(mutant))


def _replace_code(mutant: Mutant, functions: Mapping[str, Sequence[FunctionType]]) -> None:
    """Give each function of the module its changed code."""
    path = str(ROOT / mutant.file)
    original = _functions_of(compile(Path(path).read_text(), path, "exec", dont_inherit=True))
    changed = _functions_of(code_of(mutant))
    different = {key for key, code in changed.items() if original.get(key) != code}
    if not different or original.keys() != changed.keys():
        raise NotInstalled("the change is outside of functions")
    replaced = set()
    for function in functions.get(path, ()):
        code = function.__code__
        if _key(code) in different:
            (new,) = changed[_key(code)][:1]
            if len(changed[_key(code)]) > 1 or code.co_freevars != new.co_freevars:
                raise NotInstalled("two functions of one line, or other variables of a closure")
            function.__code__ = new
            replaced.add(_key(code))
    if not any("<locals>" not in name for name, _ in replaced):
        raise NotInstalled("no function of the module has the change")


def _functions_of(module: CodeType) -> dict[tuple[str, int], list[CodeType]]:
    found: dict[tuple[str, int], list[CodeType]] = {}
    for code in _functions(module):
        found.setdefault(_key(code), []).append(code)
    return found


def _functions(code: CodeType) -> Iterator[CodeType]:
    """The code of all functions, but not of the module and its classes: that has run already."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & 1:  # CO_OPTIMIZED: a function
                yield constant
            yield from _functions(constant)


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the changed module, and leaves all others to the usual finders."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The specification of the changed module."""
        if name != module_of(self._mutant):
            return None
        origin = str(ROOT / self._mutant.file)
        return importlib.util.spec_from_file_location(name, origin, loader=_Loader(name, origin, self._mutant))


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, mutant: Mutant) -> None:
        super().__init__(name, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        """The code of the changed tree; never from the bytecode cache."""
        return code_of(self._mutant)


def is_installed_at_import(mutant: Mutant) -> bool:
    """Whether the module, if it was imported, is the changed one."""
    module = sys.modules.get(module_of(mutant))
    return module is None or isinstance(module.__loader__, _Loader)
