"""What compensation needs to know about completed work: the runs that can be undone, and how many were."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from noetl.core.model.outcome import ErrorInfo, Outcome
from noetl.core.model.playbook import Step
from noetl.core.model.position import Item


class CompletedRun(Struct, frozen=True, omit_defaults=True, gc=False):
    """A run that can be undone: a completed run of a step or one of its iterations, or a child execution."""

    run_id: str
    input: dict[str, Any] = field(default_factory=dict)
    output: Outcome = Outcome("ok")
    items: tuple[Item, ...] = ()  # of an iteration, outermost first
    child: str | None = None  # the child execution, which undoes its own steps
    playbook: str | None = None  # its path


class CompletedStep(Struct, frozen=True, omit_defaults=True):
    """The runs of one step run that can be undone, in order of completion; `window` of them at a time."""

    step: str
    step_run_id: str
    runs: tuple[CompletedRun, ...]
    window: int = 1
    args: dict[str, Any] = field(default_factory=dict)


class CompensationSource(Struct, frozen=True, omit_defaults=True):
    """The execution whose completed steps another execution undoes, because the caller of both is undone."""

    execution_id: str
    completed: tuple[CompletedStep, ...] = ()
    workload: dict[str, Any] = field(default_factory=dict)
    ctx: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Outcome] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()  # the synthesized ones
    failure: ErrorInfo | None = None


class CompensationCounts(Struct, frozen=True):
    """How many compensations completed, failed, and were not needed (`when` was false)."""

    done: int = 0
    failed: int = 0
    skipped: int = 0
