"""What the engine promises about commands of users and about effects, checked against the log alone.

The model knows no state and no handler: it reads which facts the log has, in which order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from noetl.core.model.events import (
    ExecutionCancelled,
    ExecutionPaused,
    ExecutionResumed,
    IterationStarted,
    Recorded,
    SignalReceived,
    StepFailed,
    StepScheduled,
    StepStarted,
    WorkflowFinished,
)
from noetl.core.model.playbook import COMPENSATION
from tests.simulation.users import Acknowledged


def check_promises(log: Sequence[Recorded], told: Acknowledged) -> Iterator[str]:
    """The promises that the log of an execution breaks."""
    yield from _commands(log, told)
    yield from _order(log)


def _commands(log: Sequence[Recorded], told: Acknowledged) -> Iterator[str]:
    """Every acknowledged command is in the log and has its effect."""
    end = next((each.body for each in log if isinstance(each.body, WorkflowFinished)), None)
    if told.cancelled and end is not None and end.outcome == "success":
        yield "a cancellation was acknowledged, and the execution ended with success"
    if told.pauses > sum(isinstance(each.body, ExecutionPaused) for each in log):
        yield "a pause was acknowledged and is not in the log"
    signals: list[Any] = [each.body.payload for each in log if isinstance(each.body, SignalReceived)]
    for number in told.signals:
        if {"sent": number} not in signals:
            yield "a signal was acknowledged and is not in the log"
    for payload in signals:
        if signals.count(payload) > 1:
            yield f"the signal {payload} was sent with one key and received twice"


def _order(log: Sequence[Recorded]) -> Iterator[str]:
    """Nothing is leased or scheduled while the execution is paused, after its cancellation, or after its step has ended."""
    paused = cancelled = False
    failed: set[str] = set()
    for each in log:
        body = each.body
        if isinstance(body, ExecutionPaused):
            paused = True
        elif isinstance(body, ExecutionResumed):
            paused = False
        elif isinstance(body, ExecutionCancelled):
            cancelled = True
        elif isinstance(body, StepFailed):
            failed.add(body.step_run_id)
        elif (getattr(body, "step", None) or "").endswith(COMPENSATION):
            continue  # a cancelled execution is compensated
        elif isinstance(body, StepStarted | IterationStarted) and not getattr(body, "by_server", False):
            if paused:
                yield f"{body.step_run_id} was leased while the execution was paused"
            if cancelled:
                yield f"{body.step_run_id} was leased after the cancellation"
            if body.step_run_id in failed:
                yield f"{body.step_run_id} was leased after the step had failed"
        elif isinstance(body, StepScheduled) and cancelled:
            yield f"{body.step_run_id} was scheduled after the cancellation"
        elif isinstance(body, WorkflowFinished) and paused and not cancelled and body.outcome == "success":
            yield "the execution ended while it was paused"


def check_once(started: Mapping[str, int], log: Sequence[Recorded]) -> Iterator[str]:
    """A task with `at_most_once` (named `once` here) starts at most once per visit, whatever its attempt."""
    prefix = f"{log[0].execution_id}:"
    visits: dict[str, int] = {}
    for task_run, count in started.items():
        if task_run.startswith(prefix) and ":once:" in task_run:
            visit = task_run.rpartition(":")[0]
            visits[visit] = visits.get(visit, 0) + count
    for visit, count in visits.items():
        if count > 1:
            yield f"{visit}: a task with at_most_once was started {count} times"
