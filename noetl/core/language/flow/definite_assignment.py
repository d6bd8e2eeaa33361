"""Definite assignment: which values may be unset where. A data flow analysis over the graph of steps and over each
pipeline, with sets of bits.

Each key of `ctx` (and inside a step each key of `step` and `iter`) is a bit. Every node has three sets:

*never*: no path to this node sets the key. Reading it is an error on every path.

*free*: some path reaches this node without setting the key, and no choice on that path had an alternative that sets
it.

*chosen*: some path reaches this node without setting the key, and one choice on it (an arc, a rule, a branch) excluded
the path that sets it. Reading the key is an error on that path, unless a later choice has the same condition as the
first one, as in a branch that reads the value only if it is set. Therefore *chosen* is propagated only along edges
without a further choice, and only certain errors remain.

Everything else avoids false positives. Keys that a step sets on any path count as set when it fails. A guard or gate
that mentions a key, or a step that sets it, ensures it. Keys set in parallel with a step (after another arc that is
always taken) count as set for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from noetl.core.language.flow.reachability import reverse_postorder, transitive_union, union_of_others


class Unset(NamedTuple):
    """The keys that may be unset at a node."""

    never: int = 0
    free: int = 0
    chosen: int = 0

    def without(self, bits: int) -> Unset:
        """The state after some keys were set or ensured."""
        return Unset(self.never & ~bits, self.free & ~bits, self.chosen & ~bits) if bits else self

    def through(self, inner: Unset) -> Unset:
        """The state after a section of the path, if `inner` is the state of the section alone."""
        return Unset(
            self.never & inner.never,
            self.free & inner.free,
            (self.chosen & (inner.free | inner.chosen)) | (self.free & inner.chosen),
        )


class AssignmentEdge(Struct, frozen=True):
    """An edge between two nodes."""

    source: int
    target: int
    sets: int = 0  # keys that are set on it or ensured
    sometimes: int = 0  # keys that only some paths through its source set
    may_set: int = 0  # all keys that may be set on it
    choice: bool = False  # another edge could have been taken
    independent: bool = False  # a choice whose condition differs from that of every earlier one
    gated: bool = False  # its target has an admission gate


def flow(count: int, first: int, edges: Sequence[AssignmentEdge], universe: int) -> list[Unset]:
    """For each node, what may be unset on arrival; at the first node everything is unset."""
    outgoing: list[list[AssignmentEdge]] = [[] for _ in range(count)]
    own_keys = [0] * count
    for edge in edges:
        outgoing[edge.source].append(edge)
        own_keys[edge.source] |= edge.may_set
    targets = [[edge.target for edge in edges] for edges in outgoing]
    later = transitive_union(targets, own_keys)
    set_by_others = [_set_by_alternatives(edges, later) for edges in outgoing]
    free, chosen = [0] * count, [0] * count
    maybe: list[int | None] = [None] * count  # keys that some path may have set; None: not reached yet
    free[first], maybe[first] = universe, 0
    order = reverse_postorder(targets, [first])  # few passes reach the fixed point
    pending = {first}
    while pending:
        for node in order:
            if node not in pending:
                continue
            pending.discard(node)
            free_here, chosen_here, maybe_here = free[node], chosen[node], maybe[node] or 0
            for edge, others in zip(outgoing[node], set_by_others[node], strict=True):
                new_free = free_here & ~(others | edge.sometimes | edge.sets)
                new_chosen = free_here & others & ~edge.sometimes
                if not edge.choice:
                    new_chosen |= free_here & edge.sometimes & ~others
                if not edge.choice or edge.independent:
                    new_chosen |= chosen_here & ~edge.sometimes & ~others
                new_chosen &= ~edge.sets if not edge.gated else 0
                new_maybe = maybe_here | edge.may_set
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


def _set_by_alternatives(edges: list[AssignmentEdge], later: list[int]) -> list[int]:
    """For each edge, the keys that the edges not taken could set."""
    set_later = [edge.may_set | later[edge.target] if edge.target != edge.source else 0 for edge in edges]
    return [bits if edge.choice else 0 for edge, bits in zip(edges, union_of_others(set_later), strict=True)]
