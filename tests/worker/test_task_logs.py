"""Lines of tasks on the worker: bounded, slowed down, dropped with a count, sent in order."""

from __future__ import annotations

import asyncio

import pytest

from noetl.core.model.task_log import LogChunk
from noetl.errors import RequestRefused, StoreUnavailable
from noetl.runtime.clock import RealClock
from noetl.runtime.masking import Masker
from noetl.worker import task_logs
from noetl.worker.host import LONG_LINE, MAX_LINE, HostServices, TaskHost, TaskLine, TaskObserver
from noetl.worker.task_logs import TaskLogSender
from tests.waiting import until

RUN = "1:fetch:1/7:get:1:2"


class Link:
    """A link whose server accepts requests only when told to."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, list[LogChunk]]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.refuses = False
        self.refused = 0
        self.full = 0  # requests that find a full disk

    async def logs(self, worker: str, number: int, chunks: list[LogChunk]) -> None:
        await self.open.wait()
        if self.full:
            self.full -= 1
            raise StoreUnavailable("the disk is full")
        if self.refuses:
            self.refused += 1
            raise RequestRefused("too old")
        self.requests.append((number, chunks))

    def texts(self) -> list[str]:
        return [line.text for _, chunks in self.requests for chunk in chunks for line in chunk.lines]

    def dropped(self) -> int:
        return sum(line.dropped for _, chunks in self.requests for chunk in chunks for line in chunk.lines)


def sender_of(link: Link) -> TaskLogSender:
    return TaskLogSender(link, "w", RealClock(), Quiet())  # type: ignore[arg-type]


class Quiet(TaskObserver):
    def line(self, line: TaskLine) -> None:
        pass


def printed(text: str, run: str = RUN, stream: str = "stdout") -> TaskLine:
    return TaskLine("1", "fetch", "get", run, stream, text)


def test_lines_are_sent_in_order_with_their_sources():
    async def scenario() -> None:
        link = Link()
        sender = sender_of(link)
        sender.line(printed("one"))
        sender.line(printed("two", "2:load:1:put:1:1", "stderr"))
        sender.line(printed("three"))
        await sender.close()
        ((number, (first, second)),) = link.requests
        assert number == 1
        assert first.execution_id == "1" and [line.text for line in first.lines] == ["one", "three"]
        assert (first.sources[0].step, first.sources[0].iteration, first.sources[0].attempt) == ("fetch", "7", 2)
        assert second.execution_id == "2" and second.lines[0].stream == "stderr"

    asyncio.run(scenario())


def test_a_full_buffer_slows_down_then_drops_and_counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_logs, "MAX_BUFFER", 1000)
    monkeypatch.setattr(task_logs, "MAX_WAIT", 0.05)

    async def scenario() -> None:
        link = Link()
        link.open.clear()
        sender = sender_of(link)
        for n in range(8):
            sender.line(printed(f"{n}" * 99))
        assert sender.full
        await asyncio.wait_for(sender.wait_for_room(), 5)  # returns although the server does not respond
        for _ in range(5):
            sender.line(printed("x" * 400))
        link.open.set()
        await asyncio.wait_for(sender.wait_for_room(), 5)
        sender.line(printed("after"))
        await sender.close()
        assert link.dropped() == 5
        texts = link.texts()
        assert texts[:8] == [f"{n}" * 99 for n in range(8)]
        assert "after" in texts and task_logs.DROPPED in texts
        assert [number for number, _ in link.requests] == sorted({number for number, _ in link.requests})

    asyncio.run(scenario())


def test_many_lines_are_sent_in_chunks_of_a_bounded_size():
    async def scenario() -> None:
        link = Link()
        sender = sender_of(link)
        for n in range(5000):
            sender.line(printed(f"line {n}"))
        await sender.close()
        assert link.texts() == [f"line {n}" for n in range(5000)]
        assert max(len(chunk.lines) for _, chunks in link.requests for chunk in chunks) <= 1000

    asyncio.run(scenario())


def test_a_server_that_refuses_lines_does_not_stop_the_worker():
    async def scenario() -> None:
        link = Link()
        link.refuses = True
        sender = sender_of(link)
        sender.line(printed("one"))
        await asyncio.wait_for(sender.close(), 5)
        assert link.requests == []

    asyncio.run(scenario())


def test_lines_that_cannot_be_stored_now_are_sent_again(monkeypatch: pytest.MonkeyPatch, caplog):
    monkeypatch.setattr(task_logs, "FIRST_PAUSE", 0.001)

    async def scenario() -> None:
        link = Link()
        link.full = 4
        sender = sender_of(link)
        sender.line(printed("one"))
        sender.line(printed("two"))
        await sender.close()
        assert link.texts() == ["one", "two"] and [number for number, _ in link.requests] == [1]

    asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == [
        "2 lines of tasks cannot be stored, retrying: the disk is full"
    ]


def test_lines_that_are_lost_when_the_worker_stops_are_counted(monkeypatch: pytest.MonkeyPatch, caplog):
    monkeypatch.setattr(task_logs, "CLOSE_SECONDS", 0.05)

    async def scenario() -> None:
        link = Link()
        link.full = 1000
        sender = sender_of(link)
        sender.line(printed("one"))
        sender.line(printed("two"))
        await sender.close()
        assert link.requests == []

    asyncio.run(scenario())
    assert caplog.records[-1].getMessage() == "2 lines of tasks could not be sent, and are lost"


def test_rejected_lines_are_counted_in_the_log():
    async def scenario() -> None:
        link = Link()
        link.refuses = True
        sender = sender_of(link)
        sender.line(printed("one"))
        sender.line(printed("two"))
        await until(lambda: link.refused)
        link.refuses = False
        sender.line(printed("three"))
        await sender.close()
        assert link.dropped() == 2 and link.texts() == [task_logs.DROPPED, "three"]

    asyncio.run(scenario())


class _Secrets:
    def __init__(self, *values: str) -> None:
        self.masker = Masker(values)


@pytest.mark.parametrize("cut", range(4, 20))
def test_a_secret_is_masked_before_a_long_line_is_cut(cut: int):
    """The tool cuts a line at 64 KiB, possibly inside of a secret; masking shrinks the text below the next limit."""
    secret = "s3cret-value-0123456"
    lines: list[str] = []

    class Lines(TaskObserver):
        def line(self, line: TaskLine) -> None:
            lines.append(line.line)

    host = TaskHost(
        ("1", "s", "t", RUN), "", _Secrets(secret), HostServices(None, observer=Lines()), lambda counts: None
    )  # type: ignore[arg-type]
    host.log(secret * (LONG_LINE // len(secret) + 1) + secret[:cut])
    assert len(lines[0]) <= MAX_LINE + 20
    for length in range(4, len(secret)):
        assert secret[:length] not in lines[0]
