"""What suits processes that live long: libuv's event loop (Python's own where that is not installed), and a collector
that lets what is loaded rest.

The loop does the same work in a tenth to a sixth less time, but takes a while to load, so a command that runs one
playbook does without.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, on the faster loop where there is one."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def settle() -> None:
    """All is loaded, and most of it stays: nobody looks through it for garbage again, nor often through the rest.

    Hardly anything that is made for a request or a run is part of a cycle."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
