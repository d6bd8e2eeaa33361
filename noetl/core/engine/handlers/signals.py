"""Signals and waits: which wait takes a signal, and how a wait ends.

A signal whose name is that of a `wait` task of the playbook is data for that task, and does not change `ctx`. The
oldest open wait with its name takes it, if the sender has one of its roles and the data fits its form; otherwise the
signal is refused, and the wait goes on. Without an open wait the signal is kept, and the first wait with its name takes
it. Every signal is taken once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec

from noetl.core.engine.commands import Reply, SendSignal
from noetl.core.engine.state import OpenWait, State
from noetl.core.model.events import Event, SignalReceived, SignalRefused, WaitFinished, WaitStarted, instant
from noetl.core.model.outcome import Outcome, error_info
from noetl.core.model.playbook import WAIT, Block, Step, Task
from noetl.core.model.schemas.json_schema import InvalidSchema, problems_of
from noetl.core.model.text_matching import has_parts
from noetl.core.templates.template import compile_value

MAX_KEPT = 1_000  # signals that no wait has taken yet
MAX_BYTES = 1 << 20  # data of one signal
OPERATOR = "operator"

_EXPRESSION = re.compile(r"\{\{.*?\}\}|\{#.*?#\}", re.DOTALL)
_encode = msgspec.json.Encoder().encode

Record = Callable[[Sequence[Event], int | None], None]


def is_for_wait(state: State, command: SendSignal) -> bool:
    """Whether a signal is data for a `wait` task, and not a patch of `ctx`."""
    return bool(command.wait) or (
        bool(command.name)
        and (
            any(wait.request.signal == command.name for wait in state.waits.values())
            or any(True for _ in _tasks_for(state, command.name))
        )
    )


def deliver(state: State, command: SendSignal, at: float, record: Record) -> Reply:
    """Give a signal to the oldest wait that it fits, or keep it."""
    if len(_encode(command.payload)) > MAX_BYTES:
        return Reply(False, f"the data of a signal is larger than {MAX_BYTES >> 20} MiB", problem="data")
    candidates = [wait for wait in state.waits.values() if _is_addressed(wait, command)]
    refusals: list[Reply] = []
    for wait in candidates:
        refusal = _refusal(wait.request, command.roles, command.payload)
        if refusal is None:
            received = _received(command, command.name or wait.request.signal or "")
            record([received], None)
            record([_taken(wait, received, state.seq, at)], wait.seq)
            return Reply(True)
        refusals.append(refusal)
    if refusals:
        return refusals[0]
    if command.wait:
        return Reply(False, "the wait has been answered or has ended")
    return _keep(state, command, record)


def take_kept(state: State, event: WaitStarted, record: Record) -> None:
    """Give a new wait the first kept signal that fits it; those before it that do not fit are dropped."""
    wait = next(each for each in state.waits.values() if each.request is event)
    for seq, kept in list(state.signals.items()):
        if kept.signal.name != event.signal:
            continue
        refusal = _refusal(event, kept.signal.roles, kept.signal.payload)
        if refusal is None:
            record([_taken(wait, kept.signal, seq, kept.at)], wait.seq)
            return
        record([SignalRefused(event.signal, seq, refusal.reason)], wait.seq)


def end_due_wait(wait: OpenWait) -> WaitFinished:
    """The end of a wait whose time has come: it ends without data, or it has timed out."""
    request, ends_at, times_out_at = wait.request, wait.ends_at, wait.times_out_at
    if ends_at is not None and (times_out_at is None or ends_at <= times_out_at):
        return _finished(request, Outcome("ok", meta={"signal": None}))
    what = f'no signal "{request.signal}" arrived' if request.signal is not None else "the wait did not end"
    why = f"{what} within {request.timeout_s:g} s"
    return _finished(request, Outcome("error", error=error_info("timeout", why), meta={"signal": None}))


# ── internals ───────────────────────────────────────────────────────────────────────────


def _is_addressed(wait: OpenWait, command: SendSignal) -> bool:
    return wait.key == command.wait if command.wait else wait.request.signal == command.name


def _refusal(request: WaitStarted, roles: Sequence[str] | None, data: Any) -> Reply | None:
    """Why a wait does not take a signal; None if it does."""
    if roles is not None and not set(request.roles) & set(roles):
        return Reply(False, f'the wait "{request.task}" requires the role {_listed(request.roles)}', problem="role")
    if request.form is None:
        return None
    return _misfit(request.task, request.form, data)


def _misfit(task: str, form: Any, data: Any) -> Reply | None:
    try:
        problems = problems_of(form, data)
    except InvalidSchema as problem:
        problems = [f"the form is not a JSON Schema: {problem}"]
    if not problems:
        return None
    return Reply(False, f'the data does not fit the form of "{task}": {"; ".join(problems)}', problem="data")


def _keep(state: State, command: SendSignal, record: Record) -> Reply:
    """Keep a signal for a wait that has not begun."""
    if command.roles is not None and OPERATOR not in command.roles:
        return Reply(False, f"a signal before its wait requires the role {OPERATOR}", problem="role")
    if len(state.signals) >= MAX_KEPT:
        return Reply(False, f"{MAX_KEPT} signals that no wait has taken are kept already; no more are accepted")
    refusals: list[Reply | None] = [
        _misfit(task.name, task.input["form"], command.payload) if _has_static_form(task) else None
        for task in _tasks_for(state, command.name)
    ]
    if refusals and all(refusals):
        refused = refusals[0]
        assert refused is not None
        return refused
    record([_received(command, command.name)], None)
    return Reply(True)


def _has_static_form(task: Task) -> bool:
    form = task.input.get("form")
    return form is not None and compile_value(form).static


def _received(command: SendSignal, name: str) -> SignalReceived:
    roles = None if command.roles is None else tuple(command.roles)
    wait = command.wait if command.id else ""
    return SignalReceived(name, command.payload, command.by, True, roles, command.id, wait)


def _taken(wait: OpenWait, signal: SignalReceived, seq: int, at: float) -> WaitFinished:
    meta = {"signal": {"name": signal.name, "by": signal.by, "at": instant(at)}}
    return _finished(wait.request, Outcome("ok", data=signal.payload, meta=meta), seq)


def _finished(request: WaitStarted, outcome: Outcome, signal: int | None = None) -> WaitFinished:
    return WaitFinished(
        step=request.step,
        step_run_id=request.step_run_id,
        task=request.task,
        outcome=outcome,
        signal=signal,
        visit=request.visit,
        attempt=request.attempt,
        path=request.path,
    )


def _tasks_for(state: State, name: str) -> Iterator[Task]:
    """The `wait` tasks of the playbook that may wait for a signal of this name."""
    owners: list[Step | Block] = [*state.net.steps.values(), *state.playbook.blocks.values()]
    for task in chain.from_iterable(owner.tasks for owner in owners):
        if task.kind == WAIT and _may_match(task, name):
            yield task


def _may_match(task: Task, name: str) -> bool:
    signal = task.input.get("signal")
    if signal is None:
        return task.name == name and task.input.get("until") is None and task.input.get("for") is None
    text = str(signal)
    if "{%" in text:
        return True
    return has_parts(name, _EXPRESSION.split(text))


def _listed(names: Sequence[str]) -> str:
    return " or ".join(names)
