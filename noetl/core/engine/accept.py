"""Is this fact still welcome? What is accepted becomes events, what is not gets its reason.

The log is closed after the end. A report is believed only under the current epoch of its run, and
only once: its events have keys (task, visit, attempt, what happened), and the same key with the
same body is answered as before, with another body it is refused and the refusal recorded.
Expiry alone does not fence: a slow worker whose run nobody else has claimed is still believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from noetl.core.engine.capacity import CapacityCheck
from noetl.core.engine.commands import (
    CancelExecution,
    ClaimRun,
    Command,
    ExpireLease,
    FireTimer,
    PauseExecution,
    RecordChildEnd,
    RecordChildStart,
    Reply,
    ReportRun,
    ResumeExecution,
    ReturnRun,
    SendSignal,
    StartExecution,
)
from noetl.core.engine.evaluation.context import EvaluationContext
from noetl.core.engine.handlers import reduce
from noetl.core.engine.handlers.assignments import ctx_patch
from noetl.core.engine.handlers.loops import fail_step
from noetl.core.engine.handlers.start import evaluate_request
from noetl.core.engine.identity import checksum, checksum_of, checksums_seen, key_of
from noetl.core.engine.lease_rules import claim, claim_refusal, end_run, kept_from, lose_lease, step_of
from noetl.core.engine.state import PENDING, Run, State
from noetl.core.model.events import (
    ChildFinished,
    ChildRequested,
    ChildStarted,
    CtxPatched,
    Event,
    ExecutionCancelled,
    ExecutionPaused,
    ExecutionResumed,
    IterationDone,
    IterationFailed,
    ReportRefused,
    SignalReceived,
    StepDone,
    StepFailed,
    TaskDone,
    TaskProgress,
    TaskStarted,
)
from noetl.core.model.outcome import ErrorInfo, Outcome, error, error_info
from noetl.core.model.work import Report, ReportAck

_ENDED = "the execution has ended"
_OF_A_STEP = frozenset([StepDone, StepFailed])
_OF_AN_ITERATION = frozenset([IterationDone, IterationFailed])
_OF_ANY_RUN = frozenset([TaskStarted, TaskDone, TaskProgress, ChildRequested])
_TERMINAL = _OF_A_STEP | _OF_AN_ITERATION
_YES = Reply(True)

# Applies events and goes on: later events of a report are judged by what the earlier ones did.
# The number is the seq of the event that caused them.
Record = Callable[[Sequence[Event], int | None], None]


def accept(state: State, fact: Command, env: EvaluationContext, record: Record) -> Reply:
    """Judge one fact: record what follows at once, answer."""
    kind = type(fact)
    if state.finished is not None and kind is not ReportRun and kind is not StartExecution:
        return Reply(False, _ENDED)
    if state.request is None and kind is not StartExecution:
        return Reply(False, "the execution has not been requested")
    return JUDGES[kind](state, fact, env, record)


# ── people ──────────────────────────────────────────────────────────────────────────────


def _request(state: State, fact: StartExecution, env: EvaluationContext, record: Record) -> Reply:
    if state.request is not None:
        return Reply(False, "the execution has been requested already")
    record([fact.request], None)
    record([evaluate_request(state, fact, env)], state.seq)
    return _YES


def _cancel(state: State, fact: CancelExecution, env: EvaluationContext, record: Record) -> Reply:
    if state.ending is None:
        record([ExecutionCancelled(reason=fact.reason)], None)
    return _YES


def _pause(state: State, fact: PauseExecution, env: EvaluationContext, record: Record) -> Reply:
    if state.ending is not None:
        return Reply(False, "the execution is ending")
    if not state.paused:
        record([ExecutionPaused(reason=fact.reason)], None)
    return _YES


def _resume(state: State, fact: ResumeExecution, env: EvaluationContext, record: Record) -> Reply:
    if state.paused:
        record([ExecutionResumed(reason=fact.reason)], None)
    return _YES


def _signal(state: State, fact: SendSignal, env: EvaluationContext, record: Record) -> Reply:
    if state.ending is not None:
        return Reply(False, "the execution is ending")
    record([SignalReceived(name=fact.name, payload=fact.payload)], None)
    if fact.payload:
        record([CtxPatched(ctx_patch(state.ctx, fact.payload), "signal")], state.seq)
    return _YES


# ── time ────────────────────────────────────────────────────────────────────────────────


def _timer(state: State, fact: FireTimer, env: EvaluationContext, record: Record) -> Reply:
    due = [run_id for run_id, at in state.due.items() if at <= env.at]
    for run_id in due:
        child = state.children.get(run_id)
        if child is not None and child.run_id in state.open:
            why = f"the child took longer than {child.request.timeout_s:g} s (spec.timeout)"
            outcome = Outcome("error", error=error_info("timeout", why))
            record([_child_finished(child.request, child.child or "", outcome, early=True)], child.seq)
            continue
        step_run = state.runs.get(run_id)
        if step_run is None or step_run.phase == "ended":
            continue
        if step_run.deadline_at is not None and step_run.deadline_at <= env.at:
            why = "the deadline of the step has passed"
        else:
            why = f"the step ran longer than {step_run.timeout_s:g} s"
        loop = step_run.loops.get(())
        helpers = {}
        if loop is not None:
            counts = {"total": loop.count, "succeeded": loop.succeeded, "failed": loop.failed}
            helpers["loop"] = {**counts, "skipped": loop.count - loop.succeeded - loop.failed}
        outcome = Outcome("error", error=error_info("timeout", why), helpers=helpers)
        record([fail_step(state, env, step_run, outcome)], step_run.seq)
    return _YES


# ── leases ──────────────────────────────────────────────────────────────────────────────


def _claim(state: State, fact: ClaimRun, env: EvaluationContext, record: Record) -> Reply:
    refusal = claim_refusal(state, fact.run_id)
    if refusal is not None:
        return Reply(False, refusal)
    if kept_from(state, fact.run_id, fact.worker):
        return Reply(False, "the loop is local, and another worker has it", kept=True)
    if env.room is not None:
        full = CapacityCheck(state, env.room, in_line=True).lacks(step_of(state, fact.run_id))
        if full is not None:
            return Reply(False, f"the limit of {full} is reached", limit=full)
    record(*claim(state, fact.worker, fact.run_id))
    return _YES  # advance adds the order, made when everything has settled


def _expired(state: State, fact: ExpireLease, env: EvaluationContext, record: Record) -> Reply:
    return _take_back(state, fact.run_id, fact.epoch, record, returned=False)


def _returned(state: State, fact: ReturnRun, env: EvaluationContext, record: Record) -> Reply:
    return _take_back(state, fact.run_id, fact.epoch, record, returned=True)


def _take_back(state: State, run_id: str, epoch: int, record: Record, *, returned: bool) -> Reply:
    run = state.open.get(run_id)
    if run is None or run.status != "leased" or run.epoch != epoch:
        return Reply(False, "the lease is no longer this one")
    record([lose_lease(state, run, returned=returned)], run.seq)
    return _YES


# ── reports ─────────────────────────────────────────────────────────────────────────────


def _report(state: State, fact: ReportRun, env: EvaluationContext, record: Record) -> Reply:
    report = fact.report
    run = state.open.get(report.run_id)
    if run is None:
        return _known(state, report) or _no(report, "the run has ended, or never was")
    if report.epoch != run.epoch:
        return _no(report, f"epoch {report.epoch} is not the current one ({run.epoch})")
    for event in report.events:
        if not _belongs(event, run):
            return _no(report, f"{event.NAME} is not an event of this run")
    fresh: Sequence[Event] = report.events
    if run.latest or run.seen:
        seen = checksums_seen(run)
        known = [seen.get(key_of(event)) for event in fresh]
        for event, check in zip(fresh, known, strict=True):
            if check is not None and check != checksum(event):
                return _refuse(state, run, report, f"{key_of(event)} was reported before with another body", record)
        fresh = [event for event, check in zip(fresh, known, strict=True) if check is None]
    if fresh and (run.status == "suspended" or not run.epoch):
        return _no(report, f"the run is {run.status}")
    return _accept_events(state, env, run, report, fresh, record)


def _accept_events(
    state: State, env: EvaluationContext, run: Run, report: Report, fresh: Sequence[Any], record: Record
) -> Reply:
    """Record the events of a report that are new, one after the other."""
    lease = run.seq
    plain: list[Event] = []  # nothing follows from them that the next one would have to know
    for event in fresh:
        kind = type(event)
        if kind is TaskDone and event.patch:
            if plain:
                record(plain, lease)
                plain = []
            problem = _accept_writes(state, run, event, record)
            if problem is not None:
                record([end_run(state, env, run, problem)], state.seq)
                return Reply(True, verdict=ReportAck(report.run_id, True, problem))
        elif kind in _TERMINAL:
            plain.append(_humbled(event) if event.by_server or (kind is StepFailed and event.fatal) else event)
            break
        else:
            plain.append(event)
            if kind is ChildRequested:
                break  # it waits for the child
    if plain:
        record(plain, lease)
        if type(plain[-1]) is ChildRequested:
            _limit_depth(state, plain[-1], record)
    return Reply(True, "", ReportAck(report.run_id, True))


def _no(report: Report, reason: str) -> Reply:
    return Reply(False, reason, ReportAck(report.run_id, False))


def _refuse(state: State, run: Run, report: Report, reason: str, record: Record) -> Reply:
    """A known key with another body: not believed, and recorded once per lease."""
    if state.refused.get(run.id) != run.epoch:
        record([ReportRefused(run_id=run.id, epoch=run.epoch, reason=reason)], run.seq)
    return _no(report, reason)


def _belongs(event: Any, run: Run) -> bool:
    """Whether a worker that holds this run's lease may report it."""
    kind = type(event)
    if kind in _OF_A_STEP:
        return bool(event.step_run_id == run.id and event.step == run.step_run.step.name)
    if kind not in _OF_ANY_RUN and not (run.path and kind in _OF_AN_ITERATION):
        return False
    step_run = run.step_run
    return bool(event.path == run.path and event.step_run_id == step_run.id and event.step == step_run.step.name)


def _humbled(event: Any) -> Event:
    """Only the server ends an execution, and only the server speaks for itself."""
    if type(event) is StepFailed:
        return msgspec.structs.replace(event, fatal=False, by_server=False)
    changed: Event = msgspec.structs.replace(event, by_server=False)
    return changed


def _known(state: State, report: Report) -> Reply | None:
    """The first answer again, when this is the report that ended the run."""
    if not report.events:
        return None
    last = report.events[-1]
    if isinstance(last, StepDone | StepFailed):
        record = state.steps.get(last.step)
        same = record is not None and record.last == report.run_id and checksum_of(record) == checksum(last)
    elif isinstance(last, IterationDone | IterationFailed):
        found = state.loop_of(report.run_id)
        if found is None:
            return None
        loop, index = found
        same = loop.status(index) != PENDING and loop.checksums[index] == checksum(last)
    else:
        return None
    return Reply(True, "it is known already", ReportAck(report.run_id, True)) if same else None


def _accept_writes(state: State, run: Run, event: TaskDone, record: Record) -> ErrorInfo | None:
    """Record a task that wrote into scopes; the problem it brought, if any, is returned."""
    writes: dict[str, Any] = event.patch.get("ctx") or {}
    problem = _conflict(state, run, writes) if writes and run.path else None
    if problem is not None:
        patch = {scope: values for scope, values in event.patch.items() if scope != "ctx"}
        record([msgspec.structs.replace(event, patch=patch)], run.seq)
        return problem
    record([event], run.seq)
    if writes and run.path:
        reducers = state.net.compiled(event.step).reduce
        writes = {key: value for key, value in writes.items() if key not in reducers}
    if writes:
        record([CtxPatched(ctx_patch(state.ctx, writes), "task", event.step, run.id)], state.seq)
    return None


def _limit_depth(state: State, event: ChildRequested, record: Record) -> None:
    deepest = state.playbook.executor.limits.max_call_depth
    if state.depth + 1 > deepest:
        outcome = error("limit", f"playbooks call each other more than {deepest} levels deep")
        record([_child_finished(event, "", outcome)], state.seq)


def _conflict(state: State, run: Run, writes: dict[str, Any]) -> ErrorInfo | None:
    """Whether an iteration writes what another parallel one wrote differently, or what a reducer cannot take."""
    compiled = state.net.compiled(run.step_run.step.name)
    for key, value in writes.items():
        if key in compiled.reduce:
            why = reduce.unfit(compiled.reduce[key], value)
            if why is not None:
                return error_info("schema", f"ctx.{key}: {why}")
    if compiled.parallel_from is None or compiled.parallel_to is None:
        return None
    known = run.step_run.loops[run.path[: compiled.parallel_from]].writes
    if not known:
        return None
    owner = run.path[: compiled.parallel_to + 1]
    for key, value in writes.items():
        if key in compiled.reduce:
            continue
        for other, (held, writer) in _overlapping(known, key):
            if writer != owner and (other != key or held != value):
                index = ".".join(map(str, writer))
                return error_info(
                    "ctx.conflict",
                    f"ctx.{key} was written by iteration {index} of this parallel loop with another value; "
                    "write iter.* instead, or declare a reducer (loop.spec.policy.reduce)",
                    details={"key": key, "iteration": index},
                )
    return None


def _overlapping(
    known: dict[str, tuple[Any, tuple[int, ...]]], key: str
) -> Iterator[tuple[str, tuple[Any, tuple[int, ...]]]]:
    """Writes of the same path, of one above it, or of one below it."""
    if key in known:
        yield key, known[key]
    above = key
    while "." in above:
        above = above.rpartition(".")[0]
        if above in known:
            yield above, known[above]
    below = f"{key}."
    yield from ((other, write) for other, write in known.items() if other.startswith(below))


# ── children ────────────────────────────────────────────────────────────────────────────


def _child_finished(request: ChildRequested, child: str, outcome: Outcome, *, early: bool = False) -> ChildFinished:
    return ChildFinished(
        step=request.step,
        step_run_id=request.step_run_id,
        task=request.task,
        child=child,
        outcome=outcome,
        visit=request.visit,
        attempt=request.attempt,
        path=request.path,
        early=early,
    )


def _child_began(state: State, fact: RecordChildStart, env: EvaluationContext, record: Record) -> Reply:
    child = state.children.get(fact.key)
    if child is None:
        return Reply(False, "nobody waits for this child")
    if child.child is None:
        request = child.request
        started = ChildStarted(
            step=request.step,
            step_run_id=request.step_run_id,
            task=request.task,
            child=fact.child,
            visit=request.visit,
            attempt=request.attempt,
            path=request.path,
        )
        record([started], child.seq)
    return _YES


def _child_ended(state: State, fact: RecordChildEnd, env: EvaluationContext, record: Record) -> Reply:
    child = state.children.get(fact.key)
    if child is None:
        return Reply(False, "nobody waits for this child")
    record([_child_finished(child.request, fact.child, fact.outcome)], child.seq)
    return _YES


JUDGES: dict[type[Command], Callable[[State, Any, EvaluationContext, Record], Reply]] = {
    StartExecution: _request,
    CancelExecution: _cancel,
    PauseExecution: _pause,
    ResumeExecution: _resume,
    SendSignal: _signal,
    FireTimer: _timer,
    ClaimRun: _claim,
    ExpireLease: _expired,
    ReturnRun: _returned,
    ReportRun: _report,
    RecordChildStart: _child_began,
    RecordChildEnd: _child_ended,
}
