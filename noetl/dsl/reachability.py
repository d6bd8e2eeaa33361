"""Which steps of a net lead to which, as sets of bits: questions about many steps answered at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from noetl.dsl.conditions import never
from noetl.dsl.syntax import StepSyntax


class Reachability:
    """The steps of a net by number, and what lies behind each."""

    def __init__(self, steps: Sequence[StepSyntax]) -> None:
        self.steps = steps
        self.number = {step.name: number for number, step in enumerate(steps)}
        self.arcs = [
            [
                self.number[arc.target]
                for arc in (step.router.arcs if step.router else ())
                if arc.target in self.number and not never(arc.when)
            ]
            for step in steps
        ]

    @cached_property
    def behind(self) -> list[int]:
        """For each step the bits of the steps that can come after it, itself included."""
        return gathered(self.arcs, [1 << number for number in range(len(self.steps))])

    def leads(self, one: str, other: str) -> bool:
        """Whether a token in one step can come to the other."""
        target = 1 << self.number[other]
        return any(self.behind[following] & target for following in self.arcs[self.number[one]])

    def both_can_run(self, one: str, other: str) -> bool:
        """Whether one execution can run both: one after the other, or side by side behind an inclusive router."""
        if one == other or self.leads(one, other) or self.leads(other, one):
            return True
        return bool(self._beside(self.number[one]) & 1 << self.number[other])

    def _beside(self, number: int) -> int:
        """The steps that can run side by side with one."""
        known = self._side_by_side.get(number)
        if known is None:
            bit, known = 1 << number, 0
            for ways, others in self._forks:
                for way, other in zip(ways, others, strict=True):
                    if way & bit:
                        known |= other
            self._side_by_side[number] = known
        return known

    @cached_property
    def _side_by_side(self) -> dict[int, int]:
        return {}

    @cached_property
    def _forks(self) -> list[tuple[list[int], list[int]]]:
        """For each inclusive router what lies behind its arcs, and behind all the others of them."""
        found = []
        for number, step in enumerate(self.steps):
            if step.router is not None and step.router.mode == "inclusive" and len(self.arcs[number]) > 1:
                ways = [self.behind[following] for following in self.arcs[number]]
                found.append((ways, all_others(ways)))
        return found


def all_others(bits: Sequence[int]) -> list[int]:
    """For each of some sets of bits all the others joined."""
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


def gathered(arcs: Sequence[Sequence[int]], own: Sequence[int]) -> list[int]:
    """For each node its own bits and those of every node that can be reached from it."""
    bits = list(own)
    for group in components(arcs, range(len(arcs))):
        joined = 0
        for number in group:
            joined |= own[number]
            for following in arcs[number]:
                joined |= bits[following]
        for number in group:
            bits[number] = joined
    return bits


def components(arcs: Sequence[Sequence[int]], roots: Iterable[int]) -> Iterator[list[int]]:
    """Groups of nodes that all lead to each other (most are single nodes), each after the groups it leads to."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in roots:
        work = [(root, 0)] if root not in order else []
        while work:
            node, place = work.pop()
            if place == 0:
                order[node] = low[node] = len(order)
                stack.append(node)
                on_stack.add(node)
            following = arcs[node]
            while place < len(following):
                other = following[place]
                place += 1
                if other not in order:
                    work += [(node, place), (other, 0)]
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
