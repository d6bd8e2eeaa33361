"""Child executions: started once, reattached after a restart, and answered to their callers.

The idempotency key of a child is the id of the task run that calls it, so performing `StartChild` twice starts
one child. The end of a child is reported to its caller (`AnswerParent`); if the process stops before that, the
caller's log still waits for it, and `AwaitChild` reports it after the restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec import Struct

from noetl.core.engine.commands import CancelExecution, RecordChildEnd, RecordChildStart, RecordChildWait
from noetl.core.engine.effects import AnswerParent, AwaitChild, CancelChild, Effect, StartChild
from noetl.core.engine.handlers.compensation import source_of
from noetl.core.engine.outstanding import outstanding
from noetl.core.engine.state import State
from noetl.core.model.events import Parent
from noetl.core.model.outcome import Outcome, error
from noetl.errors import InvalidPlaybook, NoetlError, NotFound, RequestRefused, StoreUnavailable
from noetl.observability import tracing
from noetl.server.lifecycle.background import BackgroundTasks
from noetl.server.orchestrator.execution_actor import ActorDependencies, load_state
from noetl.server.orchestrator.execution_cache import ExecutionCache
from noetl.server.orchestrator.execution_starter import ExecutionStarter
from noetl.server.orchestrator.submissions import Submission

log = logging.getLogger("noetl.control")

FINAL = frozenset({"success", "failed", "cancelled"})


def _trace(caller: State, task_run_id: str) -> str | None:
    """The trace context of a child: its spans are children of the calling task's span."""
    known = caller.request.trace if caller.request else None
    return tracing.child_traceparent(caller.playbook.executor.tracing, caller.execution_id, known, task_run_id)


class Children(Struct, eq=False):
    """Performs the engine's effects on child executions."""

    _actors: ActorDependencies
    _executions: ExecutionCache
    _starter: ExecutionStarter
    _background: BackgroundTasks
    answer_instead: Callable[[StartChild], Outcome | None] | None = None  # tests answer a call without a child

    def perform(self, execution_id: str, effect: Effect) -> None:
        """Begin to perform an effect on a child; other effects are ignored."""
        name = f"{type(effect).__name__} of execution {execution_id}"
        if isinstance(effect, StartChild):
            self._background.run_until_done(name, lambda: self._start(execution_id, effect))
        elif isinstance(effect, AwaitChild):
            self._background.run_until_done(name, lambda: self._await(execution_id, effect.key, effect.child))
        elif isinstance(effect, CancelChild):
            self._background.run_until_done(name, lambda: self._cancel(execution_id, effect))
        elif isinstance(effect, AnswerParent):
            self._background.run_until_done(name, lambda: self._answer_parent(effect))

    def report_wait(self, state: State, *, waiting: bool) -> None:
        """Tell the caller of an execution that it only waits now, or does so no longer."""
        parent = state.request.parent if state.request is not None else None
        if parent is None or state.finished is not None:
            return
        command = RecordChildWait(parent.task_run_id, state.execution_id, waiting, state.seq)
        name = f"report of the wait of execution {state.execution_id}"
        self._background.run_until_done(name, lambda: self._executions.send(parent.execution_id, command))

    def check_wait(self, state: State) -> None:
        """After a restart: an execution that runs corrects a caller that considers it waiting."""
        parent = state.request.parent if state.request is not None else None
        if parent is None or state.finished is not None:
            return

        async def correct() -> None:
            caller = await self._actors.store.summary(parent.execution_id)
            if caller is not None and caller.status == "waiting":
                self.report_wait(state, waiting=state.status == "waiting")

        self._background.run_until_done(f"check of the caller of execution {state.execution_id}", correct)

    async def _start(self, parent_id: str, effect: StartChild) -> None:
        given = self.answer_instead(effect) if self.answer_instead is not None else None
        if given is not None:
            await self._answer(effect.parent, "", given)
            return
        known = await self._actors.store.by_key(effect.key)
        if known is not None:
            await self._executions.send(parent_id, RecordChildStart(effect.key, known.execution_id))
            await self._await(parent_id, effect.key, known.execution_id)
            return
        try:
            child = await self._begin(parent_id, effect)
        except InvalidPlaybook as invalid:
            await self._answer(effect.parent, "", error("schema", f"playbook {effect.playbook!r}: {invalid}"))
        except RequestRefused as refused:
            kind = "not_found" if isinstance(refused, NotFound) else "client_error"
            await self._answer(effect.parent, "", error(kind, str(refused)))
        except StoreUnavailable:
            raise  # it is started later
        except Exception as defect:
            log.exception("the child execution of %s cannot be started", effect.key)
            problem = str(defect) if isinstance(defect, NoetlError) else f"{type(defect).__name__}: {defect}"
            await self._answer(effect.parent, "", error("unknown", f"playbook {effect.playbook!r}: {problem}"))
        else:
            await self._executions.send(parent_id, RecordChildStart(effect.key, child))

    async def _begin(self, parent_id: str, effect: StartChild) -> str:
        state = await self._executions.get(parent_id).load()
        caller = state.playbook
        if effect.compensates is not None:
            return await self._starter.submit(await self._compensation(effect, effect.compensates, state))
        return await self._starter.submit(
            Submission(
                path=effect.playbook,
                version=effect.version,
                payload=effect.payload,
                key=effect.key,
                entry_step=effect.entry_step,
                return_step=effect.return_step,
                parent=effect.parent,
                caller=caller.file,
                legacy=caller.surface == "2025-11",
                trace=_trace(state, effect.parent.task_run_id),
                labels=self._tenant_of(state),
            )
        )

    async def _compensation(self, effect: StartChild, child: str, caller: State) -> Submission:
        """The submission of the execution that undoes what an ended child completed."""
        ended, _ = await load_state(self._actors, child)
        request = ended.request
        assert request is not None
        source = await self._actors.catalog.source(request.playbook)
        return Submission(
            text=source.text,
            file=source.file,
            version=request.version,
            payload=request.payload,
            key=effect.key,
            parent=effect.parent,
            strict=request.strict,
            legacy=ended.playbook.surface == "2025-11",
            trace=_trace(caller, effect.parent.task_run_id),
            compensates=source_of(ended, effect.failure),
            labels=self._tenant_of(caller),
        )

    def _tenant_of(self, caller: State) -> dict[str, str]:
        """The label of the tenant, which a child gets from its caller."""
        return self._actors.limiter.tenant_labels(caller.request.labels if caller.request else {})

    async def _await(self, parent_id: str, key: str, child: str) -> None:
        """Report the end of a child that has ended; a running child reports itself when it ends."""
        answer = await self._answer_of(child)
        if answer is not None:
            await self._executions.send(parent_id, RecordChildEnd(key, child, answer.outcome, answer.compensable))
            return
        summary = await self._actors.store.summary(child)
        if summary is not None and summary.status == "waiting":
            await self._executions.send(parent_id, RecordChildWait(key, child, True, summary.seq))

    async def _cancel(self, parent_id: str, effect: CancelChild) -> None:
        child = effect.child
        if child is None:
            known = await self._actors.store.by_key(effect.key)
            child = known.execution_id if known else None
        if child is None:
            outcome = error("cancelled", effect.reason or "cancelled before it began")
            await self._executions.send(parent_id, RecordChildEnd(effect.key, "", outcome))
            return
        reason = effect.reason or f"its caller {parent_id} was cancelled"
        await self._executions.send(child, CancelExecution(reason, compensate=effect.compensate))
        await self._await(parent_id, effect.key, child)

    async def _answer(self, parent: Parent, child: str, outcome: Outcome) -> None:
        await self._executions.send(parent.execution_id, RecordChildEnd(parent.task_run_id, child, outcome))

    async def _answer_parent(self, effect: AnswerParent) -> None:
        parent = effect.parent
        ended = RecordChildEnd(parent.task_run_id, effect.child, effect.outcome, effect.compensable)
        await self._executions.send(parent.execution_id, ended)

    async def _answer_of(self, execution_id: str) -> AnswerParent | None:
        """What an ended execution returns to its caller; None while it runs."""
        summary = await self._actors.store.summary(execution_id)
        if summary is None or summary.status not in FINAL:
            return None
        state, _ = await load_state(self._actors, execution_id)
        return next((effect for effect in outstanding(state) if isinstance(effect, AnswerParent)), None)
