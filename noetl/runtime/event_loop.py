"""Event loop, garbage collector and thread settings of long-lived processes.

uvloop does the same work in 10% to 17% less time (asyncio's own loop is used where it is not installed). It takes
a while to import, so a command that runs one playbook does not use it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
GC_THRESHOLDS = (50_000, 20, 20)
START_GC_THRESHOLDS = (200_000, 20, 20)  # while a command imports its modules: they stay alive
SWITCH_INTERVAL = 0.0005  # seconds after which a computing thread yields to a waiting one; the default is 0.005


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, on uvloop where it is installed."""
    import asyncio

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def freeze_gc() -> None:
    """Exclude all loaded objects from garbage collection, and collect the others less often.

    Few objects of a request or a run are part of a cycle. Threads switch ten times as often as by default, because
    a small request alternates several times with a computing thread (the compilation of a long playbook, for example).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL)


def end_start_up() -> None:
    """Exclude the modules that a command has imported from garbage collection, which is rare until then."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
