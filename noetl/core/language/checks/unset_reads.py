"""Values that are read where nothing may have set them yet: `ctx.x` on a way past the step that sets it.

The theory is in `dsl.unset`. Here the playbook is told to it: which keys there are, what is set where, which ways
are choices; then every template is held against what may be unset at its place. Keys that nothing sets at all are
told by `names` (`never-set`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_

from msgspec import Struct

from noetl.core.language.checks.analysis import AnalysisContext, is_block
from noetl.core.language.flow import visibility as at
from noetl.core.language.flow.control_flow import END, Pipeline
from noetl.core.language.flow.definite_assignment import Edge, Unset, flow
from noetl.core.language.flow.guard_conditions import always, asks_how_it_ended, events, expression, is_conditional
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


def check(scene: AnalysisContext) -> None:
    """Find what may be unset where, then look at every read."""
    reads = list(_reads(scene))
    if reads:
        _Check(scene, reads).tell()


def _reads(scene: AnalysisContext) -> Iterator[tuple[TemplateSite, Read]]:
    """The reads that must find something."""
    for site in scene.sites.templates:
        if site.body is None:
            continue
        for read in site.template.reads:
            if not read.guarded and read.path[0] in _SCOPES and len(read.path) > 1:
                yield site, read


class _Inside(Struct, eq=False):
    """What is known inside one step or block."""

    keys: dict[str, int]  # "step.x" and "iter.x" -> bit
    pipeline: Pipeline | None
    points: list[Unset]
    end: Unset  # what stays unset when its pipeline has run
    some: int  # what only some of its ways set
    before: dict[int, int]  # id of an assignment, or of a rule's guard -> what is set before it
    arrived: Unset | None = None


class _Check:
    def __init__(self, scene: AnalysisContext, reads: list[tuple[TemplateSite, Read]]) -> None:
        self.scene = scene
        self.reads = reads
        read = {site_read.path[1] for _, site_read in reads if site_read.path[0] == "ctx"}
        keys = sorted(read & scene.ctx_keys) if not scene.open_ctx else []
        self.bits = {key: 1 << number for number, key in enumerate(keys)}
        self.width = len(keys)
        self.universe = (1 << self.width) - 1
        self.steps = scene.document.steps
        self.number = {step.name: number for number, step in enumerate(self.steps)}
        self._inside: dict[int, _Inside] = {}
        self.ways = Reachability(self.steps)
        self.any_gate = any(step.admit is not None and step.admit.rules for step in self.steps)
        self.may = {step.name: self._all_keys(step) for step in self.steps}
        self.net = self._net() if self.universe and scene.entry in self.number else [Unset()] * len(self.steps)

    # --- the net ---

    def _net(self) -> list[Unset]:
        edges: list[Edge] = []
        for number, step in enumerate(self.steps):
            if self.ways.open[number]:
                edges += self._edges(number, step, self.ways.open[number])
        return flow(len(self.steps), self.number[self.scene.entry], edges, self.universe)

    def _edges(self, number: int, step: StepSyntax, arcs: list[ArcSyntax]) -> Iterator[Edge]:
        inside = self.inside(step)
        stays = (inside.end.free | inside.end.chosen) & self.universe
        own = self.universe & ~stays | self._sets(step.sets)
        known = self._gate(step) if step.admit is not None else 0
        for arc in arcs:
            if arc.when is not None:
                known |= self._mentioned(arc.when)
        every = self.may[step.name]
        inclusive = step.router is not None and step.router.mode == "inclusive"
        all_taken = inclusive and all(always(arc.when) for arc in arcs)
        failed = False  # behind an arc for every success only failures are left
        ended = True  # every guard so far asks only how the step ended
        for place, arc in enumerate(arcs):
            ended = ended and asks_how_it_ended(arc.when)
            target = self.number[arc.target or ""]
            sets = (every if failed or _on_failure(arc) else own) | known | self._sets(arc.sets)
            failed = failed or (arc.when is None and not inclusive)
            yield Edge(
                number,
                target,
                sets & self.universe,
                inside.some & ~sets & self.universe,
                (every | sets) & self.universe,
                choice=not (all_taken or (place == 0 and not inclusive and always(arc.when))),
                again=ended,
                gated=self._is_gated(target),
            )

    def _beside(self, number: int, *, always_taken: bool) -> int:
        """What may be set side by side with a step before it runs.

        A step to which this one leads waits for it, unless it joins nothing, or gates keep tokens waiting."""
        beside = self.ways.beside(number, always_taken=always_taken)
        found = 0
        for other in range(len(self.steps)) if beside else ():
            step = self.steps[other]
            if beside >> other & 1:
                waits = self.ways.behind[number] >> other & 1 and not self.ways.behind[other] >> number & 1
                if not waits or self.any_gate or (step.admit is not None and step.admit.join == "each"):
                    found |= self.may[step.name] | self._arc_sets(step)
        return found

    def _arc_sets(self, step: StepSyntax) -> int:
        return reduce(or_, (self._sets(arc.sets) for arc in (step.router.arcs if step.router else ())), 0)

    def _is_gated(self, number: int) -> bool:
        admit = self.steps[number].admit
        return admit is not None and bool(admit.rules)

    def _gate(self, step: StepSyntax) -> int:
        rules = step.admit.rules if step.admit is not None else []
        return reduce(or_, (self._mentioned(rule.when) | self._mentioned(rule.allow) for rule in rules), 0)

    def _mentioned(self, node: Node | None) -> int:
        """What a guard makes sure of: keys it asks about, and what the steps set that it asks about."""
        if not isinstance(node, Scalar) or not isinstance(node.value, str) or "{" not in node.value:
            return 0
        template = analyze_template(node.value)
        found = 0
        for read in template.reads:
            name = read.path[0]
            if name == "ctx" and len(read.path) > 1:
                found |= self.bits.get(read.path[1], 0)
            elif name == "steps" and len(read.path) > 1:
                found |= self.may.get(read.path[1], 0)
            else:
                found |= self.may.get(name, 0)
        for call in template.calls:
            if call.name in STATUS_HELPERS:
                for argument in call.args:
                    for name in argument if isinstance(argument, tuple) else (argument,):
                        found |= self.may.get(name, 0) if isinstance(name, str) else self.universe
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
            found |= self._sets(task.sets)
            for rule in task.policy.rules if task.policy is not None else ():
                found |= self._sets(rule.sets)
        for key in self.scene.called_keys(body):
            found |= self.bits.get(key, 0)
        return found

    # --- one step or block ---

    def inside(self, body: BodySyntax) -> _Inside:
        """What is known inside a step or block; looked at once."""
        known = self._inside.get(id(body))
        if known is None:
            known = self._inside[id(body)] = self._look_inside(body)
        return known

    def _look_inside(self, body: BodySyntax) -> _Inside:
        keys: dict[str, int] = {}
        iterators = self.scene.body(body).iterators
        for each in self.scene.sets_of(body):
            if each.scope in ("step", "iter") and each.keys[0] not in (*ITERATION_NAMES, *iterators):
                keys.setdefault(f"{each.scope}.{each.keys[0]}", 1 << (self.width + len(keys)))
        universe = self.universe | ((1 << len(keys)) - 1) << self.width
        inside = _Inside(keys, None, [], Unset(universe, universe, 0), 0, {})
        if self._may(body.tasks(), keys):
            inside.pipeline = Pipeline(body)
            inside.points = self._points(inside.pipeline, inside, universe)
            inside.end = inside.points[END]
            inside.some = inside.end.chosen & ~inside.end.free
            for task in body.tasks():
                self._order(task, inside)
        self._in_order(body.sets, 0, inside)
        router = body.router if isinstance(body, StepSyntax) else None
        for arc in router.arcs if router else ():
            self._in_order(arc.sets, 0, inside)
        return inside

    def _points(self, pipeline: Pipeline, inside: _Inside, universe: int) -> list[Unset]:
        edges: list[Edge] = []
        for number, point in enumerate(pipeline.points):
            own = self._may((point.task,), inside.keys, rules=False) if point.task is not None else 0
            mentioned = self._guards_of(pipeline, number, inside)
            round_trip = 0
            if point.construct is not None and point.construct.word == "while":
                tasks = [task for branch in point.construct.branches for task in _tasks_in(branch.items)]
                round_trip = self._may(tasks, inside.keys)
            found: list[tuple[int, int]] = []
            for place, way in enumerate(point.ways):
                sets = mentioned | (0 if way.skips else own) | self._bits(way.sets, inside.keys)
                if round_trip and place == len(point.ways) - 1:
                    sets |= round_trip  # who writes a `while` expects it to run
                found.append((way.target, sets))
            # Ways that lead to the same place and set the same are one way.
            choice = len({each for each in found if each[0] != number}) > 1
            for target, sets in found:
                edges.append(Edge(number, target, sets, may=sets, choice=choice and target != number))
        return flow(len(pipeline.points), pipeline.first, edges, universe)

    def _guards_of(self, pipeline: Pipeline, number: int, inside: _Inside) -> int:
        point = pipeline.points[number]
        guards: list[Node | None] = []
        if point.task is not None and point.task.policy is not None:
            guards = [rule.when for rule in point.task.policy.rules]
        elif point.construct is not None:
            guards = [branch.when for branch in point.construct.branches]
        found = 0
        for guard in guards:
            found |= self._mentioned(guard)
            if isinstance(guard, Scalar) and isinstance(guard.value, str):
                for read in analyze_template(guard.value).reads:
                    found |= inside.keys.get(".".join(read.path[:2]), 0)
        return found

    def _may(self, tasks: Iterable[TaskSyntax], keys: dict[str, int], *, rules: bool = True) -> int:
        found = 0
        for task in tasks:
            found |= self._bits(_task_sets(task) if rules else task.sets, keys)
            if task.kind == "workbook":
                found |= self._called(task)
        return found

    def _called(self, task: TaskSyntax) -> int:
        return reduce(or_, (self.bits.get(key, 0) for key in self.scene.keys_behind(task)), 0)

    def _bits(self, sets: Iterable[SetSyntax], keys: dict[str, int]) -> int:
        found = 0
        for each in sets:
            name = each.keys[0]
            found |= self.bits.get(name, 0) if each.scope == "ctx" else keys.get(f"{each.scope}.{name}", 0)
        return found

    def _order(self, task: TaskSyntax, inside: _Inside) -> None:
        """What is set before each assignment of a task, and before its rules are asked."""
        called = self._called(task) if task.kind == "workbook" else 0
        own = self._in_order(task.sets, called, inside)
        for rule in task.policy.rules if task.policy else ():
            inside.before[id(rule.when)] = own
            self._in_order(rule.sets, own, inside)

    def _in_order(self, sets: Iterable[SetSyntax], before: int, inside: _Inside) -> int:
        for each in sets:
            inside.before[id(each)] = before
            before |= self._bits((each,), inside.keys)
        return before

    # --- reads ---

    def tell(self) -> None:
        """Note every read of something that may be unset, once for each step and key."""
        told: set[tuple[int, Key]] = set()
        for site, read in self.reads:
            assert site.body is not None
            key = (read.path[0], read.path[1])
            inside = self.inside(site.body)
            bit = self.bits.get(key[1], 0) if key[0] == "ctx" else inside.keys.get(".".join(key), 0)
            if not bit or (id(site.body), key) in told:
                continue
            unset = self._at(site, site.body, inside)
            if not bit & (unset.never | unset.free | unset.chosen):
                continue
            if bit & unset.never or not is_conditional(site.node.text):
                told.add((id(site.body), key))
                self._tell(site, read, certain=bool(unset.never & bit), bit=bit)

    def _at(self, site: TemplateSite, body: BodySyntax, inside: _Inside) -> Unset:
        """What may be unset where a template stands."""
        arrived = inside.arrived
        if arrived is None:
            arrived = inside.arrived = self._arrived(body, inside)
        if site.spot is at.ADMIT:
            return arrived._replace(chosen=0)
        if isinstance(body, StepSyntax) and body.admit is not None:
            arrived = arrived.but(self._gate(body))
        if body.loop is not None:
            arrived = arrived._replace(chosen=0)  # the loop may have nothing to go over
        if site.task is not None:
            return self._at_task(site, site.task, inside, arrived)
        if site.spot is at.RULE:  # the guard of a choose, while or until
            number = inside.pipeline.at.get(id(site.node), -1) if inside.pipeline is not None else -1
            return arrived.through(inside.points[number]) if number >= 0 else Unset()
        if site.spot in _AT_THE_END:
            return self._at_end(site, body, inside, arrived.through(inside.end))
        return arrived if site.spot in _AT_THE_BEGINNING else Unset()

    def _arrived(self, body: BodySyntax, inside: _Inside) -> Unset:
        local = reduce(or_, inside.keys.values(), 0)
        if is_block(body):
            return Unset(local, local)  # what callers have set is not known
        number = self.number[body.name]
        came = self.net[number]
        if came.never | came.free | came.chosen:
            came = came.but(self._beside(number, always_taken=True))
            came = came._replace(never=came.never & ~self._beside(number, always_taken=False))
        return Unset(came.never | local, came.free | local, came.chosen)

    def _at_task(self, site: TemplateSite, task: TaskSyntax, inside: _Inside, arrived: Unset) -> Unset:
        if inside.pipeline is None:
            here = arrived
        else:
            here = arrived.through(inside.points[inside.pipeline.at[id(task)]])
        if any(rule.do == "skip" for rule in task.policy.rules) if task.policy is not None else False:
            here = Unset(here.never)
        if site.assigns is not None:
            return here.but(inside.before.get(id(site.assigns), 0))
        if site.spot is at.RULE:
            return here.but(inside.before.get(id(site.node), 0))
        return here

    def _at_end(self, site: TemplateSite, body: BodySyntax, inside: _Inside, ended: Unset) -> Unset:
        if site.spot in (at.STEP_SET, at.BLOCK_SET):
            return ended.but(inside.before.get(id(site.assigns), 0))
        if site.spot is at.ARC:
            ended = ended.but(self._bits(body.sets, inside.keys))
            if site.assigns is not None:
                return Unset(*ended.but(inside.before.get(id(site.assigns), 0))[:2])
            router = body.router if isinstance(body, StepSyntax) else None
            first = router is not None and bool(router.arcs) and router.arcs[0].when is site.node
            return ended if first else ended._replace(chosen=0)
        return ended

    def _tell(self, site: TemplateSite, read: Read, *, certain: bool, bit: int) -> None:
        name = ".".join(read.path[:2])
        if certain:
            message = f"`{name}` is read before it is set"
            hint = f"{self._who_sets(read, site)}; set it earlier, or write `{name} | default(...)`"
        else:
            message = f"`{name}` may not be set here"
            way = self._way_to(site.body, bit) if read.path[0] == "ctx" else ""
            message += f": nothing sets it on the path {way}" if way else ": not every path to this place sets it"
            hint = f"set it on every path, or write `{name} | default(...)`"
        self.scene.at("unset-on-path", site, read, message, hint)

    def _who_sets(self, read: Read, site: TemplateSite) -> str:
        scope, key = read.path[:2]
        bodies = self.scene.document.bodies() if scope == "ctx" else (site.body,)
        for body in bodies:
            for each in self.scene.sets_of(body) if body is not None else ():
                if each.scope == scope and each.keys[0] == key:
                    return f"line {each.key.line} sets it later"
        return "it is set later"

    def _way_to(self, body: BodySyntax | None, bit: int) -> str:
        """The shortest way from the entry on which nothing sets the key, for the message."""
        if body is None or body.name not in self.number:
            return ""
        came: dict[str, str] = {self.scene.entry: ""}
        queue = [self.scene.entry]
        for name in queue:
            if name == body.name:
                way = [name]
                while came[way[-1]]:
                    way.append(came[way[-1]])
                way.reverse()
                return " → ".join(way if len(way) <= 6 else [*way[:3], "…", *way[-2:]]) if len(way) > 1 else ""
            step = self.steps[self.number[name]]
            stays = self.inside(step).end
            if (self._sets(step.sets) | (self.universe & ~(stays.free | stays.chosen))) & bit:
                continue
            for arc in self.ways.open[self.number[name]]:
                if arc.target is not None and arc.target not in came and not self._sets(arc.sets) & bit:
                    came[arc.target] = name
                    queue.append(arc.target)
        return ""


_AT_THE_BEGINNING = (at.STEP_INPUT, at.LOOP_INPUT, at.LOOP_IN, at.INNER_LOOP_IN, at.LIMIT, at.BLOCK_INPUT)
_AT_THE_END = (at.LOOP_UNTIL, at.STEP_SET, at.BLOCK_SET, at.ARC)


def _on_failure(arc: ArcSyntax) -> bool:
    """Whether an arc is for failures: then what the step would have set may be there or not."""
    if arc.when is None:
        return False
    asked = events(arc.when)
    return (asked is not None and asked <= _FAILURES) or "error" in expression(arc.when)


def _task_sets(task: TaskSyntax) -> list[SetSyntax]:
    rules = task.policy.rules if task.policy is not None else []
    return [*task.sets, *(each for rule in rules for each in rule.sets)]


def _tasks_in(items: Iterable[object]) -> Iterator[TaskSyntax]:
    for item in items:
        if isinstance(item, TaskSyntax):
            yield item
        else:
            for branch in getattr(item, "branches", ()):
                yield from _tasks_in(branch.items)
