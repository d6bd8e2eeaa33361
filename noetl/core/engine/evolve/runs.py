"""Appliers of runs: reported tasks, lost leases, child executions, waits and their signals."""

from __future__ import annotations

from typing import Any

from noetl.core.engine.evolve.execution import remember_key
from noetl.core.engine.evolve.steps import release_lease
from noetl.core.engine.evolve.table import applies
from noetl.core.engine.handlers import reduce
from noetl.core.engine.identity import compact_reports
from noetl.core.engine.state import SUSPECT, Child, KeptSignal, OpenWait, Run, State
from noetl.core.model.compensation import CompletedRun
from noetl.core.model.events import (
    ChildFinished,
    ChildRequested,
    ChildStarted,
    ChildWaiting,
    Event,
    ReportRefused,
    SignalReceived,
    SignalRefused,
    TaskDone,
    TaskStarted,
    WaitFinished,
    WaitStarted,
    WorkerLost,
)
from noetl.core.model.ids import iteration_id, task_run_id
from noetl.core.model.outcome import Outcome, ok

MAX_LATEST = 2  # reported events of a run that are stored whole: most runs report the start and the end of one task


def _run_of(state: State, event: Any) -> Run | None:
    path = event.path
    return state.open.get(iteration_id(event.step_run_id, path) if path else event.step_run_id)


def _remember_report(run: Run, event: Event) -> None:
    """Store the latest reported event; earlier ones are reduced to checksums."""
    if len(run.latest) == MAX_LATEST:
        compact_reports(run)
    run.latest = (*run.latest, event)


@applies(TaskStarted)
def _task_started(state: State, event: TaskStarted, at: float) -> None:
    run = _run_of(state, event)
    if run is not None:
        run.current = event.task
        run.started = (event.task, event.visit, event.attempt)
        run.waits = False
        _remember_report(run, event)


@applies(TaskDone)
def _task_done(state: State, event: TaskDone, at: float) -> None:
    path = event.path
    run = state.open.get(iteration_id(event.step_run_id, path) if path else event.step_run_id)
    if run is None:
        return
    _remember_report(run, event)
    run.position = event.position
    run.resume = None
    run.lost = 0
    if run.suspect:
        _clear_suspicion(state, run)
    run.current = None
    run.waits = event.delay > 0
    if event.patch:
        _remember_shared_writes(state, run, reduce.shared_writes(event))


def _remember_shared_writes(state: State, run: Run, patch: dict[str, Any]) -> None:
    """Record what a task wrote to the scopes that the iterations of its step share."""
    reducers = state.net.compiled(run.step_run.step.name).reduce
    mine = {key: value for key, value in patch.items() if key in reducers}
    if mine:
        run.contributions = {**(run.contributions or {}), **mine}
    _remember_writes(state, run, {key: value for key, value in patch.items() if key not in reducers})


def _remember_writes(state: State, run: Run, patch: dict[str, Any]) -> None:
    """Record the first writer of each key in the outermost parallel loop around the iteration."""
    compiled = state.net.compiled(run.step_run.step.name)
    if not patch or compiled.parallel_from is None or compiled.parallel_to is None:
        return
    loop = run.step_run.loops[run.path[: compiled.parallel_from]]
    owner = run.path[: compiled.parallel_to + 1]
    for key, value in patch.items():
        known = loop.writes.get(key)
        if known is None or known[1] == owner:
            loop.writes[key] = (value, owner)


def _clear_suspicion(state: State, run: Run) -> None:
    run.suspect = 0
    state.isolated.pop(run.id, None)


def _requeue(state: State, run: Run) -> None:
    release_lease(state, run)
    run.status = "queued"
    run.at = state.at
    run.worker = ""
    state.queued[run.id] = None


@applies(WorkerLost)
def _worker_lost(state: State, event: WorkerLost, at: float) -> None:
    run = _run_of(state, event)
    if run is None:
        return
    if not event.returned or event.begun:
        run.lost += 1
    waited = run.suspect >= SUSPECT and run.current is None  # it was to run alone and had not begun
    if not event.returned and not event.stopped and not waited:
        run.suspect += 1
        if run.suspect > SUSPECT:
            state.isolated[run.id] = None
    if event.resume is not None:
        run.resume = event.resume
    _requeue(state, run)


def _key_of(event: Any) -> str:
    """The id of the task run that an event belongs to."""
    return task_run_id(iteration_id(event.step_run_id, event.path), event.task, event.visit, event.attempt)


def _suspend(state: State, run: Run, event: ChildRequested | WaitStarted, key: str, at: float) -> None:
    """Release a run until its child has ended or its wait is over."""
    if event.position is not None:
        run.position = event.position
    release_lease(state, run)
    state.queued.pop(run.id, None)  # its lease may have expired, and the run is suspended now
    run.status = "suspended"
    run.at = at
    run.worker = ""
    run.lost = 0
    if not isinstance(event, WaitStarted) or event.quota is None:
        _clear_suspicion(state, run)  # a wait for a quota is no progress
    run.current = None
    run.child = key
    _remember_report(run, event)


def _resume(state: State, run_id: str, key: str, outcome: Outcome | None) -> None:
    """Queue a suspended run again, with the outcome of its task; None: the task starts now."""
    run = state.open.get(run_id)
    if run is not None and run.child == key:
        run.child = None
        run.resume = outcome
        _requeue(state, run)


@applies(ChildRequested)
def _child_requested(state: State, event: ChildRequested, at: float) -> None:
    run = _run_of(state, event)
    if run is None:
        return
    key = _key_of(event)
    _suspend(state, run, event, key, at)
    state.children[key] = Child(key, run.id, event, state.seq)
    if event.timeout_s is not None and event.wait:
        state.due[key] = at + event.timeout_s


def _resume_caller(state: State, key: str, outcome: Outcome) -> None:
    child = state.children.pop(key)
    state.waiting_children -= child.waiting
    _resume(state, child.run_id, key, outcome)


@applies(ChildStarted)
def _child_started(state: State, event: ChildStarted, at: float) -> None:
    key = _key_of(event)
    child = state.children[key]
    child.child = event.child
    if not child.request.wait:
        _resume_caller(state, key, ok({"execution_id": event.child, "status": "started"}))


@applies(ChildWaiting)
def _child_waiting(state: State, event: ChildWaiting, at: float) -> None:
    child = state.children[_key_of(event)]
    state.waiting_children += event.waiting - child.waiting
    child.waiting = event.waiting
    child.reported = event.child_seq


@applies(ChildFinished)
def _child_finished(state: State, event: ChildFinished, at: float) -> None:
    key = _key_of(event)
    child = state.children[key]
    if event.compensable and event.step_run_id in state.runs:
        undo = CompletedRun(child.run_id, child=event.child, playbook=child.request.playbook)
        state.runs[event.step_run_id].completed.append(undo)
    _resume_caller(state, key, event.outcome)
    state.due.pop(key, None)
    if event.early:  # the caller no longer waits for the child, which must still be cancelled
        state.children[key] = Child(key, "", child.request, child.seq, child.child)


@applies(WaitStarted)
def _wait_started(state: State, event: WaitStarted, at: float) -> None:
    run = _run_of(state, event)
    if run is None:
        return
    key = _key_of(event)
    _suspend(state, run, event, key, at)
    wait = state.waits[key] = OpenWait(key, run.id, event, state.seq, at)
    due = wait.due
    if due is not None:
        state.due[key] = due


@applies(WaitFinished)
def _wait_finished(state: State, event: WaitFinished, at: float) -> None:
    key = _key_of(event)
    wait = state.waits.pop(key)
    _resume(state, wait.run_id, key, event.outcome if wait.request.quota is None else None)
    state.due.pop(key, None)
    if event.signal is not None:
        del state.signals[event.signal]


@applies(SignalReceived)
def _signal_received(state: State, event: SignalReceived, at: float) -> None:
    if event.kept:
        state.signals[state.seq] = KeptSignal(event, at)
    remember_key(state, event)


@applies(SignalRefused)
def _signal_refused(state: State, event: SignalRefused, at: float) -> None:
    del state.signals[event.signal]


@applies(ReportRefused)
def _refused(state: State, event: ReportRefused, at: float) -> None:
    state.refused[event.run_id] = event.epoch
