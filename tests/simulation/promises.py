"""What the engine promises about commands of users and about effects, checked against the log alone.

The model knows no state and no handler: it reads which facts the log has, in which order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from noetl.core.model.events import (
    ExecutionCancelled,
    ExecutionPaused,
    ExecutionResumed,
    IterationStarted,
    NextEvaluated,
    Recorded,
    SignalReceived,
    StepDone,
    StepFailed,
    StepScheduled,
    StepSkipped,
    StepStarted,
    TokenMerged,
    TokenParked,
    WorkflowFinished,
)
from noetl.core.model.playbook import COMPENSATION
from tests.simulation.users import Acknowledged


def check_promises(log: Sequence[Recorded], told: Acknowledged) -> Iterator[str]:
    """The promises that the log of an execution breaks."""
    yield from _commands(log, told)
    yield from _order(log)
    yield from _keys(log)


class _Keys(NamedTuple):
    """The target and the keys of a token."""

    target: str
    partition: str | None
    dedupe: str | None


def _keys(log: Sequence[Recorded]) -> Iterator[str]:
    """Tokens with an equal partition run one at a time in their order; of tokens with an equal dedupe key one runs."""
    waiting: dict[str, _Keys] = {}  # tokens in the order of their arrival
    running: dict[str, _Keys] = {}  # step runs
    for each in log:
        body = each.body
        if isinstance(body, NextEvaluated):
            for arc in body.arcs:
                if arc.token is not None and (arc.partition is not None or arc.dedupe is not None):
                    waiting[arc.token] = _Keys(arc.target, arc.partition, arc.dedupe)
        elif isinstance(body, StepDone | StepFailed):
            running.pop(body.step_run_id, None)
        elif isinstance(body, TokenParked) and body.token in waiting and body.reason != "paused":
            if _rivals(body.token, waiting, running):
                yield f"{body.token} waits beside another token with the dedupe key {waiting[body.token].dedupe}"
        elif isinstance(body, TokenMerged) and body.token in waiting:
            if not _rivals(body.token, waiting, running):
                yield f"{body.token} was merged, and no token with its key waits or runs"
            del waiting[body.token]
        elif isinstance(body, StepSkipped):
            waiting.pop(body.token, None)
        elif isinstance(body, StepScheduled) and body.tokens and body.tokens[0] in waiting:
            yield from _entered(body, waiting, running)


def _rivals(token: str, waiting: Mapping[str, _Keys], running: Mapping[str, _Keys]) -> bool:
    """Whether an earlier token with an equal dedupe key waits, or its run is open."""
    own = waiting[token]
    earlier = list(waiting)[: list(waiting).index(token)]
    others = (*running.values(), *(waiting[each] for each in earlier))
    return own.dedupe is not None and any((each.target, each.dedupe) == (own.target, own.dedupe) for each in others)


def _entered(body: StepScheduled, waiting: dict[str, _Keys], running: dict[str, _Keys]) -> Iterator[str]:
    (token, *others), name = body.tokens, body.step_run_id
    own = waiting[token]
    if others:
        yield f"{name}: tokens with keys entered together"
    if _rivals(token, waiting, running):
        yield f"{name}: two tokens with the dedupe key {own.dedupe} run"
    if own.partition is not None:
        line = [each for each, keys in waiting.items() if keys[:2] == own[:2]]
        if line[0] != token:
            yield f"{name}: token {token} entered before {line[0]} of partition {own.partition}"
        if any(keys[:2] == own[:2] for keys in running.values()):
            yield f"{name}: two runs of partition {own.partition} at the same time"
    running[name] = waiting.pop(token)


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
