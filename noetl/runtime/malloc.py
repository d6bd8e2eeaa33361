"""Returns freed memory to the operating system; the C library would keep it in the arena of every thread."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock

MMAP_THRESHOLD = -3  # an option of mallopt
RETURNED_BLOCK, USUAL_BLOCK = 1 << 20, 32 << 20
_lock = Lock()
_users = 0


def release_memory() -> None:
    """Return freed memory to the operating system, if the C library supports it."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


@cache
def _function(name: str) -> Callable[..., int] | None:
    """A function of glibc; None in other libraries."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


@contextmanager
def returning_blocks() -> Iterator[None]:
    """Return blocks from 1 MB on to the operating system as soon as they are freed.

    By default the C library raises that size to 32 MB, and keeps smaller blocks in the arena of each thread. This costs
    CPU time for new pages, so it is for what allocates many such blocks in several threads."""
    global _users
    mallopt = _function("mallopt")
    with _lock:
        _users += 1
        if mallopt is not None:
            mallopt(MMAP_THRESHOLD, RETURNED_BLOCK)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if mallopt is not None and not _users:
                mallopt(MMAP_THRESHOLD, USUAL_BLOCK)
