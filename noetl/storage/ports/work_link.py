"""The link between a worker and a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from noetl.core.model.work import Claim, HeartbeatReply, Report, ReportAck, RunOrder


class WorkLink(Protocol):
    """A worker's line to the control plane: local, http or nats."""

    async def claim(self, claim: Claim, *, wait: float) -> list[RunOrder]:
        """Runs this worker now holds the lease of; waits up to `wait` seconds for one."""

    async def extend(self, worker: str, runs: Sequence[tuple[str, int]]) -> HeartbeatReply:
        """A worker names all leases (run id, epoch) that it holds, and they are prolonged. It hears which of them
        are not its own any more, and which others are: their order got lost on its way."""

    async def revoked(self, worker: str, *, wait: float) -> list[str]:
        """Runs taken away from this worker (cancelled, timed out, given to another): stop them, kill
        their tools, report nothing more. Waits up to `wait` seconds for one."""

    async def give_back(self, worker: str, runs: Sequence[tuple[str, int]]) -> None:
        """A worker that shuts down lets go of runs (run id, epoch) it has not finished; no attempt is lost."""

    async def report(
        self, worker: str, reports: Sequence[Report], *, free: int = 0
    ) -> tuple[list[ReportAck], list[RunOrder]]:
        """Hand over events; answered after they are on disk. With `free` slots the answer may
        bring the next runs along, leased in the same append."""

    async def playbook(self, digest: str) -> bytes:
        """The compiled playbook (JSON of the IR)."""

    async def secrets(self, execution_id: str, names: Sequence[str]) -> dict[str, Any]:
        """Resolved keychain values, handed to the worker that needs them."""

    async def close(self) -> None:
        """Let go."""


class RemoteLink(WorkLink, Protocol):
    """A line whose answers may get lost on their way."""

    on_lost_reply: Callable[[], None]  # called when one got lost that may have brought orders
