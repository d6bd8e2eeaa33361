"""Explains why an execution has not finished: the tokens, gates, leases, timers and children that it waits for.

For a finished execution it explains what ended it. This is `noetl why`; the state is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from noetl.core.engine.concurrency_keys import DEFAULT_POOL, SUSPECTS, label_keys, playbook_key
from noetl.core.engine.evaluation.compiled_net import CompiledStep
from noetl.core.engine.evaluation.context import DataNeeded, EvaluationContext, Failure
from noetl.core.engine.evaluation.names import at_gate
from noetl.core.engine.lease_rules import is_innermost
from noetl.core.engine.state import SUSPECT, Loop, OpenWait, Run, State, StepRun, Token
from noetl.core.model.events import instant
from noetl.core.model.merge import deep_merge
from noetl.core.model.playbook import worker_command
from noetl.core.model.quotas.token_bucket import Demand, rate_text
from noetl.core.model.waits import answer_command
from noetl.core.templates.template import Compiled, compile_value

Subject = Literal[
    "execution",
    "pause",
    "run",
    "loop",
    "child",
    "join",
    "gate",
    "timer",
    "end",
    "limit",
    "quota",
    "wait",
    "compensation",
    "placement",
]
_MAX_LISTED = 50  # findings of one kind that are listed individually


class Finding(Struct, frozen=True, omit_defaults=True):
    """One reason for waiting, or the reason for the end."""

    subject: Subject
    text: str
    id: str = ""  # run, token, child
    step: str = ""
    since: float | None = None  # seconds since the epoch
    due: float | None = None


Placement = Callable[[str, Sequence[str]], str | None]  # why no worker of a pool has these labels


def waiting_reasons(
    state: State, at: float, reached: Mapping[str, str] | None = None, placement: Placement | None = None
) -> list[Finding]:
    """What the execution waits for at this instant; `reached` describes the holders of each reached limit."""
    if state.request is None:
        return [Finding("execution", "the execution has not been requested yet")]
    if state.finished is not None:
        return [_end(state)]
    findings: list[Finding] = []
    if state.ending is not None:
        findings.append(_ending(state))
    if state.paused:
        findings.append(Finding("pause", "the execution is paused: no new run starts until it is resumed"))
    for step_run in state.runs.values():
        findings += _step_run_findings(state, step_run, at, reached or {})
    findings += _cancelled_children(state)
    for name, group in state.waiting.items():
        findings += _token_findings(state, at, state.net.compiled(name), group)
    if placement is not None and state.accepts_claims:
        findings += _unplaceable(state, placement)
    return findings or [Finding("execution", "nothing is waiting: the next decision ends the execution")]


def _unplaceable(state: State, placement: Placement) -> Iterator[Finding]:
    """Steps with waiting runs that no live worker can take."""
    steps = {state.open[run_id].step_run.step.name: state.open[run_id].step_run.step for run_id in state.queued}
    for step_run in state.runs.values():
        if any(
            is_innermost(state, loop) and next(loop.unclaimed(), None) is not None for loop in step_run.loops.values()
        ):
            steps[step_run.step.name] = step_run.step
    for name, step in steps.items():
        problem = placement(step.pool or DEFAULT_POOL, step.labels)
        if problem is not None:
            text = f'runs of step "{name}" cannot start: {problem}; `{worker_command(step)}` starts one'
            yield Finding("placement", text, step=name)


# ── the end ─────────────────────────────────────────────────────────────────────────────


def _end(state: State) -> Finding:
    if state.finished == "success":
        step = f'; the output is that of step "{state.result_step}"' if state.result_step else ""
        return Finding("end", f"completed successfully{step}", step=state.result_step or "", since=state.at)
    reason = f": {state.error.message} ({state.error.kind})" if state.error else ""
    if state.finished == "cancelled":
        return Finding("end", f"cancelled{reason}", since=state.at)
    step = f' at step "{state.result_step}"' if state.result_step else ""
    return Finding("end", f"failed{step}{reason}", step=state.result_step or "", since=state.at)


def _ending(state: State) -> Finding:
    ending = state.ending
    what = "cancelled" if ending is not None and ending.status == "cancelled" else "failed"
    where = f' at step "{ending.step}"' if ending is not None and ending.step else ""
    if not state.compensating:
        return Finding("end", f"{what}{where}: the execution ends when its child executions have ended")
    left = sum(len(group.runs) for group in state.completed)
    if state.compensations_left is not None:
        left -= len(state.completed[-1].runs) - state.compensations_left
    counts = state.compensated
    text = (
        f"{what}{where}: completed steps are undone: {counts.done} done, {counts.failed} failed, "
        f"{len(state.compensating)} running, {left} left"
    )
    return Finding("compensation", text)


# ── runs ────────────────────────────────────────────────────────────────────────────────


def _step_run_findings(state: State, step_run: StepRun, at: float, reached: Mapping[str, str]) -> Iterator[Finding]:
    if step_run.loops:
        for loop in step_run.loops.values():
            if is_innermost(state, loop) or not loop.path:
                yield _loop_finding(state, loop)
                yield from _limited_iterations(state, loop, reached)
    runs = state.runs_of(step_run)
    if state.waits:
        quota_waits = [wait for run in runs if (wait := state.waits.get(run.child or "")) and wait.request.quota]
        if quota_waits:
            yield from _quota_findings(quota_waits, at)
            waiting = {wait.run_id for wait in quota_waits}
            runs = [run for run in runs if run.id not in waiting]
    for run in runs[:_MAX_LISTED]:
        yield _run_finding(state, run, at, reached)
    if len(runs) > _MAX_LISTED:
        yield Finding("run", f'and {len(runs) - _MAX_LISTED} more iterations of "{step_run.step.name}" in flight')
    due = state.due.get(step_run.id)
    if due is not None:
        name = step_run.step.name
        yield Finding("timer", f'step "{name}" times out {_until(due, at)}', id=step_run.id, step=name, due=due)


def _run_finding(state: State, run: Run, at: float, reached: Mapping[str, str]) -> Finding:
    step = run.step_run.step
    what = f'step "{step.name}"' if not run.path else f'iteration {".".join(map(str, run.path))} of "{step.name}"'
    task = run.current or (run.position.task if run.position else None) or (step.tasks[0].name if step.tasks else None)
    at_task = f' at task "{task}"' if task else ""
    lost = f"; {run.lost} worker{'s' if run.lost > 1 else ''} lost in a row" if run.lost else ""
    if run.suspect >= SUSPECT:
        lost += ", so it is executed alone on a worker"
    since = _duration(at - run.at)
    if run.status == "leased":
        text = f"{what} has been running on worker {run.worker} for {since}{at_task} (lease {run.epoch}){lost}"
    elif run.status == "suspended" and run.child in state.waits:
        return _wait_finding(state, state.waits[run.child], what, at)
    elif run.status == "suspended":
        child = state.children.get(run.child or "")
        whose = f' "{child.request.playbook}"' if child else ""
        named = f" (execution {child.child})" if child and child.child else " (not started yet)"
        waits = ", which waits itself" if child and child.waiting else ""
        return Finding(
            "child",
            f"{what} has been waiting for {since} for the child playbook{whose}{named}{waits}",
            run.id,
            step.name,
            run.at,
        )
    elif run.id in state.isolated and SUSPECTS in reached:
        text = f"{what} has been waiting for {since} for its turn to run alone{lost}; {reached[SUSPECTS]}"
    elif limit := _limit_of(state, step.name, reached):
        return Finding("limit", f"{what} has been waiting for {since} for {limit}", run.id, step.name, run.at)
    else:
        pool = f' of pool "{step.pool}"' if step.pool else ""
        pool += f" with the labels {', '.join(step.labels)}" if step.labels else ""
        text = f"{what} has been waiting for {since} for a worker{pool}{at_task}{lost}"
    return Finding("run", text, run.id, step.name, run.at)


def _quota_findings(waits: Sequence[OpenWait], at: float) -> Iterator[Finding]:
    """How many runs of a step run wait for each quota, and until when."""
    by_quota: dict[Demand, list[OpenWait]] = {}
    for wait in waits:
        assert wait.request.quota is not None
        by_quota.setdefault(wait.request.quota, []).append(wait)
    for quota, group in by_quota.items():
        group.sort(key=lambda wait: wait.due or 0.0)
        first, last = group[0], group[-1]
        name, path = first.request.step, first.request.path
        until = f"until {_moment(first.due, at)}"
        if len(group) > 1:
            what, until = f'{len(group)} iterations of "{name}" wait', f"the first {until}, the last until "
            until += _moment(last.due, at)
        else:
            what = f'iteration {".".join(map(str, path))} of "{name}" waits' if path else f'step "{name}" waits'
        text = f'{what} for the quota "{quota.key}" ({rate_text(quota.rate)}) {until}'
        yield Finding("quota", text, first.key, name, min(wait.at for wait in group), first.due)


def _moment(due: float | None, at: float) -> str:
    return "" if due is None else f"{instant(due)[:19]}Z ({_until(due, at)})"


def _wait_finding(state: State, wait: OpenWait, what: str, at: float) -> Finding:
    """For what a `wait` task waits, since when, until when, and how to answer it."""
    request = wait.request
    reasons = [] if request.signal is None else [f'the signal "{request.signal}"']
    if wait.ends_at is not None:
        reasons.append(f"{instant(wait.ends_at)[:19]}Z ({_until(wait.ends_at, at)})")
    text = f'{what} has been waiting at task "{request.task}" for {_duration(at - wait.at)} for {" or ".join(reasons)}'
    if request.title:
        text += f": {request.title}"
    if wait.times_out_at is not None:
        text += f"; it times out {_until(wait.times_out_at, at)}"
    if request.signal is not None:
        text += f"; answer with `{answer_command(state.execution_id, request.signal, request.form)}`"
    return Finding("wait", text, wait.key, request.step, wait.at, wait.due)


def _until(due: float, at: float) -> str:
    return f"in {_duration(due - at)}" if due > at else f"{_duration(at - due)} ago: the timer is late"


def _limit_of(state: State, step: str, reached: Mapping[str, str]) -> str | None:
    """The description of the reached limit that a run of a step waits for."""
    own = playbook_key(state.playbook.path)
    labels = label_keys(state.request.labels) if state.request is not None else ()
    keys = (*(() if state.begun else (own,)), *state.net.concurrency_keys(step), *labels)
    return next((reached[key] for key in keys if key in reached), None)


def _loop_finding(state: State, loop: Loop) -> Finding:
    step_run = loop.step_run
    name = step_run.step.name
    which = f" (in iteration {'.'.join(map(str, loop.path))})" if loop.path else ""
    open_ = loop.issued - loop.finished
    failed = f", {loop.failed} failed" if loop.failed else ""
    stopped = ", no more are started" if loop.stopped else ""
    unclaimed = sum(1 for _ in loop.unclaimed()) if is_innermost(state, loop) else 0
    queued = f"; {unclaimed} of them wait for a worker" if unclaimed else ""
    text = (
        f'loop "{name}"{which}: {loop.finished} of {loop.count} iterations have ended{failed}, {open_} are open '
        f"(at most {loop.window} at a time){stopped}{queued}"
    )
    return Finding("loop", text, step_run.id, name, step_run.started_at)


def _limited_iterations(state: State, loop: Loop, reached: Mapping[str, str]) -> Iterator[Finding]:
    """Iterations that wait because a limit is reached."""
    name = loop.step_run.step.name
    limit = _limit_of(state, name, reached) if reached and is_innermost(state, loop) else None
    count = sum(1 for _ in loop.unclaimed()) if limit else 0
    if count:
        yield Finding("limit", f'{count} iterations of "{name}" wait for {limit}', loop.step_run.id, name)


def _cancelled_children(state: State) -> Iterator[Finding]:
    """Cancelled children that have not ended yet."""
    for child in state.children.values():
        named = child.child or "not started yet"
        if child.run_id in state.compensating:
            text = f'the child playbook "{child.request.playbook}" is undone by execution {named}'
            yield Finding("child", text, child.key, child.request.step)
        elif child.run_id not in state.open:
            text = f'the child playbook "{child.request.playbook}" ({named}) was cancelled and has not ended yet'
            yield Finding("child", text, child.key, child.request.step)


# ── tokens ──────────────────────────────────────────────────────────────────────────────


def _token_findings(state: State, at: float, step: CompiledStep, group: list[Token]) -> Iterator[Finding]:
    name = step.step.name
    ids = ", ".join(token.id for token in group[:5]) + (", ..." if len(group) > 5 else "")
    origins = sorted({token.origin for token in group if token.origin})
    source = f" from {_listed(origins)}" if origins else ""
    head = f'{"a token" if len(group) == 1 else f"{len(group)} tokens"}{source} before step "{name}"'
    if state.paused or state.ending is not None:
        yield Finding("pause" if state.paused else "end", f"{head}: no new run starts now", ids, name)
        return
    behind = [token for token in group if token.reason == "partition"]
    if behind:
        keys = _listed(sorted({token.partition or "" for token in behind}))
        yield Finding("join", f"{head}: earlier tokens of partition {keys} run first", ids, name)
        return
    if step.step.admission.join == "all":
        blockers = _blockers(state, name)
        if blockers:
            text = f"{head}: the join waits for live tokens at {_listed(blockers)}, which can still reach it"
            yield Finding("join", text, ids, name)
            return
    if step.gate:
        yield Finding("gate", f"{head}: the gate is closed: {_gate(state, at, step, group)}", ids, name)


def _blockers(state: State, name: str) -> list[str]:
    net = state.net
    return [other for other in {**state.live, **state.waiting} if other != name and net.reaches(other, name)]


def _gate(state: State, at: float, step: CompiledStep, group: list[Token]) -> str:
    """Each rule, with the current values of the names that it reads."""
    env = EvaluationContext(state.playbook, at, None, {})
    args: dict[str, Any] = {}
    for token in group:
        args = deep_merge(args, token.args)
    names = at_gate(state, env, group[-1], args)
    rules: list[str] = []
    for rule, (when, _, path) in zip(step.step.admission.rules, step.gate, strict=True):
        if when is None:
            rules.append("`else` denies")
            continue
        values = _values(when, names, env)
        rules.append(f"`{rule.when}` is false ({state.playbook.where(path)}){values}")
    return "; ".join(rules)


def _values(when: Compiled, names: Any, env: EvaluationContext) -> str:
    shown = []
    for dotted in when.names[:6]:
        try:
            value = env.evaluate(compile_value("{{ " + dotted + " }}"), names, "")
        except (Failure, DataNeeded):
            shown.append(f"{dotted} is not defined")
            continue
        text = repr(value)
        shown.append(f"{dotted} is {text if len(text) <= 60 else text[:57] + '...'}")
    return f" [{', '.join(shown)}]" if shown else ""


# ── formatting ──────────────────────────────────────────────────────────────────────────


def _listed(names: list[str]) -> str:
    shown = [f'"{name}"' for name in names[:5]]
    if len(names) > 5:
        shown.append(f"{len(names) - 5} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
