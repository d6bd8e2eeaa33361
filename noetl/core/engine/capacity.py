"""Limits: how much an execution holds of what is limited, and whether a claim may take more.

What is held follows from the state alone: the runs that workers hold now, and whether the execution has begun. So
nothing can leak: a worker that is lost, a run that ends, is cancelled or waits for a child holds nothing, because
the log says so. The shell knows what others hold and says how much room is left (`Room`); the claim that would not fit
is not made, and the reply names the key that is full.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from noetl.core.engine.concurrency_keys import playbook_key
from noetl.core.engine.state import State


class Room(Struct, frozen=True):
    """How much of each limited key this execution may hold in all, at the moment of a decision.

    `line` are the keys that somebody waits for: slots of these go to who stands in line, not to who comes by."""

    most: Mapping[str, int]
    line: frozenset[str] = frozenset()


def held(state: State) -> dict[str, int]:
    """The slots that an execution holds now, by key."""
    if state.finished is not None or not state.begun:
        return {}
    holding = {playbook_key(state.playbook.path): 1}
    needs = state.net.needs
    for name, count in state.leased.items():
        for key in needs(name):
            holding[key] = holding.get(key, 0) + count
    return holding


class Gate:
    """One look at what fits: each run that is let through takes its slots, so that the next one finds less."""

    __slots__ = ("_holding", "_in_line", "_room", "_state")

    def __init__(self, state: State, room: Room, *, in_line: bool) -> None:
        """`in_line`: for runs that have waited for their turn, as opposed to those that come by."""
        self._state = state
        self._room = room
        self._holding = held(state)
        self._in_line = in_line

    def lacks(self, step: str) -> str | None:
        """The first key without room for one more run of this step; None: it has taken its slots."""
        state, most, holding = self._state, self._room.most, self._holding
        needs = [key for key in state.net.needs(step) if key in most]
        own = playbook_key(state.playbook.path)
        begins = own not in holding
        if begins and own in most:
            needs.insert(0, own)
        for key in needs:
            if holding.get(key, 0) + 1 > most[key] or (key in self._room.line and not self._in_line):
                return key
        for key in needs:
            holding[key] = holding.get(key, 0) + 1
        if begins:
            holding[own] = 1
        return None
