"""Memory that was freed, given back: the C library keeps it otherwise, piece by piece, in every thread's arena."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache


def give_back() -> None:
    """Return freed memory to the system, where the C library has a way to."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
