"""Shared resources are created once per event loop and closed with it."""

from __future__ import annotations

import asyncio

import pytest

from noetl.runtime.resources import close_loop_resources, per_loop
from noetl.testing.tools import run_tool


class Thing:
    def __init__(self, log, name, fails=False):
        self.log, self.name, self.fails = log, name, fails

    async def close(self):
        self.log.append(self.name)
        if self.fails:
            raise OSError(self.name)


def test_a_key_names_one_thing_per_loop():
    async def twice():
        return per_loop("k", object) is per_loop("k", object), id(per_loop("k", object))

    assert asyncio.run(twice())[0]


def test_closing_goes_newest_first_and_reaches_all_despite_a_failure():
    log = []

    async def open_and_close():
        per_loop("a", lambda: Thing(log, "a"))
        per_loop("b", lambda: Thing(log, "b", fails=True))
        per_loop("c", lambda: Thing(log, "c"))
        per_loop("plain", object)
        with pytest.raises(OSError, match="b"):
            await close_loop_resources()
        await close_loop_resources()

    asyncio.run(open_and_close())
    assert log == ["c", "b", "a"]


def test_a_tool_runs_by_itself():
    assert run_tool("noop", {"a": 1}).data == {"a": 1}
    assert run_tool("noop").data is None
