"""Task logs on the server: repeated requests, followers, and the end of an execution."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from noetl.core.model.task_log import LogChunk, LogFilter, LogLine, LogSource
from noetl.errors import StoreUnavailable
from noetl.server.dispatch import task_logs
from noetl.server.dispatch.task_logs import TaskLogs
from noetl.storage.task_logs.memory import MemoryTaskLogStore
from tests.waiting import until

SOURCE = LogSource("s", "t")


class Events:
    """The summaries of executions."""

    def __init__(self) -> None:
        self.statuses: dict[str, str] = {}

    async def summary(self, execution_id):
        status = self.statuses.get(execution_id)
        return None if status is None else SimpleNamespace(status=status)


def chunk(*texts: str, execution: str = "1") -> LogChunk:
    return LogChunk(execution, [SOURCE], [LogLine(0, 1.0, "stdout", text) for text in texts])


async def texts_of(logs: TaskLogs, **options) -> list[str]:
    return [each.line.text for each in (await logs.read("1", **options)).lines]


@pytest.fixture
def events():
    return Events()


@pytest.fixture
def logs(events, monkeypatch):
    monkeypatch.setattr(task_logs, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(task_logs, "GRACE_SECONDS", 0.02)
    return TaskLogs(MemoryTaskLogStore(), events)


def test_a_repeated_request_is_ignored_and_workers_count_by_themselves(logs):
    async def scenario():
        await logs.accept("w1", 1, [chunk("a")])
        await logs.accept("w1", 1, [chunk("a")])
        await logs.accept("w2", 1, [chunk("b")])
        await logs.accept("w1", 3, [chunk("c"), chunk("d")])
        await logs.accept("w1", 2, [chunk("late")])
        assert await texts_of(logs) == ["a", "b", "c", "d"]
        assert await texts_of(logs, after=2) == ["c", "d"]
        assert await texts_of(logs, limit=1) == ["a"]
        assert await texts_of(logs, where=LogFilter(search="C")) == ["c"]

    asyncio.run(scenario())


def test_a_request_that_was_stored_in_part_is_completed(logs, monkeypatch):
    async def scenario():
        append = logs.store.append

        async def full(each):
            if each.execution_id == "1" and each.lines[0].text == "b":
                raise StoreUnavailable("the disk is full")
            return await append(each)

        request = [chunk("x", execution="2"), chunk("a"), chunk("b")]
        monkeypatch.setattr(logs.store, "append", full)
        with pytest.raises(StoreUnavailable):
            await logs.accept("w1", 1, request)
        monkeypatch.undo()
        await logs.accept("w1", 1, request[1:])  # the lease of the other execution has ended meanwhile
        await logs.accept("w1", 1, request)
        assert await texts_of(logs) == ["a", "b"]
        assert [each.line.text for each in (await logs.read("2")).lines] == ["x"]

    asyncio.run(scenario())


def test_only_the_workers_of_the_latest_requests_are_remembered(logs, monkeypatch):
    monkeypatch.setattr(task_logs, "MAX_WORKERS", 2)

    async def scenario():
        await logs.accept("w1", 5, [chunk("a")])
        await logs.accept("w2", 5, [chunk("b")])
        await logs.accept("w1", 6, [chunk("c")])
        await logs.accept("w3", 5, [chunk("d")])  # w2 is forgotten
        await logs.accept("w1", 6, [chunk("again")])
        await logs.accept("w2", 5, [chunk("e")])
        assert await texts_of(logs) == ["a", "b", "c", "d", "e"]

    asyncio.run(scenario())


def test_a_follower_sees_lines_as_they_arrive_until_the_execution_has_ended(logs, events, monkeypatch):
    monkeypatch.setattr(task_logs, "POLL_SECONDS", 60.0)  # a new line wakes it, not the poll

    async def scenario():
        events.statuses["1"] = "running"
        await logs.accept("w1", 1, [chunk("old")])
        seen: list[list[str]] = []

        async def follow():
            async for lines in logs.follow("1", after=0):
                seen.append([each.line.text for each in lines])  # noqa: PERF401 - seen while it grows

        async with asyncio.timeout(60):
            task = asyncio.ensure_future(follow())
            await until(lambda: seen)
            await logs.accept("w1", 2, [chunk("x", execution="2"), chunk("new")])
            await until(lambda: len(seen) == 2)
            events.statuses["1"] = "success"
            await logs.accept("w1", 3, [chunk("last")])
            await task
        assert seen == [["old"], ["new"], ["last"]]
        assert logs._followers == {}

    asyncio.run(scenario())


def test_a_follower_polls_for_lines_that_another_server_stored_and_waits_for_the_last_ones(logs, events):
    async def scenario():
        events.statuses["1"] = "running"
        seen: list[str] = []

        async def follow():
            async for lines in logs.follow("1"):
                seen.extend(each.line.text for each in lines)

        async with asyncio.timeout(60):
            task = asyncio.ensure_future(follow())
            await asyncio.sleep(0)
            await logs.store.append(chunk("elsewhere"))
            await until(lambda: seen)
            assert not task.done()
            events.statuses["1"] = "failed"
            await task
        assert seen == ["elsewhere"]

    asyncio.run(scenario())


def test_a_follower_reads_pages_and_two_followers_do_not_disturb_each_other(logs, monkeypatch):
    monkeypatch.setattr(task_logs, "PAGE", 2)

    async def scenario():
        await logs.accept("w1", 1, [chunk("a", "b", "c")])
        first = logs.follow("1")
        assert [each.seq for each in await anext(first)] == [1, 2]
        second = logs.follow("1", 1)
        assert [each.seq for each in await anext(second)] == [2, 3]
        await second.aclose()
        assert len(logs._followers["1"]) == 1
        assert [each.seq for each in await anext(first)] == [3]
        async with asyncio.timeout(60):  # the execution is unknown: it counts as ended
            assert [each async for each in first] == []

    asyncio.run(scenario())
