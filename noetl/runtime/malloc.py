"""Returns freed memory to the operating system; the C library would keep it in the arena of every thread."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache


def release_memory() -> None:
    """Return freed memory to the operating system, if the C library supports it."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)  # in glibc, not in musl
