"""Child executions: started once under a derived key, attached again after a restart, answered for.

The key of a child is the task run that calls it. Whoever carries out `StartChild` looks for the
key first, so doing it twice starts one child. A child's end answers its caller (`AnswerParent`);
if the process dies before that, the caller's log still waits, and `AwaitChild` finds the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

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
from noetl.server.orchestrator.submissions import Submission

FINAL = frozenset({"success", "failed", "cancelled"})


def _trace(caller: State, task_run_id: str) -> str | None:
    """A child's spans hang below those of the task that calls it."""
    known = caller.request.trace if caller.request else None
    if tracing.ACTIVE is None:
        return known
    return tracing.ACTIVE.task_traceparent(caller.execution_id, known, task_run_id)


class Children:
    """Carries out the engine's commands about children."""

    def __init__(
        self,
        parts: ActorDependencies,
        executions: ExecutionCache,
        submit: Callable[[Submission], Awaitable[str]],
        deeds: BackgroundTasks,
    ) -> None:
        self._parts = parts
        self._executions = executions
        self._submit = submit
        self._deeds = deeds

    def carry_out(self, execution_id: str, command: Effect) -> None:
        """Begin to carry out a command about a child (others are nothing to us)."""
        name = f"{type(command).__name__} of execution {execution_id}"
        if isinstance(command, StartChild):
            self._deeds.run_until_done(name, lambda: self._start(execution_id, command))
        elif isinstance(command, AwaitChild):
            self._deeds.run_until_done(name, lambda: self._await(execution_id, command.key, command.child))
        elif isinstance(command, CancelChild):
            self._deeds.run_until_done(name, lambda: self._cancel(execution_id, command))
        elif isinstance(command, AnswerParent):
            self._deeds.run_until_done(name, lambda: self._answer(command.parent, command.child, command.outcome))

    async def _start(self, parent_id: str, command: StartChild) -> None:
        known = await self._parts.store.by_key(command.key)
        if known is not None:
            await self._executions.tell(parent_id, RecordChildStart(command.key, known.execution_id))
            await self._await(parent_id, command.key, known.execution_id)
            return
        try:
            child = await self._begin(parent_id, command)
        except InvalidPlaybook as invalid:
            await self._answer(command.parent, "", error("schema", f"playbook {command.playbook!r}: {invalid}"))
        except RequestRefused as refused:
            kind = "not_found" if isinstance(refused, NotFound) else "client_error"
            await self._answer(command.parent, "", error(kind, str(refused)))
        else:
            await self._executions.tell(parent_id, RecordChildStart(command.key, child))

    async def _begin(self, parent_id: str, command: StartChild) -> str:
        state = await self._executions.of(parent_id).load()
        caller = state.playbook
        return await self._submit(
            Submission(
                path=command.playbook,
                version=command.version,
                payload=command.payload,
                key=command.key,
                entry_step=command.entry_step,
                return_step=command.return_step,
                parent=command.parent,
                caller=caller.file,
                legacy=caller.surface == "2025-11",
                trace=_trace(state, command.parent.task_run_id),
            )
        )

    async def _await(self, parent_id: str, key: str, child: str) -> None:
        """Answer for a child that has ended; one that runs answers for itself when it ends."""
        outcome = await self._outcome_of(child)
        if outcome is not None:
            await self._executions.tell(parent_id, RecordChildEnd(key, child, outcome))

    async def _cancel(self, parent_id: str, command: CancelChild) -> None:
        child = command.child
        if child is None:
            known = await self._parts.store.by_key(command.key)
            child = known.execution_id if known else None
        if child is None:
            outcome = error("cancelled", command.reason or "cancelled before it began")
            await self._executions.tell(parent_id, RecordChildEnd(command.key, "", outcome))
            return
        await self._executions.tell(child, CancelExecution(command.reason or f"its caller {parent_id} was cancelled"))
        await self._await(parent_id, command.key, child)

    async def _answer(self, parent: Parent, child: str, outcome: Outcome) -> None:
        await self._executions.tell(parent.execution_id, RecordChildEnd(parent.task_run_id, child, outcome))

    async def _outcome_of(self, execution_id: str) -> Outcome | None:
        """What an ended execution answers its caller; None while it runs."""
        summary = await self._parts.store.summary(execution_id)
        if summary is None or summary.status not in FINAL:
            return None
        state, _ = await load_state(self._parts, execution_id)
        answer = next((command for command in outstanding(state) if isinstance(command, AnswerParent)), None)
        return answer.outcome if answer else None
