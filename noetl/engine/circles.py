"""Steps that follow each other for ever, and how they are told from those that go on for long.

A circle with a wait in it (a poll) may go round for months; one without runs as fast as the machine can, fills the log
and helps nobody. What tells them apart is not how often but how fast. So every run of a step that has run before
warms the execution by one, and time cools it. One that has become too warm goes round in a circle, and fails with an
error that says how to allow it.

Warming is folded from the log (`at` of the events), so a restart knows it, too.
"""

from __future__ import annotations

from noetl.engine.state import State
from noetl.model.playbook import DEFAULT_MAX_STEP_RUNS

BURST = 1_000  # repeated step runs that may follow each other at any speed
COOLING = 50.0  # repeated step runs in a second that may go on for ever

_MEANT = "if that is meant, set executor.spec.policy.limits.max_step_runs to how many there may be"


def going_round(state: State, at: float, before: int) -> str:
    """Why no other step run may be started, in words; empty when one may. `before`: so many are just being started."""
    limit = state.playbook.executor.limits.max_step_runs
    if limit is not None:
        return f"the execution has started {limit:,} step runs; {_MEANT}" if state.step_runs + before >= limit else ""
    if state.step_runs + before >= DEFAULT_MAX_STEP_RUNS:
        return f"the execution has started {DEFAULT_MAX_STEP_RUNS:,} step runs; {_MEANT}"
    if state.heat + before < BURST or cooled(state, at) + before < BURST:
        return ""
    return (
        f"steps follow each other in a circle: {state.step_runs:,} step runs in {at - state.started_at:.1f} s, most of "
        f"them again. More than {BURST:,} may not come faster than {COOLING:.0f} a second, so a wait in the circle "
        f"lets it go on; {_MEANT}"
    )


def cooled(state: State, at: float) -> float:
    """How warm the execution still is at an instant."""
    return max(0.0, state.heat - COOLING * max(0.0, at - state.heated_at))
