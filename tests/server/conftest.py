"""An orchestrator over stores in memory, and a worker that reports prepared outcomes."""

from __future__ import annotations

import asyncio

from noetl.core.model.events import IterationDone, IterationFailed, StepDone, StepFailed, TaskDone
from noetl.core.model.outcome import ok
from noetl.core.model.work import Claim, Report
from noetl.server.composition import Options, Stores, build_orchestrator
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.playbooks.memory import MemoryPlaybookStore
from noetl.storage.queue.memory import MemoryRunQueue
from noetl.tools.registry import specs


class NoResults:
    """A result store that must not be used."""

    async def put(self, name, chunks, **_):
        raise AssertionError(f"{name} was stored")

    def open(self, reference, **_):
        raise AssertionError(f"{reference} was opened")

    async def close(self):
        pass


class Hand:
    """A scripted worker: `outcomes` by step name (a value, an outcome, or a function of the order)."""

    def __init__(self, work, outcomes=None, worker="hand", slots=4):
        self.work = work
        self.outcomes = outcomes or {}
        self.worker = worker
        self.slots = slots
        self.ran = []

    async def step(self, wait=0.5):
        """Claim once, and run these orders and the orders of the replies."""
        orders = await self.work.claim(Claim(self.worker, self.slots), wait=wait)
        while orders:
            self.ran += [order.run_id for order in orders]
            reports = [self.report(order) for order in orders]
            verdicts, orders = await self.work.report(self.worker, reports, free=self.slots)
            assert all(verdict.accepted for verdict in verdicts)

    async def run(self):
        while True:
            await self.step(wait=30)

    def report(self, order, number=1):
        outcome = self.outcomes.get(order.context.step, ok())
        if callable(outcome):
            outcome = outcome(order)
        if not hasattr(outcome, "status"):
            outcome = ok(outcome)
        names = {"step": order.context.step, "step_run_id": order.context.step_run_id}
        task = TaskDone(**names, task="t", kind="noop", outcome=outcome, path=order.path)
        if order.path:
            kind = IterationDone if outcome.status == "ok" else IterationFailed
            end = kind(**names, path=order.path, output=outcome)
        else:
            end = (StepDone if outcome.status == "ok" else StepFailed)(**names, output=outcome)
        return Report(order.run_id, order.epoch, number, (task, end))


def make_orchestrator(store=None, playbooks=None, triggers=None, clock=None, **options):
    stores = Stores(
        store or MemoryEventStore(), playbooks or MemoryPlaybookStore(), NoResults(), MemoryRunQueue(), triggers
    )
    return build_orchestrator(stores, specs, clock=clock, options=Options(**options))


def run(scenario, **options):
    """The result of a scenario with an orchestrator, which is closed afterwards."""

    async def whole():
        orchestrator = make_orchestrator(**options)
        try:
            return await scenario(orchestrator)
        finally:
            await orchestrator.close()

    return asyncio.run(asyncio.wait_for(whole(), 30))
