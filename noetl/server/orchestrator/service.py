"""The control plane: it starts, steers and shows executions, and gives their runs to workers.

Every change is the same walk: a fact is told to an execution, the engine decides, the decision is
appended to the log, and only then do others hear of it (`control/execution.py`). What is here is
who may tell what, and what happens with the commands that come out.

Any number of orchestrators may work on one store. Each keeps states as caches; of two conflicting
appends one fails, and its orchestrator reads the log again. Nothing that is only in memory
is needed to go on: after a restart `recovery.resume` folds the logs and asks what is outstanding.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from noetl.core.engine.commands import (
    CancelExecution,
    Command,
    FireTimer,
    PauseExecution,
    ResumeExecution,
    SendSignal,
    StartExecution,
)
from noetl.core.engine.decision import Decision
from noetl.core.engine.effects import CancelRun, ContinueLater, Effect, EnqueueRun, SetTimer
from noetl.core.engine.outstanding import outstanding
from noetl.core.engine.state import State
from noetl.core.engine.views.waiting import Finding, why
from noetl.core.model.events import ExecutionRequested, PlaybookProcessed, Recorded
from noetl.core.model.playbook import Playbook
from noetl.core.model.tool import ToolSpec
from noetl.errors import Conflict, NotFound, VersionConflict
from noetl.observability import metrics, tracing
from noetl.runtime.clock import Clock, RealClock
from noetl.runtime.nondeterminism import SystemNondeterminism
from noetl.server.concurrency.limiter import ConcurrencyLimiter
from noetl.server.concurrency.limits import ChangeNotifier, Limits
from noetl.server.dispatch.enqueuer import Enqueuer
from noetl.server.dispatch.worker_service import WorkerService
from noetl.server.lifecycle.background import BackgroundTasks
from noetl.server.lifecycle.children import FINAL, Children
from noetl.server.lifecycle.timers import Timers
from noetl.server.orchestrator.catalog import Catalog, Files
from noetl.server.orchestrator.execution_actor import ActorDependencies, ExecutionActor, load_state, load_states
from noetl.server.orchestrator.execution_cache import ExecutionCache
from noetl.server.orchestrator.execution_ids import ExecutionIds
from noetl.server.orchestrator.request_resolver import RequestResolver
from noetl.server.orchestrator.rerun import kept_before
from noetl.server.orchestrator.submissions import Submission, is_same_request, source_of, start_command
from noetl.server.read_models.step_table import StepTables
from noetl.server.read_models.summaries import Progress
from noetl.storage.ports.cluster import WorkerHeartbeats
from noetl.storage.ports.events import EventStore, ExecutionFilter, ExecutionSummary, SharedLogs
from noetl.storage.ports.playbooks import PlaybookStore
from noetl.storage.ports.queue import LimitDepth, PoolDepth, QueuedRun, RunQueue
from noetl.storage.ports.results import ResultStore
from noetl.storage.ports.secrets import Keychain
from noetl.storage.ports.triggers import TriggerStore

if TYPE_CHECKING:
    from noetl.server.read_models.explain import Explanation

log = logging.getLogger("noetl.control")

CACHE = 2_000  # executions kept in memory although nothing happens in them; of those that ended only the row
LEASE_SECONDS = 30.0
LOOK_SECONDS = 1.0  # how often `wait` looks at the store for what another process wrote


class Orchestrator:
    """The control plane over its back ends; `work` is the workers' side of it."""

    def __init__(
        self,
        *,
        store: EventStore,
        playbooks: PlaybookStore,
        results: ResultStore,
        queue: RunQueue,
        specs: Callable[[], Mapping[str, ToolSpec]],
        keychain: Keychain | None = None,
        clock: Clock | None = None,
        nondeterminism: Any = None,
        files: Files | None = None,
        lease_seconds: float | None = LEASE_SECONDS,
        cache: int = CACHE,
        process: int | None = None,
        signs: WorkerHeartbeats | None = None,
        limits: TriggerStore | None = None,
        bell: ChangeNotifier | None = None,
        acts: bool = True,
    ) -> None:
        """`acts=False` only looks and writes: the commands of a decision are left to whoever runs the execution.

        `limits` is where the installation's limits are kept, `bell` how other servers hear of a change."""
        clock = clock or RealClock()
        self.store = store
        self.results = results
        self.catalog = Catalog(playbooks, specs, files)
        self._acts = acts
        self._keychain = keychain
        self._queue = queue
        self._deeds = BackgroundTasks(clock)
        self.lines = ConcurrencyLimiter(store, queue, self._deeds)
        self.limits = Limits(limits, self.lines, store, queue, clock, bell) if limits is not None else None
        self._watching_limits: asyncio.Task[None] | None = None
        self._parts = ActorDependencies(
            store,
            self.catalog,
            RequestResolver(results, specs),
            clock,
            nondeterminism or SystemNondeterminism(clock),
            self.lines,
            signs is not None,
        )
        self._ids = ExecutionIds(clock, process)
        self._timers = Timers(clock, self._timer_due)
        self.work = WorkerService(
            queue=queue,
            catalog=self.catalog,
            keychain=keychain,
            clock=clock,
            deeds=self._deeds,
            lease_seconds=lease_seconds,
            lines=self.lines,
            signs=signs,
        )
        self._executions = ExecutionCache(self._parts, self._written, self.work.offers, cache)
        self.work.executions = self._executions
        self._children = Children(self._parts, self._executions, self.submit, self._deeds)
        self._tables = StepTables(store)
        self._queueing = Enqueuer(queue, self.lines, self._deeds)
        self._ended: dict[str, list[asyncio.Future[None]]] = {}
        self._news = False  # another process wrote, and what it wrote has not been looked at

    # ── requests ────────────────────────────────────────────────────────────────────────

    async def submit(self, submission: Submission) -> str:
        """Start an execution and return its id; it is on disk then.

        InvalidPlaybook has the diagnostics. A key that was used before gives the execution it started."""
        if submission.key is not None:
            known = await self.store.by_key(submission.key)
            if known is not None:
                return await self._same_request(known, submission)
        source = await source_of(submission, self.catalog)
        playbook = await self.catalog.compiled(source, strict=submission.strict, legacy=submission.legacy)
        fact = await start_command(submission, source, playbook, self._keychain)
        if self.catalog.has_kept(playbook):
            return await self._begin(playbook, fact, submission)
        # Both wait for the same flush; neither is acknowledged before it.
        kept = asyncio.ensure_future(self.catalog.keep(playbook, source))
        try:
            return await self._begin(playbook, fact, submission)
        finally:
            await kept

    async def wait(self, execution_id: str, timeout: float | None = None) -> ExecutionSummary:
        """The summary of an execution once it has ended; TimeoutError when that takes longer."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        ended: asyncio.Future[None] = loop.create_future()
        waiting = self._ended.setdefault(execution_id, [])
        waiting.append(ended)
        try:
            # What this process holds is known here first; what another one does is looked for now and then.
            summary = self._held(execution_id) or await self.summary(execution_id)
            while summary.status not in FINAL:
                remaining = LOOK_SECONDS if deadline is None else deadline - loop.time()
                if remaining <= 0:
                    raise TimeoutError(f"execution {execution_id} is still {summary.status} after {timeout} s")
                if ended.done():
                    waiting.remove(ended)
                    ended = loop.create_future()
                    waiting.append(ended)
                timer = loop.call_later(min(LOOK_SECONDS, remaining), _ring, ended)
                try:
                    await ended
                finally:
                    timer.cancel()
                held = self._held(execution_id)
                if held is None or held is summary:  # while it goes on in this process the store has nothing newer
                    held = await self.summary(execution_id)
                summary = held
            return summary
        finally:
            if ended in waiting:
                waiting.remove(ended)
            if not waiting and self._ended.get(execution_id) is waiting:
                del self._ended[execution_id]

    async def cancel(self, execution_id: str, reason: str = "") -> None:
        """Stop an execution and its children; Conflict when it has ended already."""
        await self._ask(execution_id, CancelExecution(reason))

    async def pause(self, execution_id: str, reason: str = "") -> None:
        """Start no new run until it is resumed."""
        await self._ask(execution_id, PauseExecution(reason))

    async def resume(self, execution_id: str, reason: str = "") -> None:
        """Go on after a pause."""
        await self._ask(execution_id, ResumeExecution(reason))

    async def signal(self, execution_id: str, name: str = "", payload: Mapping[str, Any] | None = None) -> None:
        """Lay `payload` over the execution's ctx, which may open a closed gate."""
        await self._ask(execution_id, SendSignal(name, dict(payload or {})))

    async def rerun(
        self,
        execution_id: str,
        from_step: str | None = None,
        *,
        payload: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> str:
        """Run the same playbook again; with `from_step` from there on, earlier results kept."""
        state = await self.state(execution_id)
        request = state.request
        assert request is not None
        source = await self.catalog.source(request.playbook)
        return await self.submit(
            Submission(
                text=source.text,
                file=source.file,
                version=request.version,
                payload=dict(request.payload if payload is None else payload),
                entry_step=from_step or request.entry_step,
                return_step=request.return_step,
                key=key,
                kept=await kept_before(self._parts, state, from_step) if from_step else None,
                legacy=True,
            )
        )

    # ── looking ─────────────────────────────────────────────────────────────────────────

    async def summary(self, execution_id: str, *, newest: bool = True) -> ExecutionSummary:
        """The row of an execution (`newest=False`: or what it was of late); NotFound when there is none."""
        known = self._held(execution_id)
        if known is not None and (known.status in FINAL or (known.seq and not newest)):
            return known
        found = await self.store.summary(execution_id)
        if found is None:
            raise NotFound(f"there is no execution {execution_id}")
        return found

    async def executions(self, where: ExecutionFilter | None = None) -> list[ExecutionSummary]:
        """Newest first, one page."""
        return await self.store.executions(where or ExecutionFilter())

    async def events(self, execution_id: str, after: int = 0, limit: int | None = None) -> list[Recorded]:
        """The log of an execution; NotFound when there is none."""
        found = await self.store.read(execution_id, after, limit)
        if not found:
            await self.summary(execution_id)
        return found

    def subscribe(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """The log as it grows, until the execution has ended."""
        return self.store.tail(execution_id, after)

    async def state(self, execution_id: str, at: int | None = None) -> State:
        """The state folded from the log, as it is or as it was after event `at`; the caller's own copy."""
        state, _ = await load_state(self._parts, execution_id, at)
        return state

    async def states(self, executions: Sequence[str]) -> dict[str, State]:
        """The states of several executions at once, as far as their logs are short and sound."""
        return await load_states(self._parts, executions)

    async def why(self, execution_id: str, at: int | None = None) -> list[Finding]:
        """What everything waits for (or waited for, after event `at`), in words; what ended it, if it has ended."""
        state = await self.state(execution_id, at)
        if at is not None:
            return why(state, state.at)
        return why(state, self._parts.clock.now(), await self.limits.reached(state) if self.limits else None)

    async def waits_for(self, row: ExecutionSummary) -> list[str]:
        """The limits that hold an execution back now, in words."""
        if row.status in FINAL or self.limits is None or not await self.limits.any():
            return []
        return [each.text for each in await self.why(row.execution_id) if each.subject == "limit"]

    async def explain(self, execution_id: str) -> Explanation:
        """The same for people: in a sentence, its reasons, and the way its tokens came."""
        from noetl.server.read_models.explain import explain

        state = await self.state(execution_id)
        log = await self.events(execution_id)
        reached = await self.limits.reached(state) if self.limits else None
        return explain(state, log, self._parts.clock.now(), reached)

    async def progress(self, execution_id: str) -> Progress:
        """The step table of an execution."""
        held = self._held(execution_id)
        return await self._tables.of(execution_id, held.seq if held is not None and held.status in FINAL else None)

    async def depths(self) -> list[PoolDepth]:
        """What waits for a worker, by pool."""
        return await self._queue.depths()

    async def line_depths(self) -> list[LimitDepth]:
        """What waits because a limit is reached, by limit."""
        return await self._queue.limit_depths()

    @property
    def watching(self) -> bool:
        """Whether somebody watches over leases, so that runs of lost workers are taken back."""
        return self.work.watching

    @property
    def timers_waiting(self) -> int:
        """Executions that wait for an instant."""
        return len(self._timers)

    @property
    def executions_loaded(self) -> int:
        """Executions this process has in memory."""
        return len(self._executions)

    # ── life ────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Watch over leases, and over limits."""
        self.work.start()
        if self.limits is not None and self._watching_limits is None:
            self._watching_limits = asyncio.get_running_loop().create_task(self.limits.watch())

    async def close(self, grace: float = 0.0) -> None:
        """Stop working; the log has everything. The back ends stay open.

        `grace`: seconds for what is under way, so that others need not find it in the log (runs on their way back)."""
        await self.work.close()
        if self._watching_limits is not None:
            self._watching_limits.cancel()
            await asyncio.gather(self._watching_limits, return_exceptions=True)
        await self._deeds.close(grace)
        await self._timers.close()
        await self._queue.close()

    def take_over(self, state: State, commands: Iterable[Effect], *, orphaned: bool = False) -> None:
        """Go on with an execution that another process began (recovery).

        `orphaned`: its workers died with that process, so their leases are taken back at once."""
        if orphaned:
            self.work.expire_all(state)
        else:
            self.work.adopt(state)
        commands = list(commands)
        self._carry_out(state.execution_id, commands, state.playbook.path)
        if any(isinstance(command, ContinueLater) for command in commands):
            self._executions.of(state.execution_id).nudge()

    async def heed_limits(self) -> None:
        """Read the installation's limits; once there are some, they are watched over."""
        if self.limits is not None:
            await self.limits.look()
            if self.lines.most:
                self.start()

    async def poll_external_changes(self) -> None:
        """Go on with what other processes of this machine wrote into our executions: a signal, a cancellation."""
        if not isinstance(self.store, SharedLogs):
            return
        known = self._executions.lengths()
        if not known:
            return
        touched = await self.store.touched()
        if touched:
            await self.heed_limits()
        self._news = touched or self._news
        if not self._news:
            return
        found = await self.store.lengths(list(known))
        now = self._executions.lengths()  # what we wrote meanwhile is no news
        for execution_id, seq in found:
            if seq > now.get(execution_id, seq) >= 0:
                await self._catch_up(execution_id)
        # Where we were writing ourselves it could not be seen: look again.
        self._news = -1 in now.values()

    # ── inside ──────────────────────────────────────────────────────────────────────────

    async def _begin(self, playbook: Playbook, fact: StartExecution, submission: Submission) -> str:
        while True:
            execution = self._executions.of(self._ids.mint())
            try:
                await execution.begin(playbook, fact, submission.key)
                metrics.STARTED.add()
                return execution.id
            except VersionConflict:
                self._executions.forget(execution.id)  # another process minted the same id: mint again
            except Conflict:
                self._executions.forget(execution.id)
                known = await self.store.by_key(submission.key or "")
                if known is None:
                    raise
                return await self._same_request(known, submission)

    async def _same_request(self, known: ExecutionSummary, submission: Submission) -> str:
        """The execution that a key started; Conflict when the key came with another request."""
        if submission.parent is None:
            (first,) = await self.store.read(known.execution_id, 0, 1)
            assert isinstance(first.body, ExecutionRequested)
            if not await is_same_request(submission, first.body, self.catalog):
                key = (submission.key or "").removeprefix("http:")
                raise Conflict(
                    f"the key {key!r} was used for another request (execution {known.execution_id}); "
                    "use a new key for a new request"
                )
        return known.execution_id

    async def _ask(self, execution_id: str, fact: Command) -> None:
        reply = await self._executions.tell(execution_id, fact)
        if not reply.accepted:
            raise Conflict(f"execution {execution_id}: {reply.reason or 'this is not possible now'}")

    def _held(self, execution_id: str) -> ExecutionSummary | None:
        """The row as this process wrote it last; others may have written since."""
        return self._executions.of(execution_id).summary if execution_id in self._executions else None

    def _written(self, execution: ExecutionActor, decision: Decision) -> None:
        """A decision is on disk: leases follow its events, its commands are carried out."""
        self.work.follow(decision.events)
        self._carry_out(execution.id, decision.commands, execution.summary.path if execution.summary else "")
        if execution.overtaken:
            execution.overtaken = False
            if self._acts and not self._parts.shared:  # servers that share a store each do what they decide
                self._deeds.run_until_done(f"news of {execution.id}", lambda: self._catch_up(execution.id))
        if decision.events and isinstance(last := decision.events[-1].body, PlaybookProcessed):
            metrics.ENDED.add(1, last.outcome)
            level = logging.DEBUG if last.outcome == "success" else logging.INFO
            summary = execution.summary
            what = (execution.id, summary.path if summary else "", last.outcome, (summary and summary.error) or "")
            log.log(level, "execution %s of %s ended: %s %s", *what, extra={"execution_id": execution.id})
            if tracing.ACTIVE is not None:
                execution.trace(tracing.ACTIVE)
            self._has_ended(execution.id)
            execution.state = None  # nothing more is decided; whoever asks later folds the log

    def _carry_out(self, execution_id: str, commands: Iterable[Effect], path: str = "") -> None:
        if not self._acts:
            return
        queued: list[QueuedRun] = []
        weight = self.lines.weights.get(path, 1) if self.lines.weights else 1
        for command in commands:
            if isinstance(command, EnqueueRun):
                pool = command.pool or "default"
                now = self._parts.clock.now()
                queued.append(
                    QueuedRun(execution_id, command.run_id, pool, command.together, now, command.limit, weight=weight)
                )
            elif isinstance(command, SetTimer):
                self._timers.set(execution_id, command.at)
            elif isinstance(command, CancelRun):
                self.work.leases.revoke(command.run_id, command.epoch, command.worker)
            else:
                self._children.carry_out(execution_id, command)
        if queued:
            self._queueing.put(execution_id, queued)

    async def _catch_up(self, execution_id: str) -> None:
        """Another process decided something here and left the deeds to us."""
        state = await self._executions.of(execution_id).fresh()
        self.work.revoke_others(state)
        self.take_over(state, outstanding(state))
        if state.finished is not None:
            self._has_ended(execution_id)

    def _has_ended(self, execution_id: str) -> None:
        self._timers.set(execution_id, None)
        self._executions.ended(execution_id)
        self._queueing.has_ended(execution_id)
        for future in self._ended.pop(execution_id, ()):
            _ring(future)

    def _timer_due(self, execution_id: str) -> None:
        self._deeds.run_until_done(f"timer of {execution_id}", lambda: self._executions.tell(execution_id, FireTimer()))


def _ring(bell: asyncio.Future[None]) -> None:
    if not bell.done():
        bell.set_result(None)
