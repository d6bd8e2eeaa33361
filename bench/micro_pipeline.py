"""CPU time of one run in the worker: the pipeline alone, and pipeline, runner, pool and reporter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import msgspec

from noetl.core.model.outcome import Outcome, ok
from noetl.core.model.playbook import Assignment, Directive, Loop, Playbook, Rule, Step, Task
from noetl.core.model.reference import Reference
from noetl.core.model.tool import ToolCall, ToolSpec
from noetl.core.model.work import Claim, Item, Report, ReportAck, RunContext, RunOrder
from noetl.core.pipeline.actions import Finished, RunTask
from noetl.core.pipeline.advance import apply_outcome, next_action
from noetl.core.pipeline.frame import open_frame
from noetl.core.pipeline.nondeterminism_log import NondeterminismLog
from noetl.core.pipeline.program import Programs
from noetl.core.pipeline.scopes import SharedScope
from noetl.runtime.clock import RealClock
from noetl.runtime.nondeterminism import SystemNondeterminism
from noetl.worker.host import HostServices
from noetl.worker.pool import Pool
from noetl.worker.runner import Runner

SPECS = {"noop": ToolSpec(kind="noop", pure=True, open_fields=True)}
LOOP = Loop(collection="{{ workload.items }}", iterator="item", mode="parallel")
NOOP = Step(name="s", loop=LOOP, tasks=(Task(name="t", kind="noop"),))
PAGER = Step(
    name="s",
    loop=LOOP,
    tasks=(
        Task(name="init", kind="noop", assignments=(Assignment("iter", ("page",), 1),)),
        Task(
            name="fetch",
            kind="noop",
            input={"page": "{{ iter.page }}", "url": "{{ workload.url }}/{{ iter.item }}"},
            rules=(
                Rule("{{ output.status == 'error' }}", Directive("retry", attempts=5)),
                Rule(None, Directive("continue", assignments=(Assignment("iter", ("more",), "{{ iter.page < 3 }}"),))),
            ),
        ),
        Task(
            name="paginate",
            kind="noop",
            rules=(
                Rule(
                    "{{ iter.more }}",
                    Directive("jump", to="fetch", assignments=(Assignment("iter", ("page",), "{{ iter.page + 1 }}"),)),
                ),
                Rule(None, Directive("break")),
            ),
        ),
    ),
)


def playbook_of(step: Step) -> Playbook:
    return Playbook(name="p", path="p", entry="s", steps=(step,), digest="d")


def orders(number: int) -> list[RunOrder]:
    context = RunContext(
        id="c", playbook="d", execution_id="4711", step="s", step_run_id="4711:s:1", workload={"url": "http://h"}
    )
    return [
        RunOrder(f"4711:s:1/{n}", 1, context, path=(n,), items=(Item("item", n, number, value=n),))
        for n in range(number)
    ]


def pipeline(step: Step, number: int) -> float:
    """CPU seconds per run of the pipeline alone."""
    programs = Programs(playbook_of(step), SPECS)
    made = orders(number)
    shared = SharedScope(made[0].context, programs.playbook)
    nondeterminism = SystemNondeterminism(RealClock())
    began = time.process_time()
    for order in made:
        frame = open_frame(order, programs, shared, NondeterminismLog(nondeterminism))
        while True:
            action = next_action(frame)
            if isinstance(action, RunTask):
                apply_outcome(frame, ok(action.input or None))
            elif isinstance(action, Finished):
                action.event(action.recorded, action.results)
                break
    return (time.process_time() - began) / number


class NoServer:
    """A link that accepts everything and stores nothing."""

    def __init__(self, playbook: Playbook) -> None:
        self._playbook = msgspec.json.encode(playbook)
        self.left = 0
        self.done = asyncio.Event()

    async def claim(self, claim: Claim, *, wait: float) -> list[RunOrder]:
        await asyncio.Event().wait()
        return []

    async def extend(self, worker: str, runs: Sequence[tuple[str, int]]) -> list[str]:
        return []

    async def revoked(self, worker: str, *, wait: float) -> list[str]:
        await asyncio.Event().wait()
        return []

    async def give_back(self, worker: str, runs: Sequence[tuple[str, int]]) -> None:
        return

    async def report(
        self, worker: str, reports: Sequence[Report], *, free: int = 0
    ) -> tuple[list[ReportAck], list[RunOrder]]:
        self.left -= len(reports)
        if self.left <= 0:
            self.done.set()
        return [ReportAck(report.run_id, True) for report in reports], []

    async def playbook(self, digest: str) -> bytes:
        return self._playbook

    async def secrets(self, execution_id: str, names: Sequence[str]) -> dict[str, Any]:
        return {}

    async def close(self) -> None:
        return


class NoResults:
    """An unused result store."""

    async def put(self, name: str, chunks: AsyncIterator[bytes], **others: Any) -> Reference:
        raise LookupError(name)

    async def open(self, reference: Reference, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        yield b""

    async def delete(self, reference: Reference) -> None:
        return

    async def collect(self, now: float) -> int:
        return 0

    async def close(self) -> None:
        return


async def noop(call: ToolCall) -> Outcome:
    return ok(call.input or None)


async def worker(step: Step, number: int) -> float:
    """CPU seconds per run, from the order in the pool to the report on the link."""
    link = NoServer(playbook_of(step))
    clock = RealClock()
    runner = Runner(link, HostServices(NoResults()), specs=SPECS, load=lambda kind: noop, clock=clock)
    pool = Pool(link, runner, worker="w", clock=clock, slots=number)
    await pool.start()
    await runner.cache.programs("d")
    made = orders(number)
    link.left = number
    began = time.process_time()
    pool._accept(made)
    await link.done.wait()
    spent = time.process_time() - began
    await pool.abandon()
    return spent / number


def measure() -> Iterator[tuple[str, float, str]]:
    """Samples as (name, value, unit)."""
    for name, step, number in (("noop", NOOP, 5_000), ("three_pages", PAGER, 1_000)):
        pipeline(step, 200)
        yield f"pipeline.{name}_run", min(pipeline(step, number) for _ in range(3)) * 1e6, "us"
        asyncio.run(worker(step, 200))
        yield f"worker.{name}_run", min(asyncio.run(worker(step, number)) for _ in range(3)) * 1e6, "us"


if __name__ == "__main__":
    for name, value, unit in measure():
        print(f"{name:45} {value:12,.1f} {unit}")
