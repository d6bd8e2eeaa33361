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

from noetl.core.language.flow.reachability import transitive_union, union_of_others


class Unset(NamedTuple):
    """The keys that may be unset at a place."""

    never: int = 0
    free: int = 0
    chosen: int = 0

    def without(self, bits: int) -> Unset:
        """The same after some keys were set, or made sure of."""
        return Unset(self.never & ~bits, self.free & ~bits, self.chosen & ~bits) if bits else self

    def through(self, inner: Unset) -> Unset:
        """What is unset behind a stretch of way, when `inner` is what stays unset on the stretch alone."""
        return Unset(
            self.never & inner.never,
            self.free & inner.free,
            (self.chosen & (inner.free | inner.chosen)) | (self.free & inner.chosen),
        )


class AssignmentEdge(Struct, frozen=True):
    """A way from one node to another."""

    source: int
    target: int
    sets: int = 0  # what is set on it, or made sure of
    some: int = 0  # what is set on some of the ways through the node it leaves, and not on others
    may: int = 0  # all that may be set on it
    choice: bool = False  # another way could have been taken
    again: bool = False  # a choice that cannot have been made for the reason of an earlier one
    gated: bool = False  # at its end a gate chooses once more


def flow(count: int, first: int, edges: Sequence[AssignmentEdge], universe: int) -> list[Unset]:
    """For each node what may be unset on arrival, beginning with everything at the first."""
    outgoing: list[list[AssignmentEdge]] = [[] for _ in range(count)]
    may_set = [0] * count
    for edge in edges:
        outgoing[edge.source].append(edge)
        may_set[edge.source] |= edge.may
    later = transitive_union([[edge.target for edge in edges] for edges in outgoing], may_set)
    set_by_others = [_set_by_alternatives(edges, later) for edges in outgoing]
    free, chosen = [0] * count, [0] * count
    maybe: list[int | None] = [None] * count  # keys that some way may have set; None: no way has come here yet
    free[first], maybe[first] = universe, 0
    order = _reverse_postorder(outgoing, first)
    pending = {first}
    while pending:
        for node in order:
            if node not in pending:
                continue
            pending.discard(node)
            free_here, chosen_here, maybe_here = free[node], chosen[node], maybe[node] or 0
            for edge, others in zip(outgoing[node], set_by_others[node], strict=True):
                new_free = free_here & ~(others | edge.some | edge.sets)
                new_chosen = free_here & others & ~edge.some
                if not edge.choice:
                    new_chosen |= free_here & edge.some & ~others
                if not edge.choice or edge.again:
                    new_chosen |= chosen_here & ~edge.some & ~others
                new_chosen &= ~edge.sets if not edge.gated else 0
                new_maybe = maybe_here | edge.may
                target = edge.target
                before = maybe[target]
                if before is None or (new_free & ~free[target]) | (new_chosen & ~chosen[target]) | (
                    new_maybe & ~before
                ):
                    free[target] |= new_free
                    chosen[target] |= new_chosen
                    maybe[target] = (before or 0) | new_maybe
                    pending.add(target)
    never = [universe & ~maybe_here if maybe_here is not None else 0 for maybe_here in maybe]
    return [Unset(*found) for found in zip(never, free, chosen, strict=True)]


def _reverse_postorder(outgoing: list[list[AssignmentEdge]], first: int) -> list[int]:
    """The nodes in an order in which most ways lead to later ones, so that few rounds are enough."""
    seen = {first}
    finished: list[int] = []
    stack = [(first, 0)]
    while stack:
        node, position = stack.pop()
        if position < len(outgoing[node]):
            stack.append((node, position + 1))
            target = outgoing[node][position].target
            if target not in seen:
                seen.add(target)
                stack.append((target, 0))
        else:
            finished.append(node)
    finished.reverse()
    return finished


def _set_by_alternatives(edges: list[AssignmentEdge], later: list[int]) -> list[int]:
    """For each way what the ways that were not taken could have set."""
    set_later = [edge.may | later[edge.target] if edge.target != edge.source else 0 for edge in edges]
    return [bits if edge.choice else 0 for edge, bits in zip(edges, union_of_others(set_later), strict=True)]
