"""The state transition function: how each event changes the state; the only writer of State.

One applier per event type, without decisions, templates or clock: a recorded event is applied in
the same way live and in replay. An event without an applier stops the replay.

A released applier does not change; a new meaning gets a new event version.
"""

from __future__ import annotations

from noetl.core.engine.evolve import compensation, execution, loops, runs, steps
from noetl.core.engine.evolve.table import APPLIERS, Applier
from noetl.core.engine.state import State
from noetl.core.model.events import Event
from noetl.errors import CorruptLog

__all__ = ["APPLIERS", "Applier", "compensation", "evolve", "execution", "loops", "runs", "steps"]


def evolve(state: State, event: Event, at: float, cause: int | None = None) -> None:
    """Apply one event with timestamp `at`; `cause` is the seq of the event that caused it."""
    applier = APPLIERS.get(type(event))
    if applier is None:
        raise CorruptLog(f"execution {state.execution_id}: no applier for {type(event).__name__}")
    state.seq += 1
    state.at = at
    state._cause = cause
    applier(state, event, at)
