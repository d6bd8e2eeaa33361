"""W1 to W4 on the embedded engine with its SQLite log, every acknowledgement flushed, beside the bare limit.

W1  one execution of one step, warm; and cold: `noetl run`, the whole process
W2  a chain of 40 steps
W3  a parallel loop of 1,000 items
W4  1,000 executions of three steps at once

Both sides take turns, so that they see the same machine. All but the cold one are done in a process that lives long,
set up as those of ours are that do (`drivers.loops`).
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure, Watch, cold, figure
from bench.limits import BareLog, BareShape
from noetl.embedded import LocalEngine, open_local
from noetl.runtime import event_loop as loops
from noetl.server.orchestrator.submissions import Submission

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}}}\n"
FIB = "def fib(n):\\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\\nresult = fib(10)"


def chain(steps: int, kind: str = "python") -> str:
    """A playbook of steps in a row."""
    text = HEAD.format(name=f"chain_{kind}_{steps}") + "workflow:\n"
    for n in range(steps):
        text += f"  - step: s{n}\n    tool: {_tool(kind)}\n"
        if n < steps - 1:
            text += f"    next: {{arcs: [{{step: s{n + 1}}}]}}\n"
    return text


def fan_out(items: int, kind: str = "noop", in_flight: int = 100) -> str:
    """A playbook of one parallel loop."""
    return HEAD.format(name=f"fan_{kind}_{items}") + (
        f"workload: {{n: {items}}}\nworkflow:\n  - step: start\n"
        f'    loop: {{in: "{{{{ range(workload.n) | list }}}}", iterator: x, '
        f"spec: {{mode: parallel, max_in_flight: {in_flight}}}}}\n    tool: {_tool(kind)}\n"
    )


def _tool(kind: str) -> str:
    return "{kind: noop}" if kind == "noop" else f'{{kind: python, code: "{FIB}"}}'


async def run_one(engine: LocalEngine, text: str) -> None:
    """Start an execution and wait for its end."""
    execution_id = await engine.orchestrator.submit(Submission(text=text))
    summary = await engine.orchestrator.wait(execution_id)
    if summary.status != "success":
        raise RuntimeError(f"the execution ended with {summary.status}: {summary}")


async def run_many(engine: LocalEngine, text: str, count: int) -> None:
    """Start that many at once and wait for all."""
    await asyncio.gather(*(run_one(engine, text) for _ in range(count)))


@dataclass(frozen=True)
class Case:
    """One workload: what both sides do, and what is told of it."""

    workload: str
    what: str
    rounds: int
    count: int  # of executions, items or 1: what a round's time is divided by
    unit: str  # `ms`: time of a round; others: count per second
    ours: Callable[[LocalEngine], Awaitable[None]]
    bare: Callable[[BareShape], Awaitable[None]]
    repeats: int = 1  # in a round


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
    few = 4 if quick else 1  # so many times fewer rounds
    if part == "w1":
        return [_chain("W1", 1, "noop", 12 // few), _chain("W1", 1, "python", 8 // few)]
    if part == "w2":
        return [_chain("W2", 40, "python", 12 // few), _chain("W2", 40, "noop", 12 // few)]
    if part == "w3":
        return [_loop("W3", 1000, "noop", 8 // few), _loop("W3", 1000, "python", 8 // few)]
    return [_many("W4", 1000, 4 // few)]


async def measure_case(case: Case, folder: Path, rounds: int) -> list[Figure]:
    """Both sides in turns, on logs of their own."""
    ours, bare = Watch(), Watch()
    async with await open_local(home=folder / "engine", store=str(folder / "engine.db")) as engine:
        log = BareLog(str(folder / "bare.db"))
        try:
            shape = BareShape(log)
            await case.ours(engine)  # warm: the playbook compiled, processes started
            await case.bare(shape)
            loops.freeze_gc()
            for _ in range(rounds):
                await ours.round(lambda: case.ours(engine), case.repeats)
                await bare.round(lambda: case.bare(shape), case.repeats)
        finally:
            log.close()
    return [*_figures("noetl", case, ours), *_figures("limit", case, bare)]


def _figures(engine: str, case: Case, watch: Watch) -> Iterator[Figure]:
    walls = [seconds * 1e3 if case.unit == "ms" else case.count / seconds for seconds in watch.walls]
    cpus = [seconds / case.count * (1e3 if case.unit == "ms" else 1e6) for seconds in watch.cpus]
    peak = round(watch.peak_mb, 1) if engine == "noetl" else None  # the bare shape lives in the engine's process
    yield figure(engine, case.workload, case.what, walls, case.unit, peak)
    yield figure(engine, case.workload, f"{case.what}, CPU", cpus, "ms" if case.unit == "ms" else "us each", peak)


def measure_cold(folder: Path, rounds: int) -> Iterator[Figure]:
    """`noetl run` of one noop step, the whole process, beside a bare Python that does nothing."""
    playbook = folder / "one.yaml"
    playbook.write_text(chain(1, "noop"))
    home = {"NOETL_HOME": str(folder / "home")}
    sides = {
        "noetl": [sys.executable, "-m", "noetl", "run", str(playbook)],
        "limit": [sys.executable, "-c", "pass"],
    }
    for command in sides.values():
        cold(command, home)
    taken: dict[str, list[tuple[float, float, float]]] = {engine: [] for engine in sides}
    for _ in range(rounds):
        for engine, command in sides.items():
            taken[engine].append(cold(command, home))
    for engine, runs in taken.items():
        peak = round(max(mb for _, _, mb in runs), 1)
        yield figure(engine, "W1", "cold process", [wall * 1e3 for wall, _, _ in runs], "ms", peak)
        yield figure(engine, "W1", "cold process, CPU", [cpu * 1e3 for _, cpu, _ in runs], "ms", peak)


def measure(part: str, *, quick: bool = False) -> Iterator[Figure]:
    """All figures of w1, w2, w3 or w4."""
    for case in cases(part, quick):
        folder = Path(tempfile.mkdtemp(prefix="bench-", dir="."))  # on the disk that the project is on, not in memory
        try:
            yield from loops.run(measure_case(case, folder.resolve(), case.rounds))
        finally:
            shutil.rmtree(folder)
    if part == "w1":
        with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder_name:
            yield from measure_cold(Path(folder_name).resolve(), 3 if quick else 9)
