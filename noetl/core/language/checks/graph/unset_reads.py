"""Values that may be unset where they are read: `ctx.x` on a path that bypasses the step that sets it.

`flow.definite_assignment` has the data flow analysis. This module builds its input from the playbook (keys,
assignments, choices) and compares every template with the result. Keys that are never set are reported by
`unknown_names` (`never-set`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_

from msgspec import Struct

from noetl.core.language.checks.analysis import AnalysisContext, is_block
from noetl.core.language.flow import visibility as at
from noetl.core.language.flow.control_flow import END, Pipeline
from noetl.core.language.flow.definite_assignment import AssignmentEdge, Unset, flow
from noetl.core.language.flow.guard_conditions import (
    always_true,
    expression,
    is_conditional,
    required_events,
    tests_only_outcome,
)
from noetl.core.language.flow.reachability import Reachability
from noetl.core.language.flow.template_analysis import Read, analyze_template
from noetl.core.language.flow.template_sites import TemplateSite
from noetl.core.language.flow.visibility import STATUS_HELPERS
from noetl.core.language.source.nodes import Node, Scalar
from noetl.core.language.syntax.grammar import ITERATION_NAMES
from noetl.core.language.syntax.tree import ArcSyntax, BodySyntax, SetSyntax, StepSyntax, TaskSyntax

Key = tuple[str, str]  # scope and first name
_SCOPES = frozenset({"ctx", "step", "iter"})
_FAILURES = frozenset({"step.failed", "call.error"})


def check(context: AnalysisContext) -> None:
    """Compute what may be unset where, and check every read."""
    reads = list(_reads(context))
    if reads:
        _UnsetAnalysis(context, reads).report()


def _reads(context: AnalysisContext) -> Iterator[tuple[TemplateSite, Read]]:
    """The reads that require a value."""
    for site in context.sites.templates:
        if site.body is None:
            continue
        for read in site.template.reads:
            if not read.guarded and read.path[0] in _SCOPES and len(read.path) > 1:
                yield site, read


class _BodyState(Struct, eq=False):
    """The analysis of one step or block."""

    keys: dict[str, int]  # "step.x" and "iter.x" -> bit
    pipeline: Pipeline | None
    nodes: list[Unset]
    end: Unset  # what is unset after its pipeline has run
    sometimes: int  # what only some of its paths set
    before: dict[int, int]  # id of an assignment, or of a rule's guard -> what is set before it
    on_entry: Unset | None = None


class _UnsetAnalysis:
    def __init__(self, context: AnalysisContext, reads: list[tuple[TemplateSite, Read]]) -> None:
        self.context = context
        self.reads = reads
        read = {site_read.path[1] for _, site_read in reads if site_read.path[0] == "ctx"}
        keys = sorted(read & context.ctx_keys) if not context.has_dynamic_steps else []
        self.bits = {key: 1 << number for number, key in enumerate(keys)}
        self.width = len(keys)
        self.universe = (1 << self.width) - 1
        self.steps = context.document.steps
        self.number = {step.name: number for number, step in enumerate(self.steps)}
        self._body_states: dict[int, _BodyState] = {}
        self.reachability = Reachability(self.steps)
        self.any_gate = any(step.admit_rules for step in self.steps)
        self.step_keys = {step.name: self._all_keys(step) for step in self.steps}
        self.step_states = (
            self._analyze_steps() if self.universe and context.entry in self.number else [Unset()] * len(self.steps)
        )

    # --- the graph of steps ---

    def _analyze_steps(self) -> list[Unset]:
        edges: list[AssignmentEdge] = []
        for number, step in enumerate(self.steps):
            if self.reachability.open_arcs_of[number]:
                edges += self._edges(number, step, self.reachability.open_arcs_of[number])
        return flow(len(self.steps), self.number[self.context.entry], edges, self.universe)

    def _edges(self, number: int, step: StepSyntax, arcs: list[ArcSyntax]) -> Iterator[AssignmentEdge]:
        state = self.body_state(step)
        unset_after = (state.end.free | state.end.chosen) & self.universe
        own = self.universe & ~unset_after | self._sets(step.sets)
        known = self._ensured_by_gate(step)
        for arc in arcs:
            if arc.when is not None:
                known |= self._ensured_by(arc.when)
        every = self.step_keys[step.name]
        inclusive = step.router is not None and step.router.mode == "inclusive"
        all_taken = inclusive and all(always_true(arc.when) for arc in arcs)
        failed = False  # after an arc for every success only failures are left
        ended = True  # every guard so far tests only the outcome of the step
        for position, arc in enumerate(arcs):
            ended = ended and tests_only_outcome(arc.when)
            target = self.number[arc.target or ""]
            sets = (every if failed or _on_failure(arc) else own) | known | self._sets(arc.sets)
            failed = failed or (arc.when is None and not inclusive)
            yield AssignmentEdge(
                number,
                target,
                sets & self.universe,
                state.sometimes & ~sets & self.universe,
                (every | sets) & self.universe,
                choice=not (all_taken or (position == 0 and not inclusive and always_true(arc.when))),
                independent=ended,
                gated=bool(self.steps[target].admit_rules),
            )

    def _set_in_parallel(self, number: int, *, always_taken: bool) -> int:
        """The keys that may be set in parallel with a step before it runs.

        A step that this one leads to waits for it, unless it does not join, or gates delay tokens.
        """
        parallel = self.reachability.parallel_with(number, always_taken=always_taken)
        found = 0
        for other in range(len(self.steps)) if parallel else ():
            step = self.steps[other]
            if parallel >> other & 1:
                waits = (
                    self.reachability.reachable[number] >> other & 1
                    and not self.reachability.reachable[other] >> number & 1
                )
                if not waits or self.any_gate or (step.admit is not None and step.admit.join == "each"):
                    found |= self.step_keys[step.name] | self._arc_sets(step)
        return found

    def _arc_sets(self, step: StepSyntax) -> int:
        return reduce(or_, (self._sets(arc.sets) for arc in step.arcs), 0)

    def _ensured_by_gate(self, step: StepSyntax) -> int:
        return reduce(or_, (self._ensured_by(rule.when) | self._ensured_by(rule.allow) for rule in step.admit_rules), 0)

    def _ensured_by(self, node: Node | None) -> int:
        """The keys that a guard ensures: those that it reads, and those set by the steps that it reads."""
        if not isinstance(node, Scalar) or not isinstance(node.value, str) or "{" not in node.value:
            return 0
        template = analyze_template(node.value)
        found = 0
        for read in template.reads:
            name = read.path[0]
            if name == "ctx" and len(read.path) > 1:
                found |= self.bits.get(read.path[1], 0)
            elif name == "steps" and len(read.path) > 1:
                found |= self.step_keys.get(read.path[1], 0)
            else:
                found |= self.step_keys.get(name, 0)
        for call in template.calls:
            if call.name in STATUS_HELPERS:
                for argument in call.args:
                    for name in argument if isinstance(argument, tuple) else (argument,):
                        found |= self.step_keys.get(name, 0) if isinstance(name, str) else self.universe
        return found

    def _sets(self, sets: Iterable[SetSyntax]) -> int:
        found = 0
        for each in sets:
            if each.scope == "ctx":
                found |= self.bits.get(each.keys[0], 0)
        return found

    def _all_keys(self, body: BodySyntax) -> int:
        found = self._sets(body.sets)
        for task in body.tasks():
            found |= self._sets(task.all_sets())
        for key in self.context.called_keys(body):
            found |= self.bits.get(key, 0)
        return found

    # --- one step or block ---

    def body_state(self, body: BodySyntax) -> _BodyState:
        """The analysis of a step or block, cached."""
        known = self._body_states.get(id(body))
        if known is None:
            known = self._body_states[id(body)] = self._analyze_body(body)
        return known

    def _analyze_body(self, body: BodySyntax) -> _BodyState:
        keys: dict[str, int] = {}
        iterators = self.context.body(body).iterators
        for each in self.context.sets_of(body):
            if each.scope in ("step", "iter") and each.keys[0] not in (*ITERATION_NAMES, *iterators):
                keys.setdefault(f"{each.scope}.{each.keys[0]}", 1 << (self.width + len(keys)))
        universe = self.universe | ((1 << len(keys)) - 1) << self.width
        state = _BodyState(keys, None, [], Unset(universe, universe, 0), 0, {})
        if self._may_set(body.tasks(), keys):
            state.pipeline = Pipeline(body)
            state.nodes = self._pipeline_state(state.pipeline, state, universe)
            state.end = state.nodes[END]
            state.sometimes = state.end.chosen & ~state.end.free
            for task in body.tasks():
                self._order_task(task, state)
        self._order_sets(body.sets, 0, state)
        for arc in body.arcs:
            self._order_sets(arc.sets, 0, state)
        return state

    def _pipeline_state(self, pipeline: Pipeline, state: _BodyState, universe: int) -> list[Unset]:
        edges: list[AssignmentEdge] = []
        for number, node in enumerate(pipeline.nodes):
            own = self._may_set((node.task,), state.keys, rules=False) if node.task is not None else 0
            ensured = self._ensured_by_guards(pipeline, number, state)
            loop_sets = 0
            if node.construct is not None and node.construct.keyword == "while":
                loop_sets = self._may_set(node.construct.tasks(), state.keys)
            found: list[tuple[int, int]] = []
            for position, edge in enumerate(node.edges):
                sets = ensured | (0 if edge.skips else own) | self._bits(edge.sets, state.keys)
                if loop_sets and position == len(node.edges) - 1:
                    sets |= loop_sets  # a `while` is expected to run at least once
                found.append((edge.target, sets))
            # Edges with the same target and the same assignments count as one.
            choice = len({each for each in found if each[0] != number}) > 1
            for target, sets in found:
                edges.append(AssignmentEdge(number, target, sets, may_set=sets, choice=choice and target != number))
        return flow(len(pipeline.nodes), pipeline.first, edges, universe)

    def _ensured_by_guards(self, pipeline: Pipeline, number: int, state: _BodyState) -> int:
        node = pipeline.nodes[number]
        guards: list[Node | None] = []
        if node.task is not None:
            guards = [rule.when for rule in node.task.rules]
        elif node.construct is not None:
            guards = [branch.when for branch in node.construct.branches]
        found = 0
        for guard in guards:
            found |= self._ensured_by(guard)
            if isinstance(guard, Scalar) and isinstance(guard.value, str):
                for read in analyze_template(guard.value).reads:
                    found |= state.keys.get(".".join(read.path[:2]), 0)
        return found

    def _may_set(self, tasks: Iterable[TaskSyntax], keys: dict[str, int], *, rules: bool = True) -> int:
        found = 0
        for task in tasks:
            found |= self._bits(task.all_sets() if rules else task.sets, keys)
            if task.kind == "workbook":
                found |= self._set_by_call(task)
        return found

    def _set_by_call(self, task: TaskSyntax) -> int:
        return reduce(or_, (self.bits.get(key, 0) for key in self.context.keys_set_by_call(task)), 0)

    def _bits(self, sets: Iterable[SetSyntax], keys: dict[str, int]) -> int:
        found = 0
        for each in sets:
            name = each.keys[0]
            found |= self.bits.get(name, 0) if each.scope == "ctx" else keys.get(f"{each.scope}.{name}", 0)
        return found

    def _order_task(self, task: TaskSyntax, state: _BodyState) -> None:
        """Record what is set before each assignment of a task, and before its rules are evaluated."""
        called = self._set_by_call(task) if task.kind == "workbook" else 0
        own = self._order_sets(task.sets, called, state)
        for rule in task.rules:
            state.before[id(rule.when)] = own
            self._order_sets(rule.sets, own, state)

    def _order_sets(self, sets: Iterable[SetSyntax], before: int, state: _BodyState) -> int:
        for each in sets:
            state.before[id(each)] = before
            before |= self._bits((each,), state.keys)
        return before

    # --- reads ---

    def report(self) -> None:
        """Report every read of a value that may be unset, once per step and key."""
        reported: set[tuple[int, Key]] = set()
        for site, read in self.reads:
            assert site.body is not None
            key = (read.path[0], read.path[1])
            state = self.body_state(site.body)
            bit = self.bits.get(key[1], 0) if key[0] == "ctx" else state.keys.get(".".join(key), 0)
            if not bit or (id(site.body), key) in reported:
                continue
            unset = self._unset_at(site, site.body, state)
            if not bit & (unset.never | unset.free | unset.chosen):
                continue
            if bit & unset.never or not is_conditional(site.node.text):
                reported.add((id(site.body), key))
                self._report(site, read, certain=bool(unset.never & bit), bit=bit)

    def _unset_at(self, site: TemplateSite, body: BodySyntax, state: _BodyState) -> Unset:
        """What may be unset at a template."""
        on_entry = state.on_entry
        if on_entry is None:
            on_entry = state.on_entry = self._on_entry(body, state)
        if site.visibility is at.ADMIT:
            return on_entry._replace(chosen=0)
        if isinstance(body, StepSyntax):
            on_entry = on_entry.without(self._ensured_by_gate(body))
        if body.loop is not None:
            on_entry = on_entry._replace(chosen=0)  # the collection may be empty
        if site.task is not None:
            return self._at_task(site, site.task, state, on_entry)
        if site.visibility is at.RULE:  # the guard of a choose, while or until
            number = state.pipeline.node_of.get(id(site.node), -1) if state.pipeline is not None else -1
            return on_entry.through(state.nodes[number]) if number >= 0 else Unset()
        if site.visibility in _AFTER_TASKS:
            return self._at_end(site, body, state, on_entry.through(state.end))
        return on_entry if site.visibility in _BEFORE_TASKS else Unset()

    def _on_entry(self, body: BodySyntax, state: _BodyState) -> Unset:
        local = reduce(or_, state.keys.values(), 0)
        if is_block(body):
            return Unset(local, local)  # what callers have set is not known
        number = self.number[body.name]
        predecessor = self.step_states[number]
        if predecessor.never | predecessor.free | predecessor.chosen:
            predecessor = predecessor.without(self._set_in_parallel(number, always_taken=True))
            predecessor = predecessor._replace(
                never=predecessor.never & ~self._set_in_parallel(number, always_taken=False)
            )
        return Unset(predecessor.never | local, predecessor.free | local, predecessor.chosen)

    def _at_task(self, site: TemplateSite, task: TaskSyntax, state: _BodyState, on_entry: Unset) -> Unset:
        if state.pipeline is None:
            here = on_entry
        else:
            here = on_entry.through(state.nodes[state.pipeline.node_of[id(task)]])
        if any(rule.do == "skip" for rule in task.rules):
            here = Unset(here.never)
        if site.assigns is not None:
            return here.without(state.before.get(id(site.assigns), 0))
        if site.visibility is at.RULE:
            return here.without(state.before.get(id(site.node), 0))
        return here

    def _at_end(self, site: TemplateSite, body: BodySyntax, state: _BodyState, ended: Unset) -> Unset:
        if site.visibility in (at.STEP_SET, at.BLOCK_SET):
            return ended.without(state.before.get(id(site.assigns), 0))
        if site.visibility is at.ARC:
            ended = ended.without(self._bits(body.sets, state.keys))
            if site.assigns is not None:
                return Unset(*ended.without(state.before.get(id(site.assigns), 0))[:2])
            first = bool(body.arcs) and body.arcs[0].when is site.node
            return ended if first else ended._replace(chosen=0)
        return ended

    def _report(self, site: TemplateSite, read: Read, *, certain: bool, bit: int) -> None:
        name = ".".join(read.path[:2])
        if certain:
            message = f"`{name}` is read before it is set"
            hint = f"{self._setter_hint(read, site)}; set it earlier, or write `{name} | default(...)`"
        else:
            message = f"`{name}` may not be set here"
            edge = self._path_without_set(site.body, bit) if read.path[0] == "ctx" else ""
            message += f": nothing sets it on the path {edge}" if edge else ": not every path to this place sets it"
            hint = f"set it on every path, or write `{name} | default(...)`"
        self.context.report_read("unset-on-path", site, read, message, hint)

    def _setter_hint(self, read: Read, site: TemplateSite) -> str:
        scope, key = read.path[:2]
        bodies = self.context.document.bodies() if scope == "ctx" else (site.body,)
        for body in bodies:
            for each in self.context.sets_of(body) if body is not None else ():
                if each.scope == scope and each.keys[0] == key:
                    return f"line {each.key.line} sets it later"
        return "it is set later"

    def _path_without_set(self, body: BodySyntax | None, bit: int) -> str:
        """The shortest path from the entry that does not set the key, for the message."""
        if body is None or body.name not in self.number:
            return ""
        predecessor: dict[str, str] = {self.context.entry: ""}
        queue = [self.context.entry]
        for name in queue:
            if name == body.name:
                edge = [name]
                while predecessor[edge[-1]]:
                    edge.append(predecessor[edge[-1]])
                edge.reverse()
                return " → ".join(edge if len(edge) <= 6 else [*edge[:3], "…", *edge[-2:]]) if len(edge) > 1 else ""
            step = self.steps[self.number[name]]
            unset_after = self.body_state(step).end
            if (self._sets(step.sets) | (self.universe & ~(unset_after.free | unset_after.chosen))) & bit:
                continue
            for arc in self.reachability.open_arcs_of[self.number[name]]:
                if arc.target is not None and arc.target not in predecessor and not self._sets(arc.sets) & bit:
                    predecessor[arc.target] = name
                    queue.append(arc.target)
        return ""


_BEFORE_TASKS = (at.STEP_INPUT, at.LOOP_INPUT, at.LOOP_IN, at.INNER_LOOP_IN, at.LIMIT, at.BLOCK_INPUT)
_AFTER_TASKS = (at.LOOP_UNTIL, at.STEP_SET, at.BLOCK_SET, at.ARC)


def _on_failure(arc: ArcSyntax) -> bool:
    """Whether an arc handles failures: then the values that the step sets may be set or not."""
    if arc.when is None:
        return False
    required = required_events(arc.when)
    return (required is not None and required <= _FAILURES) or "error" in expression(arc.when)
