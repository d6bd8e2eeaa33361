"""CPU time of decisions and folds in the engine, without store and worker."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

from noetl.core.engine.advance import advance, begin, fold
from noetl.core.engine.commands import ClaimAnyRun, ReportRun, StartExecution
from noetl.core.engine.snapshot import decode_state, encode_state
from noetl.core.engine.state import State
from noetl.core.model.events import (
    ExecutionRequested,
    IterationDone,
    Recorded,
    StepDone,
    TaskDone,
    decode_body,
    encode_body,
)
from noetl.core.model.outcome import ok
from noetl.core.model.playbook import Arc, Loop, Playbook, Router, Step, Task
from noetl.core.model.position import Position
from noetl.core.model.work import Report, RunOrder

Measured = tuple[str, float, str]  # name, value, unit


def chain(length: int) -> Playbook:
    """A chain of noop steps."""
    steps = tuple(
        Step(
            name=f"s{number}",
            tasks=(Task(name="t", kind="noop"),),
            router=Router(arcs=(Arc(target=f"s{number + 1}"),)) if number + 1 < length else Router(),
        )
        for number in range(length)
    )
    return Playbook(name="chain", path="bench/chain", entry="s0", steps=steps)


def wide(window: int) -> Playbook:
    """One parallel loop over `workload.items`."""
    loop = Loop(collection="{{ workload.items }}", iterator="item", mode="parallel", max_in_flight=window)
    step = Step(name="work", loop=loop, tasks=(Task(name="t", kind="noop"),))
    return Playbook(name="wide", path="bench/wide", entry="work", steps=(step,))


def _done(order: RunOrder) -> Report:
    """The report of a worker for one iteration."""
    context = order.context
    task = TaskDone(
        step=context.step, step_run_id=context.step_run_id, task="t", kind="noop", outcome=ok(), path=order.path,
        position=Position(task=None, task_runs=1),
    )  # fmt: skip
    end = IterationDone(step=context.step, step_run_id=context.step_run_id, path=order.path, output=ok(order.path[0]))
    return Report(order.run_id, order.epoch, 1, (task, end))


def chain_reports(length: int) -> list[ReportRun]:
    """The reports of the steps of a chain; their ids are known in advance."""
    made = []
    for number in range(length):
        name, run_id = f"s{number}", f"1:s{number}:1"
        task = TaskDone(
            step=name,
            step_run_id=run_id,
            task="t",
            kind="noop",
            outcome=ok(),
            position=Position(task=None, task_runs=1),
        )
        end = StepDone(step=name, step_run_id=run_id, output=ok())
        made.append(ReportRun(Report(run_id, 1, 1, (task, end))))
    return made


def play_chain(playbook: Playbook, reports: list[ReportRun], *, keep_log: bool = True) -> tuple[State, list[Recorded]]:
    """Run a chain; the end of each step leases the next one in the same append."""
    state = begin(playbook, "1")
    log: list[Recorded] = []
    request = StartExecution(ExecutionRequested("d", playbook.path))
    free = ClaimAnyRun("w")
    log += advance(state, [request, free], at=0.0).events
    for report in reports:
        decision = advance(state, [report, free], at=1.0)
        if keep_log:
            log += decision.events
    if state.finished != "success":
        raise AssertionError(state.error)
    return state, log


def _chain_cpu(length: int, repeats: int) -> float:
    """CPU seconds of the engine for a chain, the best of several runs."""
    playbook, reports = chain(length), chain_reports(length)
    play_chain(playbook, reports, keep_log=False)  # warm up: compile templates
    return min(_cpu(lambda: play_chain(playbook, reports, keep_log=False))[0] for _ in range(repeats))


def play_loop(count: int, window: int, batch: int) -> tuple[State, list[Recorded]]:
    """Run a parallel loop, `batch` reports per append; the collection is stored outside the log."""
    playbook = wide(window)
    state = begin(playbook, "1")
    log: list[Recorded] = []
    items = list(range(count))
    request = StartExecution(ExecutionRequested("d", playbook.path, payload={"items": items}))
    decision = advance(state, [request, ClaimAnyRun("w", slots=window)], at=0.0)
    decision = _answer(decision, log)
    orders = list(decision.replies[1].orders)
    while orders:
        reports = [ReportRun(_done(order)) for order in orders[:batch]]
        decision = _answer(advance(state, [*reports, ClaimAnyRun("w", slots=len(reports))], at=1.0), log)
        orders = orders[batch:] + list(decision.replies[-1].orders)
    if state.finished != "success":
        raise AssertionError(state.error)
    return state, log


def _answer(decision: Any, log: list[Recorded]) -> Any:
    from noetl.core.model.reference import Reference, ReferenceMeta

    while decision.requests:
        meta = ReferenceMeta("application/json", 1, "0")
        decision = decision.resume(
            {request.key: Reference("blob", {"key": request.key}, meta) for request in decision.requests}
        )
    log += decision.events
    return decision


def _cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    gc.collect()
    before = time.process_time()
    result = work()
    return time.process_time() - before, result


def deciding(length: int = 1_000) -> Measured:
    """CPU microseconds the engine needs per step of a chain of noops: report, route, schedule, lease."""
    seconds = _chain_cpu(length, 15)
    return "engine.decide_us_per_step", seconds / length * 1e6, "us"


def deciding_late() -> Measured:
    """The cost of a step in a chain of 10,000 relative to a chain of 500."""
    growth = (_chain_cpu(10_000, 3) / 10_000) / (_chain_cpu(500, 15) / 500)
    return "engine.decide_growth_500_to_10000", growth, "ratio"


def folding(length: int = 10_000) -> Measured:
    """Events folded per CPU second (decoded log of a chain)."""
    state, log = play_chain(chain(length), chain_reports(length))
    playbook = state.playbook
    seconds = min(_cpu(lambda: fold(playbook, log))[0] for _ in range(3))
    return "engine.fold_events_per_s", len(log) / seconds, "1/s"


def folding_loop(count: int = 50_000) -> Measured:
    """Events folded per CPU second (decoded log of a parallel loop)."""
    state, log = play_loop(count, 1_000, 100)
    seconds = min(_cpu(lambda: fold(state.playbook, log))[0] for _ in range(3))
    return "engine.fold_loop_events_per_s", len(log) / seconds, "1/s"


def reloading(length: int = 10_000) -> Measured:
    """Events decoded and folded per CPU second."""
    state, log = play_chain(chain(length), chain_reports(length))
    rows = [(each.seq, each.at, each.body.NAME, each.body.VERSION, encode_body(each.body)) for each in log]

    def reload() -> State:
        return fold(
            state.playbook,
            (Recorded("1", seq, at, decode_body(name, version, data)) for seq, at, name, version, data in rows),
        )

    seconds = min(_cpu(reload)[0] for _ in range(3))
    return "engine.reload_events_per_s", len(log) / seconds, "1/s"


def iterating(count: int = 20_000) -> Measured:
    """CPU microseconds the engine needs per iteration of a parallel loop, reported 100 at a time."""
    seconds, _ = _cpu(lambda: play_loop(count, 1_000, 100))
    return "engine.decide_us_per_iteration", seconds / count * 1e6, "us"


def loop_memory(count: int = 100_000, window: int = 1_000) -> Measured:
    """Megabytes that a running parallel loop adds to the state, without log and payload."""
    playbook = wide(window)
    items = list(range(count))
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    state = begin(playbook, "1")
    sink: list[Recorded] = []
    request = StartExecution(ExecutionRequested("d", playbook.path, payload={"items": items}))
    decision = _answer(advance(state, [request, ClaimAnyRun("w", slots=window)], at=0.0), sink)
    orders = list(decision.replies[1].orders)
    peak = 0
    while orders:
        sink.clear()
        reports = [ReportRun(_done(order)) for order in orders[:100]]
        decision = _answer(advance(state, [*reports, ClaimAnyRun("w", slots=len(reports))], at=1.0), sink)
        orders = orders[100:] + list(decision.replies[-1].orders)
        peak = max(peak, tracemalloc.get_traced_memory()[0] - before)
    tracemalloc.stop()
    return "engine.loop_100k_mb", peak / 1e6, "MB"


def snapshotting(length: int = 10_000) -> Measured:
    """CPU milliseconds to restore the state of a chain of 10,000 steps from its snapshot."""
    state, _ = play_chain(chain(length), chain_reports(length))
    data = encode_state(state)
    seconds, _ = _cpu(lambda: decode_state(state.playbook, data))
    return "engine.snapshot_restore_ms", seconds * 1e3, "ms"


BENCHMARKS: tuple[Callable[[], Measured], ...] = (
    deciding, deciding_late, iterating, folding, folding_loop, reloading, loop_memory, snapshotting,
)  # fmt: skip


def measure() -> Iterator[Measured]:
    """Samples as (name, value, unit)."""
    for each in BENCHMARKS:
        yield each()


if __name__ == "__main__":
    for name, value, unit in measure():
        print(f"{name:40} {value:14,.2f} {unit}")
