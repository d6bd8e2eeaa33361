"""Admission: when a token that waits before a step may enter it.

Four conditions are checked, in this order.

*Pause.* While the execution is paused, no token enters a step.

*The join.* A step that other live tokens can still reach waits for them and runs once for all (the
inclusive join). A live token waits before another step or is inside one; whether it can still
reach this step is decided on the static net. A token inside this step itself does not count: it
would have to leave the step and return. `admit.join: each` does not wait, and runs once per token.
When nothing is in flight any more, a waiting join cannot be completed: the other tokens wait before
closed gates, or wait for this join in turn. Then the most upstream join opens, one at a time.

*Once.* A step that runs once drops later tokens.

*The gate.* `admit.rules`: the first match decides, no match denies. Denied tokens are parked and
examined again whenever the state changes; tokens before the same closed gate are merged. A gate with
`on_deny: discard` drops them.

A token that may enter is consumed by `step.scheduled`, with the step's input evaluated. When a
template of the gate or the input fails, the step fails before it starts: it is scheduled and failed
in one append.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from noetl.core.engine.evaluation.compiled_net import CompiledStep
from noetl.core.engine.evaluation.context import DataNeeded, EvaluationContext, Failure
from noetl.core.engine.evaluation.names import ServerNames, at_gate, at_input
from noetl.core.engine.handlers.assignments import merge_args
from noetl.core.engine.handlers.runaway import runaway_reason
from noetl.core.engine.state import State, Token
from noetl.core.model.durations import finite
from noetl.core.model.events import Event, StepFailed, StepScheduled, StepSkipped, TokenMerged, TokenParked
from noetl.core.model.excerpt import written
from noetl.core.model.ids import step_run_id
from noetl.core.model.merge import deep_merge
from noetl.core.model.outcome import ErrorInfo, Outcome, error_info
from noetl.core.templates.template import Compiled

_json = msgspec.json.Encoder().encode
Reason = Literal["admission", "join", "paused", "partition"]


def examine_waiting_tokens(state: State, env: EvaluationContext) -> list[Event]:
    """Examine every waiting token: it enters its step, is parked, or is dropped."""
    if not state.waiting or state.ending is not None:
        return []
    events: list[Event] = []
    if state.paused:
        for group in state.waiting.values():
            events += (_parked(token, "paused") for token in group if token.reason is None)
        return events
    alone = len(state.waiting) == 1
    for name, group in state.waiting.items():
        step = state.net.compiled(name)
        if (
            alone
            and step.immediate
            and len(group) == 1
            and not state.runs
            and not runaway_reason(state, name, env.at, 0)
        ):
            # A single token and nothing to evaluate: the common case of a chain.
            return [StepScheduled(name, _next_run_id(state, name, 0), group[0].args, {}, (group[0].id,))]
        events += _examine_group(state, env, step, group)
    if not events and not state.runs and not state.children:
        events = _release_join(state, env)
    return events


def _examine_group(state: State, env: EvaluationContext, step: CompiledStep, group: list[Token]) -> list[Event]:
    name = step.step.name
    admission = step.step.admission
    record = state.steps.get(name)
    if admission.once and record is not None and record.number:
        return [_skipped(token, "the step runs once and has already run") for token in group]
    if any(token.dedupe is not None or token.partition is not None for token in group):
        return _examine_keyed(state, env, step, group)
    if admission.join == "each":
        events: list[Event] = []
        for offset, token in enumerate(group):
            if admission.once and offset:
                events.append(_skipped(token, "the step runs once and has already run"))
            else:
                events += _examine(state, env, step, [token], _count_scheduled(events))
        return events
    if _others_can_reach(state, name):
        return _wait(state, env, step, group, "join")
    return _examine(state, env, step, group, 0)


def _examine_keyed(state: State, env: EvaluationContext, step: CompiledStep, group: list[Token]) -> list[Event]:
    """Examine tokens with keys one by one: equal `dedupe` keys are merged, equal `partition` keys wait in order."""
    name = step.step.name
    open_ = [run for run in state.runs.values() if run.step.name == name and run.phase != "ended"]
    merged = {run.dedupe: run.id for run in open_ if run.dedupe is not None}
    busy = {run.partition for run in open_ if run.partition is not None}
    events: list[Event] = []
    for token in group:
        key, partition = token.dedupe, token.partition
        if key is not None and key in merged:
            events.append(TokenMerged(name, token.id, merged[key], key))
            continue
        if key is not None:
            merged[key] = token.id
        if partition is not None and partition in busy:
            events += _wait(state, env, step, [token], "partition")
            continue
        if partition is not None:
            busy.add(partition)
        events += _examine(state, env, step, [token], _count_scheduled(events))
    return events


def _count_scheduled(events: list[Event]) -> int:
    return sum(1 for event in events if type(event) is StepScheduled)


def _others_can_reach(state: State, step: str) -> bool:
    """Whether a live token elsewhere can still reach this step."""
    waiting, live = state.waiting, state.live
    if len(waiting) == 1 and (not live or (len(live) == 1 and step in live)):
        return False
    mask = live_steps(state)
    return bool(mask & state.net.origins(step))


def live_steps(state: State) -> int:
    """The bits of all steps with a live token; cached, and then updated by `evolve`."""
    if state._mask is None:
        state._mask = state.net.mask(state.live) | state.net.mask(state.waiting)
    return state._mask


def _release_join(state: State, env: EvaluationContext) -> list[Event]:
    """Nothing is in flight any more: open the first join whose gate is open too."""
    net = state.net
    names = [
        name
        for name, group in state.waiting.items()
        if net.steps[name].admission.join == "all" and group[0].reason == "join"
    ]
    # Upstream first: a join downstream of another one waits for it, unless each is downstream of the other.
    ordered = [
        name
        for name in names
        if not any(other != name and net.reaches(other, name) and not net.reaches(name, other) for other in names)
    ]
    for name in [*ordered, *(name for name in names if name not in ordered)]:
        events = _examine(state, env, net.compiled(name), state.waiting[name], 0)
        if any(type(event) is not TokenParked for event in events):
            return events
    return []


def _examine(state: State, env: EvaluationContext, step: CompiledStep, group: list[Token], before: int) -> list[Event]:
    """Evaluate the gate: schedule a run, park the tokens, or drop them."""
    args = group[0].args
    try:
        for token in group[1:]:
            args = merge_args(env, args, token.args)
    except Failure as failure:
        return list(_failed_before_start(state, step, group, args, before, failure.error))
    if step.gate:
        try:
            admitted = _admitted(state, env, step, at_gate(state, env, group[-1], args))
        except Failure as failure:
            return list(_failed_before_start(state, step, group, args, before, failure.error))
        if not admitted:
            if step.step.admission.on_deny == "discard":
                return [_skipped(token, "the gate is closed") for token in group]
            return _wait(state, env, step, group, "admission")
    return list(_scheduled(state, env, step, group, args, before))


def _admitted(state: State, env: EvaluationContext, step: CompiledStep, names: ServerNames) -> bool:
    for when, allow, path in step.gate:
        if when is None or env.holds(when, names, path):
            return env.holds(allow, names, path)
    return False


def _scheduled(
    state: State, env: EvaluationContext, step: CompiledStep, group: list[Token], args: dict[str, Any], before: int
) -> Iterator[Event]:
    problem = runaway_reason(state, step.step.name, env.at, before)
    if problem:
        error = error_info("limit", problem)
        yield from _failed_before_start(state, step, group, args, before, error, fatal=True)
        return
    names = at_input(state, env, args)
    timeout = deadline = None
    defer = False
    values: dict[str, Any] = {}
    try:
        if step.timeout_s is not None:
            timeout = _seconds(env, step.timeout_s, names, f"{step.step.path}/spec/policy/lifecycle/timeout_s")
        deadline = _deadline(state, env, step, names)
        if step.input is not None and step.step.loop is None:
            values, defer = _input(state, env, step.input, names, step)
    except Failure as failure:
        yield from _failed_before_start(state, step, group, args, before, failure.error)
        return
    yield StepScheduled(
        step=step.step.name,
        step_run_id=_next_run_id(state, step.step.name, before),
        args=args,
        input=values,
        tokens=tuple(token.id for token in group),
        timeout_s=timeout,
        deadline_at=deadline,
        defer_input=defer,
    )


def _input(
    state: State, env: EvaluationContext, compiled: Compiled, names: ServerNames, step: CompiledStep
) -> tuple[dict[str, Any], bool]:
    """A step's input, or True if the worker must evaluate it because it does not fit into the log."""
    if compiled.static:
        return dict(step.step.input), False
    try:
        values: dict[str, Any] = env.evaluate(compiled, names, f"{step.step.path}/input")
    except DataNeeded:
        if not step.single_run:  # no worker evaluates it
            raise
        return {}, True
    if step.single_run and len(_json(values)) > state.playbook.executor.limits.max_payload_bytes:
        return {}, True
    return values, False


def _seconds(env: EvaluationContext, compiled: Compiled, names: ServerNames, path: str) -> float:
    value = env.evaluate(compiled, names, path)
    try:
        seconds = finite(value)
    except ValueError:
        raise env.fail("template", f"expected a number of seconds, got {written(value)}", path) from None
    if seconds < 0:
        raise env.fail("template", f"expected a number of seconds of at least 0, got {written(value)}", path)
    return seconds


def _failed_before_start(
    state: State,
    step: CompiledStep,
    group: list[Token],
    args: dict[str, Any],
    before: int,
    error: ErrorInfo,
    *,
    fatal: bool = False,
) -> Iterator[Event]:
    run_id = _next_run_id(state, step.step.name, before)
    tokens = tuple(token.id for token in group)
    yield StepScheduled(step=step.step.name, step_run_id=run_id, args=args, tokens=tokens)
    yield StepFailed(
        step=step.step.name, step_run_id=run_id, output=Outcome("error", error=error), fatal=fatal, by_server=True
    )


def _next_run_id(state: State, step: str, before: int) -> str:
    record = state.steps.get(step)
    return step_run_id(state.execution_id, step, (record.number if record else 0) + 1 + before)


def _parked(token: Token, reason: Reason, deadline: float | None = None) -> Event:
    return TokenParked(token.step, token.id, reason, token.args, token.origin, deadline)


def _wait(state: State, env: EvaluationContext, step: CompiledStep, group: list[Token], reason: Reason) -> list[Event]:
    """Park the tokens of a group; the deadline of their step applies while they wait."""
    events: list[Event] = []
    for token in group:
        if token.reason != reason:
            try:
                deadline = _deadline(state, env, step, at_input(state, env, token.args))
            except Failure:
                deadline = None  # the step fails with this error when the token enters it
            events.append(_parked(token, reason, deadline))
    return events


def _deadline(state: State, env: EvaluationContext, step: CompiledStep, names: ServerNames) -> float | None:
    """When the step fails, unless it has ended: counted from the start of the execution."""
    if step.deadline_s is None:
        return None
    path = f"{step.step.path}/spec/policy/lifecycle/deadline_s"
    return state.started_at + _seconds(env, step.deadline_s, names, path)


def time_out_tokens(state: State, at: float) -> Iterator[tuple[list[Event], int]]:
    """The failures of steps whose deadline has passed while tokens waited before them, each with its cause."""
    for name, group in list(state.waiting.items()):
        late = [token for token in group if state.due.get(token.id, at + 1) <= at]
        if late:
            args = late[0].args
            for token in late[1:]:
                args = deep_merge(args, token.args)
            what = "other branches" if late[0].reason == "join" else "its gate"
            error = error_info("timeout", f"the deadline of the step has passed while it waited for {what}")
            step = state.net.compiled(name)
            yield list(_failed_before_start(state, step, late, args, 0, error)), late[-1].seq


def _skipped(token: Token, reason: str) -> Event:
    return StepSkipped(step=token.step, token=token.id, reason=reason)
