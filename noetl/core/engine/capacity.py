"""Capacity: how many slots of limited keys an execution holds, and whether a claim may take more.

The slots held follow from the state alone: the leased runs, and whether the execution has started. They cannot leak:
a lost worker, a run that ended, was cancelled or waits for a child, and an execution that only waits for a signal or
for time hold no slot, by the log. The shell passes in how many slots the other executions leave free (`Capacity`). A
claim that does not fit is rejected with the key whose limit is reached.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from noetl.core.engine.concurrency_keys import SUSPECTS, label_keys, playbook_key
from noetl.core.engine.state import State


class Capacity(Struct, frozen=True):
    """How many slots of each limited key this execution may hold in total, at the moment of a decision.

    `contended` are the keys with waiting runs: their slots go to the waiting runs first."""

    allowed: Mapping[str, int]
    contended: frozenset[str] = frozenset()


NO_CAPACITY = Capacity({})  # unknown: what is not limited by users is free, a run of `State.isolated` is not


def slots_held(state: State) -> dict[str, int]:
    """The slots that an execution holds now, by key."""
    if state.finished is not None or not state.begun or state.only_waits:
        return {}
    holding = {playbook_key(state.playbook.path): 1}
    keys_of = state.net.concurrency_keys
    for name, count in state.leased.items():
        for key in keys_of(name):
            holding[key] = holding.get(key, 0) + count
    if state.isolated and (alone := sum(state.open[run_id].status == "leased" for run_id in state.isolated)):
        holding[SUSPECTS] = alone
    if state.request is not None and state.request.labels and (leased := sum(state.leased.values())):
        holding |= dict.fromkeys(label_keys(state.request.labels), leased)
    return holding


class CapacityCheck:
    """Checks runs one by one: each run that fits takes its slots, so that the next one finds fewer."""

    __slots__ = ("_capacity", "_holding", "_labels", "_state", "_waited")

    def __init__(self, state: State, capacity: Capacity, *, waited: bool) -> None:
        """`waited`: the runs have waited for a slot, so keys with waiting runs are open to them."""
        self._state = state
        self._capacity = capacity
        self._holding = slots_held(state)
        self._waited = waited
        labels = state.request.labels if state.request is not None else {}
        self._labels = [key for key in label_keys(labels) if key in capacity.allowed]

    def missing_key(self, step: str, run_id: str) -> str | None:
        """The first key without a free slot for this run of a step; None: the run has taken its slots."""
        state, allowed, holding = self._state, self._capacity.allowed, self._holding
        keys = [key for key in state.net.concurrency_keys(step) if key in allowed] + self._labels
        own = playbook_key(state.playbook.path)
        if run_id in state.isolated:
            keys.append(SUSPECTS)
        if own in allowed and own not in holding:
            keys.insert(0, own)
        for key in keys:
            if holding.get(key, 0) + 1 > allowed.get(key, 0) or (key in self._capacity.contended and not self._waited):
                return key
        for key in keys:
            holding[key] = holding.get(key, 0) + 1
        return None
