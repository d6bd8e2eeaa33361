"""How each event changes the state: the only writer of State.

One applier per event type, no decisions, no templates, no clock: an event that was accepted is
applied, live and in replay alike. An event without an applier stops the replay.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import msgspec

from noetl.engine import reduce
from noetl.engine.identity import checksum, checksums_seen
from noetl.engine.state import (
    CHUNK,
    FAILED,
    MAX_FAILURES,
    OK,
    SKIPPED,
    Child,
    Ending,
    Loop,
    Run,
    State,
    StepRecord,
    StepRun,
    Token,
)
from noetl.errors import CorruptLog
from noetl.model.events import (
    ChildFinished,
    ChildRequested,
    ChildStarted,
    CtxPatched,
    Event,
    ExecutionCancelled,
    ExecutionPaused,
    ExecutionRequested,
    ExecutionResumed,
    IterationDone,
    IterationFailed,
    IterationStarted,
    LoopDone,
    LoopStarted,
    NextEvaluated,
    OutputsKept,
    PlaybookProcessed,
    ReportRefused,
    RequestEvaluated,
    SignalReceived,
    StepDone,
    StepFailed,
    StepScheduled,
    StepSkipped,
    StepStarted,
    TaskDone,
    TaskProgress,
    TaskStarted,
    TokenParked,
    WorkerLost,
    WorkflowFinished,
    WorkflowStarted,
    WorkflowSynthesized,
)
from noetl.model.ids import iteration_id, task_run_id
from noetl.model.outcome import ErrorInfo, Outcome, ok

Applier = Callable[[State, Any, float], None]

APPLIERS: dict[type[Event], Applier] = {}
_json = msgspec.json.Encoder().encode


def applies(*types: type[Event]) -> Callable[[Applier], Applier]:
    """Name the function that applies these events."""

    def name(applier: Applier) -> Applier:
        for each in types:
            APPLIERS[each] = applier
        return applier

    return name


def evolve(state: State, event: Event, at: float) -> None:
    """Apply one event that happened at `at`."""
    applier = APPLIERS.get(type(event))
    if applier is None:
        raise CorruptLog(f"execution {state.execution_id}: no applier for {type(event).__name__}")
    state.seq += 1
    state.at = at
    applier(state, event, at)


# ── the execution ───────────────────────────────────────────────────────────────────────


@applies(ExecutionRequested)
def _requested(state: State, event: ExecutionRequested, at: float) -> None:
    state.request = event
    state.started_at = at


@applies(RequestEvaluated)
def _evaluated(state: State, event: RequestEvaluated, at: float) -> None:
    state.workload = event.workload
    if event.error is not None:
        state.ending = Ending("failed", event.error)
        return
    kept = state.request.kept if state.request else None
    if kept is not None:
        state.ctx = kept.ctx
        for name, outcome in kept.results.items():
            record = _record(state, name)
            record.outcome = outcome
            record.failed = outcome.status == "error"
            record.finished_at = at


@applies(WorkflowStarted)
def _started(state: State, event: WorkflowStarted, at: float) -> None:
    state.started = True
    state.entry = event.entry
    kept = state.request.kept if state.request else None
    _arrive(state, f"t{state.tokens + 1}", event.entry, kept.args if kept else {}, None, None)


@applies(ExecutionPaused)
def _paused(state: State, event: ExecutionPaused, at: float) -> None:
    state.paused = True


@applies(ExecutionResumed)
def _resumed(state: State, event: ExecutionResumed, at: float) -> None:
    state.paused = False


@applies(SignalReceived, TaskProgress)
def _noted(state: State, event: Event, at: float) -> None:
    """What it means for the state is said by events of its own."""


@applies(ExecutionCancelled)
def _cancelled(state: State, event: ExecutionCancelled, at: float) -> None:
    error = ErrorInfo("cancelled", event.reason or "the execution was cancelled")
    state.ending = Ending("cancelled", error)
    for step_run in [each for each in state.runs.values() if each.phase == "ended"]:
        _leave(state, step_run)


@applies(CtxPatched)
def _patched(state: State, event: CtxPatched, at: float) -> None:
    state.ctx = {**state.ctx, **event.patch}


@applies(WorkflowSynthesized)
def _synthesized(state: State, event: WorkflowSynthesized, at: float) -> None:
    step_run = state.runs[event.step_run_id]
    step_run.synthesized = True
    if event.error is not None:
        return
    for step in event.steps:
        state.synthesized[step.name] = step
    state.net = state.net.extended(state.synthesized)
    state._mask = None
    if event.entry is not None:
        _arrive(state, f"t{state.tokens + 1}", event.entry, {}, event.step, "step.done")


@applies(WorkflowFinished)
def _finished(state: State, event: WorkflowFinished, at: float) -> None:
    state.finished = event.outcome
    state.output = event.output
    state.error = event.error
    state.result_step = event.step


@applies(PlaybookProcessed)
def _processed(state: State, event: PlaybookProcessed, at: float) -> None:
    state.processed = True


# ── tokens and steps ────────────────────────────────────────────────────────────────────


def _record(state: State, name: str) -> StepRecord:
    record = state.steps.get(name)
    if record is None:
        record = state.steps[name] = StepRecord(name)
    return record


def _arrive(
    state: State, token: str, step: str, args: dict[str, Any], origin: str | None, boundary: str | None
) -> None:
    state.tokens += 1
    state.fresh += 1
    made = Token(token, step, args, origin, boundary, state.seq)
    group = state.waiting.get(step)
    if group is None:
        state.waiting[step] = [made]
        if state._mask is not None:
            state._mask |= state.net.bits[step]
    else:
        group.append(made)


def _vacate(state: State, step: str) -> None:
    """No token is left before or in a step, perhaps."""
    if state._mask is not None and step not in state.live and step not in state.waiting:
        state._mask &= ~state.net.bits[step]


def _consume(state: State, step: str, tokens: tuple[str, ...]) -> list[Token]:
    group = state.waiting.get(step, [])
    if len(tokens) == len(group):
        taken = state.waiting.pop(step, group)
    else:
        taken = [token for token in group if token.id in tokens]
        state.waiting[step] = [token for token in group if token.id not in tokens]
    for token in taken:
        if token.reason is None:
            state.fresh -= 1
    return taken


@applies(TokenParked)
def _parked(state: State, event: TokenParked, at: float) -> None:
    for token in state.waiting[event.step]:
        if token.id == event.token:
            if token.reason is None:
                state.fresh -= 1
            token.reason = event.reason


@applies(StepSkipped)
def _skipped(state: State, event: StepSkipped, at: float) -> None:
    _consume(state, event.step, (event.token,))
    _vacate(state, event.step)


@applies(StepScheduled)
def _scheduled(state: State, event: StepScheduled, at: float) -> None:
    name = event.step
    taken = _consume(state, name, event.tokens)
    origin, boundary = (taken[-1].origin, taken[-1].boundary) if taken else (None, None)
    compiled = state.net.compiled(name)
    record = state.steps.get(name)
    if record is None:
        record = state.steps[name] = StepRecord(name)
    record.number += 1
    record.open += 1
    state.step_runs += 1
    run_id = event.step_run_id
    step_run = state.runs[run_id] = StepRun(
        run_id, compiled.step, record.number, event.args, event.input, at, state.seq, event.defer_input, origin,
        boundary, None, event.timeout_s, event.deadline_at,
    )  # fmt: skip
    state.live[name] = state.live.get(name, 0) + 1
    if event.deadline_at is not None:
        state.due[run_id] = event.deadline_at
    if compiled.plain:
        state.open[run_id] = Run(run_id, step_run, (), "queued", at)
        state.queued[run_id] = None


def _begin(state: State, step_run: StepRun, at: float) -> None:
    """The first start of a step run: from here its timeout counts."""
    step_run.started_at = at
    record = state.steps[step_run.step.name]
    record.running += 1
    record.started_at = at
    if step_run.timeout_s is not None:
        due = step_run.due
        if due is not None:
            state.due[step_run.id] = due


def _lease(state: State, run: Run, epoch: int, worker: str) -> None:
    run.status = "leased"
    run.epoch = epoch
    run.worker = worker
    run.seq = state.seq
    run.at = state.at
    run.current = None
    run.latest = None
    if run.seen:
        run.seen = {}
    state.queued.pop(run.id, None)


@applies(StepStarted)
def _step_started(state: State, event: StepStarted, at: float) -> None:
    step_run = state.runs[event.step_run_id]
    if step_run.started_at is None:
        _begin(state, step_run, at)
    run = state.open.get(event.step_run_id)
    if run is not None:
        _lease(state, run, event.epoch, event.worker)


def _close_runs(state: State, step_run: StepRun) -> None:
    for run_id in step_run.open:
        del state.open[run_id]
        state.queued.pop(run_id, None)
    step_run.open = {}
    step_run.loops = {}
    del state.looping[step_run.id]


def _leave(state: State, step_run: StepRun) -> None:
    """The step run is over: its token has left, or will never."""
    del state.runs[step_run.id]
    name = step_run.step.name
    left = state.live[name] - 1
    if left:
        state.live[name] = left
    else:
        del state.live[name]
        _vacate(state, name)


@applies(StepDone, StepFailed)
def _step_ended(state: State, event: StepDone | StepFailed, at: float) -> None:
    step_run = state.runs[event.step_run_id]
    record = state.steps[event.step]
    if step_run.phase != "ended":
        record.open -= 1
        if step_run.started_at is not None:
            record.running -= 1
    if step_run.loops:
        _close_runs(state, step_run)
    elif state.open.pop(step_run.id, None) is not None and state.queued:
        state.queued.pop(step_run.id, None)
    step_run.phase = "ended"
    step_run.outcome = record.outcome = event.output
    step_run.failed = record.failed = type(event) is StepFailed
    step_run.results = record.results = event.results
    record.finished_at = at
    record.last = step_run.id
    record.ended = event
    if state.due:
        state.due.pop(step_run.id, None)
    if state.ending is not None:
        _leave(state, step_run)
    elif type(event) is StepFailed and event.fatal:
        state.ending = Ending("failed", event.output.error, event.step, event.output)
        _leave(state, step_run)


@applies(NextEvaluated)
def _routed(state: State, event: NextEvaluated, at: float) -> None:
    step_run = state.runs[event.step_run_id]
    taken = False
    for arc in event.arcs:
        if arc.token is not None:
            taken = True
            _arrive(state, arc.token, arc.target, arc.args, event.step, event.boundary)
    if event.error is not None:
        state.ending = Ending("failed", event.error, event.step, step_run.outcome)
        if step_run.phase == "ended":
            _leave(state, step_run)
        return
    if event.boundary == "loop.done":
        step_run.fired = tuple(arc.index for arc in event.arcs if arc.token is not None)
        return
    _leave(state, step_run)
    if taken or step_run.fired:
        return
    if event.boundary == "step.failed":
        outcome = step_run.outcome
        state.ending = Ending("failed", outcome.error if outcome else None, event.step, outcome)
    else:
        state.leaves = event.step


# ── loops ───────────────────────────────────────────────────────────────────────────────


@applies(LoopStarted)
def _loop_started(state: State, event: LoopStarted, at: float) -> None:
    step_run = state.runs[event.step_run_id]
    path = event.path
    state.looping[step_run.id] = None
    step_run.loops[path] = Loop(
        step_run, path, event.count, event.max_in_flight, event.items, event.collection, event.keyed, state.seq
    )
    if step_run.started_at is None:
        _begin(state, step_run, at)
    if path:
        step_run.loops[path[:-1]].begun += 1


@applies(IterationStarted)
def _iteration_started(state: State, event: IterationStarted, at: float) -> None:
    step_run = state.runs[event.step_run_id]
    path = event.path
    run_id = iteration_id(step_run.id, path)
    run = state.open.get(run_id)
    if run is None:
        run = state.open[run_id] = Run(run_id, step_run, path)
        step_run.open[run_id] = None
        loop = step_run.loops[path[:-1]]
        index = path[-1]
        if index == loop.claimed:
            loop.claimed += 1
            while loop.claimed in loop.ahead:
                loop.ahead.discard(loop.claimed)
                loop.claimed += 1
        else:
            loop.ahead.add(index)
    _lease(state, run, event.epoch, event.worker)


@applies(IterationDone, IterationFailed)
def _iteration_ended(state: State, event: IterationDone | IterationFailed, at: float) -> None:
    step_run = state.runs[event.step_run_id]
    path = event.path
    loop = step_run.loops[path[:-1]]
    index = path[-1]
    run_id = iteration_id(step_run.id, path)
    run = state.open.pop(run_id, None)
    contributions: dict[str, Any] | None = None
    if run is not None:
        state.queued.pop(run_id, None)
        del step_run.open[run_id]
        contributions = run.contributions
    if event.step_patch:
        step_run.scope = {**step_run.scope, **event.step_patch}
    inner = step_run.loops.pop(path, None)
    if run is None and inner is None:
        loop.begun += 1  # its inner loop could not begin
    if type(event) is IterationDone:
        status = SKIPPED if event.skipped else OK
        if event.stop and not loop.stopped:
            loop.stopped = True
            loop.target = loop.issued
        data = _data_of(event.output)
        parts = _parts_of(state, step_run, inner, contributions)
        if event.skipped:
            loop.skipped += 1
        else:
            loop.succeeded += 1
    else:
        status, data, parts = FAILED, b"null", None
        loop.failed += 1
        if len(loop.failures) < MAX_FAILURES and event.output.error is not None:
            loop.failures.append((index, event.output.error))
    _finish(state, loop, index, status, data, parts, checksum(event))


def _data_of(output: Outcome) -> bytes:
    """What an iteration adds to the list of outputs: its data, or where it is."""
    return _json(output.ref if output.ref is not None and output.data is None else output.data)


def _parts_of(
    state: State, step_run: StepRun, inner: Loop | None, contributions: dict[str, Any] | None
) -> dict[str, Any] | None:
    if inner is not None:
        return inner.parts or None
    if not contributions:
        return None
    reducers = state.net.compiled(step_run.step.name).reduce
    return {key: reduce.part(reducers[key], value) for key, value in contributions.items()}


def _finish(
    state: State, loop: Loop, index: int, status: int, data: bytes, parts: dict[str, Any] | None, check: int
) -> None:
    if index >= len(loop.statuses):
        more = min(loop.count, max(index + 1, 2 * len(loop.statuses))) - len(loop.statuses)
        loop.statuses.extend(bytes(more))
        loop.checksums.extend(array("I", bytes(4 * more)))
    loop.statuses[index] = status
    loop.checksums[index] = check
    loop.finished += 1
    if index != loop.order:
        loop.held[index] = data
        if parts:
            loop.held_parts[index] = parts
        return
    while True:
        _append_output(loop, data)
        if parts:
            _join_parts(state, loop, parts)
        loop.order += 1
        if loop.order not in loop.held:
            return
        data = loop.held.pop(loop.order)
        parts = loop.held_parts.pop(loop.order, None)


def _append_output(loop: Loop, data: bytes) -> None:
    tail = loop.tail
    if tail:
        tail += b","
    tail += data
    if len(tail) >= CHUNK:
        loop.chunks.append(bytes(tail))
        loop.tail = bytearray()


def _join_parts(state: State, loop: Loop, parts: dict[str, Any]) -> None:
    reducers = state.net.compiled(loop.step_run.step.name).reduce
    for key, value in parts.items():
        if key in loop.parts:
            loop.parts[key] = reduce.join(reducers[key], loop.parts[key], value)
        else:
            loop.parts[key] = value


@applies(OutputsKept)
def _outputs_kept(state: State, event: OutputsKept, at: float) -> None:
    loop = state.runs[event.step_run_id].loops[event.path]
    loop.spilled.append(event.chunk)
    loop.chunks = []


@applies(LoopDone)
def _loop_done(state: State, event: LoopDone, at: float) -> None:
    step_run = state.runs[event.step_run_id]
    path = event.path
    loop = step_run.loops[path]
    loop.chunks = []
    loop.tail = bytearray()
    loop.held = {}
    if not path:
        step_run.phase = "looped"
        step_run.outcome = event.output


# ── tasks, leases, children ─────────────────────────────────────────────────────────────


def _run_of(state: State, event: Any) -> Run | None:
    path = event.path
    return state.open.get(iteration_id(event.step_run_id, path) if path else event.step_run_id)


def _saw(run: Run, event: Event) -> None:
    """Remember what was reported last; what came before it is kept as a checksum."""
    if run.latest is not None:
        run.seen = checksums_seen(run)
    run.latest = event


@applies(TaskStarted)
def _task_started(state: State, event: TaskStarted, at: float) -> None:
    run = _run_of(state, event)
    if run is not None:
        run.current = event.task
        run.waits = False
        _saw(run, event)


@applies(TaskDone)
def _task_done(state: State, event: TaskDone, at: float) -> None:
    path = event.path
    run = state.open.get(iteration_id(event.step_run_id, path) if path else event.step_run_id)
    if run is None:
        return
    if run.latest is not None:
        _saw(run, event)
    run.latest = event
    run.position = event.position
    run.resume = None
    run.lost = 0
    run.current = None
    run.waits = event.delay > 0
    if not path or not event.patch:
        return
    patch = event.patch.get("ctx")
    if patch:
        reducers = state.net.compiled(event.step).reduce
        mine = {key: value for key, value in patch.items() if key in reducers}
        if mine:
            run.contributions = {**run.contributions, **mine} if run.contributions else mine
        _wrote(state, run, {key: value for key, value in patch.items() if key not in reducers})


def _wrote(state: State, run: Run, patch: dict[str, Any]) -> None:
    """Remember who wrote a key first, in the outermost parallel loop around the iteration."""
    compiled = state.net.compiled(run.step_run.step.name)
    if not patch or compiled.parallel_from is None or compiled.parallel_to is None:
        return
    loop = run.step_run.loops[run.path[: compiled.parallel_from]]
    owner = run.path[: compiled.parallel_to + 1]
    for key, value in patch.items():
        known = loop.writes.get(key)
        if known is None or known[1] == owner:
            loop.writes[key] = (value, owner)


def _requeue(state: State, run: Run) -> None:
    run.status = "queued"
    run.at = state.at
    run.worker = ""
    state.queued[run.id] = None


@applies(WorkerLost)
def _worker_lost(state: State, event: WorkerLost, at: float) -> None:
    run = _run_of(state, event)
    if run is None:
        return
    if not event.returned:
        run.lost += 1
    if event.resume is not None:
        run.resume = event.resume
    _requeue(state, run)


@applies(ChildRequested)
def _child_requested(state: State, event: ChildRequested, at: float) -> None:
    run = _run_of(state, event)
    if run is None:
        return
    key = task_run_id(run.id, event.task, event.visit, event.attempt)
    if event.position is not None:
        run.position = event.position
    run.status = "suspended"
    run.at = at
    run.worker = ""
    run.lost = 0
    run.current = None
    run.child = key
    _saw(run, event)
    state.children[key] = Child(key, run.id, event, state.seq)


def _answered(state: State, key: str, outcome: Outcome) -> None:
    child = state.children.pop(key)
    run = state.open.get(child.run_id)
    if run is not None and run.child == key:
        run.child = None
        run.resume = outcome
        _requeue(state, run)


@applies(ChildStarted)
def _child_started(state: State, event: ChildStarted, at: float) -> None:
    key = task_run_id(iteration_id(event.step_run_id, event.path), event.task, event.visit, event.attempt)
    child = state.children[key]
    child.child = event.child
    if not child.request.wait:
        _answered(state, key, ok({"execution_id": event.child, "status": "started"}))


@applies(ChildFinished)
def _child_finished(state: State, event: ChildFinished, at: float) -> None:
    key = task_run_id(iteration_id(event.step_run_id, event.path), event.task, event.visit, event.attempt)
    _answered(state, key, event.outcome)


@applies(ReportRefused)
def _refused(state: State, event: ReportRefused, at: float) -> None:
    state.refused[event.run_id] = event.epoch
