"""The attempt ledger: every start of a tool has a number of its own, which is never used again.

It is computed from the events alone, independently of the state, so that `doctor` and the simulation check with it
what the engine guarantees:

* a task starts only while its run is leased (the first start under a lease may be reported late, with its end);
* the number of a start is larger than every earlier one of its visit, and than those that lost leases used up;
* an attempt ends at most once.
"""

from __future__ import annotations

from collections.abc import Iterator

from noetl.core.model.events import (
    ChildRequested,
    Event,
    IterationDone,
    IterationFailed,
    IterationStarted,
    StepDone,
    StepFailed,
    StepStarted,
    TaskDone,
    TaskStarted,
    WaitStarted,
    WorkerLost,
)
from noetl.core.model.ids import iteration_id
from noetl.core.model.playbook import WORKBOOK


class _RunAttempts:
    """The attempts of one open run."""

    __slots__ = ("ended", "late", "leased", "started", "used")

    def __init__(self) -> None:
        self.leased = False
        self.late: TaskStarted | None = None  # a start without a lease, whose end must follow
        self.used = 0  # attempts that lost leases used up since the last end of a task
        self.started: dict[tuple[str, int], int] = {}  # task and visit -> highest number
        self.ended: dict[tuple[str, int], int] = {}


class AttemptLedger:
    """Follows the log of one execution, event by event. Ended runs are forgotten."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, _RunAttempts]] = {}  # open step run -> its runs

    def violations(self, event: Event) -> Iterator[str]:
        """What the next event of the log violates."""
        if isinstance(event, TaskStarted):
            yield from self._start(event)
        elif isinstance(event, TaskDone):
            yield from self._end(event)
        elif isinstance(event, StepStarted | IterationStarted):
            if not (isinstance(event, StepStarted) and event.by_server):
                run = self._run(event)
                if run.late is not None:
                    yield f"{_name(run.late)} started without a lease of its run"
                run.leased, run.late = True, None
        elif isinstance(event, WorkerLost):
            run = self._run(event)
            run.leased = False
            run.used += not event.returned or event.begun
        elif isinstance(event, ChildRequested | WaitStarted):
            run = self._run(event)
            run.leased, run.used, run.late = False, 0, None
        elif isinstance(event, IterationDone | IterationFailed):
            self._runs.get(event.step_run_id, {}).pop(iteration_id(event.step_run_id, event.path), None)
        elif isinstance(event, StepDone | StepFailed):
            self._runs.pop(event.step_run_id, None)

    def _start(self, event: TaskStarted) -> Iterator[str]:
        run = self._run(event)
        if not run.leased:
            run.late = event
        if event.kind == WORKBOOK:  # the call of a block starts no tool; its tasks have attempts of their own
            return
        key = event.task, event.visit
        if event.attempt <= max(run.started.get(key, 0), run.ended.get(key, 0)):
            yield f"{_name(event)} started twice"
        elif event.attempt <= run.used:
            yield f"{_name(event)} has the number of an attempt that a lost worker used up"
        run.started[key] = max(event.attempt, run.started.get(key, 0))

    def _end(self, event: TaskDone) -> Iterator[str]:
        run = self._run(event)
        run.used, run.late = 0, None
        if event.kind == WORKBOOK:
            return
        key = event.task, event.visit
        if event.attempt <= run.ended.get(key, 0):
            yield f"{_name(event)} ended twice"
        run.ended[key] = max(event.attempt, run.ended.get(key, 0))

    def _run(
        self, event: TaskStarted | TaskDone | StepStarted | IterationStarted | WorkerLost | ChildRequested | WaitStarted
    ) -> _RunAttempts:
        run_id, runs = _run_id(event), self._runs.setdefault(event.step_run_id, {})
        run = runs.get(run_id)
        if run is None:
            run = runs[run_id] = _RunAttempts()
        return run


def _run_id(
    event: TaskStarted | TaskDone | StepStarted | IterationStarted | WorkerLost | ChildRequested | WaitStarted,
) -> str:
    path = () if isinstance(event, StepStarted) else event.path
    return iteration_id(event.step_run_id, path) if path else event.step_run_id


def _name(event: TaskStarted | TaskDone) -> str:
    return f"{_run_id(event)}: attempt {event.attempt} of task {event.task} (visit {event.visit})"
