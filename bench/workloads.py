"""W1 to W4 on the embedded engine with its SQLite log, every acknowledgement flushed, and the baseline.

W1  one execution of one step, warm; and cold: `noetl run` as a whole process
W2  a chain of 40 steps
W3  a parallel loop of 1,000 items
W4  1,000 concurrent executions of three steps

Engine and baseline alternate, so that both run under the same conditions. All workloads except the cold one run in a
long-lived process with the event loop and garbage collection settings of servers and workers (`runtime.event_loop`).
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.baseline import BaselineLog, BaselineWorkloads
from bench.measurements import Measurement, ResourceMonitor, run_process, summarize
from noetl.embedded import LocalEngine, open_local
from noetl.runtime import event_loop as loops
from noetl.server.orchestrator.submissions import Submission

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}}}\n"
FIB = "def fib(n):\\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\\nresult = fib(10)"


def chain(steps: int, kind: str = "python") -> str:
    """A playbook of sequential steps."""
    text = HEAD.format(name=f"chain_{kind}_{steps}") + "workflow:\n"
    for n in range(steps):
        text += f"  - step: s{n}\n    tool: {_tool(kind)}\n"
        if n < steps - 1:
            text += f"    next: {{arcs: [{{step: s{n + 1}}}]}}\n"
    return text


def fan_out(items: int, kind: str = "noop", in_flight: int = 100) -> str:
    """A playbook with one parallel loop."""
    return HEAD.format(name=f"fan_{kind}_{items}") + (
        f"workload: {{n: {items}}}\nworkflow:\n  - step: start\n"
        f'    loop: {{in: "{{{{ range(workload.n) | list }}}}", iterator: x, '
        f"spec: {{mode: parallel, max_in_flight: {in_flight}}}}}\n    tool: {_tool(kind)}\n"
    )


def _tool(kind: str) -> str:
    return "{kind: noop}" if kind == "noop" else f'{{kind: python, code: "{FIB}"}}'


async def run_one(engine: LocalEngine, text: str) -> None:
    """Run one execution to its end."""
    execution_id = await engine.orchestrator.submit(Submission(text=text))
    summary = await engine.orchestrator.wait(execution_id)
    if summary.status != "success":
        raise RuntimeError(f"the execution ended as {summary.status}: {summary}")


async def run_many(engine: LocalEngine, text: str, count: int) -> None:
    """Run concurrent executions to their end."""
    await asyncio.gather(*(run_one(engine, text) for _ in range(count)))


@dataclass(frozen=True)
class Case:
    """One workload: the work of the engine and of the baseline, and its description."""

    workload: str
    what: str
    rounds: int
    count: int  # executions or items per round, or 1
    unit: str  # `ms`: duration of a round; otherwise a rate
    engine: Callable[[LocalEngine], Awaitable[None]]
    baseline: Callable[[BaselineWorkloads], Awaitable[None]]
    repeats: int = 1  # per round


def _chain(workload: str, steps: int, kind: str, rounds: int) -> Case:
    text = chain(steps, kind)
    what = f"{steps} {kind} step{'s' * (steps > 1)}"
    return Case(
        workload,
        what,
        rounds,
        1,
        "ms",
        lambda e: run_one(e, text),
        lambda b: b.chain(steps, kind),
        20 if steps == 1 else 1,
    )


def _loop(workload: str, items: int, kind: str, rounds: int) -> Case:
    text = fan_out(items, kind)
    what = f"loop of {items:,} {kind} items"
    return Case(
        workload, what, rounds, items, "items/s", lambda e: run_one(e, text), lambda b: b.fan_out(items, kind)
    )  # fmt: skip


def _many(workload: str, executions: int, rounds: int) -> Case:
    text = chain(3, "noop")
    what = f"{executions:,} executions of 3 noop steps"
    return Case(
        workload, what, rounds, executions, "executions/s",
        lambda e: run_many(e, text, executions), lambda b: b.many(executions, 3),
    )  # fmt: skip


def cases(part: str, quick: bool) -> list[Case]:
    """The cases of w1, w2, w3 or w4."""
    divisor = 4 if quick else 1
    if part == "w1":
        return [_chain("W1", 1, "noop", 12 // divisor), _chain("W1", 1, "python", 8 // divisor)]
    if part == "w2":
        return [_chain("W2", 40, "python", 12 // divisor), _chain("W2", 40, "noop", 12 // divisor)]
    if part == "w3":
        return [_loop("W3", 1000, "noop", 8 // divisor), _loop("W3", 1000, "python", 8 // divisor)]
    return [_many("W4", 1000, 4 // divisor)]


async def measure_case(case: Case, folder: Path, rounds: int) -> list[Measurement]:
    """Measure engine and baseline alternately, each with its own log."""
    engine_monitor, baseline_monitor = ResourceMonitor(), ResourceMonitor()
    async with await open_local(home=folder / "engine", store=str(folder / "engine.db")) as engine:
        log = BaselineLog(str(folder / "baseline.db"))
        try:
            shape = BaselineWorkloads(log)
            await case.engine(engine)  # warm up: compile the playbook, start processes
            await case.baseline(shape)
            loops.freeze_gc()
            for _ in range(rounds):
                await engine_monitor.record(lambda: case.engine(engine), case.repeats)
                await baseline_monitor.record(lambda: case.baseline(shape), case.repeats)
        finally:
            log.close()
    return [
        *_measurements("noetl", case, engine_monitor),
        *_measurements("baseline", case, baseline_monitor),
    ]


def _measurements(engine: str, case: Case, monitor: ResourceMonitor) -> Iterator[Measurement]:
    walls = [seconds * 1e3 if case.unit == "ms" else case.count / seconds for seconds in monitor.walls]
    cpus = [seconds / case.count * (1e3 if case.unit == "ms" else 1e6) for seconds in monitor.cpus]
    peak = round(monitor.peak_mb, 1) if engine == "noetl" else None  # the baseline runs in the process of the engine
    yield summarize(engine, case.workload, case.what, walls, case.unit, peak)
    yield summarize(engine, case.workload, f"{case.what}, CPU", cpus, "ms" if case.unit == "ms" else "us each", peak)


def measure_cold(folder: Path, rounds: int) -> Iterator[Measurement]:
    """`noetl run` of one noop step as a whole process; the baseline is an empty Python process."""
    playbook = folder / "one.yaml"
    playbook.write_text(chain(1, "noop"))
    home = {"NOETL_HOME": str(folder / "home")}
    commands = {
        "noetl": [sys.executable, "-m", "noetl", "run", str(playbook)],
        "baseline": [sys.executable, "-c", "pass"],
    }
    for command in commands.values():
        run_process(command, home)
    taken: dict[str, list[tuple[float, float, float]]] = {engine: [] for engine in commands}
    for _ in range(rounds):
        for engine, command in commands.items():
            taken[engine].append(run_process(command, home))
    for engine, runs in taken.items():
        peak = round(max(mb for _, _, mb in runs), 1)
        yield summarize(engine, "W1", "cold process", [wall * 1e3 for wall, _, _ in runs], "ms", peak)
        yield summarize(engine, "W1", "cold process, CPU", [cpu * 1e3 for _, cpu, _ in runs], "ms", peak)


def measure(part: str, *, quick: bool = False) -> Iterator[Measurement]:
    """The measurements of w1, w2, w3 or w4."""
    for case in cases(part, quick):
        folder = Path(tempfile.mkdtemp(prefix="bench-", dir="."))  # on the disk of the project, not in memory
        try:
            yield from loops.run(measure_case(case, folder.resolve(), case.rounds))
        finally:
            shutil.rmtree(folder)
    if part == "w1":
        with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder_name:
            yield from measure_cold(Path(folder_name).resolve(), 3 if quick else 9)
