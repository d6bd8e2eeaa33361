"""The messages between server and worker: the run order and the report.

A *run* is the unit of lease: one step run, or one iteration of a looping step. The server
claims it for a worker by raising its epoch (`step.started` or `loop.iteration.started` in the
log); the worker executes the pipeline and reports events under that epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from noetl.core.model.events import Event
from noetl.core.model.ids import IterationPath
from noetl.core.model.outcome import ErrorInfo, Outcome
from noetl.core.model.playbook import Step
from noetl.core.model.position import Item, Position


class RunContext(Struct, frozen=True, omit_defaults=True, gc=False):
    """What all runs of one step run share; sent once and cached by its id."""

    id: str
    playbook: str  # digest
    execution_id: str
    step: str
    step_run_id: str
    workload: dict[str, Any] = field(default_factory=dict)
    args: dict[str, Any] = field(default_factory=dict)
    input: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Outcome] = field(default_factory=dict)  # of the steps in Step.reads
    task_results: dict[str, dict[str, Outcome]] = field(default_factory=dict)  # of the composite ones
    depth: int = 0
    defer_input: bool = False  # the worker evaluates the step's `input` (loop steps: always)
    definition: Step | None = None  # the step itself, if it was synthesized and is not in the playbook
    trace: str | None = None  # W3C traceparent of the request
    output: Outcome | None = None  # of a compensation: the output of the run that it undoes
    failure: dict[str, Any] | None = None  # of a compensation: why the execution ends


class RunOrder(Struct, frozen=True, omit_defaults=True, gc=False):
    """A run that is leased to a worker."""

    run_id: str
    epoch: int
    context: RunContext
    ctx: dict[str, Any] = field(default_factory=dict)
    path: IterationPath = ()
    items: tuple[Item, ...] = ()  # outermost first
    step_scope: dict[str, Any] = field(default_factory=dict)
    position: Position | None = None  # None: from the start
    resume: Outcome | None = None  # the outcome of the suspended task (a child's output)
    lost: int = 0  # workers lost on this run since its last accepted task: attempts used up
    timeout_s: float | None = None
    cost: int = 1  # slots that the run occupies
    alone: bool = False  # two workers were lost on this run: the worker executes no other run beside it
    state_writers: tuple[str, ...] = ()  # executions with writes to `state.<step>` that are not committed: see ToolCall


class Report(Struct, frozen=True, omit_defaults=True, gc=False):
    """Events of one run, in order. `number` counts this run's reports under this epoch.

    A repeated report gets the same acknowledgement; the same events with another body are rejected."""

    run_id: str
    epoch: int
    number: int
    events: tuple[Event, ...]


class ReportAck(Struct, frozen=True, omit_defaults=True, gc=False):
    """The acknowledgement of a report, sent after its events are durable.

    `accepted` False: the worker does not hold the lease (any more): stop the run and kill the tool.
    `error` is set if the server itself ended the run (ctx.conflict, cancelled, timeout).
    `ended`: of a rejected report: the run has ended, and no other worker continues it.
    """

    run_id: str
    accepted: bool
    error: ErrorInfo | None = None
    ended: bool = False


class HeartbeatReply(Struct, frozen=True, omit_defaults=True, gc=False):
    """The server's reply to a heartbeat, which lists the runs that the worker holds.

    `lost`: runs whose lease the worker has lost; `ended`: those of them that no other worker continues. `unknown`: runs
    leased to the worker that the heartbeat did not list, because the reply to the claim was lost; a worker that never
    received such a run returns it. `term`: the lease duration in seconds without a heartbeat, from which workers derive
    their heartbeat interval."""

    lost: list[str] = field(default_factory=list)
    unknown: list[tuple[str, int]] = field(default_factory=list)  # run id, epoch
    term: float | None = None
    proofs: list[str] = field(default_factory=list)  # of the `unknown` leases
    ended: list[str] = field(default_factory=list)


def count_fitting(costs: Iterable[int], slots: int, capacity: int) -> int:
    """How many of the next runs fit into free slots. No run passes one that costs more, so none waits forever."""
    count = 0
    for cost in costs:
        slots -= min(cost, capacity) if capacity else cost
        if slots < 0:
            break
        count += 1
    return count


# Bounds of what a worker sends; they are checked where a message is decoded.
WorkerName = Annotated[str, Meta(min_length=1, max_length=200)]
PoolName = Annotated[str, Meta(min_length=1, max_length=200)]
Labels = Annotated[tuple[Annotated[str, Meta(max_length=200)], ...], Meta(max_length=100)]
MAX_SLOTS = 100_000
SlotCount = Annotated[int, Meta(ge=0, le=MAX_SLOTS)]


class Claim(Struct, frozen=True, omit_defaults=True, gc=False):
    """A worker's claim for runs."""

    worker: WorkerName
    slots: SlotCount
    pool: PoolName = "default"
    labels: Labels = ()
    capacity: SlotCount = 0  # all slots of the worker, free or not; a run that costs more occupies all. 0: unlimited
    workers: int = 1  # live workers of the pool, which share what is ready; the server sets it
