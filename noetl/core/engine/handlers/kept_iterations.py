"""Iterations whose results a rerun keeps: those of the earlier loop whose element is still the same."""

from __future__ import annotations

from noetl.core.engine.state import Loop, State, StepRun
from noetl.core.model.events import KeptLoop


def kept_loop(state: State, step_run: StepRun, loop: Loop) -> KeptLoop | None:
    """The earlier loop whose iterations this loop may keep: only in the first run of its step."""
    rerun = state.request.rerun if state.request else None
    if rerun is None or not rerun.loops or step_run.number != 1:
        return None
    return next((each for each in rerun.loops.get(step_run.step.name, ()) if each.path == loop.path), None)


def kept_indices(state: State, step_run: StepRun, loop: Loop) -> tuple[int, ...]:
    """The indices of the iterations that are kept."""
    kept = kept_loop(state, step_run, loop)
    if kept is None or loop.depth + 1 != len(state.net.compiled(step_run.step.name).loops):
        return ()
    if loop.collection is not None:
        same = kept.sha256 is not None and kept.sha256 == loop.collection.meta.sha256
        return tuple(each.index for each in kept.done) if same else ()
    items, before = loop.items or (), kept.items or ()
    return tuple(
        each.index
        for each in kept.done
        if each.index < len(items) and each.index < len(before) and items[each.index] == before[each.index]
    )
