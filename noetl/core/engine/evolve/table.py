"""One applier per event type, collected by decoration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from noetl.core.engine.state import State
from noetl.core.model.events import Event

Applier = Callable[[State, Any, float], None]

APPLIERS: dict[type[Event], Applier] = {}


def applies(*types: type[Event]) -> Callable[[Applier], Applier]:
    """Name the function that applies these events."""

    def name(applier: Applier) -> Applier:
        for each in types:
            APPLIERS[each] = applier
        return applier

    return name
