"""State: the folded log of one execution; the only mutable data of the engine, changed only in `evolve`.

    State ── waiting     tokens that wait before a step, by step
          ├─ runs        step runs that have not been routed yet
          │    └─ loops  one Loop per collection in progress (nested ones by their outer path)
          ├─ open        runs that can be leased: a step run, or one iteration in flight
          ├─ steps       a record per step name: its last outcome, its number of runs
          ├─ children    child executions that have not ended
          ├─ waits       tasks that wait for a signal or for time
          └─ signals     signals that no wait has taken yet

Sizes. An iteration is an object only while it is in flight. A finished one is a byte of status, a
checksum of its last report, and its output as JSON text in a chunk; iterations not yet started are
an index range. So a million iterations cost their outputs and a few bytes each.

`net` follows from the playbook, and attributes that begin with an underscore are caches and hints:
they are not part of the state, and are ignored when two states are compared.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

from noetl.core.engine.evaluation.compiled_net import Net, net_of
from noetl.core.model.compensation import CompensationCounts, CompletedRun, CompletedStep
from noetl.core.model.events import ChildRequested, Event, ExecutionRequested, FinalStatus, SignalReceived, WaitStarted
from noetl.core.model.ids import IterationPath, iteration_id
from noetl.core.model.outcome import ErrorInfo, Outcome
from noetl.core.model.playbook import Playbook, Step
from noetl.core.model.position import Position
from noetl.core.model.reference import Reference
from noetl.core.model.work import RunContext

RunStatus = Literal["queued", "leased", "suspended"]
Phase = Literal["open", "looped", "ended"]

PENDING, OK, FAILED, SKIPPED = 0, 1, 2, 3
CHUNK = 64 * 1024
MAX_FAILURES = 100  # failures that a loop lists individually
CommandContent = tuple[int, str]  # of a command with an idempotency key: the checksum, and the name of a signal
SUSPECT = 2  # workers lost in a row after which a run is executed alone on its worker
MAX_SEEN = 1024  # reported events of one lease that repetitions are compared with


# `gc=False` where an object cannot be part of a reference cycle: the collector does not track it.


class BoundaryEvent(Struct, gc=False, array_like=True):
    """The event that created a token, as the guards after it read it: the parts of its envelope."""

    name: str
    seq: int
    at: float
    by_server: bool = True
    parent_seq: int | None = None
    step_run_id: str | None = None
    outcome: Outcome | None = None


class Token(Struct, eq=False, gc=False):
    """A token of the net: it waits before a step until the step consumes it."""

    id: str
    step: str
    args: dict[str, Any]
    origin: str | None
    boundary: str | None
    seq: int  # of the event that created it
    reason: str | None = None  # why it is parked; None: not examined yet
    event: BoundaryEvent | None = None  # None in older snapshots
    dedupe: str | None = None
    partition: str | None = None
    priority: float = 0.0


class Run(Struct, eq=False, gc=False):
    """The unit of lease: a step run without a loop, or one iteration in flight."""

    id: str
    step_run: StepRun
    path: IterationPath = ()
    status: RunStatus = "queued"
    at: float = 0.0  # when it got this status
    epoch: int = 0
    worker: str = ""
    seq: int = 0  # of the lease
    position: Position | None = None
    resume: Outcome | None = None
    lost: int = 0  # attempts that lost leases used up since the last accepted task
    current: str | None = None  # the task that was reported as started
    waits: bool = False  # the next attempt starts after a delay
    child: str | None = None  # key of the child execution or the wait that it is suspended for
    latest: tuple[Event, ...] = ()  # the latest events reported under this epoch
    seen: dict[str, int] = {}  # event key -> checksum of the earlier ones
    contributions: dict[str, Any] | None = None  # writes to reduced keys; the last one counts
    started: tuple[str, int, int] | None = None  # task, visit and attempt of the last reported start
    suspect: int = 0  # workers lost in a row without an accepted task between them; see `State.isolated`


class Loop:
    """One collection in progress: that of a step, or that of an inner loop."""

    __slots__ = (
        "_announced", "ahead", "answers", "begun", "checksums", "chunks", "claimed", "collection", "count", "depth",
        "failed", "failed_items", "failures", "finished", "items", "keyed", "order", "out_of_order",
        "out_of_order_parts", "parts", "path", "seq", "skipped", "spilled", "statuses", "step_run", "stopped",
        "succeeded", "tail", "target", "window", "writes",
    )  # fmt: skip

    def __init__(
        self,
        step_run: StepRun,
        path: IterationPath,
        count: int,
        window: int,
        items: tuple[Any, ...] | None,
        collection: Reference | None,
        keyed: bool,
        seq: int,
    ) -> None:
        self.seq = seq  # of its start
        self.step_run = step_run
        self.path = path
        self.depth = len(path)  # 0: the step's own loop
        self.count = count
        self.window = window
        self.items = items
        self.collection = collection
        self.keyed = keyed
        self.target = count  # how many iterations will run; fewer once the loop was stopped
        self.stopped = False
        self.finished = 0
        self.succeeded = 0
        self.failed = 0
        self.skipped = 0
        self.begun = 0  # inner loops started (of a loop that has one)
        self.claimed = 0  # every index below was claimed at least once
        self.ahead: set[int] = set()  # claimed indices above that
        self.statuses = bytearray()
        self.checksums = array("I")
        self.order = 0  # every index below has finished, and its output is in chunks or tail
        self.spilled: list[Reference] = []  # outputs in the result store
        self.chunks: list[bytes] = []
        self.tail = bytearray()
        self.out_of_order: dict[int, bytes] = {}  # outputs that finished out of order
        self.answers: dict[int, bytes] = {}  # fields of the answers of http iterations, as JSON
        self.failures: list[tuple[int, ErrorInfo]] = []
        self.failed_items: dict[int, Any] = {}  # of `failures`, where the collection is stored
        self.writes: dict[str, tuple[Any, IterationPath]] = {}  # ctx path -> value and first writer
        self.parts: dict[str, Any] = {}  # reduction of all indices below `order`
        self.out_of_order_parts: dict[int, dict[str, Any]] = {}
        self._announced = 0

    @property
    def issued(self) -> int:
        """Indices below this can be claimed or were claimed."""
        return min(self.target, self.finished + self.window)

    @property
    def complete(self) -> bool:
        """Whether all iterations that will run have finished."""
        return self.finished >= self.target

    def status(self, index: int) -> int:
        """PENDING, OK, FAILED or SKIPPED."""
        return self.statuses[index] if index < len(self.statuses) else PENDING

    def unclaimed(self) -> Iterator[int]:
        """Issued indices that no worker has claimed yet, in order."""
        ahead = self.ahead
        for index in range(self.claimed, self.issued):
            if index not in ahead:
                yield index

    def id_of(self, index: int) -> str:
        """The run id of an iteration."""
        return iteration_id(self.step_run.id, (*self.path, index))

    def encoded(self) -> bytes:
        """The outputs of the iterations below `order` that are not in the result store, as one JSON list."""
        return b"[" + b",".join([*self.chunks, bytes(self.tail)] if self.tail else self.chunks) + b"]"


class StepRun(Struct, eq=False):
    """One run of a step, from its scheduling until it is routed."""

    id: str
    step: Step
    number: int
    args: dict[str, Any]
    input: dict[str, Any]
    scheduled_at: float
    seq: int  # of its scheduling
    defer_input: bool = False
    origin: str | None = None
    boundary: str | None = None
    started_at: float | None = None
    timeout_s: float | None = None
    deadline_at: float | None = None
    phase: Phase = "open"
    failed: bool = False  # it ended with step.failed; the output of step.done may be an error too
    outcome: Outcome | None = None
    results: dict[str, Outcome] = {}
    open: dict[str, None] = {}  # ids of its iterations in State.open
    loops: dict[IterationPath, Loop] = {}
    scope: dict[str, Any] = {}  # `step.*` of a loop step
    fired: tuple[int, ...] = ()  # indices of the arcs taken at loop.done
    synthesized: bool = False
    event: BoundaryEvent | None = None  # its latest boundary event
    completed: list[CompletedRun] = []  # what a compensation has to undo, in order of completion
    window: int = 1  # how many of them are undone at a time
    dedupe: str | None = None  # keys of the token that entered
    partition: str | None = None
    priority: float = 0.0
    _context: RunContext | None = None

    @property
    def due(self) -> float | None:
        """When it times out: from its first start, or at the execution's deadline."""
        limit = self.deadline_at
        if self.timeout_s is not None and self.started_at is not None:
            end = self.started_at + self.timeout_s
            limit = end if limit is None else min(limit, end)
        return limit


class Compensating(Struct, eq=False, gc=False):
    """A completed run that is being undone."""

    step: str
    run: CompletedRun


class StepRecord(Struct, eq=False, gc=False):
    """The record of a step over all its runs."""

    name: str
    number: int = 0  # runs so far
    open: int = 0  # runs that have not ended
    running: int = 0  # open runs that have started
    outcome: Outcome | None = None  # of the run that ended last
    failed: bool = False  # whether that run failed
    results: dict[str, Outcome] = {}
    started_at: float | None = None
    finished_at: float | None = None
    last: str | None = None  # id of the run that ended last
    ended: Event | None = None  # the event that ended it
    checksum: int = 0  # of that event, when the event itself is not available


class Child(Struct, eq=False, gc=False):
    """A child execution that has not ended."""

    key: str
    run_id: str
    request: ChildRequested
    seq: int  # of the request
    child: str | None = None  # execution id, once it exists
    waiting: bool = False  # it only waits for a signal or a time
    reported: int = 0  # seq of its log at the latest report of that


class OpenWait(Struct, eq=False, gc=False):
    """A task that waits for a signal or for time."""

    key: str
    run_id: str
    request: WaitStarted
    seq: int  # of the request
    at: float  # when it began

    @property
    def ends_at(self) -> float | None:
        """When the wait ends by itself, without an error."""
        request = self.request
        return request.until if request.for_s is None else self.at + request.for_s

    @property
    def times_out_at(self) -> float | None:
        """When the wait fails."""
        return None if self.request.timeout_s is None else self.at + self.request.timeout_s

    @property
    def due(self) -> float | None:
        """When a timer ends the wait, in one way or the other."""
        instants = [at for at in (self.ends_at, self.times_out_at) if at is not None]
        return min(instants, default=None)


class KeptSignal(Struct, eq=False, gc=False):
    """A signal that no wait has taken yet."""

    signal: SignalReceived
    at: float


class Ending:
    """Why the execution is ending: no step is scheduled any more."""

    __slots__ = ("compensate", "error", "outcome", "status", "step")

    def __init__(
        self,
        status: FinalStatus,
        error: ErrorInfo | None,
        step: str | None = None,
        outcome: Outcome | None = None,
        *,
        compensate: bool = True,
    ) -> None:
        self.compensate = compensate  # completed steps are undone before the execution ends
        self.status = status
        self.error = error
        self.step = step
        self.outcome = outcome


class State:
    """One execution, folded from its log."""

    __slots__ = (
        "_cause", "_mask", "at", "begun", "bucket", "bucket_at", "children", "compensated", "compensating",
        "compensations_left", "completed", "ctx", "due", "ending", "entry", "error", "execution_id", "finished",
        "isolated", "last_leaf", "leased", "live", "looping", "net", "open", "output", "paused",
        "playbook", "processed", "queued", "refused", "request", "result_step", "runs", "seq", "signal_ids", "signals",
        "started", "started_at", "step_runs", "steps", "synthesized", "tokens", "uncommitted", "unexamined",
        "versions", "waiting", "waiting_children", "waits", "workload",
    )  # fmt: skip

    def __init__(self, playbook: Playbook, execution_id: str) -> None:
        self.playbook = playbook
        self.execution_id = execution_id
        self.net: Net = net_of(playbook)  # the steps and arcs, synthesized ones included
        self.seq = 0
        self.at = 0.0
        self._cause: int | None = None  # seq of the cause of the event that is being applied
        self.request: ExecutionRequested | None = None
        self.started_at = 0.0
        self.workload: dict[str, Any] = {}
        self.ctx: dict[str, Any] = {}
        self.entry = ""
        self.started = False
        self.paused = False
        self.ending: Ending | None = None
        self.finished: FinalStatus | None = None
        self.processed = False
        self.output: Outcome | None = None
        self.error: ErrorInfo | None = None
        self.result_step: str | None = None
        self.tokens = 0  # number of tokens created so far
        self.step_runs = 0  # number of step runs created so far
        self.bucket = 0.0  # leaky bucket of repeated step runs at `bucket_at`: see `handlers.runaway`
        self.bucket_at = 0.0
        self.waiting: dict[str, list[Token]] = {}
        self.unexamined = 0  # waiting tokens that have not been examined yet
        self.runs: dict[str, StepRun] = {}
        self.live: dict[str, int] = {}  # step -> number of its open runs
        self._mask: int | None = None  # bits of all steps with a live token, once computed
        self.looping: dict[str, None] = {}  # step runs with a loop in progress
        self.open: dict[str, Run] = {}
        self.queued: dict[str, None] = {}  # ids in `open` that wait for a lease
        self.leased: dict[str, int] = {}  # step -> number of its leased runs
        self.isolated: dict[str, None] = {}  # ids in `open` with more losses than SUSPECT: one of all executions runs
        self.begun = False  # whether any run was leased yet
        self.steps: dict[str, StepRecord] = {}
        self.children: dict[str, Child] = {}
        self.waiting_children = 0
        self.waits: dict[str, OpenWait] = {}  # in the order in which they began
        self.signals: dict[int, KeptSignal] = {}  # by seq
        self.signal_ids: dict[str, CommandContent | None] = {}  # idempotency keys of the latest commands of users
        self.due: dict[str, float] = {}  # step run, token, child or wait -> when it times out
        self.last_leaf: str | None = None  # the step that finished last without a taken arc
        self.synthesized: dict[str, Step] = {}
        self.refused: dict[str, int] = {}  # run -> epoch of its recorded rejection
        self.completed: list[CompletedStep] = []  # what a compensation has to undo, in order of completion
        self.compensations_left: int | None = None  # runs of the last of them that are still to be undone; None: all
        self.compensating: dict[str, Compensating] = {}  # step run of the compensation -> what it undoes
        self.compensated = CompensationCounts()
        self.versions: dict[str, str] = {}  # of the stored values of `state`, by key
        self.uncommitted: dict[str, None] = {}  # keys of `state` that were written and are not committed yet

    @property
    def accepts_claims(self) -> bool:
        """Whether its queued runs can be leased: it is not paused and not ending, or compensations run."""
        if self.ending is not None:
            return bool(self.compensating) and self.finished is None
        return not self.paused and self.finished is None

    @property
    def depth(self) -> int:
        """The number of callers above this execution."""
        return self.request.parent.depth if self.request and self.request.parent else 0

    @property
    def status(self) -> str:
        """The status: pending, running, waiting, paused, success, failed or cancelled."""
        if self.finished:
            return self.finished
        if not self.started:
            return "pending"
        if self.paused:
            return "paused"
        return "waiting" if self.only_waits else "running"

    @property
    def only_waits(self) -> bool:
        """Whether every open run is a wait, or calls a child that only waits, and nothing else can happen: only a
        signal or a timer continues it."""
        waits = len(self.waits) + self.waiting_children
        if not waits or waits != len(self.open) or self.paused or self.unexamined:
            return False
        if len(self.children) != self.waiting_children:
            return False
        if self.ending is not None:
            return False
        return all(next(self._unclaimed(step_run_id), None) is None for step_run_id in self.looping)

    def _unclaimed(self, step_run_id: str) -> Iterator[int]:
        """Iterations of a step run that a worker can claim."""
        step_run = self.runs[step_run_id]
        innermost = len(self.net.compiled(step_run.step.name).loops) - 1
        for loop in step_run.loops.values():
            if loop.depth == innermost:
                yield from loop.unclaimed()

    def runs_of(self, step_run: StepRun) -> list[Run]:
        """The open runs of a step run: its own, or its iterations in flight."""
        own = self.open.get(step_run.id)
        if own is not None:
            return [own]
        return [self.open[run_id] for run_id in step_run.open]

    def loop_of(self, run_id: str) -> tuple[Loop, int] | None:
        """The open loop and the index that an iteration's run id names."""
        head, _, tail = run_id.partition("/")
        step_run = self.runs.get(head)
        if step_run is None or not tail:
            return None
        try:
            path = tuple(map(int, tail.split(".")))
        except ValueError:
            return None
        loop = step_run.loops.get(path[:-1])
        if loop is None or not 0 <= path[-1] < loop.count or iteration_id(head, path) != run_id:
            return None
        return loop, path[-1]


def begin(playbook: Playbook, execution_id: str) -> State:
    """The state of an execution without events."""
    return State(playbook, execution_id)
