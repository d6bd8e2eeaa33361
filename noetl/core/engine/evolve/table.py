"""The table of appliers, one per event type, filled by the decorator `applies`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from noetl.core.engine.state import State
from noetl.core.model.events import Event

Applier = Callable[[State, Any, float], None]

APPLIERS: dict[type[Event], Applier] = {}


def applies(*types: type[Event]) -> Callable[[Applier], Applier]:
    """Register the function that applies these event types."""

    def register(applier: Applier) -> Applier:
        for each in types:
            APPLIERS[each] = applier
        return applier

    return register
