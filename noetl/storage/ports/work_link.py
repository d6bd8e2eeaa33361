"""The link between a worker and a server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from noetl.core.model.quotas.token_bucket import QuotaCall, QuotaReply
from noetl.core.model.task_log import LogChunk
from noetl.core.model.work import Claim, HeartbeatReply, Report, ReportAck, RunOrder


class WorkLink(Protocol):
    """The link of a worker to the control plane: local, HTTP or NATS."""

    async def claim(self, claim: Claim, *, wait: float) -> list[RunOrder]:
        """Lease runs; a long poll of up to `wait` seconds."""

    async def extend(self, worker: str, runs: Sequence[tuple[str, int]]) -> HeartbeatReply:
        """Extend all leases (run id, epoch) of a worker. The reply lists the leases that it has lost, and leases
        that it did not name because their orders were lost in transit."""

    async def revoked(self, worker: str, *, wait: float) -> list[str]:
        """The runs that this worker has lost (cancelled, timed out, leased to another worker): it must stop them and
        report nothing more. A long poll of up to `wait` seconds."""

    async def give_back(self, worker: str, runs: Sequence[tuple[str, int]], *, begun: Collection[str] = ()) -> None:
        """Return unfinished runs (run id, epoch). An attempt is used up only of the runs whose tool had begun."""

    async def report(
        self, worker: str, reports: Sequence[Report], *, free: int = 0
    ) -> tuple[list[ReportAck], list[RunOrder]]:
        """Report events; returns after they are committed. With `free` slots the reply may
        have the next runs, leased in the same append."""

    async def logs(self, worker: str, number: int, chunks: Sequence[LogChunk]) -> None:
        """Send lines that tasks have printed; `number` counts the requests of a worker, so that a repeated one is
        recognized."""

    async def playbook(self, digest: str) -> bytes:
        """The compiled playbook (JSON of the IR)."""

    async def bundle(self, digest: str) -> bytes:
        """The bundle of a playbook (JSON)."""

    async def bundle_file(self, digest: str) -> bytes:
        """The content of a file of a bundle."""

    async def schema(self, reference: str) -> bytes:
        """A registered schema (JSON): `orders/v2`, or `orders` for the newest version."""

    async def quota(self, call: QuotaCall) -> QuotaReply:
        """Take a token of a quota, or pause it."""

    async def secrets(self, execution_id: str, names: Sequence[str]) -> dict[str, Any]:
        """Resolved keychain values for a worker."""

    async def close(self) -> None:
        """Close the link."""


class RemoteLink(WorkLink, Protocol):
    """A link whose replies may be lost in transit."""

    on_lost_reply: Callable[[], None]  # called when a reply was lost that may have had orders
