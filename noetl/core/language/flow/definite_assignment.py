"""Which values may still be unset where: a data flow over the net and over each pipeline, in sets of bits.

Each key of `ctx` (and inside a step each key of `step` and `iter`) is a bit. Three sets belong to every place:

*never*: no way to this place sets the key. Reading it there is a mistake on every way.

*free*: some way comes here without setting the key, and no choice on that way had an alternative that sets it.

*chosen*: some way comes here without setting the key, and one choice on it (an arc, a rule, a branch) left out the
way that sets it. Reading the key here is a mistake on that way, unless a later choice is made for the same reason
as the first: whoever reads only "when it is there" makes such a choice. So what is *chosen* goes on only where
nothing more is chosen, and checks are left with what is certain.

Everything else errs on the side of silence. What a step sets on any of its ways counts as set when it fails. A
guard or gate that mentions a key, or a step that sets it, makes sure of it. What is set side by side with a step
(behind another arc that is always taken) counts as set for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from noetl.core.language.flow.reachability import all_others, gathered


class Unset(NamedTuple):
    """The keys that may be unset at a place."""

    never: int = 0
    free: int = 0
    chosen: int = 0

    def but(self, bits: int) -> Unset:
        """The same after some keys were set, or made sure of."""
        return Unset(self.never & ~bits, self.free & ~bits, self.chosen & ~bits) if bits else self

    def through(self, inner: Unset) -> Unset:
        """What is unset behind a stretch of way, when `inner` is what stays unset on the stretch alone."""
        return Unset(
            self.never & inner.never,
            self.free & inner.free,
            (self.chosen & (inner.free | inner.chosen)) | (self.free & inner.chosen),
        )


class Edge(Struct, frozen=True):
    """A way from one node to another."""

    source: int
    target: int
    sets: int = 0  # what is set on it, or made sure of
    some: int = 0  # what is set on some of the ways through the node it leaves, and not on others
    may: int = 0  # all that may be set on it
    choice: bool = False  # another way could have been taken
    again: bool = False  # a choice that cannot have been made for the reason of an earlier one
    gated: bool = False  # at its end a gate chooses once more


def flow(count: int, first: int, edges: Sequence[Edge], universe: int) -> list[Unset]:
    """For each node what may be unset on arrival, beginning with everything at the first."""
    ways: list[list[Edge]] = [[] for _ in range(count)]
    own = [0] * count
    for edge in edges:
        ways[edge.source].append(edge)
        own[edge.source] |= edge.may
    later = gathered([[edge.target for edge in leaving] for leaving in ways], own)
    left_out = [_left_out(leaving, later) for leaving in ways]
    free, chosen = [0] * count, [0] * count
    maybe: list[int | None] = [None] * count  # keys that some way may have set; None: no way has come here yet
    free[first], maybe[first] = universe, 0
    order = _downwards(ways, first)
    waiting = {first}
    while waiting:
        for node in order:
            if node not in waiting:
                continue
            waiting.discard(node)
            here, there, known = free[node], chosen[node], maybe[node] or 0
            for edge, others in zip(ways[node], left_out[node], strict=True):
                new_free = here & ~(others | edge.some | edge.sets)
                new_chosen = here & others & ~edge.some
                if not edge.choice:
                    new_chosen |= here & edge.some & ~others
                if not edge.choice or edge.again:
                    new_chosen |= there & ~edge.some & ~others
                new_chosen &= ~edge.sets if not edge.gated else 0
                new_maybe = known | edge.may
                target = edge.target
                held = maybe[target]
                if held is None or (new_free & ~free[target]) | (new_chosen & ~chosen[target]) | (new_maybe & ~held):
                    free[target] |= new_free
                    chosen[target] |= new_chosen
                    maybe[target] = (held or 0) | new_maybe
                    waiting.add(target)
    never = [universe & ~known if known is not None else 0 for known in maybe]
    return [Unset(*found) for found in zip(never, free, chosen, strict=True)]


def _downwards(ways: list[list[Edge]], first: int) -> list[int]:
    """The nodes in an order in which most ways lead to later ones, so that few rounds are enough."""
    seen = {first}
    finished: list[int] = []
    work = [(first, 0)]
    while work:
        node, place = work.pop()
        if place < len(ways[node]):
            work.append((node, place + 1))
            target = ways[node][place].target
            if target not in seen:
                seen.add(target)
                work.append((target, 0))
        else:
            finished.append(node)
    finished.reverse()
    return finished


def _left_out(leaving: list[Edge], later: list[int]) -> list[int]:
    """For each way what the ways that were not taken could have set."""
    behind = [edge.may | later[edge.target] if edge.target != edge.source else 0 for edge in leaving]
    return [bits if edge.choice else 0 for edge, bits in zip(leaving, all_others(behind), strict=True)]
