"""Marks reads that a replica of the database may answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class ReadScope:
    """The reads of one request; a task that was started by it and outlives it reads from the primary again."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = True


_SCOPE: ContextVar[ReadScope | None] = ContextVar("reads", default=None)


@contextmanager
def replica_reads() -> Iterator[ReadScope]:
    """Lists that are read in this block, until the scope is closed, may be read from a replica."""
    scope = ReadScope()
    token = _SCOPE.set(scope)
    try:
        yield scope
    finally:
        scope.open = False
        _SCOPE.reset(token)


def may_use_replica() -> bool:
    """Whether the current read may be answered by a replica."""
    scope = _SCOPE.get()
    return scope is not None and scope.open
