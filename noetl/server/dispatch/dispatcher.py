"""Finding a worker for a run, and a run for a worker.

A worker that asks while runs wait in the queue takes some of them. One that asks while none wait
stays at the desk: its free slots are lent to the next decision of any execution, and whatever
that decision starts is leased in the same append. So a step begins with the flush that
ended the one before it, and the queue holds only what nobody was free for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from noetl.core.engine.commands import ClaimAnyRun, Reply
from noetl.core.engine.concurrency_keys import DEFAULT_POOL
from noetl.core.model.work import Claim, RunOrder
from noetl.server.orchestrator.execution_actor import SlotOffer
from noetl.storage.ports.queue import QueuedRun, RunQueue

Lease = Callable[[Claim, Sequence[QueuedRun]], Awaitable[list[RunOrder]]]
GiveBack = Callable[[Claim, Sequence[RunOrder]], None]


class _PendingPoll:
    """A claim at the desk: it sleeps until orders come, a bell rings or its time is up, and while it is lent."""

    __slots__ = ("_asleep", "claim", "dismissed", "expired", "gone", "lent", "orders", "rung")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.orders: list[RunOrder] | None = None
        self.rung = False  # since it slept last
        self.expired = False
        self.dismissed = False  # its worker fell silent
        self.lent = False
        self.gone = False
        self._asleep: asyncio.Future[None] | None = None

    async def sleep(self) -> None:
        """Until something happens, however long ago."""
        while self.lent or not self.rung:
            self._asleep = asyncio.get_running_loop().create_future()
            await self._asleep
        self.rung = False

    def ring(self) -> None:
        """Something happened; whoever has borrowed the slots gives them back first."""
        self.rung = True
        if not self.lent and self._asleep is not None and not self._asleep.done():
            self._asleep.set_result(None)

    def expire(self) -> None:
        """Its time is up."""
        self.expired = True
        self.ring()

    def settle(self) -> None:
        """The slots are its own again."""
        self.lent = False
        if self.rung:
            self.ring()


class Dispatcher:
    """The desk: workers that wait, and the queue behind it."""

    def __init__(self, queue: RunQueue, lease: Lease, give_back: GiveBack) -> None:
        self._queue = queue
        self._lease = lease
        self._give_back = give_back
        self._waiters: dict[_PendingPoll, None] = {}
        self.pools: dict[str, str] = {}  # worker -> pool, as it said when it last claimed

    async def claim(self, claim: Claim, wait: float) -> list[RunOrder]:
        """Runs for this worker; waits up to `wait` seconds for the first one."""
        self.pools[claim.worker] = claim.pool
        if wait <= 0:
            return await self.claim_now(claim)
        waiter = _PendingPoll(claim)
        timer = asyncio.get_running_loop().call_later(wait, waiter.expire)
        unwatch = self._queue.watch(claim.pool, waiter.ring)  # before the first look: nothing comes unnoticed
        try:
            while True:
                orders = await self.claim_now(claim)
                if orders or waiter.expired:
                    return orders
                self._waiters[waiter] = None
                await waiter.sleep()
                if waiter.orders is not None:
                    return waiter.orders
                if waiter.dismissed:
                    return []
                self._waiters.pop(waiter, None)  # its slots are for the queue's runs now, not for offers
        except asyncio.CancelledError:
            if waiter.orders is not None:
                self._give_back(claim, waiter.orders)
            raise
        finally:
            timer.cancel()
            unwatch()
            waiter.gone = True
            self._waiters.pop(waiter, None)

    async def claim_now(self, claim: Claim) -> list[RunOrder]:
        """Runs that wait in the queue at this moment."""
        while taken := await self._queue.take(claim):
            orders = await self._lease(claim, taken)
            if orders:
                return orders
        return []

    def dismiss(self, worker: str) -> None:
        """Nothing for a worker that fell silent: it may be stopped while its claim still waits here. One that goes
        on asks again."""
        for waiter in [each for each in self._waiters if each.claim.worker == worker]:
            self._waiters.pop(waiter, None)
            waiter.dismissed = True
            waiter.ring()

    def offers(self) -> list[SlotOffer]:
        """The free slots of every waiting worker, lent to one decision."""
        return [self._offer(waiter) for waiter in self._waiters if not waiter.lent] if self._waiters else []

    def pool_of(self, worker: str) -> str:
        """The pool a worker said it belongs to."""
        return self.pools.get(worker, DEFAULT_POOL)

    def _offer(self, waiter: _PendingPoll) -> SlotOffer:
        waiter.lent = True
        claim = waiter.claim

        def answer(reply: Reply) -> None:
            if reply.orders:
                if waiter.gone:
                    self._give_back(claim, reply.orders)
                else:
                    self._waiters.pop(waiter, None)
                    waiter.orders = list(reply.orders)
                    waiter.rung = True
            waiter.settle()

        fact = ClaimAnyRun(worker=claim.worker, slots=claim.slots, pool=pool_name(claim.pool))
        return SlotOffer(fact, answer, waiter.settle)


def pool_name(pool: str) -> str | None:
    """A pool as the engine knows it: steps that name none are the default pool's."""
    return None if pool == DEFAULT_POOL else pool
