"""Limits at work: how much room a decision has, who waits in line, and who goes on when room is made.

What is held is asked of the rows of unfinished executions (`EventStore.held`), which the appends themselves write: it
cannot leak. A decision is told how much room there is; the append checks it once more in its own transaction, and when
somebody took the last slot first, it is decided again. Runs that do not fit stand in line in the queue.

Whoever may go on is let out when an append gives slots back, when a limit is raised or removed, and once a second in
any case, so a word that got lost costs a second.

A child execution waits for its playbook's limit as others do, unless that could be for ever: where playbooks call each
other in a circle (the caller of a caller holds the slot that the child waits for), the child goes on beyond the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from msgspec import structs

from noetl.core.engine.capacity import Capacity
from noetl.core.engine.concurrency_keys import PLAYBOOK, playbook_key
from noetl.core.engine.state import State
from noetl.server.lifecycle.background import BackgroundTasks
from noetl.storage.ports.events import EventStore, ExecutionFilter, ExecutionSummary, SlotReservation
from noetl.storage.ports.queue import QueuedRun, RunQueue

MOST_WAITING = 1000  # waiting children of a playbook that are looked at for a circle
NOTHING: Mapping[str, int] = {}


class ConcurrencyLimiter:
    """The limits of this installation as this process knows them (`most`), and the lines before them.

    While `most` is empty nothing here is called by the way of a run."""

    def __init__(self, store: EventStore, queue: RunQueue, deeds: BackgroundTasks) -> None:
        self.most: dict[str, int] = {}
        self.weights: dict[str, int] = {}  # playbook -> turns of its executions where others get one
        self._store = store
        self._queue = queue
        self._deeds = deeds
        self._stirred: set[str] = set()  # keys whose lines are to be looked at

    # ── for decisions ───────────────────────────────────────────────────────────────────

    async def room(self, state: State, row: ExecutionSummary | None, shut: Set[str] = frozenset()) -> Capacity | None:
        """How much this execution may hold of what is limited; None when it uses nothing that is.

        `shut` are keys of which somebody took the last slot while this was decided before."""
        keys = [key for key in state.net.every_need() if key in self.most]
        if not keys:
            return None
        held = await self._store.held(keys)
        mine = (row.held if row is not None else None) or NOTHING
        most = {key: self.most.get(key, held[key]) - held[key] + mine.get(key, 0) for key in keys}
        own = playbook_key(state.playbook.path)
        if most.get(own, 1) < 1 and not state.begun and row is not None and await self._in_a_circle(row):
            del most[own]
        for key in shut & most.keys():
            most[key] = 0
        return Capacity(most, frozenset(line.key for line in await self._queue.limit_depths()))

    def takes(
        self, room: Capacity, before: Mapping[str, int] | None, after: Mapping[str, int]
    ) -> tuple[SlotReservation, ...]:
        """What an append adds to what is held of limited keys."""
        before = before or NOTHING
        grown = {key: after[key] - before.get(key, 0) for key in room.most if key in after}
        return tuple(
            SlotReservation(key, count, self.most[key])
            for key, count in grown.items()
            if count > 0 and key in self.most
        )

    def written(self, before: Mapping[str, int] | None, after: Mapping[str, int]) -> None:
        """An append is on disk: slots it gave back are for who stands first in line.

        An execution that has begun holds its playbook's slot for all its runs, so others of them need not wait."""
        before = before or NOTHING
        given_back = [key for key, count in before.items() if count > after.get(key, 0)]
        begun = [key for key in after if key not in before and key.startswith(PLAYBOOK)]
        self.stir(key for key in (*given_back, *begun) if key in self.most)

    # ── for the queue ───────────────────────────────────────────────────────────────────

    async def park_waiting(self, run: QueuedRun, limit: str) -> None:
        """A run that was claimed and did not fit; if it was at the head of this line before, it is there again."""
        turn = run.turn if run.limit == limit else None
        await self._queue.put([structs.replace(run, limit=limit, turn=turn)])
        self.stir([limit])  # room may have been made before it stood there

    def passed_on(self, run: QueuedRun) -> None:
        """A run that was let out of a line took no slot (another limit holds it, or it has ended): the next one may."""
        if run.limit is not None:
            self.stir([run.limit])

    def stir(self, keys: Iterable[str]) -> None:
        """Look at the lines before these limits, soon."""
        self._stirred.update(keys)
        if self._stirred:
            self._deeds.run_single("letting out who waits", self._look_at_stirred)

    async def look(self, only: Set[str] | None = None) -> None:
        """Let out as many as there is room for, of all lines or only of these.

        Who looks at all of them looks for circles, too: two children may have begun to wait at the same moment."""
        lines = [line for line in await self._queue.limit_depths() if only is None or line.key in only]
        limited = [line.key for line in lines if line.key in self.most]
        held = await self._store.held(limited) if limited else {}
        for line in lines:
            free = self.most[line.key] - held[line.key] if line.key in held else line.runs
            whole = line.key.startswith(PLAYBOOK)
            also = [each.execution_id for each in await self._store.holders(line.key)] if whole else []
            if whole and free <= 0 and only is None:
                children = await self._waiting_children(line.key.removeprefix(PLAYBOOK))
                also += [child.execution_id for child in children if await self._in_a_circle(child)]
            if free > 0 or also:
                await self._queue.release_waiting(line.key, free, whole=whole, also=also)

    # ── inside ──────────────────────────────────────────────────────────────────────────

    async def _look_at_stirred(self) -> None:
        while self._stirred:
            keys, self._stirred = self._stirred, set()
            try:
                await self.look(keys)
            except BaseException:
                self._stirred |= keys
                raise

    async def _in_a_circle(self, child: ExecutionSummary) -> bool:
        """Whether a child that waits for its playbook's limit might wait for its own callers.

        Slots are held by callers while they wait for what they called. So it is looked for which limited playbooks are
        waited for below the callers' ones, below those, and so on: if this playbook is among them, it is a circle."""
        looked: set[str] = set()
        waiting = await self._limited_above(child)
        while child.path not in waiting and (these := waiting - looked):
            looked |= these
            for path in these:
                for other in await self._waiting_children(path):
                    waiting |= await self._limited_above(other)
        return child.path in waiting

    async def _waiting_children(self, path: str) -> list[ExecutionSummary]:
        """Executions of a playbook that others called and that have not begun."""
        where = ExecutionFilter(path=path, status=("running", "pending"), limit=MOST_WAITING)
        return [each for each in await self._store.executions(where) if each.parent is not None and not each.held]

    async def _limited_above(self, child: ExecutionSummary) -> set[str]:
        """The limited playbooks among the callers of an execution."""
        paths: set[str] = set()
        above = child.parent
        while above is not None and (row := await self._store.summary(above)) is not None:
            if playbook_key(row.path) in self.most:
                paths.add(row.path)
            above = row.parent
        return paths
