"""Sources and targets of transfers that plug-ins add (entry points of `noetl.sources` and `noetl.targets`).

A connector that cannot be used affects only its own kind: the kind validates, and a transfer fails with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

from noetl.core.model.connector import SourceSpec, TargetSpec
from noetl.core.model.tool import Field, Members
from noetl.runtime import plugins
from noetl.runtime.plugins import Problem

T = TypeVar("T", SourceSpec, TargetSpec)


class _Connectors(NamedTuple):
    specs: dict[str, Any]  # by kind and by alias
    problems: dict[str, Problem]


def sources() -> dict[str, SourceSpec]:
    """The sources of plug-ins, by kind and by alias."""
    return _found(plugins.SOURCES, SourceSpec).specs


def targets() -> dict[str, TargetSpec]:
    """The targets of plug-ins, by kind and by alias."""
    return _found(plugins.TARGETS, TargetSpec).specs


def problems() -> dict[str, Problem]:
    """Installed connectors that cannot be used, by kind."""
    return {**_found(plugins.SOURCES, SourceSpec).problems, **_found(plugins.TARGETS, TargetSpec).problems}


def refresh() -> None:
    """Repeat the discovery."""
    _found.cache_clear()


def variants(
    builtin: dict[str, Members],
    specs: dict[str, T],
    broken: dict[str, Problem],
    members: Callable[[T], Members],
) -> dict[str, Members]:
    """The members of all kinds: those of noetl, of plug-ins, and any for a plug-in that cannot be used."""
    added = {kind: members(spec) for kind, spec in specs.items() if kind not in builtin}
    unknown = {kind: Members(open=True) for kind in broken if kind not in builtin and kind not in added}
    return {**builtin, **added, **unknown}


def named_fields(declared: dict[str, Field], given: dict[str, Any]) -> dict[str, Any]:
    """The given fields under their declared names."""
    names = {alias: name for name, each in declared.items() for alias in each.aliases}
    found = {key: value for key, value in given.items() if key in declared or key not in names}
    for key, value in given.items():
        if key not in found:
            found.setdefault(names[key], value)
    return found


@cache
def _found(group: str, of: type) -> _Connectors:
    found = _Connectors({}, {})
    for plugin in plugins.plugins(group):
        spec, reason = plugins.imported(plugin)
        if reason is None and not isinstance(spec, of):
            reason = f"is not a noetl.tool.{of.__name__}"
        taken = [] if reason else [kind for kind in (spec.kind, *spec.aliases) if kind in found.specs]
        if taken:
            reason = f'declares the kind "{taken[0]}", which already exists'
        if reason is not None:
            side = "source" if group == plugins.SOURCES else "target"
            origin = f"the plug-in {plugin.distribution} ({plugin.value})"
            text = f'{side} "{plugin.name}" is provided by {origin}, which {reason}'
            found.problems[plugin.name] = Problem(plugin.name, plugin.distribution, text)
            continue
        for kind in (spec.kind, *spec.aliases):
            found.specs[kind] = spec
    return found
