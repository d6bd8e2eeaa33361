"""Wait for a condition instead of an amount of time."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 30.0  # far beyond what a loaded machine needs


async def until(condition: Callable[[], Any], *, seconds: float = PATIENCE_SECONDS) -> Any:
    """The first true value of `condition`, which may be a coroutine function; an AssertionError when it stays false."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, f"the condition did not become true within {seconds} s"
        await asyncio.sleep(0.01)


def wait_until(condition: Callable[[], Any], *, seconds: float = PATIENCE_SECONDS) -> Any:
    """The same without an event loop."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"the condition did not become true within {seconds} s"
        time.sleep(0.02)
    return value


def a_call_runs() -> bool:
    """Whether a blocking call of a tool runs in a thread."""
    return any(thread.name.startswith("noetl-call") for thread in threading.enumerate())
