"""Reachability between steps as sets of bits, so that one operation answers for many steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from noetl.core.language.flow.guard_conditions import always_false, always_true
from noetl.core.language.syntax.tree import ArcSyntax, RouterSyntax, StepSyntax


class Reachability:
    """The graph of steps by number, and what is reachable from each step."""

    def __init__(self, steps: Sequence[StepSyntax]) -> None:
        self.steps = steps
        self.number = {step.name: number for number, step in enumerate(steps)}
        self.open_arcs_of = [
            [arc for arc in open_arcs(step.router) if arc.target in self.number] if step.router is not None else []
            for step in steps
        ]
        self.arcs = [[self.number[arc.target or ""] for arc in leaving] for leaving in self.open_arcs_of]

    @cached_property
    def reachable(self) -> list[int]:
        """For each step, the bits of the steps reachable from it, itself included."""
        return transitive_union(self.arcs, [1 << number for number in range(len(self.steps))])

    def leads_to(self, one: str, other: str) -> bool:
        """Whether a path leads from one step to the other."""
        target = 1 << self.number[other]
        return any(self.reachable[following] & target for following in self.arcs[self.number[one]])

    def can_run_before(self, one: str, other: str) -> bool:
        """Whether a step can have run when the other one runs."""
        return self.leads_to(one, other) or bool(self.parallel_with(self.number[one]) & 1 << self.number[other])

    def both_can_run(self, one: str, other: str) -> bool:
        """Whether one execution can run both steps: one after the other, or in parallel after an inclusive router."""
        if one == other or self.leads_to(one, other) or self.leads_to(other, one):
            return True
        return bool(self.parallel_with(self.number[one]) & 1 << self.number[other])

    def parallel_with(self, number: int, *, always_taken: bool = False) -> int:
        """The steps that can run in parallel with one (with `always_taken`: after an arc that is always taken)."""
        found = self._parallel_cache.get((number, always_taken))
        if found is None:
            bit, found = 1 << number, 0
            for reachable_sets, others, unguarded in self._forks:
                for reachable_set, other in zip(reachable_sets, unguarded if always_taken else others, strict=True):
                    if reachable_set & bit:
                        found |= other
            self._parallel_cache[number, always_taken] = found
        return found

    @cached_property
    def _parallel_cache(self) -> dict[tuple[int, bool], int]:
        return {}

    @cached_property
    def _forks(self) -> list[tuple[list[int], list[int], list[int]]]:
        """For each inclusive router: what is reachable over each arc, all others, and unguarded others."""
        found = []
        for number, step in enumerate(self.steps):
            if step.router is not None and step.router.mode == "inclusive" and len(self.arcs[number]) > 1:
                reachable_sets = [self.reachable[following] for following in self.arcs[number]]
                unguarded = [
                    reachable_set if always_true(arc.when) else 0
                    for reachable_set, arc in zip(reachable_sets, self.open_arcs_of[number], strict=True)
                ]
                found.append((reachable_sets, union_of_others(reachable_sets), union_of_others(unguarded)))
        return found


def open_arcs(router: RouterSyntax) -> list[ArcSyntax]:
    """The arcs that can be taken: no guard that is always false, not after an arc that is always taken."""
    found: list[ArcSyntax] = []
    for number, arc in enumerate(router.arcs):
        if always_false(arc.when):
            continue
        found.append(arc)
        if router.mode == "exclusive" and always_true(arc.when):
            if arc.when is None:  # after a failure the guarded arcs are evaluated
                rest = router.arcs[number + 1 :]
                found += [other for other in rest if other.when is not None and not always_false(other.when)]
            break
    return found


def union_of_others(bits: Sequence[int]) -> list[int]:
    """For each set of bits, the union of all others."""
    found = [0] * len(bits)
    seen = 0
    for number, each in enumerate(bits):
        found[number] = seen
        seen |= each
    seen = 0
    for number in reversed(range(len(bits))):
        found[number] |= seen
        seen |= bits[number]
    return found


def transitive_union(arcs: Sequence[Sequence[int]], own: Sequence[int]) -> list[int]:
    """For each node, its own bits and those of every node reachable from it."""
    bits = list(own)
    for group in components(arcs, range(len(arcs))):
        union = 0
        for number in group:
            union |= own[number]
            for following in arcs[number]:
                union |= bits[following]
        for number in group:
            bits[number] = union
    return bits


def components(arcs: Sequence[Sequence[int]], roots: Iterable[int]) -> Iterator[list[int]]:
    """The strongly connected components, each after the components that it leads to."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in roots:
        work = [(root, 0)] if root not in order else []
        while work:
            node, position = work.pop()
            if position == 0:
                order[node] = low[node] = len(order)
                stack.append(node)
                on_stack.add(node)
            following = arcs[node]
            while position < len(following):
                other = following[position]
                position += 1
                if other not in order:
                    work += [(node, position), (other, 0)]
                    break
                if other in on_stack:
                    low[node] = min(low[node], low[other])
            else:
                if low[node] == order[node]:
                    group = [stack.pop()]
                    while group[-1] != node:
                        group.append(stack.pop())
                    on_stack.difference_update(group)
                    yield group
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])


def reverse_postorder(arcs: Sequence[Sequence[int]], roots: Iterable[int]) -> list[int]:
    """The nodes reachable from the roots in an order in which only arcs that close a cycle lead to an earlier node."""
    seen: set[int] = set()
    finished: list[int] = []
    for root in roots:
        stack = [(root, 0)] if root not in seen else []
        seen.add(root)
        while stack:
            node, position = stack.pop()
            if position == len(arcs[node]):
                finished.append(node)
                continue
            stack.append((node, position + 1))
            target = arcs[node][position]
            if target not in seen:
                seen.add(target)
                stack.append((target, 0))
    finished.reverse()
    return finished
