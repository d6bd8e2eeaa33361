"""The simulated link between workers and servers: it loses, duplicates and delays messages; the sender retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from noetl.core.model.quotas.token_bucket import QuotaCall, QuotaReply
from noetl.core.model.work import Claim, HeartbeatReply, Report, ReportAck, RunOrder
from noetl.errors import NoetlError, StoreUnavailable
from tests.simulation.virtual_time import block_if_dead

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.processes import ServerProcess

T = TypeVar("T")

REPLY_SECONDS = 3.0  # how long a sender waits for a reply before it retries


class ProcessCrashed(Exception):
    """The called process has crashed; there is no reply."""


class FaultyLink:
    """`ports.RemoteLink` with injected faults."""

    def __init__(self, cluster: Cluster, worker: str) -> None:
        self._cluster = cluster
        self._worker = worker
        self.on_lost_reply: Callable[[], None] = lambda: None
        self.last_fault = 0.0  # time of its last injected fault
        self._injector = cluster.injector
        self.awake = asyncio.Event()
        self.awake.set()

    async def claim(self, claim: Claim, *, wait: float) -> list[RunOrder]:
        """Claim runs."""
        orders: list[RunOrder] = await self._run_until_done(
            lambda work: work.claim(claim, wait=wait), wait, leases=True
        )
        self._note_orders(orders)
        return orders

    async def extend(self, worker: str, runs: Sequence[tuple[str, int]]) -> HeartbeatReply:
        """Send a heartbeat."""
        return await self._run_until_done(lambda work: work.extend(worker, runs))

    async def revoked(self, worker: str, *, wait: float) -> list[str]:
        """Wait for revoked runs."""
        return await self._run_until_done(lambda work: work.revoked(worker, wait=wait), wait)

    async def give_back(self, worker: str, runs: Sequence[tuple[str, int]], *, begun: Collection[str] = ()) -> None:
        """Return runs."""
        await self._run_until_done(lambda work: work.give_back(worker, runs, begun=begun))

    async def report(
        self, worker: str, reports: Sequence[Report], *, free: int = 0
    ) -> tuple[list[ReportAck], list[RunOrder]]:
        """Report events; a report under a stale lease must not be accepted."""

        async def delivered(work: Any) -> tuple[list[ReportAck], list[RunOrder]]:
            stale = [(report, self._cluster.log_length(report)) for report in reports if self._cluster.is_stale(report)]
            acks, orders = await work.report(worker, reports, free=free)
            for report, before in stale:
                if self._cluster.was_accepted(report, before):
                    self._cluster.violations.append(f"{report.run_id}: events of an old epoch were accepted")
            return acks, orders

        acks, orders = await self._run_until_done(delivered, leases=True)
        self._note_orders(orders)
        return acks, orders

    async def playbook(self, digest: str) -> bytes:
        """The compiled playbook."""
        return await self._run_until_done(lambda work: work.playbook(digest))

    async def bundle(self, digest: str) -> bytes:
        """A bundle."""
        return await self._run_until_done(lambda work: work.bundle(digest))

    async def schema(self, reference: str) -> bytes:
        """A registered schema."""
        return await self._run_until_done(lambda work: work.schema(reference))

    async def quota(self, call: QuotaCall) -> QuotaReply:
        """A token of a quota."""
        return await self._run_until_done(lambda work: work.quota(call))

    async def bundle_file(self, digest: str) -> bytes:
        """A file of a bundle."""
        return await self._run_until_done(lambda work: work.bundle_file(digest))

    async def secrets(self, execution_id: str, names: Sequence[str]) -> dict[str, Any]:
        """There are no secrets in the simulation."""
        return {}

    async def close(self) -> None:
        """Nothing to close."""

    def freeze(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Deliver nothing for this long."""
        self.awake.clear()
        loop.call_later(seconds, self._wake)

    def _wake(self) -> None:
        self.awake.set()
        self._note_fault()

    def _note_orders(self, orders: Iterable[RunOrder]) -> None:
        self._cluster.received.update((self._worker, order.run_id, order.epoch) for order in orders)

    def _note_fault(self) -> None:
        self.last_fault = self._cluster.clock.monotonic()

    async def _run_until_done(
        self, call: Callable[[Any], Coroutine[Any, Any, T]], wait: float = 0.0, *, leases: bool = False
    ) -> T:
        while True:
            await block_if_dead()
            await self.awake.wait()
            await asyncio.sleep(0.001)
            if self._injector.should_inject("link.delay"):
                await asyncio.sleep(self._injector.uniform(0.05, 2.0))
                self._note_fault()
            if self._injector.should_inject("link.drop_request"):
                self._note_fault()
                await asyncio.sleep(REPLY_SECONDS)
                continue
            server = self._cluster.any_server()
            if server is None:
                await asyncio.sleep(0.2)
                continue
            await block_if_dead()
            if self._injector.should_inject("link.duplicate"):
                self._cluster.spawn(self._send_late(server, call))
            try:
                answer = await server.call(lambda orchestrator: call(orchestrator.work), wait + REPLY_SECONDS)
            except (ProcessCrashed, TimeoutError, StoreUnavailable):
                self._reconcile_soon(leases)
                await asyncio.sleep(0.1)
                continue
            if self._injector.should_inject("link.drop_reply"):
                self._note_fault()
                await asyncio.sleep(REPLY_SECONDS)
                self._reconcile_soon(leases)
                continue
            await self.awake.wait()
            await block_if_dead()
            return answer

    def _reconcile_soon(self, leases: bool) -> None:
        if leases:
            self.on_lost_reply()

    async def _send_late(self, server: ServerProcess, call: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        """Send the same message again, later: the server must recognize the repetition."""
        await asyncio.sleep(self._injector.uniform(0.0, 4.0))
        self._note_fault()
        try:
            await server.call(lambda orchestrator: call(orchestrator.work), REPLY_SECONDS)
        except (ProcessCrashed, TimeoutError, NoetlError):
            return
