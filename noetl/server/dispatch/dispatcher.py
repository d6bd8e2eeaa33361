"""Dispatch by long polling: matches free worker slots with runs.

A claim takes runs from the queue. If the queue is empty the long poll stays open, and its free slots are
offered to the next decision of any execution, which can lease new runs in the same append. So a step starts with
the flush that ended the previous one, and the queue holds only runs for which no slot was free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct, structs

from noetl.core.engine.commands import ClaimAnyRun, Reply
from noetl.core.engine.concurrency_keys import DEFAULT_POOL
from noetl.core.model.work import Claim, RunOrder
from noetl.server.orchestrator.execution_actor import SlotOffer
from noetl.storage.ports.queue import QueuedRun, RunQueue

LeaseRuns = Callable[[Claim, Sequence[QueuedRun]], Awaitable[list[RunOrder]]]
SLOTS_SECONDS = 0.5  # of a poll while a run waits that costs more than the free slots
LIVE_SECONDS = 30.0  # without a claim or a heartbeat until a worker no longer counts

ReturnOrders = Callable[[Claim, Sequence[RunOrder]], None]


class _PendingPoll(Struct, eq=False):
    """An open long poll. It sleeps until it gets orders, the queue changes or it expires; not while it is offered."""

    claim: Claim
    orders: list[RunOrder] | None = None
    woken: bool = False  # since it last slept
    expired: bool = False
    dismissed: bool = False  # its worker stops, or missed its heartbeats
    offered: bool = False
    closed: bool = False
    _sleeping: asyncio.Future[None] | None = None

    async def sleep(self) -> None:
        """Sleep until `wake` is or was called, and until no decision holds the slots."""
        while self.offered or not self.woken:
            self._sleeping = asyncio.get_running_loop().create_future()
            await self._sleeping
        self.woken = False

    def wake(self) -> None:
        """End the sleep, after the slots are returned if they are offered."""
        self.woken = True
        if not self.offered and self._sleeping is not None and not self._sleeping.done():
            self._sleeping.set_result(None)

    def expire(self) -> None:
        """The wait time of the claim is over."""
        self.expired = True
        self.wake()

    def release(self) -> None:
        """The decision has returned the offered slots."""
        self.offered = False
        if self.woken:
            self.wake()


class Dispatcher:
    """Open long polls, and the queue."""

    def __init__(self, queue: RunQueue, lease_runs: LeaseRuns, return_orders: ReturnOrders) -> None:
        self._queue = queue
        self._lease_runs = lease_runs
        self._return_orders = return_orders
        self._polls: dict[_PendingPoll, None] = {}
        self.pools: dict[str, str] = {}  # worker -> pool of its last claim
        self._last: dict[str, Claim] = {}  # worker -> its last claim
        self._live: dict[str, dict[str, float]] = {}  # pool -> worker -> when it was last seen

    async def claim(self, claim: Claim, wait: float) -> list[RunOrder]:
        """Runs for this worker; waits up to `wait` seconds for the first one."""
        self._live.get(self.pool_of(claim.worker), {}).pop(claim.worker, None)  # it may have changed its pool
        self.pools[claim.worker] = claim.pool
        self._last[claim.worker] = claim
        self.seen(claim.worker)
        if wait <= 0:
            return await self.claim_now(claim)
        poll = _PendingPoll(claim)
        timer = asyncio.get_running_loop().call_later(wait, poll.expire)
        # Subscribe before the first read, so that a run enqueued between read and sleep is not missed.
        unsubscribe = self._queue.watch(claim.pool, poll.wake)
        try:
            while True:
                orders = await self.claim_now(claim)
                if orders or poll.expired:
                    return orders
                if self._queue.waits_for_slots(claim.pool):
                    asyncio.get_running_loop().call_later(SLOTS_SECONDS, poll.expire)  # the worker claims all its slots
                self._polls[poll] = None
                await poll.sleep()
                if poll.orders is not None:
                    return poll.orders
                if poll.dismissed:
                    return []
                self._polls.pop(poll, None)  # its slots are used for runs of the queue now, not for offers
        except asyncio.CancelledError:
            if poll.orders is not None:
                self._return_orders(claim, poll.orders)
            raise
        finally:
            timer.cancel()
            unsubscribe()
            poll.closed = True
            self._polls.pop(poll, None)

    async def claim_now(self, claim: Claim) -> list[RunOrder]:
        """Runs that are in the queue now."""
        while taken := await self._queue.take(self.shared(claim)):
            orders = await self._lease_runs(claim, taken)
            if orders:
                return orders
        return []

    def dismiss(self, worker: str) -> None:
        """Close the polls of a worker that stops or missed its heartbeats; if it is alive, it claims again."""
        self._live.get(self.pool_of(worker), {}).pop(worker, None)
        for poll in [each for each in self._polls if each.claim.worker == worker]:
            self._polls.pop(poll, None)
            poll.dismissed = True
            poll.wake()

    def forget(self, worker: str) -> None:
        """Forget a worker that has not been seen for a long time."""
        self.dismiss(worker)
        pool = self.pools.pop(worker, None)
        self._last.pop(worker, None)
        if pool is not None and not self._live.get(pool):
            self._live.pop(pool, None)

    def slot_offers(self) -> list[SlotOffer]:
        """The free slots of all open polls, offered to one decision; each worker is offered its share of the rest."""
        offers: list[SlotOffer] = []
        left: dict[str, int] = {}  # pool -> workers without an offer
        for poll in self._polls if self._polls else ():
            if not poll.offered:
                pool = poll.claim.pool
                left[pool] = max(1, left[pool] - 1 if pool in left else self.live_workers(pool))
                offers.append(self._offer(poll, left[pool]))
        return offers

    def seen(self, worker: str) -> None:
        """Record that a worker is alive."""
        pool = self.pools.get(worker)
        if pool is not None:
            self._live.setdefault(pool, {})[worker] = asyncio.get_running_loop().time()

    def live_workers(self, pool: str) -> int:
        """The number of workers of a pool that are alive, at least one."""
        live = self._live.get(pool)
        if live is None or len(live) < 2:
            return 1
        oldest = asyncio.get_running_loop().time() - LIVE_SECONDS
        for worker in [each for each, seen in live.items() if seen < oldest]:
            del live[worker]
        return max(1, len(live))

    def claim_of(self, worker: str, slots: int) -> Claim:
        """A claim of a worker for these slots, with pool, labels and capacity of its last one."""
        last = self._last.get(worker)
        return Claim(worker, slots) if last is None else structs.replace(last, slots=slots)

    def placement_problem(self, pool: str, labels: Sequence[str]) -> str | None:
        """Why no live worker known to this server can take a run of a pool with these labels; None: one can."""
        oldest = asyncio.get_running_loop().time() - LIVE_SECONDS
        live = [worker for worker, seen in self._live.get(pool, {}).items() if seen >= oldest]
        if not live:
            return f"the pool {pool} has no live worker"
        if any(set(labels) <= set(self.claim_of(worker, 0).labels) for worker in live):
            return None
        return f"no live worker of the pool {pool} has the labels {', '.join(labels)}"

    def shared(self, claim: Claim) -> Claim:
        """The claim with the number of workers that share what is ready."""
        return structs.replace(claim, workers=self.live_workers(claim.pool))

    def pool_of(self, worker: str) -> str:
        """The pool of a worker's last claim."""
        return self.pools.get(worker, DEFAULT_POOL)

    def _offer(self, poll: _PendingPoll, workers: int) -> SlotOffer:
        poll.offered = True
        claim = poll.claim

        def accept(reply: Reply) -> None:
            if reply.orders:
                if poll.closed:
                    self._return_orders(claim, reply.orders)
                else:
                    self._polls.pop(poll, None)
                    poll.orders = list(reply.orders)
                    poll.woken = True
            poll.release()

        command = ClaimAnyRun(claim.worker, claim.slots, pool_name(claim.pool), workers, claim.labels, claim.capacity)
        return SlotOffer(command, accept, poll.release)


def pool_name(pool: str) -> str | None:
    """A pool as the engine names it: None is the default pool."""
    return None if pool == DEFAULT_POOL else pool
