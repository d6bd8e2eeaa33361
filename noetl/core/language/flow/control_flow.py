"""The control-flow graph of a pipeline: from task to task, by its rules, through `choose`, `while` and `until`.

A `FlowNode` is a position of the pipeline: before a task, or before the guard of a construct. An `Edge` leads to the
next node and has the assignments made on it. The default path of an error is not an edge: it ends the pipeline.
"""

from __future__ import annotations

from msgspec import Struct, field

from noetl.core.language.flow.guard_conditions import always_false, always_true
from noetl.core.language.source.nodes import Node
from noetl.core.language.syntax.tree import BodySyntax, ConstructSyntax, ItemSyntax, RuleSyntax, SetSyntax, TaskSyntax

END = 0  # the node after the last task


class Edge(Struct, eq=False):
    """One edge; `rule` selected it (None: it is unconditional, or no rule matched)."""

    target: int
    rule: RuleSyntax | None = None
    sets: list[SetSyntax] = field(default_factory=list)  # of the rule; the task's own `set` comes before
    skips: bool = False  # the task does not run, so its own `set` is not applied


class FlowNode(Struct, eq=False):
    """A position of the pipeline."""

    task: TaskSyntax | None = None
    construct: ConstructSyntax | None = None
    edges: list[Edge] = field(default_factory=list)
    fails: list[RuleSyntax] = field(default_factory=list)  # rules that fail, at once or after their attempts


class Pipeline:
    """The control-flow graph of one body; node 0 is its end."""

    def __init__(self, body: BodySyntax) -> None:
        self.nodes: list[FlowNode] = [FlowNode()]
        self._labels: dict[str, int] = {}
        self._next: list[tuple[int, int]] = []
        self.node_of: dict[int, int] = {}  # id of a task, or of a construct's guard -> its node
        self.first = self._add_items(body.items, END)
        for number, following in self._next:
            self._add_task_edges(self.nodes[number], number, following)

    def _add_node(self, **what: TaskSyntax | ConstructSyntax) -> int:
        self.nodes.append(FlowNode(**what))  # type: ignore[arg-type]
        return len(self.nodes) - 1

    def _add_items(self, items: list[ItemSyntax], following: int) -> int:
        """Add nodes for items before the node that follows them; returns the first node."""
        for item in reversed(items):
            if isinstance(item, TaskSyntax):
                for task in reversed([*item.with_hooks()]):
                    number = self._add_node(task=task)
                    self.node_of[id(task)] = number
                    self._next.append((number, following))
                    following = number
                self._labels[item.name] = following  # a jump enters before the tasks around it
            else:
                following = self._labels[item.name] = self._add_construct(item, following)
        return following

    def _add_construct(self, item: ConstructSyntax, following: int) -> int:
        number = self._add_node(construct=item)
        node = self.nodes[number]
        for branch in item.branches:
            self.node_of[id(branch.when)] = number
        if item.keyword == "choose":
            always_decided = False  # after a branch that is always taken, the others have nodes but no edges
            for branch in item.branches:
                first = self._add_items(branch.items, following)
                if not always_decided and not always_false(branch.when):
                    node.edges.append(Edge(first))
                always_decided = always_decided or always_true(branch.when)
            if not always_decided:
                node.edges.append(Edge(following))
            return number
        when: Node | None = item.branches[0].when if item.branches else None
        inside = self._add_items(item.branches[0].items, number) if item.branches else following
        stays, leaves = (always_true, always_false) if item.keyword == "while" else (always_false, always_true)
        if not leaves(when):
            node.edges.append(Edge(inside))
        if not stays(when):
            node.edges.append(Edge(following))
        return number if item.keyword == "while" else inside

    def _add_task_edges(self, node: FlowNode, number: int, following: int) -> None:
        task = node.task
        rules = task.rules if task is not None else []
        for rule in rules:
            if rule.do == "skip" and not always_false(rule.when):
                node.edges.append(Edge(following, rule, skips=True))
        for rule in rules:
            if rule.do == "skip" or always_false(rule.when):
                continue
            if rule.do == "retry":
                node.edges.append(Edge(number, rule, rule.sets))
                node.fails.append(rule)
            elif rule.do == "fail":
                node.fails.append(rule)
            else:
                to = rule.fields.get("to")
                target = {"break": END, "jump": self._labels.get(getattr(to, "text", ""), END)}.get(
                    rule.do or "", following
                )
                node.edges.append(Edge(target, rule, rule.sets))
            if always_true(rule.when) and not (task is not None and task.hooks):
                return
        node.edges.append(Edge(following))
