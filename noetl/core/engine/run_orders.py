"""Run orders: everything that a worker needs for one run, derived from the state.

What all runs of a step run share (workload, args, input, results by name) is one `RunContext`,
created once and referred to by its id, so that ten thousand orders of a loop send it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from noetl.core.engine.state import SUSPECT, Run, State, StepRun
from noetl.core.model.outcome import ErrorInfo, Outcome
from noetl.core.model.playbook import ALL, COMPENSATION
from noetl.core.model.position import Item
from noetl.core.model.work import RunContext, RunOrder


def order_of(state: State, run: Run) -> RunOrder:
    """The order of an open run, under its current epoch."""
    step_run = run.step_run
    path = run.path
    return RunOrder(
        run.id, run.epoch, step_run._context or _context(state, step_run), state.ctx, path, _items(state, run),
        step_run.scope, run.position, run.resume, run.lost, step_run.timeout_s, step_run.step.cost,
        run.suspect >= SUSPECT, _state_writers(state, step_run) if state.uncommitted else (),
    )  # fmt: skip


def _state_writers(state: State, step_run: StepRun) -> tuple[str, ...]:
    """The executions whose writes to the step's part of `state` are not committed: this one, and what it reruns."""
    if step_run.step.name not in state.uncommitted:
        return ()
    rerun = state.request.rerun if state.request else None
    return (state.execution_id,) if rerun is None else (state.execution_id, rerun.execution_id)


def _context(state: State, step_run: StepRun) -> RunContext:
    step = step_run.step
    results: dict[str, Outcome] = {}
    parts: dict[str, dict[str, Outcome]] = {}
    for name in reads_of(state, step_run):
        record = state.steps.get(name)
        if record is not None and record.outcome is not None:
            results[name] = record.outcome
            if record.results:
                parts[name] = record.results
    undo = state.compensating.get(step_run.id) if state.compensating else None
    if undo is not None:
        results[undo.step] = undo.run.output
    context = step_run._context = RunContext(
        step_run.id, state.playbook.digest, state.execution_id, step.name, step_run.id, state.workload, step_run.args,
        step_run.input, results, parts, state.depth, step_run.defer_input,
        step if state.synthesized and step.name.removesuffix(COMPENSATION) in state.synthesized else None,
        state.request.trace if state.request else None,
        None if undo is None else undo.run.output,
        None if undo is None else failure_of(state),
    )  # fmt: skip
    return context


def reads_of(state: State, step_run: StepRun) -> Sequence[str]:
    """The steps whose results the worker's templates may read by name."""
    step = step_run.step
    if ALL in step.reads:
        return list(state.steps)
    if not step_run.defer_input:
        return step.reads
    compiled = state.net.compiled(step.name).input
    assert compiled is not None
    if "steps" in compiled.names:
        return list(state.steps)
    names = {part for name in compiled.names for part in name.split(".")[:2]}
    return [*step.reads, *(name for name in state.steps if name in names and name not in step.reads)]


def failure_of(state: State) -> dict[str, Any]:
    """`failure` in the templates of a compensation: why the execution ends."""
    ending = state.ending
    assert ending is not None
    error = ending.error or ErrorInfo("unknown", "")
    return {
        "kind": error.kind,
        "message": error.message,
        "retryable": error.retryable,
        "details": error.details,
        "step": ending.step,
    }


def _items(state: State, run: Run) -> tuple[Item, ...]:
    if run.path:
        return items_of(run)
    undo = state.compensating.get(run.id) if state.compensating else None
    return () if undo is None else undo.run.items


def items_of(run: Run) -> tuple[Item, ...]:
    """The elements of the iteration, outermost level first."""
    items: list[Item] = []
    level = run.step_run.step.loop
    for depth, index in enumerate(run.path):
        if level is None:
            break
        loop = run.step_run.loops[run.path[:depth]]
        value = loop.items[index] if loop.items is not None else None
        items.append(Item(level.iterator, index, loop.count, value, loop.collection))
        level = level.inner
    return tuple(items)
