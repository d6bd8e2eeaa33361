"""Appliers of loops and iterations."""

from __future__ import annotations

from array import array
from math import prod
from typing import Any

import msgspec

from noetl.core.engine.evolve.steps import boundary_event, close_run, lease, mark_started
from noetl.core.engine.evolve.table import applies
from noetl.core.engine.handlers import reduce
from noetl.core.engine.handlers.kept_iterations import kept_loop
from noetl.core.engine.identity import checksum
from noetl.core.engine.run_orders import items_of
from noetl.core.engine.state import CHUNK, FAILED, MAX_FAILURES, OK, SKIPPED, Loop, Run, State, StepRun
from noetl.core.model.compensation import CompletedRun
from noetl.core.model.events import (
    IterationDone,
    IterationFailed,
    IterationsKept,
    IterationStarted,
    LoopDone,
    LoopStarted,
    OutputsStored,
)
from noetl.core.model.ids import iteration_id
from noetl.core.model.merge import deep_merge, put_path
from noetl.core.model.outcome import ANSWER_FIELDS, ANSWERS, ErrorInfo, Outcome
from noetl.core.model.playbook import STEP_KEY

MAX_ANSWERS = 10_000  # http answers of a loop whose fields are recorded beside its outputs

_json = msgspec.json.Encoder().encode


@applies(LoopStarted)
def _loop_started(state: State, event: LoopStarted, at: float) -> None:
    step_run = state.runs[event.step_run_id]
    path = event.path
    state.looping[step_run.id] = None
    step_run.loops[path] = Loop(
        step_run, path, event.count, event.max_in_flight, event.items, event.collection, event.keyed, state.seq
    )
    if step_run.started_at is None:
        mark_started(state, step_run, at)
    if path:
        step_run.loops[path[:-1]].begun += 1


def _claim(loop: Loop, index: int) -> None:
    """An iteration is claimed for the first time."""
    if index != loop.claimed:
        loop.ahead.add(index)
        return
    loop.claimed += 1
    while loop.claimed in loop.ahead:
        loop.ahead.discard(loop.claimed)
        loop.claimed += 1


@applies(IterationStarted)
def _iteration_started(state: State, event: IterationStarted, at: float) -> None:
    step_run = state.runs[event.step_run_id]
    path = event.path
    run_id = iteration_id(step_run.id, path)
    run = state.open.get(run_id)
    if run is None:
        run = state.open[run_id] = Run(run_id, step_run, path)
        step_run.open[run_id] = None
        _claim(step_run.loops[path[:-1]], path[-1])
    lease(state, run, event.epoch, event.worker)


@applies(IterationsKept)
def _iterations_kept(state: State, event: IterationsKept, at: float) -> None:
    step_run = state.runs[event.step_run_id]
    loop = step_run.loops[event.path]
    kept = kept_loop(state, step_run, loop)
    assert kept is not None
    known = {each.index: each for each in kept.done}
    reducers = state.net.compiled(event.step).reduce
    for index in event.indices:
        each = known[index]
        _claim(loop, index)
        if each.step_patch:
            _write_scope(state, step_run, each.step_patch)
        if each.skipped:
            loop.skipped += 1
        else:
            loop.succeeded += 1
        contributions = {  # another version of the playbook may have other reducers
            key: value
            for key, value in each.contributions.items()
            if key in reducers and reduce.mismatch(reducers[key], value) is None
        }
        parts = _parts_of(state, step_run, None, contributions)
        _record_answer(loop, index, each.output)
        _finish(state, loop, index, SKIPPED if each.skipped else OK, _data_of(each.output), parts, 0)


@applies(IterationDone, IterationFailed)
def _iteration_ended(state: State, event: IterationDone | IterationFailed, at: float) -> None:
    step_run = state.runs[event.step_run_id]
    path = event.path
    loop = step_run.loops[path[:-1]]
    index = path[-1]
    run_id = iteration_id(step_run.id, path)
    run = close_run(state, run_id)
    contributions: dict[str, Any] | None = None
    if run is not None:
        del step_run.open[run_id]
        contributions = run.contributions
    if event.step_patch:
        _write_scope(state, step_run, event.step_patch)
    inner = step_run.loops.pop(path, None)
    if run is None and inner is None:
        loop.begun += 1  # its inner loop could not start
    if type(event) is IterationDone:
        status = SKIPPED if event.skipped else OK
        if event.stop and not loop.stopped:
            loop.stopped = True
            loop.target = loop.issued
        data = _data_of(event.output)
        _record_answer(loop, index, event.output)
        parts = _parts_of(state, step_run, inner, contributions)
        if step_run.step.compensation is not None and run is not None and not event.skipped:
            _record_completed(step_run, run, event)
        if event.skipped:
            loop.skipped += 1
        elif inner is not None and inner.failed:
            # Its own output has the nulls; for the outer loop it counts as a failed iteration.
            loop.failed += 1
            _list_failure(loop, index, inner.failures[0][1] if inner.failures else None)
        else:
            loop.succeeded += 1
    else:
        status, data, parts = FAILED, b"null", None
        loop.failed += 1
        _list_failure(loop, index, event.output.error)
        item = event.item if isinstance(event, IterationFailed) else None
        if item is not None and len(loop.failed_items) < MAX_FAILURES:
            loop.failed_items[index] = item
    _finish(state, loop, index, status, data, parts, checksum(event))


def _record_completed(step_run: StepRun, run: Run, event: IterationDone) -> None:
    """Record an iteration that a compensation has to undo."""
    items = items_of(run)
    step_run.completed.append(CompletedRun(run.id, event.input or step_run.input, event.output, items))
    levels = (step_run.loops[run.path[:depth]].window for depth in range(len(run.path)))
    step_run.window = max(step_run.window, prod(levels))


def _write_scope(state: State, step_run: StepRun, patch: dict[str, Any]) -> None:
    """Write an iteration's changes of `step`: in parallel loops beside those of the others, else over them."""
    compiled = state.net.compiled(step_run.step.name)
    scope = step_run.scope
    for key in compiled.reduce:
        if key.startswith(STEP_KEY):
            patch = _without(patch, key.removeprefix(STEP_KEY).split("."))
    step_run.scope = {**scope, **patch} if compiled.parallel_from is None else deep_merge(scope, patch)


def _without(values: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """The values without the one at a path: it is reduced when the loop is done."""
    head, *rest = path
    if head not in values or (rest and not isinstance(values[head], dict)):
        return values
    if rest:
        return {**values, head: _without(values[head], rest)}
    return {key: value for key, value in values.items() if key != head}


def _list_failure(loop: Loop, index: int, error: ErrorInfo | None) -> None:
    if error is not None and len(loop.failures) < MAX_FAILURES:
        loop.failures.append((index, error))


def _data_of(output: Outcome) -> bytes:
    """The element that an iteration adds to the list of outputs: its data, or its reference."""
    return _json(output.ref if output.ref is not None and output.data is None else output.data)


def _record_answer(loop: Loop, index: int, output: Outcome) -> None:
    """Record the fields of an http answer beside its data, for `.results` of the loop."""
    helpers = output.helpers
    if ("http" in helpers or ANSWERS in helpers) and len(loop.answers) < MAX_ANSWERS:
        answer = {name: helpers["http"].get(name) for name in ANSWER_FIELDS} if "http" in helpers else None
        loop.answers[index] = _json({ANSWERS: helpers[ANSWERS]} if answer is None else answer)


def _parts_of(
    state: State, step_run: StepRun, inner: Loop | None, contributions: dict[str, Any] | None
) -> dict[str, Any] | None:
    if inner is not None:
        return inner.parts or None
    if not contributions:
        return None
    reducers = state.net.compiled(step_run.step.name).reduce
    return {key: reduce.part(reducers[key], value) for key, value in contributions.items()}


def _finish(
    state: State, loop: Loop, index: int, status: int, data: bytes, parts: dict[str, Any] | None, check: int
) -> None:
    if index >= len(loop.statuses):
        more = min(loop.count, max(index + 1, 2 * len(loop.statuses))) - len(loop.statuses)
        loop.statuses.extend(bytes(more))
        loop.checksums.extend(array("I", bytes(4 * more)))
    loop.statuses[index] = status
    loop.checksums[index] = check
    loop.finished += 1
    if index != loop.order:
        loop.out_of_order[index] = data
        if parts:
            loop.out_of_order_parts[index] = parts
        return
    while True:
        _append_output(loop, data)
        if parts:
            _join_parts(state, loop, parts)
        loop.order += 1
        if loop.order not in loop.out_of_order:
            return
        data = loop.out_of_order.pop(loop.order)
        parts = loop.out_of_order_parts.pop(loop.order, None)


def _append_output(loop: Loop, data: bytes) -> None:
    tail = loop.tail
    if tail:
        tail += b","
    tail += data
    if len(tail) >= CHUNK:
        loop.chunks.append(bytes(tail))
        loop.tail = bytearray()


def _join_parts(state: State, loop: Loop, parts: dict[str, Any]) -> None:
    reducers = state.net.compiled(loop.step_run.step.name).reduce
    for key, value in parts.items():
        if key in loop.parts:
            loop.parts[key] = reduce.join(reducers[key], loop.parts[key], value)
        else:
            loop.parts[key] = value


@applies(OutputsStored)
def _outputs_kept(state: State, event: OutputsStored, at: float) -> None:
    loop = state.runs[event.step_run_id].loops[event.path]
    loop.spilled.append(event.chunk)
    loop.chunks = []


@applies(LoopDone)
def _loop_done(state: State, event: LoopDone, at: float) -> None:
    step_run = state.runs[event.step_run_id]
    path = event.path
    loop = step_run.loops[path]
    loop.chunks = []
    loop.tail = bytearray()
    loop.out_of_order = {}
    loop.answers = {}
    if not path:
        step_run.phase = "looped"
        step_run.event = boundary_event(state, event, step_run.id, event.output)
        for key, value in loop.parts.items():
            if key.startswith(STEP_KEY):
                step_run.scope = put_path(step_run.scope, tuple(key.removeprefix(STEP_KEY).split(".")), value)
        step_run.outcome = event.output
