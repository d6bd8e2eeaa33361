"""One execution in this process: an actor with a mailbox. Commands in, one decision at a time, one append each.

    send(command) ─> inbox ─┐
                            ├─> advance ─> requests? ─> append ─> replies, then effects
    send(command) ─> inbox ─┘        └── VersionConflict: fold the log again, decide again

All commands that arrive during a flush are part of the next decision, so a thousand reports of one loop
need a few flushes and not a thousand. The state in memory is a cache of the log: after any error it is
dropped and folded again.

An exception in a decision is a defect, and the same decision raises it again. So the commands are decided one by one; a
request of a user is refused with the error, and any other command fails the execution with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence, Set
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from noetl.core.engine.advance import advance, fold, give_up
from noetl.core.engine.capacity import Capacity, slots_held
from noetl.core.engine.commands import (
    CancelExecution,
    ClaimAnyRun,
    Command,
    PauseExecution,
    Reply,
    ResumeExecution,
    SendSignal,
    StartExecution,
)
from noetl.core.engine.decision import Decision
from noetl.core.engine.effects import ContinueLater
from noetl.core.engine.state import State, begin
from noetl.core.engine.views.open_waits import wait_counts
from noetl.core.model.events import CustomEvent, Recorded
from noetl.core.model.excerpt import excerpt, is_encoding_problem, unencodable
from noetl.core.model.outcome import ErrorInfo, error_info
from noetl.core.model.playbook import Playbook
from noetl.core.model.waits import NO_WAITS
from noetl.errors import (
    CorruptLog,
    DecisionFailed,
    LimitReached,
    NoetlError,
    NotEncodable,
    NotFound,
    StateConflict,
    StoreUnavailable,
    VersionConflict,
)
from noetl.observability import metrics, tracing
from noetl.runtime.clock import Clock
from noetl.server.concurrency.limiter import ConcurrencyLimiter
from noetl.server.lifecycle.decision_trials import DecisionTrials
from noetl.server.lifecycle.decision_watch import NOT_WATCHED, DecisionWatch
from noetl.server.orchestrator.catalog import Catalog
from noetl.server.orchestrator.playbook_states import commit_of
from noetl.server.orchestrator.reply import ReplyFuture
from noetl.server.orchestrator.request_resolver import RequestResolver
from noetl.server.read_models.summaries import Progress, project, step_durations
from noetl.storage.ports.events import Append, EventStore, ExecutionSummary

_log = logging.getLogger("noetl.control")

MAX_CONFLICTS = 50  # consecutive conflicting appends before a decision is abandoned
PAGE = 5_000  # events per read when a log is folded
SNAPSHOT_EVENTS = 20_000  # events before the first snapshot, and at least between two of them
SNAPSHOT_BYTES_PER_EVENT = 100  # bytes of snapshots that are written per event, at most


class StatusWatch(Struct):
    """Whether new statuses and custom events of executions are listed as news, for triggers and notifications."""

    enabled: bool = False
    custom: bool = False  # custom events too
    statuses: frozenset[str] = frozenset({"success", "failed", "cancelled", "waiting"})

    def is_news(self, before: str | None, now: str, events: Sequence[Recorded]) -> bool:
        """Whether an append with a change of the status, or with these events, is listed."""
        if self.custom and any(type(each.body) is CustomEvent for each in events):
            return True
        return self.enabled and before != now and now in self.statuses


class ActorDependencies(Struct, frozen=True):
    """What all actors of a process share."""

    store: EventStore
    catalog: Catalog
    resolver: RequestResolver
    clock: Clock
    nondeterminism: Any
    limiter: ConcurrencyLimiter
    watch: DecisionWatch = NOT_WATCHED
    trials: DecisionTrials | None = None  # where several servers share the store
    news: StatusWatch = field(default_factory=StatusWatch)
    shared: bool = False  # other processes append to the same executions


class SlotOffer(Struct, frozen=True, eq=False):
    """Free slots of a worker, offered to one decision."""

    command: ClaimAnyRun
    decided: Callable[[Reply], None]  # called before the append: unused slots can be offered to other decisions
    accept: Callable[[Reply], None]
    decline: Callable[[], None]


class ExecutionHost(Protocol):
    """What an actor needs from its process: free worker slots before a decision, effects performed after it."""

    def slot_offers(self, execution: ExecutionActor) -> list[SlotOffer]:
        """Free slots that a decision may lease in its own append; each offer is accepted or declined."""

    def events_written(self, execution: ExecutionActor, decision: Decision) -> None:
        """A decision is stored; its effects may be performed."""


class ExecutionActor:
    """The mailbox of one execution and the state folded from its log."""

    def __init__(self, dependencies: ActorDependencies, execution_id: str, host: ExecutionHost) -> None:
        self.id = execution_id
        self.state: State | None = None
        self.summary: ExecutionSummary | None = None
        self.overtaken = False  # another process appended first, and its effects have not been performed here
        self.waited = False  # whether it only waited before the latest append
        self._dependencies = dependencies
        self._host = host
        self._snapshot_at = SNAPSHOT_EVENTS
        self._progress: Progress | None = None  # the step table of an execution that began here
        self._inbox: list[tuple[Command, ReplyFuture]] = []
        self._woken = False
        self._loop: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether no command is pending or being decided."""
        return self._loop is None and not self._inbox

    @property
    def waits(self) -> bool:
        """Whether it only waits for a signal or a timer."""
        return self.summary is not None and self.summary.status == "waiting"

    def send(self, command: Command) -> ReplyFuture:
        """Put a command into the mailbox; the reply follows when its decision is durable."""
        reply = ReplyFuture()
        self._inbox.append((command, reply))
        self._start_loop()
        return reply

    def wake(self) -> None:
        """Decide again without a command."""
        self._woken = True
        self._start_loop()

    async def load(self) -> State:
        """The cached state, folded from the log if there is none; NotFound when there is no such execution."""
        if self.state is None:
            self.state, self.summary = await load_state(self._dependencies, self.id)
            self._snapshot_at = self.state.seq + SNAPSHOT_EVENTS
        return self.state

    async def refresh(self) -> State:
        """The state including what other processes have appended."""
        if not self.idle:
            return (await load_state(self._dependencies, self.id))[0]
        if self.state is not None and await self._is_behind(self.state.seq) and self.idle:
            self.reset()
        return await self.load()

    async def begin(self, playbook: Playbook, command: StartExecution, key: str | None) -> Decision:
        """The first decision of a new execution; VersionConflict when the id is in use."""
        full: set[str] = set()
        conflict: str | None = None
        caller = command.request.parent.execution_id if command.request.parent is not None else None
        row = ExecutionSummary(self.id, playbook.path, "pending", started_at=0.0, key=key, parent=caller)
        while True:
            self.state = begin(playbook, self.id)
            self.summary = row
            self._progress = Progress()
            try:
                return await self._decide([command], full, conflict)
            except LimitReached as reached:
                full.add(reached.key)
            except StateConflict as problem:
                conflict = str(problem)

    def reset(self) -> None:
        """Drop the cached state."""
        self.state = None
        self.summary = None
        self._progress = None

    def trace(self, active: tracing.Tracing) -> None:
        """Record the span of an ended execution."""
        summary, state = self.summary, self.state
        if summary is None or state is None or state.request is None or summary.ended_at is None:
            return
        policy = state.playbook.executor.tracing
        trace = tracing.trace_of(policy, self.id, state.request.trace)
        if trace is None or not trace.sampled:
            return
        active.execution(
            trace,
            self.id,
            attributes=tracing.attributes_of(policy, state.workload, self.id),
            path=summary.path,
            status=summary.status,
            started_at=summary.started_at,
            ended_at=summary.ended_at,
        )

    # ── message loop ────────────────────────────────────────────────────────────────────

    def _start_loop(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._inbox or self._woken:
                batch, self._inbox = self._inbox, []
                self._woken = False
                await self._process(batch)
        finally:
            self._loop = None
            if self._inbox or self._woken:
                self._start_loop()

    async def _process(self, batch: list[tuple[Command, ReplyFuture]]) -> None:
        try:
            decision = await self._decide_until_written([command for command, _ in batch])
        except NotEncodable as error:
            refused = [(reply, found) for command, reply in batch if (found := unencodable(command))]
            for reply, found in refused or [(reply, str(error)) for _, reply in batch]:
                reply.set_result(NotEncodable(found))
            if refused:
                await self._process([each for each in batch if all(each[1] is not reply for reply, _ in refused)])
            return
        except DecisionFailed as defect:
            await self._process_each(batch, defect)
            return
        except Exception as error:  # noqa: BLE001 - every sender receives it
            for _, reply in batch:
                reply.set_result(error)
            return
        for (_, reply), result in zip(batch, decision.replies, strict=False):
            reply.set_result(result)

    async def _process_each(self, batch: list[tuple[Command, ReplyFuture]], defect: DecisionFailed) -> None:
        """Decide the commands one by one, because a decision of all of them raised an exception."""
        if len(batch) > 1:
            for each in batch:
                await self._process([each])
            return
        result: Exception = defect
        if not (batch and _is_request(batch[0][0])):
            try:
                await self._give_up(error_info("unknown", str(defect)))
            except Exception as problem:  # noqa: BLE001 - the sender receives it
                _log.error("execution %s cannot be ended: %s", self.id, problem, exc_info=problem)
                result = problem if isinstance(problem, NoetlError) else defect
        for _, reply in batch:
            reply.set_result(result)

    async def _give_up(self, error: ErrorInfo) -> None:
        """Fail the execution: by a decision, or if that raises an exception too, without one."""
        try:
            await self._decide_until_written([CancelExecution(error.message, error=error)])
        except DecisionFailed:
            await self._decide_until_written([], error)

    async def _decide_until_written(self, commands: list[Command], error: ErrorInfo | None = None) -> Decision:
        """The stored decision on these commands; with an `error`, the execution ends without a decision."""
        full: set[str] = set()
        conflict: str | None = None
        end: list[Command] = []
        failed = False
        for _ in range(MAX_CONFLICTS):
            await self.load()
            try:
                decision = await self._decide([*end, *commands], full, conflict, error)
                return replace(decision, replies=decision.replies[len(end) :]) if end else decision
            except NotEncodable as problem:
                if end or any(map(unencodable, commands)):
                    raise
                _log.error("execution %s fails: %s", self.id, problem)
                end = [CancelExecution(str(problem), error=error_info("unknown", str(problem)))]
            except VersionConflict:
                metrics.CONFLICTS.add()
                self.overtaken = True  # another process appended first: fold its events and decide again
            except LimitReached as reached:
                full.add(reached.key)  # another execution took the last slot: decide again without it
            except StateConflict as problem:
                conflict = str(problem)  # another execution changed the state: decide again that this one fails
            except DecisionFailed:
                if failed:
                    raise
                failed = True  # the state in memory may have been wrong: fold the log and decide once more
        raise StoreUnavailable(f"execution {self.id}: {MAX_CONFLICTS} appends in a row conflicted with other writers")

    async def _decide(
        self,
        commands: list[Command],
        full: Set[str] = frozenset(),
        conflict: str | None = None,
        error: ErrorInfo | None = None,
    ) -> Decision:
        """Decide, append, and report to the host; on failure the state is dropped and all offers are declined."""
        state, summary = self.state, self.summary
        assert state is not None and summary is not None
        limiter = self._dependencies.limiter
        offers: list[SlotOffer] = []
        before = state.seq
        try:
            capacity = await limiter.capacity_for(state, summary, full) if limiter.most or state.isolated else None
            offers = self._host.slot_offers(self) if error is None else []
            all_commands = [*commands, *(offer.command for offer in offers)] if offers else commands
            self.waited = self.waits
            if error is None:
                decision = await self._advance(state, all_commands, capacity, conflict)
            else:
                decision = give_up(state, error, at=self._dependencies.clock.now())
            replies = decision.replies[len(commands) :]
            for offer, reply in zip(offers, replies, strict=True):
                offer.decided(reply)
            if decision.events:
                self.summary = await self._append(state, before, summary, decision, capacity)
                if self._progress is not None:
                    for recorded in decision.events:
                        self._progress.apply(recorded)
                if state.seq >= self._snapshot_at or (state.finished and state.seq > SNAPSHOT_EVENTS):
                    await self._snapshot(state)
            elif self._dependencies.shared and await self._is_behind(before):
                # A rejection is valid only for the current log, and another process has appended.
                raise VersionConflict(self.id, before)
        except BaseException as problem:
            self.reset()
            for offer in offers:
                offer.decline()
            if is_encoding_problem(problem):
                raise NotEncodable(f"a value cannot be encoded as JSON: {problem}") from None
            if isinstance(problem, Exception) and not isinstance(problem, (NoetlError, OSError)):
                raise self._defect(before, problem) from problem
            raise
        for offer, reply in zip(offers, replies, strict=True):
            offer.accept(reply)
        if decision.effects and isinstance(decision.effects[-1], ContinueLater):
            self.wake()
        self._host.events_written(self, decision)
        return decision

    async def _advance(
        self, state: State, commands: list[Command], capacity: Capacity | None, conflict: str | None
    ) -> Decision:
        """The engine's decision; while its execution is a suspect, under a mark that other servers see."""
        trials = self._dependencies.trials
        summary = self.summary
        if trials is None or summary is None or not state.seq or not trials.due(self.id, summary.started_at):
            return await self._decision(state, commands, capacity, conflict)
        async with trials.alone(self.id, state.seq):
            return await self._decision(state, commands, capacity, conflict)

    async def _decision(
        self, state: State, commands: list[Command], capacity: Capacity | None, conflict: str | None
    ) -> Decision:
        """The engine's decision, with its data requests resolved."""
        dependencies = self._dependencies
        watch = dependencies.watch
        before = state.seq
        began = time.perf_counter()
        try:
            with watch.deciding(self.id, before):
                decision = advance(
                    state,
                    commands,
                    at=dependencies.clock.now(),
                    nondeterminism=dependencies.nondeterminism,
                    capacity=capacity,
                    conflict=conflict,
                )
        except NoetlError as problem:  # the engine records its errors, and raises none of them
            raise self._defect(before, problem) from problem
        metrics.DECISION.observe(time.perf_counter() - began)
        while decision.requests:
            answers = await dependencies.resolver.resolve(decision.requests, self.id, state.playbook)
            try:
                with watch.deciding(self.id, state.seq):
                    decision = decision.resume(answers)
            except NoetlError as problem:
                raise self._defect(before, problem) from problem
        return decision

    def _defect(self, seq: int, problem: Exception) -> DecisionFailed:
        """The error of a decision that raised an exception."""
        metrics.DEFECTS.add()
        fields = {"execution_id": self.id}
        _log.error("execution %s: a decision raised an exception", self.id, exc_info=problem, extra=fields)
        return DecisionFailed(
            f"deciding what follows event {seq} raised {type(problem).__name__}: {excerpt(str(problem), 500)}; "
            "this is a defect of NoETL, and the server log has its traceback"
        )

    async def _append(
        self,
        state: State,
        before: int,
        summary: ExecutionSummary,
        decision: Decision,
        capacity: Capacity | None,
    ) -> ExecutionSummary:
        """Append the events with the new summary and the slots they reserve."""
        limiter = self._dependencies.limiter
        status_before, held_before = summary.status, summary.held
        held = slots_held(state)
        settled = not (decision.effects and isinstance(decision.effects[-1], ContinueLater))
        waits = wait_counts(state, settled=settled) if state.waits or state.waiting_children else NO_WAITS
        waits_before = summary.due, summary.inbox
        steps = step_durations(state) if state.processed else None
        summary = project(summary, decision.events, held, waits, steps)
        reservations = () if capacity is None else limiter.reservations(capacity, held_before, held)
        await self._dependencies.store.append(
            Append(
                self.id,
                before,
                decision.events,
                summary,
                status_before,
                reservations,
                news=self._dependencies.news.is_news(status_before, summary.status, decision.events),
                rewaits=waits_before != (waits.due, waits.inbox),
                state=commit_of(state.playbook.path, decision.events) if state.playbook.uses_state else None,
            )
        )
        if capacity is not None:
            limiter.slots_changed(held_before, held)
        metrics.EVENTS.add(len(decision.events))
        metrics.PROGRESS.value = self._dependencies.clock.now()
        return summary

    async def _is_behind(self, seq: int) -> bool:
        found = await self._dependencies.store.summary(self.id)
        return found is None or found.seq != seq

    async def _snapshot(self, state: State) -> None:
        """Store the folded state and the step table, so that a long log is not folded from its beginning again.

        The interval grows with the size of the snapshot, so that all snapshots cost a constant share."""
        from noetl.core.engine.snapshot import encode_state
        from noetl.server.read_models.step_table import read_progress
        from noetl.server.read_models.stored_snapshot import pack

        try:
            if self._progress is None or self._progress.seq != state.seq:
                self._progress = await read_progress(self._dependencies.store, self.id, state.seq)
            data = pack(encode_state(state), self._progress)
            self._snapshot_at = state.seq + max(SNAPSHOT_EVENTS, len(data) // SNAPSHOT_BYTES_PER_EVENT)
            await self._dependencies.store.save_snapshot(self.id, state.seq, data)
        except (CorruptLog, StoreUnavailable):
            return  # a snapshot only saves time; the next append reports an unreachable store


def _is_request(command: Command) -> bool:
    """Whether a command is a request of a user, without which the execution goes on."""
    if isinstance(command, CancelExecution):
        return command.error is None
    return isinstance(command, PauseExecution | ResumeExecution | SendSignal)


async def load_state(
    dependencies: ActorDependencies, execution_id: str, at: int | None = None
) -> tuple[State, ExecutionSummary]:
    """Fold the log of an execution (up to event `at`), starting from its snapshot if there is one."""
    summary = await dependencies.store.summary(execution_id)
    if summary is None:
        raise NotFound(f"there is no execution {execution_id}")
    playbook = await dependencies.catalog.load(summary.playbook)
    end = summary.seq if at is None else min(at, summary.seq)
    state = await _from_snapshot(dependencies, execution_id, playbook, end)
    after = state.seq if state is not None else 0
    while after < end:
        events = await dependencies.store.read(execution_id, after, min(PAGE, end - after))
        if not events:
            raise CorruptLog(f"execution {execution_id}: the log ends at seq {after}, not at {end}")
        state = fold(playbook, events, state)
        after = events[-1].seq
    return state or begin(playbook, execution_id), summary


async def load_states(dependencies: ActorDependencies, executions: Sequence[str]) -> dict[str, State]:
    """The states of several executions, read together; long and damaged logs are omitted."""
    try:
        found = await dependencies.store.logs(executions, PAGE)
    except CorruptLog:
        return {}  # pages that cannot be read: each of them is read alone
    states: dict[str, State] = {}
    for execution_id, (summary, events) in found.items():
        try:
            states[execution_id] = fold(await dependencies.catalog.load(summary.playbook), events)
        except NoetlError:
            continue  # `load_state` of this execution raises the error
    return states


async def _from_snapshot(
    dependencies: ActorDependencies, execution_id: str, playbook: Playbook, end: int
) -> State | None:
    """The state of the snapshot, unless it is newer than `end`; None: fold from the beginning."""
    if end <= SNAPSHOT_EVENTS:
        return None
    from noetl.core.engine.snapshot import decode_state
    from noetl.server.read_models.stored_snapshot import state_part

    try:
        snapshot = await dependencies.store.snapshot(execution_id)
        return None if snapshot is None or snapshot[0] > end else decode_state(playbook, state_part(snapshot[1]))
    except CorruptLog:
        return None  # damaged, or written by another version; the log is authoritative
