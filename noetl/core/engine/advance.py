"""`fold` and `advance`: the two functions that change a state, over the same appliers.

`fold` applies a log. `advance` judges commands, applies the accepted events, decides what follows, applies
that, and repeats until no event has a consequence: the state is *settled*. Its result is one append.

    for each command:  accept ─► evolve ─► decide ─► evolve ─► decide ... until no event has a handler left to run
    then:              examine the tokens before gates and joins, and check whether the execution has ended
    finally:           collect the effects for the shell

One append holds about `MAX_EVENTS` events at most, so that a playbook that cycles without a worker cannot block
the server. The effect `ContinueLater` requests the rest: an advance without commands examines everything again.
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
from noetl.core.engine.effects import CancelRun, ContinueLater, Effect, EnqueueRun, ReturnTurns, SetTimer
from noetl.core.engine.evaluation.context import DataNeeded, EvaluationContext
from noetl.core.engine.evolve import APPLIERS, Applier, evolve
from noetl.core.engine.evolve.compensation import CHILD_TASK
from noetl.core.engine.lease_rules import claim, claimable, is_innermost, is_local, open_loops, step_run_of
from noetl.core.engine.outstanding import (
    answer_parent,
    effect_for,
    enqueue,
    enqueue_iteration,
    is_settled,
    next_due,
    outstanding,
)
from noetl.core.engine.run_orders import order_of
from noetl.core.engine.state import Run, State, begin
from noetl.core.model.events import (
    ChildFinished,
    ChildRequested,
    ChildStarted,
    CompensationDone,
    CompensationFailed,
    CompensationStarted,
    CtxPatched,
    Event,
    ExecutionCancelled,
    ExecutionResumed,
    IterationDone,
    IterationFailed,
    IterationsKept,
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
    TokenMerged,
    TokenParked,
    WaitFinished,
    WorkerLost,
    WorkflowFinished,
    WorkflowStarted,
    WorkflowSynthesized,
)
from noetl.core.model.ids import IterationPath, iteration_id, task_run_id
from noetl.core.model.outcome import ErrorInfo, Outcome, error_info
from noetl.core.model.playbook import Playbook
from noetl.core.model.quotas.token_bucket import Demand
from noetl.core.model.work import count_fitting
from noetl.core.templates.budget import NondeterminismSource
from noetl.errors import CorruptLog

__all__ = ["Decision", "advance", "begin", "fold", "give_up", "is_settled", "next_due", "outstanding"]

MAX_EVENTS = 5_000

_ACCEPTED = Reply(True)


def fold(playbook: Playbook, recorded: Iterable[Recorded], state: State | None = None) -> State:
    """The state after these events; with `state`, they are applied to it and must follow its last one."""
    for each in recorded:
        if state is None:
            state = begin(playbook, each.execution_id)
        if each.seq != state.seq + 1 or each.execution_id != state.execution_id:
            raise CorruptLog(
                f"execution {state.execution_id}: event {each.execution_id}-{each.seq} cannot follow seq {state.seq}"
            )
        try:
            evolve(state, each.body, each.at, each.parent_seq)
        except Exception as problem:
            raise CorruptLog(
                f"execution {state.execution_id}: event {each.seq} ({each.body.NAME}) cannot be applied: "
                f"{type(problem).__name__}: {problem}"
            ) from problem
    if state is None:
        raise CorruptLog("a log without events has no state; use begin(playbook, execution_id) for an empty one")
    for loop in open_loops(state):
        loop._announced = loop.issued
    return state


def advance(
    state: State,
    commands: Sequence[Command] = (),
    *,
    at: float,
    nondeterminism: NondeterminismSource | None = None,
    answers: Mapping[str, Any] | None = None,
    capacity: Capacity | None = None,
    conflict: str | None = None,
) -> Decision:
    """Judge the commands and decide everything that follows from them; `state` is changed in place.

    `at` is the time of all new events. When the decision has `requests`, see `Decision`. `capacity` is the free
    capacity of the limited keys that this playbook uses; None: no limit applies. `conflict` says why an earlier
    decision was not stored: another execution has changed the `state` that it commits."""
    env = EvaluationContext(state.playbook, at, nondeterminism, dict(answers) if answers else {}, capacity, conflict)
    ending = state.ending is not None
    timer = next_due(state) if state.due else None
    needs_settling = not commands or ((state.unexamined > 0 or ending) and not is_settled(state))
    return _Advance(state, env, commands, ending, timer, needs_settling).run()


def give_up(state: State, error: ErrorInfo, *, at: float) -> Decision:
    """End an execution as failed without deciding anything: for one whose decisions raise an exception.

    No handler runs and no template is evaluated; its open runs and children are cancelled."""
    env = EvaluationContext(state.playbook, at, None, {})
    ending = _Advance(state, env, (), ending=False, timer=None, needs_settling=False)
    outcome = Outcome("error", error=error_info("cancelled", "the execution failed"))
    if state.ending is None:
        ending._record([ExecutionCancelled(reason=error.message, error=error)], None)
    ending._record(
        [
            StepFailed(step=each.step.name, step_run_id=each.id, output=outcome, by_server=True)
            for each in list(state.runs.values())
        ],
        state.seq,
    )
    cancelled = [effect_for(state, child) for child in state.children.values()]
    last = WorkflowFinished("failed", Outcome("error", error=error), error)
    ending._record([last, PlaybookProcessed("failed")], state.seq)
    return Decision(tuple(ending.events), (*ending.cancelled, *cancelled, *answer_parent(state), SetTimer(None)))


class _Advance(Struct, eq=False, gc=False):
    """One advance in progress; it can stop for a data request and resume at the same point."""

    state: State
    env: EvaluationContext
    commands: Sequence[Command]
    ending: bool  # whether the execution was ending when this advance began
    timer: float | None  # the next timer at that moment
    needs_settling: bool
    next_command: int = 0
    events: list[Recorded] = []
    pending: deque[tuple[Event, int]] = field(default_factory=deque)  # events to decide on, with their seq
    replies: list[Reply] = []
    claims: list[tuple[int, list[str]]] = []  # position of the reply, runs that it leases
    queued: dict[str, None] = {}  # runs that this advance queued
    cancelled: list[CancelRun] = []
    unused: dict[Demand, list[float]] = {}  # turns of ended runs that waited for a quota
    children: dict[str, None] = {}  # keys of the children that need an effect
    loops: dict[tuple[str, IterationPath], None] = {}  # loops that may have issued more iterations

    def run(self) -> Decision:
        """Continue until the state is settled, or until data is requested."""
        try:
            self._until_settled()
        except DataNeeded as missing:
            return Decision(tuple(self.events), requests=(missing.request,), _resume=self._resume)
        return self._decision()

    def _resume(self, answers: Mapping[str, Any]) -> Decision:
        self.env.answers.update(answers)
        return self.run()

    def _until_settled(self) -> None:
        """Judge the commands in order. A `DataNeeded` leaves the current part unchanged, so that it can be repeated."""
        commands, state, env = self.commands, self.state, self.env
        if self.pending:
            self._drain()
        while self.next_command < len(commands):
            command = commands[self.next_command]
            kind = type(command)
            env.meter.reset()
            if kind is ClaimAnyRun:
                if self.needs_settling:
                    self._settle()
                self._claim_any(command)  # type: ignore[arg-type]
            else:
                # After a data request a command is judged again from the start: what it recorded is in the state.
                reply = accept(state, command, env, self._record)
                if kind is ClaimRun and reply.accepted:
                    self.claims.append((len(self.replies), [command.run_id]))  # type: ignore[attr-defined]
                self.replies.append(reply)
            self.next_command += 1
            if self.pending:
                self._drain()
        if self.needs_settling:
            env.meter.reset()
            self._settle()

    def _drain(self) -> None:
        """Run the handler of every pending event."""
        pending = self.pending
        while pending:
            event, seq = pending[0]
            events = decide(self.state, event, self.env)
            pending.popleft()
            self._record(events, seq)

    def _settle(self) -> None:
        """Examine the waiting tokens and check for the end until nothing changes."""
        state = self.state
        while self.needs_settling and len(self.events) < MAX_EVENTS:
            if state.waiting or state.ending or not state.runs:
                events = settle(state, self.env)
                if events:
                    self._record(events, self.events[-1].seq if self.events else None)
                    self._drain()
                    continue
            self.needs_settling = False

    def _claim_any(self, command: ClaimAnyRun) -> None:
        """Lease queued runs to a worker that has free slots."""
        state = self.state
        taken: list[str] = []
        if state.accepts_claims:
            check = None if self.env.capacity is None else CapacityCheck(state, self.env.capacity, waited=False)
            ready = claimable(state, command, check)
            taken = list(islice(ready, command.slots * command.workers))
            if not (taken and is_local(state, step_run_of(state, taken[0]))):
                taken = taken[: -(-len(taken) // command.workers)]
            taken = taken[: command.slots]
            if state.net.has_costs:
                costs = (step_run_of(state, run_id).step.cost for run_id in taken)
                taken = taken[: count_fitting(costs, command.slots, command.capacity)]
            for run_id in taken:
                events, cause = claim(state, command.worker, run_id)
                self._record(events, cause)
        if taken:
            self.claims.append((len(self.replies), taken))
        self.replies.append(_ACCEPTED)

    # ── recording ───────────────────────────────────────────────────────────────────────

    def _record(self, events: Sequence[Event], cause: int | None) -> None:
        """Apply events and note the effects that follow from them."""
        state, at, recorded, execution_id = self.state, self.env.at, self.events, self.state.execution_id
        for event in events:
            kind = type(event)
            applier, takes_token, is_failure, has_handler, unsettles, follow_up = _TRAITS[kind]
            parent = cause
            if takes_token:
                parent = self._origin(event) or cause
            elif is_failure and event.by_server:  # type: ignore[attr-defined]
                self._cancel_leased_runs(event)
            state.seq = seq = state.seq + 1
            state.at = at
            state._cause = parent
            applier(state, event, at)
            recorded.append(Recorded(execution_id, seq, at, event, parent))
            if has_handler:
                self.pending.append((event, seq))
            if unsettles:
                self.needs_settling = True
            if follow_up is not None:
                follow_up(self, event)

    def _origin(self, event: Any) -> int | None:
        """The seq of the event that created the token."""
        group = self.state.waiting.get(event.step)
        if not group:
            return None
        if type(event) is StepScheduled:
            return group[-1].seq
        return next((token.seq for token in group if token.id == event.token), None)

    def _cancel_leased_runs(self, event: Any) -> None:
        """Cancel the leased runs that the server itself ends: their workers still execute them."""
        state = self.state
        if type(event) is IterationFailed:
            run = state.open.get(iteration_id(event.step_run_id, event.path))
            runs: list[Run] = [run] if run is not None else []
        else:
            runs = state.runs_of(state.runs[event.step_run_id])
        for each in runs:
            if each.status == "leased":
                self.cancelled.append(CancelRun(each.id, each.epoch, each.worker))
            if each.child is not None:
                wait = state.waits.get(each.child)
                if wait is None:
                    self.children[each.child] = None
                elif wait.request.quota is not None:
                    self.unused.setdefault(wait.request.quota, []).append(wait.request.until or 0.0)

    # ── effects that follow from an event ───────────────────────────────────────────────

    def _on_step_scheduled(self, event: StepScheduled) -> None:
        if event.step_run_id in self.state.queued:
            self.queued[event.step_run_id] = None
        else:  # a loop or a step without tasks: a handler decides what follows
            self.pending.append((event, self.state.seq))

    def _on_compensation_started(self, event: CompensationStarted) -> None:
        run_id = event.step_run_id
        if event.child is None:
            self.queued[run_id] = None
        else:
            self.children[task_run_id(run_id, CHILD_TASK, 1, 1)] = None

    def _on_requeued(self, event: WorkerLost | WaitFinished) -> None:
        self.queued[iteration_id(event.step_run_id, event.path)] = None

    def _on_child_event(self, event: Any) -> None:
        run_id = iteration_id(event.step_run_id, event.path)
        self.children[task_run_id(run_id, event.task, event.visit, event.attempt)] = None
        self.queued[run_id] = None

    def _on_loop_progress(self, event: Any) -> None:
        path = event.path[:-1] if type(event) in (IterationDone, IterationFailed) else event.path
        self.loops[event.step_run_id, path] = None

    def _on_resumed(self, event: Any) -> None:
        self.queued.update(self.state.queued)
        self.children.update(dict.fromkeys(self.state.children))
        for loop in open_loops(self.state):
            loop._announced = 0
            self.loops[loop.step_run.id, loop.path] = None

    # ── the decision ────────────────────────────────────────────────────────────────────

    def _decision(self) -> Decision:
        state = self.state
        for position, run_ids in self.claims:
            orders = [order_of(state, state.open[run_id]) for run_id in run_ids if run_id in state.open]
            self.replies[position] = Reply(True, "", None, tuple(orders))
        effects = tuple(self._effects())
        return Decision(tuple(self.events), effects, tuple(self.replies), operations=self.env.meter.spent)

    def _effects(self) -> list[Effect]:
        """The effects that this advance caused."""
        state = self.state
        effects: list[Effect] = [*self.cancelled]
        effects += (ReturnTurns(demand, tuple(instants)) for demand, instants in self.unused.items())
        if state.finished is not None:
            if self.events and type(self.events[-1].body) is PlaybookProcessed:
                effects += answer_parent(state)
                if self.timer is not None:
                    effects.append(SetTimer(None))
            return effects
        if state.accepts_claims:
            self._enqueue(effects)
        if state.ending is not None and not self.ending:
            self.children.update(dict.fromkeys(state.children))
        for key in self.children:
            child = state.children.get(key)
            if child is not None:
                effects.append(effect_for(state, child))
        due = next_due(state) if state.due else None
        if due != self.timer:
            effects.append(SetTimer(due))
        if self.needs_settling:  # the append is full; the shell expects this effect to be the last one
            effects.append(ContinueLater())
        return effects

    def _enqueue(self, effects: list[Effect]) -> None:
        state, start = self.state, len(effects)
        effects += [enqueue(state, state.open[run_id]) for run_id in self.queued if run_id in state.queued]
        for step_run_id, path in self.loops:
            step_run = state.runs.get(step_run_id)
            loop = step_run.loops.get(path) if step_run is not None else None
            if loop is None or not is_innermost(state, loop):
                continue
            first, loop._announced = loop._announced, max(loop._announced, loop.issued)
            issued = range(max(first, loop.claimed), loop.issued)
            effects += [enqueue_iteration(state, loop, index) for index in issued if index not in loop.ahead]
        if self.env.capacity is not None:
            check = CapacityCheck(state, self.env.capacity, waited=False)
            waiting: list[EnqueueRun] = effects[start:]  # type: ignore[assignment]
            effects[start:] = [
                structs.replace(each, limit=check.missing_key(each.step, each.run_id)) for each in waiting
            ]


_FOLLOW_UPS: dict[type[Event], Any] = {
    StepScheduled: _Advance._on_step_scheduled,
    CompensationStarted: _Advance._on_compensation_started,
    WorkerLost: _Advance._on_requeued,
    WaitFinished: _Advance._on_requeued,
    ChildRequested: _Advance._on_child_event,
    ChildStarted: _Advance._on_child_event,
    ChildFinished: _Advance._on_child_event,
    LoopStarted: _Advance._on_loop_progress,
    IterationsKept: _Advance._on_loop_progress,
    IterationDone: _Advance._on_loop_progress,
    IterationFailed: _Advance._on_loop_progress,
    ExecutionResumed: _Advance._on_resumed,
}

_UNSETTLING = frozenset({  # after these events waiting tokens are examined again, and the execution may end
    RequestEvaluated, WorkflowStarted, WorkflowSynthesized, ExecutionResumed, ExecutionCancelled, SignalReceived,
    CtxPatched, TokenMerged, StepScheduled, StepDone, StepFailed, StepSkipped, NextEvaluated, LoopDone, ChildFinished,
    CompensationStarted, CompensationDone, CompensationFailed,
})  # fmt: skip


def _traits(kind: type[Event]) -> Traits:
    """Everything that recording an event of this kind involves, looked up once per event."""
    return (
        APPLIERS[kind],
        kind in (StepScheduled, TokenParked, TokenMerged, StepSkipped),
        kind in (StepFailed, IterationFailed),
        kind in HANDLERS and kind is not StepScheduled,  # see _on_step_scheduled
        kind in _UNSETTLING,
        _FOLLOW_UPS.get(kind),
    )


Traits = tuple[Applier, bool, bool, bool, bool, Any]
_TRAITS: dict[type[Event], Traits] = {kind: _traits(kind) for kind in APPLIERS}
