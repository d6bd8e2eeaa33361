"""Runaway detection: a leaky bucket limits how fast the steps of an execution may repeat.

A cycle with a delay in it (a poll) may run for months; a cycle without one runs as fast as the machine allows and fills
the log. They differ in rate, not in count. Every run of a step that has run before adds one to the bucket, and
the bucket drains over time. When it overflows, the execution fails with an error that names the setting that raises
the limit. A cycle that no guard can leave gets a small bucket, any other one a large bucket.

The level is folded from the log (`at` of the events), so it survives a restart.
"""

from __future__ import annotations

from noetl.core.engine.state import State
from noetl.core.model.playbook import DEFAULT_MAX_STEP_RUNS

BURST = 100_000  # bucket size: repeated step runs at any rate
ENDLESS_BURST = 300  # bucket size of a cycle without an exit
DRAIN_PER_SECOND = 50.0  # sustained rate of repeated step runs

_HINT = "To allow more, set executor.spec.policy.limits.max_step_runs"


def runaway_reason(state: State, step: str, at: float, before: int) -> str:
    """Why no further run of a step may start; empty if one may. `before` more are being scheduled right now."""
    limit = state.playbook.executor.limits.max_step_runs
    if limit is not None:
        return f"the execution has started {limit:,} step runs. {_HINT}" if state.step_runs + before >= limit else ""
    if state.step_runs + before >= DEFAULT_MAX_STEP_RUNS:
        return f"the execution has started {DEFAULT_MAX_STEP_RUNS:,} step runs. {_HINT}"
    if state.bucket + before < ENDLESS_BURST:
        return ""
    burst = ENDLESS_BURST if state.net.endless(step) else BURST
    if bucket_level(state, at) + before < burst:
        return ""
    return (
        f"runaway cycle: {state.step_runs:,} step runs in {at - state.started_at:.1f} s, most of them repeated. "
        f"Beyond {burst:,}, repeated step runs are limited to {DRAIN_PER_SECOND:.0f} per second: add a delay to the "
        f"cycle. {_HINT}"
    )


def bucket_level(state: State, at: float) -> float:
    """The level of the leaky bucket at an instant."""
    return max(0.0, state.bucket - DRAIN_PER_SECOND * max(0.0, at - state.bucket_at))
