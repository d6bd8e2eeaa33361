"""Discovers tool kinds: the packages of `noetl.tools` and the plug-ins of other distributions.

A kind is a package with a module `spec` that has a `SPEC` and an `async def run(call)`. Drivers are imported
inside `run`, so that loading all specs is cheap. Plug-ins are entry points of the group `noetl.tools`; the value
of an entry is a module with the same two names.

A plug-in that cannot be imported or is not a tool affects only its own kind: the kind validates, and a call fails
with the name of the plug-in and the reason.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, cast

import noetl.tools
from noetl.core.model.outcome import Outcome, error
from noetl.core.model.tool import PLUGIN_KINDS, ToolCall, ToolFunction, ToolSpec

__all__ = ["GROUP", "LazySpecs", "PLUGIN_KINDS", "Problem", "kinds", "load", "problems", "refresh", "specs"]

GROUP = "noetl.tools"


class Problem(NamedTuple):
    """An installed plug-in that cannot be used, and the reason."""

    kind: str
    plugin: str
    message: str


class _Registry(NamedTuple):
    specs: dict[str, ToolSpec]  # by kind and by alias
    modules: dict[str, Any]  # same keys; the module (or object) with `run`
    problems: dict[str, Problem]


def specs() -> dict[str, ToolSpec]:
    """The spec of every kind, by kind and by alias."""
    return dict(_registry().specs)


def kinds() -> dict[str, ToolSpec]:
    """The spec of every kind, without aliases."""
    return {kind: spec for kind, spec in sorted(_registry().specs.items()) if kind == spec.kind}


class LazySpecs(Mapping[str, ToolSpec]):
    """`specs()` as a mapping that imports a built-in kind when it is looked up, and the others when they are needed."""

    def __getitem__(self, kind: str) -> ToolSpec:
        module = _builtin(kind)
        return _registry().specs[kind] if module is None else module.SPEC

    def __iter__(self) -> Iterator[str]:
        return iter(_registry().specs)

    def __len__(self) -> int:
        return len(_registry().specs)


def load(kind: str) -> ToolFunction:
    """The function that runs a kind; for a kind that cannot run, one that returns the reason as an error."""
    builtin = _builtin(kind)
    if builtin is not None:
        return cast(ToolFunction, builtin.run)
    registry = _registry()
    module = registry.modules.get(kind)
    if module is not None:
        run: ToolFunction = module.run
        return run
    problem = registry.problems.get(kind)
    if problem is not None:
        return _failing_run(problem.message)
    if kind in PLUGIN_KINDS:
        return _failing_run(
            f'kind "{kind}" ({PLUGIN_KINDS[kind]}) requires a plug-in that is not installed: '
            f'install a package that provides the entry point "{kind}" in the group "{GROUP}"'
        )
    return _failing_run(
        f'unknown tool kind "{kind}"; available kinds: {", ".join(kinds())}. '
        f'Plug-in packages add kinds with entry points in the group "{GROUP}"'
    )


def problems() -> list[Problem]:
    """Installed plug-ins that cannot be used."""
    return list(_registry().problems.values())


def refresh() -> None:
    """Repeat the discovery, after a plug-in was installed or removed."""
    _registry.cache_clear()


@cache
def _builtin(kind: str) -> Any:
    """The module of a kind of `noetl.tools`; None for aliases and other kinds."""
    known = kind in {info.name for info in _packages()}
    return import_module(f"noetl.tools.{kind}.spec") if known else None


def _packages() -> list[pkgutil.ModuleInfo]:
    return [info for info in pkgutil.iter_modules(noetl.tools.__path__) if info.ispkg and not info.name.startswith("_")]


@cache
def _registry() -> _Registry:
    registry = _Registry({}, {}, {})
    for info in _packages():
        module = import_module(f"noetl.tools.{info.name}.spec")
        _add(registry, module.SPEC, module)
    for name, value, plugin, entry in _entry_points():
        _add_plugin(registry, name, value, plugin, entry)
    return registry


def _add(registry: _Registry, spec: ToolSpec, module: Any) -> None:
    for name in (spec.kind, *spec.aliases):
        registry.specs[name] = spec
        registry.modules[name] = module


def _add_plugin(registry: _Registry, name: str, value: str, plugin: str, entry: Any) -> None:
    def unusable(reason: str) -> None:
        message = f'kind "{name}" is provided by the plug-in {plugin} ({value}), which {reason}'
        registry.problems[name] = Problem(name, plugin, message)
        # The fields are unknown, so validation accepts all of them; the call returns the reason.
        registry.specs.setdefault(name, ToolSpec(kind=name, doc=message, open_fields=True))

    try:
        module = entry.load()
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - a plug-in can raise anything
        return unusable(f"cannot be imported: {type(failure).__name__}: {failure}")
    spec = getattr(module, "SPEC", None)
    if not isinstance(spec, ToolSpec):
        return unusable("has no SPEC (a noetl.tool.ToolSpec)")
    if not callable(getattr(module, "run", None)):
        return unusable("has no `async def run(call)`")
    taken = [name for name in (spec.kind, *spec.aliases) if name in registry.modules]
    if taken:
        return unusable(f'declares the kind "{taken[0]}", which already exists')
    return _add(registry, spec, module)


def _entry_points() -> Iterator[tuple[str, str, str, Any]]:
    """Name, value, distribution and entry of every installed plug-in, in a stable order."""
    if not _has_plugins():
        return
    from importlib.metadata import entry_points

    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        plugin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        yield entry.name, entry.value, plugin, entry


def _has_plugins() -> bool:
    """Whether any distribution on the path has entry points in the group.

    importlib.metadata takes about 100 ms for this, on every `noetl` command; reading the few entry_points.txt
    files takes a few milliseconds."""
    section = f"[{GROUP}]".encode()
    for folder in dict.fromkeys(sys.path):
        if os.path.isfile(folder):
            return True  # an archive: importlib.metadata can read it
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue  # the directory does not exist
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(os.path.join(folder, name, "entry_points.txt"), "rb", buffering=0) as file:
                        if section in file.read():
                            return True
                except OSError:
                    continue  # no entry points
    return False


def _failing_run(message: str) -> ToolFunction:
    async def run(call: ToolCall) -> Outcome:
        return error("unknown", message, details={"kind": call.kind})

    return run
