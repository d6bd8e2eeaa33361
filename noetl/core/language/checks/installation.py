"""What a playbook names and an installation does not have: pools and labels of workers, schemas.

`noetl validate --server` and `noetl register` report it, where the installation is known. All are warnings: workers may
start and schemas may be registered later. Result stores: `result_stores.unavailable_stores`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from noetl.core.language.diagnostics import Diagnostic
from noetl.core.model.playbook import Block, Playbook, Step, worker_command


def unplaceable_steps(
    playbook: Playbook, placement_problem: Callable[[str, Sequence[str]], str | None]
) -> Iterator[Diagnostic]:
    """Steps whose pool or labels no live worker has."""
    for step in playbook.steps:
        if step.pool is None and not step.labels:
            continue
        problem = placement_problem(step.pool or "default", step.labels)
        if problem is not None:
            hint = f"`{worker_command(step)}` starts one"
            yield _warning(playbook, step.path, "no-worker", f'the step "{step.name}" cannot run now: {problem}', hint)


def schema_references(playbook: Playbook) -> dict[str, str]:
    """The registered schemas that a playbook names, each with the path of its first use."""
    found: dict[str, str] = {}
    bodies: list[Step | Block] = [*playbook.steps, *playbook.blocks.values()]
    bodies += [step.compensation.step for step in playbook.steps if step.compensation is not None]
    for body in bodies:
        for owner in (body, *body.tasks):
            validation = getattr(owner, "validation", None)
            for side in () if validation is None else (validation.input, validation.output):
                if isinstance(side, str):
                    found.setdefault(side, f"{owner.path}/spec/validation")
    return found


def unknown_schemas(playbook: Playbook, problems: Mapping[str, str]) -> Iterator[Diagnostic]:
    """Warnings for schemas that are not registered: reference -> why."""
    for reference, path in schema_references(playbook).items():
        if reference in problems:
            hint = "`noetl schema register NAME FILE` registers it"
            yield _warning(playbook, path, "unknown-schema", problems[reference], hint)


def _warning(playbook: Playbook, path: str, code: str, message: str, hint: str) -> Diagnostic:
    at = playbook.location(path)
    place = (1, 1) if at is None else (at.line, at.column)
    return Diagnostic(playbook.file, *place, *place, code, "warning", message, hint)
