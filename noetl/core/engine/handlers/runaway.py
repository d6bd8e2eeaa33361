"""Steps that follow each other for ever, and how they are told from those that go on for long.

A circle with a wait in it (a poll) may go round for months; one without runs as fast as the machine can, fills the log
and helps nobody. What tells them apart is not how often but how fast. So every run of a step that has run before
warms the execution by one, and time cools it. One that has become too warm goes round in a circle, and fails with an
error that says how to allow it. A circle that no guard can leave is known for what it is early; one that
has a way out gets the benefit of the doubt for long.

Warming is folded from the log (`at` of the events), so a restart knows it, too.
"""

from __future__ import annotations

from noetl.core.engine.state import State
from noetl.core.model.playbook import DEFAULT_MAX_STEP_RUNS

BURST = 100_000  # repeated step runs that may follow each other at any speed
ENDLESS_BURST = 300  # the same where no way leads out of the circle
COOLING = 50.0  # repeated step runs in a second that may go on for ever

_MEANT = "if that is meant, set executor.spec.policy.limits.max_step_runs to how many there may be"


def runaway_reason(state: State, step: str, at: float, before: int) -> str:
    """Why no other run of a step may be started, in words; empty when one may. `before`: so many just are."""
    limit = state.playbook.executor.limits.max_step_runs
    if limit is not None:
        return f"the execution has started {limit:,} step runs; {_MEANT}" if state.step_runs + before >= limit else ""
    if state.step_runs + before >= DEFAULT_MAX_STEP_RUNS:
        return f"the execution has started {DEFAULT_MAX_STEP_RUNS:,} step runs; {_MEANT}"
    if state.heat + before < ENDLESS_BURST:
        return ""
    burst = ENDLESS_BURST if state.net.endless(step) else BURST
    if bucket_level(state, at) + before < burst:
        return ""
    return (
        f"steps follow each other in a circle: {state.step_runs:,} step runs in {at - state.started_at:.1f} s, most of "
        f"them again. More than {burst:,} may not come faster than {COOLING:.0f} a second, so a wait in the circle "
        f"lets it go on; {_MEANT}"
    )


def bucket_level(state: State, at: float) -> float:
    """How warm the execution still is at an instant."""
    return max(0.0, state.heat - COOLING * max(0.0, at - state.heated_at))
