"""Reruns and forks: what a new execution reuses of an earlier one, and the plan that shows it before it starts.

* From a step: the results and the ctx before the last run of that step; one token enters it.
* Of what failed: the log up to the failure. Open steps start again, and loops keep their finished iterations.
* A fork: the log up to an event. The state is that after the decision that the event belongs to.

A kept result is that of a step that still exists; a kept iteration is one whose element is still the same.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field, structs

from noetl.core.engine.advance import begin, fold
from noetl.core.engine.handlers import reduce
from noetl.core.engine.state import State
from noetl.core.model.events import (
    ExecutionCancelled,
    IterationDone,
    IterationsKept,
    KeptIteration,
    KeptLoop,
    KeptToken,
    LoopDone,
    LoopStarted,
    RerunSource,
    StepFailed,
    StepScheduled,
    TaskDone,
    WorkflowFinished,
)
from noetl.core.model.ids import IterationPath
from noetl.core.model.playbook import STATE_KEY, Playbook, ctx_part
from noetl.errors import Conflict, NotFound
from noetl.server.orchestrator.execution_actor import ActorDependencies, load_state
from noetl.server.read_models.log_pages import log_events

Mode = Literal["rerun", "failed", "fork"]


class RerunPlan(Struct, frozen=True):
    """What a rerun or a fork would do."""

    execution_id: str  # of the earlier execution
    mode: Mode
    path: str
    version_before: str | None
    version: str | None
    starts: tuple[str, ...]  # steps that run first
    kept: tuple[str, ...] = ()  # steps whose results are reused
    changed: tuple[str, ...] = ()  # of these, steps whose definition differs in the new version
    dropped: tuple[str, ...] = ()  # steps with results that the new version does not have
    iterations: dict[str, int] = field(default_factory=dict)  # step -> iterations whose results are reused
    at: int | None = None  # seq up to which the log is reused

    def describe(self) -> str:
        """The plan in one line."""
        version = f" with version {self.version}" if self.version != self.version_before else ""
        parts = [f"starts at {', '.join(self.starts)}{version}"]
        if self.kept:
            kept = [f"{name} (changed since)" if name in self.changed else name for name in self.kept]
            parts.append(f"keeps the results of {', '.join(kept)}")
        parts += [f"keeps {count} iterations of {step}" for step, count in self.iterations.items()]
        if self.dropped:
            parts.append(f"drops the results of {', '.join(self.dropped)}, which the new version does not have")
        return "; ".join(parts)


async def step_source(dependencies: ActorDependencies, state: State, step: str) -> RerunSource:
    """Results and ctx before the last run of `step`, or the current ones if it never ran."""
    if step not in state.playbook.steps_by_name:
        raise NotFound(f"execution {state.execution_id} has no step {step!r}")
    last = 0
    args: dict[str, Any] = {}
    async for recorded in log_events(dependencies.store, state.execution_id):
        if isinstance(recorded.body, StepScheduled) and recorded.body.step == step:
            last, args = recorded.seq, recorded.body.args
    before = (await load_state(dependencies, state.execution_id, last - 1))[0] if last else state
    return _source(before, "rerun", None, from_step=step, args=args)


async def failed_source(dependencies: ActorDependencies, state: State) -> RerunSource:
    """The log up to the failure that ended the execution, or to the first loop with failed iterations."""
    at = await _failure(dependencies, state.execution_id)
    if at is None:
        raise Conflict(f"execution {state.execution_id}: nothing failed; rerun it without --failed, or --from a step")
    return await _forked(dependencies, state, at, "failed")


async def fork_source(dependencies: ActorDependencies, state: State, at: int) -> RerunSource:
    """The log up to event `at`, and to the end of the decision that it belongs to."""
    if not 1 <= at <= state.seq:
        raise NotFound(f"execution {state.execution_id} has the events 1 to {state.seq}, not {at}")
    return await _forked(dependencies, state, at, "fork")


def plan(source: RerunSource, earlier: State, playbook: Playbook, version: str | None) -> tuple[RerunSource, RerunPlan]:
    """The source without results of steps that the playbook does not have, and what it means; NotFound if a step at
    which it starts does not exist."""
    steps, before = playbook.steps_by_name, earlier.playbook.steps_by_name
    starts = tuple(dict.fromkeys(token.step for token in source.tokens)) or (source.from_step or playbook.entry,)
    for name in starts:
        if name not in steps:
            raise NotFound(f"{playbook.path} has no step {name!r} in this version, and the rerun would start there")
    kept = {name: outcome for name, outcome in source.results.items() if name in steps}
    loops = {name: each for name, each in source.loops.items() if name in steps}
    changed = [name for name in kept if name in before and _differs(before[name], steps[name])]
    request = earlier.request
    return structs.replace(
        source, results=kept, loops=loops, task_results={n: r for n, r in source.task_results.items() if n in steps}
    ), RerunPlan(
        execution_id=earlier.execution_id,
        mode=source.mode,
        path=playbook.path,
        version_before=request.version if request else None,
        version=version,
        starts=starts,
        kept=tuple(name for name in kept if name not in starts),
        changed=tuple(changed),
        dropped=tuple(name for name in source.results if name not in steps),
        iterations={name: count for name, each in loops.items() if (count := sum(len(loop.done) for loop in each))},
        at=source.at,
    )


# ── internals ───────────────────────────────────────────────────────────────────────────


async def _failure(dependencies: ActorDependencies, execution_id: str) -> int | None:
    """The seq of the last event before the failure; None if nothing failed."""
    failures: dict[str, int] = {}  # the last one of each step
    finished: WorkflowFinished | None = None
    cancelled = partial = None
    async for recorded in log_events(dependencies.store, execution_id):
        body = recorded.body
        if isinstance(body, StepFailed):
            failures[body.step] = recorded.seq
        elif isinstance(body, WorkflowFinished):
            finished = body
        elif isinstance(body, ExecutionCancelled):
            cancelled = cancelled or recorded.seq
        elif isinstance(body, LoopDone) and not body.path and body.failed:
            partial = partial or recorded.seq
    if finished is not None and finished.outcome == "failed":
        return failures.get(finished.step or "", 1) - 1
    found = cancelled if finished is not None and finished.outcome == "cancelled" else partial
    return found - 1 if found else None


async def _forked(dependencies: ActorDependencies, latest: State, at: int, mode: Mode) -> RerunSource:
    execution_id, playbook = latest.execution_id, latest.playbook
    state = (await load_state(dependencies, execution_id, at))[0] if at else begin(playbook, execution_id)
    if mode == "fork" and not _is_settled(state):
        async for recorded in log_events(dependencies.store, execution_id, at):
            state = fold(playbook, [recorded], state)
            at = recorded.seq
            if _is_settled(state):
                break
    if state.request is None or not state.started:
        return RerunSource(execution_id=execution_id, mode=mode, at=at)
    if state.ending is not None or state.finished is not None:
        raise Conflict(
            f"execution {execution_id} was ending at event {at}, so nothing would run; choose an earlier event"
        )
    source = _source(state, mode, at)
    tokens = [KeptToken(step_run.step.name, step_run.args, step_run.origin) for step_run in state.runs.values()]
    tokens += [KeptToken(token.step, token.args, token.origin) for group in state.waiting.values() for token in group]
    if not tokens:
        raise Conflict(f"execution {execution_id} had no token at event {at}, so nothing would run")
    open_loops = {step_run.id: step_run.step.name for step_run in state.runs.values() if step_run.step.loop}
    loops = await _kept_loops(dependencies, state, at, open_loops) if open_loops else {}
    return structs.replace(source, tokens=tuple(tokens), from_step=tokens[0].step, loops=loops)


def _is_settled(state: State) -> bool:
    """Whether the state is that after a whole decision."""
    return state.started and not state.unexamined and all(each.phase == "open" for each in state.runs.values())


def _source(state: State, mode: Mode, at: int | None, **more: Any) -> RerunSource:
    records = state.steps.items()
    written = {STATE_KEY + key: state.ctx[STATE_KEY + key] for key in state.uncommitted}
    return RerunSource(
        execution_id=state.execution_id,
        mode=mode,
        at=at,
        results={name: record.outcome for name, record in records if record.outcome is not None},
        task_results={name: record.results for name, record in records if record.results},
        ctx={**ctx_part(state.ctx), **written},  # of `state`, what is not committed; the rest is read again
        state_versions={key: state.versions.get(key) for key in state.uncommitted},
        **more,
    )


async def _kept_loops(
    dependencies: ActorDependencies, state: State, at: int, open_loops: dict[str, str]
) -> dict[str, tuple[KeptLoop, ...]]:
    """The finished iterations of the open loops, by step."""
    started: dict[tuple[str, IterationPath], LoopStarted] = {}
    done: dict[tuple[str, IterationPath], list[KeptIteration]] = {}
    written: dict[tuple[str, IterationPath], dict[str, Any]] = {}
    async for recorded in log_events(dependencies.store, state.execution_id, until=at):
        body = recorded.body
        if isinstance(body, LoopStarted) and body.step_run_id in open_loops:
            started[body.step_run_id, body.path] = body
        elif isinstance(body, TaskDone) and body.path and body.patch and body.step_run_id in open_loops:
            reducers = state.net.compiled(body.step).reduce
            mine = {key: value for key, value in reduce.shared_writes(body).items() if key in reducers}
            written.setdefault((body.step_run_id, body.path), {}).update(mine)
        elif isinstance(body, IterationDone) and body.step_run_id in open_loops and not body.by_server:
            kept = KeptIteration(
                index=body.path[-1],
                output=body.output,
                step_patch=body.step_patch,
                skipped=body.skipped,
                contributions=written.get((body.step_run_id, body.path), {}),
            )
            done.setdefault((body.step_run_id, body.path[:-1]), []).append(kept)
        elif isinstance(body, IterationsKept) and body.step_run_id in open_loops:
            done.setdefault((body.step_run_id, body.path), []).extend(_kept_before(state, body))
    loops: dict[str, tuple[KeptLoop, ...]] = {}
    for (step_run_id, path), iterations in done.items():
        loop = started[step_run_id, path]
        sha256 = loop.collection.meta.sha256 if loop.collection else None
        one = KeptLoop(path, loop.items, sha256, tuple(sorted(iterations, key=lambda each: each.index)))
        step = open_loops[step_run_id]
        loops[step] = (*loops.get(step, ()), one)
    return loops


def _kept_before(state: State, body: IterationsKept) -> list[KeptIteration]:
    """The iterations that the earlier execution kept itself, as a rerun."""
    rerun = state.request.rerun if state.request else None
    loops = rerun.loops.get(body.step, ()) if rerun else ()
    indices = set(body.indices)
    return [each for loop in loops if loop.path == body.path for each in loop.done if each.index in indices]


def _differs(before: Any, after: Any) -> bool:
    """Whether two definitions of a step differ, apart from their positions in the text."""
    return bool(_plain(before) != _plain(after))


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__ if name != "path"}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
