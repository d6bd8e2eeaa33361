"""Arcs that contradict each other."""

from __future__ import annotations

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.source.nodes import data_of
from noetl.core.language.syntax.tree import RouterSyntax, SetSyntax
from noetl.core.templates.template import compile_value


def check(context: AnalysisContext) -> None:
    """Arcs that are always taken together must not set one key to two values."""
    for step in context.document.steps:
        if step.router is not None and step.router.mode == "inclusive":
            _check_conflicts(context, step.router)


def _check_conflicts(context: AnalysisContext, router: RouterSyntax) -> None:
    seen: dict[tuple[str, tuple[str, ...]], SetSyntax] = {}
    for arc in router.arcs:
        if arc.when is not None:
            continue
        for assigned in arc.sets:
            if assigned.scope not in ("ctx", "state"):
                continue
            first = seen.setdefault((assigned.scope, assigned.keys), assigned)
            values = (data_of(first.value), data_of(assigned.value))
            # The values of templates are compared at run time.
            if first is not assigned and values[0] != values[1] and all(compile_value(each).static for each in values):
                message = f"arcs that are taken together assign different values to `{assigned.target}`"
                context.reader.add(
                    "arc-conflict", assigned.key, message, f"the other assignment is on line {first.key.line}"
                )
