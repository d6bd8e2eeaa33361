"""What suits processes that live long: libuv's event loop (Python's own where that is not installed), a collector
that lets what is loaded rest, and threads that give way soon.

The loop does the same work in a tenth to a sixth less time, but takes a while to load, so a command that runs one
playbook does without.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
GARBAGE = (50_000, 20, 20)  # objects between two searches for garbage, and how much rarer the thorough ones are
TURN = 0.0005  # seconds that a thread computes while another one waits


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, on the faster loop where there is one."""
    import asyncio

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def freeze_gc() -> None:
    """All is loaded, and most of it stays: nobody looks through it for garbage again, nor often through the rest.

    Hardly anything that is made for a request or a run is part of a cycle. And a thread that computes (a long playbook
    being compiled, a page of rows) gives way ten times as soon as is usual, since a small request takes turns with it
    several times before it is answered."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE)
    sys.setswitchinterval(TURN)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
