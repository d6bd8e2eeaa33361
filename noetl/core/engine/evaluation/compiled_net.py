"""The static net: steps with compiled templates, and the reachability between steps.

Everything here follows from the playbook and its synthesized steps, so it is computed once per
playbook object and shared by all its executions. Reachability is one bit set per step, computed
for the whole net on first use; a chain with one token never uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from noetl.core.engine.concurrency_keys import concurrency_keys_of, playbook_key
from noetl.core.model.playbook import Admission, Arc, Assignment, Loop, Playbook, Reducer, Step, step_of
from noetl.core.templates.template import Compiled, compile_value

DEFAULT_PARALLEL = 256  # iterations in flight of a parallel loop without max_in_flight


class CompiledAssignment:
    """One compiled `set`."""

    __slots__ = ("path", "scope", "target", "value")

    def __init__(self, assignment: Assignment) -> None:
        self.scope = assignment.scope
        self.target = assignment.keys
        self.value = compile_value(assignment.value)
        self.path = assignment.path


class CompiledArc:
    """One compiled arc: its guard (None: the success path) and its assignments."""

    __slots__ = ("assignments", "dedupe", "index", "partition", "path", "priority", "target", "when")

    def __init__(self, index: int, arc: Arc) -> None:
        self.index = index
        self.target = arc.target
        self.when: Compiled | None = None if arc.when is None else compile_value(arc.when)
        self.dedupe: Compiled | None = None if arc.dedupe is None else compile_value(arc.dedupe)
        self.partition: Compiled | None = None if arc.partition is None else compile_value(arc.partition)
        self.priority: Compiled | None = None if arc.priority is None else compile_value(arc.priority)
        self.assignments = tuple(CompiledAssignment(each) for each in arc.assignments)
        self.path = arc.path

    @property
    def plain(self) -> bool:
        """Whether taking it evaluates nothing."""
        return self.when is None and not self.assignments and not self.has_keys

    @property
    def has_keys(self) -> bool:
        """Whether its tokens have a key or a priority."""
        return not (self.dedupe is None and self.partition is None and self.priority is None)


class CompiledLoop:
    """One compiled level of a loop."""

    __slots__ = ("collection", "loop", "until", "window")

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.collection = compile_value(loop.collection)
        self.until: Compiled | None = None if loop.until is None else compile_value(loop.until)
        self.window: Compiled | None = None if loop.max_in_flight is None else compile_value(loop.max_in_flight)


class CompiledStep:
    """A step with its server-side templates compiled."""

    __slots__ = (
        "arcs", "assignments", "compensate_when", "deadline_s", "emits", "gate", "immediate", "inclusive", "input",
        "loops", "parallel_from", "parallel_to", "reads", "reduce", "single_run", "step", "synthesize", "timeout_s",
        "unconditional_arc",
    )  # fmt: skip

    def __init__(self, step: Step) -> None:
        self.step = step
        self.gate = tuple(
            (None if rule.when is None else compile_value(rule.when), compile_value(rule.allow), rule.path)
            for rule in step.admission.rules
        )
        self.input: Compiled | None = compile_value(step.input) if step.input else None
        self.assignments = tuple(CompiledAssignment(each) for each in step.assignments)
        self.arcs = tuple(CompiledArc(index, arc) for index, arc in enumerate(step.router.arcs))
        self.inclusive = step.router.mode == "inclusive"
        first = self.arcs[0] if self.arcs and not self.inclusive and step.loop is None else None
        # The only arc that can be taken on success; no template is evaluated for it.
        self.unconditional_arc = first if first is not None and first.plain else None
        self.timeout_s: Compiled | None = None if step.timeout_s is None else compile_value(step.timeout_s)
        self.deadline_s: Compiled | None = None if step.deadline_s is None else compile_value(step.deadline_s)
        self.synthesize = None if step.synthesize is None else compile_value(step.synthesize.source)
        compensation = step.compensation
        self.compensate_when = (
            None if compensation is None or compensation.when is None else compile_value(compensation.when)
        )
        self.emits = tuple(
            (emit, compile_value(emit.payload), None if emit.when is None else compile_value(emit.when))
            for emit in step.emits
        )
        self.loops = tuple(CompiledLoop(loop) for loop in _levels(step.loop))
        parallel = [depth for depth, level in enumerate(self.loops) if level.loop.mode == "parallel"]
        self.parallel_from = parallel[0] if parallel else None  # outermost parallel level
        self.parallel_to = parallel[-1] if parallel else None  # innermost parallel level
        self.reduce: dict[str, Reducer] = {}
        for level in reversed(self.loops):  # the outermost declaration counts
            self.reduce.update(level.loop.reduce)
        self.single_run = step.loop is None and bool(step.tasks)  # one run on a worker, no loop
        self.reads = step.reads
        # A token enters this step without a gate, a join rule or a template to evaluate.
        self.immediate = (
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
    """Steps by name, their compiled forms, their concurrency keys and their reachability."""

    __slots__ = ("_all_keys", "_compiled", "_endless", "_keys", "_origins", "bits", "has_costs", "playbook", "steps")

    def __init__(self, playbook: Playbook, extra: Mapping[str, Step] | None = None) -> None:
        self.playbook = playbook
        self.steps: dict[str, Step] = {**playbook.steps_by_name, **extra} if extra else playbook.steps_by_name
        self.has_costs = any(step.cost != 1 for step in self.steps.values())
        self._compiled: dict[str, CompiledStep] = {}
        self.bits: dict[str, int] = {}  # the bit of each step, once reachability is computed
        self._origins: dict[str, int] | None = None
        self._endless: frozenset[str] | None = None
        self._keys: dict[str, tuple[str, ...]] = {}
        self._all_keys: tuple[str, ...] | None = None

    def extended(self, extra: Mapping[str, Step]) -> Net:
        """This net with synthesized steps added."""
        net = Net(self.playbook, extra)
        net._compiled = dict(self._compiled)
        return net

    def compiled(self, name: str) -> CompiledStep:
        """A step with its templates compiled (once)."""
        known = self._compiled.get(name)
        if known is None:
            known = self._compiled[name] = CompiledStep(step_of(self.steps, name))
        return known

    def endless(self, name: str) -> bool:
        """Whether a token at this step never ends, whatever the data: no gate, guard or end is reachable."""
        if self._endless is None:
            self._endless = frozenset(self._without_end())
        return name in self._endless

    def _without_end(self) -> set[str]:
        """All steps except those where a token may wait or end, and those that lead to such a step."""
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

    def concurrency_keys(self, name: str) -> tuple[str, ...]:
        """The keys of which a leased run of a step takes a slot: its pool, and the credentials it names."""
        known = self._keys.get(name)
        if known is None:
            known = self._keys[name] = concurrency_keys_of(self.playbook, step_of(self.steps, name))
        return known

    def all_concurrency_keys(self) -> tuple[str, ...]:
        """All keys of which executions of this playbook may take slots, including the playbook's own key."""
        if self._all_keys is None:
            names = [*self.steps, *(each.compensation.step.name for each in self.steps.values() if each.compensation)]
            of_steps = (key for name in names for key in self.concurrency_keys(name))
            self._all_keys = tuple(dict.fromkeys((playbook_key(self.playbook.path), *of_steps)))
        return self._all_keys

    def origins(self, target: str) -> int:
        """The bits of all other steps from which `target` is reachable."""
        if self._origins is None:
            self._origins = self._closure()
        return self._origins[target]

    def reaches(self, origin: str, target: str) -> bool:
        """Whether a token at `origin`, another step, can reach `target`."""
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
        """For every step the steps that reach it, as bit sets, over the strongly connected components of the net."""
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
    """Strongly connected components in reverse topological order (Tarjan, without recursion)."""
    index: dict[int, int] = {}
    low = [0] * len(targets)
    on_stack: set[int] = set()
    stack: list[int] = []
    counter = 0
    for root in range(len(targets)):
        if root in index:
            continue
        work = [(root, 0)]
        while work:
            node, at = work.pop()
            if at == 0:
                index[node] = low[node] = counter
                counter += 1
                stack.append(node)
                on_stack.add(node)
            descended = False
            for position in range(at, len(targets[node])):
                target = targets[node][position]
                if target not in index:
                    work.append((node, position + 1))
                    work.append((target, 0))
                    descended = True
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            if descended:
                continue
            if low[node] == index[node]:
                part = []
                while True:
                    member = stack.pop()
                    on_stack.remove(member)
                    part.append(member)
                    if member == node:
                        break
                yield part
            if work:
                above = work[-1][0]
                low[above] = min(low[above], low[node])


def net_of(playbook: Playbook) -> Net:
    """The net of a playbook, created once per playbook object."""
    known: Net | None = playbook.__dict__.get("_net")
    if known is None:
        known = Net(playbook)
        playbook.__dict__["_net"] = known
    return known
