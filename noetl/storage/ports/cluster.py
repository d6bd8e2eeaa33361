"""The cluster ports: membership of servers, leases for periodic tasks, and worker heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class Heartbeat(NamedTuple):
    """The result of a server's heartbeat."""

    forgotten: bool = False  # another server has removed this one
    died: tuple[int, ...] = ()  # stopped servers, whose executions this server takes over
    sweep: bool = False  # this server performs the next sweep


class Membership(Protocol):
    """The registry of the servers of one store."""

    async def beat(self) -> Heartbeat:
        """Send a heartbeat."""

    async def acquire_turn(self, name: str, seconds: float) -> bool:
        """Whether this server performs a task now; no server performs it again before the time has passed."""

    async def leave(self) -> None:
        """Leave; other servers take over."""


class LeaderLease(Protocol):
    """Leases for periodic tasks that one of several servers performs for all of them."""

    async def acquire_leadership(self, task: str, seconds: float) -> bool:
        """Acquire or renew the lease of a task for some seconds; False if another server holds it."""


class WorkerHeartbeats(Protocol):
    """The last heartbeat of each worker at any server, where several servers share a store."""

    async def record_heartbeat(self, worker: str, runs: Sequence[tuple[str, int]]) -> None:
        """Record a heartbeat of a worker with its leases (run id, epoch)."""

    async def seconds_since_heartbeat(self, worker: str, run_id: str, epoch: int) -> float | None:
        """Seconds since the last heartbeat of the worker that named this run; None if the last one did not."""

    async def silent_together(self, worker: str, seconds: float) -> bool:
        """Whether the last heartbeat of another worker was at most `seconds` before or after that of this one.

        True as well if the worker has no heartbeat."""


class DecisionMarks(Protocol):
    """Marks of decisions that may end their server, where several servers share a store."""

    async def mark_decision(self, execution_id: str, seq: int) -> bool:
        """Mark the decision that follows an event; False while another server that is alive makes it."""

    async def unmark_decision(self, execution_id: str) -> None:
        """The decision was made: remove all marks of the execution."""

    async def fatal_decisions(self, count: int) -> list[tuple[str, int]]:
        """Executions (with their event) that as many stopped servers have marked; their marks are removed."""


class WakeBus(Protocol):
    """A message bus that carries wake-ups between servers; a lost message costs one poll interval."""

    def subscribe(self, kind: str, on_message: Callable[[str, bytes], None], *, to: str = "*") -> None:
        """Call `on_message(channel, payload)` for each message of this kind."""

    def publish(self, kind: str, to: str, payload: bytes = b"") -> bool:
        """Publish a message; False when the bus is not connected."""
