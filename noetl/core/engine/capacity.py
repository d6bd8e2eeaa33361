"""Capacity: how many slots of limited keys an execution holds, and whether a claim may take more.

The slots held follow from the state alone: the leased runs, and whether the execution has started. They cannot leak:
a lost worker and a run that ended, was cancelled or waits for a child hold nothing, because the log says so. The shell
passes in how many slots the others leave free (`Capacity`); a claim that does not fit is rejected with the full key.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from noetl.core.engine.concurrency_keys import playbook_key
from noetl.core.engine.state import State


class Capacity(Struct, frozen=True):
    """How much of each limited key this execution may hold in all, at the moment of a decision.

    `line` are the keys that somebody waits for: slots of these go to who stands in line, not to who comes by."""

    most: Mapping[str, int]
    line: frozenset[str] = frozenset()


def slots_held(state: State) -> dict[str, int]:
    """The slots that an execution holds now, by key."""
    if state.finished is not None or not state.begun:
        return {}
    holding = {playbook_key(state.playbook.path): 1}
    needs = state.net.needs
    for name, count in state.leased.items():
        for key in needs(name):
            holding[key] = holding.get(key, 0) + count
    return holding


class CapacityCheck:
    """One look at what fits: each run that is let through takes its slots, so that the next one finds less."""

    __slots__ = ("_holding", "_in_line", "_room", "_state")

    def __init__(self, state: State, room: Capacity, *, in_line: bool) -> None:
        """`in_line`: for runs that have waited for their turn, as opposed to those that come by."""
        self._state = state
        self._room = room
        self._holding = slots_held(state)
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
