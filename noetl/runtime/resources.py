"""What a process opens once per event loop and every call shares: pools, sessions, connections.

A tool asks for its shared thing by a key; the first call makes it, later calls find it. Whoever
ends the loop (`worker.py`, `local.py`, a test) closes all of it with `close_loop_resources()`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

# Weak: a loop that ended without `close_loop_resources` takes its things along when it is collected,
# so nothing kept here may hold its loop.
_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, Any]] = WeakKeyDictionary()


def per_loop(key: Hashable, make: Callable[[], T]) -> T:
    """The running loop's one thing of this key, made at the first call.

    If it has a `close()` (plain or async), `close_loop_resources` calls it."""
    loop = asyncio.get_running_loop()
    things = _shared.get(loop)
    if things is None:
        things = _shared[loop] = {}
    if key not in things:
        things[key] = make()
    found: T = things[key]
    return found


async def close_loop_resources() -> None:
    """Close everything the running loop shares, newest first; the first failure is raised at the end."""
    things = _shared.pop(asyncio.get_running_loop(), {})
    failures: list[Exception] = []
    for thing in reversed(things.values()):
        close = getattr(thing, "close", None)
        if close is None:
            continue
        try:
            answer = close()
            if asyncio.iscoroutine(answer):
                await answer
        except Exception as failure:  # noqa: BLE001 - the others must be closed too; raised below
            failures.append(failure)
    if failures:
        raise failures[0]
