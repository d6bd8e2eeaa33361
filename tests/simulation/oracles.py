"""Invariants of every simulation, independent of its faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from noetl.core.language.compile import compile_playbook
from noetl.core.model.events import (
    ChildRequested,
    CompensationDone,
    ExecutionCancelled,
    ExecutionRequested,
    IterationDone,
    IterationFailed,
    IterationStarted,
    PlaybookProcessed,
    Recorded,
    StateCommitted,
    StepDone,
    StepFailed,
    StepStarted,
    TaskDone,
    WaitStarted,
    WorkerLost,
    WorkflowFinished,
)
from noetl.core.model.ids import task_run_id
from noetl.storage.ports.events import ExecutionFilter
from tests.simulation.log_oracles import (
    check_compensation,
    check_log,
    check_projection,
    check_snapshot,
    run_of,
)
from tests.simulation.playbooks import COUNTER
from tests.simulation.promises import check_once, check_promises
from tests.simulation.schedules import check_schedule
from tests.simulation.users import Acknowledged

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


class Submitted(Struct):
    """An execution that the user started: its playbook, the commands sent to it, and what was acknowledged."""

    path: str
    outcome: Any = None  # of a generated playbook
    script: list[str] = field(default_factory=list)
    told: Acknowledged = field(default_factory=Acknowledged)

    def allows(self, result: tuple[str, Any]) -> bool:
        """Whether the execution may end so."""
        if result[0] == "cancelled" or (self.told.cancelled and result[0] == "failed"):
            return bool({"cancel", "undo"} & {*self.script})
        if self.path == "signalled":
            return result[0] == "success" and (not self.told.signals or result[1] in self.told.signals)
        expected = self.outcome or EXPECTED[self.path]
        return result in expected if isinstance(expected, list) else result == expected


async def check(cluster: Cluster, submitted: Mapping[str, Submitted]) -> list[str]:
    """A message for every violated invariant."""
    violations = list(dict.fromkeys(cluster.violations))
    logs = await all_logs(cluster)
    for execution_id, known in submitted.items():
        if execution_id not in logs:
            violations.append(f"{known.path}: execution {execution_id} was acknowledged and does not exist")
    requests = [log[0].body for log in logs.values()]
    roots = [each for each in requests if isinstance(each, ExecutionRequested) and not each.parent and each.due is None]
    if len(roots) > len(submitted):
        violations.append(f"{len(submitted)} executions were submitted and {len(roots)} were started")
    for execution_id, log in logs.items():
        request = log[0].body
        name = request.path if isinstance(request, ExecutionRequested) else execution_id
        violations += [
            f"{name}: {each}" for each in [*_log(cluster, log), *await _projection(cluster, execution_id, log)]
        ]
        violations += [f"{name}: {each}" for each in _compensations(cluster, log, logs)]
        if execution_id in submitted:
            known = submitted[execution_id]
            violations += [f"{name}: {each}" for each in check_promises(log, known.told)]
            if isinstance(log[-1].body, PlaybookProcessed):
                result = outcome_of(log)
                if not known.allows(result) and not _was_poison(log, logs):
                    wanted = known.outcome or EXPECTED.get(known.path)
                    violations.append(f"{name}: ended with {result}, without faults it ends with {wanted}")
    children = Counter(
        log[0].body.parent.task_run_id
        for log in logs.values()
        if isinstance(log[0].body, ExecutionRequested) and log[0].body.parent
    )
    violations += [f"{count} children of {task}" for task, count in children.items() if count > 1]
    return [*violations, *_limits(cluster), *_states(cluster, logs), *check_schedule(cluster, logs)]


def _states(cluster: Cluster, logs: Mapping[str, list[Recorded]]) -> Iterator[str]:
    """No commit to `state` is lost: each is one more than the one before it, and an execution fails only by a conflict."""
    count = 0
    for body in (each.body for append in cluster.store.order for each in append.events):
        if isinstance(body, StateCommitted):
            count += 1
            if body.values["n"] != count:
                yield f"{COUNTER}: {body.values['n']} was committed after {count - 1}"
    for log in logs.values():
        request, end = log[0].body, log[-1].body
        if isinstance(request, ExecutionRequested) and request.path == COUNTER and isinstance(end, PlaybookProcessed):
            committed = sum(isinstance(each.body, StateCommitted) for each in log)
            if committed != (end.outcome == "success"):
                yield f"{COUNTER}: an execution ended with {end.outcome} and has {committed} commits"
            kind = next(each.body.error for each in log if isinstance(each.body, WorkflowFinished))
            if end.outcome == "failed" and (kind is None or kind.kind not in ("state.conflict", "worker.lost")):
                yield f"{COUNTER}: an execution failed with {kind}"


def _limits(cluster: Cluster) -> Iterator[str]:
    """The limits are never exceeded, counted from the events alone, append by append."""
    maximum = cluster.max_slots
    paths: dict[str, str] = {}
    begun: dict[str, set[str]] = {}  # path -> its executions that have started and not ended
    leased: set[str] = set()
    for append in cluster.store.order if maximum else ():
        execution_id = append.execution_id
        for each in append.events:
            body: Any = each.body
            if isinstance(body, ExecutionRequested):
                paths[execution_id] = body.path
            elif isinstance(body, StepStarted | IterationStarted) and not getattr(body, "by_server", False):
                leased.add(run_of(body))
                begun.setdefault(paths[execution_id], set()).add(execution_id)
            elif isinstance(body, WorkerLost | IterationDone | IterationFailed | ChildRequested | WaitStarted):
                leased.discard(run_of(body))
            elif isinstance(body, StepDone | StepFailed):  # with all its iterations
                step_run = body.step_run_id
                leased -= {run for run in leased if run == step_run or run.startswith(f"{step_run}/")}
            elif isinstance(body, WorkflowFinished):
                begun.get(paths[execution_id], set()).discard(execution_id)
        if append.summary.status == "waiting":  # it holds no slot
            begun.get(paths[execution_id], set()).discard(execution_id)
        if len(leased) > maximum.get("pool default", len(leased)):
            yield f"{len(leased)} runs are leased at once, the limit is {maximum['pool default']}"
        for path, executions in begun.items():
            if len(executions) > maximum.get(f"playbook {path}", len(executions)):
                yield f"{len(executions)} executions of {path} run at once, the limit is {maximum[f'playbook {path}']}"


async def all_logs(cluster: Cluster) -> dict[str, list[Recorded]]:
    """The logs of all executions."""
    rows = await cluster.store.executions(ExecutionFilter(limit=10_000))
    return {row.execution_id: await cluster.store.read(row.execution_id) for row in rows}


def _log(cluster: Cluster, log: list[Recorded]) -> Iterator[str]:
    if len(log) < cluster.store.acknowledged.get(log[0].execution_id, 0):
        yield "acknowledged events are missing"
    yield from check_log(log)
    yield from _effects(cluster, log)
    yield from check_once(cluster.ledger.started, log)


def _was_poison(log: list[Recorded], logs: Mapping[str, list[Recorded]]) -> bool:
    """Whether three workers were lost on one run (also of a child), which may end it with `worker.lost`."""
    every = [each.body for one in logs.values() for each in one]
    lost = Counter(run_of(body) for body in every if isinstance(body, WorkerLost) and not body.returned)
    finished = next(each.body for each in log if isinstance(each.body, WorkflowFinished))
    return finished.error is not None and finished.error.kind == "worker.lost" and max(lost.values(), default=0) >= 3


# Error kinds of tasks whose tool did not complete.
_WITHOUT_TOOL = frozenset({"worker.lost", "template", "timeout", "cancelled", "ambiguous"})


def _effects(cluster: Cluster, log: list[Recorded]) -> Iterator[str]:
    """Every finished task with side effects really ran; no attempt was invented, and none ran twice."""
    prefix = f"{log[0].execution_id}:"
    for name, count in cluster.ledger.started.items():
        if count > 1 and name.startswith(prefix):
            yield f"{name}: its tool was started {count} times"
    for each in log:
        body = each.body
        if isinstance(body, TaskDone) and body.kind == "effect" and not body.skipped:
            name = task_run_id(run_of(body), body.task, body.visit, body.attempt)
            if body.outcome.error is not None and body.outcome.error.kind in _WITHOUT_TOOL:
                continue
            if not cluster.ledger.done[name]:
                yield f"{name} is done in the log, but its tool never ran"


def _compensations(cluster: Cluster, log: list[Recorded], logs: Mapping[str, list[Recorded]]) -> Iterator[str]:
    """What an ended execution completed was undone: all of it, once, in reverse order, by a tool that really ran."""
    request = log[0].body
    assert isinstance(request, ExecutionRequested)
    if not isinstance(log[-1].body, PlaybookProcessed):
        return
    undone = log
    if request.compensates is not None:
        undone = logs[request.compensates.execution_id]
    elif log[-1].body.outcome == "success":
        return
    if any(isinstance(each.body, ExecutionCancelled) and not each.body.compensate for each in log):
        return
    yield from check_compensation(undone, log, compiled(cluster.texts[request.path]))
    for each in log:
        body = each.body
        if (
            isinstance(body, CompensationDone)
            and body.step in _UNDOING
            and not cluster.ledger.has_run(body.step_run_id)
        ):
            yield f"{body.run_id} is undone in the log, but its compensation never ran"


_UNDOING = frozenset({"start", "rooms", "confirm"})  # steps whose compensation has an effect


async def _projection(cluster: Cluster, execution_id: str, log: list[Recorded]) -> list[str]:
    request = log[0].body
    assert isinstance(request, ExecutionRequested)
    playbook = compiled(cluster.texts[request.path])
    return [
        *check_projection(await cluster.store.summary(execution_id), log, playbook),
        *check_snapshot(log, playbook),
    ]


def outcome_of(log: list[Recorded]) -> Any:
    """The final status of an execution and its data."""
    finished = next(each.body for each in log if isinstance(each.body, WorkflowFinished))
    return finished.outcome, finished.output.data if finished.output else None


@lru_cache(maxsize=64)
def compiled(text: str) -> Any:
    """The compiled playbook."""
    from tests.simulation.effects import SPECS

    found = compile_playbook(text, file="", specs=SPECS)
    assert found.playbook is not None, found.diagnostics
    return found.playbook


EXPECTED: dict[str, Any] = {
    "chain": ("success", [1, 2]),
    "retries": ("success", "done!"),
    "pages": ("success", [0, 1, 2, 3]),
    "fan_out": ("success", {"sum": 21, "all": [0, 2, 4, 6, 8, 10, 12]}),
    "list_loop": ("success", [3, 1, 2]),
    "join": ("success", 3),
    "gate": ("success", "key"),
    "failure": ("success", "repaired"),
    "called": ("success", 0),
    "calls": ("success", [10, 20]),
    "nested": ("success", [[1, 2], [3]]),
    "booked": ("success", "confirmation"),
    "saga": ("failed", None),
    "lifecycle_timeout": ("success", "in time"),
    "long": ("success", [1, 2, 3, 4]),
    "once": [("success", "paid"), ("success", "unknown")],
    "fail_fast": ("success", "repaired"),
    "keyed": ("success", 1),
    "around": ("success", [[[10, 1], 10], [[20, 2], 20], [[30, 3], 30]]),
    "timeout_fires": ("success", "timed out"),
    "asks": ("success", 7),
    "poison": ("success", "given up"),
    "pauses": ("success", [3, 1, 2]),
    COUNTER: [("success", 1), ("failed", None)],
}
