"""What must be true after every story, whatever went wrong in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from noetl.core.language.compile import compile_playbook
from noetl.core.model.events import (
    ChildRequested,
    ExecutionRequested,
    IterationDone,
    IterationFailed,
    IterationStarted,
    PlaybookProcessed,
    Recorded,
    StepDone,
    StepFailed,
    StepStarted,
    TaskDone,
    WorkerLost,
    WorkflowFinished,
)
from noetl.core.model.ids import task_run_id
from tests.simulation.log_oracles import judge_log, judge_projection, run_of
from tests.simulation.playbooks import TEXTS

if TYPE_CHECKING:
    from tests.simulation.world import World


async def judge(world: World, asked: Mapping[str, str], expected: Mapping[str, Any]) -> list[str]:
    """Every promise that was broken, in words."""
    broken = list(dict.fromkeys(world.complaints))
    logs = {summary.execution_id: await world.store.read(summary.execution_id) for summary in await _all(world)}
    for execution_id, path in asked.items():
        if execution_id not in logs:
            broken.append(f"{path}: execution {execution_id} was acknowledged and is not there")
    roots = [log for log in logs.values() if isinstance(log[0].body, ExecutionRequested) and not log[0].body.parent]
    if len(roots) > len(asked):
        broken.append(f"{len(asked)} executions were asked for and {len(roots)} were started")
    for execution_id, log in logs.items():
        request = log[0].body
        name = request.path if isinstance(request, ExecutionRequested) else execution_id
        broken += [f"{name}: {each}" for each in [*_log(world, log), *await _projection(world, execution_id, log)]]
        if execution_id in asked and isinstance(log[-1].body, PlaybookProcessed):
            result = outcome_of(log)
            if result != expected[name] and not _was_poison(log, logs):
                broken.append(f"{name}: ended as {result}, without faults it ends as {expected[name]}")
    children = Counter(
        log[0].body.parent.task_run_id
        for log in logs.values()
        if isinstance(log[0].body, ExecutionRequested) and log[0].body.parent
    )
    broken += [f"{count} children of {task}" for task, count in children.items() if count > 1]
    return [*broken, *_limits(world)]


def _limits(world: World) -> Iterator[str]:
    """Nobody ever held more than the limits allow: counted from the events alone, append by append."""
    most = world.most
    paths: dict[str, str] = {}
    begun: dict[str, set[str]] = {}  # path -> executions of it that have begun and not ended
    leased: set[str] = set()
    for append in world.store.order if most else ():
        execution_id = append.execution_id
        for each in append.events:
            body: Any = each.body
            if isinstance(body, ExecutionRequested):
                paths[execution_id] = body.path
            elif isinstance(body, StepStarted | IterationStarted) and not getattr(body, "by_server", False):
                leased.add(run_of(body))
                begun.setdefault(paths[execution_id], set()).add(execution_id)
            elif isinstance(body, WorkerLost | IterationDone | IterationFailed | ChildRequested):
                leased.discard(run_of(body))
            elif isinstance(body, StepDone | StepFailed):  # with all its iterations
                step_run = body.step_run_id
                leased -= {run for run in leased if run == step_run or run.startswith(f"{step_run}/")}
            elif isinstance(body, WorkflowFinished):
                begun.get(paths[execution_id], set()).discard(execution_id)
        if len(leased) > most.get("pool default", len(leased)):
            yield f"{len(leased)} runs are held at once, at most {most['pool default']} may be"
        for path, executions in begun.items():
            if len(executions) > most.get(f"playbook {path}", len(executions)):
                yield f"{len(executions)} executions of {path} go on at once, at most {most[f'playbook {path}']} may"


async def _all(world: World) -> list[Any]:
    from noetl.storage.ports.events import ExecutionFilter

    return await world.store.executions(ExecutionFilter(limit=10_000))


def _log(world: World, log: list[Recorded]) -> Iterator[str]:
    if len(log) < world.store.acknowledged.get(log[0].execution_id, 0):
        yield "acknowledged events are missing"
    yield from judge_log(log)
    yield from _effects(world, log)


def _was_poison(log: list[Recorded], logs: Mapping[str, list[Recorded]]) -> bool:
    """Three workers were lost on one run (of it or of a child), which may end it with `worker.lost`."""
    every = [each.body for one in logs.values() for each in one]
    lost = Counter(run_of(body) for body in every if isinstance(body, WorkerLost) and not body.returned)
    finished = next(each.body for each in log if isinstance(each.body, WorkflowFinished))
    return finished.error is not None and finished.error.kind == "worker.lost" and max(lost.values(), default=0) >= 3


# Outcomes that a task can have without its tool having come to an end.
_WITHOUT_TOOL = frozenset({"worker.lost", "template", "timeout", "cancelled"})


def _effects(world: World, log: list[Recorded]) -> Iterator[str]:
    """Every finished task of a kind that touches the world really ran; no attempt was invented."""
    for each in log:
        body = each.body
        if isinstance(body, TaskDone) and body.kind == "effect" and not body.skipped:
            name = task_run_id(run_of(body), body.task, body.visit, body.attempt)
            if body.outcome.error is not None and body.outcome.error.kind in _WITHOUT_TOOL:
                continue
            if not world.ledger.done[name]:
                yield f"{name} is done in the log, and its tool never was"


async def _projection(world: World, execution_id: str, log: list[Recorded]) -> list[str]:
    request = log[0].body
    assert isinstance(request, ExecutionRequested)
    return judge_projection(await world.store.summary(execution_id), log, compiled(request.path))


def outcome_of(log: list[Recorded]) -> Any:
    """How an execution ended: its status and its data."""
    finished = next(each.body for each in log if isinstance(each.body, WorkflowFinished))
    return finished.outcome, finished.output.data if finished.output else None


@lru_cache(maxsize=64)
def compiled(path: str) -> Any:
    """The playbook of a path, compiled."""
    from tests.simulation.world import SPECS

    found = compile_playbook(TEXTS[path], file="", specs=SPECS)
    assert found.playbook is not None, found.diagnostics
    return found.playbook


@lru_cache(maxsize=1)
def expected_outcomes() -> dict[str, Any]:
    """How each playbook ends when nothing goes wrong."""
    return dict(EXPECTED)


EXPECTED: dict[str, Any] = {
    "chain": ("success", [1, 2]),
    "retries": ("success", "done!"),
    "pages": ("success", [0, 1, 2, 3]),
    "fan": ("success", {"sum": 21, "all": [0, 2, 4, 6, 8, 10, 12]}),
    "line": ("success", [3, 1, 2]),
    "join": ("success", 3),
    "gate": ("success", "key"),
    "failure": ("success", "mended"),
    "called": ("success", 0),
    "calls": ("success", [10, 20]),
    "nested": ("success", [[1, 2], [3]]),
    "late": ("success", "in time"),
    "long": ("success", [1, 2, 3, 4]),
}
