"""The execution tree: every step run, iteration, task run and child execution as a node.

The tree is derived from the log alone. Nodes have the derived ids of `model/ids.py`, the path of the
playbook node that they instantiate (their template), and their parent. A loop of a million
iterations is not shown as a million nodes: beyond `max_iterations` of a loop, successful iterations
are only counted (`more`), while failed and open ones are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from noetl.core.model.events import (
    ChildFinished,
    ChildRequested,
    ChildStarted,
    Event,
    ExecutionRequested,
    IterationDone,
    IterationFailed,
    IterationStarted,
    LoopDone,
    LoopStarted,
    Recorded,
    StepDone,
    StepFailed,
    StepScheduled,
    StepStarted,
    TaskDone,
    TaskStarted,
    WorkflowFinished,
    WorkflowSynthesized,
)
from noetl.core.model.ids import iteration_id, task_run_id
from noetl.core.model.outcome import Outcome
from noetl.core.model.playbook import Playbook, Step

Kind = Literal["execution", "step", "iteration", "task", "child"]
Status = Literal["waiting", "running", "success", "error", "skipped", "cancelled"]
MAX_ITERATIONS = 200


class Node:
    """One node; `template` is the path of the playbook node that it instantiates, `where` its source location."""

    __slots__ = (
        "count", "ended_at", "error", "id", "kind", "more", "name", "nodes", "parent", "started_at", "status",
        "template", "where", "worker",
    )  # fmt: skip

    def __init__(self, id: str, kind: Kind, name: str, parent: str | None, template: str, where: str) -> None:
        self.id = id
        self.kind: Kind = kind
        self.name = name
        self.parent = parent
        self.template = template
        self.where = where
        self.status: Status = "waiting"
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.worker = ""
        self.error: str | None = None
        self.count: int | None = None  # iterations of a loop
        self.more = 0  # successful iterations that are not shown
        self.nodes: list[Node] = []

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        yield self
        for node in self.nodes:
            yield from node.walk()

    def as_dict(self) -> dict[str, Any]:
        """The tree as plain data."""
        plain: dict[str, Any] = {
            name: value
            for name in self.__slots__
            if name != "nodes" and (value := getattr(self, name)) not in (None, "", 0)
        }
        if self.nodes:
            plain["nodes"] = [node.as_dict() for node in self.nodes]
        return plain


def tree(playbook: Playbook, recorded: Iterable[Recorded], *, max_iterations: int = MAX_ITERATIONS) -> Node:
    """The tree of an execution after these events."""
    builder = _TreeBuilder(playbook, max_iterations)
    for each in recorded:
        builder.add(each.execution_id, each.body, each.at)
    return builder.root


class _TreeBuilder:
    """Builds the tree event by event."""

    def __init__(self, playbook: Playbook, max_iterations: int) -> None:
        self.playbook = playbook
        self.max_iterations = max_iterations
        self.steps: dict[str, Step] = dict(playbook.steps_by_name)
        self.root = Node("", "execution", playbook.path, None, "", playbook.file)
        self.nodes: dict[str, Node] = {}

    def add(self, execution_id: str, event: Event, at: float) -> None:
        """Apply one event to the tree."""
        self.root.id = execution_id
        match event:
            case ExecutionRequested():
                self.root.started_at = at
                self.root.status = "running"
            case WorkflowFinished():
                self.root.ended_at = at
                self.root.status = {"success": "success", "failed": "error", "cancelled": "cancelled"}[event.outcome]  # type: ignore[assignment]
                self.root.error = event.error.message if event.error else None
            case WorkflowSynthesized():
                self.steps.update({step.name: step for step in event.steps})
            case StepScheduled():
                self._node(event.step_run_id, "step", event.step, self.root, self._template(event.step))
            case StepStarted():
                self._start(event.step_run_id, at, event.worker)
            case StepDone() | StepFailed():
                self._end(event.step_run_id, at, event.output)
            case LoopStarted():
                node = self._iteration(event.step, event.step_run_id, event.path)
                node.count = event.count
                self._start(node.id, at, "")
            case LoopDone():
                pass
            case IterationStarted():
                self._start(self._iteration(event.step, event.step_run_id, event.path).id, at, event.worker)
            case IterationDone() | IterationFailed():
                self._end_iteration(event, at)
            case TaskStarted() | TaskDone():
                self._task(event, at)
            case ChildRequested() | ChildStarted() | ChildFinished():
                self._child(event, at)
            case _:
                pass

    def _node(self, id: str, kind: Kind, name: str, parent: Node, template: str) -> Node:
        node = Node(id, kind, name, parent.id, template, self.playbook.where(template))
        parent.nodes.append(node)
        self.nodes[id] = node
        return node

    def _template(self, step: str, task: str | None = None) -> str:
        owner = self.steps.get(step)
        if owner is None:
            return ""
        if task is None:
            return owner.path
        label = task.partition("/")[0]
        return next((each.path for each in owner.tasks if each.name == label), owner.path)

    def _start(self, id: str, at: float, worker: str) -> None:
        node = self.nodes[id]
        node.status = "running"
        node.started_at = at if node.started_at is None else node.started_at
        node.worker = worker or node.worker

    def _end(self, id: str, at: float, output: Outcome) -> Node:
        node = self.nodes[id]
        node.ended_at = at
        node.status = "success" if output.status == "ok" else "error"
        if output.error is not None:
            node.error = output.error.message
            if output.error.kind == "cancelled":
                node.status = "cancelled"
        return node

    def _iteration(self, step: str, step_run: str, path: tuple[int, ...]) -> Node:
        """The node of an iteration; the empty path is the step run itself."""
        id = iteration_id(step_run, path)
        known = self.nodes.get(id)
        if known is not None:
            return known
        parent = self._iteration(step, step_run, path[:-1])
        return self._node(id, "iteration", str(path[-1]), parent, self._template(step))

    def _end_iteration(self, event: IterationDone | IterationFailed, at: float) -> None:
        node = self._end(self._iteration(event.step, event.step_run_id, event.path).id, at, event.output)
        if type(event) is IterationDone and event.skipped:
            node.status = "skipped"
        parent = self.nodes[iteration_id(event.step_run_id, event.path[:-1])]
        if node.status == "success" and len(parent.nodes) > self.max_iterations:
            parent.nodes.remove(node)
            parent.more += 1
            for below in node.walk():
                del self.nodes[below.id]

    def _run_node(self, event: Any) -> Node:
        return self._iteration(event.step, event.step_run_id, event.path)

    def _task(self, event: TaskStarted | TaskDone, at: float) -> None:
        run = self._run_node(event)
        id = task_run_id(run.id, event.task, event.visit, event.attempt)
        node = self.nodes.get(id)
        if node is None:
            node = self._node(id, "task", event.task, run, self._template(event.step, event.task))
            node.status = "running"
            node.started_at = at if type(event) is TaskStarted else None
        if isinstance(event, TaskDone):
            self._end(id, at, event.outcome)
            if event.skipped:
                node.status = "skipped"
            duration = event.outcome.meta.get("duration_ms")
            if node.started_at is None and isinstance(duration, int | float):
                node.started_at = at - duration / 1000

    def _child(self, event: ChildRequested | ChildStarted | ChildFinished, at: float) -> None:
        run = self._run_node(event)
        key = task_run_id(run.id, event.task, event.visit, event.attempt)
        task = self.nodes.get(key)
        if task is None:
            task = self._node(key, "task", event.task, run, self._template(event.step, event.task))
            task.status = "running"
            task.started_at = at
        child_key = f"{key}#child"
        child = self.nodes.get(child_key)
        if child is None:
            name = event.playbook if isinstance(event, ChildRequested) else event.task
            child = Node(child_key, "child", name, key, task.template, task.where)
            task.nodes.append(child)
            self.nodes[child_key] = child
        if isinstance(event, ChildStarted):
            child.id, child.status, child.started_at = event.child, "running", at
        elif isinstance(event, ChildFinished):
            child.id = event.child or child.id
            child.ended_at = at
            child.status = "success" if event.outcome.status == "ok" else "error"
            child.error = event.outcome.error.message if event.outcome.error else None
