"""What the conformance suites of sources and targets share: rows, and transfers that are cancelled or fail."""

from __future__ import annotations

import asyncio
import sqlite3
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import aclosing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from noetl.core.model.outcome import Outcome
from noetl.runtime.resources import close_loop_resources
from noetl.testing.tools import ToolHost, run_tool, tool_call
from noetl.tools.registry import load, specs

Rows = list[dict[str, Any]]
Fields = dict[str, Any]

ROWS: Rows = [
    {"id": 1, "name": "Ada", "price": 1.5, "note": None},
    {"id": 2, "name": "Grüße, \"quoted\"\n\\line\t'2'", "price": -0.25, "note": ""},
    {"id": 9_007_199_254_740_993, "name": f"  日本語 🎉 {'long ' * 100}", "price": 0.1, "note": "null"},
]
EXECUTIONS = count(1)
POINTS = 12  # at which work is cancelled
FAILING_ROW = 11_000  # of `failing_source`: after the first batch of 10,000


def many_rows(count: int) -> Rows:
    """Rows with ids from 0."""
    return [{"id": number, "name": f"row {number}", "price": number / 4, "note": None} for number in range(count)]


class Suite:
    """What both suites share."""

    options: Fields = {}  # of the task beside `source` and `targets`
    close_seconds = 20.0  # until the server has noticed that a connection is closed

    @pytest.fixture
    def host(self, tmp_path: Path) -> ToolHost:
        """The worker; override it to supply credentials."""
        return ToolHost(folder=tmp_path)

    @pytest.fixture
    def connections(self) -> Callable[[], int] | None:
        """Counts the open connections to the server; None if that cannot be observed."""
        return None

    @pytest.fixture(autouse=True)
    def _connections_are_closed(self, connections: Any) -> Iterator[None]:
        """Every test leaves as many connections open as it has found."""
        before = connections() if connections else 0
        yield
        if connections:
            _wait_for(lambda: connections() <= before, self.close_seconds)

    def transfer(self, source: Fields, target: Fields, host: ToolHost, **options: Any) -> Outcome:
        """Run one transfer, each in an execution of its own."""
        given = {"source": source, "targets": [target], **self.options, **options}
        return run_tool("transfer", given, host=host, execution_id=str(next(EXECUTIONS)))

    def points(self, given: Fields, host: ToolHost) -> list[int]:
        """Numbers of points where a transfer waits; it is run once."""
        waits = Waits()
        asyncio.run(run_transfer({**self.options, **given}, host, waits))
        return some_points(waits.count)

    def cancelled(self, point: int, given: Fields, host: ToolHost) -> Outcome | None:
        """Run a transfer and cancel it at a point; its outcome if it has one, None if it has ended."""
        run = partial(run_transfer, {**self.options, **given}, host)
        outcome: Outcome | None = asyncio.run(cancelled_at(point, run))
        return outcome


class Waits:
    """Counts how often a coroutine waits, and cancels its task at one of these points."""

    def __init__(self, cancel_at: int = 0) -> None:
        self._cancel_at = cancel_at
        self.count = 0
        self.written = 0  # the count when the last row was read or written

    def mark(self) -> None:
        """Rows were read or written."""
        self.written = self.count

    @types.coroutine
    def of(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The result of the coroutine."""
        step, given = work.send, None
        while True:
            try:
                awaited = step(given)
            except StopIteration as end:
                return end.value
            self.count += 1
            if self.count == self._cancel_at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                step, given = work.send, (yield awaited)
            except BaseException as thrown:  # noqa: BLE001 - passed on
                step, given = work.throw, thrown


def some_points(count: int) -> list[int]:
    """At most POINTS numbers from 1 to `count`, these two among them."""
    step = max(1, -(-count // POINTS))
    return sorted({*range(1, count + 1, step), count} - {0})


async def read_batches(spec: Any, call: Any, waits: Waits | None = None) -> list[int]:
    """The sizes of the batches of a source."""
    waits, sizes = waits or Waits(), []
    try:
        async with aclosing(spec.read(call)) as stream:
            while (batch := await waits.of(_next(stream))) is not None:
                sizes.append(len(batch) if isinstance(batch, list) else batch.num_rows)
                if sizes[-1]:
                    waits.mark()
        return sizes
    finally:
        await close_loop_resources()


async def _next(stream: Any) -> Any:
    return await anext(stream, None)


async def run_transfer(given: Fields, host: ToolHost, waits: Waits) -> Outcome:
    """Run a transfer, and count where it waits."""
    call = tool_call("transfer", given, host=host, execution_id=str(next(EXECUTIONS)))
    report = host.progress

    def progress(**counts: float) -> None:
        report(**counts)
        waits.mark()

    async def run() -> Outcome:
        return await load("transfer")(call)

    host.progress = progress  # type: ignore[method-assign]
    try:
        outcome: Outcome = await waits.of(run())
        return outcome
    finally:
        host.progress = report  # type: ignore[method-assign]
        await close_loop_resources()


async def cancelled_at(point: int, run: Callable[[Waits], Coroutine[Any, Any, Any]]) -> Any:
    """Cancel a coroutine at a point where it waits; its result if it has one, None if it has ended."""
    task = asyncio.ensure_future(run(Waits(point)))
    await asyncio.wait([task], timeout=20)
    assert task.done(), f"the work did not end after it was cancelled (wait {point})"
    return None if task.cancelled() or task.exception() else task.result()


def diagnostics(task: Fields) -> str:
    """The findings of the validator for a transfer."""
    import json

    from noetl.core.language.compile import compile_playbook

    playbook = {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "sample"},
        "workflow": [{"step": "start", "tool": {"kind": "transfer", **task}}],
    }
    compilation = compile_playbook(json.dumps(playbook), file="sample.yaml", specs=specs())
    return "\n".join(str(each) for each in compilation.diagnostics)


def numbers_table(folder: Path) -> Fields:
    """A table with FAILING_ROW + 1 rows."""
    file = folder / "numbers.sqlite"
    if not file.exists():
        with sqlite3.connect(file) as database:
            database.execute("CREATE TABLE numbers (id INTEGER, name TEXT, price REAL, note TEXT)")
            database.executemany(
                "INSERT INTO numbers VALUES (?, 'row', 0.5, NULL)", [(number,) for number in range(FAILING_ROW + 1)]
            )
        database.close()
    return {"kind": "sqlite", "file": str(file)}


def failing_source(folder: Path) -> Fields:
    """A source whose row number FAILING_ROW cannot be read."""
    fails = f"CASE WHEN id = {FAILING_ROW} THEN abs(-9223372036854775807 - 1) ELSE id END"
    return {**numbers_table(folder), "query": f"SELECT {fails} AS id, name, price, note FROM numbers"}


async def cancel_after_first_chunk(given: Fields, host: ToolHost) -> None:
    """Run a transfer and cancel it when it has written a chunk; fails if it does not end soon."""
    written = asyncio.Event()
    report = host.progress

    def progress(**counts: float) -> None:
        report(**counts)
        written.set()

    host.progress = progress  # type: ignore[method-assign]
    try:
        task = asyncio.ensure_future(load("transfer")(tool_call("transfer", given, host=host)))
        waiting = asyncio.ensure_future(written.wait())
        await asyncio.wait([task, waiting], timeout=60, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert written.is_set(), "no chunk was written"
        task.cancel()
        await asyncio.wait([task], timeout=20)
        assert task.done(), "the transfer did not end after it was cancelled"
        assert task.cancelled() or task.exception() or task.result().error, "the cancellation was swallowed"
    finally:
        host.progress = report  # type: ignore[method-assign]
        await close_loop_resources()


def _wait_for(condition: Callable[[], bool], seconds: float) -> None:
    import time

    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "connections are still open"
        time.sleep(0.05)
