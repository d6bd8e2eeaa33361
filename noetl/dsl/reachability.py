"""Which steps of a net lead to which, as sets of bits: questions about many steps answered at once."""

from __future__ import annotations

from collections.abc import Sequence
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
        bits = (1 << self.number[one], 1 << self.number[other])
        for number, step in enumerate(self.steps):
            if step.router is None or step.router.mode != "inclusive" or len(self.arcs[number]) < 2:
                continue
            ways = [self.behind[following] for following in self.arcs[number]]
            firsts = [place for place, way in enumerate(ways) if way & bits[0]]
            seconds = [place for place, way in enumerate(ways) if way & bits[1]]
            if firsts and seconds and (len({*firsts, *seconds}) > 1):
                return True
        return False


def gathered(arcs: Sequence[Sequence[int]], own: Sequence[int]) -> list[int]:
    """For each node its own bits and those of every node that can be reached from it."""
    bits = list(own)
    into: list[list[int]] = [[] for _ in arcs]
    for number, following in enumerate(arcs):
        for target in following:
            into[target].append(number)
    waiting = list(range(len(arcs)))  # taken from the end: in a text that is read downwards, one pass is enough
    queued = [True] * len(arcs)
    while waiting:
        number = waiting.pop()
        queued[number] = False
        for before in into[number]:
            joined = bits[before] | bits[number]
            if joined != bits[before]:
                bits[before] = joined
                if not queued[before]:
                    queued[before] = True
                    waiting.append(before)
    return bits
