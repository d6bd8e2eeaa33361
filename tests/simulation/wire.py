"""The simulated wire between workers and servers: it loses, doubles and delays; the sender insists, as over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from noetl.core.model.work import Claim, HeartbeatReply, Report, ReportAck, RunOrder
from noetl.errors import NoetlError, StoreUnavailable
from tests.simulation.virtual import alive

if TYPE_CHECKING:
    from tests.simulation.world import SimServer, World

T = TypeVar("T")

REPLY_SECONDS = 3.0  # how long a sender waits for an answer before it sends again


class Crashed(Exception):
    """The process that was asked is no more; nobody hears its answer."""


class FaultyLink:
    """`ports.RemoteLink` over such a wire."""

    def __init__(self, world: World, worker: str) -> None:
        self._world = world
        self._worker = worker
        self.on_lost_reply: Callable[[], None] = lambda: None
        self.troubled = 0.0  # when it last did what a wire should not
        self._dice = world.dice
        self.awake = asyncio.Event()
        self.awake.set()

    async def claim(self, claim: Claim, *, wait: float) -> list[RunOrder]:
        """Ask for runs."""
        orders: list[RunOrder] = await self._run_until_done(
            lambda work: work.claim(claim, wait=wait), wait, leases=True
        )
        self._hear(orders)
        return orders

    async def extend(self, worker: str, runs: Sequence[tuple[str, int]]) -> HeartbeatReply:
        """A sign of life."""
        return await self._run_until_done(lambda work: work.extend(worker, runs))

    async def revoked(self, worker: str, *, wait: float) -> list[str]:
        """Wait to hear of runs that were taken away."""
        return await self._run_until_done(lambda work: work.revoked(worker, wait=wait), wait)

    async def give_back(self, worker: str, runs: Sequence[tuple[str, int]]) -> None:
        """Let go."""
        await self._run_until_done(lambda work: work.give_back(worker, runs))

    async def report(
        self, worker: str, reports: Sequence[Report], *, free: int = 0
    ) -> tuple[list[ReportAck], list[RunOrder]]:
        """Hand over events; one whose lease has passed on must not be believed."""

        async def delivered(work: Any) -> tuple[list[ReportAck], list[RunOrder]]:
            stale = [(report, self._world.length_of(report)) for report in reports if self._world.has_passed_on(report)]
            verdicts, orders = await work.report(worker, reports, free=free)
            for report, before in stale:
                if self._world.was_believed(report, before):
                    self._world.complaints.append(f"{report.run_id}: events of an old epoch were accepted")
            return verdicts, orders

        verdicts, orders = await self._run_until_done(delivered, leases=True)
        self._hear(orders)
        return verdicts, orders

    async def playbook(self, digest: str) -> bytes:
        """The compiled playbook."""
        return await self._run_until_done(lambda work: work.playbook(digest))

    async def secrets(self, execution_id: str, names: Sequence[str]) -> dict[str, Any]:
        """There are none here."""
        return {}

    async def close(self) -> None:
        """Let go."""

    def sleep(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Nothing passes for so long."""
        self.awake.clear()
        loop.call_later(seconds, self._wake)

    def _wake(self) -> None:
        self.awake.set()
        self._trouble()

    def _hear(self, orders: Iterable[RunOrder]) -> None:
        self._world.heard.update((self._worker, order.run_id, order.epoch) for order in orders)

    def _trouble(self) -> None:
        self.troubled = self._world.clock.monotonic()

    async def _run_until_done(
        self, call: Callable[[Any], Coroutine[Any, Any, T]], wait: float = 0.0, *, leases: bool = False
    ) -> T:
        while True:
            await alive()
            await self.awake.wait()
            await asyncio.sleep(0.001)
            if self._dice.strikes("link.delay"):
                await asyncio.sleep(self._dice.between(0.05, 2.0))
                self._trouble()
            if self._dice.strikes("link.drop_request"):
                self._trouble()
                await asyncio.sleep(REPLY_SECONDS)
                continue
            server = self._world.server
            if server is None:
                await asyncio.sleep(0.2)
                continue
            await alive()
            if self._dice.strikes("link.duplicate"):
                self._world.spawn(self._again(server, call))
            try:
                answer = await server.ask(lambda orchestrator: call(orchestrator.work), wait + REPLY_SECONDS)
            except (Crashed, TimeoutError, StoreUnavailable):
                self._doubted(leases)
                await asyncio.sleep(0.1)
                continue
            if self._dice.strikes("link.drop_reply"):
                self._trouble()
                await asyncio.sleep(REPLY_SECONDS)
                self._doubted(leases)
                continue
            await self.awake.wait()
            await alive()
            return answer

    def _doubted(self, leases: bool) -> None:
        if leases:
            self.on_lost_reply()

    async def _again(self, server: SimServer, call: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        """The same message, late: whoever answered the first one must recognise it."""
        await asyncio.sleep(self._dice.between(0.0, 4.0))
        self._trouble()
        try:
            await server.ask(lambda orchestrator: call(orchestrator.work), REPLY_SECONDS)
        except (Crashed, TimeoutError, NoetlError):
            return
