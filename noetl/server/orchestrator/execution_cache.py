"""The executions that this process has in memory.

A cache with one actor per execution: every state can be folded again from its log, so idle actors are
evicted, least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from noetl.core.engine.commands import Command
from noetl.server.orchestrator.execution_actor import ExecutionActor
from noetl.server.orchestrator.reply import ReplyFuture


class ExecutionCache:
    """Actors by execution id."""

    def __init__(self, create_actor: Callable[[str], ExecutionActor], capacity: int) -> None:
        self._create_actor = create_actor
        self._capacity = capacity
        self._limit = capacity  # size at which idle actors are evicted
        self._actors: OrderedDict[str, ExecutionActor] = OrderedDict()
        self._running: dict[str, ExecutionActor] = {}  # those whose end this process has not seen

    def get(self, execution_id: str) -> ExecutionActor:
        """The actor of an execution; created if it is not in memory."""
        actor = self._actors.get(execution_id)
        if actor is None:
            if len(self._actors) >= self._limit:
                self._evict_idle()
            actor = self._create_actor(execution_id)
            self._actors[execution_id] = self._running[execution_id] = actor
        else:
            self._actors.move_to_end(execution_id)
        return actor

    def send(self, execution_id: str, command: Command) -> ReplyFuture:
        """Send a command to the actor of an execution."""
        return self.get(execution_id).send(command)

    def forget(self, execution_id: str) -> None:
        """Remove an execution from memory."""
        self._actors.pop(execution_id, None)
        self._running.pop(execution_id, None)

    def mark_ended(self, execution_id: str) -> None:
        """Stop to watch an ended execution for external changes."""
        self._running.pop(execution_id, None)

    def __len__(self) -> int:
        return len(self._actors)

    @property
    def running(self) -> int:
        """The number of executions whose end this process has not seen."""
        return len(self._running)

    def lengths(self) -> dict[str, int]:
        """Length of the log of every running execution as this process knows it; -1 while the actor is busy."""
        return {
            execution_id: actor.summary.seq if actor.idle else -1
            for execution_id, actor in self._running.items()
            if actor.summary is not None and actor.summary.ended_at is None
        }

    def __contains__(self, execution_id: str) -> bool:
        return execution_id in self._actors

    def _evict_idle(self) -> None:
        surplus = len(self._actors) + 1 - self._capacity
        idle = (execution_id for execution_id, actor in self._actors.items() if actor.idle)
        for execution_id in list(islice(idle, surplus)):  # in order of last use
            self.forget(execution_id)
        # If most actors are busy, scanning all of them for every new one would be quadratic: raise the limit.
        self._limit = max(self._capacity, len(self._actors)) + self._capacity // 8
