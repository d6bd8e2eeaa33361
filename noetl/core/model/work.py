"""What passes between server and worker: the order to run, and the report of what happened.

A *run* is the unit of lease: one step run, or one iteration of a looping step. The server
claims it for a worker by raising its epoch (`step.started` or `loop.iteration.started` in the
log); the worker executes the pipeline and reports events under that epoch.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from noetl.core.model.events import Event
from noetl.core.model.ids import IterationPath
from noetl.core.model.outcome import ErrorInfo, Outcome
from noetl.core.model.playbook import Step
from noetl.core.model.position import Position
from noetl.core.model.reference import Reference


class Item(Struct, frozen=True, omit_defaults=True, gc=False):
    """One level of a run's iteration: the element, inline or by its place in a stored collection."""

    name: str
    index: int
    count: int
    value: Any = None
    collection: Reference | None = None


class RunContext(Struct, frozen=True, omit_defaults=True, gc=False):
    """What all runs of one step run share; sent once, kept by its id."""

    id: str
    playbook: str  # digest
    execution_id: str
    step: str
    step_run_id: str
    workload: dict[str, Any] = field(default_factory=dict)
    args: dict[str, Any] = field(default_factory=dict)
    input: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Outcome] = field(default_factory=dict)  # of the steps in Step.reads
    task_results: dict[str, dict[str, Outcome]] = field(default_factory=dict)  # of those that are composite
    depth: int = 0
    defer_input: bool = False  # the worker evaluates the step's `input` (loop steps: always)
    definition: Step | None = None  # the step itself, when it was synthesized and the playbook has it not
    trace: str | None = None  # W3C traceparent the execution was requested with


class RunOrder(Struct, frozen=True, omit_defaults=True, gc=False):
    """A run that a worker holds the lease of."""

    run_id: str
    epoch: int
    context: RunContext
    ctx: dict[str, Any] = field(default_factory=dict)
    path: IterationPath = ()
    items: tuple[Item, ...] = ()  # outermost first
    step_scope: dict[str, Any] = field(default_factory=dict)
    position: Position | None = None  # None: from the beginning
    resume: Outcome | None = None  # the outcome a suspended task was waiting for (a child's output)
    lost: int = 0  # workers lost on this run since its last accepted task: attempts used up
    timeout_s: float | None = None


class Report(Struct, frozen=True, omit_defaults=True, gc=False):
    """Events of one run, in order. `number` counts this run's reports under this epoch.

    The same report again gets the same verdict; the same events with another body are refused."""

    run_id: str
    epoch: int
    number: int
    events: tuple[Event, ...]


class ReportAck(Struct, frozen=True, omit_defaults=True, gc=False):
    """The server's answer to a report, given after its events are on disk.

    `accepted` False: the run is no longer this worker's (or never was): stop, kill the tool.
    `error` is set when the server ended the run itself (ctx.conflict, cancelled, timeout).
    """

    run_id: str
    accepted: bool
    error: ErrorInfo | None = None


class HeartbeatReply(Struct, frozen=True, omit_defaults=True, gc=False):
    """The server's answer to a worker that said what it holds.

    `lost` is no longer the worker's. `unknown` is the worker's by the log, and was not among what it said: an answer
    that got lost on its way. A worker that has never had such a run gives it back. `term` is how many seconds a lease
    lives without a sign of life, for workers to give theirs often enough."""

    lost: list[str] = field(default_factory=list)
    unknown: list[tuple[str, int]] = field(default_factory=list)  # run id, epoch
    term: float | None = None


class Claim(Struct, frozen=True, omit_defaults=True, gc=False):
    """A worker asking for work."""

    worker: str
    slots: int
    pool: str = "default"
    labels: tuple[str, ...] = ()
