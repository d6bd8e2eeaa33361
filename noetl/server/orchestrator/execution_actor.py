"""One execution in this process: facts in, one decision at a time, one append each.

    tell(fact) ─> inbox ─┐
                         ├─> advance ─> needs? ─> append ─> replies, then commands
    tell(fact) ─> inbox ─┘        └── VersionConflict: fold the log again, decide again

Whatever arrives while an append is being flushed is taken together into the next decision, so a
thousand reports of one loop cost a few flushes and not a thousand. The state in memory is a
cache of the log: on any doubt it is dropped and folded again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence, Set
from typing import Any

from msgspec import Struct

from noetl.core.engine.advance import advance, fold
from noetl.core.engine.capacity import slots_held
from noetl.core.engine.commands import ClaimAnyRun, Command, Reply, StartExecution
from noetl.core.engine.decision import Decision
from noetl.core.engine.effects import ContinueLater
from noetl.core.engine.state import State, begin
from noetl.core.model.playbook import Playbook
from noetl.errors import CorruptLog, LimitReached, NoetlError, NotFound, StoreUnavailable, VersionConflict
from noetl.observability import metrics, tracing
from noetl.runtime.clock import Clock
from noetl.server.concurrency.limiter import ConcurrencyLimiter
from noetl.server.orchestrator.catalog import Catalog
from noetl.server.orchestrator.reply import ReplyFuture
from noetl.server.orchestrator.request_resolver import RequestResolver
from noetl.server.read_models.summaries import project
from noetl.storage.ports.events import Append, EventStore, ExecutionSummary

MAX_CONFLICTS = 50  # rivals in a row before giving up on a decision
PAGE = 5_000  # events read at once when a log is folded
SNAPSHOT_EVENTS = 20_000  # events between two snapshots, and before the first one


class ActorDependencies(Struct, frozen=True):
    """What executions need, joined once."""

    store: EventStore
    catalog: Catalog
    recorder: RequestResolver
    clock: Clock
    nondeterminism: Any
    lines: ConcurrencyLimiter
    shared: bool = False  # other processes append to the same executions


class ExecutionActor:
    """The mailbox of one execution and the state folded from its log."""

    def __init__(
        self,
        parts: ActorDependencies,
        execution_id: str,
        written: Callable[[ExecutionActor, Decision], None],
        offers: Callable[[], list[SlotOffer]],
    ) -> None:
        self.id = execution_id
        self.state: State | None = None
        self.summary: ExecutionSummary | None = None
        self.overtaken = False  # another process wrote first, and what it decided has not been looked at
        self._parts = parts
        self._written = written
        self._offers = offers
        self._snapshot_at = SNAPSHOT_EVENTS
        self._inbox: list[tuple[Command, ReplyFuture]] = []
        self._go_on = False
        self._pump: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is under way."""
        return self._pump is None and not self._inbox

    def tell(self, fact: Command) -> ReplyFuture:
        """Put a fact into the mailbox; the answer comes when it is decided and on disk."""
        answer = ReplyFuture()
        self._inbox.append((fact, answer))
        self._wake()
        return answer

    def nudge(self) -> None:
        """Decide again without a fact."""
        self._go_on = True
        self._wake()

    async def load(self) -> State:
        """The state as the log has it now (NotFound when there is none)."""
        if self.state is None:
            self.state, self.summary = await load_state(self._parts, self.id)
            self._snapshot_at = _next_snapshot(self.state.seq)
        return self.state

    async def fresh(self) -> State:
        """The state as the log has it now, also where another process wrote since."""
        if not self.idle:
            return (await load_state(self._parts, self.id))[0]
        if self.state is not None and await self._is_behind(self.state.seq) and self.idle:
            self.forget()
        return await self.load()

    async def begin(self, playbook: Playbook, fact: StartExecution, key: str | None) -> Decision:
        """The first decision of a new execution; VersionConflict when the id is taken."""
        shut: set[str] = set()
        caller = fact.request.parent.execution_id if fact.request.parent is not None else None
        row = ExecutionSummary(self.id, playbook.path, "pending", started_at=0.0, key=key, parent=caller)
        while True:
            self.state = begin(playbook, self.id)
            self.summary = row
            try:
                return await self._decide([fact], shut)
            except LimitReached as full:
                shut.add(full.key)

    def forget(self) -> None:
        """Drop the cached state."""
        self.state = None
        self.summary = None

    def trace(self, active: tracing.Tracing) -> None:
        """Tell of an execution that has ended, as a whole."""
        summary, state = self.summary, self.state
        if summary is None or state is None or state.request is None or summary.ended_at is None:
            return
        active.execution(
            self.id,
            state.request.trace,
            path=summary.path,
            status=summary.status,
            started_at=summary.started_at,
            ended_at=summary.ended_at,
        )

    # ── the pump ────────────────────────────────────────────────────────────────────────

    def _wake(self) -> None:
        if self._pump is None:
            self._pump = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._inbox or self._go_on:
                batch, self._inbox = self._inbox, []
                self._go_on = False
                await self._answer(batch)
        finally:
            self._pump = None
            if self._inbox or self._go_on:
                self._wake()

    async def _answer(self, batch: list[tuple[Command, ReplyFuture]]) -> None:
        try:
            decision = await self._decide_until_written([fact for fact, _ in batch])
        except Exception as problem:  # noqa: BLE001 - every caller gets it
            self.forget()
            for _, answer in batch:
                answer.give(problem)
            return
        for (_, answer), reply in zip(batch, decision.replies, strict=False):
            answer.give(reply)

    async def _decide_until_written(self, facts: list[Command]) -> Decision:
        shut: set[str] = set()
        for _ in range(MAX_CONFLICTS):
            await self.load()
            try:
                return await self._decide(facts, shut)
            except VersionConflict:
                metrics.CONFLICTS.add()
                self.forget()  # somebody else was first: read what they wrote, decide again
            except LimitReached as full:
                shut.add(full.key)  # somebody else took the last slot: decide again without it
        raise StoreUnavailable(f"execution {self.id}: {MAX_CONFLICTS} other writers were first in a row")

    async def _decide(self, facts: list[Command], shut: Set[str] = frozenset()) -> Decision:
        state, summary = self.state, self.summary
        assert state is not None
        lines = self._parts.lines
        room = await lines.room(state, summary, shut) if lines.most else None
        offers = self._offers()
        try:
            asked = [*facts, *(offer.fact for offer in offers)] if offers else facts
            before = state.seq
            began = time.perf_counter()
            decision = advance(
                state, asked, at=self._parts.clock.now(), nondeterminism=self._parts.nondeterminism, capacity=room
            )
            metrics.DECISION.observe(time.perf_counter() - began)
            while decision.requests:
                answers = await self._parts.recorder.answers(decision.requests, self.id, state.playbook)
                decision = decision.resume(answers)
            if not decision.events and self._parts.shared and await self._is_behind(before):
                # "No" is an answer about the log, and this was not it: somebody else has written.
                raise VersionConflict(self.id, before)
            if decision.events:
                was, had = (None, None) if summary is None else (summary.status, summary.held)
                holds = slots_held(state)
                summary = project(summary, decision.events, holds)
                takes = () if room is None else lines.takes(room, had, holds)
                await self._parts.store.append(Append(self.id, before, decision.events, summary, was, takes))
                if room is not None:
                    lines.written(had, holds)
                metrics.EVENTS.add(len(decision.events))
                metrics.PROGRESS.value = self._parts.clock.now()
                self.summary = summary
                if state.seq >= self._snapshot_at:
                    await self._snapshot(state)
        except BaseException:
            self.forget()
            for offer in offers:
                offer.refuse()
            raise
        for offer, reply in zip(offers, decision.replies[len(facts) :], strict=True):
            offer.answer(reply)
        if decision.effects and isinstance(decision.effects[-1], ContinueLater):
            self.nudge()
        self._written(self, decision)
        return decision

    async def _is_behind(self, seq: int) -> bool:
        found = await self._parts.store.summary(self.id)
        return found is None or found.seq != seq

    async def _snapshot(self, state: State) -> None:
        """Keep the folded state, so that a long log need not be folded again from its beginning."""
        from noetl.core.engine.snapshot import encode_state

        self._snapshot_at = _next_snapshot(state.seq)
        try:
            await self._parts.store.save_snapshot(self.id, state.seq, encode_state(state))
        except StoreUnavailable:
            return  # it costs only time; the next append will tell whether the store is there


def _next_snapshot(seq: int) -> int:
    """Snapshots grow with the log, so they become rarer: all of them together cost a fixed share."""
    return max(seq + SNAPSHOT_EVENTS, seq + seq // 4)


class SlotOffer:
    """A worker's free slots, lent to one decision."""

    __slots__ = ("answer", "fact", "refuse")

    def __init__(self, fact: ClaimAnyRun, answer: Callable[[Reply], None], refuse: Callable[[], None]) -> None:
        self.fact = fact
        self.answer = answer
        self.refuse = refuse


async def load_state(
    parts: ActorDependencies, execution_id: str, at: int | None = None
) -> tuple[State, ExecutionSummary]:
    """Fold an execution's log (up to seq `at`), from its snapshot where there is one."""
    summary = await parts.store.summary(execution_id)
    if summary is None:
        raise NotFound(f"there is no execution {execution_id}")
    playbook = await parts.catalog.load(summary.playbook)
    end = summary.seq if at is None else min(at, summary.seq)
    state = await _from_snapshot(parts, execution_id, playbook, end)
    after = state.seq if state is not None else 0
    while after < end:
        events = await parts.store.read(execution_id, after, min(PAGE, end - after))
        if not events:
            raise CorruptLog(f"execution {execution_id}: the log ends at seq {after}, not at {end}")
        state = fold(playbook, events, state)
        after = events[-1].seq
    return state or begin(playbook, execution_id), summary


async def load_states(parts: ActorDependencies, executions: Sequence[str]) -> dict[str, State]:
    """The states of several executions with short logs, in a few questions to the store; others are left out."""
    found = await parts.store.logs(executions, PAGE)
    states: dict[str, State] = {}
    for execution_id, (summary, events) in found.items():
        try:
            states[execution_id] = fold(await parts.catalog.load(summary.playbook), events)
        except NoetlError:
            continue  # whoever asks for this one alone is told why
    return states


async def _from_snapshot(parts: ActorDependencies, execution_id: str, playbook: Playbook, end: int) -> State | None:
    """The newest snapshot that is not beyond `end`; None: fold from the beginning."""
    kept = await parts.store.snapshot(execution_id) if end > SNAPSHOT_EVENTS else None
    if kept is None or kept[0] > end:
        return None
    from noetl.core.engine.snapshot import decode_state

    try:
        return decode_state(playbook, kept[1])
    except CorruptLog:
        return None  # written by another version: the log itself is the truth
