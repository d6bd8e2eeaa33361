"""The ways a pipeline can take: from task to task, by its rules, through `choose`, `while` and `until`.

A `FlowNode` is a place where the pipeline stands: before a task, or before the guard of a construct. A `Edge` leads to
the next one, and knows what is set on it. Ways that errors take by default are not among them: they end the
pipeline, and nothing behind them runs.
"""

from __future__ import annotations

from msgspec import Struct, field

from noetl.core.language.flow.guard_conditions import always, never
from noetl.core.language.source.nodes import Node
from noetl.core.language.syntax.tree import BodySyntax, ConstructSyntax, ItemSyntax, RuleSyntax, SetSyntax, TaskSyntax

END = 0  # the point behind the last task


class Edge(Struct, eq=False):
    """One way on: `rule` chose it (None: nothing else was possible, or no rule matched)."""

    target: int
    rule: RuleSyntax | None = None
    sets: list[SetSyntax] = field(default_factory=list)  # what the rule sets; the task's own `set` comes before
    skips: bool = False  # the task does not run, so its own `set` is not applied


class FlowNode(Struct, eq=False):
    """Where a pipeline can stand."""

    task: TaskSyntax | None = None
    construct: ConstructSyntax | None = None
    ways: list[Edge] = field(default_factory=list)
    fails: list[RuleSyntax] = field(default_factory=list)  # rules that fail, at once or after their attempts


class Pipeline:
    """The points of a pipeline and the ways between them; point 0 is its end."""

    def __init__(self, body: BodySyntax) -> None:
        self.points: list[FlowNode] = [FlowNode()]
        self._labels: dict[str, int] = {}
        self._next: list[tuple[int, int]] = []
        self.at: dict[int, int] = {}  # id of a task, or of a construct's guard -> its point
        self.first = self._lay(body.items, END)
        for number, following in self._next:
            self._task_ways(self.points[number], number, following)

    def _point(self, **what: TaskSyntax | ConstructSyntax) -> int:
        self.points.append(FlowNode(**what))  # type: ignore[arg-type]
        return len(self.points) - 1

    def _lay(self, items: list[ItemSyntax], following: int) -> int:
        """Lay items down before the point that follows them; the answer is where they begin."""
        for item in reversed(items):
            if isinstance(item, TaskSyntax):
                number = self._point(task=item)
                self.at[id(item)] = number
                self._next.append((number, following))
                self._labels[item.name] = following = number
            else:
                following = self._labels[item.name] = self._lay_construct(item, following)
        return following

    def _lay_construct(self, item: ConstructSyntax, following: int) -> int:
        number = self._point(construct=item)
        point = self.points[number]
        for branch in item.branches:
            self.at[id(branch.when)] = number
        if item.word == "choose":
            decided = False  # a branch that is always taken: those behind it have their points, and no way to them
            for branch in item.branches:
                begin = self._lay(branch.items, following)
                if not decided and not never(branch.when):
                    point.ways.append(Edge(begin))
                decided = decided or always(branch.when)
            if not decided:
                point.ways.append(Edge(following))
            return number
        when: Node | None = item.branches[0].when if item.branches else None
        inside = self._lay(item.branches[0].items, number) if item.branches else following
        stays, leaves = (always, never) if item.word == "while" else (never, always)
        if not leaves(when):
            point.ways.append(Edge(inside))
        if not stays(when):
            point.ways.append(Edge(following))
        return number if item.word == "while" else inside

    def _task_ways(self, point: FlowNode, number: int, following: int) -> None:
        task = point.task
        rules = task.policy.rules if task is not None and task.policy is not None else []
        for rule in rules:
            if rule.do == "skip" and not never(rule.when):
                point.ways.append(Edge(following, rule, skips=True))
        for rule in rules:
            if rule.do == "skip" or never(rule.when):
                continue
            if rule.do == "retry":
                point.ways.append(Edge(number, rule, rule.sets))
                point.fails.append(rule)
            elif rule.do == "fail":
                point.fails.append(rule)
            else:
                to = rule.fields.get("to")
                target = {"break": END, "jump": self._labels.get(getattr(to, "text", ""), END)}.get(
                    rule.do or "", following
                )
                point.ways.append(Edge(target, rule, rule.sets))
            if always(rule.when):
                return
        point.ways.append(Edge(following))
