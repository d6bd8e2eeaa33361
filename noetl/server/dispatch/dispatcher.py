"""Dispatch by long polling: matches free worker slots with runs.

A long poll that finds no run in the queue stays open, and its free slots are offered to the next decisions of any
execution, which can lease new runs in the same append. So a step starts with the flush that ended the previous one, and
the queue holds only runs for which no slot was free. Several decisions of one flush can use the slots of one worker:
what a decision does not use is offered again before its append. A worker whose poll has just ended with orders claims
again at once, so its other slots are still offered; the next poll returns the orders. The open polls of a pool claim
from the queue together.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field, structs

from noetl.core.engine.commands import ClaimAnyRun, Reply
from noetl.core.engine.concurrency_keys import DEFAULT_POOL
from noetl.core.model.work import Claim, RunOrder
from noetl.runtime.tasks import cancel
from noetl.server.orchestrator.execution_actor import SlotOffer
from noetl.storage.ports.queue import QueuedRun, RunQueue

LeaseRuns = Callable[[Claim, Sequence[QueuedRun]], Awaitable[list[RunOrder]]]
SLOTS_SECONDS = 0.5  # of a poll while a run waits that costs more than the free slots
LIVE_SECONDS = 30.0  # without a claim or a heartbeat until a worker no longer counts
MAX_OFFERS = 4  # workers with the same pool and labels whose slots one decision is offered
RETURN_SECONDS = 0.3  # after a poll ended with orders, in which its worker is expected to claim again
UNDELIVERED_SECONDS = 2.0  # that orders wait for the next request of their worker before they are returned

ReturnOrders = Callable[[Claim, Sequence[RunOrder]], None]


class _WorkerSlots(Struct, eq=False):
    """The slots of a worker, and its open long poll. Decisions and claims from the queue hold slots while they may give
    orders. The poll ends with the first orders; when it expires or is dismissed, only after no slots are held."""

    claim: Claim
    on_release: Callable[[], None]
    poll: asyncio.Future[None] | None = None
    free: int = 0  # slots that are not held
    held: int = 0
    holders: int = 0
    orders: list[RunOrder] = field(default_factory=list)  # for the open or the next poll
    seen: int = -1  # the version of the queue in which the worker has found nothing
    idle: bool = False  # its last claim from the queue has left no run for it there
    ending: bool = False  # the poll has expired or was dismissed
    short: bool = False  # the poll expires early, because a run costs more than the free slots: the worker claims all
    missed: bool = False  # others have claimed from the queue while the slots were held
    expected: float = 0.0  # until when the worker is expected to claim again, although no poll is open

    def available(self, now: float) -> bool:
        """Whether there are free slots: of the open poll, or of the next one."""
        return self.free > 0 and not self.ending and (self.poll is not None or self.expected > now)

    def begin(self, claim: Claim, poll: asyncio.Future[None]) -> None:
        """A new poll, with the slots that are free now in the worker."""
        if self.poll is not None and not self.poll.done():
            self.poll.set_result(None)  # the worker has given it up
        if self.short:
            self.seen, self.idle = -1, False  # with other slots it may find a run
        self.claim, self.poll, self.expected = claim, poll, 0.0
        self.free = claim.slots - self.held
        self.ending = self.short = self.missed = False
        self._end_if_possible()

    def hold(self, slots: int) -> int:
        """Hold free slots."""
        self.free -= slots
        self.held += slots
        self.holders += 1
        return slots

    def return_slots(self, slots: int) -> None:
        """Free slots that a holder does not need."""
        self.free += slots
        self.held -= slots
        if self.missed and self.free > 0:
            self.missed = False
            self.on_release()

    def release(self, slots: int = 0) -> None:
        """A holder has ended, and returns these slots."""
        self.holders -= 1
        self.return_slots(slots)
        self._end_if_possible()

    def give(self, orders: Sequence[RunOrder], slots: int) -> None:
        """A holder has ended with orders for these slots."""
        self.orders += orders
        self.held -= slots
        self.release()

    def end(self) -> None:
        """The wait time of the poll is over, or the worker stops or missed its heartbeats."""
        self.ending = True
        self.expected = 0.0
        self._end_if_possible()

    def fail(self, problem: Exception) -> None:
        """The queue cannot be read."""
        if self.poll is not None and not self.poll.done():
            self.poll.set_exception(problem)

    def _end_if_possible(self) -> None:
        if self.poll is not None and not self.poll.done() and (self.orders or (self.ending and not self.holders)):
            self.poll.set_result(None)


class _Pool(Struct, eq=False):
    """The workers of a pool with an open poll, or expected to claim again, by their labels."""

    name: str
    version: int  # of the queue, unique: another one whenever runs may have been added
    workers: dict[tuple[str, ...], dict[_WorkerSlots, None]] = field(default_factory=dict)
    unwatch: Callable[[], None] | None = None
    due: bool = False  # runs may wait since the last claim from the queue began
    task: asyncio.Task[None] | None = None

    def add(self, worker: _WorkerSlots) -> None:
        """Add a worker, or move it behind the others."""
        group = self.workers.setdefault(worker.claim.labels, {})
        group.pop(worker, None)
        group[worker] = None

    def remove(self, worker: _WorkerSlots) -> None:
        """Remove a worker."""
        group = self.workers.get(worker.claim.labels, {})
        group.pop(worker, None)
        if not group:
            self.workers.pop(worker.claim.labels, None)

    def offered(self, workers: Iterable[_WorkerSlots], now: float) -> list[_WorkerSlots]:
        """The first workers whose slots can be offered to a decision: those that have left nothing in the queue.

        While new runs are claimed from the queue half of their slots can be offered: else a run would have to
        wait in the queue for no other reason than that another one does."""
        found = _open_first(each for each in workers if each.idle and each.available(now))
        return found[:MAX_OFFERS]

    def __iter__(self) -> Iterator[_WorkerSlots]:
        return itertools.chain.from_iterable(self.workers.values())


class Dispatcher:
    """Open long polls, and the queue."""

    def __init__(self, queue: RunQueue, lease_runs: LeaseRuns, return_orders: ReturnOrders) -> None:
        self._queue = queue
        self._lease_runs = lease_runs
        self._return_orders = return_orders
        self._pools: dict[str, _Pool] = {}
        self._workers: dict[str, _WorkerSlots] = {}
        self._versions = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self.pools: dict[str, str] = {}  # worker -> pool of its last claim
        self._last: dict[str, Claim] = {}  # worker -> its last claim
        self._live: dict[str, dict[str, float]] = {}  # pool -> worker -> when it was last seen, the earliest first

    async def claim(self, claim: Claim, wait: float) -> list[RunOrder]:
        """Runs for this worker; waits up to `wait` seconds for the first one."""
        self._live.get(self.pool_of(claim.worker), {}).pop(claim.worker, None)  # it may have changed its pool
        self.pools[claim.worker] = claim.pool
        self._last[claim.worker] = claim
        self.seen(claim.worker)
        if wait <= 0:
            return await self.claim_now(claim)
        loop = asyncio.get_running_loop()
        pool, worker, poll = self._pool(claim.pool), self._worker(claim), loop.create_future()
        worker.begin(claim, poll)
        pool.add(worker)
        timer = loop.call_later(wait, self._end, worker, poll)
        if worker.seen != pool.version:
            self._claim_for_polls(pool)
        try:
            await poll
        except BaseException:
            if worker.poll is poll:
                worker.poll = None
                self._return_undelivered(worker)
                self._remove(pool, worker)
            raise
        finally:
            timer.cancel()
        if worker.poll is not poll:
            return []  # the worker has sent another claim
        worker.poll = None
        orders, worker.orders = worker.orders, []
        if orders and not any(order.alone for order in orders):
            worker.expected = loop.time() + RETURN_SECONDS
        else:
            self._remove(pool, worker)
        return orders

    async def claim_now(self, claim: Claim) -> list[RunOrder]:
        """Runs that are in the queue now."""
        while taken := await self._queue.take(self.shared(claim)):
            orders = await self._lease_runs(claim, taken)
            if orders:
                return orders
        return []

    async def close(self) -> None:
        """Stop claiming for open polls."""
        await cancel(*self._tasks)

    # ── workers and pools ───────────────────────────────────────────────────────────────

    def _pool(self, name: str) -> _Pool:
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = _Pool(name, next(self._versions))
            # Subscribe before the first read, so that a run enqueued between read and sleep is not missed.
            pool.unwatch = self._queue.watch(name, partial(self._queue_changed, pool))
        return pool

    def _worker(self, claim: Claim) -> _WorkerSlots:
        """The slots of a worker; new ones if it has changed its pool or labels."""
        known = self._workers.get(claim.worker)
        if known is not None:
            if (known.claim.pool, known.claim.labels) == (claim.pool, claim.labels):
                return known
            known.end()
            self._remove(self._pool(known.claim.pool), known)
        worker = self._workers[claim.worker] = _WorkerSlots(
            claim, lambda: self._claim_for_polls(self._pool(claim.pool))
        )
        return worker

    def _remove(self, pool: _Pool, worker: _WorkerSlots) -> None:
        """Offer the slots of a worker no longer; the last one of a pool ends its subscription to the queue."""
        pool.remove(worker)
        if not pool.workers and self._pools.get(pool.name) is pool:
            del self._pools[pool.name]
            if pool.unwatch is not None:
                pool.unwatch()

    @staticmethod
    def _end(worker: _WorkerSlots, poll: asyncio.Future[None]) -> None:
        if worker.poll is poll:
            worker.end()

    def undelivered(self, worker: str) -> list[RunOrder]:
        """The orders that wait for the next poll of a worker, if another reply delivers them."""
        known = self._workers.get(worker)
        if known is None or known.poll is not None:
            return []
        orders, known.orders = known.orders, []
        return orders

    def _return_undelivered(self, worker: _WorkerSlots, given: Sequence[RunOrder] | None = None) -> None:
        """Return the orders, all or those of `given`, of a worker that has no open poll."""
        if worker.orders and worker.poll is None:
            late = [each for each in worker.orders if given is None or any(each is order for order in given)]
            if late:
                worker.orders = [each for each in worker.orders if not any(each is order for order in late)]
                self._return_orders(worker.claim, late)

    def _give(self, worker: _WorkerSlots, orders: Sequence[RunOrder], slots: int) -> None:
        """Give orders to the open poll of a worker, or to its next one if it is expected soon."""
        loop = asyncio.get_running_loop()
        worker.give(orders, slots)
        if worker.poll is None and worker.expected:
            loop.call_later(UNDELIVERED_SECONDS, self._return_undelivered, worker, orders)
        else:
            self._return_undelivered(worker)

    # ── claims of open polls ────────────────────────────────────────────────────────────

    def _queue_changed(self, pool: _Pool) -> None:
        pool.version = next(self._versions)
        now = asyncio.get_running_loop().time()
        for worker in [each for each in pool if each.poll is None and each.expected <= now]:
            self._remove(pool, worker)
        self._claim_for_polls(pool)

    def _claim_for_polls(self, pool: _Pool) -> None:
        """Let the open polls of a pool claim from the queue, because runs may wait there."""
        pool.due = True
        if pool.task is None:
            pool.task = self._run(self._claim_together(pool))

    async def _claim_together(self, pool: _Pool) -> None:
        """One claim for all open polls of a pool with free slots, again while runs may wait; each gets its share."""
        try:
            while pool.due:
                pool.due = False
                version = pool.version
                now = asyncio.get_running_loop().time()
                for each in pool:
                    each.missed = not each.available(now)
                claiming = _open_first(each for each in pool if not each.missed)
                if not claiming:
                    return
                live = self.live_workers(pool.name)
                slots = [each.hold(-(-each.free // 2) if each.idle else each.free) for each in claiming]
                claims = [
                    structs.replace(each.claim, slots=held, workers=live)
                    for each, held in zip(claiming, slots, strict=True)
                ]
                try:
                    taken = await self._queue.take_each(claims)
                except BaseException as problem:
                    for each, held in zip(claiming, slots, strict=True):
                        if isinstance(problem, Exception):
                            each.fail(problem)
                        each.release(held)
                    if isinstance(problem, Exception):
                        return
                    raise
                took_all = len(claims) >= live and not self._queue.waits_for_slots(pool.name)
                for each, held, runs in zip(claiming, slots, taken, strict=True):
                    each.idle = not runs or (took_all and len(runs) < held)
                    if each.idle:
                        each.seen = version
                    if runs:
                        self._run(self._lease(pool, each, held, runs))
                    else:
                        self._found_nothing(each, held)
        finally:
            pool.task = None

    def _found_nothing(self, worker: _WorkerSlots, held: int) -> None:
        if worker.poll is not None and not worker.short and self._queue.waits_for_slots(worker.claim.pool):
            worker.short = True
            asyncio.get_running_loop().call_later(SLOTS_SECONDS, self._end, worker, worker.poll)
        worker.release(held)

    async def _lease(self, pool: _Pool, worker: _WorkerSlots, held: int, runs: Sequence[QueuedRun]) -> None:
        """Lease the runs that were taken from the queue for a worker."""
        orders: list[RunOrder] = []
        try:
            orders = await self._lease_runs(worker.claim, runs)
        finally:
            if orders:
                used = min(held, _cost(orders, worker.claim))
                worker.return_slots(held - used)
                self._give(worker, orders, used)
            else:
                worker.release(held)
                self._claim_for_polls(pool)

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def dismiss(self, worker: str) -> None:
        """Close the polls of a worker that stops or missed its heartbeats; if it is alive, it claims again."""
        self._live.get(self.pool_of(worker), {}).pop(worker, None)
        known = self._workers.get(worker)
        if known is not None:
            known.end()

    def forget(self, worker: str) -> None:
        """Forget a worker that has not been seen for a long time."""
        self.dismiss(worker)
        pool = self.pools.pop(worker, None)
        self._last.pop(worker, None)
        known = self._workers.pop(worker, None)
        if known is not None:
            self._return_undelivered(known)
            self._remove(self._pool(known.claim.pool), known)
        if pool is not None and not self._live.get(pool):
            self._live.pop(pool, None)

    def slot_offers(self) -> list[SlotOffer]:
        """Free slots of open polls, offered to one decision; each worker is offered its share of the rest."""
        if not self._pools:
            return []
        offers: list[SlotOffer] = []
        now = asyncio.get_running_loop().time()
        for pool in self._pools.values():
            left = self.live_workers(pool.name)  # workers without an offer
            for worker in [each for group in pool.workers.values() for each in pool.offered(group, now)]:
                offers.append(self._offer(pool, worker, max(1, left)))
                left -= 1
        return offers

    def seen(self, worker: str) -> None:
        """Record that a worker is alive."""
        pool = self.pools.get(worker)
        if pool is not None:
            live = self._live.setdefault(pool, {})
            live.pop(worker, None)
            live[worker] = asyncio.get_running_loop().time()

    def live_workers(self, pool: str) -> int:
        """The number of workers of a pool that are alive, at least one."""
        live = self._live.get(pool)
        if live is None or len(live) < 2:
            return 1
        oldest = asyncio.get_running_loop().time() - LIVE_SECONDS
        while live and live[worker := next(iter(live))] < oldest:
            del live[worker]
        return max(1, len(live))

    def claim_of(self, worker: str, slots: int) -> Claim:
        """A claim of a worker for these slots, with pool, labels and capacity of its last one.

        Without one (of another server, or before a restart) its pool is unknown: it gets no slots."""
        last = self._last.get(worker)
        return Claim(worker, 0) if last is None else structs.replace(last, slots=slots)

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

    def _offer(self, pool: _Pool, worker: _WorkerSlots, workers: int) -> SlotOffer:
        claim = worker.claim
        held = worker.hold(worker.free)

        def decided(reply: Reply) -> None:
            nonlocal held
            used = min(held, _cost(reply.orders, claim))
            if used and worker in pool.workers.get(claim.labels, ()):
                pool.add(worker)  # the next decision is offered the slots of others first
            unused, held = held - used, used
            worker.return_slots(unused)

        def accept(reply: Reply) -> None:
            if reply.orders:
                self._give(worker, reply.orders, held)
            else:
                worker.release(held)

        command = ClaimAnyRun(claim.worker, held, pool_name(claim.pool), workers, claim.labels, claim.capacity)
        return SlotOffer(command, decided, accept, lambda: worker.release(held))


def _open_first(workers: Iterable[_WorkerSlots]) -> list[_WorkerSlots]:
    """Workers with open polls; if there are none, those that are expected to claim again."""
    found = list(workers)
    return [each for each in found if each.poll is not None] or found


def _cost(orders: Iterable[RunOrder], claim: Claim) -> int:
    """The slots that runs occupy, each at most all of its worker."""
    return sum(min(order.cost, claim.capacity) if claim.capacity else order.cost for order in orders)


def pool_name(pool: str) -> str | None:
    """A pool as the engine names it: None is the default pool."""
    return None if pool == DEFAULT_POOL else pool
