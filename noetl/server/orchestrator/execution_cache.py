"""The executions this process has in memory: one mailbox each, the idle ones forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from noetl.core.engine.commands import Command
from noetl.core.engine.decision import Decision
from noetl.server.orchestrator.execution_actor import ActorDependencies, ExecutionActor, SlotOffer
from noetl.server.orchestrator.reply import ReplyFuture


class ExecutionCache:
    """Mailboxes by execution id; a cache, since every state can be folded again from its log."""

    def __init__(
        self,
        parts: ActorDependencies,
        written: Callable[[ExecutionActor, Decision], None],
        offers: Callable[[], list[SlotOffer]],
        capacity: int,
    ) -> None:
        self._parts = parts
        self._written = written
        self._offers = offers
        self._capacity = capacity
        self._limit = capacity  # how many there may be before the idle ones are looked for
        self._known: OrderedDict[str, ExecutionActor] = OrderedDict()
        self._live: dict[str, ExecutionActor] = {}  # those of them that nobody has seen the end of

    def of(self, execution_id: str) -> ExecutionActor:
        """The mailbox of an execution, known or not."""
        known = self._known.get(execution_id)
        if known is None:
            if len(self._known) >= self._limit:
                self._forget_idle()
            known = ExecutionActor(self._parts, execution_id, self._written, self._offers)
            self._known[execution_id] = self._live[execution_id] = known
        else:
            self._known.move_to_end(execution_id)
        return known

    def tell(self, execution_id: str, fact: Command) -> ReplyFuture:
        """Put a fact into an execution's mailbox."""
        return self.of(execution_id).tell(fact)

    def forget(self, execution_id: str) -> None:
        """Drop an execution from memory."""
        self._known.pop(execution_id, None)
        self._live.pop(execution_id, None)

    def ended(self, execution_id: str) -> None:
        """It has come to its end: there will be no news of it."""
        self._live.pop(execution_id, None)

    def __len__(self) -> int:
        return len(self._known)

    def lengths(self) -> dict[str, int]:
        """How long the logs of those are that go on here, as far as this process knows; -1 while it writes itself."""
        return {
            execution_id: execution.summary.seq if execution.idle else -1
            for execution_id, execution in self._live.items()
            if execution.summary is not None and execution.summary.ended_at is None
        }

    def __contains__(self, execution_id: str) -> bool:
        return execution_id in self._known

    def _forget_idle(self) -> None:
        surplus = len(self._known) + 1 - self._capacity
        idle = (execution_id for execution_id, execution in self._known.items() if execution.idle)
        for execution_id in list(islice(idle, surplus)):  # the longest untouched come first
            self.forget(execution_id)
        # Many may be at work, and looking at all of them for each new one would be dear: not before there are more.
        self._limit = max(self._capacity, len(self._known)) + self._capacity // 8
