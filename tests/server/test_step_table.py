"""Step tables that are kept between two looks."""

from __future__ import annotations

import asyncio

from noetl.core.model.events import CtxPatched, ExecutionRequested, Recorded
from noetl.server.read_models import step_table as progress
from noetl.server.read_models.step_table import StepTables
from noetl.storage.ports.events import LogPage


class Log:
    """A log that remembers what was read of it."""

    def __init__(self, length: int) -> None:
        self.events = [Recorded("1", 1, 0.0, ExecutionRequested("d", "p"))]
        self.grow(length - 1)
        self.requested: list[int] = []

    def grow(self, number: int) -> None:
        for _ in range(number):
            seq = len(self.events) + 1
            self.events.append(Recorded("1", seq, float(seq), CtxPatched({str(seq): seq})))

    async def snapshot(self, execution_id):
        return None

    async def read(self, execution_id: str, after: int = 0, limit: int | None = None) -> LogPage:
        self.requested.append(after)
        await asyncio.sleep(0)
        return LogPage(self.events[after:][:limit], more=limit is not None and len(self.events) > after + limit)


def test_a_repeated_query_reads_only_new_events():
    async def check():
        log = Log(10)
        tables = StepTables(log)
        assert (await tables.get("1")).seq == 10
        log.grow(3)
        assert (await tables.get("1")).ctx == {str(n): n for n in range(2, 14)}
        assert log.requested == [0, 10]

    asyncio.run(check())


def test_a_log_whose_length_is_known_is_not_read_again():
    async def check():
        log = Log(10)
        tables = StepTables(log)
        await tables.get("1", 10)
        await tables.get("1", 10)
        assert log.requested == [0]

    asyncio.run(check())


def test_concurrent_queries_apply_every_event_once(monkeypatch):
    monkeypatch.setattr(progress, "PAGE", 4)

    async def check():
        log = Log(10)
        tables = StepTables(log)
        seen = await asyncio.gather(*(tables.get("1") for _ in range(3)))
        assert {each.seq for each in seen} == {10}
        assert log.requested == [0, 4, 8, 10, 10]

    asyncio.run(check())


def test_the_least_recently_used_tables_are_evicted(monkeypatch):
    monkeypatch.setattr(progress, "CAPACITY", 2)

    async def check():
        log = Log(5)
        tables = StepTables(log)
        for execution in ("1", "2", "3", "1"):
            await tables.get(execution)
        assert log.requested == [0, 0, 0, 0]

    asyncio.run(check())
