"""The control plane: starts, controls and shows executions.

Every change takes the same path: a command is sent to the actor of an execution, the engine decides, the
decision is appended to the log, and only then are replies sent and effects performed
(`execution_actor`, `effect_handler`).

Any number of orchestrators may work on one store. Each caches states; of two conflicting appends one fails,
and its orchestrator folds the log again. No state that exists only in memory is needed to continue: after a
restart `recovery.resume` folds the logs and performs the outstanding effects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import structs

from noetl.core.engine.commands import CancelExecution, Command, PauseExecution, Reply, ResumeExecution, SendSignal
from noetl.core.engine.state import State
from noetl.core.engine.views.open_waits import inbox_entries
from noetl.core.engine.views.waiting import Finding, waiting_reasons
from noetl.core.model.events import Recorded, RerunSource
from noetl.core.model.merge import deep_merge
from noetl.core.model.outcome import ErrorInfo
from noetl.core.model.waits import InboxEntry
from noetl.errors import (
    Conflict,
    CorruptLog,
    DecisionFailed,
    InvalidPlaybook,
    NotFound,
    RequestRefused,
    RoleRequired,
)
from noetl.server.concurrency.limits import Limits
from noetl.server.dispatch.worker_service import WorkerService
from noetl.server.lifecycle.background import BackgroundTasks
from noetl.server.lifecycle.children import FINAL
from noetl.server.lifecycle.timers import Timers
from noetl.server.orchestrator.effect_handler import EffectHandler, EndNotifier
from noetl.server.orchestrator.execution_actor import ActorDependencies, load_state, load_states
from noetl.server.orchestrator.execution_cache import ExecutionCache
from noetl.server.orchestrator.execution_starter import ExecutionStarter
from noetl.server.orchestrator.playbook_states import PlaybookStates
from noetl.server.orchestrator.rerun import RerunPlan, failed_source, fork_source, step_source
from noetl.server.orchestrator.rerun import plan as plan_of
from noetl.server.orchestrator.schema_registry import SchemaRegistry
from noetl.server.orchestrator.submissions import RerunRequest, Submission
from noetl.server.read_models.step_table import StepTables
from noetl.server.read_models.summaries import Progress
from noetl.storage.ports.events import ExecutionFilter, ExecutionSummary, LogPage, SharedLogs
from noetl.storage.ports.queue import RunQueue
from noetl.storage.ports.results import ResultStore

if TYPE_CHECKING:
    from noetl.server.read_models.explain import Explanation

log = logging.getLogger("noetl.control")

WHOLE_LOGS = 2  # requests that read a long log from its beginning at a time; others wait for their turn
BLOCKING = frozenset({"limit", "quota", "placement"})  # subjects of `why` that `status` shows, too


@dataclass(eq=False, repr=False)
class Orchestrator:
    """The control plane over its back ends, constructed by `noetl.server.composition`; `work` is its interface for
    workers."""

    actors: ActorDependencies
    cache: ExecutionCache
    starter: ExecutionStarter
    effects: EffectHandler
    ends: EndNotifier
    work: WorkerService
    queue: RunQueue
    results: ResultStore
    timers: Timers
    background: BackgroundTasks
    step_tables: StepTables
    states: PlaybookStates
    limits: Limits | None = None
    schemas: SchemaRegistry | None = None

    def __post_init__(self) -> None:
        self.store = self.actors.store
        self.catalog = self.actors.catalog
        self.limiter = self.actors.limiter
        self.task_logs = self.work.task_logs
        self.whole_logs = asyncio.Semaphore(WHOLE_LOGS)  # for requests that read a log from its beginning
        self._damaged: set[str] = set()  # executions that cannot be continued, each logged once
        self._changed_outside = False  # another process wrote, and the change has not been read yet

    # ── requests ────────────────────────────────────────────────────────────────────────

    async def submit(self, submission: Submission) -> str:
        """Start an execution and return its id after the first append is durable.

        Raises InvalidPlaybook with the diagnostics. A key that was used before returns the execution it started."""
        return await self.starter.submit(submission)

    async def wait(self, execution_id: str, timeout: float | None = None) -> ExecutionSummary:
        """Wait for the end of an execution and return its summary; TimeoutError after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        with self.ends.subscribed(execution_id) as ended:
            # The cached summary is the newest one for executions of this process.
            summary = self._cached(execution_id) or await self.summary(execution_id)
            while summary.status not in FINAL:
                try:
                    async with asyncio.timeout_at(deadline):
                        await ended.wait()
                except TimeoutError:
                    message = f"execution {execution_id} is still {summary.status} after {timeout} s"
                    raise TimeoutError(message) from None
                ended.clear()
                cached = self._cached(execution_id)
                if cached is None or cached is summary:  # unchanged in this process: read the store
                    cached = await self.summary(execution_id)
                summary = cached
            return summary

    async def cancel(self, execution_id: str, reason: str = "", *, compensate: bool = False, id: str = "") -> None:
        """Cancel an execution and its children; Conflict when it has already ended.

        With `compensate`, completed steps are undone before it ends."""
        await self._send(execution_id, CancelExecution(reason, compensate=compensate, id=id))

    async def give_up(self, execution_id: str, error: ErrorInfo) -> None:
        """Fail an execution that cannot be decided; one that has ended is left as it is."""
        summary = await self.store.summary(execution_id)
        if summary is not None and summary.status not in FINAL:
            with suppress(DecisionFailed):  # it is logged, and the execution has ended without a decision
                await self._send(execution_id, CancelExecution(error.message, error))

    async def pause(self, execution_id: str, reason: str = "", *, id: str = "") -> None:
        """Start no new run until the execution is resumed."""
        await self._send(execution_id, PauseExecution(reason, id))

    async def resume(self, execution_id: str, reason: str = "", *, id: str = "") -> None:
        """Continue a paused execution."""
        await self._send(execution_id, ResumeExecution(reason, id))

    async def signal(
        self,
        execution_id: str,
        name: str = "",
        payload: Mapping[str, Any] | None = None,
        *,
        by: str = "",
        roles: Sequence[str] | None = None,
        wait: str = "",
        id: str = "",
    ) -> None:
        """Answer a wait of an execution, or merge `payload` into its ctx, which may open a closed gate.

        `roles` of the sender (None: unrestricted); `wait` is the key of the wait that it answers. A signal with the
        same `id` has an effect once. Raises RoleRequired, RequestRefused if the data does not fit, or Conflict."""
        roles = None if roles is None else tuple(roles)
        command = SendSignal(name, dict(payload or {}), by, roles, wait, id)
        reply = await self.cache.send(execution_id, command)
        if reply.problem == "role":
            raise RoleRequired(f"execution {execution_id}: {reply.reason}")
        if reply.problem == "data":
            raise RequestRefused(f"execution {execution_id}: {reply.reason}")
        self._check(execution_id, reply)

    async def inbox(self, before: str | None = None, limit: int = 100) -> tuple[list[InboxEntry], str | None]:
        """The waits that signals answer, newest executions first: those of `limit` executions, and where the next page
        begins."""
        found = await self.store.executions(ExecutionFilter(inbox=True, before=before, limit=limit + 1))
        page = [each.execution_id for each in found[:limit]]
        states = await load_states(self.actors, page)
        entries: list[InboxEntry] = []
        for execution_id in page:
            entries += inbox_entries(states.get(execution_id) or await self.state(execution_id))
        return entries, page[-1] if len(found) > limit else None

    async def rerun(self, request: RerunRequest, *, key: str | None = None, by: str | None = None) -> str:
        """Run the playbook of an execution again, or from a point of its log; return the id of the new execution."""
        submission, _ = await self._rerun(request)
        return await self.submit(structs.replace(submission, key=key, requested_by=by, bounded=True))

    async def plan_rerun(self, request: RerunRequest) -> RerunPlan:
        """What a rerun would do; nothing is started."""
        return (await self._rerun(request))[1]

    async def _rerun(self, request: RerunRequest) -> tuple[Submission, RerunPlan]:
        state = await self.state(request.execution_id)
        earlier = state.request
        assert earlier is not None
        source = structs.replace(await self.catalog.source(earlier.playbook), version=earlier.version)
        if request.version is not None:
            registered = await self.catalog.registered(state.playbook.path)
            if registered is None and request.version == "latest" and source.file:
                source = await self.catalog.find(source.file)  # the file as it is now
            else:
                source = await self.catalog.find(state.playbook.path, request.version)
        playbook = await self.catalog.compile(source, legacy=True)
        if request.at is not None:
            kept = await fork_source(self.actors, state, request.at)
        elif request.failed:
            kept = await failed_source(self.actors, state)
        elif request.from_step is not None:
            kept = await step_source(self.actors, state, request.from_step)
        else:
            kept = RerunSource(state.execution_id)
        kept, plan = plan_of(kept, state, playbook, source.version)
        payload = {**(earlier.payload if request.payload is None else request.payload), **request.changes}
        return Submission(
            text=source.text,
            file=source.file,
            version=source.version,
            payload=deep_merge(payload, request.merge),
            entry_step=None if kept.tokens else kept.from_step or earlier.entry_step,
            return_step=earlier.return_step if earlier.return_step in playbook.steps_by_name else None,
            rerun=kept,
            legacy=True,
            labels=self.limiter.tenant_labels(earlier.labels),
        ), plan

    # ── queries ─────────────────────────────────────────────────────────────────────────

    async def summary(self, execution_id: str, *, newest: bool = True) -> ExecutionSummary:
        """The summary of an execution (`newest=False`: possibly a cached one); NotFound when there is none."""
        cached = self._cached(execution_id)
        if cached is not None and (cached.status in FINAL or (cached.seq and not newest)):
            return cached
        found = await self.store.summary(execution_id)
        if found is None:
            raise NotFound(f"there is no execution {execution_id}")
        return found

    async def events(self, execution_id: str, after: int = 0, limit: int | None = None) -> LogPage:
        """The log of an execution, or a page of it; NotFound when there is none."""
        found = await self.store.read(execution_id, after, limit)
        if not found:
            await self.summary(execution_id)
        return found

    def subscribe(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """The events after `after`, followed until the execution ends."""
        return self.store.tail(execution_id, after)

    async def state(self, execution_id: str, at: int | None = None) -> State:
        """The state folded from the log, current or after event `at`; a copy that belongs to the caller."""
        async with self.whole_logs if at is not None else nullcontext():
            return (await load_state(self.actors, execution_id, at))[0]

    async def why(self, execution_id: str, at: int | None = None) -> list[Finding]:
        """What an execution waits for, now or after event `at`; for an ended one, what ended it."""
        state = await self.state(execution_id, at)
        if at is not None:
            return waiting_reasons(state, state.at)
        return waiting_reasons(
            state,
            self.actors.clock.now(),
            await self.limits.reached(state) if self.limits else None,
            self.work.placement_problem if self.effects.enabled else None,
        )

    async def waits_for(self, row: ExecutionSummary) -> list[str]:
        """Descriptions of what blocks an execution now: limits, quotas, and runs that no live worker can take."""
        if row.status in FINAL:
            return []
        limited = self.limits is not None and await self.limits.any()
        uses_quotas = self.work.quotas.used or row.status == "waiting" or not self.effects.enabled
        if not limited and not uses_quotas and not await self._has_unplaceable_runs():
            return []
        return [each.text for each in await self.why(row.execution_id) if each.subject in BLOCKING]

    async def _has_unplaceable_runs(self) -> bool:
        """Whether runs of some execution wait for a worker that does not exist."""
        problem = self.work.placement_problem
        return any(problem(pool, labels) is not None for pool, labels in await self.queue.kinds())

    async def explain(self, execution_id: str) -> Explanation:
        """A summary sentence, its reasons, and the path of the tokens; those of the child that made it fail too."""
        from noetl.server.read_models.explain import MAX_EVENTS, explain, failed_child, is_explained
        from noetl.server.read_models.log_pages import log_events

        state = await self.state(execution_id)
        last = log_events(self.store, execution_id, max(0, state.seq - MAX_EVENTS), state.seq)
        log = [recorded async for recorded in last if is_explained(recorded)]
        reached = await self.limits.reached(state) if self.limits else None
        placement = self.work.placement_problem if self.effects.enabled else None
        explanation = explain(state, log, self.actors.clock.now(), reached, placement)
        child = failed_child(log) if state.finished == "failed" else None
        if child is None:
            return explanation
        try:
            below = await self.explain(child)
        except NotFound:  # its log has been deleted
            return explanation
        reasons = (f"child execution {child}: {reason}" for reason in (below.summary, *below.because))
        return structs.replace(explanation, because=(*explanation.because, *reasons))

    async def compare(self, execution_id: str, other: str) -> dict[str, Any]:
        """What differs between two executions."""
        from noetl.server.read_models.compare import compare

        summaries = (await self.summary(execution_id), await self.summary(other))
        async with self.whole_logs:
            return await compare(self.store, summaries)

    async def progress(self, execution_id: str) -> Progress:
        """The step table of an execution."""
        cached = self._cached(execution_id)
        length = cached.seq if cached is not None and cached.status in FINAL else None
        return await self.step_tables.get(execution_id, length)

    # ── lifecycle ───────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start to watch leases and limits."""
        self.work.start()
        if self.limits is not None:
            self.limits.start()

    async def close(self, grace: float = 0.0) -> None:
        """Stop. The back ends stay open.

        `grace`: seconds that background tasks get to finish; what is not finished is outstanding in the log."""
        await self.work.close()
        if self.limits is not None:
            await self.limits.close()
        await self.background.close(grace)
        await self.timers.close()
        await self.queue.close()

    async def load_limits(self) -> None:
        """Read the limits of the installation; if there are any, start to watch them."""
        if self.limits is not None:
            await self.limits.check()
            if self.limiter.most:
                self.start()

    async def poll_external_changes(self, owned: Callable[[list[str]], list[str]] | None = None) -> None:
        """Perform the effects of commands that other local processes (`noetl cancel`, `signal`) appended.

        `owned` selects the executions that this process continues among those that it does not have in memory: a signal
        has ended their wait."""
        if not isinstance(self.store, SharedLogs):
            return
        if not self.cache.running and owned is None:
            return
        touched = await self.store.touched()
        if touched:
            await self.load_limits()
        if touched and owned is not None:
            others = [each for each in await self.store.unfinished(waiting=False) if each not in self.cache]
            for execution_id in owned(others) if others else ():
                await self._catch_up(execution_id)
        self._changed_outside = touched or self._changed_outside
        if not self._changed_outside:
            return
        found = await self.store.lengths(list(self.cache.lengths()))
        now = self.cache.lengths()  # excludes what this process wrote in the meantime
        for execution_id, seq in found:
            if seq > now.get(execution_id, seq) >= 0:
                await self._catch_up(execution_id)
        # While this process was writing to an execution, a change could not be detected: check it next time.
        self._changed_outside = -1 in now.values()

    # ── internals ───────────────────────────────────────────────────────────────────────

    async def _catch_up(self, execution_id: str) -> None:
        """Perform the effects of one execution; if it is damaged, the others are continued without it."""
        try:
            await self.effects.catch_up(execution_id)
        except (CorruptLog, InvalidPlaybook, NotFound) as problem:
            if execution_id not in self._damaged:
                self._damaged.add(execution_id)
                log.error("execution %s cannot be continued: %s", execution_id, problem)

    async def _send(self, execution_id: str, command: Command) -> None:
        self._check(execution_id, await self.cache.send(execution_id, command))

    def _check(self, execution_id: str, reply: Reply) -> None:
        if not reply.accepted:
            raise Conflict(f"execution {execution_id}: {reply.reason or 'this is not possible now'}")

    def _cached(self, execution_id: str) -> ExecutionSummary | None:
        """The summary as this process last wrote it; other processes may have written since."""
        return self.cache.get(execution_id).summary if execution_id in self.cache else None
