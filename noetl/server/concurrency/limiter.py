"""Concurrency limiter: capacity of decisions, and release of runs that wait for a limit.

The slots in use are counted from the summaries of unfinished executions (`EventStore.held`), which the appends
themselves write, so slots cannot leak. A decision gets the free capacity; the append checks it again in its own
transaction, and if another execution took the last slot, the decision is repeated. Runs that do not fit are parked
in the queue.

Parked runs are released when an append frees slots, when a limit is raised or removed, and at least once a second,
so a lost notification costs at most a second.

Runs that may have ended several workers at once (`State.isolated`) wait for a slot of their own key, which has one slot
in the whole installation and needs no limit of a user.

A child execution waits for the limit of its playbook unless that could be a deadlock: if playbooks call each other
in a cycle (a caller of its caller holds the slot that the child waits for), the child exceeds the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from msgspec import structs

from noetl.core.engine.capacity import Capacity
from noetl.core.engine.concurrency_keys import PLAYBOOK, SUSPECTS, label_keys, playbook_key
from noetl.core.engine.state import State
from noetl.server.lifecycle.background import BackgroundTasks
from noetl.storage.ports.events import EventStore, ExecutionFilter, ExecutionSummary, SlotReservation
from noetl.storage.ports.queue import QueuedRun, RunQueue

MAX_CHILDREN = 1000  # waiting children of a playbook that are checked for a cycle
TENANT_LABEL = "tenant"  # the default of the setting server.tenant_label
MAX_TENANT = 200  # characters of a tenant's name that count
NO_SLOTS: Mapping[str, int] = {}
BUILT_IN = {SUSPECTS: 1}


class ConcurrencyLimiter:
    """The limits of the installation as this process knows them (`most`), and the runs parked for them.

    While `most` is empty no method is called for a run."""

    def __init__(
        self, store: EventStore, queue: RunQueue, background: BackgroundTasks, tenant_label: str = TENANT_LABEL
    ) -> None:
        self.most: dict[str, int] = {}
        self.weights: dict[str, int] = {}  # playbook -> its executions' share of turns; 1 if missing
        self.max_waiting: dict[str, int] = {}  # tenant -> runs that may wait
        self.tenant_label = tenant_label
        self._store = store
        self._queue = queue
        self._background = background
        self._to_recheck: set[str] = set()  # keys whose parked runs may be released

    def tenant_of(self, labels: Mapping[str, str]) -> str:
        """The tenant of an execution with these labels; an empty text without one."""
        return labels.get(self.tenant_label, "")[:MAX_TENANT].replace("\x00", "") if labels else ""

    def tenant_labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        """The label that an execution passes on to those it starts."""
        return {self.tenant_label: tenant} if (tenant := self.tenant_of(labels)) else {}

    # ── for decisions ───────────────────────────────────────────────────────────────────

    async def capacity_for(
        self, state: State, row: ExecutionSummary | None, full: Set[str] = frozenset()
    ) -> Capacity | None:
        """How many slots of each limit this execution may hold; None when it uses no limited resource.

        `full` are keys whose last slot another execution took during an earlier attempt of this decision."""
        keys = self.limited_keys(state)
        if not keys:
            return None
        known = self._all()
        held = await self._store.held(keys)
        own = (row.held if row is not None else None) or NO_SLOTS
        most = {key: known[key] - held[key] + own.get(key, 0) for key in keys}
        playbook = playbook_key(state.playbook.path)
        if most.get(playbook, 1) < 1 and not state.begun and row is not None and await self._is_in_cycle(row):
            del most[playbook]
        for key in full & most.keys():
            most[key] = 0
        return Capacity(most, frozenset(line.key for line in await self._queue.limit_depths()))

    def limited_keys(self, state: State) -> list[str]:
        """The limited keys of which an execution may take slots."""
        labels = label_keys(state.request.labels) if state.request is not None else ()
        keys = [key for key in (*state.net.all_concurrency_keys(), *labels) if key in self.most]
        return [*keys, SUSPECTS] if state.isolated else keys

    def limit_of(self, key: str) -> int | None:
        """The number of slots of a key; None: unlimited."""
        return self._all().get(key)

    def _all(self) -> Mapping[str, int]:
        return self.most | BUILT_IN

    def reservations(
        self, capacity: Capacity, before: Mapping[str, int] | None, after: Mapping[str, int]
    ) -> tuple[SlotReservation, ...]:
        """The limited slots that an append adds."""
        before = before or NO_SLOTS
        known = self._all()
        added = {key: after[key] - before.get(key, 0) for key in capacity.allowed if key in after}
        return tuple(
            SlotReservation(key, count, known[key]) for key, count in added.items() if count > 0 and key in known
        )

    def slots_changed(self, before: Mapping[str, int] | None, after: Mapping[str, int]) -> None:
        """An append is stored: recheck the limits whose slots it freed.

        An execution that has begun holds one slot of its playbook for all its runs, so its parked runs are
        released, too."""
        before = before or NO_SLOTS
        freed = [key for key, count in before.items() if count > after.get(key, 0)]
        begun = [key for key in after if key not in before and key.startswith(PLAYBOOK)]
        known = self._all()
        self.recheck(key for key in (*freed, *begun) if key in known)

    # ── for the queue ───────────────────────────────────────────────────────────────────

    async def park(self, run: QueuedRun, limit: str) -> None:
        """Enqueue a claimed run for a limit that has no free slot; a run released for it before keeps its turn."""
        turn = run.turn if run.limit == limit else None
        await self._queue.put([structs.replace(run, limit=limit, turn=turn)])
        self.recheck([limit])  # a slot may have been freed before the run was in the queue

    def slot_unused(self, run: QueuedRun) -> None:
        """A released run took no slot (another limit blocks it, or it has ended): release the next one."""
        if run.limit is not None:
            self.recheck([run.limit])

    def recheck(self, keys: Iterable[str]) -> None:
        """Release parked runs of these limits soon, as far as slots are free."""
        self._to_recheck.update(keys)
        if self._to_recheck:
            self._background.run_single("releasing runs that wait for a limit", self._recheck_pending)

    async def release_runs(self, only: Set[str] | None = None) -> None:
        """Release as many parked runs as slots are free, for all limits or only for these.

        A check of all limits also searches for cycles: two children may have begun to wait at the same time."""
        depths = [each for each in await self._queue.limit_depths() if only is None or each.key in only]
        most = self._all()  # a change meanwhile releases again
        limited = [each.key for each in depths if each.key in most]
        held = await self._store.held(limited) if limited else {}
        for depth in depths:
            key = depth.key
            free = most[key] - held[key] if key in held else depth.runs
            whole = key.startswith(PLAYBOOK)
            also = [each.execution_id for each in (await self._store.holders([key]))[key]] if whole else []
            if whole and free <= 0 and only is None:
                children = await self._waiting_children(key.removeprefix(PLAYBOOK))
                also += [child.execution_id for child in children if await self._is_in_cycle(child)]
            if free > 0 or also:
                await self._queue.release_waiting(key, free, whole=whole, also=also)

    # ── internals ───────────────────────────────────────────────────────────────────────

    async def _recheck_pending(self) -> None:
        while self._to_recheck:
            keys, self._to_recheck = self._to_recheck, set()
            try:
                await self.release_runs(keys)
            except BaseException:
                self._to_recheck |= keys
                raise

    async def _is_in_cycle(self, child: ExecutionSummary) -> bool:
        """Whether a child that waits for the limit of its playbook may wait for its own callers.

        Callers hold slots while they wait for their children. The search follows the limited playbooks of the
        callers, then those that their waiting children wait for, and so on; reaching its own playbook is a cycle."""
        visited: set[str] = set()
        reached = await self._limited_callers(child)
        while child.path not in reached and (new := reached - visited):
            visited |= new
            for path in new:
                for other in await self._waiting_children(path):
                    reached |= await self._limited_callers(other)
        return child.path in reached

    async def _waiting_children(self, path: str) -> list[ExecutionSummary]:
        """Child executions of a playbook that have not begun."""
        where = ExecutionFilter(path=path, status=("running", "pending"), limit=MAX_CHILDREN)
        return [each for each in await self._store.executions(where) if each.parent is not None and not each.held]

    async def _limited_callers(self, child: ExecutionSummary) -> set[str]:
        """The limited playbooks among the callers of an execution."""
        paths: set[str] = set()
        caller = child.parent
        while caller is not None and (row := await self._store.summary(caller)) is not None:
            if playbook_key(row.path) in self.most:
                paths.add(row.path)
            caller = row.parent
        return paths
