"""Discovers tool kinds: the packages of `noetl.tools` and the plug-ins of other distributions.

A kind is a package with a module `spec` that has a `SPEC` and an `async def run(call)`. Drivers are imported
inside `run`, so that loading all specs is cheap. Plug-ins are entry points of the group `noetl.tools`; the value
of an entry is a module with the same two names.

A plug-in that cannot be imported or is not a tool affects only its own kind: the kind validates, and a call fails
with the name of the plug-in and the reason.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, cast

import noetl.tools
from noetl.core.model.outcome import Outcome, error
from noetl.core.model.tool import PLUGIN_KINDS, ToolCall, ToolFunction, ToolSpec, install_hint
from noetl.errors import SecretUnavailable, StoreUnavailable
from noetl.runtime import plugins
from noetl.runtime.plugins import Problem
from noetl.tools import connectors

__all__ = ["GROUP", "LazySpecs", "PLUGIN_KINDS", "Problem", "kinds", "load", "problems", "refresh", "specs"]

GROUP = plugins.TOOLS


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
        return _registry().specs[kind] if module is None else _spec(module)

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
        return (
            cast(ToolFunction, module.run)
            if getattr(module, "__name__", "").startswith("noetl.tools.")
            else _plugin_run(module)
        )
    problem = registry.problems.get(kind)
    if problem is not None:
        return _failing_run(problem.message)
    if kind in PLUGIN_KINDS:
        install = install_hint(kind) or f'install a package with the entry point "{kind}" in the group "{GROUP}"'
        return _failing_run(f'kind "{kind}" ({PLUGIN_KINDS[kind]}) requires a plug-in that is not installed: {install}')
    return _failing_run(
        f'unknown tool kind "{kind}"; available kinds: {", ".join(kinds())}. '
        f'Plug-in packages add kinds with entry points in the group "{GROUP}"'
    )


def problems() -> list[Problem]:
    """Installed plug-ins that cannot be used."""
    return [*_registry().problems.values(), *connectors.problems().values()]


def refresh() -> None:
    """Repeat the discovery, after a plug-in was installed or removed."""
    plugins.refresh()
    connectors.refresh()
    _registry.cache_clear()
    _spec.cache_clear()


@cache
def _spec(module: Any) -> ToolSpec:
    """The spec of a built-in kind, with what plug-ins add to it."""
    extended = getattr(module, "extended", None)
    spec: ToolSpec = module.SPEC if extended is None else extended()
    return spec


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
        _add(registry, _spec(module), module)
    for plugin in plugins.plugins(GROUP):
        _add_plugin(registry, plugin)
    return registry


def _add(registry: _Registry, spec: ToolSpec, module: Any) -> None:
    for name in (spec.kind, *spec.aliases):
        registry.specs[name] = spec
        registry.modules[name] = module


def _add_plugin(registry: _Registry, plugin: plugins.Plugin) -> None:
    name = plugin.name

    def unusable(reason: str) -> None:
        message = f'kind "{name}" is provided by the plug-in {plugin.distribution} ({plugin.value}), which {reason}'
        registry.problems[name] = Problem(name, plugin.distribution, message)
        # The fields are unknown, so validation accepts all of them; the call returns the reason.
        registry.specs.setdefault(name, ToolSpec(kind=name, doc=message, open_fields=True))

    module, reason = plugins.imported(plugin)
    if reason is not None:
        return unusable(reason)
    spec = getattr(module, "SPEC", None)
    if not isinstance(spec, ToolSpec):
        return unusable("has no SPEC (a noetl.tool.ToolSpec)")
    if not callable(getattr(module, "run", None)):
        return unusable("has no `async def run(call)`")
    taken = [name for name in (spec.kind, *spec.aliases) if name in registry.modules]
    if taken:
        return unusable(f'declares the kind "{taken[0]}", which already exists')
    return _add(registry, spec, module)


def _plugin_run(module: Any) -> ToolFunction:
    """The function of a plug-in, called if its input has the declared types and its addresses are allowed."""

    async def run(call: ToolCall) -> Outcome:
        from noetl.tools._common.plugin_addresses import check_addresses
        from noetl.tools._common.plugin_fields import field_problem

        problem = field_problem(module.SPEC.fields, call.input, module.SPEC.requires)
        if problem is not None:
            return error("schema", f"{call.kind}: {problem}")
        try:
            await check_addresses(call.input, call.host)
        except (SecretUnavailable, StoreUnavailable) as missing:
            return error("auth", str(missing))
        outcome: Outcome = await module.run(call)
        return outcome

    return run


def _failing_run(message: str) -> ToolFunction:
    async def run(call: ToolCall) -> Outcome:
        return error("unknown", message, details={"kind": call.kind})

    return run
