"""Finding a worker for a run, and a run for a worker.

A worker that asks while runs wait in the queue takes some of them. One that asks while none wait
stays at the desk: its free slots are lent to the next decision of any execution, and whatever
that decision starts is leased in the same append. So a step begins with the flush that
ended the one before it, and the queue holds only what nobody was free for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from noetl.control.execution import Offer
from noetl.engine.facts import ClaimAny, Reply
from noetl.model.work import Claim, RunOrder
from noetl.ports import QueuedRun, RunQueue

DEFAULT_POOL = "default"

Lease = Callable[[Claim, Sequence[QueuedRun]], Awaitable[list[RunOrder]]]
GiveBack = Callable[[Claim, Sequence[RunOrder]], None]


class _Waiter:
    """A claim at the desk."""

    __slots__ = ("claim", "gone", "lent", "orders", "settled")

    def __init__(self, claim: Claim, orders: asyncio.Future[list[RunOrder]]) -> None:
        self.claim = claim
        self.orders = orders
        self.lent = False
        self.gone = False
        self.settled = asyncio.Event()


class Claims:
    """The desk: workers that wait, and the queue behind it."""

    def __init__(self, queue: RunQueue, lease: Lease, give_back: GiveBack) -> None:
        self._queue = queue
        self._lease = lease
        self._give_back = give_back
        self._waiters: dict[_Waiter, None] = {}
        self.pools: dict[str, str] = {}  # worker -> pool, as it said when it last claimed

    async def claim(self, claim: Claim, wait: float) -> list[RunOrder]:
        """Runs for this worker; waits up to `wait` seconds for the first one."""
        self.pools[claim.worker] = claim.pool
        orders = await self.claim_now(claim)
        if orders or wait <= 0:
            return orders
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        waiter = _Waiter(claim, loop.create_future())
        try:
            while (remaining := deadline - loop.time()) > 0:
                self._waiters[waiter] = None
                orders = await self._wait_once(waiter, remaining)
                if orders:
                    return orders
            return []
        except asyncio.CancelledError:
            if waiter.orders.done():
                self._give_back(claim, waiter.orders.result())
            raise
        finally:
            waiter.gone = True
            self._waiters.pop(waiter, None)

    async def claim_now(self, claim: Claim) -> list[RunOrder]:
        """Runs that wait in the queue at this moment."""
        while taken := await self._queue.take(claim, wait=0):
            orders = await self._lease(claim, taken)
            if orders:
                return orders
        return []

    def offers(self) -> list[Offer]:
        """The free slots of every waiting worker, lent to one decision."""
        return [self._offer(waiter) for waiter in self._waiters if not waiter.lent] if self._waiters else []

    def pool_of(self, worker: str) -> str:
        """The pool a worker said it belongs to."""
        return self.pools.get(worker, DEFAULT_POOL)

    async def _wait_once(self, waiter: _Waiter, seconds: float) -> list[RunOrder]:
        from_queue = asyncio.ensure_future(self._queue.take(waiter.claim, wait=seconds))
        taken: list[QueuedRun] = []
        counted = False  # whether what came from the queue is in `taken` (or was)
        try:
            await asyncio.wait((from_queue, waiter.orders), return_when=asyncio.FIRST_COMPLETED)
            if from_queue.done():
                taken, counted = from_queue.result(), True
            if waiter.lent:
                await waiter.settled.wait()
            if waiter.orders.done():
                return waiter.orders.result()
            if taken:
                self._waiters.pop(waiter, None)  # its slots are for these runs now, not for offers
                runs, taken = taken, []
                return await self._lease(waiter.claim, runs)
            return []
        finally:
            if not counted:  # also when it came in the moment in which we were called off
                from_queue.cancel()
                taken = [*taken, *_result_of(*(await asyncio.gather(from_queue, return_exceptions=True)))]
            if taken:
                await self._queue.put(taken)

    def _offer(self, waiter: _Waiter) -> Offer:
        waiter.lent = True
        waiter.settled.clear()
        claim = waiter.claim

        def settle() -> None:
            waiter.lent = False
            waiter.settled.set()

        def answer(reply: Reply) -> None:
            if reply.orders:
                if waiter.gone or waiter.orders.done():
                    self._give_back(claim, reply.orders)
                else:
                    self._waiters.pop(waiter, None)
                    waiter.orders.set_result(list(reply.orders))
            settle()

        return Offer(ClaimAny(worker=claim.worker, slots=claim.slots, pool=pool_name(claim.pool)), answer, settle)


def pool_name(pool: str) -> str | None:
    """A pool as the engine knows it: steps that name none are the default pool's."""
    return None if pool == DEFAULT_POOL else pool


def _result_of(answer: list[QueuedRun] | BaseException) -> list[QueuedRun]:
    return [] if isinstance(answer, BaseException) else answer
