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
    IterationDone,
    IterationFailed,
    IterationStarted,
    NextEvaluated,
    Recorded,
    SignalReceived,
    StepDone,
    StepFailed,
    StepScheduled,
    StepSkipped,
    StepStarted,
    TaskDone,
    TaskStarted,
    TokenMerged,
    TokenParked,
    WaitFinished,
    WaitStarted,
    WorkerLost,
    WorkflowFinished,
)
from noetl.core.model.ids import iteration_id
from noetl.core.model.playbook import COMPENSATION
from tests.simulation.playbooks import MOST_IN_FLIGHT
from tests.simulation.users import Acknowledged


def check_promises(log: Sequence[Recorded], told: Acknowledged) -> Iterator[str]:
    """The promises that the log of an execution breaks."""
    yield from _commands(log, told)
    yield from _order(log)
    yield from _keys(log)
    yield from _tokens(log)
    yield from _numbers(log)
    yield from _timers(log)
    yield from _window(log)


def _tokens(log: Sequence[Recorded]) -> Iterator[str]:
    """No token is lost: when an execution has ended, each entered a step, was merged, or was skipped."""
    open_: set[str] = set()
    for each in log:
        body = each.body
        if isinstance(body, NextEvaluated):
            open_ |= {arc.token for arc in body.arcs if arc.token is not None}
        elif isinstance(body, StepScheduled):
            open_ -= set(body.tokens)
        elif isinstance(body, StepSkipped | TokenMerged):
            open_.discard(body.token)
        elif isinstance(body, WorkflowFinished) and open_:
            yield f"the execution ended, and the tokens {sorted(open_)} are still there"


def _numbers(log: Sequence[Recorded]) -> Iterator[str]:
    """Attempts of a visit are numbered without gaps: only an ended attempt and a lost worker use up a number."""
    used: dict[str, int] = {}  # run -> numbers used up since its last task ended
    last: dict[tuple[str, str, int], int] = {}
    for each in log:
        body = each.body
        if isinstance(body, WorkerLost):
            run = iteration_id(body.step_run_id, body.path)
            used[run] = used.get(run, 0) + (not body.returned or body.begun)
        elif isinstance(body, TaskStarted | TaskDone):
            run = iteration_id(body.step_run_id, body.path)
            key = (run, body.task, body.visit)
            most = last.get(key, 0) + 1 + used.get(run, 0)
            if body.attempt > most:
                yield f"{run}: attempt {body.attempt} of task {body.task}, at most {most} is possible"
            if isinstance(body, TaskDone):
                last[key] = body.attempt
                used[run] = 0


def _timers(log: Sequence[Recorded]) -> Iterator[str]:
    """A wait ends without a signal, and a step with a timeout, not before their time by the clock of the events."""
    waits: dict[tuple[str, str, int, int], float] = {}
    steps: dict[str, float] = {}  # step run -> when its timeout has passed
    limits: dict[str, float] = {}
    for each in log:
        body: Any = each.body
        if isinstance(body, WaitStarted | WaitFinished):
            key = (iteration_id(body.step_run_id, body.path), body.task, body.visit, body.attempt)
            if isinstance(body, WaitStarted):
                lengths = [length for length in (body.for_s, body.timeout_s) if length is not None]
                ends = [each.at + length for length in lengths] + ([] if body.until is None else [body.until])
                waits[key] = min(ends, default=0.0)
            elif body.signal is None and each.at < waits.get(key, 0.0):
                yield f"{key[0]}: a wait ended {waits[key] - each.at:.1f} s before its time"
        elif isinstance(body, StepScheduled) and body.timeout_s is not None:
            limits[body.step_run_id] = body.timeout_s
        elif isinstance(body, StepStarted):
            steps.setdefault(body.step_run_id, each.at + limits.get(body.step_run_id, 0.0))
        elif isinstance(body, StepFailed) and body.by_server and _is_timeout(body):
            yield from _early(body.step_run_id, each.at, steps)


def _is_timeout(body: StepFailed) -> bool:
    return body.output.error is not None and body.output.error.kind == "timeout"


def _early(step_run: str, at: float, steps: Mapping[str, float]) -> Iterator[str]:
    if at < steps.get(step_run, 0.0):
        yield f"{step_run} timed out before its time"


def _window(log: Sequence[Recorded]) -> Iterator[str]:
    """No more iterations are in flight than the playbook allows."""
    request: Any = log[0].body
    most = MOST_IN_FLIGHT.get(request.path)
    open_: set[str] = set()
    for each in log if most is not None else ():
        body: Any = each.body
        if isinstance(body, IterationStarted):
            open_.add(iteration_id(body.step_run_id, body.path))
            if len(open_) > most:
                yield f"{len(open_)} iterations are in flight, at most {most} may be"
        elif isinstance(body, IterationDone | IterationFailed):
            open_.discard(iteration_id(body.step_run_id, body.path))
        elif isinstance(body, StepDone | StepFailed):
            open_.clear()


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
