"""`executor.version`: whether this installation is the runtime that the playbook was written for."""

from __future__ import annotations

import re

from noetl import __version__
from noetl.core.language.checks.analysis import AnalysisContext

# Generations of the runtime that this installation is compatible with, by the name they are given.
_GENERATIONS = {"noetl": (1,), "noetl-runtime": (1, 2)}
_GENERATION = re.compile(r"(noetl|noetl-runtime)/v?(\d+)")
_CLAUSE = re.compile(r"(>=|<=|==|!=|~=|>|<|=|\^|~)?\s*v?(\d+(?:\.\d+){0,2})(\.\*)?")

Version = tuple[int, ...]


def check(context: AnalysisContext) -> None:
    """Report a version that is not valid, or that this installation does not satisfy."""
    executor = context.document.executor
    if executor is None or executor.version is None or executor.version_node is None:
        return
    satisfied = satisfies(executor.version, __version__)
    if satisfied is None:
        message = f'"{executor.version}" is not a version of the runtime'
        hint = 'write a generation ("noetl/1") or a range (">=0.2,<1")'
        context.reader.add("executor-version", executor.version_node, message, hint)
    elif not satisfied:
        message = f'this playbook requires the runtime "{executor.version}", but this installation is {__version__}'
        hint = f"install a matching version, or change `executor.version` (noetl/{_GENERATIONS['noetl'][-1]})"
        context.reader.add("executor-version", executor.version_node, message, hint)


def satisfies(wanted: str, installed: str) -> bool | None:
    """Whether a version satisfies a requirement; None if the requirement is not valid."""
    generation = _GENERATION.fullmatch(wanted.strip())
    if generation is not None:
        return int(generation.group(2)) in _GENERATIONS[generation.group(1)]
    results = [_satisfies_clause(clause.strip(), _numbers(installed)) for clause in wanted.split(",")]
    return None if None in results else all(results)


def _satisfies_clause(clause: str, installed: Version) -> bool | None:
    found = _CLAUSE.fullmatch(clause)
    if found is None:
        return None
    operator, version, prefix = found.group(1) or "", _numbers(found.group(2)), found.group(3)
    same = installed[: len(version)] == version
    if prefix and operator not in ("", "=", "==", "!="):
        return None
    if operator in ("", "=", "=="):
        return same
    if operator == "!=":
        return not same
    wanted, have = _padded(version), _padded(installed)
    if operator in ("~=", "~", "^"):
        kept = 1 if operator == "^" and version[0] else max(1, len(version) - 1) if operator == "~=" else 2
        return have >= wanted and installed[:kept] == wanted[:kept]
    return {">=": have >= wanted, "<=": have <= wanted, ">": have > wanted, "<": have < wanted}[operator]


def _numbers(text: str) -> Version:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _padded(version: Version) -> Version:
    return (*version, 0, 0, 0)[:3]
