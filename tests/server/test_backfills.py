"""Backfills: slots, concurrency, pause, cancel, retry, crashes, and many slots."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.tool import ToolCall
from noetl.embedded import LocalEngine, open_local
from noetl.errors import Conflict, NotFound, RequestRefused
from noetl.runtime.clock import RealClock
from noetl.server.orchestrator.catalog import Source
from noetl.server.scheduling.backfill_runner import BackfillRunner
from noetl.server.scheduling.backfills import Backfills
from noetl.storage.factory import open_triggers
from noetl.storage.ports.events import ExecutionFilter
from noetl.worker.factory import ToolSource
from tests.waiting import until

TEXT = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: export, path: backfill/export}
workload: {slot: null, day: null}
workflow:
  - step: start
    tool: {kind: python, input: {n: "{{ workload.slot.index }}"}, code: "result = n"}
"""
RANGE = ("2026-01-01", "2026-01-11", "1d")


class Bench:
    """An embedded engine whose tool records the slots that it ran."""

    def __init__(self) -> None:
        self.ran: Counter[int] = Counter()
        self.failing: set[int] = set()
        self.active = self.most = 0
        self.hold: asyncio.Event | None = None

    async def open(self, store: str = "memory:") -> Bench:
        async def run(call: ToolCall) -> Outcome:
            slot = int(call.input["n"])
            self.ran[slot] += 1
            self.active += 1
            self.most = max(self.most, self.active)
            try:
                if self.hold is not None:
                    await self.hold.wait()
                await asyncio.sleep(0)
            finally:
                self.active -= 1
            return error("client_error", "no") if slot in self.failing else ok(slot)

        self.engine: LocalEngine = await open_local(store=store, tools=ToolSource(load=lambda kind: run), slots=64)
        self.orchestrator = self.engine.orchestrator
        await self.orchestrator.catalog.register(Source(TEXT), 1.0)
        self.backfills = Backfills(open_triggers(self.orchestrator.store), self.orchestrator.catalog, RealClock())
        self.runner = BackfillRunner(self.backfills, self.orchestrator, RealClock())
        return self

    async def add(self, **options: Any) -> str:
        return (await self.backfills.add("backfill/export", *RANGE, **options)).name

    async def document(self, name: str) -> dict[str, Any]:
        return await self.backfills.document(await self.backfills.get(name))

    async def has(self, name: str, **fields: Any) -> bool:
        document = await self.document(name)
        return all(document[field] == value for field, value in fields.items())


def scenario(work: Any) -> None:
    async def whole() -> None:
        bench = await Bench().open()
        try:
            await asyncio.wait_for(work(bench), 60)
        finally:
            await bench.engine.close()

    asyncio.run(whole())


def test_every_slot_runs_once_and_has_its_range():
    async def work(bench: Bench) -> None:
        name = await bench.add(concurrency=3, variable="day", payload={"slot": {"index": "{{ day.index }}"}, "n": 1})
        progress = await bench.runner.run(name)
        assert (progress.succeeded, progress.failed) == (10, ()) and bench.ran == Counter(range(10))
        assert bench.most <= 3
        document = await bench.document(name)
        assert (document["status"], document["total"], document["waiting"]) == ("done", 10, 0)
        rows = await bench.orchestrator.store.executions(ExecutionFilter(limit=100))
        assert len(rows) == 10
        (first, *_) = await bench.orchestrator.events(rows[-1].execution_id)
        assert first.body.payload["day"] == {
            "start": "2026-01-01T00:00:00Z",
            "end": "2026-01-02T00:00:00Z",
            "date": "2026-01-01",
            "index": 0,
        }
        assert first.body.payload["n"] == 1 and first.body.requested_by == f"backfill {name}"

    scenario(work)


def test_failed_slots_are_listed_and_repeated():
    async def work(bench: Bench) -> None:
        bench.failing = {2, 5}
        name = await bench.add(concurrency=2)
        progress = await bench.runner.run(name)
        assert (progress.succeeded, sorted(progress.failed)) == (8, [2, 5])
        failures = (await bench.document(name))["failures"]
        assert sorted(each["index"] for each in failures) == [2, 5] and all(each["execution_id"] for each in failures)
        bench.failing = {5}
        await bench.backfills.retry(name)
        progress = await bench.runner.run(name)
        assert (progress.succeeded, progress.failed) == (9, (5,))
        bench.failing = set()
        await bench.backfills.retry(name)
        assert (await bench.runner.run(name)).succeeded == 10
        assert bench.ran[2] == 2 and bench.ran[5] == 3 and bench.ran[0] == 1
        with pytest.raises(Conflict, match="no slot"):
            await bench.backfills.retry(name)

    scenario(work)


def test_a_runner_that_stops_at_any_point_loses_and_doubles_nothing():
    async def work(bench: Bench) -> None:
        name = await bench.add(concurrency=4)
        for _ in range(40):  # stopped without storing its progress, as by a crash
            task = asyncio.ensure_future(bench.runner.run(name))
            await asyncio.sleep(0.004)
            if task.done():
                break
            save = Backfills.save_progress
            Backfills.save_progress = lambda *_: asyncio.sleep(0)  # type: ignore[method-assign,assignment,return-value]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            Backfills.save_progress = save  # type: ignore[method-assign]
        progress = await bench.runner.run(name)
        assert progress.succeeded == 10 and bench.ran == Counter(range(10))

    scenario(work)


def test_pause_resume_and_cancel():
    async def work(bench: Bench) -> None:
        bench.hold = asyncio.Event()
        name = await bench.add(concurrency=2)
        task = asyncio.ensure_future(bench.runner.run(name))
        await until(lambda: bench.active == 2)
        assert (await bench.backfills.pause(name)).paused
        bench.hold.set()
        progress = await task
        assert progress.succeeded == 2 and (await bench.document(name))["status"] == "paused"
        assert name not in [each.name for each in await bench.backfills.active()]
        await bench.backfills.resume(name)
        bench.hold = asyncio.Event()
        task = asyncio.ensure_future(bench.runner.run(name))
        await until(lambda: bench.active == 2)
        await bench.backfills.cancel(name)
        progress = await task
        document = await bench.document(name)
        assert (document["status"], document["succeeded"], document["failed"]) == ("cancelled", 2, 2)
        assert len(bench.ran) == 4
        with pytest.raises(Conflict, match="was cancelled"):
            await bench.backfills.retry(name)

    scenario(work)


def test_the_background_runner_finds_new_and_changed_backfills():
    async def work(bench: Bench) -> None:
        task = asyncio.ensure_future(bench.runner.run_all())
        bench.failing = {1}
        name = await bench.add(concurrency=10)
        await until(lambda: bench.has(name, status="done"))
        bench.failing = set()
        await bench.backfills.retry(name)
        await until(lambda: bench.has(name, succeeded=10))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    scenario(work)


def test_wrong_requests_are_refused():
    async def work(bench: Bench) -> None:
        for range_, words in (
            (("x", "2026-01-02", "1d"), "'x' is not an instant"),
            (("2026-01-01", "2026-01-02", "soon"), "'soon' is not the length of a slot"),
            (("2026-01-01", "2026-01-02", "0s"), "greater than 0"),
            (("2026-01-02", "2026-01-01", "1d"), "the range is empty"),
            (("2020-01-01", "2026-01-01", "1s"), "more slots than the limit of 100,000"),
        ):
            with pytest.raises(RequestRefused, match=words):
                await bench.backfills.add("backfill/export", *range_)
        with pytest.raises(NotFound, match="no playbook 'nowhere'"):
            await bench.backfills.add("nowhere", *RANGE)
        with pytest.raises(RequestRefused, match="cannot be evaluated"):
            await bench.add(payload={"a": "{{ slot.nothing + 1 }}"})
        with pytest.raises(RequestRefused, match="not a name"):
            await bench.add(variable="a b")
        with pytest.raises(NotFound, match="no backfill 'x'"):
            await bench.backfills.get("x")
        await bench.add(name="one")
        with pytest.raises(Conflict, match="already exists"):
            await bench.add(name="one")

    scenario(work)


def test_ten_thousand_slots_are_rows():
    async def work(bench: Bench) -> None:
        began = time.monotonic()
        created = await bench.backfills.add(
            "backfill/export", "2026-01-01", "2027-02-21T16:00:00Z", "1h", concurrency=1
        )
        assert created.total == 10_000 and time.monotonic() - began < 1
        row = await bench.backfills.store.get("backfill", created.name)
        assert row is not None and len(row.data) < 1_000

    scenario(work)
