"""Child executions: started once, reattached after a restart, and answered to their callers.

The idempotency key of a child is the id of the task run that calls it, so performing `StartChild` twice starts
one child. The end of a child is reported to its caller (`AnswerParent`); if the process stops before that, the
caller's log still waits for it, and `AwaitChild` reports it after the restart.
"""

from __future__ import annotations

from msgspec import Struct

from noetl.core.engine.commands import CancelExecution, RecordChildEnd, RecordChildStart
from noetl.core.engine.effects import AnswerParent, AwaitChild, CancelChild, Effect, StartChild
from noetl.core.engine.outstanding import outstanding
from noetl.core.engine.state import State
from noetl.core.model.events import Parent
from noetl.core.model.outcome import Outcome, error
from noetl.errors import InvalidPlaybook, NotFound, RequestRefused
from noetl.observability import tracing
from noetl.server.lifecycle.background import BackgroundTasks
from noetl.server.orchestrator.execution_actor import ActorDependencies, load_state
from noetl.server.orchestrator.execution_cache import ExecutionCache
from noetl.server.orchestrator.execution_starter import ExecutionStarter
from noetl.server.orchestrator.submissions import Submission

FINAL = frozenset({"success", "failed", "cancelled"})


def _trace(caller: State, task_run_id: str) -> str | None:
    """The trace context of a child: its spans are children of the calling task's span."""
    known = caller.request.trace if caller.request else None
    if tracing.ACTIVE is None:
        return known
    return tracing.ACTIVE.task_traceparent(caller.execution_id, known, task_run_id)


class Children(Struct, eq=False):
    """Performs the engine's effects on child executions."""

    _actors: ActorDependencies
    _executions: ExecutionCache
    _starter: ExecutionStarter
    _background: BackgroundTasks

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
            self._background.run_until_done(name, lambda: self._answer(effect.parent, effect.child, effect.outcome))

    async def _start(self, parent_id: str, effect: StartChild) -> None:
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
        else:
            await self._executions.send(parent_id, RecordChildStart(effect.key, child))

    async def _begin(self, parent_id: str, effect: StartChild) -> str:
        state = await self._executions.get(parent_id).load()
        caller = state.playbook
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
            )
        )

    async def _await(self, parent_id: str, key: str, child: str) -> None:
        """Report the end of a child that has ended; a running child reports itself when it ends."""
        outcome = await self._outcome_of(child)
        if outcome is not None:
            await self._executions.send(parent_id, RecordChildEnd(key, child, outcome))

    async def _cancel(self, parent_id: str, effect: CancelChild) -> None:
        child = effect.child
        if child is None:
            known = await self._actors.store.by_key(effect.key)
            child = known.execution_id if known else None
        if child is None:
            outcome = error("cancelled", effect.reason or "cancelled before it began")
            await self._executions.send(parent_id, RecordChildEnd(effect.key, "", outcome))
            return
        await self._executions.send(child, CancelExecution(effect.reason or f"its caller {parent_id} was cancelled"))
        await self._await(parent_id, effect.key, child)

    async def _answer(self, parent: Parent, child: str, outcome: Outcome) -> None:
        await self._executions.send(parent.execution_id, RecordChildEnd(parent.task_run_id, child, outcome))

    async def _outcome_of(self, execution_id: str) -> Outcome | None:
        """The outcome that an ended execution returns to its caller; None while it runs."""
        summary = await self._actors.store.summary(execution_id)
        if summary is None or summary.status not in FINAL:
            return None
        state, _ = await load_state(self._actors, execution_id)
        answer = next((effect for effect in outstanding(state) if isinstance(effect, AnswerParent)), None)
        return answer.outcome if answer else None
