"""Scaling: the cost of one unit of work at growing sizes, on the embedded engine with its SQLite log.

Four curves, each the wall time of one unit: an item of a loop, a step of a chain, a step after a long log, and an
execution in a database with many executions. Target: the last point of a curve costs at most 1.5 times its cheapest
point.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from bench.measurements import Measurement, summarize
from bench.workloads import HEAD, chain, fan_out, run_one
from noetl.core.model.events import PlaybookProcessed, StepDone
from noetl.embedded import LocalEngine, open_local
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.ports.events import ExecutionFilter
from tests.conformance.event_store import make_append

TAIL = 60  # steps after the loop that fills the log
CURVES = {
    "item": "one item of a loop, by items",
    "step": "one step of a chain, by steps",
    "event": "one step, by events in the log",
    "execution": "one execution, by executions in the database",
}
SIZES = {
    "item": (100, 1_000, 10_000, 100_000),
    "step": (10, 100, 1_000, 10_000),
    "event": (1_000, 10_000, 100_000, 1_000_000),
    "execution": (0, 1_000, 10_000, 100_000),
}


def metric(curve: str, size: int) -> str:
    """The name of a point."""
    return f"{CURVES[curve]}: {size:,}"


def measure(*, quick: bool = False) -> Iterator[Measurement]:
    """Every point of every curve."""
    for curve in CURVES:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as name:
            yield from asyncio.run(_measure(curve, SIZES[curve][: 2 if quick else None], Path(name).resolve()))


async def _measure(curve: str, sizes: tuple[int, ...], folder: Path) -> list[Measurement]:
    async with await open_local(home=folder / "engine", store=str(folder / "engine.db")) as engine:
        await run_one(engine, chain(1, "noop"))
        return [point async for point in _POINTS[curve](engine, sizes)]


async def _items(engine: LocalEngine, sizes: tuple[int, ...]) -> AsyncIterator[Measurement]:
    for size in sizes:
        text = fan_out(size)
        samples = [await _seconds(engine, text) / size for _ in range(max(1, min(10, 20_000 // size)))]
        yield _point("item", size, samples)


async def _steps(engine: LocalEngine, sizes: tuple[int, ...]) -> AsyncIterator[Measurement]:
    for size in sizes:
        text = chain(size, "noop")
        await run_one(engine, text)  # compile the playbook
        samples = [await _seconds(engine, text) / size for _ in range(max(1, min(20, 3_000 // size)))]
        yield _point("step", size, samples)


async def _after(engine: LocalEngine, sizes: tuple[int, ...]) -> AsyncIterator[Measurement]:
    for size in sizes:
        execution_id = await engine.orchestrator.submit(Submission(text=_loops_then_chain(size // 3)))
        summary = await engine.orchestrator.wait(execution_id)
        if summary.status != "success":
            raise RuntimeError(f"the execution of {size:,} events ended as {summary.status}: {summary.error}")
        events = await engine.orchestrator.events(execution_id, summary.seq - TAIL * 6)
        ends = [each.at for each in events if isinstance(each.body, StepDone)][-TAIL:]
        gaps = sorted(later - earlier for earlier, later in itertools.pairwise(ends))
        # The mean includes the rare gaps with a snapshot or an SQLite checkpoint.
        yield _point("event", size, [statistics.fmean(gaps)])


async def _among(engine: LocalEngine, sizes: tuple[int, ...]) -> AsyncIterator[Measurement]:
    text, stored = chain(1, "noop"), 0
    for size in sizes:
        while stored < size:
            many = min(1_000, size - stored)
            await asyncio.gather(*(_finished(engine, stored + n) for n in range(many)))
            stored += many
        samples = [await _seconds(engine, text) for _ in range(60)]
        yield _point("execution", size, samples)
        began = time.perf_counter()
        for _ in range(10):
            await engine.orchestrator.store.executions(ExecutionFilter(limit=100))
        listing = (time.perf_counter() - began) / 10
        name = f"a page of 100 executions, by executions in the database: {size:,}"
        yield summarize("noetl", "growth", name, [listing * 1e6], "us")


async def _finished(engine: LocalEngine, number: int) -> None:
    """Store a finished execution."""
    append = make_append(str(1_000_000 + number), 0, PlaybookProcessed(outcome="success"), status="success")
    await engine.orchestrator.store.append(append)


async def _seconds(engine: LocalEngine, text: str) -> float:
    began = time.perf_counter()
    await run_one(engine, text)
    return time.perf_counter() - began


def _loops_then_chain(items: int) -> str:
    """Sequential loops of at most 100,000 items, then a chain."""
    sizes = [100_000] * (items // 100_000) + [items % 100_000] * (items % 100_000 > 0)
    text = HEAD.format(name=f"long_{items}") + "workflow:\n"
    for n, size in enumerate(sizes):
        after = f"loop_{n + 1}" if n + 1 < len(sizes) else "s0"
        text += (
            f"  - step: loop_{n}\n"
            f'    loop: {{in: "{{{{ range({size}) | list }}}}", iterator: x, '
            "spec: {mode: parallel, max_in_flight: 100}}\n"
            f"    tool: {{kind: noop}}\n    next: {{arcs: [{{step: {after}}}]}}\n"
        )
    for n in range(TAIL + 1):
        text += f"  - step: s{n}\n    tool: {{kind: noop}}\n"
        if n < TAIL:
            text += f"    next: {{arcs: [{{step: s{n + 1}}}]}}\n"
    return text


def _point(curve: str, size: int, samples: list[float]) -> Measurement:
    return summarize("noetl", "growth", metric(curve, size), [taken * 1e6 for taken in samples], "us")


_POINTS = {"item": _items, "step": _steps, "event": _after, "execution": _among}


if __name__ == "__main__":
    for each in measure(quick="--quick" in sys.argv):
        print(f"{each.metric:60} {each.median:12,.1f} {each.unit}  n={each.n}", flush=True)
