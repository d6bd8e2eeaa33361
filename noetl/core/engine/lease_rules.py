"""Leases: which runs can be claimed, and what happens to a run whose worker is lost.

A claim raises the run's epoch; the event that records it is the lease. A lost worker uses up an
attempt. After two lost workers in a row without an accepted task the run is executed alone on a worker; if that
worker is lost too and no other with it, the run fails as poison. If workers were lost together, the run of any of them
may be the cause: such runs are executed one at a time in the whole installation (`State.isolated`). A task marked
`at_most_once` that may have been running gets the outcome `ambiguous`, which its policy handles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from noetl.core.engine.capacity import CapacityCheck
from noetl.core.engine.commands import ClaimAnyRun
from noetl.core.engine.evaluation.context import EvaluationContext
from noetl.core.engine.handlers.loops import fail_step
from noetl.core.engine.state import PENDING, SUSPECT, Loop, Run, State, StepRun
from noetl.core.model.events import Event, IterationFailed, IterationStarted, StepStarted, WorkerLost
from noetl.core.model.ids import iteration_id
from noetl.core.model.outcome import ErrorInfo, Outcome, error, error_info
from noetl.core.model.playbook import Block, Step
from noetl.core.model.position import Position

POISON = SUSPECT + 1  # workers lost in a row without progress, the last one while the run was alone on it
MAX_LOST = 10  # attempts that lost workers used up; bounds the losses of a run whose tool never begins
TOGETHER = 2  # times as many losses of each kind are needed if other workers were lost with the last one


def is_local(state: State, step_run: StepRun) -> bool:
    """Whether the iterations of this step run should stay on one worker (`exec: local`, `profile: local`)."""
    loop = step_run.step.loop
    return loop is not None and (loop.exec == "local" or state.playbook.executor.profile == "local")


def local_worker(state: State, step_run: StepRun) -> str | None:
    """The worker that the iterations of a local loop are reserved for: the one that runs some of them now.

    None when no iteration is in flight, so the iterations of a worker that left are free again."""
    for run_id in step_run.open if is_local(state, step_run) else ():
        run = state.open[run_id]
        if run.status == "leased":
            return run.worker
    return None


def reserved_for_other(state: State, run_id: str, worker: str) -> bool:
    """Whether a claimable run is reserved for another worker."""
    return local_worker(state, step_run_of(state, run_id)) not in (None, worker)


def claim_rejection(state: State, run_id: str) -> str | None:
    """Why this run cannot be claimed now; None if it can."""
    if not state.accepts_claims:
        return "the execution is ending" if state.ending is not None else "the execution is paused"
    run = state.open.get(run_id)
    if run is not None:
        return None if run.status == "queued" else f"the run is {run.status}"
    found = state.loop_of(run_id)
    if found is None:
        return "the run does not exist or has ended"
    loop, index = found
    if not is_innermost(state, loop):
        return "the run is a loop: its iterations are claimed instead"
    if loop.status(index) != PENDING:
        return "the iteration has ended"
    if index >= loop.issued:
        return "the iteration is not due yet"
    return None


def step_of(state: State, run_id: str) -> str:
    """The step of a claimable run."""
    return step_run_of(state, run_id).step.name


def step_run_of(state: State, run_id: str) -> StepRun:
    """The step run of a claimable run."""
    run = state.open.get(run_id)
    if run is not None:
        return run.step_run
    found = state.loop_of(run_id)
    assert found is not None, run_id
    return found[0].step_run


def claim(state: State, worker: str, run_id: str) -> tuple[list[Event], int]:
    """The event that leases a claimable run to a worker, and the seq of its cause."""
    run = state.open.get(run_id)
    if run is not None and not run.path:
        step_run = run.step_run
        return [StepStarted(step_run.step.name, run_id, run.epoch + 1, worker)], step_run.seq
    if run is not None:
        step_run, path, epoch, cause = run.step_run, run.path, run.epoch, run.seq
    else:
        found = state.loop_of(run_id)
        assert found is not None, run_id
        loop, index = found
        step_run, path, epoch, cause = loop.step_run, (*loop.path, index), 0, loop.seq
    return [IterationStarted(step_run.step.name, step_run.id, path, epoch + 1, worker)], cause


AGEING_SECONDS = 10.0  # of waiting that count as much as one point of priority


def claimable(state: State, claim: ClaimAnyRun, check: CapacityCheck | None = None) -> Iterator[str]:
    """The runs that this worker can claim, by priority and then oldest first; with `check`, those with a free slot."""
    pool, worker = claim.pool, claim.worker
    queued = list(state.queued)
    if any(state.open[run_id].step_run.priority for run_id in queued):
        queued.sort(key=lambda run_id: state.open[run_id].at - AGEING_SECONDS * state.open[run_id].step_run.priority)
    for run_id in queued:
        step_run = state.open[run_id].step_run
        if not _is_placed(step_run.step, claim):
            continue
        if step_run.step.pool == pool and local_worker(state, step_run) in (None, worker):
            if run_id in state.isolated or (check is not None and check.missing_key(step_run.step.name, run_id)):
                continue  # one of them at a time: they wait in the queue
            yield run_id
    for loop in open_loops(state) if state.looping else ():
        if not _is_placed(loop.step_run.step, claim):
            continue
        if loop.step_run.step.pool == pool and local_worker(state, loop.step_run) in (None, worker):
            for index in loop.unclaimed():
                run_id = loop.id_of(index)
                if check is not None and check.missing_key(loop.step_run.step.name, run_id):
                    break
                yield run_id


def _is_placed(step: Step, claim: ClaimAnyRun) -> bool:
    """Whether the worker has the labels that a step requires."""
    return not step.labels or set(step.labels) <= set(claim.labels)


def open_loops(state: State) -> Iterator[Loop]:
    """The loops whose iterations workers claim: the innermost ones."""
    for step_run_id in state.looping:
        for loop in state.runs[step_run_id].loops.values():
            if is_innermost(state, loop):
                yield loop


def is_innermost(state: State, loop: Loop) -> bool:
    """Whether the iterations of a loop are runs, and not inner loops."""
    return loop.depth + 1 == len(state.net.compiled(loop.step_run.step.name).loops)


def lose_lease(
    state: State,
    run: Run,
    *,
    returned: bool = False,
    begun: bool = False,
    stopped: bool = False,
    together: bool = False,
) -> WorkerLost:
    """The event that ends a lease (expired or returned), so that another worker can claim the run.

    A reported start counts as begun, whatever the worker says: its number is in the log."""
    step_run = run.step_run
    begun = returned and (begun or run.current is not None)
    return WorkerLost(
        step=step_run.step.name,
        step_run_id=step_run.id,
        epoch=run.epoch,
        path=run.path,
        worker=run.worker,
        returned=returned,
        begun=begun,
        stopped=stopped,
        together=together,
        resume=_ambiguous(state, run) if begun or not returned else None,
    )


def _ambiguous(state: State, run: Run) -> Outcome | None:
    """The outcome of an `at_most_once` task when it is unknown whether it ran."""
    if run.resume is not None or (run.waits and run.current is None):
        return None
    task = _task_at(state, run.step_run.step, run.position)
    if task is None or task.effect != "at_most_once":
        return None
    return error(
        "ambiguous",
        f'the worker was lost while task "{task.name}" may have been running; a task with `effect: at_most_once` '
        "is not run again",
    )


def _task_at(state: State, owner: Step | Block, position: Position | None) -> Any:
    """The task that a pipeline runs next, also inside called blocks."""
    if position is not None and position.calls:
        frame = position.calls[-1]
        block = state.playbook.blocks.get(frame.block)
        if block is None:
            return None
        owner, position = block, frame.position
    if position is None:
        return owner.tasks[0] if owner.tasks else None
    return next((task for task in owner.tasks if task.name == position.task), None)


def end_run(state: State, env: EvaluationContext, run: Run, why: ErrorInfo) -> Event:
    """The event that ends a run with a failure found by the server."""
    step_run = run.step_run
    outcome = Outcome("error", error=why)
    if run.path:
        return IterationFailed(
            step=step_run.step.name, step_run_id=step_run.id, path=run.path, output=outcome, by_server=True
        )
    return fail_step(state, env, step_run, outcome)


def worker_lost(state: State, event: WorkerLost, env: EvaluationContext) -> list[Event]:
    """Fail a run on which workers are lost although nothing else runs there.

    After two losses in a row the run is executed alone, so that the runs beside it are not blamed for it."""
    run = state.open.get(iteration_id(event.step_run_id, event.path))
    if run is None or event.returned or event.stopped or run.suspect < SUSPECT:
        return []
    needed = TOGETHER if event.together else 1
    if run.suspect < needed * POISON and run.lost < needed * MAX_LOST:
        return []
    why = error_info(
        "worker.lost",
        f"{run.lost} workers in a row were lost while they executed this run, the last one while it was alone on its "
        "worker; it is not retried",
        retryable=False,
    )
    return [end_run(state, env, run, why)]
