"""The port of load samples: queue, workers and throughput of servers over days."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class StoredLoad(Struct, frozen=True):
    """The load of one server in a few minutes: the maxima, and what ended."""

    at: float  # end of the interval
    server: str
    queue_depth: int
    oldest_wait_s: float
    workers: int
    slots: int
    leases: int
    ended: int
    failed: int


class LoadSampleStore(Protocol):
    """Load samples, in order of time."""

    async def add(self, sample: StoredLoad) -> None:
        """Store a sample."""

    async def since(self, at: float) -> list[StoredLoad]:
        """The samples since an instant, oldest first."""

    async def drop(self, before: float) -> None:
        """Delete the samples before an instant."""
