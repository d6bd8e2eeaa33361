"""Warnings for what a playbook names and this installation does not have."""

from __future__ import annotations

from noetl.core.language.checks.installation import schema_references, unknown_schemas, unplaceable_steps
from noetl.core.language.checks.result_stores import unavailable_stores
from noetl.core.language.diagnostics import Diagnostic
from noetl.core.model.playbook import Playbook
from noetl.errors import NoetlError
from noetl.server.orchestrator.service import Orchestrator


async def installation_findings(orchestrator: Orchestrator, playbook: Playbook) -> list[Diagnostic]:
    """Result stores, pools and labels of workers, and schemas that do not exist here."""
    types = getattr(orchestrator.results, "types", None)
    found = [] if types is None else list(unavailable_stores(playbook, types))
    if orchestrator.effects.enabled:
        found += unplaceable_steps(playbook, orchestrator.work.placement_problem)
    problems = {}
    for reference in schema_references(playbook) if orchestrator.schemas is not None else ():
        try:
            await orchestrator.schemas.find(reference)  # type: ignore[union-attr]
        except NoetlError as problem:
            problems[reference] = str(problem)
    return sorted([*found, *unknown_schemas(playbook, problems)])
