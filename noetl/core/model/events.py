"""All events: their names, versions and fields, and their envelope.

An event is a recorded fact. Its *body* is a frozen struct below; recording adds its sequence number
(`seq`) and timestamp, and the log stores `(seq, at, name, version, body)`. The rest of the envelope
(ids, entity, status) is derived from the body, so it cannot contradict it: `envelope(recorded)` is
the form of the API.

Versions. A released body does not change, except for new fields with defaults. A new meaning gets
a new class with `version=2`; `BODIES` contains both permanently.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from math import modf
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct, field

from noetl.core.model.compensation import CompensationCounts, CompensationSource
from noetl.core.model.ids import IterationPath, event_id, iteration_id, task_run_id
from noetl.core.model.outcome import ErrorInfo, Outcome
from noetl.core.model.playbook import Step
from noetl.core.model.position import Position
from noetl.core.model.quotas.token_bucket import Demand
from noetl.core.model.reference import Reference
from noetl.core.model.secret_names import mask_secret_names

Source = Literal["server", "worker"]
EntityType = Literal["playbook", "workflow", "step", "task", "loop", "next"]
Status = Literal["in_progress", "success", "error", "skipped"]
FinalStatus = Literal["success", "failed", "cancelled"]


class Event(Struct, frozen=True, omit_defaults=True, gc=False):
    """Base of all bodies; the class attributes are the source of the envelope's derived fields.

    Bodies are trees of frozen data without reference cycles, so the garbage collector does not track them."""

    NAME: ClassVar[str] = ""
    VERSION: ClassVar[int] = 1
    ENTITY: ClassVar[EntityType] = "workflow"
    STATUS: ClassVar[Status] = "in_progress"
    SOURCE: ClassVar[Source] = "server"


# ── the execution ───────────────────────────────────────────────────────────────────────


class Parent(Struct, frozen=True, omit_defaults=True):
    """The caller of a child execution."""

    execution_id: str
    run_id: str
    task_run_id: str
    depth: int = 1


class KeptIteration(Struct, frozen=True, omit_defaults=True):
    """An iteration of an earlier execution whose result is kept."""

    index: int
    output: Outcome
    step_patch: dict[str, Any] = field(default_factory=dict)
    skipped: bool = False
    contributions: dict[str, Any] = field(default_factory=dict)  # writes to reduced keys


class KeptLoop(Struct, frozen=True, omit_defaults=True):
    """The finished iterations of a loop of an earlier execution; each is kept if its element is the same."""

    path: IterationPath = ()
    items: tuple[Any, ...] | None = None
    sha256: str | None = None  # of a stored collection
    done: tuple[KeptIteration, ...] = ()


class KeptToken(Struct, frozen=True, omit_defaults=True):
    """A token that an earlier execution had at a step."""

    step: str
    args: dict[str, Any] = field(default_factory=dict)
    origin: str | None = None


class RerunSource(Struct, frozen=True, omit_defaults=True):
    """What a rerun or a fork reuses of an earlier execution."""

    execution_id: str
    from_step: str | None = None
    results: dict[str, Outcome] = field(default_factory=dict)
    ctx: dict[str, Any] = field(default_factory=dict)
    args: dict[str, Any] = field(default_factory=dict)  # of the token that enters `from_step`
    at: int | None = None  # seq up to which the earlier log is reused; None: `from_step` decides
    mode: Literal["rerun", "failed", "fork"] = "rerun"
    tokens: tuple[KeptToken, ...] = ()  # instead of one token at the entry step
    task_results: dict[str, dict[str, Outcome]] = field(default_factory=dict)  # of composite steps
    loops: dict[str, tuple[KeptLoop, ...]] = field(default_factory=dict)  # by step
    state_versions: dict[str, str | None] = field(default_factory=dict)  # of the values of `state` that `ctx` replaces


class ExecutionRequested(Event, frozen=True, omit_defaults=True):
    """The execution of a playbook was requested, with this payload."""

    NAME = "playbook.execution.requested"
    ENTITY = "playbook"
    playbook: str  # digest of the compiled playbook
    path: str
    version: str | None = None
    payload: dict[str, Any] = field(default_factory=dict)
    parent: Parent | None = None
    rerun: RerunSource | None = field(default=None, name="kept")
    entry_step: str | None = None
    return_step: str | None = None
    requested_by: str | None = None
    strict: bool = False
    trace: str | None = None  # W3C traceparent of the caller
    compensates: CompensationSource | None = None
    labels: dict[str, str] = field(default_factory=dict)  # of the playbook, the trigger and the request
    due: float | None = None  # when a schedule planned it


class RequestEvaluated(Event, frozen=True, omit_defaults=True):
    """The payload was merged over the workload and the keychain was checked."""

    NAME = "playbook.request.evaluated"
    ENTITY = "playbook"
    workload: dict[str, Any] = field(default_factory=dict)
    keychain: tuple[str, ...] = ()  # names, never values
    error: ErrorInfo | None = None
    state: dict[str, Any] = field(default_factory=dict)  # the values of `state` at the request
    state_versions: dict[str, str] = field(default_factory=dict)  # of the stored ones, by key


class WorkflowStarted(Event, frozen=True, omit_defaults=True):
    """The workflow started: the first token waits before the entry step."""

    NAME = "workflow.started"
    entry: str


class ExecutionPaused(Event, frozen=True, omit_defaults=True):
    """The execution was paused: no new run is scheduled until it is resumed; running tasks continue."""

    NAME = "execution.paused"
    reason: str = ""
    id: str = ""  # idempotency key


class ExecutionResumed(Event, frozen=True, omit_defaults=True):
    """The execution was resumed."""

    NAME = "execution.resumed"
    reason: str = ""
    id: str = ""  # idempotency key


class SignalReceived(Event, frozen=True, omit_defaults=True):
    """A signal arrived: for a `wait` task (`kept` until it is taken), or to patch `ctx`, which may open a gate."""

    NAME = "signal.received"
    name: str = ""
    payload: dict[str, Any] = field(default_factory=dict)
    by: str = ""  # who sent it
    kept: bool = False  # it is data for a `wait` task, and does not change `ctx`
    roles: tuple[str, ...] | None = None  # roles of the sender; None: unrestricted
    id: str = ""  # idempotency key
    wait: str = ""  # key of the wait that a signal with an idempotency key was addressed to


class SignalRefused(Event, frozen=True, omit_defaults=True):
    """A kept signal does not fit the wait that it is for, and is dropped."""

    NAME = "signal.refused"
    STATUS = "error"
    name: str
    signal: int  # seq of `signal.received`
    reason: str = ""


class ExecutionCancelled(Event, frozen=True, omit_defaults=True):
    """The execution was cancelled; open runs are ended with kind `cancelled`.

    With an `error` the server gave it up, and it ends as failed."""

    NAME = "execution.cancelled"
    STATUS = "error"
    reason: str = ""
    error: ErrorInfo | None = None
    compensate: bool = False  # completed steps are undone before the execution ends
    id: str = ""  # idempotency key


class CtxPatched(Event, frozen=True, omit_defaults=True):
    """The shared context changed; the only event that changes it."""

    NAME = "ctx.patched"
    patch: dict[str, Any]  # top-level key -> whole new value
    cause: Literal["task", "step", "arc", "signal", "reduce"] = "task"
    step: str | None = None
    run_id: str | None = None


class StateCommitted(Event, frozen=True, omit_defaults=True):
    """Writes to `state` were committed: the stored values of these keys were still those that the execution read."""

    NAME = "state.committed"
    ENTITY = "playbook"
    STATUS = "success"
    values: dict[str, Any] = field(default_factory=dict)
    version: str = ""
    replaced: dict[str, str] = field(default_factory=dict)  # the versions of these values before, if they had one


class WorkflowSynthesized(Event, frozen=True, omit_defaults=True):
    """A step returned workflow nodes as data; they were validated and added to the net."""

    NAME = "workflow.synthesized"
    step: str
    step_run_id: str
    steps: tuple[Step, ...] = ()
    entry: str | None = None
    error: ErrorInfo | None = None


class WorkflowFinished(Event, frozen=True, omit_defaults=True):
    """The workflow ended: no token is left and nothing is in flight."""

    NAME = "workflow.finished"
    STATUS = "success"
    outcome: FinalStatus
    output: Outcome | None = None
    error: ErrorInfo | None = None
    step: str | None = None  # the step of the output, or the step whose failure ended it
    compensation: CompensationCounts | None = None  # None: nothing was to be undone


class PlaybookProcessed(Event, frozen=True, omit_defaults=True):
    """The last event of every execution."""

    NAME = "playbook.processed"
    ENTITY = "playbook"
    STATUS = "success"
    outcome: FinalStatus


# ── steps, tokens, arcs ─────────────────────────────────────────────────────────────────


class TokenParked(Event, frozen=True, omit_defaults=True):
    """A token waits before a closed gate, or before a join that other tokens can still reach."""

    NAME = "token.parked"
    ENTITY = "step"
    step: str
    token: str
    reason: Literal["admission", "join", "paused", "partition"] = "admission"
    args: dict[str, Any] = field(default_factory=dict)
    origin: str | None = None  # the step it came from
    deadline_at: float | None = None  # of the step: it fails if the token still waits then


class TokenMerged(Event, frozen=True, omit_defaults=True):
    """A token was merged with one that has an equal `dedupe` key and waits, or whose run is open."""

    NAME = "token.merged"
    ENTITY = "step"
    step: str
    token: str
    into: str  # the other token, or its step run
    key: str = ""


class StepScheduled(Event, frozen=True, omit_defaults=True):
    """A token entered the step; its run (or loop) is to be executed."""

    NAME = "step.scheduled"
    ENTITY = "step"
    step: str
    step_run_id: str
    args: dict[str, Any] = field(default_factory=dict)
    input: dict[str, Any] = field(default_factory=dict)
    tokens: tuple[str, ...] = ()  # the tokens consumed
    timeout_s: float | None = None
    deadline_at: float | None = None  # seconds since the epoch
    # The step's `input` reads payloads that are stored by reference: the worker evaluates it.
    defer_input: bool = False


class StepStarted(Event, frozen=True, omit_defaults=True):
    """The step's run was leased to a worker, which may run the first task at once.

    This event also records the start of the first task's first attempt."""

    NAME = "step.started"
    ENTITY = "step"
    SOURCE = "worker"
    step: str
    step_run_id: str
    epoch: int = 1
    worker: str = ""
    by_server: bool = False


class StepDone(Event, frozen=True, omit_defaults=True):
    """The step succeeded."""

    NAME = "step.done"
    ENTITY = "step"
    STATUS = "success"
    SOURCE = "worker"
    step: str
    step_run_id: str
    output: Outcome
    patch: dict[str, Any] = field(default_factory=dict)  # ctx writes of the step's own `set`: dotted path -> value
    nondeterminism: dict[str, Any] = field(default_factory=dict, name="draws")  # now()/uuid()/random() used
    results: dict[str, Outcome] = field(default_factory=dict)  # of a composite step's tasks
    by_server: bool = False
    # Evaluated by the worker; if a compensation or a template of the server reads it.
    input: dict[str, Any] = field(default_factory=dict)


class StepFailed(Event, frozen=True, omit_defaults=True):
    """The step failed; `output.error` is the reason."""

    NAME = "step.failed"
    ENTITY = "step"
    STATUS = "error"
    SOURCE = "worker"
    step: str
    step_run_id: str
    output: Outcome
    patch: dict[str, Any] = field(default_factory=dict)
    nondeterminism: dict[str, Any] = field(default_factory=dict, name="draws")
    results: dict[str, Outcome] = field(default_factory=dict)
    fatal: bool = False  # a limit was reached: no arc can handle the failure, the execution ends
    by_server: bool = False
    input: dict[str, Any] = field(default_factory=dict)  # evaluated by the worker; if a template of the server reads it


class StepSkipped(Event, frozen=True, omit_defaults=True):
    """A token did not enter the step: it was dropped, or waited until the end of the execution."""

    NAME = "step.skipped"
    ENTITY = "step"
    STATUS = "skipped"
    step: str
    token: str
    reason: str = ""


class ArcChoice(Struct, frozen=True, omit_defaults=True, gc=False):
    """One evaluated arc."""

    target: str
    index: int
    held: bool
    token: str | None = None  # created if the arc was taken
    args: dict[str, Any] = field(default_factory=dict)
    dedupe: str | None = None  # keys of the token
    partition: str | None = None
    priority: float = 0.0


class CustomEvent(Event, frozen=True, omit_defaults=True):
    """An event of the playbook's own (`spec.policy.emit`), appended at the end of a step; its name is `custom.<name>`.

    `error`: its payload or condition could not be evaluated; the step is not affected."""

    NAME = "custom"
    ENTITY = "step"
    STATUS = "success"
    step: str
    step_run_id: str
    name: str
    data: Any = None
    error: ErrorInfo | None = None


class NextEvaluated(Event, frozen=True, omit_defaults=True):
    """A boundary event was routed: the results of the guards, and the arcs taken."""

    NAME = "next.evaluated"
    ENTITY = "next"
    STATUS = "success"
    step: str
    step_run_id: str
    boundary: str  # step.done | step.failed | loop.done
    arcs: tuple[ArcChoice, ...] = ()
    error: ErrorInfo | None = None  # a guard that could not be evaluated


# ── compensation ────────────────────────────────────────────────────────────────────────


class CompensationStarted(Event, frozen=True, omit_defaults=True):
    """A completed run is undone: by the step run `step_run_id` of `STEP.compensation`, or by a child execution."""

    NAME = "compensation.started"
    ENTITY = "step"
    step: str  # the step that is undone
    step_run_id: str
    run_id: str  # the run that is undone: a step run, or one of its iterations
    child: str | None = None  # the child execution whose steps are undone
    playbook: str | None = None  # its path


class CompensationDone(Event, frozen=True, omit_defaults=True):
    """A completed run was undone; `skipped`: its `when` was false, and nothing was to be done."""

    NAME = "compensation.done"
    ENTITY = "step"
    STATUS = "success"
    step: str
    step_run_id: str
    run_id: str
    skipped: bool = False


class CompensationFailed(Event, frozen=True, omit_defaults=True):
    """A compensation failed; the others continue."""

    NAME = "compensation.failed"
    ENTITY = "step"
    STATUS = "error"
    step: str
    step_run_id: str
    run_id: str
    error: ErrorInfo


# ── loops ───────────────────────────────────────────────────────────────────────────────


class LoopStarted(Event, frozen=True, omit_defaults=True):
    """A loop started: its collection was evaluated. `path` is the outer iteration."""

    NAME = "loop.started"
    ENTITY = "loop"
    step: str
    step_run_id: str
    count: int
    path: IterationPath = ()
    items: tuple[Any, ...] | None = None  # inline when small
    collection: Reference | None = None  # else by reference
    max_in_flight: int = 1
    keyed: bool = False  # the collection was a mapping


class IterationsKept(Event, frozen=True, omit_defaults=True):
    """Iterations of a loop have the results of an earlier execution (`kept` of the request), and do not run."""

    NAME = "loop.iterations.kept"
    ENTITY = "loop"
    STATUS = "success"
    step: str
    step_run_id: str
    indices: tuple[int, ...]
    path: IterationPath = ()


class IterationStarted(Event, frozen=True, omit_defaults=True):
    """An iteration was leased to a worker."""

    NAME = "loop.iteration.started"
    ENTITY = "loop"
    SOURCE = "worker"
    step: str
    step_run_id: str
    path: IterationPath
    epoch: int = 1
    worker: str = ""


class IterationDone(Event, frozen=True, omit_defaults=True):
    """The pipeline of an iteration completed successfully."""

    NAME = "loop.iteration.done"
    ENTITY = "loop"
    STATUS = "success"
    SOURCE = "worker"
    step: str
    step_run_id: str
    path: IterationPath
    output: Outcome
    step_patch: dict[str, Any] = field(default_factory=dict)
    stop: bool = False  # loop.spec.until held after it
    skipped: bool = False
    by_server: bool = False
    input: dict[str, Any] = field(default_factory=dict)  # evaluated by the worker; of a step with a compensation


class IterationFailed(Event, frozen=True, omit_defaults=True):
    """The pipeline of an iteration failed."""

    NAME = "loop.iteration.failed"
    ENTITY = "loop"
    STATUS = "error"
    SOURCE = "worker"
    step: str
    step_run_id: str
    path: IterationPath
    output: Outcome
    step_patch: dict[str, Any] = field(default_factory=dict)
    by_server: bool = False
    item: Any = None  # a small element of a collection that is stored by reference


class OutputsStored(Event, frozen=True, omit_defaults=True):
    """The outputs of a loop's first iterations were moved to the result store, to save memory."""

    NAME = "loop.outputs.kept"
    ENTITY = "loop"
    STATUS = "success"
    step: str
    step_run_id: str
    chunk: Reference  # a JSON list; it follows the chunks before it
    path: IterationPath = ()


class LoopDone(Event, frozen=True, omit_defaults=True):
    """All iterations of a loop ended (or it stopped early)."""

    NAME = "loop.done"
    ENTITY = "loop"
    STATUS = "success"
    step: str
    step_run_id: str
    path: IterationPath = ()
    total: int = 0
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0
    output: Outcome | None = None


# ── tasks ───────────────────────────────────────────────────────────────────────────────


class TaskStarted(Event, frozen=True, omit_defaults=True):
    """An attempt of a task started; durable before a tool with side effects runs."""

    NAME = "task.started"
    ENTITY = "task"
    SOURCE = "worker"
    step: str
    step_run_id: str
    task: str
    kind: str
    visit: int = 1
    attempt: int = 1
    path: IterationPath = ()


class TaskDone(Event, frozen=True, omit_defaults=True):
    """An attempt of a task ended and its policy was applied.

    `position` is the position of the pipeline: a later lease resumes there."""

    NAME = "task.done"
    ENTITY = "task"
    STATUS = "success"
    SOURCE = "worker"
    step: str
    step_run_id: str
    task: str
    kind: str
    outcome: Outcome
    visit: int = 1
    attempt: int = 1
    path: IterationPath = ()
    do: str = "continue"
    to: str | None = None
    delay: float = 0.0
    rule: int | None = None  # index of the rule that matched
    patch: dict[str, dict[str, Any]] = field(default_factory=dict)  # scope -> dotted path (`a.b`) -> value
    nondeterminism: dict[str, Any] = field(default_factory=dict, name="draws")
    position: Position | None = None
    skipped: bool = False
    input: dict[str, Any] | None = None  # what the templates of its input gave, masked; None: nothing, or not recorded
    input_ref: Reference | None = None  # the same, if it is large


class TaskProgress(Event, frozen=True, omit_defaults=True):
    """The progress of a long task; recorded only if the store is configured to."""

    NAME = "task.progress"
    ENTITY = "task"
    SOURCE = "worker"
    step: str
    step_run_id: str
    task: str
    visit: int = 1
    attempt: int = 1
    path: IterationPath = ()
    counts: dict[str, float] = field(default_factory=dict)


class ChildRequested(Event, frozen=True, omit_defaults=True):
    """A task called a playbook; the run takes no worker slot until the child has ended."""

    NAME = "child.requested"
    ENTITY = "task"
    SOURCE = "worker"
    step: str
    step_run_id: str
    task: str
    playbook: str  # path as in the task
    payload: dict[str, Any] = field(default_factory=dict)
    version: str | None = None
    return_step: str | None = None
    entry_step: str | None = None
    wait: bool = True
    visit: int = 1
    attempt: int = 1
    path: IterationPath = ()
    position: Position | None = None
    timeout_s: float | None = None  # timeout of the calling task


class ChildStarted(Event, frozen=True, omit_defaults=True):
    """The child execution exists."""

    NAME = "child.started"
    ENTITY = "task"
    step: str
    step_run_id: str
    task: str
    child: str  # execution id
    visit: int = 1
    attempt: int = 1
    path: IterationPath = ()


class ChildWaiting(Event, frozen=True, omit_defaults=True):
    """The child only waits for a signal or a time, or does so no longer."""

    NAME = "child.waiting"
    ENTITY = "task"
    step: str
    step_run_id: str
    task: str
    child: str
    waiting: bool = True
    child_seq: int = 0  # of the child's log at that moment: a later report has a higher one
    visit: int = 1
    attempt: int = 1
    path: IterationPath = ()


class ChildFinished(Event, frozen=True, omit_defaults=True):
    """The child ended; its output is the calling task's outcome. `early`: the calling task timed out."""

    NAME = "child.finished"
    ENTITY = "task"
    STATUS = "success"
    step: str
    step_run_id: str
    task: str
    child: str
    outcome: Outcome
    visit: int = 1
    attempt: int = 1
    path: IterationPath = ()
    early: bool = False
    compensable: bool = False  # the child completed steps that have a compensation


class WaitStarted(Event, frozen=True, omit_defaults=True):
    """A task waits for a signal or for time; the run takes no worker slot meanwhile."""

    NAME = "wait.started"
    ENTITY = "task"
    SOURCE = "worker"
    step: str
    step_run_id: str
    task: str
    signal: str | None = None  # None: it waits for time only
    title: str = ""
    form: Any = None  # JSON Schema of the signal's data
    roles: tuple[str, ...] = ("operator",)
    until: float | None = None  # seconds since the epoch
    for_s: float | None = None
    timeout_s: float | None = None
    visit: int = 1
    attempt: int = 1
    path: IterationPath = ()
    position: Position | None = None
    quota: Demand | None = None  # the task has not started: it waits until `until` for a token of this bucket


class WaitFinished(Event, frozen=True, omit_defaults=True):
    """The wait ended: a signal was taken, its time has come, or it timed out."""

    NAME = "wait.finished"
    ENTITY = "task"
    STATUS = "success"
    step: str
    step_run_id: str
    task: str
    outcome: Outcome
    signal: int | None = None  # seq of the signal that was taken
    visit: int = 1
    attempt: int = 1
    path: IterationPath = ()


class WorkerLost(Event, frozen=True, omit_defaults=True):
    """The lease of a run ended without its end: it expired, or the worker returned the run.

    It uses up an attempt, unless the worker returned the run before its tool had begun."""

    NAME = "worker.lost"
    ENTITY = "step"
    STATUS = "error"
    step: str
    step_run_id: str
    epoch: int
    path: IterationPath = ()
    worker: str = ""
    returned: bool = False  # the worker returned the run
    begun: bool = False  # of a returned run: its tool had begun
    stopped: bool = False  # the whole process (server and worker) stopped: no evidence against the run
    together: bool = False  # other workers may have been lost at the same time: weak evidence against the run
    resume: Outcome | None = None  # `ambiguous`: the effect of an at_most_once task is unknown


class ReportRefused(Event, frozen=True, omit_defaults=True):
    """A report had a known key with another body and was rejected."""

    NAME = "report.refused"
    ENTITY = "step"
    STATUS = "error"
    run_id: str
    epoch: int
    reason: str = ""


BODIES: dict[tuple[str, int], type[Event]] = {
    (body.NAME, body.VERSION): body
    for body in (
        ExecutionRequested, RequestEvaluated, WorkflowStarted, ExecutionPaused, ExecutionResumed,
        SignalReceived, SignalRefused, ExecutionCancelled, CtxPatched, StateCommitted, WorkflowSynthesized,
        WorkflowFinished, PlaybookProcessed, TokenParked, TokenMerged, StepScheduled, StepStarted, StepDone, StepFailed,
        StepSkipped, CustomEvent, NextEvaluated,
        LoopStarted, IterationsKept, IterationStarted, IterationDone, IterationFailed,
        CompensationStarted, CompensationDone, CompensationFailed,
        OutputsStored, LoopDone, TaskStarted, TaskDone, TaskProgress, ChildRequested, ChildStarted, ChildWaiting,
        ChildFinished, WaitStarted, WaitFinished, WorkerLost, ReportRefused,
    )
}  # fmt: skip


class Recorded(Struct, frozen=True, gc=False):
    """An event with its sequence number. `at` is seconds since the epoch (UTC)."""

    execution_id: str
    seq: int
    at: float
    body: Event
    parent_seq: int | None = None  # the event that caused it


_encode = msgspec.json.Encoder().encode
_decoders: dict[tuple[str, int], msgspec.json.Decoder[Any]] = {}  # created on first use: creating one is slow


def encode_body(body: Event) -> bytes:
    """Encode a body for the log."""
    return _encode(body)


def create_decoders() -> None:
    """Create all decoders now. msgspec crashes if two threads create decoders of types with a common part at the
    same time, so this must be called before events are decoded in threads."""
    for kind, body in BODIES.items():
        if kind not in _decoders:
            _decoders[kind] = msgspec.json.Decoder(body)


def decode_body(name: str, version: int, data: bytes) -> Event:
    """Decode a body from the log; an unknown name or version raises KeyError and is never skipped."""
    decoder = _decoders.get((name, version))
    if decoder is None:
        decoder = _decoders[name, version] = msgspec.json.Decoder(BODIES[name, version])
    event: Event = decoder.decode(data)
    return event


def envelope(recorded: Recorded) -> dict[str, Any]:
    """The event in the form of the API (002 section 15, 000 section 11)."""
    body = recorded.body
    payload = msgspec.to_builtins(body)
    step_run = payload.pop("step_run_id", None)
    path: IterationPath = tuple(payload.pop("path", ())) if "path" in body.__struct_fields__ and step_run else ()
    run = iteration_id(step_run, path) if step_run else None
    task = payload.get("task")
    task_run = None
    if task and run and body.ENTITY == "task":
        task_run = task_run_id(run, task, payload.get("visit", 1), payload.get("attempt", 1))
    entity_id = {
        "task": task_run,
        "step": step_run or getattr(body, "step", None),
        "loop": run,
        "next": step_run,
    }.get(body.ENTITY) or recorded.execution_id
    return {
        "event_id": event_id(recorded.execution_id, recorded.seq),
        "execution_id": recorded.execution_id,
        "seq": recorded.seq,
        "timestamp": instant(recorded.at),
        "source": "server" if getattr(body, "by_server", False) else body.SOURCE,
        "name": f"{body.NAME}.{body.name}" if isinstance(body, CustomEvent) else body.NAME,
        "version": body.VERSION,
        "entity_type": body.ENTITY,
        "entity_id": entity_id,
        "status": status_of(body),
        "step": getattr(body, "step", None),
        "step_run_id": step_run,
        "iteration_id": run if path else None,
        "iteration_index": path[-1] if path else None,
        "task_run_id": task_run,
        "task_label": task,
        "attempt": getattr(body, "attempt", None),
        "parent_event_id": event_id(recorded.execution_id, recorded.parent_seq) if recorded.parent_seq else None,
        "payload": payload,
    }


def shown_envelope(recorded: Recorded) -> dict[str, Any]:
    """The envelope for people and programs that read the log: texts under secret names (of a request, of `ctx`, of
    a signal) are masked, as in all other documents."""
    document = envelope(recorded)
    document["payload"] = {name: _shown(name, value) for name, value in document["payload"].items()}
    return document


def _shown(name: str, value: Any) -> Any:
    """A field of an event with user data masked; tokens of the net are no secrets, results are shown as they are."""
    if name in ("token", "tokens", "outcome", "output"):
        return value
    if name == "arcs":
        return [{key: _shown(key, each) for key, each in arc.items()} for arc in value]
    return mask_secret_names(value)


def recorded_of(document: Mapping[str, Any]) -> Recorded:
    """The event of an envelope; an unknown name or version raises KeyError."""
    name = document["name"]
    kind = BODIES[CustomEvent.NAME if name.startswith("custom.") else name, document["version"]]
    fields = dict(document["payload"])
    if document["step_run_id"] is not None:
        fields["step_run_id"] = document["step_run_id"]
        if "path" in kind.__struct_fields__:
            _, _, path = (document["iteration_id"] or "").rpartition("/")
            fields["path"] = [int(part) for part in path.split(".")] if path else []
    _, _, parent = (document["parent_event_id"] or "").rpartition("-")
    return Recorded(
        execution_id=document["execution_id"],
        seq=document["seq"],
        at=seconds(document["timestamp"]),
        body=msgspec.convert(fields, kind),
        parent_seq=int(parent) if parent else None,
    )


_FIRST, _LAST = -30_610_224_000.0, 253_402_300_799.0


def instant(at: float) -> str:
    """Seconds since the epoch as ISO 8601 text in UTC, to the microsecond; from the year 1000 to 9999."""
    if not _FIRST <= at <= _LAST:
        at = _LAST if at > _LAST else _FIRST  # such as the end of a wait of 1e300 seconds
    fraction, whole = modf(at)
    micros = round(fraction * 1e6)
    if not 0 <= micros < 1_000_000:  # rounded into the next second, or before the epoch
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return f"{_second(int(whole))}.{micros:06d}Z"


@lru_cache(maxsize=1024)
def _second(at: int) -> str:
    """A whole second as text; consecutive events mostly share it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def seconds(text: str) -> float:
    """Parse the text of `instant` to seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


def status_of(body: Event) -> Status:
    """The status of the envelope: that of the class, except for events with several possible results."""
    if isinstance(body, TaskDone):
        if body.skipped:
            return "skipped"
        return "success" if body.outcome.status == "ok" else "error"
    if isinstance(body, ChildFinished | WaitFinished):
        return "success" if body.outcome.status == "ok" else "error"
    if isinstance(body, WorkflowFinished | PlaybookProcessed):
        return "success" if body.outcome == "success" else "error"
    if isinstance(body, RequestEvaluated | WorkflowSynthesized | NextEvaluated | CustomEvent):
        return "error" if body.error else "success"
    return body.STATUS
