"""Positions: where a pipeline is, small, frozen, and sufficient to resume it on another worker."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from noetl.core.model.outcome import ErrorInfo, Outcome
from noetl.core.model.quotas.token_bucket import Turn
from noetl.core.model.reference import Reference


class Item(Struct, frozen=True, omit_defaults=True, gc=False):
    """One level of a run's iteration: the element, inline or by its index in a stored collection."""

    name: str
    index: int
    count: int
    value: Any = None
    collection: Reference | None = None


class PendingMove(Struct, frozen=True, omit_defaults=True, gc=False):
    """What follows the tasks around a task (`before`, `after`, `finally`): the move that its policy has decided.

    `failed` is the error of a task before it. `attempt` and the visits are those of the task while the tasks before it
    run again."""

    do: str = "continue"
    to: str | None = None  # the next task; None: the pipeline ends
    delay: float = 0.0
    error: ErrorInfo | None = None
    failed: ErrorInfo | None = None
    attempt: int = 0
    visit: int = 0
    event_visit: int = 0


class Position(Struct, frozen=True, omit_defaults=True, gc=False):
    """The position of a pipeline: what the next lease needs to resume there and not at the start.

    `task` is the label to run next (None: the pipeline has ended), `attempt` its next attempt
    of visit `visit`. `iter` and `step` are the current scopes; `ctx` the keys written by this run.
    `results` are outcomes of finished tasks by label (large ones by reference).
    `calls` is the stack of workbook calls, outermost first.
    """

    task: str | None
    visit: int = 1
    attempt: int = 1
    visits: dict[str, int] = field(default_factory=dict)
    task_runs: int = 0
    iter: dict[str, Any] = field(default_factory=dict)
    step: dict[str, Any] = field(default_factory=dict)
    ctx: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Outcome] = field(default_factory=dict)
    previous: str | None = None  # label of the task whose output is `_prev`
    input: dict[str, Any] | None = None  # the step's input, if the worker evaluated it
    calls: tuple[CallFrame, ...] = ()
    pending: PendingMove | None = None  # while the tasks around a task run
    turn: Turn | None = None  # the task waits, or has waited, for a quota


class CallFrame(Struct, frozen=True, omit_defaults=True, gc=False):
    """A workbook call in progress: its block, its input, its own position and loop."""

    block: str
    task: str  # the calling task
    position: Position
    input: dict[str, Any] = field(default_factory=dict)
    loops: tuple[LoopFrame, ...] = ()  # of a looping block, outermost first


class LoopFrame(Struct, frozen=True, omit_defaults=True, gc=False):
    """One level of a looping block in progress on the worker."""

    items: tuple[Any, ...]
    index: int = 0
    outputs: tuple[Outcome, ...] = ()
    skipped: int = 0
