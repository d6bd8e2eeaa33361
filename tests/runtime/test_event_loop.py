"""The event loop of workers and servers."""

from __future__ import annotations

import asyncio
import sys

import uvloop

from noetl.runtime import event_loop


async def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_uvloop_is_used_where_it_is_installed():
    assert isinstance(event_loop.run(_loop()), uvloop.Loop)


def test_asyncios_own_loop_is_used_without_uvloop(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert isinstance(event_loop.run(_loop()), asyncio.SelectorEventLoop)
