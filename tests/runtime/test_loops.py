"""The loop that workers run on."""

from __future__ import annotations

import asyncio
import sys

import uvloop

from noetl.runtime import event_loop as loops


async def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_the_faster_loop_is_used_where_it_is_installed():
    assert isinstance(loops.run(_loop()), uvloop.Loop)


def test_python_has_a_loop_of_its_own(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert isinstance(loops.run(_loop()), asyncio.SelectorEventLoop)
