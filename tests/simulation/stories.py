"""Stories: what happened in a simulation, so that a construct or fault that no seed reaches is noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from noetl.core.model.events import (
    ChildFinished,
    CompensationDone,
    ExecutionCancelled,
    ExecutionPaused,
    ExecutionRequested,
    ExecutionResumed,
    IterationDone,
    IterationFailed,
    IterationStarted,
    Recorded,
    SignalReceived,
    StateCommitted,
    StepFailed,
    StepStarted,
    TaskDone,
    TaskStarted,
    TokenMerged,
    TokenParked,
    WaitFinished,
    WorkerLost,
)

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

LARGE_JUMP = 60.0  # seconds


def _error(body: Any) -> str:
    outcome = getattr(body, "output", None) or getattr(body, "outcome", None)
    return outcome.error.kind if outcome is not None and outcome.error is not None else ""


_OF_EVENTS: dict[str, Callable[[Any], bool]] = {
    "an execution is cancelled": lambda body: isinstance(body, ExecutionCancelled) and not body.compensate,
    "an execution is cancelled and compensated": lambda body: isinstance(body, ExecutionCancelled) and body.compensate,
    "an execution is paused": lambda body: isinstance(body, ExecutionPaused),
    "a paused execution is resumed": lambda body: isinstance(body, ExecutionResumed),
    "a signal changes `ctx`": lambda body: isinstance(body, SignalReceived) and not body.kept,
    "a signal answers a wait": lambda body: isinstance(body, WaitFinished) and body.signal is not None,
    "a wait ends by its time": lambda body: isinstance(body, WaitFinished) and body.signal is None,
    "the timeout of a step fires": lambda body: isinstance(body, StepFailed) and body.by_server and _error(body) == "timeout",
    "a task with `at_most_once` starts": lambda body: isinstance(body, TaskStarted) and body.task == "once",
    "a task with `at_most_once` is ambiguous": lambda body: isinstance(body, TaskDone) and _error(body) == "ambiguous",
    "a worker is lost": lambda body: isinstance(body, WorkerLost) and not body.returned,
    "a run is given back": lambda body: isinstance(body, WorkerLost) and body.returned and not body.begun,
    "a run is given back after its tool began": lambda body: isinstance(body, WorkerLost) and body.returned and body.begun,
    "a run is leased again": lambda body: isinstance(body, StepStarted | IterationStarted) and body.epoch > 1,
    "a child ends": lambda body: isinstance(body, ChildFinished),
    "a step is undone": lambda body: isinstance(body, CompensationDone),
    "a token waits before a step": lambda body: isinstance(body, TokenParked),
    "a token is merged": lambda body: isinstance(body, TokenMerged),
    "`state` is committed": lambda body: isinstance(body, StateCommitted),
    "a commit of `state` conflicts": lambda body: isinstance(body, ExecutionCancelled) and body.error is not None and body.error.kind == "state.conflict",
    "a tick of a schedule starts an execution": lambda body: isinstance(body, ExecutionRequested) and body.due is not None,
}  # fmt: skip
_OF_LOGS: dict[str, Callable[[Sequence[Recorded]], bool]] = {
    "a loop fails while iterations are open": lambda log: any(_failed_fast(log)),
}
_OF_CLUSTER: dict[str, Callable[[Cluster], bool]] = {
    "two servers append to one execution": lambda cluster: cluster.store.shared > 0,
    "a state is restored from a snapshot": lambda cluster: cluster.store.restored > 0,
    "the clock jumps by more than a minute": lambda cluster: cluster.clock.largest_jump > LARGE_JUMP,
    "a limit is reached": lambda cluster: cluster.queue.waited > 0,
}
STORIES = (*_OF_EVENTS, *_OF_LOGS, *_OF_CLUSTER)


def stories_of(cluster: Cluster, logs: Mapping[str, Sequence[Recorded]]) -> set[str]:
    """The stories of a seed."""
    bodies = [each.body for log in logs.values() for each in log]
    of_logs = (name for name, happened in _OF_LOGS.items() if any(happened(log) for log in logs.values()))
    return {*_of_events(bodies), *of_logs, *(name for name, happened in _OF_CLUSTER.items() if happened(cluster))}


def _failed_fast(log: Sequence[Recorded]) -> Iterator[bool]:
    open_: dict[str, set[tuple[int, ...]]] = {}  # step run -> its open iterations
    for each in log:
        body: Any = each.body
        if isinstance(body, IterationStarted):
            open_.setdefault(body.step_run_id, set()).add(body.path)
        elif isinstance(body, IterationDone | IterationFailed):
            open_.get(body.step_run_id, set()).discard(body.path)
        elif isinstance(body, StepFailed) and _error(body) != "cancelled":
            yield bool(open_.get(body.step_run_id))


def _of_events(bodies: Sequence[Any]) -> Iterator[str]:
    for name, is_part in _OF_EVENTS.items():
        if any(is_part(body) for body in bodies):
            yield name
