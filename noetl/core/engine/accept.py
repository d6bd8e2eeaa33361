"""Command acceptance: an accepted command becomes events, a rejected one gets a reason.

The log is closed after the end. A report is accepted only under the current epoch of its run, and
only once: its events have keys (task, visit, attempt, event type). A repeated key with the same body
gets the same answer; with another body the report is rejected, and the rejection is recorded.
Expiry alone does not fence: the report of a slow worker is accepted as long as no other worker has
claimed its run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from noetl.core.engine.capacity import NO_CAPACITY, CapacityCheck
from noetl.core.engine.commands import (
    CancelExecution,
    ClaimRun,
    Command,
    ExpireLease,
    FireTimer,
    PauseExecution,
    RecordChildEnd,
    RecordChildStart,
    RecordChildWait,
    Reply,
    ReportRun,
    ResumeExecution,
    ReturnRun,
    SendSignal,
    StartExecution,
)
from noetl.core.engine.evaluation.context import EvaluationContext, Failure
from noetl.core.engine.handlers import reduce
from noetl.core.engine.handlers.admission import time_out_tokens
from noetl.core.engine.handlers.assignments import ctx_patch
from noetl.core.engine.handlers.loops import fail_step, loop_counts
from noetl.core.engine.handlers.signals import OPERATOR, deliver, end_due_wait, is_for_wait, take_kept
from noetl.core.engine.handlers.start import evaluate_request
from noetl.core.engine.identity import checksum, checksum_of, checksums_seen, command_content, is_repeated, key_of
from noetl.core.engine.lease_rules import claim, claim_rejection, end_run, lose_lease, reserved_for_other, step_of
from noetl.core.engine.state import PENDING, Run, State
from noetl.core.model.events import (
    ChildFinished,
    ChildRequested,
    ChildStarted,
    ChildWaiting,
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
    WaitStarted,
)
from noetl.core.model.outcome import ErrorInfo, Outcome, error, error_info
from noetl.core.model.playbook import STATE_KEY, WORKBOOK, target_name
from noetl.core.model.work import Report, ReportAck

_ENDED = "the execution has ended"
_STEP_ENDS = frozenset([StepDone, StepFailed])
_ITERATION_ENDS = frozenset([IterationDone, IterationFailed])
_SUSPENDING = frozenset([ChildRequested, WaitStarted])  # the run continues after the child or the wait has ended
_TASK_EVENTS = frozenset([TaskStarted, TaskDone, TaskProgress]) | _SUSPENDING
_RUN_ENDS = _STEP_ENDS | _ITERATION_ENDS
_CLOSING = _RUN_ENDS | _SUSPENDING | {TaskDone}  # what can follow the start of a task
_ACCEPTED = Reply(True)
_KEYED = frozenset([CancelExecution, PauseExecution, ResumeExecution, SendSignal])  # commands with an idempotency key

# Applies events at once: later events of a report are judged by the state after the earlier ones.
# The number is the seq of the event that caused them.
Record = Callable[[Sequence[Event], int | None], None]


def accept(state: State, command: Command, env: EvaluationContext, record: Record) -> Reply:
    """Judge one command, record the events that follow at once, and return the reply."""
    kind = type(command)
    if state.signal_ids and kind in _KEYED and command.id in state.signal_ids:  # type: ignore[attr-defined]
        return _repeated_command(state, command)  # also after the end
    if state.finished is not None and kind is not ReportRun and kind is not StartExecution:
        return Reply(False, _ENDED)
    if state.request is None and kind is not StartExecution:
        return Reply(False, "the execution has not been requested")
    return COMMAND_HANDLERS[kind](state, command, env, record)


def _repeated_command(state: State, command: Any) -> Reply:
    """The reply to a command with a known key: it has no second effect, and another command is refused."""
    if is_repeated(state.signal_ids[command.id], command_content(command)):
        return _ACCEPTED
    return Reply(False, f"the key {command.id!r} was used for another command; use a new key for a new command")


# ── requests from outside ───────────────────────────────────────────────────────────────


def _start(state: State, command: StartExecution, env: EvaluationContext, record: Record) -> Reply:
    if state.request is not None:
        return Reply(False, "the execution has already been requested")
    values = {key: env.for_log(value) for key, value in command.state.items()}  # may request data: before all events
    record([command.request], None)
    record([evaluate_request(state, command, env, values)], state.seq)
    return _ACCEPTED


def _cancel(state: State, command: CancelExecution, env: EvaluationContext, record: Record) -> Reply:
    if state.ending is None:
        cancelled = ExecutionCancelled(
            reason=command.reason, error=command.error, compensate=command.compensate, id=command.id
        )
        record([cancelled], None)
    elif command.compensate and not state.ending.compensate:
        return Reply(False, "the execution is ending already, and its completed steps are not undone")
    return _ACCEPTED


def _pause(state: State, command: PauseExecution, env: EvaluationContext, record: Record) -> Reply:
    if state.ending is not None:
        return Reply(False, "the execution is ending")
    if not state.paused or command.id:  # the log remembers the key also where nothing changes
        record([ExecutionPaused(reason=command.reason, id=command.id)], None)
    return _ACCEPTED


def _resume(state: State, command: ResumeExecution, env: EvaluationContext, record: Record) -> Reply:
    if state.paused or command.id:
        record([ExecutionResumed(reason=command.reason, id=command.id)], None)
    return _ACCEPTED


def _signal(state: State, command: SendSignal, env: EvaluationContext, record: Record) -> Reply:
    if state.ending is not None and not (state.compensating and is_for_wait(state, command)):
        return Reply(False, "the execution is ending")
    if is_for_wait(state, command):
        return deliver(state, command, env.at, record)
    if command.roles is not None and OPERATOR not in command.roles:
        return Reply(False, f"a signal that changes ctx requires the role {OPERATOR}", problem="role")
    if any(key.startswith(STATE_KEY) for key in command.payload):
        return Reply(False, "a signal cannot change state", problem="data")
    try:
        patch = ctx_patch(env, state.ctx, command.payload)
    except Failure as failure:
        return Reply(False, failure.error.message)
    record([SignalReceived(name=command.name, payload=command.payload, by=command.by, id=command.id)], None)
    if patch:
        record([CtxPatched(patch, "signal")], state.seq)
    return _ACCEPTED


# ── timers ──────────────────────────────────────────────────────────────────────────────


def _timer(state: State, command: FireTimer, env: EvaluationContext, record: Record) -> Reply:
    for events, cause in time_out_tokens(state, env.at):
        record(events, cause)
    due = [run_id for run_id, at in state.due.items() if at <= env.at]
    for run_id in due:
        wait = state.waits.get(run_id)
        if wait is not None:
            record([end_due_wait(wait)], wait.seq)
            continue
        child = state.children.get(run_id)
        if child is not None and child.run_id in state.open:
            why = f"the child execution exceeded spec.timeout ({child.request.timeout_s:g} s)"
            outcome = Outcome("error", error=error_info("timeout", why))
            record([_child_finished(child.request, child.child or "", outcome, early=True)], child.seq)
            continue
        step_run = state.runs.get(run_id)
        if step_run is None or step_run.phase == "ended":
            continue
        if step_run.deadline_at is not None and step_run.deadline_at <= env.at:
            why = "the deadline of the step has passed"
        else:
            why = f"the step exceeded its timeout of {step_run.timeout_s:g} s"
        loop = step_run.loops.get(())
        helpers = {} if loop is None else {"loop": loop_counts(loop)}
        outcome = Outcome("error", error=error_info("timeout", why), helpers=helpers)
        record([fail_step(state, env, step_run, outcome)], step_run.seq)
    return _ACCEPTED


# ── leases ──────────────────────────────────────────────────────────────────────────────


def _claim(state: State, command: ClaimRun, env: EvaluationContext, record: Record) -> Reply:
    refusal = claim_rejection(state, command.run_id)
    if refusal is not None:
        return Reply(False, refusal)
    if reserved_for_other(state, command.run_id, command.worker):
        return Reply(False, "the loop is local and runs on another worker", reserved=True)
    if env.capacity is not None or command.run_id in state.isolated:
        check = CapacityCheck(state, env.capacity or NO_CAPACITY, waited=True)
        full = check.missing_key(step_of(state, command.run_id), command.run_id)
        if full is not None:
            return Reply(False, f"the limit of {full} is reached", limit=full)
    record(*claim(state, command.worker, command.run_id))
    return _ACCEPTED  # advance adds the order once the state is settled


def _expired(state: State, command: ExpireLease, env: EvaluationContext, record: Record) -> Reply:
    return _end_lease(state, command, record, stopped=command.stopped, together=command.together)


def _returned(state: State, command: ReturnRun, env: EvaluationContext, record: Record) -> Reply:
    return _end_lease(state, command, record, returned=True, begun=command.begun)


def _end_lease(state: State, command: ExpireLease | ReturnRun, record: Record, **how: bool) -> Reply:
    run = state.open.get(command.run_id)
    if run is None or run.status != "leased" or run.epoch != command.epoch:
        return Reply(False, "the lease is not current")
    record([lose_lease(state, run, **how)], run.seq)
    return _ACCEPTED


# ── reports ─────────────────────────────────────────────────────────────────────────────


def _report(state: State, command: ReportRun, env: EvaluationContext, record: Record) -> Reply:
    report = command.report
    run = state.open.get(report.run_id)
    if run is None:
        ended = Reply(False, "the run has ended or does not exist", ReportAck(report.run_id, False, ended=True))
        return _repeated(state, report) or ended
    if report.epoch != run.epoch:
        return _rejected(report, f"epoch {report.epoch} is not current ({run.epoch})")
    for event in report.events:
        if not _belongs(event, run):
            return _rejected(report, f"{event.NAME} is not an event of this run")
    new: Sequence[Event] = report.events
    if run.latest or run.seen:
        seen = checksums_seen(run)
        known = [seen.get(key_of(event)) for event in new]
        for event, check in zip(new, known, strict=True):
            if check is not None and check != checksum(event):
                return _refuse(state, run, report, f"{key_of(event)} was already reported with another body", record)
        new = [event for event, check in zip(new, known, strict=True) if check is None]
    if new and (run.status == "suspended" or not run.epoch):
        return _rejected(report, f"the run is {run.status}")
    reused = _reused_number(run, new)
    if reused is not None:
        why = f"attempt {reused.attempt} of task {reused.task} (visit {reused.visit}) was used before"
        return _refuse(state, run, report, why, record)
    if run.status == "queued":
        return _accept_late(state, env, run, report, new, record)
    return _accept_events(state, env, run, report, new, record)


def _reused_number(run: Run, new: Sequence[Any]) -> TaskStarted | None:
    """The first start with the number of an earlier start of the same visit, or with one that a lost lease used up."""
    last, used = run.started, run.lost
    for event in new:
        kind = type(event)
        if kind is TaskDone:
            used = 0
        elif kind is TaskStarted and event.kind != WORKBOOK:  # the call of a block starts no tool
            if last is not None and last[0] == event.task and last[1] == event.visit and event.attempt <= last[2]:
                return event  # type: ignore[no-any-return]
            if event.attempt <= used:
                return event  # type: ignore[no-any-return]
            last = (event.task, event.visit, event.attempt)
    return None


def _accept_late(
    state: State, env: EvaluationContext, run: Run, report: Report, new: Sequence[Event], record: Record
) -> Reply:
    """A report after the lease has ended, while no other worker has claimed the run.

    It may end its task, but not start another: the next lease starts it, and a start here would be a second one."""
    ends = (number for number in range(len(new), 0, -1) if type(new[number - 1]) in _CLOSING)
    rest = new[next(ends, 0) :]
    start = next((number for number, event in enumerate(rest) if type(event) is TaskStarted), None)
    if start is None:
        return _accept_events(state, env, run, report, new, record)
    kept = new[: len(new) - len(rest) + start]
    if kept:
        _accept_events(state, env, run, report, kept, record)
    return _rejected(report, "the lease has ended: no further task can start")


def _accept_events(
    state: State, env: EvaluationContext, run: Run, report: Report, new: Sequence[Any], record: Record
) -> Reply:
    """Record the new events of a report in order."""
    lease = run.seq
    batch: list[Event] = []  # events that the judgement of the next one does not depend on
    for event in new:
        kind = type(event)
        if kind is TaskDone and event.patch:
            if batch:
                record(batch, lease)
                batch = []
            problem = _accept_writes(state, env, run, event, record)
            if problem is not None:
                record([end_run(state, env, run, problem)], state.seq)
                return Reply(True, ack=ReportAck(report.run_id, True, problem))
        elif kind in _RUN_ENDS:
            reserved = event.by_server or (kind is StepFailed and event.fatal)
            batch.append(_without_server_flags(event) if reserved else event)
            break
        else:
            batch.append(event)
            if kind in _SUSPENDING:
                break
    if batch:
        record(batch, lease)
        last = batch[-1]
        if type(last) is ChildRequested:
            _limit_depth(state, last, record)
        elif type(last) is WaitStarted:
            take_kept(state, last, record)
    return Reply(True, "", ReportAck(report.run_id, True))


def _rejected(report: Report, reason: str) -> Reply:
    return Reply(False, reason, ReportAck(report.run_id, False))


def _refuse(state: State, run: Run, report: Report, reason: str, record: Record) -> Reply:
    """Reject a known key with another body; the rejection is recorded once per lease."""
    if state.refused.get(run.id) != run.epoch:
        record([ReportRefused(run_id=run.id, epoch=run.epoch, reason=reason)], run.seq)
    return _rejected(report, reason)


def _belongs(event: Any, run: Run) -> bool:
    """Whether the worker that holds this run's lease may report this event."""
    kind = type(event)
    if kind not in _TASK_EVENTS and kind not in (_ITERATION_ENDS if run.path else _STEP_ENDS):
        return False
    path = () if kind in _STEP_ENDS else event.path
    step_run = run.step_run
    return bool(path == run.path and event.step_run_id == step_run.id and event.step == step_run.step.name)


def _without_server_flags(event: Any) -> Event:
    """The event without the fields that only the server may set."""
    if type(event) is StepFailed:
        return msgspec.structs.replace(event, fatal=False, by_server=False)
    changed: Event = msgspec.structs.replace(event, by_server=False)
    return changed


def _repeated(state: State, report: Report) -> Reply | None:
    """The first answer again, if this is a repetition of the report that ended the run."""
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
    return Reply(True, "the report is a repetition", ReportAck(report.run_id, True)) if same else None


def _accept_writes(state: State, env: EvaluationContext, run: Run, event: TaskDone, record: Record) -> ErrorInfo | None:
    """Record a task that wrote into scopes; return the conflict that it caused, if any."""
    writes: dict[str, Any] = event.patch.get("ctx") or {}
    problem = _conflict(state, run, reduce.shared_writes(event)) if run.path else None
    if writes and run.path:
        reducers = state.net.compiled(event.step).reduce
        writes = {key: value for key, value in writes.items() if key not in reducers}
    try:
        changed = ctx_patch(env, state.ctx, writes)
    except Failure as failure:
        problem = problem or failure.error
    if problem is not None:
        patch = {scope: values for scope, values in event.patch.items() if scope not in ("ctx", "step")}
        record([msgspec.structs.replace(event, patch=patch)], run.seq)
        return problem
    record([event], run.seq)
    if changed:
        record([CtxPatched(changed, "task", event.step, run.id)], state.seq)
    return None


def _limit_depth(state: State, event: ChildRequested, record: Record) -> None:
    deepest = state.playbook.executor.limits.max_call_depth
    if state.depth + 1 > deepest:
        outcome = error("limit", f"the call depth of playbooks exceeds {deepest} levels")
        record([_child_finished(event, "", outcome)], state.seq)


def _conflict(state: State, run: Run, writes: dict[str, Any]) -> ErrorInfo | None:
    """The error when an iteration writes another value than a parallel one, or a value that its reducer rejects."""
    compiled = state.net.compiled(run.step_run.step.name)
    for key, value in writes.items():
        if key in compiled.reduce:
            why = reduce.mismatch(compiled.reduce[key], value)
            if why is not None:
                return error_info("schema", f"{target_name(key)}: {why}")
    if compiled.parallel_from is None or compiled.parallel_to is None:
        return None
    known = run.step_run.loops[run.path[: compiled.parallel_from]].writes
    if not known:
        return None
    owner = run.path[: compiled.parallel_to + 1]
    for key, value in writes.items():
        if key in compiled.reduce:
            continue
        for other, (present, writer) in _overlapping(known, key):
            if writer != owner and (other != key or present != value):
                index = ".".join(map(str, writer))
                return error_info(
                    "ctx.conflict",
                    f"{target_name(key)} was written with another value by iteration {index} of this parallel "
                    "loop; write iter.* instead, or declare a reducer (loop.spec.policy.reduce)",
                    details={"key": target_name(key), "iteration": index},
                )
    return None


def _overlapping(
    known: dict[str, tuple[Any, tuple[int, ...]]], key: str
) -> Iterator[tuple[str, tuple[Any, tuple[int, ...]]]]:
    """Writes to the same path, to one of its ancestors, or to one of its descendants."""
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


def _child_finished(
    request: ChildRequested, child: str, outcome: Outcome, *, early: bool = False, compensable: bool = False
) -> ChildFinished:
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
        compensable=compensable,
    )


def _child_started(state: State, command: RecordChildStart, env: EvaluationContext, record: Record) -> Reply:
    child = state.children.get(command.key)
    if child is None:
        return Reply(False, "no run waits for this child")
    if child.child is None:
        request = child.request
        started = ChildStarted(
            step=request.step,
            step_run_id=request.step_run_id,
            task=request.task,
            child=command.child,
            visit=request.visit,
            attempt=request.attempt,
            path=request.path,
        )
        record([started], child.seq)
    return _ACCEPTED


def _child_waits(state: State, command: RecordChildWait, env: EvaluationContext, record: Record) -> Reply:
    child = state.children.get(command.key)
    if child is None or state.finished is not None:
        return Reply(False, "no run waits for this child")
    if command.seq > child.reported and command.waiting != child.waiting:
        request = child.request
        changed = ChildWaiting(
            step=request.step,
            step_run_id=request.step_run_id,
            task=request.task,
            child=command.child,
            waiting=command.waiting,
            child_seq=command.seq,
            visit=request.visit,
            attempt=request.attempt,
            path=request.path,
        )
        record([changed], child.seq)
    return _ACCEPTED


def _child_ended(state: State, command: RecordChildEnd, env: EvaluationContext, record: Record) -> Reply:
    child = state.children.get(command.key)
    if child is None:
        return Reply(False, "no run waits for this child")
    ended = _child_finished(child.request, command.child, command.outcome, compensable=command.compensable)
    record([ended], child.seq)
    return _ACCEPTED


COMMAND_HANDLERS: dict[type[Command], Callable[[State, Any, EvaluationContext, Record], Reply]] = {
    StartExecution: _start,
    CancelExecution: _cancel,
    PauseExecution: _pause,
    ResumeExecution: _resume,
    SendSignal: _signal,
    FireTimer: _timer,
    ClaimRun: _claim,
    ExpireLease: _expired,
    ReturnRun: _returned,
    ReportRun: _report,
    RecordChildStart: _child_started,
    RecordChildWait: _child_waits,
    RecordChildEnd: _child_ended,
}
