"""Runs a pipeline without a worker: tools are functions from a RunTask to an Outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from noetl.core.model.events import Event, TaskDone, TaskStarted
from noetl.core.model.outcome import Outcome, ok
from noetl.core.model.playbook import Assignment, Block, Directive, Loop, Playbook, Rule, Step, Task
from noetl.core.model.position import Item, Position
from noetl.core.model.tool import ToolSpec
from noetl.core.model.work import RunContext, RunOrder
from noetl.core.pipeline.actions import Finished, KnownOutcome, RunTask, Suspend, Wait
from noetl.core.pipeline.advance import apply_outcome, next_action
from noetl.core.pipeline.frame import Frame, open_frame
from noetl.core.pipeline.nondeterminism_log import NondeterminismLog
from noetl.core.pipeline.program import Programs
from noetl.core.pipeline.scopes import SharedScope

Tool = Callable[[RunTask], Outcome]

SPECS = {
    "noop": ToolSpec(kind="noop", pure=True, open_fields=True),
    "http": ToolSpec(kind="http", helpers={"http": {"status": None}}),
    "playbook": ToolSpec(kind="playbook", suspends=True),
}


class FixedNondeterminism:
    def __init__(self) -> None:
        self.count = 0

    def now(self) -> str:
        self.count += 1
        return f"2026-01-01T00:00:{self.count:02d}Z"

    def uuid(self) -> str:
        self.count += 1
        return f"00000000-0000-4000-8000-{self.count:012d}"

    def random(self) -> float:
        self.count += 1
        return self.count / 100


def sets(**targets: Any) -> tuple[Assignment, ...]:
    """`set`: ctx_total=... means ctx.total; dots inside keys by double underscores."""
    assignments = []
    for target, value in targets.items():
        scope, _, keys = target.partition("_")
        assignments.append(Assignment(scope=scope, keys=tuple(keys.split("__")), value=value, path="set"))
    return tuple(assignments)


def rule(when: Any, do: str, **then: Any) -> Rule:
    return Rule(when=when, then=Directive(do=do, **then), path="rule")


def task(name: str, kind: str = "noop", rules: Iterable[Rule] | None = None, **fields: Any) -> Task:
    return Task(name=name, kind=kind, rules=None if rules is None else tuple(rules), path=f"tool/{name}", **fields)


def playbook(*tasks: Task, blocks: Iterable[Block] = (), others: Iterable[Step] = (), **step: Any) -> Playbook:
    return Playbook(
        name="p",
        path="p",
        entry="s",
        steps=(Step(name="s", tasks=tasks, path="workflow/0", **step), *others),
        blocks={block.name: block for block in blocks},
        file="p.yaml",
    )


class PipelineRun:
    """A run, executed to its end or to its suspension."""

    notes: ClassVar[list[Any] | None] = None  # receives everything that is decided

    def __init__(self, book: Playbook, **order: Any) -> None:
        self.book = book
        context = {
            name: order.pop(name) for name in ("workload", "args", "input", "results", "task_results") if name in order
        }
        self.order = RunOrder(
            run_id="1:s:1",
            epoch=1,
            context=RunContext(id="1", playbook="d", execution_id="1", step="s", step_run_id="1:s:1", **context),
            **order,
        )
        self.events: list[Event] = []
        self.waits: list[float] = []
        self.runs: list[RunTask] = []
        self.finished: Finished | None = None
        self.suspended = False
        self.frame: Frame = open_frame(
            self.order,
            Programs(book, SPECS),
            SharedScope(self.order.context, book),
            NondeterminismLog(FixedNondeterminism()),
        )

    def run(self, tools: dict[str, Any] | Tool | None = None, *, stop_after: int | None = None) -> PipelineRun:
        """`tools`: by task label: an Outcome, a list of them for the executions in order, or a function."""
        try:
            return self._run(tools, stop_after)
        finally:
            if PipelineRun.notes is not None:
                fields = ("label", "input", "spec", "visit", "attempt", "task_run_id", "start_recorded", "state")
                runs = [{name: getattr(each, name) for name in fields} for each in self.runs]
                events = [{event.NAME: event} for event in self.events]
                PipelineRun.notes.append([runs, events, self.waits, self.finished])

    def _run(self, tools: dict[str, Any] | Tool | None, stop_after: int | None) -> PipelineRun:
        scripted = {} if tools is None or callable(tools) else tools
        left = {name: list(value) if isinstance(value, list) else value for name, value in scripted.items()}
        while True:
            action = next_action(self.frame)
            self.events += action.events
            if isinstance(action, Wait):
                self.waits.append(action.seconds)
            elif isinstance(action, RunTask):
                self.runs.append(action)
                answer = tools if callable(tools) else left.get(action.label, ok(action.input or None))
                if isinstance(answer, list):
                    answer = answer.pop(0)
                outcome = answer(action) if callable(answer) else answer
                self.events += apply_outcome(self.frame, outcome)
                if stop_after is not None and len(self.runs) >= stop_after:
                    return self
            elif isinstance(action, KnownOutcome):
                self.events += apply_outcome(self.frame, action.outcome)
            elif isinstance(action, Suspend):
                self.suspended = True
                return self
            else:
                self.finished = action
                self.events.append(action.event(action.recorded, action.results))
                return self

    @property
    def ran(self) -> list[str]:
        return [action.label for action in self.runs]

    @property
    def done(self) -> list[TaskDone]:
        return [event for event in self.events if isinstance(event, TaskDone)]

    @property
    def started(self) -> list[TaskStarted]:
        return [event for event in self.events if isinstance(event, TaskStarted)]

    @property
    def output(self) -> Outcome:
        assert self.finished is not None
        return self.finished.outcome

    @property
    def status(self) -> str:
        assert self.finished is not None
        return self.finished.status

    @property
    def position(self) -> Position | None:
        return self.done[-1].position


def drive(
    *tasks: Task, tools: dict[str, Any] | None = None, blocks: Iterable[Block] = (), **others: Any
) -> PipelineRun:
    """Run a step of these tasks to its end."""
    step = {
        name: others.pop(name)
        for name in ("assignments", "loop", "max_task_runs", "failure", "exports")
        if name in others
    }
    step_input = others.pop("step_input", {})
    book = playbook(*tasks, blocks=blocks, input=step_input, **step)
    return PipelineRun(book, **others).run(tools)


def one_item(value: Any, name: str = "item", index: int = 0, count: int = 1) -> dict[str, Any]:
    return {"items": (Item(name=name, index=index, count=count, value=value),), "path": (index,)}


LOOP = Loop(collection="{{ workload.items }}", iterator="item")
