"""The cluster ports: leader leases and worker heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class LeaderLease(Protocol):
    """Work that one of several servers does for all of them."""

    async def acquire_leadership(self, duty: str, seconds: float) -> bool:
        """Whether this server has the duty for the next seconds: it had it, or nobody had."""


class WorkerHeartbeats(Protocol):
    """When each worker was last heard of by any server, where several work on one store."""

    async def seen(self, worker: str, runs: Sequence[tuple[str, int]]) -> None:
        """A worker says that it lives and holds these runs (run id, epoch)."""

    async def silent_for(self, worker: str, run_id: str, epoch: int) -> float | None:
        """Seconds since the worker last said to any server that it holds this run; None when it does not say so."""


class WakeBus(Protocol):
    """A message bus that carries wake-ups between servers; a lost message costs one poll interval."""

    def listen(self, kind: str, heard: Callable[[str, bytes], None], *, to: str = "*") -> None:
        """Call `heard(channel, payload)` for each message of this kind."""

    def tell(self, kind: str, to: str, said: bytes = b"") -> bool:
        """Publish a message; False when the bus is not connected."""
