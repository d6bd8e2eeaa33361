"""Invariants of every log, independent of the faults during its execution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from noetl.core.engine.advance import fold
from noetl.core.engine.attempt_ledger import AttemptLedger
from noetl.core.engine.capacity import slots_held
from noetl.core.engine.identity import compact_reports
from noetl.core.engine.snapshot import decode_state, encode_state
from noetl.core.engine.state import State
from noetl.core.engine.views.open_waits import wait_counts
from noetl.core.model.events import (
    ChildFinished,
    CompensationDone,
    CompensationFailed,
    CompensationStarted,
    Event,
    IterationDone,
    IterationFailed,
    IterationStarted,
    PlaybookProcessed,
    Recorded,
    SignalReceived,
    StepDone,
    StepFailed,
    StepScheduled,
    StepStarted,
    TaskDone,
    TaskStarted,
    WaitFinished,
    WaitStarted,
    WorkerLost,
    WorkflowFinished,
)
from noetl.core.model.ids import iteration_id, task_run_id
from noetl.core.model.playbook import COMPENSATION, Playbook
from noetl.server.read_models.summaries import project, step_durations
from noetl.storage.ports.events import ExecutionSummary
from tests.simulation.state_differences import differences


def check_log(log: Sequence[Recorded]) -> Iterator[str]:
    """The invariants that a log violates: dense, finished once with no later event, fenced."""
    if [each.seq for each in log] != list(range(1, len(log) + 1)):
        yield "the log has a gap"
    names = Counter(type(each.body) for each in log)
    if names[WorkflowFinished] > 1 or names[PlaybookProcessed] > 1:
        yield f"the execution finished {names[WorkflowFinished]} times"
    finished = next((each.seq for each in log if isinstance(each.body, WorkflowFinished)), None)
    if finished is not None:
        after = [each.body.NAME for each in log if each.seq > finished]
        if after != ["playbook.processed"]:
            yield f"events after workflow.finished: {after}"
    yield from _runs(log)
    yield from _signals(log)


def _signals(log: Sequence[Recorded]) -> Iterator[str]:
    """The client's signal is received once and taken at most once; a wait ends once, by a signal that arrived before."""
    received = {each.seq: each.body for each in log if isinstance(each.body, SignalReceived)}
    names = Counter(body.name for body in received.values() if body.kept)
    yield from (f"the signal {name} was received {count} times" for name, count in names.items() if count > 1)
    taken: set[int] = set()
    waiting: set[str] = set()
    for each in log:
        body = each.body
        if isinstance(body, WaitStarted):
            waiting.add(_attempt_of(body))
        elif isinstance(body, WaitFinished):
            if _attempt_of(body) not in waiting:
                yield f"{_attempt_of(body)} ended a wait that had not begun, or ended it twice"
            waiting.discard(_attempt_of(body))
            if body.signal is not None and (body.signal in taken or body.signal not in received):
                yield f"the signal {body.signal} was taken twice, or does not exist"
            taken.add(body.signal or 0)


def _attempt_of(body: WaitStarted | WaitFinished) -> str:
    return task_run_id(run_of(body), body.task, body.visit, body.attempt)


def check_projection(summary: ExecutionSummary | None, log: Sequence[Recorded], playbook: Playbook) -> list[str]:
    """The differences of an execution's summary row and folded state from its log."""
    state = fold(playbook, list(log))
    steps = step_durations(state) if state.processed else None
    projected = project(None, list(log), None, wait_counts(state), steps)
    shown = msgspec.structs.replace(summary, key=None, held=None) if summary else None
    if shown != projected:
        return [f"the projection {shown} differs from the log: {projected}"]
    if state.status != projected.status:
        return [f"folded status {state.status}, projected {projected.status}"]
    holds, shown_holds = slots_held(state), (summary.held if summary else None) or {}
    return [] if holds == shown_holds else [f"slots in the row: {shown_holds}, by the log: {holds}"]


def check_snapshot(log: Sequence[Recorded], playbook: Playbook) -> list[str]:
    """A state decoded from a snapshot in the middle of the log, and folded on, is the same as the folded log."""
    middle = len(log) // 2
    if not middle:
        return []
    restored = decode_state(playbook, encode_state(fold(playbook, log[:middle])))
    found = [
        *_differ(restored, fold(playbook, log[:middle])),
        *_differ(fold(playbook, log[middle:], restored), fold(playbook, log)),
    ]
    return [f"a snapshot at seq {middle} gives another state: {each}" for each in found[:3]]


def _differ(one: State, other: State) -> Iterator[str]:
    for run in (*one.open.values(), *other.open.values()):
        compact_reports(run)  # a snapshot has checksums of what was reported last
    yield from differences(one, other)


def run_of(body: Event) -> str:
    """The run of an event; empty if it has none."""
    step_run = getattr(body, "step_run_id", "")
    return iteration_id(step_run, getattr(body, "path", ())) if step_run else ""


def _runs(log: Sequence[Recorded]) -> Iterator[str]:
    """Leases are fenced: the events of a run belong to its newest epoch, no attempt has two starts, and it ends once."""
    epochs: Counter[str] = Counter()
    ledger = AttemptLedger()
    ended: set[str] = set()
    scheduled: set[str] = set()
    for each in log:
        body: Any = each.body
        run = run_of(body)
        yield from ledger.violations(body)
        if isinstance(body, StepScheduled):
            if body.step_run_id in scheduled:
                yield f"{body.step_run_id} was scheduled twice"
            scheduled.add(body.step_run_id)
        elif isinstance(body, StepStarted | IterationStarted):
            if body.epoch != epochs[run] + 1:
                yield f"{run}: epoch {body.epoch} after {epochs[run]}"
            epochs[run] = body.epoch
            if run in ended:
                yield f"{run} was leased after its end"
        elif isinstance(body, WorkerLost):
            if body.epoch != epochs[run]:
                yield f"{run}: a worker of epoch {body.epoch} was lost in epoch {epochs[run]}"
        elif isinstance(body, TaskStarted | TaskDone):
            if run in ended:
                yield f"{run}: {body.NAME} after its end"
        elif isinstance(body, StepDone | StepFailed | IterationDone | IterationFailed):
            if run in ended:
                yield f"{run} ended twice"
            ended.add(run)


def start_is_stored(log: Sequence[Recorded], task_run: str) -> bool:
    """Whether the log covers the start of a tool: by its `task.started`, or by a lease, for the first task under it.

    The worker of an earlier lease may start its first task late, so each lease under which no task has ended counts."""
    leases: list[bool] = []  # whether a task has ended under it
    for each in log:
        body: Any = each.body
        run = run_of(body)
        if not run or not task_run.startswith(f"{run}:"):
            continue
        if isinstance(body, TaskStarted):
            if task_run_id(run, body.task, body.visit, body.attempt) == task_run:
                return True
        elif isinstance(body, StepStarted | IterationStarted):
            leases.append(False)
        elif isinstance(body, TaskDone) and leases:
            leases[-1] = True
    return not all(leases)


def check_compensation(done: Sequence[Recorded], log: Sequence[Recorded], playbook: Playbook) -> Iterator[str]:
    """The differences between what `done` completed and what `log` undid: each run once, the latest step run first."""
    groups: dict[str, list[str]] = {}  # step run -> its completed runs and children, in order
    order: list[str] = []  # step runs in order of their end
    for each in done:
        body: Any = each.body
        if isinstance(body, ChildFinished) and body.compensable:
            groups.setdefault(body.step_run_id, []).append(f"child {body.child}")
        elif isinstance(body, IterationDone) and playbook.step(body.step).compensation is not None:
            groups.setdefault(body.step_run_id, []).append(run_of(body))
        elif isinstance(body, StepDone | StepFailed) and not body.step.endswith(COMPENSATION):
            step = playbook.step(body.step)
            if isinstance(body, StepDone) and step.compensation is not None and step.loop is None:
                groups.setdefault(body.step_run_id, []).append(body.step_run_id)
            if body.step_run_id in groups:
                order.append(body.step_run_id)
    expected = [run for step_run in reversed(order) for run in reversed(groups[step_run])]
    started: list[str] = []
    open_: dict[str, str] = {}  # step run of a compensation -> the step run that it undoes
    for each in log:
        event: Any = each.body
        if isinstance(event, CompensationStarted):
            owner = event.run_id.partition("/")[0]
            if any(other != owner for other in open_.values()):
                yield f"{event.run_id} is undone while {set(open_.values())} still are"
            open_[event.step_run_id] = owner
            started.append(f"child {event.child}" if event.child else event.run_id)
        elif isinstance(event, CompensationDone | CompensationFailed) and open_.pop(event.step_run_id, None) is None:
            yield f"the compensation {event.step_run_id} ended twice, or without a start"
    if open_:
        yield f"compensations without an end: {sorted(open_)}"
    if started != expected:
        yield f"{started} was undone, not {expected}"
