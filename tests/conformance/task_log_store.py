"""The contract of `ports.TaskLogStore`, as tests: a back end subclasses the suite and inherits them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from noetl.core.model.task_log import MAX_LINES, LogChunk, LogFilter, LogLine, LogSource
from noetl.errors import RequestRefused
from noetl.storage.ports import task_logs as ports
from noetl.storage.ports.task_logs import TaskLogStore

Scenario = Callable[[TaskLogStore], Awaitable[None]]

FETCH = LogSource("fetch", "get", "7", 1, 2)
LOAD = LogSource("load", "put")


def chunk(
    execution_id: str, *texts: str, source: LogSource = FETCH, stream: str = "stdout", dropped: int = 0
) -> LogChunk:
    """A chunk with one source."""
    return LogChunk(
        execution_id, [source], [LogLine(0, 5.0 + n, stream, text, dropped) for n, text in enumerate(texts)]
    )


class TaskLogStoreSuite:
    """Lines are numbered, filtered, bounded and deleted with their execution."""

    async def within(self, scenario: Scenario) -> None:
        """Run the scenario with an empty store, and close it."""
        raise LookupError("the suite's subclass says how to open its store")

    def run(self, scenario: Scenario) -> None:
        asyncio.run(self.within(scenario))

    def test_lines_are_numbered_and_read_as_written(self) -> None:
        async def scenario(store: TaskLogStore) -> None:
            assert await store.last("1001") == 0
            assert await store.append(chunk("1001", "a", "ä\u2028\x1b[31mred\x1b[0m", "")) == 3
            assert await store.append(chunk("1002", "other")) == 1
            assert await store.append(chunk("1001", "b", source=LOAD, stream="stderr", dropped=4)) == 4
            page = await store.read("1001")
            assert [each.seq for each in page.lines] == [1, 2, 3, 4] and page.next is None
            assert [each.line.text for each in page.lines] == ["a", "ä\u2028\x1b[31mred\x1b[0m", "", "b"]
            assert page.lines[0].source == FETCH and page.lines[0].line.at == 5.0
            assert page.lines[3].source == LOAD and page.lines[3].line.dropped == 4
            assert await store.last("1001") == 4
            assert (await store.read("999")).lines == []

        self.run(scenario)

    def test_pages_continue_where_the_last_one_ended(self) -> None:
        async def scenario(store: TaskLogStore) -> None:
            for start in range(0, 2500, 500):
                await store.append(chunk("1001", *(f"line {n}" for n in range(start, start + 500))))
            seen: list[int] = []
            after: int | None = 0
            while after is not None:
                page = await store.read("1001", after, 999)
                seen += [each.seq for each in page.lines]
                after = page.next
            assert seen == list(range(1, 2501))
            assert [each.seq for each in (await store.read("1001", 2498)).lines] == [2499, 2500]

        self.run(scenario)

    def test_filters(self) -> None:
        async def scenario(store: TaskLogStore) -> None:
            await store.append(chunk("1001", "one", "Two"))
            await store.append(chunk("1001", "three", source=LOAD, stream="stderr"))

            async def texts(**where: object) -> list[str]:
                page = await store.read("1001", where=LogFilter(**where))  # type: ignore[arg-type]
                return [each.line.text for each in page.lines]

            assert await texts(step="fetch") == ["one", "Two"]
            assert await texts(task="put") == ["three"]
            assert await texts(iteration="7") == ["one", "Two"]
            assert await texts(iteration="") == ["three"]
            assert await texts(attempt=2) == ["one", "Two"]
            assert await texts(stream="stderr") == ["three"]
            assert await texts(search="tWO") == ["Two"]
            page = await store.read("1001", limit=1, where=LogFilter(stream="stdout"))
            assert [each.seq for each in page.lines] == [1] and page.next == 1

        self.run(scenario)

    def test_lines_above_the_limit_of_an_execution_are_counted_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (ports, *self.limited_modules()):
            monkeypatch.setattr(module, "MAX_BYTES", 1000)

        async def scenario(store: TaskLogStore) -> None:
            await store.append(chunk("1001", "x" * 600))
            assert await store.append(chunk("1001", "y" * 300, "z" * 300)) == 2
            assert await store.append(chunk("1001", "more")) == 2
            lines = [each.line for each in (await store.read("1001")).lines]
            assert [line.dropped for line in lines] == [0, 2] and "dropped" in lines[1].text

        self.run(scenario)

    def limited_modules(self) -> list[object]:
        """The modules that read the limit."""
        from noetl.storage.task_logs import memory, sql

        return [memory, sql]

    def test_invalid_chunks_are_refused(self) -> None:
        async def scenario(store: TaskLogStore) -> None:
            for wrong in (
                LogChunk("1001", [FETCH], []),
                LogChunk("x", [FETCH], [LogLine(0, 1.0, "stdout", "a")]),
                LogChunk("1001", [FETCH], [LogLine(1, 1.0, "stdout", "a")]),
                LogChunk("1001", [FETCH], [LogLine(0, 1.0, "stdout", "a")] * (MAX_LINES + 1)),
            ):
                with pytest.raises(RequestRefused):
                    await store.append(wrong)

        self.run(scenario)

    def test_concurrent_appends_keep_all_lines(self) -> None:
        async def scenario(store: TaskLogStore) -> None:
            await asyncio.gather(*(store.append(chunk("1001", f"a{n}", f"b{n}")) for n in range(12)))
            lines = (await store.read("1001")).lines
            assert [each.seq for each in lines] == list(range(1, 25))
            assert sorted(each.line.text for each in lines) == sorted(f"{c}{n}" for c in "ab" for n in range(12))

        self.run(scenario)

    def test_lines_are_deleted_with_their_execution(self) -> None:
        async def scenario(store: TaskLogStore) -> None:
            await store.append(chunk("1001", "a"))
            await store.append(chunk("1002", "b"))
            await store.forget(["1001", "77"])
            assert await store.last("1001") == 0
            assert await store.last("1002") == 1

        self.run(scenario)
