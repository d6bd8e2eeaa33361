"""Runs a whole execution against the engine with a scripted worker, and checks every transition.

After every event the live state is compared with a state folded from the encoded log, and with one
restored from a snapshot; every deciding call is checked to leave the state unchanged. So every test
of the engine is a test of replay too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar
from unittest.mock import patch
from zlib import crc32

import msgspec

from noetl.core.engine import advance as machine
from noetl.core.engine.advance import advance, begin, fold, outstanding
from noetl.core.engine.capacity import Capacity, slots_held
from noetl.core.engine.commands import ClaimRun, Command, Reply, ReportRun, StartExecution
from noetl.core.engine.decision import Decision
from noetl.core.engine.effects import (
    AnswerParent,
    AwaitChild,
    CancelChild,
    CancelRun,
    ContinueLater,
    DataRequest,
    Effect,
    EnqueueRun,
    FetchPayload,
    ReturnTurns,
    SetTimer,
    StartChild,
    StorePayload,
)
from noetl.core.engine.lease_rules import claim_rejection
from noetl.core.engine.snapshot import decode_state, encode_state
from noetl.core.engine.views.open_waits import inbox_entries, wait_counts
from noetl.core.engine.views.waiting import waiting_reasons
from noetl.core.language.compile import compile_playbook
from noetl.core.model.events import (
    Event,
    ExecutionRequested,
    IterationDone,
    IterationFailed,
    Recorded,
    StepDone,
    StepFailed,
    TaskDone,
    decode_body,
    encode_body,
)
from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.playbook import Playbook
from noetl.core.model.reference import Reference, ReferenceMeta
from noetl.core.model.tool import ToolSpec
from noetl.core.model.work import Report, ReportAck, RunOrder
from noetl.core.templates.budget import NondeterminismSource
from noetl.tools.wait.spec import SPEC as WAIT

SPECS = {
    kind: ToolSpec(kind=kind, open_fields=True, pure=kind == "noop", suspends=kind == "playbook")
    for kind in ("noop", "http", "python", "shell", "postgres", "playbook", "workbook")
} | {"wait": WAIT}
DERIVED = ("isolated", "leased", "waiting_children")  # parts of a state that are not in its snapshot
Placement = Callable[[str, tuple[str, ...]], str | None]  # why no worker can run a step of this pool and labels
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: test, path: tests/test}\n"


def playbook(text: str, *, legacy: bool = False) -> Playbook:
    """Compile a playbook (the head may be omitted)."""
    compilation = compile_playbook(
        text if "apiVersion" in text else HEAD + text, file="test.yaml", specs=SPECS, legacy=legacy
    )
    errors = [each for each in compilation.diagnostics if each.severity == "error"]
    assert compilation.playbook is not None, errors
    return compilation.playbook


class FixedNondeterminism:
    def now(self) -> str:
        return "2026-01-01T00:00:00Z"

    def uuid(self) -> str:
        return "00000000-0000-4000-8000-000000000001"

    def random(self) -> float:
        return 0.25


@contextlib.contextmanager
def watched(harness: Harness) -> Iterator[None]:
    """Check every event and every decision during an advance."""
    decide, settle, accept = machine.decide, machine.settle, machine.accept

    def watching(applier: Callable[..., None]) -> Callable[..., None]:
        def apply(state: Any, event: Event, at: float) -> None:
            applier(state, event, at)
            machine.evolve(harness.shadow, decode_body(event.NAME, event.VERSION, encode_body(event)), at, state._cause)
            live, folded = encode_state(state), encode_state(harness.shadow)
            assert live == folded, f"live and folded state differ after {event}"
            restored = decode_state(state.playbook, live)
            assert encode_state(restored) == live, f"a snapshot loses something after {event}"
            for name in DERIVED:
                values = [getattr(each, name) for each in (state, harness.shadow, restored)]
                assert values[0] == values[1] == values[2], f"{name} differs after {event}: {values}"
            mask = state.net.mask(state.live) | state.net.mask(state.waiting)
            assert state._mask in (None, mask), f"the mask of live steps is wrong after {event}"

        return apply

    def untouched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(state: Any, *rest: Any) -> Any:
            before = encode_state(state)
            try:
                return function(state, *rest)
            finally:
                assert encode_state(state) == before, f"{function.__name__} changed the state"

        return call

    def watched_accept(state: Any, command: Command, env: Any, record: Any) -> Any:
        before = encode_state(state)

        def watched_record(events: Any, cause: Any) -> None:
            nonlocal before
            assert encode_state(state) == before, "accept changed the state"
            record(events, cause)
            before = encode_state(state)

        reply = accept(state, command, env, watched_record)
        assert encode_state(state) == before, "accept changed the state"
        return reply

    with (
        patch.object(
            machine, "_TRAITS", {kind: (watching(traits[0]), *traits[1:]) for kind, traits in machine._TRAITS.items()}
        ),
        patch.object(machine, "decide", untouched(decide)),
        patch.object(machine, "settle", untouched(settle)),
        patch.object(machine, "accept", watched_accept),
    ):
        yield


class Harness:
    """One execution with a log, a queue, stored payloads and a scripted worker."""

    notes: ClassVar[list[Any] | None] = None  # receives everything that is decided

    def __init__(
        self,
        book: Playbook | str,
        script: dict[str, Any] | None = None,
        *,
        execution_id: str = "77",
        watch: bool = True,
        validate: Callable[[Any], Any] | None = None,
    ) -> None:
        self.playbook = playbook(book) if isinstance(book, str) else book
        self.script = script or {}
        self.state = begin(self.playbook, execution_id)
        self.shadow = begin(self.playbook, execution_id)
        self.log: list[Recorded] = []
        self.queue: list[EnqueueRun] = []
        self.cancelled: list[CancelRun] = []
        self.children: list[StartChild] = []
        self.child_cancels: list[CancelChild] = []
        self.answers: list[AnswerParent] = []
        self.timer: float | None = None
        self.stored: dict[str, Any] = {}
        self.requests: list[DataRequest] = []
        self.orders: list[RunOrder] = []
        self.at = 1000.0
        self.watch = watch
        self.validate = validate
        self.capacity: Capacity | None = None  # of the limits during the next advance
        self.numbers: dict[str, int] = {}
        self.nondeterminism: NondeterminismSource = FixedNondeterminism()

    # ── the shell ───────────────────────────────────────────────────────────────────────

    def record(
        self,
        sent: Sequence[Command],
        decision: Decision,
        placement: Placement = lambda pool, labels: None,
        reached: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Everything that was decided, what the execution waits for afterwards, and a checksum of its state."""
        return {
            "commands": [type(each).__name__ for each in sent],
            "at": self.at,
            "replies": msgspec.to_builtins(decision.replies),
            "events": [[e.seq, e.parent_seq, e.body.NAME, msgspec.to_builtins(e.body)] for e in decision.events],
            "effects": [{type(each).__name__: msgspec.to_builtins(each)} for each in decision.effects],
            "why": msgspec.to_builtins(waiting_reasons(self.state, self.at, reached or {}, placement)),
            "inbox": msgspec.to_builtins(inbox_entries(self.state)),
            "waits": msgspec.to_builtins(wait_counts(self.state)),
            "outstanding": [{type(each).__name__: msgspec.to_builtins(each)} for each in outstanding(self.state)],
            "slots": slots_held(self.state),
            "state": f"{self.state.status} {crc32(encode_state(self.state)):08x}",
        }

    def send(self, *commands: Command, at: float | None = None, conflict: str | None = None) -> Decision:
        """Advance with these commands, answer the data requests, append, perform the effects."""
        self.at = at if at is not None else self.at + 1.0
        with watched(self) if self.watch else contextlib.nullcontext():
            decision = advance(
                self.state,
                commands,
                at=self.at,
                nondeterminism=self.nondeterminism,
                capacity=self.capacity,
                conflict=conflict,
            )
            while decision.requests:
                decision = decision.resume({request.key: self._answer(request) for request in decision.requests})
        first = len(self.log) + 1
        assert [each.seq for each in decision.events] == list(range(first, first + len(decision.events)))
        for each in decision.events:
            assert each.parent_seq is None or each.parent_seq < each.seq
        self.log.extend(decision.events)
        if Harness.notes is not None:
            Harness.notes.append(self.record(commands, decision))
        assert [type(reply) for reply in decision.replies] == [Reply] * len(commands)
        for effect in decision.effects:
            self._perform(effect)
        self._check_outstanding()
        if any(isinstance(effect, ContinueLater) for effect in decision.effects):
            self.continue_later()
        return decision

    def continue_later(self) -> None:
        """Decide what did not fit into the append."""
        self.send(at=self.at)

    def _answer(self, request: DataRequest) -> Any:
        self.requests.append(request)
        if isinstance(request, FetchPayload):
            return self.stored[request.reference.locator["key"]]
        if isinstance(request, StorePayload):
            if request.parts:
                lists = [
                    msgspec.json.decode(each) if isinstance(each, bytes) else self.stored[each.locator["key"]]
                    for each in request.parts
                ]
                return self.store(request.key, [item for each in lists for item in each])
            return self.store(request.key, msgspec.json.decode(request.data))
        assert self.validate is not None
        return self.validate(request)

    def store(self, key: str, data: Any) -> Reference:
        """Store a payload outside the log."""
        self.stored[key] = data
        size = len(msgspec.json.encode(data))
        return Reference("blob", {"key": key}, ReferenceMeta("application/json", size, f"sha-{key}"))

    def _perform(self, effect: Effect) -> None:
        match effect:
            case EnqueueRun():
                assert effect.run_id not in [each.run_id for each in self.queue], "enqueued twice"
                self.queue.append(effect)
            case CancelRun():
                self.cancelled.append(effect)
            case StartChild():
                self.children.append(effect)
            case CancelChild():
                self.child_cancels.append(effect)
            case AnswerParent():
                self.answers.append(effect)
            case SetTimer():
                self.timer = effect.at
            case AwaitChild() | ContinueLater() | ReturnTurns():
                pass
            case _:
                raise AssertionError(effect)

    def _check_outstanding(self) -> None:
        """The outstanding effects after a restart are the ones that were performed."""
        if not self.watch:
            return
        effects = outstanding(self.state)
        runs = {each.run_id for each in effects if isinstance(each, EnqueueRun)}
        if not self.state.paused:
            assert runs <= {each.run_id for each in self.queue}, "an outstanding run was never enqueued"
        timers = [each.at for each in effects if isinstance(each, SetTimer)]
        assert (timers[0] if timers else None) == (None if self.state.finished else self.timer)

    # ── the worker ──────────────────────────────────────────────────────────────────────

    def start(
        self, payload: dict[str, Any] | None = None, *, state: dict[str, Any] | None = None, **request: Any
    ) -> Harness:
        """Start the execution; the stored `state` has these values, each with version `v1`."""
        requested = ExecutionRequested("digest", self.playbook.path, payload=payload or {}, **request)
        stored = state or {}
        self.send(StartExecution(requested, state=stored, state_versions=dict.fromkeys(stored, "v1")))
        return self

    def run(
        self, payload: dict[str, Any] | None = None, *, state: dict[str, Any] | None = None, **request: Any
    ) -> Harness:
        """Start the execution and complete all runs."""
        self.start(payload, state=state, **request)
        return self.work()

    def work(self) -> Harness:
        """Claim and complete all enqueued runs in order."""
        while self.queue:
            if claim_rejection(self.state, self.queue[0].run_id) is None:
                self.complete(self.claim())
            else:  # it has ended since: the claim is rejected
                self.rejection(self.queue.pop(0).run_id)
        return self

    def claim(self, run_id: str | None = None, worker: str = "w1") -> RunOrder:
        """Claim a run (the oldest unless named)."""
        if run_id is None:
            run_id = self.queue[0].run_id
        self.queue = [each for each in self.queue if each.run_id != run_id]
        reply = self.send(ClaimRun(worker, run_id)).replies[0]
        assert reply.accepted, reply.reason
        (order,) = reply.orders
        self.orders.append(order)
        return order

    def rejection(self, run_id: str, worker: str = "w1") -> str:
        """The reason why a claim is rejected."""
        reply = self.send(ClaimRun(worker, run_id)).replies[0]
        assert not reply.accepted
        return reply.reason

    def complete(self, order: RunOrder, outcome: Any = None) -> ReportAck:
        """Complete a run as scripted and report it."""
        return self.report(order, *self.events_for(order, outcome))

    def events_for(self, order: RunOrder, outcome: Any = None) -> list[Event]:
        """The events that the worker reports for a run."""
        if outcome is None:
            outcome = self.script.get(order.context.step, ok())
        if callable(outcome):
            outcome = outcome(self, order)
        if isinstance(outcome, list):
            return outcome
        return finished(order, outcome if isinstance(outcome, Outcome) else ok(outcome))

    def report(self, order: RunOrder, *events: Event, number: int | None = None) -> ReportAck:
        """Report events of a run."""
        if number is None:
            number = self.numbers[order.run_id] = self.numbers.get(order.run_id, 0) + 1
        sent = tuple(decode_body(each.NAME, each.VERSION, encode_body(each)) for each in events)
        reply = self.send(ReportRun(Report(order.run_id, order.epoch, number, sent))).replies[0]
        assert reply.ack is not None
        return reply.ack

    # ── what happened ───────────────────────────────────────────────────────────────────

    @property
    def names(self) -> list[str]:
        """The names of all events."""
        return [each.body.NAME for each in self.log]

    def of(self, kind: type[Any]) -> list[Any]:
        """All events of a type."""
        return [each.body for each in self.log if type(each.body) is kind]

    @property
    def scheduled(self) -> list[str]:
        """The steps in the order in which they were scheduled."""
        return [each.body.step for each in self.log if each.body.NAME == "step.scheduled"]

    @property
    def status(self) -> str | None:
        return self.state.finished

    @property
    def data(self) -> Any:
        assert self.state.output is not None
        return self.state.output.data

    def refold(self) -> Any:
        """The state folded from the log."""
        return fold(self.playbook, self.log)


def finished(order: RunOrder, outcome: Outcome, **extra: Any) -> list[Event]:
    """The terminal event of a run."""
    context = order.context
    if order.path:
        kind = IterationDone if outcome.status == "ok" else IterationFailed
        return [kind(step=context.step, step_run_id=context.step_run_id, path=order.path, output=outcome, **extra)]
    terminal = StepDone if outcome.status == "ok" else StepFailed
    return [terminal(step=context.step, step_run_id=context.step_run_id, output=outcome, **extra)]


def task_done(order: RunOrder, task: str = "t", outcome: Outcome | None = None, **extra: Any) -> TaskDone:
    """The event that a task of a run ended."""
    context = order.context
    return TaskDone(
        step=context.step,
        step_run_id=context.step_run_id,
        task=task,
        kind="noop",
        outcome=outcome or ok(),
        path=order.path,
        **extra,
    )


def wrote(order: RunOrder, task: str = "t", data: Any = None, **ctx: Any) -> list[Event]:
    """The events of a run whose only task wrote to ctx."""
    return [task_done(order, task, ok(data), patch={"ctx": ctx}), *finished(order, ok(data))]


def failure(kind: str = "server_error", message: str = "it broke") -> Outcome:
    return error(kind, message)
