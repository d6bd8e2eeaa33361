"""Is this fact still welcome? What is accepted becomes events, what is not gets its reason.

The log is closed after the end. A report is believed only under the current epoch of its run, and
only once: its events have keys (task, visit, attempt, what happened), and the same key with the
same body is answered as before, with another body it is refused and the refusal recorded.
Expiry alone does not fence: a slow worker whose run nobody else has claimed is still believed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import msgspec

from noetl.engine import reduce
from noetl.engine.env import Env
from noetl.engine.facts import (
    CancelAsked,
    ChildBegan,
    ChildEnded,
    ClaimMade,
    Fact,
    LeaseExpired,
    PauseAsked,
    Reply,
    ReportMade,
    RequestMade,
    ResumeAsked,
    RunReturned,
    SignalSent,
    TimerDue,
)
from noetl.engine.identity import checksum, key_of
from noetl.engine.leases import claim, claim_refusal, end_run, lose_lease
from noetl.engine.loops import fail_step
from noetl.engine.requests import evaluate_request
from noetl.engine.routing import ctx_patch
from noetl.engine.state import PENDING, Run, State
from noetl.model.events import (
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
from noetl.model.outcome import ErrorInfo, Outcome, error, error_info
from noetl.model.work import Report, Verdict

_ENDED = "the execution has ended"
_TERMINAL = (StepDone, StepFailed, IterationDone, IterationFailed)
_YES = Reply(True)

# A list of events to record, or a reply: accepting is a conversation with `advance`, which applies
# each batch before it asks for the next, so that later events of a report are judged by what the earlier did.
Judgement = Iterator[list[Event] | Reply]


def accept(state: State, fact: Fact, env: Env) -> Judgement:
    """Judge one fact."""
    judge = JUDGES[type(fact)]
    if state.finished is not None and not isinstance(fact, ReportMade | RequestMade):
        yield Reply(False, _ENDED)
        return
    if state.request is None and not isinstance(fact, RequestMade):
        yield Reply(False, "the execution has not been requested")
        return
    yield from judge(state, fact, env)


# ── people ──────────────────────────────────────────────────────────────────────────────


def _request(state: State, fact: RequestMade, env: Env) -> Judgement:
    if state.request is not None:
        yield Reply(False, "the execution has been requested already")
        return
    yield [fact.request]
    yield [evaluate_request(state, fact, env)]
    yield _YES


def _cancel(state: State, fact: CancelAsked, env: Env) -> Judgement:
    if state.ending is None:
        yield [ExecutionCancelled(reason=fact.reason)]
    yield _YES


def _pause(state: State, fact: PauseAsked, env: Env) -> Judgement:
    if state.ending is not None:
        yield Reply(False, "the execution is ending")
        return
    if not state.paused:
        yield [ExecutionPaused(reason=fact.reason)]
    yield _YES


def _resume(state: State, fact: ResumeAsked, env: Env) -> Judgement:
    if state.paused:
        yield [ExecutionResumed(reason=fact.reason)]
    yield _YES


def _signal(state: State, fact: SignalSent, env: Env) -> Judgement:
    if state.ending is not None:
        yield Reply(False, "the execution is ending")
        return
    events: list[Event] = [SignalReceived(name=fact.name, payload=fact.payload)]
    if fact.payload:
        events.append(CtxPatched(patch=ctx_patch(state.ctx, fact.payload), cause="signal"))
    yield events
    yield _YES


# ── time ────────────────────────────────────────────────────────────────────────────────


def _timer(state: State, fact: TimerDue, env: Env) -> Judgement:
    due = [run_id for run_id, at in state.due.items() if at <= env.at]
    for run_id in due:
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
        yield [fail_step(state, env, step_run, outcome)]
    yield _YES


# ── leases ──────────────────────────────────────────────────────────────────────────────


def _claim(state: State, fact: ClaimMade, env: Env) -> Judgement:
    refusal = claim_refusal(state, fact.run_id)
    if refusal is not None:
        yield Reply(False, refusal)
        return
    yield [claim(state, fact.worker, fact.run_id)]
    yield _YES  # advance adds the order, made when everything has settled


def _expired(state: State, fact: LeaseExpired, env: Env) -> Judgement:
    run = state.open.get(fact.run_id)
    if run is None or run.status != "leased" or run.epoch != fact.epoch:
        yield Reply(False, "the lease is no longer this one")
        return
    yield [lose_lease(state, run)]
    yield _YES


def _returned(state: State, fact: RunReturned, env: Env) -> Judgement:
    run = state.open.get(fact.run_id)
    if run is None or run.status != "leased" or run.epoch != fact.epoch:
        yield Reply(False, "the lease is no longer this one")
        return
    yield [lose_lease(state, run, returned=True)]
    yield _YES


# ── reports ─────────────────────────────────────────────────────────────────────────────


def _report(state: State, fact: ReportMade, env: Env) -> Judgement:
    report = fact.report
    run = state.open.get(report.run_id)
    if run is None:
        yield _known(state, report) or _no(report, "the run has ended, or never was")
        return
    if report.epoch != run.epoch:
        yield _no(report, f"epoch {report.epoch} is not the current one ({run.epoch})")
        return
    fresh: list[Event] = []
    for event in report.events:
        if not _belongs(event, run):
            yield _no(report, f"{event.NAME} is not an event of this run")
            return
        seen = run.seen.get(key_of(event)) if type(event) is not TaskProgress else None
        if seen is None:
            fresh.append(event)
        elif seen != checksum(event):
            reason = f"{key_of(event)} was reported before with another body"
            if state.refused.get(run.id) != run.epoch:
                yield [ReportRefused(run_id=run.id, epoch=run.epoch, reason=reason)]
            yield _no(report, reason)
            return
    if fresh and run.status != "leased":
        yield _no(report, f"the run is {run.status}")
        return
    for event in fresh:
        if state.open.get(run.id) is not run or run.status != "leased":
            break  # it has ended, or waits for a child
        problem = yield from _accept_event(state, env, run, event)
        if problem is not None:
            yield [end_run(state, env, run, problem)]
            yield Reply(True, verdict=Verdict(report.run_id, True, problem))
            return
    yield Reply(True, verdict=Verdict(report.run_id, True))


def _no(report: Report, reason: str) -> Reply:
    return Reply(False, reason, Verdict(report.run_id, False))


def _belongs(event: Event, run: Run) -> bool:
    if isinstance(event, StepDone | StepFailed):
        return not run.path and event.step_run_id == run.id
    if isinstance(event, TaskStarted | TaskDone | TaskProgress | ChildRequested | IterationDone | IterationFailed):
        if event.step_run_id != run.step_run.id or event.step != run.step_run.step.name:
            return False
        if isinstance(event, IterationDone | IterationFailed) and not run.path:
            return False
        return tuple(event.path) == run.path
    return False


def _known(state: State, report: Report) -> Reply | None:
    """The first answer again, when this is the report that ended the run."""
    if not report.events:
        return None
    last = report.events[-1]
    if isinstance(last, StepDone | StepFailed):
        record = state.steps.get(last.step)
        same = record is not None and record.last == report.run_id and record.checksum == checksum(last)
    elif isinstance(last, IterationDone | IterationFailed):
        found = state.loop_of(report.run_id)
        if found is None:
            return None
        loop, index = found
        same = loop.status(index) != PENDING and loop.checksums[index] == checksum(last)
    else:
        return None
    return Reply(True, "it is known already", Verdict(report.run_id, True)) if same else None


def _accept_event(state: State, env: Env, run: Run, event: Event) -> Generator[list[Event], None, ErrorInfo | None]:
    """Record one event of a report; the problem it brought, if any, is returned."""
    if isinstance(event, TaskDone):
        return (yield from _accept_task(state, run, event))
    if isinstance(event, StepFailed) and event.fatal:
        event = msgspec.structs.replace(event, fatal=False)  # only the server ends an execution
    yield [event]
    if isinstance(event, ChildRequested):
        deepest = state.playbook.executor.limits.max_call_depth
        if state.depth + 1 > deepest:
            outcome = error("limit", f"playbooks call each other more than {deepest} levels deep")
            yield [_child_finished(event, "", outcome)]
    return None


def _accept_task(state: State, run: Run, event: TaskDone) -> Generator[list[Event], None, ErrorInfo | None]:
    writes: dict[str, Any] = event.patch.get("ctx") or {}
    problem = _conflict(state, run, writes) if writes and run.path else None
    if problem is not None:
        patch = {scope: values for scope, values in event.patch.items() if scope != "ctx"}
        yield [msgspec.structs.replace(event, patch=patch)]
        return problem
    if writes and run.path:
        reducers = state.net.compiled(event.step).reduce
        writes = {key: value for key, value in writes.items() if key not in reducers}
    if not writes:
        yield [event]
        return None
    patch = ctx_patch(state.ctx, writes)
    yield [event, CtxPatched(patch=patch, cause="task", step=event.step, run_id=run.id)]
    return None


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


def _child_finished(request: ChildRequested, child: str, outcome: Outcome) -> ChildFinished:
    return ChildFinished(
        step=request.step,
        step_run_id=request.step_run_id,
        task=request.task,
        child=child,
        outcome=outcome,
        visit=request.visit,
        attempt=request.attempt,
        path=tuple(request.path),
    )


def _child_began(state: State, fact: ChildBegan, env: Env) -> Judgement:
    child = state.children.get(fact.key)
    if child is None or child.child is not None:
        yield Reply(child is not None, "" if child is not None else "nobody waits for this child")
        return
    request = child.request
    yield [
        ChildStarted(
            step=request.step,
            step_run_id=request.step_run_id,
            task=request.task,
            child=fact.child,
            visit=request.visit,
            attempt=request.attempt,
            path=tuple(request.path),
        )
    ]
    yield _YES


def _child_ended(state: State, fact: ChildEnded, env: Env) -> Judgement:
    child = state.children.get(fact.key)
    if child is None:
        yield Reply(False, "nobody waits for this child")
        return
    yield [_child_finished(child.request, fact.child, fact.outcome)]
    yield _YES


JUDGES: dict[type[Fact], Callable[[State, Any, Env], Judgement]] = {
    RequestMade: _request,
    CancelAsked: _cancel,
    PauseAsked: _pause,
    ResumeAsked: _resume,
    SignalSent: _signal,
    TimerDue: _timer,
    ClaimMade: _claim,
    LeaseExpired: _expired,
    RunReturned: _returned,
    ReportMade: _report,
    ChildBegan: _child_began,
    ChildEnded: _child_ended,
}
