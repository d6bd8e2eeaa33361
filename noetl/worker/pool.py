"""A worker: claims runs, works on so many at once, keeps its leases alive, and leaves in good order.

Slots are leases. A run holds one from its claim until its last report is answered, except while
it only waits (a retry's delay): then somebody else may use it. Heartbeats are the pool's own and
come from no tool, so a tool that hangs does not lose the lease, and one whose lease is lost
is cancelled, which stops its work.

Orders arrive by claims and with the answers to reports. Runs are not given a task each: a few
slot tasks take orders from a line, so a run that never waits costs no task at all.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any

from noetl.core.model.outcome import error_info
from noetl.core.model.work import Claim, ReportAck, RunOrder
from noetl.runtime.clock import Clock
from noetl.storage.ports.work_link import WorkLink
from noetl.worker.reports import Reporter, RunEnded, RunReports
from noetl.worker.runner import Runner, failure_of

CLAIM_WAIT = 20.0  # seconds a claim may wait at the server
REVOKED_WAIT = 20.0
BEATS = 4  # signs of life within the term of a lease
HEARTBEAT = 5.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # after a call that failed
STOP_SECONDS = 5.0  # that a cancelled tool may take to stop its work
FIRST_CHECK = 0.5  # seconds after an answer got lost
MOST_RECENT = 10_000  # leases remembered that were let go
RUNS_IN_A_ROW = 64  # before a slot lets others have the loop

_log = logging.getLogger("noetl.work")


class _Recent:
    """The last leases (run id, epoch) of a sort."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, int], None] = {}

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key in self._keys

    def add(self, keys: Iterable[tuple[str, int]]) -> None:
        """Remember these, and forget the oldest where there are too many."""
        self._keys.update(dict.fromkeys(keys))
        for key in list(islice(self._keys, max(0, len(self._keys) - MOST_RECENT))):
            del self._keys[key]


class Held:
    """A run whose lease this worker holds."""

    __slots__ = ("lost", "order", "outlet", "slot")

    def __init__(self, order: RunOrder, outlet: RunReports) -> None:
        self.order = order
        self.outlet = outlet
        self.slot: asyncio.Task[None] | None = None
        self.lost = False


class Pool:
    """One worker process's runs."""

    def __init__(
        self,
        link: WorkLink,
        runner: Runner,
        *,
        worker: str,
        clock: Clock,
        slots: int = 256,
        pool: str = "default",
        labels: tuple[str, ...] = (),
        heartbeat: float = HEARTBEAT,
        lanes: int = 1,
    ) -> None:
        self.worker = worker
        self.slots = slots
        self.runner = runner
        self._link = link
        self._clock = clock
        self._pool = pool
        self._labels = labels
        self._heartbeat = heartbeat
        self._held: dict[tuple[str, int], Held] = {}
        self._reporter = Reporter(
            link,
            worker,
            clock=clock,
            free=self._free_after,
            held=self._held.__len__,
            on_end=self._ended,
            on_orders=self._accept,
            lanes=lanes,
        )
        self._line: deque[Held] = deque()
        self._slots: set[asyncio.Task[None]] = set()
        self._sending: set[asyncio.Task[None]] = set()  # slots that have finished a run and send its end
        self._resting = 0
        self._loops: list[asyncio.Task[None]] = []
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._ensuring = False
        self._more = 1  # slot tasks to begin at once
        self._let_go = _Recent()  # runs that were stopped here; their leases may stand at the server
        self._disowned = _Recent()  # runs whose order had not come when the server asked; it must not count any more
        self._check: asyncio.Task[None] | None = None
        self._check_pause = FIRST_CHECK
        self.finished = 0  # runs this worker brought to their end

    # ── life ────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Begin to claim and to work."""
        loop = asyncio.get_running_loop()
        self._room.set()
        self._reporter.start()
        self._loops = [
            loop.create_task(self._forever(self._claim)),
            loop.create_task(self._forever(self._beat)),
            loop.create_task(self._forever(self._listen)),
        ]

    async def stop(self, grace: float = 30.0) -> None:
        """Claim no more, let what runs come to its end for `grace` seconds, give the rest back."""
        self._draining = True
        self._stop_loop(0)
        waiting = list(self._line)
        self._line.clear()
        await self._give_back(waiting)
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
                await self._reporter.stop()
        except TimeoutError:
            unfinished = list(self._held.values())
            for held in unfinished:
                self._cancel(held)
            if working := self._slots - self._sending:
                _, hanging = await asyncio.wait(working, timeout=STOP_SECONDS)
                if hanging:
                    _log.error("%d tools did not stop when they were cancelled", len(hanging))
            await self._give_back(unfinished)
            await self._reporter.abandon()
            for slot in self._sending:
                slot.cancel()
        if self._check is not None:
            self._check.cancel()
        for number in range(len(self._loops)):
            self._stop_loop(number)
        await asyncio.gather(*self._loops, return_exceptions=True)

    async def abandon(self) -> None:
        """Let go of everything at once, as a process that dies does; for tests and last resorts."""
        self._draining = True
        ending = [*self._loops, *self._slots, *([self._check] if self._check is not None else [])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await self._reporter.abandon()

    @property
    def busy(self) -> int:
        """How many leases this worker holds."""
        return len(self._held)

    def _stop_loop(self, number: int) -> None:
        if number < len(self._loops):
            self._loops[number].cancel()

    async def _give_back(self, runs: Sequence[Held]) -> None:
        """Let others have runs that were not finished; no attempt is lost."""
        given = [held for held in runs if not held.outlet.ending]
        for held in given:
            held.outlet.close()
            self._release(held)
        if given:
            try:
                await self._link.give_back(self.worker, [(held.order.run_id, held.order.epoch) for held in given])
            except Exception as problem:  # noqa: BLE001 - the leases run out by themselves
                _log.warning("%d runs could not be given back: %s", len(given), problem)

    # ── the three loops ─────────────────────────────────────────────────────────────────

    async def _forever(self, turn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do a turn again and again; one that fails is repeated after a pause that grows."""
        pause = FIRST_PAUSE
        while True:
            try:
                await turn()
                pause = FIRST_PAUSE
            except Exception as problem:  # noqa: BLE001 - the server may be away; the worker stays
                _log.warning("%s of worker %s failed, trying again: %s: %s", turn.__name__.strip("_"), self.worker,
                             type(problem).__name__, problem)  # fmt: skip
                await self._clock.sleep(pause * (0.5 + random.random()))
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _claim(self) -> None:
        while not self._free():  # an answer may have filled the room that this was woken for
            self._room.clear()
            await self._room.wait()
        claim = Claim(self.worker, self._free(), self._pool, self._labels)
        self._accept(await self._link.claim(claim, wait=CLAIM_WAIT))

    async def _beat(self) -> None:
        await self._say_what_is_held()  # before the first pause: the answer says how long it may be
        await self._clock.sleep(self._heartbeat)

    async def _say_what_is_held(self) -> None:
        """A sign of life. Runs of whose lease we hear by the answer alone are given back: their order got lost.

        From then on they are not ours, and an order that comes late after all is not followed. A run that was
        stopped here is another matter: its tool may have run, so its lease has to run out."""
        standing = await self._link.extend(self.worker, list(self._held))
        if standing.term is not None:
            self._heartbeat = min(self._heartbeat, standing.term / BEATS)
        self._lose(standing.lost)
        strangers = [key for key in standing.unknown if key not in self._held and key not in self._let_go]
        if strangers:
            _log.warning("orders got lost on their way: %d; their runs are given back", len(strangers))
            self._disowned.add(strangers)
            await self._link.give_back(self.worker, strangers)

    def doubt(self) -> None:
        """An answer that may have brought orders got lost: find out soon, not with the next heartbeat."""
        self._check_pause = FIRST_CHECK
        if self._check is None and not self._draining:
            self._check = asyncio.get_running_loop().create_task(self._find_out())

    async def _find_out(self) -> None:
        """Say what is held several times: the server may not have taken up its leases, or wait for an answer that
        may still be on its way."""
        while self._check_pause < self._heartbeat:
            pause, self._check_pause = self._check_pause, 2 * self._check_pause
            await self._clock.sleep(pause)
            try:
                await self._say_what_is_held()
            except Exception as problem:  # noqa: BLE001 - the next one, and every heartbeat, does the same
                _log.warning("worker %s could not say what it holds: %s: %s", self.worker, type(problem).__name__,
                             problem)  # fmt: skip
        self._check = None

    async def _listen(self) -> None:
        self._lose(await self._link.revoked(self.worker, wait=REVOKED_WAIT))

    def _lose(self, runs: Sequence[str]) -> None:
        """These runs are no longer ours: stop them where they are."""
        for run_id in runs:
            epochs = sorted(epoch for held_id, epoch in self._held if held_id == run_id)
            # A newer lease of the same run may have come in meanwhile: the older one is meant.
            for epoch in epochs[:1]:
                self._cancel(self._held[run_id, epoch])

    def _cancel(self, held: Held) -> None:
        held.lost = True
        self._let_go.add([(held.order.run_id, held.order.epoch)])
        held.outlet.close()
        if held.slot is not None:
            held.slot.cancel()
        self._release(held)

    # ── orders in, runs out ─────────────────────────────────────────────────────────────

    def _free(self) -> int:
        return max(0, self.slots - len(self._held) + self._resting)

    def _free_after(self, finished: int) -> int:
        """How many new runs an answer may bring: one for each that has just finished."""
        return 0 if self._draining else min(finished, self._free() + finished)

    def _accept(self, orders: Sequence[RunOrder]) -> None:
        self._line_up(orders)
        self._ensure()

    def _line_up(self, orders: Sequence[RunOrder]) -> None:
        for order in orders:
            key = order.run_id, order.epoch
            if key in self._disowned:
                continue
            self._held[key] = held = Held(order, RunReports(order, self._reporter))
            self._line.append(held)
        if orders:
            self._idle.clear()
            self._look()

    def _look(self) -> None:
        if self._free() > 0 and not self._draining:
            self._room.set()
        else:
            self._room.clear()

    def _ensure(self) -> None:
        """See to it that somebody works while there is work.

        One slot task first, and twice as many with every turn of the loop: runs that do not wait are all
        done by the first, and those that do have not long to wait for a slot."""
        room = self.slots - len(self._slots) + len(self._sending) + self._resting
        if not self._line or self._ensuring or room <= 0:
            return
        loop = asyncio.get_running_loop()
        for _ in range(min(self._more, room, len(self._line))):
            task = loop.create_task(self._work())
            self._slots.add(task)
            task.add_done_callback(self._slot_left)
        self._ensuring = True
        loop.call_soon(self._ensure_again)

    def _slot_left(self, task: asyncio.Task[None]) -> None:
        self._slots.discard(task)
        self._ensure()

    def _ensure_again(self) -> None:
        # Runs after the new tasks' first turn, since that was scheduled before.
        self._ensuring = False
        self._more = 2 * self._more if self._line else 1
        self._ensure()

    async def _work(self) -> None:
        """Take runs from the line until it is empty; send the end of the last one, which may fill it again."""
        me = asyncio.current_task()
        assert me is not None
        in_a_row = 0
        while self._line:
            held = self._line.popleft()
            if held.lost:
                continue
            held.slot = me
            try:
                await self.runner.run(held.order, held.outlet, self._rest)
            except RunEnded:
                self._let_go.add([(held.order.run_id, held.order.epoch)])
                self._release(held)
            except asyncio.CancelledError:
                if not held.lost:
                    raise
                return
            except Exception as problem:  # noqa: BLE001 - our own mistake: told loudly, and the run must not hang on it
                _log.exception("run %s broke this worker's own code", held.order.run_id)
                told = error_info("unknown", f"internal error: {type(problem).__name__}: {problem}")
                held.outlet.finish((failure_of(held.order, told),))
            finally:
                held.slot = None
            if not self._line:
                await self._send_from(me)
                in_a_row = 0
                continue
            self._reporter.ring()
            in_a_row += 1
            if in_a_row >= RUNS_IN_A_ROW:
                in_a_row = 0
                await asyncio.sleep(0)

    async def _send_from(self, slot: asyncio.Task[None]) -> None:
        """Send from a slot that has nothing else to do; it goes on with the first of the orders that come back."""
        self._sending.add(slot)
        try:
            await self._reporter.lead(self._line_up)
        finally:
            self._sending.discard(slot)
        if len(self._line) > 1:
            self._ensure()

    def _rest(self, resting: bool) -> None:
        self._resting += 1 if resting else -1
        self._look()
        self._ensure()

    def _ended(self, outlet: RunReports, verdict: ReportAck) -> None:
        """A run's last report was answered, or one of its reports was not wanted."""
        held = self._held.get((outlet.run_id, outlet.epoch))
        if held is None:
            return
        if outlet.ending:
            self.finished += 1
            self._release(held)
        else:
            self._cancel(held)

    def _release(self, held: Held) -> None:
        self._held.pop((held.order.run_id, held.order.epoch), None)
        self._look()
        if not self._held:
            self._idle.set()
