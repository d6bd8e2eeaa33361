"""Calls in threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from noetl.runtime.resources import close_loop_resources
from noetl.runtime.threads import MAX_THREADS, in_thread, open_in_thread


def test_what_a_cancelled_task_has_opened_is_closed():
    opened, closed, may_end = threading.Event(), threading.Event(), threading.Event()

    def open_file() -> str:
        opened.set()
        may_end.wait(10)
        return "file"

    async def run() -> None:
        task = asyncio.ensure_future(open_in_thread(open_file, lambda file: closed.set() if file == "file" else None))
        await asyncio.to_thread(opened.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_end.set()
        await asyncio.to_thread(closed.wait, 10)
        await close_loop_resources()

    asyncio.run(run())
    assert closed.is_set()


def test_a_cancelled_call_that_waits_for_a_thread_is_made() -> None:
    busy, made = threading.Event(), []

    async def scenario() -> None:
        waiting = [asyncio.ensure_future(in_thread(busy.wait)) for _ in range(MAX_THREADS)]
        call = asyncio.ensure_future(in_thread(lambda: made.append("released")))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.sleep(0)
        busy.set()
        await asyncio.wait([*waiting, call])
        assert call.cancelled()
        await close_loop_resources()

    asyncio.run(scenario())
    assert made == ["released"]
