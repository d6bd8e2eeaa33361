"""Resources that all calls of one event loop share: pools, sessions, connections.

A resource is created by the first call of `per_loop` with its key. The code that ends the loop (a worker, the
embedded engine, a test) closes all resources with `close_loop_resources`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

# Weak: the resources of a loop that ended without `close_loop_resources` are collected with the loop,
# so a resource must not refer to its loop.
_resources: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, Any]] = WeakKeyDictionary()


def per_loop(key: Hashable, create: Callable[[], T]) -> T:
    """The resource of a key in the running loop, created by the first call.

    `close_loop_resources` calls its `close()` (plain or async), if it has one."""
    loop = asyncio.get_running_loop()
    resources = _resources.get(loop)
    if resources is None:
        resources = _resources[loop] = {}
    if key not in resources:
        resources[key] = create()
    found: T = resources[key]
    return found


async def close_loop_resources() -> None:
    """Close all resources of the running loop, newest first; the first failure is raised at the end."""
    resources = _resources.pop(asyncio.get_running_loop(), {})
    failures: list[Exception] = []
    for resource in reversed(resources.values()):
        close = getattr(resource, "close", None)
        if close is None:
            continue
        try:
            result = close()
            if asyncio.iscoroutine(result):
                await result
        except Exception as failure:  # noqa: BLE001 - the others are closed too; raised below
            failures.append(failure)
    if failures:
        raise failures[0]
