"""Loops: a collection becomes iterations, and their outputs become one output.

The server schedules the iterations: a loop has a window (`max_in_flight`, 1 when sequential), and the
indices below `finished + window` can be claimed. Issuing an iteration needs no event: the claimable
indices follow from the finished ones. An inner loop is started for each outer iteration when that
iteration is issued, and its end is the end of the outer iteration.

The end of a loop step, in this order and in one append: `loop.done` with the outputs in index
order, the reducers' `ctx.patched`, the step's `set`, the arcs at `loop.done`, `step.done`, the arcs at
`step.done`. A failure under `fail_fast` is `step.failed` at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from noetl.core.engine.evaluation.compiled_net import DEFAULT_PARALLEL, CompiledLoop
from noetl.core.engine.evaluation.context import EvaluationContext, Failure
from noetl.core.engine.evaluation.names import at_input, at_loop, at_step_set
from noetl.core.engine.handlers import reduce
from noetl.core.engine.handlers.assignments import MAX_CTX_VALUE, ctx_patch, evaluate_sets
from noetl.core.engine.handlers.kept_iterations import kept_indices
from noetl.core.engine.handlers.routing import route
from noetl.core.engine.state import Loop, State, StepRun
from noetl.core.model.events import (
    CtxPatched,
    Event,
    IterationDone,
    IterationFailed,
    IterationsKept,
    LoopDone,
    LoopStarted,
    OutputsStored,
    StepDone,
    StepFailed,
    StepStarted,
)
from noetl.core.model.excerpt import written
from noetl.core.model.ids import IterationPath, iteration_id
from noetl.core.model.merge import put_path
from noetl.core.model.outcome import (
    ANSWERS,
    ErrorInfo,
    Outcome,
    elements_of,
    error_info,
    listed_failure,
    with_secondary,
)
from noetl.core.model.playbook import STEP_KEY, most_failures, target_name
from noetl.core.model.reference import stored_marker
from noetl.core.templates.lookup import NO_ELEMENTS, is_reference

MAX_CHUNKS = 64  # chunks of outputs (of state.CHUNK bytes) in memory before they go to the result store

_json = msgspec.json.Encoder().encode


def begin_loop(state: State, env: EvaluationContext, step_run: StepRun) -> list[Event]:
    """Start the loop of a scheduled step: evaluate its collection."""
    try:
        loop = _loop_started(state, env, step_run, ())
        return [StepStarted(step=step_run.step.name, step_run_id=step_run.id, worker="server", by_server=True), loop]
    except Failure as failure:
        return [fail_step(state, env, step_run, Outcome("error", error=failure.error))]


def _loop_started(state: State, env: EvaluationContext, step_run: StepRun, path: IterationPath) -> LoopStarted:
    level = state.net.compiled(step_run.step.name).loops[len(path)]
    where = level.loop.path or f"{step_run.step.path}/loop"
    names = at_loop(state, env, step_run, path) if path else at_input(state, env, step_run.args)
    value = elements_of(env.evaluate(level.collection, names, f"{where}/in"))
    if is_reference(value):
        raise env.fail("ref.unresolved", NO_ELEMENTS, f"{where}/in")
    keyed = isinstance(value, Mapping)
    if isinstance(value, Mapping):
        items = [{"key": key, "value": each} for key, each in value.items()]
    elif isinstance(value, list | tuple):
        items = list(value)
    else:
        raise env.fail("schema", f"`loop.in` must be a list or a mapping, not {_kind(value)}", f"{where}/in")
    limits = state.playbook.executor.limits
    if len(items) > limits.max_iterations:
        raise env.fail(
            "limit",
            f"the loop has {len(items):,} iterations, the limit is {limits.max_iterations:,} "
            "(executor.spec.policy.limits.max_iterations)",
            f"{where}/in",
        )
    window = _window(env, level, names, limits.max_in_flight, where)
    encoded = _json(items)
    run = iteration_id(step_run.id, path)
    if len(encoded) <= limits.max_payload_bytes:
        return LoopStarted(
            step=step_run.step.name, step_run_id=step_run.id, count=len(items), path=path, items=tuple(items),
            max_in_flight=window, keyed=keyed,
        )  # fmt: skip
    return LoopStarted(
        step=step_run.step.name, step_run_id=step_run.id, count=len(items), path=path,
        collection=env.store(f"{run}#collection", encoded, len(items)), max_in_flight=window, keyed=keyed,
    )  # fmt: skip


def _window(env: EvaluationContext, level: CompiledLoop, names: Mapping[str, Any], most: int, where: str) -> int:
    """The maximum number of iterations in flight."""
    if level.loop.mode == "sequential":
        return 1
    if level.window is None:
        return min(DEFAULT_PARALLEL, most)
    value = env.evaluate(level.window, names, f"{where}/spec/max_in_flight")
    try:
        window = int(value)
    except (TypeError, ValueError):
        raise env.fail("template", f"max_in_flight must be an integer, not {written(value)}", where) from None
    if window < 1:
        raise env.fail("template", f"max_in_flight must be at least 1, not {window}", where)
    return min(window, most)


def loop_started(state: State, event: LoopStarted, env: EvaluationContext) -> list[Event]:
    """Follow up on a loop's start: start its inner loops, or end it if it is empty."""
    step_run = state.runs.get(event.step_run_id)
    loop = step_run.loops.get(event.path) if step_run else None
    if step_run is None or loop is None:
        return []
    kept = kept_indices(state, step_run, loop)
    if kept:
        return [IterationsKept(step_run.step.name, step_run.id, kept, loop.path)]
    return _continue_loop(state, env, loop)


def iterations_kept(state: State, event: IterationsKept, env: EvaluationContext) -> list[Event]:
    """Follow up on kept iterations: the loop continues with the others, or ends."""
    step_run = state.runs.get(event.step_run_id)
    loop = step_run.loops.get(event.path) if step_run else None
    return [] if loop is None else _continue_loop(state, env, loop)


def _continue_loop(state: State, env: EvaluationContext, loop: Loop) -> list[Event]:
    if loop.complete:
        return _end_loop(state, env, loop)
    return _begin_inner(state, env, loop)


def _begin_inner(state: State, env: EvaluationContext, loop: Loop) -> list[Event]:
    """Start the inner loops of the newly issued outer iterations."""
    step_run = loop.step_run
    if len(state.net.compiled(step_run.step.name).loops) == loop.depth + 1:
        return []
    events: list[Event] = []
    for index in range(loop.begun, loop.issued):
        path = (*loop.path, index)
        try:
            events.append(_loop_started(state, env, step_run, path))
        except Failure as failure:
            events.append(_iteration_failed(step_run, path, failure.error))
            break  # the next ones start when this one has ended
    return events


def iteration_ended(state: State, event: IterationDone | IterationFailed, env: EvaluationContext) -> list[Event]:
    """Follow up on an iteration's end: the loop continues, ends, or fails."""
    step_run = state.runs.get(event.step_run_id)
    loop = step_run.loops.get(event.path[:-1]) if step_run else None
    if step_run is None or loop is None:
        return []
    most = most_failures(step_run.step, loop.count)
    if most == 0 and type(event) is IterationFailed:
        return _fail_loop(state, env, loop, event)
    if most is not None and not loop.path and loop.failed > most and loop.failures:
        return [_too_many_failures(state, env, loop, most)]
    if loop.complete:
        return _end_loop(state, env, loop)
    if len(loop.chunks) >= MAX_CHUNKS:
        return [_spill(env, loop), *_begin_inner(state, env, loop)]
    return _begin_inner(state, env, loop)


def _spill(env: EvaluationContext, loop: Loop) -> OutputsStored:
    """Move the collected outputs to the result store, so that a long loop does not fill the memory."""
    step_run = loop.step_run
    key = f"{iteration_id(step_run.id, loop.path)}#outputs/{len(loop.spilled)}"
    chunk = env.store(key, b"[" + b",".join(loop.chunks) + b"]")
    return OutputsStored(step_run.step.name, step_run.id, chunk, loop.path)


def _fail_loop(state: State, env: EvaluationContext, loop: Loop, event: IterationFailed) -> list[Event]:
    step_run = loop.step_run
    cause = event.output.error or error_info("unknown", "the iteration failed")
    index = event.path[-1]
    if loop.path:
        details = {**cause.details, "iteration": index}
        return [_iteration_failed(step_run, loop.path, msgspec.structs.replace(cause, details=details))]
    error = ErrorInfo(
        cause.kind, f"iteration {index}: {cause.message}", cause.retryable, {**cause.details, "iteration": index}
    )
    outcome = Outcome("error", error=error, helpers={"loop": loop_counts(loop)})
    return [fail_step(state, env, step_run, outcome)]


def _too_many_failures(state: State, env: EvaluationContext, loop: Loop, most: int) -> StepFailed:
    """The failure of a loop that tolerates some failed iterations, but not so many."""
    index, cause = loop.failures[0]
    message = f"{loop.failed} of {loop.count} iterations failed, at most {most} may (failure.max_failed); "
    error = ErrorInfo(
        cause.kind,
        f"{message}iteration {index}: {cause.message}",
        cause.retryable,
        {**cause.details, "iteration": index, "failed": loop.failed, "max_failed": most},
    )
    return fail_step(state, env, loop.step_run, Outcome("error", error=error, helpers={"loop": loop_counts(loop)}))


def _iteration_failed(step_run: StepRun, path: IterationPath, error: ErrorInfo) -> IterationFailed:
    return IterationFailed(
        step=step_run.step.name,
        step_run_id=step_run.id,
        path=path,
        output=Outcome("error", error=error),
        by_server=True,
    )


def loop_counts(loop: Loop) -> dict[str, Any]:
    """`output.loop`: the counts of a loop, and its first failures."""
    counts: dict[str, Any] = {
        "total": loop.count,
        "succeeded": loop.succeeded,
        "failed": loop.failed,
        "skipped": loop.count - loop.succeeded - loop.failed,
    }
    if loop.failures:
        counts["failures"] = [
            listed_failure(index, loop.items[index] if loop.items is not None else loop.failed_items.get(index), error)
            for index, error in sorted(loop.failures, key=lambda failure: failure[0])
        ]
    if loop.failed > len(loop.failures):
        counts["failures_omitted"] = loop.failed - len(loop.failures)
    return counts


def _end_loop(state: State, env: EvaluationContext, loop: Loop) -> list[Event]:
    """End a loop whose iterations have all finished."""
    step_run = loop.step_run
    counts = loop_counts(loop)
    try:
        outcome = _collected(state, env, loop, counts)
        stop = bool(loop.path) and _outer_until(state, env, loop, outcome)
    except Failure as failure:
        if loop.path:
            return [_iteration_failed(step_run, loop.path, failure.error)]
        return [fail_step(state, env, step_run, Outcome("error", error=failure.error, helpers={"loop": counts}))]
    done = LoopDone(
        step=step_run.step.name, step_run_id=step_run.id, path=loop.path, total=loop.count, succeeded=loop.succeeded,
        failed=loop.failed, skipped=counts["skipped"], output=None if loop.path else outcome,
    )  # fmt: skip
    if not loop.path:
        return [done]
    inner = IterationDone(
        step=step_run.step.name, step_run_id=step_run.id, path=loop.path, output=outcome, stop=stop, by_server=True
    )
    return [done, inner]


def _outer_until(state: State, env: EvaluationContext, loop: Loop, outcome: Outcome) -> bool:
    """Whether `until` of the outer loop is true after an inner one; the worker evaluates the innermost `until`."""
    level = state.net.compiled(loop.step_run.step.name).loops[loop.depth - 1]
    if level.until is None:
        return False
    names = at_loop(state, env, loop.step_run, loop.path, outcome)
    return env.holds(level.until, names, f"{level.loop.path}/spec/until")


def _collected(state: State, env: EvaluationContext, loop: Loop, counts: dict[str, Any]) -> Outcome:
    """The outputs of all iterations as one output; in the result store if it is too large for the log."""
    step_run = loop.step_run
    encoded = loop.encoded()
    key = f"{iteration_id(step_run.id, loop.path)}#output"
    helpers = {"loop": counts, **_answers(state, env, loop)}
    if loop.spilled:
        # Templates fetch the parts that they read; an output of this size is not decoded here.
        whole = env.store(key, b"", loop.finished, (*loop.spilled, encoded))
        return Outcome("ok", ref=whole, helpers=helpers)
    if len(encoded) <= state.playbook.executor.limits.max_payload_bytes:
        return Outcome("ok", data=msgspec.json.decode(encoded), helpers=helpers)
    return Outcome("ok", ref=env.store(key, encoded, loop.finished), helpers=helpers)


def _answers(state: State, env: EvaluationContext, loop: Loop) -> dict[str, dict[str, Any]]:
    """The fields of the answers of an http loop, as a helper of its output; stored if they are large."""
    if not loop.answers:
        return {}
    answers = (b'"%d":%b' % (index, answer) for index, answer in sorted(loop.answers.items()))
    encoded = b"{" + b",".join(answers) + b"}"
    if len(encoded) <= state.playbook.executor.limits.max_payload_bytes:
        return {ANSWERS: msgspec.json.decode(encoded)}
    key = f"{iteration_id(loop.step_run.id, loop.path)}#answers"
    return {ANSWERS: stored_marker(env.store(key, encoded, len(loop.answers)))}


def loop_done(state: State, event: LoopDone, env: EvaluationContext) -> list[Event]:
    """Follow up on the end of a step's own loop: apply reducers, then the step's `set`."""
    if event.path:
        return []
    step_run = state.runs[event.step_run_id]
    loop = step_run.loops[()]
    if any(not key.startswith(STEP_KEY) for key in loop.parts):
        try:
            patch = _reduced(state, env, loop)
        except Failure as failure:
            outcome = Outcome("error", error=failure.error, helpers=dict(event.output.helpers) if event.output else {})
            return [fail_step(state, env, step_run, outcome)]
        return [CtxPatched(patch=patch, cause="reduce", step=event.step, run_id=step_run.id)]
    return apply_loop_set(state, env, step_run)


def _reduced(state: State, env: EvaluationContext, loop: Loop) -> dict[str, Any]:
    compiled = state.net.compiled(loop.step_run.step.name)
    patch: dict[str, Any] = {}
    for dotted, value in loop.parts.items():
        if dotted.startswith(STEP_KEY):
            continue  # `loop.done` has written it to the scope of the step
        reducer = compiled.reduce[dotted]
        target = tuple(dotted.split("."))
        ctx = {**state.ctx, **patch}
        ctx[target[0]] = env.restored(ctx.get(target[0]))
        before = _value_at(ctx, target)
        if before is not None:
            first, why = reduce.start(reducer, before)
            if why:
                raise env.fail(
                    "schema",
                    f"{target_name(dotted)} cannot be the initial value of `{reducer}`: {why}",
                    loop.step_run.step.path,
                )
            value = reduce.join(reducer, first, value)
        elif isinstance(value, list):
            value = list(value)
        size = len(_json(value))
        if size > MAX_CTX_VALUE:
            raise env.fail(
                "limit",
                f"the reduced value of {target_name(dotted)} has {size:,} bytes, the limit is {MAX_CTX_VALUE:,}; "
                "read the output of the loop instead",
                loop.step_run.step.path,
            )
        patch[target[0]] = put_path(ctx, target, value)[target[0]]
    return {key: env.for_log(value) for key, value in patch.items()}


def _value_at(ctx: Mapping[str, Any], target: tuple[str, ...]) -> Any:
    value: Any = ctx
    for key in target:
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def apply_loop_set(state: State, env: EvaluationContext, step_run: StepRun) -> list[Event]:
    """The step's `set` after its loop, then the arcs at `loop.done`."""
    compiled = state.net.compiled(step_run.step.name)
    outcome = step_run.outcome
    if compiled.assignments and outcome is not None:
        try:
            writes = evaluate_sets(
                env, compiled.assignments, at_step_set(state, env, step_run, outcome), step_run.step.path
            )
            patch = ctx_patch(env, state.ctx, writes)
        except Failure as failure:
            failed = Outcome("error", error=failure.error, helpers=outcome.helpers)
            return [StepFailed(step=step_run.step.name, step_run_id=step_run.id, output=failed, by_server=True)]
        if writes:
            return [CtxPatched(patch=patch, cause="step", step=step_run.step.name, run_id=step_run.id)]
    return route_loop(state, env, step_run)


def route_loop(state: State, env: EvaluationContext, step_run: StepRun) -> list[Event]:
    """The arcs at `loop.done`, and the step's own end."""
    events = route(state, env, step_run, "loop.done")
    if step_run.outcome is not None:
        events.append(
            StepDone(step=step_run.step.name, step_run_id=step_run.id, output=step_run.outcome, by_server=True)
        )
    return events


def fail_step(state: State, env: EvaluationContext, step_run: StepRun, outcome: Outcome) -> StepFailed:
    """The event that fails a step with an error found by the server; the step's `set` is applied too."""
    compiled = state.net.compiled(step_run.step.name)
    writes: dict[str, Any] = {}
    if compiled.assignments:
        unset: dict[str, ErrorInfo] = {}
        names = at_step_set(state, env, step_run, outcome)
        writes = evaluate_sets(env, compiled.assignments, names, step_run.step.path, unset)
        try:
            writes = ctx_patch(env, state.ctx, writes)
        except Failure as failure:
            unset.update({target_name(target): failure.error for target in writes})
            writes = {}
        if unset and outcome.error is not None:
            # The original error is reported; targets that `set` could not evaluate are a detail of it.
            details = {**outcome.error.details, "unset": {target: info.message for target, info in unset.items()}}
            error = msgspec.structs.replace(outcome.error, details=details)
            outcome = msgspec.structs.replace(outcome, error=with_secondary(error, next(iter(unset.values()))))
    return StepFailed(step=step_run.step.name, step_run_id=step_run.id, output=outcome, patch=writes, by_server=True)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true/false"
    if isinstance(value, int | float):
        return "a number"
    return "a string" if isinstance(value, str) else type(value).__name__
