"""What does work: one file per kind, found without registration.

A module of this folder (or of an installed plug-in) is a kind when it has a `SPEC` and an
`async def run(call)`. Drivers are imported inside `run`, so that knowing every kind is cheap.
Plug-ins come from the entry-point group `noetl.tools`: the entry's value is such a module.

A plug-in that cannot be imported, or that is no tool, harms nobody but its own callers: its kind
validates, and fails when it is reached, naming the plug-in and what is wrong with it.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import noetl.tools
from noetl.core.model.outcome import Outcome, error
from noetl.core.model.tool import PLUGIN_KINDS, ToolCall, ToolFunction, ToolSpec

__all__ = ["GROUP", "PLUGIN_KINDS", "Problem", "kinds", "load", "problems", "refresh", "specs"]

GROUP = "noetl.tools"


class Problem(NamedTuple):
    """An installed plug-in that cannot be used, and why."""

    kind: str
    plugin: str
    message: str


class _Found(NamedTuple):
    specs: dict[str, ToolSpec]  # by kind and by alias
    modules: dict[str, Any]  # the same keys -> module (or object) with `run`
    problems: dict[str, Problem]


def specs() -> dict[str, ToolSpec]:
    """What every kind declares, by kind and by the kind's aliases."""
    return dict(_found().specs)


def kinds() -> dict[str, ToolSpec]:
    """What every kind declares, each kind once under its own name."""
    return {kind: spec for kind, spec in sorted(_found().specs.items()) if kind == spec.kind}


def load(kind: str) -> ToolFunction:
    """The function that runs a kind; for a kind that cannot run, one that says why."""
    found = _found()
    module = found.modules.get(kind)
    if module is not None:
        run: ToolFunction = module.run
        return run
    problem = found.problems.get(kind)
    if problem is not None:
        return _refusing(problem.message)
    if kind in PLUGIN_KINDS:
        return _refusing(
            f'kind "{kind}" ({PLUGIN_KINDS[kind]}) comes from a plug-in that is not installed: '
            f'install a package that provides the entry point "{kind}" in the group "{GROUP}"'
        )
    return _refusing(
        f'there is no tool kind "{kind}"; known kinds: {", ".join(kinds())}. '
        f'More kinds come from packages that provide entry points in the group "{GROUP}"'
    )


def problems() -> list[Problem]:
    """Installed plug-ins that cannot be used."""
    return list(_found().problems.values())


def refresh() -> None:
    """Look again: a plug-in was installed or removed while this process ran."""
    _found.cache_clear()


@cache
def _found() -> _Found:
    found = _Found({}, {}, {})
    for info in pkgutil.iter_modules(noetl.tools.__path__):
        if info.ispkg and not info.name.startswith("_"):
            module = import_module(f"noetl.tools.{info.name}.spec")
            _add(found, module.SPEC, module)
    for name, value, plugin, entry in _entry_points():
        _add_plugin(found, name, value, plugin, entry)
    return found


def _add(found: _Found, spec: ToolSpec, module: Any) -> None:
    for name in (spec.kind, *spec.aliases):
        found.specs[name] = spec
        found.modules[name] = module


def _add_plugin(found: _Found, name: str, value: str, plugin: str, entry: Any) -> None:
    def unusable(why: str) -> None:
        message = f'kind "{name}" comes from the plug-in {plugin} ({value}), which {why}'
        found.problems[name] = Problem(name, plugin, message)
        # Its parameters are not known, so all are accepted; the call itself says what is wrong.
        found.specs.setdefault(name, ToolSpec(kind=name, doc=message, open_fields=True))

    try:
        module = entry.load()
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - a plug-in is foreign code: anything may come out of it
        return unusable(f"cannot be imported: {type(failure).__name__}: {failure}")
    spec = getattr(module, "SPEC", None)
    if not isinstance(spec, ToolSpec):
        return unusable("has no SPEC (a noetl.tool.ToolSpec)")
    if not callable(getattr(module, "run", None)):
        return unusable("has no `async def run(call)`")
    taken = [word for word in (spec.kind, *spec.aliases) if word in found.modules]
    if taken:
        return unusable(f'declares the kind "{taken[0]}", which exists already')
    return _add(found, spec, module)


def _entry_points() -> Iterator[tuple[str, str, str, Any]]:
    """Name, value, distribution and entry of every installed plug-in, in a stable order."""
    if not _some_plugin_is_installed():
        return
    from importlib.metadata import entry_points

    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        plugin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        yield entry.name, entry.value, plugin, entry


def _some_plugin_is_installed() -> bool:
    """Whether any distribution on the path names the group.

    importlib.metadata would answer this in a tenth of a second, which every `noetl` command
    would pay; reading the few entry_points.txt files takes some milliseconds."""
    section = f"[{GROUP}]".encode()
    for place in dict.fromkeys(sys.path):
        if os.path.isfile(place):
            return True  # an archive: let importlib.metadata look into it
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue  # a place that is not there
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(os.path.join(place, name, "entry_points.txt"), "rb", buffering=0) as file:
                        if section in file.read():
                            return True
                except OSError:
                    continue  # it has no entry points
    return False


def _refusing(message: str) -> ToolFunction:
    async def run(call: ToolCall) -> Outcome:
        return error("unknown", message, details={"kind": call.kind})

    return run
