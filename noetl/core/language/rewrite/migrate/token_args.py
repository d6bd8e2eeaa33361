"""The `args` of v10 arcs, which travel with the token: which steps they reach, and their names in `ctx`."""

from __future__ import annotations

import re

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.source.nodes import Scalar
from noetl.core.language.syntax.tree import BodySyntax, DocumentSyntax, StepSyntax


class TokenArgs:
    """The args of all arcs. `bases` maps each (target step, name) to its key of `ctx`."""

    def __init__(self, document: DocumentSyntax, context: AnalysisContext) -> None:
        self.document = document
        self.context = context
        self.bases: dict[tuple[str, str], str] = {}
        targets: dict[str, list[str]] = {}
        for step in document.steps:
            for arc in step.arcs:
                for assigned in arc.sets:
                    if assigned.scope == "args" and arc.target:
                        targets.setdefault(assigned.keys[0], []).append(arc.target)
        for name, places in targets.items():
            for target in places:
                base = name if len(set(places)) == 1 else f"{target}_{name}"
                while base in context.ctx_keys:
                    base += "_arg"
                self.bases[target, name] = base
        self.names = list(targets)
        self._reach = {name: self._flow(name) for name in self.names}

    def _flow(self, name: str) -> dict[str, set[str | None]]:
        """Step -> what `name` can be when a token arrives: keys of `ctx`, and None where no arc gave it."""
        steps = {step.name: step for step in self.document.steps}
        reach: dict[str, set[str | None]] = {step: set() for step in steps}
        entry = self.context.entry
        if entry in reach:
            reach[entry].add(None)
        pending = [entry] if entry in steps else []
        while pending:
            step = steps[pending.pop()]
            for arc in step.arcs:
                if arc.target not in reach:
                    continue
                sets_it = any(each.scope == "args" and each.keys[0] == name for each in arc.sets)
                arriving: set[str | None] = {self.bases[arc.target, name]} if sets_it else reach[step.name]
                if not arriving <= reach[arc.target]:
                    reach[arc.target] |= arriving
                    pending.append(arc.target)
        return reach

    def reaching(self, step: StepSyntax, name: str) -> set[str | None]:
        """What `name` can be when a token arrives at a step."""
        return self._reach.get(name, {}).get(step.name, set())

    def base(self, body: BodySyntax, name: str) -> str | None:
        """The one key of `ctx` that a step's `args.<name>` becomes, if there is one."""
        if not isinstance(body, StepSyntax):
            return None
        known = [base for base in self.reaching(body, name) if base]
        return known[0] if len(known) == 1 else None

    def wanted(self, step: StepSyntax) -> list[str]:
        """The names that a step reads from what its token carries."""
        own = self.context.body(step).input_keys
        arriving = [name for name in self.names if any(self.reaching(step, name)) and name not in own]
        if not arriving:
            return []
        read: set[str] = set()
        for site in self.context.sites.templates:
            if site.body is step:
                for each in site.template.reads:
                    if each.path[0] in ("args", "input"):
                        if len(each.path) == 1:
                            return arriving
                        read.add(each.path[1])
        for task in step.tasks():
            for parameter in task.parameters.values():
                code = parameter.value
                if parameter.raw and isinstance(code, Scalar) and _WHOLE_SCOPE.search(code.text):
                    return arriving
        return [name for name in arriving if name in read]


_WHOLE_SCOPE = re.compile(r"\b(args|context)\b")
