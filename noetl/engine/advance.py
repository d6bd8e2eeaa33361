"""`fold` and `advance`: the two ways a state moves, over the same appliers.

`fold` applies a log. `advance` judges facts, applies what was accepted, decides what follows, applies
that, and so on until nothing follows any more: the state is *at rest*. What it answers is one append.

    for each fact:  accept ─► evolve ─► decide ─► evolve ─► decide ... until no event asks for more
    then:           tokens before gates and joins are looked at; the end is looked for
    at last:        commands for what became owed

One append holds at most about `BUDGET` events: a playbook that goes round without ever needing a worker
would otherwise keep the server for itself. What is left is asked for by the command `GoOn`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from noetl.engine.accept import Judgement, accept
from noetl.engine.commands import CancelRun, Command, EnqueueRun, GoOn, Need, SetTimer
from noetl.engine.decide import HANDLERS, decide, settle
from noetl.engine.decision import Decision
from noetl.engine.env import Env, Needs
from noetl.engine.evolve import evolve
from noetl.engine.facts import ClaimAny, ClaimMade, Fact, Reply
from noetl.engine.leases import claim, claimable, is_innermost, open_loops
from noetl.engine.orders import order_for, order_of
from noetl.engine.outstanding import (
    answer_parent,
    command_for,
    enqueue,
    enqueue_iteration,
    is_at_rest,
    next_due,
    outstanding,
)
from noetl.engine.state import Run, State, begin
from noetl.errors import CorruptLog
from noetl.expr.template import Draws
from noetl.model.events import (
    ChildFinished,
    ChildRequested,
    ChildStarted,
    CtxPatched,
    Event,
    ExecutionCancelled,
    ExecutionResumed,
    IterationDone,
    IterationFailed,
    IterationStarted,
    LoopDone,
    LoopStarted,
    NextEvaluated,
    PlaybookProcessed,
    Recorded,
    RequestEvaluated,
    SignalReceived,
    StepDone,
    StepFailed,
    StepScheduled,
    StepSkipped,
    StepStarted,
    TaskDone,
    TaskStarted,
    TokenParked,
    WorkerLost,
    WorkflowStarted,
    WorkflowSynthesized,
)
from noetl.model.ids import IterationPath, iteration_id, task_run_id
from noetl.model.playbook import Playbook

__all__ = ["Decision", "advance", "begin", "fold", "is_at_rest", "next_due", "order_for", "outstanding"]

BUDGET = 5_000

# After one of these, tokens that wait are looked at again, and the end may have come.
_STIRRING = frozenset({
    RequestEvaluated, WorkflowStarted, WorkflowSynthesized, ExecutionResumed, ExecutionCancelled, SignalReceived,
    CtxPatched, StepScheduled, StepDone, StepFailed, StepSkipped, NextEvaluated, LoopDone, ChildFinished,
})  # fmt: skip


def fold(playbook: Playbook, recorded: Iterable[Recorded], state: State | None = None) -> State:
    """The state after these events; with `state`, they are applied to it and must follow its last one."""
    for each in recorded:
        if state is None:
            state = begin(playbook, each.execution_id)
        if each.seq != state.seq + 1 or each.execution_id != state.execution_id:
            raise CorruptLog(
                f"execution {state.execution_id}: event {each.execution_id}-{each.seq} cannot follow seq {state.seq}"
            )
        evolve(state, each.body, each.at)
    if state is None:
        raise CorruptLog("a log without events has no state; begin(playbook, execution_id) makes an empty one")
    for loop in open_loops(state):
        loop._announced = loop.issued
    return state


def advance(
    state: State,
    facts: Sequence[Fact] = (),
    *,
    at: float,
    draws: Draws | None = None,
    resolved: Mapping[str, Any] | None = None,
) -> Decision:
    """Judge the facts and decide everything that follows from them; `state` is moved in place.

    `at` is the time of all events it makes. When the decision has `needs`, see `Decision`."""
    return _Advance(state, facts, at, draws, dict(resolved or {})).run()


class _Advance:
    """One advance under way; it can stop for a need and go on where it stopped."""

    __slots__ = (
        "cancelled", "children", "claims", "ending", "env", "events", "facts", "judgement", "loops", "pending",
        "queued", "replies", "state", "stirred", "timer",
    )  # fmt: skip

    def __init__(
        self, state: State, facts: Sequence[Fact], at: float, draws: Draws | None, answers: dict[str, Any]
    ) -> None:
        self.state = state
        self.env = Env(state.playbook, at, draws, answers)
        self.facts = deque(facts)
        self.judgement: Judgement | None = None
        self.events: list[Recorded] = []
        self.pending: deque[tuple[Event, int]] = deque()  # events to decide on, with their seq
        self.replies: list[Reply] = []
        self.claims: list[tuple[int, list[str]]] = []  # reply -> runs it leases
        self.queued: dict[str, None] = {}  # runs that wait for a lease since this advance
        self.cancelled: list[CancelRun] = []
        self.children: dict[str, None] = {}  # keys of those that something is owed to since
        self.loops: dict[tuple[str, IterationPath], None] = {}  # those that issued more, perhaps
        self.ending = state.ending is not None
        self.timer = next_due(state)
        self.stirred = not is_at_rest(state)

    def run(self) -> Decision:
        """Go on until at rest, or until something is needed."""
        try:
            while self._step():
                pass
        except Needs as needs:
            return self._unfinished(needs.need)
        return self._decision()

    def _resume(self, answers: Mapping[str, Any]) -> Decision:
        self.env.answers.update(answers)
        return self.run()

    def _unfinished(self, need: Need) -> Decision:
        return Decision(tuple(self.events), needs=(need,), resume=self._resume)

    # ── one thing after the other ───────────────────────────────────────────────────────

    def _step(self) -> bool:
        """Do the next thing; False when there is none. A Needs leaves everything as it was before it."""
        if self.pending:
            event, seq = self.pending[0]
            events = decide(self.state, event, self.env)
            self.pending.popleft()
            self._record(events, seq, own=True)
            return True
        if self.facts and type(self.facts[0]) is not ClaimAny:
            self._judge(self.facts[0])
            return True
        if self.stirred and len(self.events) < BUDGET:
            events = settle(self.state, self.env)
            if not events:
                self.stirred = False
            self._record(events, self.events[-1].seq if self.events else None, own=True)
            return True
        if self.facts:
            self._claim_any(self.facts.popleft())
            return True
        return False

    def _judge(self, fact: Fact) -> None:
        """Let the fact be judged, one batch of events at a time."""
        if self.judgement is None:
            self.judgement = accept(self.state, fact, self.env)
        try:
            while True:
                answer = next(self.judgement)
                if isinstance(answer, Reply):
                    break
                self._record(answer, None, own=False)
        except Needs:
            self.judgement = None  # asked again from the beginning: what was recorded has moved the state
            raise
        if answer.accepted and type(fact) is ClaimMade:
            self.claims.append((len(self.replies), [fact.run_id]))
        self.replies.append(answer)
        self.judgement = None
        self.facts.popleft()

    def _claim_any(self, fact: Fact) -> None:
        """Lease what is owed to a worker that has room for it."""
        state = self.state
        taken: list[str] = []
        if isinstance(fact, ClaimAny) and not state.paused and state.ending is None and state.finished is None:
            for run_id in claimable(state, fact.pool):
                if len(taken) >= fact.slots:
                    break
                taken.append(run_id)
            for run_id in taken:
                self._record([claim(state, fact.worker, run_id)], None, own=False)
        self.claims.append((len(self.replies), taken))
        self.replies.append(Reply(True))

    # ── recording ───────────────────────────────────────────────────────────────────────

    def _record(self, events: Iterable[Event], cause: int | None, *, own: bool) -> None:
        """Apply events and note what they ask the shell to do."""
        state, at = self.state, self.env.at
        for event in events:
            kind = type(event)
            parent = cause
            before = _BEFORE.get(kind)
            if before is not None:
                parent = before(self, event, own) or cause
            evolve(state, event, at)
            seq = state.seq
            self.events.append(Recorded(state.execution_id, seq, at, event, parent))
            if kind in HANDLERS:
                self.pending.append((event, seq))
            if kind in _STIRRING:
                self.stirred = True
            after = _AFTER.get(kind)
            if after is not None:
                after(self, event)

    # Before an event is applied: where it comes from, and whom it will surprise.

    def _of_token(self, event: StepScheduled | TokenParked | StepSkipped, own: bool) -> int | None:
        """The event that made the token."""
        group = self.state.waiting.get(event.step)
        if not group:
            return None
        if type(event) is StepScheduled:
            return group[-1].seq
        return next((token.seq for token in group if token.id == event.token), None)  # type: ignore[union-attr]

    def _of_lease(self, event: Any, own: bool) -> int | None:
        """The lease under which a worker reported it."""
        run = self.state.open.get(iteration_id(event.step_run_id, tuple(event.path)))
        return None if run is None else run.seq

    def _of_schedule(self, event: StepStarted, own: bool) -> int | None:
        return self.state.runs[event.step_run_id].seq

    def _of_loop(self, event: IterationStarted, own: bool) -> int | None:
        return self.state.runs[event.step_run_id].loops[event.path[:-1]].seq

    def _of_end(self, event: Any, own: bool) -> int | None:
        """A worker's own end comes from its lease; one the server makes surprises those who hold leases."""
        state = self.state
        path = getattr(event, "path", ())
        run = state.open.get(iteration_id(event.step_run_id, tuple(path)))
        if not event.by_server:
            return None if run is None else run.seq
        if path:
            runs: list[Run] = [run] if run is not None else []
        else:
            runs = [state.open[run_id] for run_id in state.runs[event.step_run_id].open]
        why = event.output.error.kind if event.output.error else "cancelled"
        for each in runs:
            if each.status == "leased":
                self.cancelled.append(CancelRun(each.id, each.epoch, each.worker, why))
            if each.child is not None:
                self.children[each.child] = None
        return None

    # After it was applied: what the shell owes now.

    def _owes_run(self, event: Any) -> None:
        self.queued[iteration_id(event.step_run_id, tuple(getattr(event, "path", ())))] = None

    def _owes_child(self, event: Any) -> None:
        run_id = iteration_id(event.step_run_id, tuple(event.path))
        self.children[task_run_id(run_id, event.task, event.visit, event.attempt)] = None
        self.queued[run_id] = None

    def _owes_iterations(self, event: Any) -> None:
        path = event.path if type(event) is LoopStarted else event.path[:-1]
        self.loops[event.step_run_id, tuple(path)] = None

    def _owes_everything(self, event: Any) -> None:
        self.queued.update(self.state.queued)
        self.children.update(dict.fromkeys(self.state.children))
        for loop in open_loops(self.state):
            loop._announced = 0
            self.loops[loop.step_run.id, loop.path] = None

    # ── the answer ──────────────────────────────────────────────────────────────────────

    def _decision(self) -> Decision:
        state = self.state
        for position, run_ids in self.claims:
            orders = tuple(order_of(state, state.open[run_id]) for run_id in run_ids if run_id in state.open)
            self.replies[position] = Reply(True, orders=orders)
        return Decision(tuple(self.events), tuple(self._commands()), tuple(self.replies))

    def _commands(self) -> Iterable[Command]:
        """What became owed."""
        state = self.state
        yield from self.cancelled
        if state.finished is not None:
            if self.events and type(self.events[-1].body) is PlaybookProcessed:
                yield from answer_parent(state)
                if self.timer is not None:
                    yield SetTimer(None)
            return
        if state.ending is None:
            if not state.paused:
                yield from self._enqueues()
        elif not self.ending:
            self.children.update(dict.fromkeys(state.children))
        for key in self.children:
            child = state.children.get(key)
            if child is not None:
                yield command_for(state, child)
        due = next_due(state)
        if due != self.timer:
            yield SetTimer(due)
        if not is_at_rest(state):
            yield GoOn()

    def _enqueues(self) -> Iterable[EnqueueRun]:
        state = self.state
        for run_id in self.queued:
            run = state.open.get(run_id)
            if run is not None and run.status == "queued":
                yield enqueue(state, run)
        for step_run_id, path in self.loops:
            step_run = state.runs.get(step_run_id)
            loop = step_run.loops.get(path) if step_run is not None else None
            if loop is None or not is_innermost(state, loop):
                continue
            first, loop._announced = loop._announced, max(loop._announced, loop.issued)
            for index in range(max(first, loop.claimed), loop.issued):
                if index not in loop.ahead:
                    yield enqueue_iteration(state, loop, index)


_BEFORE: dict[type[Event], Any] = {
    StepScheduled: _Advance._of_token,
    TokenParked: _Advance._of_token,
    StepSkipped: _Advance._of_token,
    StepStarted: _Advance._of_schedule,
    IterationStarted: _Advance._of_loop,
    TaskStarted: _Advance._of_lease,
    TaskDone: _Advance._of_lease,
    ChildRequested: _Advance._of_lease,
    StepDone: _Advance._of_end,
    StepFailed: _Advance._of_end,
    IterationDone: _Advance._of_end,
    IterationFailed: _Advance._of_end,
}
_AFTER: dict[type[Event], Any] = {
    StepScheduled: _Advance._owes_run,
    WorkerLost: _Advance._owes_run,
    ChildRequested: _Advance._owes_child,
    ChildStarted: _Advance._owes_child,
    ChildFinished: _Advance._owes_run,
    LoopStarted: _Advance._owes_iterations,
    IterationDone: _Advance._owes_iterations,
    IterationFailed: _Advance._owes_iterations,
    ExecutionResumed: _Advance._owes_everything,
}
