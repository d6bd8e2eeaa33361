"""`fold` and `advance`: the two ways a state moves, over the same appliers.

`fold` applies a log. `advance` judges facts, applies what was accepted, decides what follows, applies
that, and so on until nothing follows any more: the state is *at rest*. What it answers is one append.

    for each fact:  accept ─► evolve ─► decide ─► evolve ─► decide ... until no event asks for more
    then:           tokens before gates and joins are looked at; the end is looked for
    at last:        commands for what became owed

One append holds at most about `BUDGET` events: a playbook that goes round without ever needing a worker
would otherwise keep the server for itself. What is left is asked for by the command `ContinueLater`: an advance
without facts looks at everything again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct, field, structs

from noetl.core.engine.accept import accept
from noetl.core.engine.capacity import Capacity, CapacityCheck
from noetl.core.engine.commands import ClaimAnyRun, ClaimRun, Command, Reply
from noetl.core.engine.decide import HANDLERS, decide, settle
from noetl.core.engine.decision import Decision
from noetl.core.engine.effects import CancelRun, ContinueLater, Effect, SetTimer
from noetl.core.engine.evaluation.context import DataNeeded, EvaluationContext
from noetl.core.engine.evolve import APPLIERS, Applier, evolve
from noetl.core.engine.lease_rules import claim, claimable, is_innermost, open_loops
from noetl.core.engine.outstanding import (
    answer_parent,
    effect_for,
    enqueue,
    enqueue_iteration,
    is_at_rest,
    next_due,
    outstanding,
)
from noetl.core.engine.run_orders import order_for, order_of
from noetl.core.engine.state import Run, State, begin
from noetl.core.model.events import (
    ChildFinished,
    ChildRequested,
    ChildStarted,
    CtxPatched,
    Event,
    ExecutionCancelled,
    ExecutionResumed,
    IterationDone,
    IterationFailed,
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
    TokenParked,
    WorkerLost,
    WorkflowStarted,
    WorkflowSynthesized,
)
from noetl.core.model.ids import IterationPath, iteration_id, task_run_id
from noetl.core.model.playbook import Playbook
from noetl.core.templates.budget import NondeterminismSource
from noetl.errors import CorruptLog

__all__ = ["Decision", "advance", "begin", "fold", "is_at_rest", "next_due", "order_for", "outstanding"]

BUDGET = 5_000

_YES = Reply(True)


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
    facts: Sequence[Command] = (),
    *,
    at: float,
    nondeterminism: NondeterminismSource | None = None,
    resolved: Mapping[str, Any] | None = None,
    room: Capacity | None = None,
) -> Decision:
    """Judge the facts and decide everything that follows from them; `state` is moved in place.

    `at` is the time of all events it makes. When the decision has `needs`, see `Decision`. `room` is what is left of
    what is limited, where something that this playbook uses is."""
    env = EvaluationContext(state.playbook, at, nondeterminism, dict(resolved) if resolved else {}, room)
    ending = state.ending is not None
    timer = next_due(state) if state.due else None
    stirred = not facts or ((state.fresh > 0 or ending) and not is_at_rest(state))
    return _Advance(state, env, facts, ending, timer, stirred).run()


class _Advance(Struct, eq=False, gc=False):
    """One advance under way; it can stop for a need and go on where it stopped."""

    state: State
    env: EvaluationContext
    facts: Sequence[Command]
    ending: bool  # it was ending when this advance began
    timer: float | None  # as it was then
    stirred: bool
    next_fact: int = 0
    events: list[Recorded] = []
    pending: deque[tuple[Event, int]] = field(default_factory=deque)  # events to decide on, with their seq
    replies: list[Reply] = []
    claims: list[tuple[int, list[str]]] = []  # reply -> runs it leases
    queued: dict[str, None] = {}  # runs that wait for a lease since this advance
    cancelled: list[CancelRun] = []
    children: dict[str, None] = {}  # keys of those that something is owed to since
    loops: dict[tuple[str, IterationPath], None] = {}  # those that issued more, perhaps

    def run(self) -> Decision:
        """Go on until at rest, or until something is needed."""
        try:
            self._until_at_rest()
        except DataNeeded as needs:
            return Decision(tuple(self.events), needs=(needs.need,), _resume=self._resume)
        return self._decision()

    def _resume(self, answers: Mapping[str, Any]) -> Decision:
        self.env.answers.update(answers)
        return self.run()

    def _until_at_rest(self) -> None:
        """One thing after the other. A Needs leaves each of them as it was before it."""
        facts, state, env = self.facts, self.state, self.env
        if self.pending:
            self._drain()
        while self.next_fact < len(facts):
            fact = facts[self.next_fact]
            kind = type(fact)
            if kind is ClaimAnyRun:
                if self.stirred:
                    self._settle()
                self._claim_any(fact)  # type: ignore[arg-type]
            else:
                # A fact that meets a need is judged again from the beginning: what it recorded has moved the state.
                reply = accept(state, fact, env, self._record)
                if kind is ClaimRun and reply.accepted:
                    self.claims.append((len(self.replies), [fact.run_id]))  # type: ignore[attr-defined]
                self.replies.append(reply)
            self.next_fact += 1
            if self.pending:
                self._drain()
        if self.stirred:
            self._settle()

    def _drain(self) -> None:
        """Decide on every event that asks for it."""
        pending = self.pending
        while pending:
            event, seq = pending[0]
            events = decide(self.state, event, self.env)
            pending.popleft()
            if events:
                self._record(events, seq)

    def _settle(self) -> None:
        """Look at the tokens that wait, and for the end, until nothing moves."""
        state = self.state
        while self.stirred and len(self.events) < BUDGET:
            if state.waiting or state.ending or not state.runs:
                events = settle(state, self.env)
                if events:
                    self._record(events, self.events[-1].seq if self.events else None)
                    self._drain()
                    continue
            self.stirred = False

    def _claim_any(self, fact: ClaimAnyRun) -> None:
        """Lease what is owed to a worker that has room for it."""
        state = self.state
        taken: list[str] = []
        if not state.paused and state.ending is None and state.finished is None:
            gate = None if self.env.room is None else CapacityCheck(state, self.env.room, in_line=False)
            taken = list(islice(claimable(state, fact.pool, fact.worker, gate), fact.slots))
            for run_id in taken:
                events, cause = claim(state, fact.worker, run_id)
                self._record(events, cause)
        if taken:
            self.claims.append((len(self.replies), taken))
        self.replies.append(_YES)

    # ── recording ───────────────────────────────────────────────────────────────────────

    def _record(self, events: Sequence[Event], cause: int | None) -> None:
        """Apply events and note what they ask the shell to do."""
        state, at, recorded, execution_id = self.state, self.env.at, self.events, self.state.execution_id
        for event in events:
            kind = type(event)
            applier, of_a_token, fails, decided, stirs, owes = _TRAITS[kind]
            parent = cause
            if of_a_token:
                parent = self._origin(event) or cause
            elif fails and event.by_server:  # type: ignore[attr-defined]
                self._tell_workers(event)
            state.seq = seq = state.seq + 1
            state.at = at
            applier(state, event, at)
            recorded.append(Recorded(execution_id, seq, at, event, parent))
            if decided:
                self.pending.append((event, seq))
            if stirs:
                self.stirred = True
            if owes is not None:
                owes(self, event)

    def _origin(self, event: Any) -> int | None:
        """The event that made the token."""
        group = self.state.waiting.get(event.step)
        if not group:
            return None
        if type(event) is StepScheduled:
            return group[-1].seq
        return next((token.seq for token in group if token.id == event.token), None)

    def _tell_workers(self, event: Any) -> None:
        """A run that the server ends surprises the worker that holds its lease."""
        state = self.state
        if type(event) is IterationFailed:
            run = state.open.get(iteration_id(event.step_run_id, event.path))
            runs: list[Run] = [run] if run is not None else []
        else:
            runs = state.runs_of(state.runs[event.step_run_id])
        why = event.output.error.kind if event.output.error else "cancelled"
        for each in runs:
            if each.status == "leased":
                self.cancelled.append(CancelRun(each.id, each.epoch, each.worker, why))
            if each.child is not None:
                self.children[each.child] = None

    # What the shell owes after an event.

    def _owes_step(self, event: StepScheduled) -> None:
        if event.step_run_id in self.state.queued:
            self.queued[event.step_run_id] = None
        else:  # no worker runs it as it is: there is something to decide
            self.pending.append((event, self.state.seq))

    def _owes_run(self, event: WorkerLost) -> None:
        self.queued[iteration_id(event.step_run_id, event.path)] = None

    def _owes_child(self, event: Any) -> None:
        run_id = iteration_id(event.step_run_id, event.path)
        self.children[task_run_id(run_id, event.task, event.visit, event.attempt)] = None
        self.queued[run_id] = None

    def _owes_iterations(self, event: Any) -> None:
        path = event.path if type(event) is LoopStarted else event.path[:-1]
        self.loops[event.step_run_id, path] = None

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
            orders = [order_of(state, state.open[run_id]) for run_id in run_ids if run_id in state.open]
            self.replies[position] = Reply(True, "", None, tuple(orders))
        return Decision(tuple(self.events), tuple(self._commands()), tuple(self.replies))

    def _commands(self) -> list[Effect]:
        """What became owed."""
        state = self.state
        commands: list[Effect] = [*self.cancelled]
        if state.finished is not None:
            if self.events and type(self.events[-1].body) is PlaybookProcessed:
                commands += answer_parent(state)
                if self.timer is not None:
                    commands.append(SetTimer(None))
            return commands
        if state.ending is None:
            if not state.paused:
                self._enqueue(commands)
        elif not self.ending:
            self.children.update(dict.fromkeys(state.children))
        for key in self.children:
            child = state.children.get(key)
            if child is not None:
                commands.append(effect_for(state, child))
        due = next_due(state) if state.due else None
        if due != self.timer:
            commands.append(SetTimer(due))
        if self.stirred:  # the budget of this append is spent; whoever looks for it looks at the last command
            commands.append(ContinueLater())
        return commands

    def _enqueue(self, commands: list[Effect]) -> None:
        state, owed = self.state, len(commands)
        commands += [enqueue(state, state.open[run_id]) for run_id in self.queued if run_id in state.queued]
        for step_run_id, path in self.loops:
            step_run = state.runs.get(step_run_id)
            loop = step_run.loops.get(path) if step_run is not None else None
            if loop is None or not is_innermost(state, loop):
                continue
            first, loop._announced = loop._announced, max(loop._announced, loop.issued)
            fresh = range(max(first, loop.claimed), loop.issued)
            commands += [enqueue_iteration(state, loop, index) for index in fresh if index not in loop.ahead]
        if self.env.room is not None:
            gate = CapacityCheck(state, self.env.room, in_line=False)
            commands[owed:] = [structs.replace(each, limit=gate.lacks(each.step)) for each in commands[owed:]]  # type: ignore[attr-defined]


_OWES: dict[type[Event], Any] = {
    StepScheduled: _Advance._owes_step,
    WorkerLost: _Advance._owes_run,
    ChildRequested: _Advance._owes_child,
    ChildStarted: _Advance._owes_child,
    ChildFinished: _Advance._owes_child,
    LoopStarted: _Advance._owes_iterations,
    IterationDone: _Advance._owes_iterations,
    IterationFailed: _Advance._owes_iterations,
    ExecutionResumed: _Advance._owes_everything,
}

_STIRRING = frozenset({  # tokens that wait are looked at again, and the end may have come
    RequestEvaluated, WorkflowStarted, WorkflowSynthesized, ExecutionResumed, ExecutionCancelled, SignalReceived,
    CtxPatched, StepScheduled, StepDone, StepFailed, StepSkipped, NextEvaluated, LoopDone, ChildFinished,
})  # fmt: skip


def _traits(kind: type[Event]) -> Traits:
    """Everything that is to be done about an event of this kind, so that recording one looks it up once."""
    return (
        APPLIERS[kind],
        kind in (StepScheduled, TokenParked, StepSkipped),
        kind in (StepFailed, IterationFailed),
        kind in HANDLERS and kind is not StepScheduled,  # see _owes_step
        kind in _STIRRING,
        _OWES.get(kind),
    )


Traits = tuple[Applier, bool, bool, bool, bool, Any]
_TRAITS: dict[type[Event], Traits] = {kind: _traits(kind) for kind in APPLIERS}
