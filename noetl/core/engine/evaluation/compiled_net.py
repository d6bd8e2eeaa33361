"""The static net: steps with their templates compiled, and which step can be reached from which.

Everything here follows from the playbook (and the steps that were synthesized), so it is made once
per playbook object and shared by all its executions. Reachability is one bit set per step, made
for the whole net on the first question; a chain with one token never asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from noetl.core.engine.concurrency_keys import concurrency_keys_of, playbook_key
from noetl.core.model.playbook import Admission, Assignment, Loop, Playbook, Reducer, Step
from noetl.core.templates.template import Compiled, compile_value

DEFAULT_PARALLEL = 256  # iterations in flight of a parallel loop that names no number


class CompiledAssignment:
    """One `set`, ready to be evaluated."""

    __slots__ = ("path", "scope", "target", "value")

    def __init__(self, assignment: Assignment) -> None:
        self.scope = assignment.scope
        self.target = assignment.keys
        self.value = compile_value(assignment.value)
        self.path = assignment.path


class CompiledArc:
    """One arc: its guard (None: the success path) and what it sets."""

    __slots__ = ("assignments", "index", "path", "target", "when")

    def __init__(self, index: int, target: str, when: Any, assignments: Iterable[Assignment], path: str) -> None:
        self.index = index
        self.target = target
        self.when: Compiled | None = None if when is None else compile_value(when)
        self.assignments = tuple(CompiledAssignment(each) for each in assignments)
        self.path = path


class CompiledLoop:
    """One level of a loop."""

    __slots__ = ("collection", "loop", "until", "window")

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.collection = compile_value(loop.collection)
        self.until: Compiled | None = None if loop.until is None else compile_value(loop.until)
        self.window: Compiled | None = None if loop.max_in_flight is None else compile_value(loop.max_in_flight)


class CompiledStep:
    """A step with its server-side templates compiled."""

    __slots__ = (
        "arcs", "assignments", "deadline_s", "gate", "inclusive", "input", "loops", "one_way", "parallel_from",
        "parallel_to", "plain", "reads", "reduce", "step", "straight", "synthesize", "timeout_s",
    )  # fmt: skip

    def __init__(self, step: Step) -> None:
        self.step = step
        self.gate = tuple(
            (None if rule.when is None else compile_value(rule.when), compile_value(rule.allow), rule.path)
            for rule in step.admission.rules
        )
        self.input: Compiled | None = compile_value(step.input) if step.input else None
        self.assignments = tuple(CompiledAssignment(each) for each in step.assignments)
        self.arcs = tuple(
            CompiledArc(index, arc.target, arc.when, arc.assignments, arc.path)
            for index, arc in enumerate(step.router.arcs)
        )
        self.inclusive = step.router.mode == "inclusive"
        first = self.arcs[0] if self.arcs and not self.inclusive and step.loop is None else None
        # The only arc that can be taken on success, without a template to ask.
        self.one_way = first if first is not None and first.when is None and not first.assignments else None
        self.timeout_s: Compiled | None = None if step.timeout_s is None else compile_value(step.timeout_s)
        self.deadline_s: Compiled | None = None if step.deadline_s is None else compile_value(step.deadline_s)
        self.synthesize = None if step.synthesize is None else compile_value(step.synthesize.source)
        self.loops = tuple(CompiledLoop(loop) for loop in _levels(step.loop))
        parallel = [depth for depth, level in enumerate(self.loops) if level.loop.mode == "parallel"]
        self.parallel_from = parallel[0] if parallel else None  # outermost parallel level
        self.parallel_to = parallel[-1] if parallel else None  # innermost parallel level
        self.reduce: dict[str, Reducer] = {}
        for level in reversed(self.loops):  # the outermost declaration counts
            self.reduce.update(level.loop.reduce)
        self.plain = step.loop is None and bool(step.tasks)  # one run on a worker, nothing else
        self.reads = step.reads
        # Nothing stands between a token and this step, and nothing is to be evaluated.
        self.straight = (
            step.admission == Admission()
            and (self.input is None or step.loop is not None)
            and self.timeout_s is None
            and self.deadline_s is None
        )


def _levels(loop: Loop | None) -> Iterable[Loop]:
    while loop is not None:
        yield loop
        loop = loop.inner


class Net:
    """Steps by name, and who can reach whom."""

    __slots__ = ("_compiled", "_endless", "_every_need", "_needs", "_origins", "bits", "playbook", "steps")

    def __init__(self, playbook: Playbook, extra: Mapping[str, Step] | None = None) -> None:
        self.playbook = playbook
        self.steps: dict[str, Step] = {**playbook.steps_by_name, **extra} if extra else playbook.steps_by_name
        self._compiled: dict[str, CompiledStep] = {}
        self.bits: dict[str, int] = {}  # each step's bit, once somebody asked
        self._origins: dict[str, int] | None = None
        self._endless: frozenset[str] | None = None
        self._needs: dict[str, tuple[str, ...]] = {}
        self._every_need: set[str] | None = None

    def extended(self, extra: Mapping[str, Step]) -> Net:
        """This net with synthesized steps in it."""
        net = Net(self.playbook, extra)
        net._compiled = dict(self._compiled)
        return net

    def compiled(self, name: str) -> CompiledStep:
        """A step with its templates compiled (once)."""
        known = self._compiled.get(name)
        if known is None:
            known = self._compiled[name] = CompiledStep(self.steps[name])
        return known

    def endless(self, name: str) -> bool:
        """Whether a token at this step goes on for ever, whatever the data: no gate, no guard and no end is ahead."""
        if self._endless is None:
            self._endless = frozenset(self._without_end())
        return name in self._endless

    def _without_end(self) -> set[str]:
        """All steps but those where a token may stay or end, and those from which arcs lead to such a step."""
        sources: dict[str, list[str]] = {}
        ended: list[str] = []
        for name, step in self.steps.items():
            arcs, gate = step.router.arcs, step.admission
            if gate.rules or gate.once or all(arc.when is not None for arc in arcs):
                ended.append(name)
            for arc in arcs:
                sources.setdefault(arc.target, []).append(name)
        ended += sources.keys() - self.steps.keys()
        left = set(self.steps) - set(ended)
        while ended:
            for source in sources.get(ended.pop(), ()):
                if source in left:
                    left.discard(source)
                    ended.append(source)
        return left

    def needs(self, name: str) -> tuple[str, ...]:
        """What a run of a step takes a slot of while a worker holds it: its pool, and the credentials it names."""
        known = self._needs.get(name)
        if known is None:
            known = self._needs[name] = concurrency_keys_of(self.playbook, self.steps[name])
        return known

    def every_need(self) -> set[str]:
        """All that executions of this playbook may take slots of, the playbook's own among them."""
        if self._every_need is None:
            of_steps = (key for name in self.steps for key in self.needs(name))
            self._every_need = {playbook_key(self.playbook.path), *of_steps}
        return self._every_need

    def origins(self, target: str) -> int:
        """The bits of all other steps from which some arcs lead to `target`."""
        if self._origins is None:
            self._origins = self._closure()
        return self._origins[target]

    def reaches(self, origin: str, target: str) -> bool:
        """Whether a token at `origin`, another step, could come to `target`."""
        return bool(self.origins(target) & self.bits[origin])

    def mask(self, names: Iterable[str]) -> int:
        """The bits of some steps."""
        if self._origins is None:
            self._origins = self._closure()
        mask = 0
        for name in names:
            mask |= self.bits[name]
        return mask

    def _closure(self) -> dict[str, int]:
        """For every step the steps that reach it, as bit sets, over the net's strongly connected parts."""
        names = list(self.steps)
        numbers = {name: number for number, name in enumerate(names)}
        self.bits = {name: 1 << number for name, number in numbers.items()}
        sources: list[list[int]] = [[] for _ in names]
        for number, name in enumerate(names):
            for arc in self.steps[name].router.arcs:
                if arc.target in numbers:
                    sources[numbers[arc.target]].append(number)
        reached_by = [0] * len(names)
        for part in _parts(sources):
            members = 0
            for number in part:
                members |= 1 << number
            before = 0
            for number in part:
                for source in sources[number]:
                    before |= (1 << source) | (0 if members >> source & 1 else reached_by[source])
            for number in part:
                reached_by[number] = (before | members) & ~(1 << number) if len(part) > 1 else before & ~(1 << number)
        return {name: reached_by[number] for name, number in numbers.items()}


def _parts(targets: list[list[int]]) -> Iterable[list[int]]:
    """Strongly connected parts, those that are reached before those that reach them (Tarjan, without recursion)."""
    index: list[int] = [-1] * len(targets)
    low = [0] * len(targets)
    on_stack = bytearray(len(targets))
    stack: list[int] = []
    counter = 0
    for root in range(len(targets)):
        if index[root] >= 0:
            continue
        work = [(root, 0)]
        while work:
            node, at = work.pop()
            if at == 0:
                index[node] = low[node] = counter
                counter += 1
                stack.append(node)
                on_stack[node] = 1
            descended = False
            for position in range(at, len(targets[node])):
                target = targets[node][position]
                if index[target] < 0:
                    work.append((node, position + 1))
                    work.append((target, 0))
                    descended = True
                    break
                if on_stack[target]:
                    low[node] = min(low[node], index[target])
            if descended:
                continue
            if low[node] == index[node]:
                part = []
                while True:
                    member = stack.pop()
                    on_stack[member] = 0
                    part.append(member)
                    if member == node:
                        break
                yield part
            if work:
                above = work[-1][0]
                low[above] = min(low[above], low[node])


def net_of(playbook: Playbook) -> Net:
    """The net of a playbook, made once per playbook object."""
    known: Net | None = playbook.__dict__.get("_net")
    if known is None:
        known = Net(playbook)
        playbook.__dict__["_net"] = known
    return known
