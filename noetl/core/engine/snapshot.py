"""Snapshots: a folded state as bytes and back, so that a long log need not be folded again.

A snapshot is an optimization: losing it costs only time. A snapshot of another version is rejected
(`CorruptLog`), and the log is folded from its beginning. A state decoded from a snapshot equals the
folded one; caches and hints are not part of it. The fields are encoded by position.
"""

from __future__ import annotations

from array import array
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec import Struct

from noetl.core.engine.identity import checksum_of, checksums_seen
from noetl.core.engine.state import (
    SUSPECT,
    BoundaryEvent,
    Child,
    CommandContent,
    Compensating,
    Ending,
    KeptSignal,
    Loop,
    OpenWait,
    Run,
    RunStatus,
    State,
    StepRecord,
    StepRun,
    Token,
)
from noetl.core.model.compensation import CompensationCounts, CompletedRun, CompletedStep
from noetl.core.model.events import ChildRequested, ExecutionRequested, FinalStatus
from noetl.core.model.ids import IterationPath
from noetl.core.model.outcome import ErrorInfo, Outcome
from noetl.core.model.playbook import Playbook, Step
from noetl.core.model.position import Position
from noetl.core.model.reference import Reference
from noetl.errors import CorruptLog

VERSION = 2


class _Token(Struct, array_like=True):
    id: str
    step: str
    args: dict[str, Any]
    origin: str | None
    boundary: str | None
    seq: int
    reason: str | None
    event: BoundaryEvent | None = None
    dedupe: str | None = None
    partition: str | None = None
    priority: float = 0.0


class _Run(Struct, array_like=True):
    id: str
    step_run: str
    path: IterationPath
    status: RunStatus
    epoch: int
    worker: str
    seq: int
    at: float
    position: Position | None
    resume: Outcome | None
    lost: int
    current: str | None
    waits: bool
    child: str | None
    seen: dict[str, int]
    contributions: dict[str, Any] | None
    started: tuple[str, int, int] | None = None
    suspect: int = 0


class _Loop(Struct, array_like=True):
    path: IterationPath
    count: int
    window: int
    items: tuple[Any, ...] | None
    collection: Reference | None
    keyed: bool
    seq: int
    target: int
    stopped: bool
    finished: int
    succeeded: int
    failed: int
    skipped: int
    begun: int
    claimed: int
    ahead: list[int]
    statuses: bytes
    checksums: bytes
    order: int
    spilled: list[Reference]
    chunks: list[bytes]
    tail: bytes
    out_of_order: dict[int, bytes]
    failures: list[tuple[int, ErrorInfo]]
    writes: dict[str, tuple[Any, IterationPath]]
    parts: dict[str, Any]
    out_of_order_parts: dict[int, dict[str, Any]]
    failed_items: dict[int, Any] = {}
    answers: dict[int, bytes] = {}


class _StepRun(Struct, array_like=True):
    id: str
    step: str
    number: int
    seq: int
    args: dict[str, Any]
    input: dict[str, Any]
    defer_input: bool
    origin: str | None
    boundary: str | None
    scheduled_at: float
    started_at: float | None
    timeout_s: float | None
    deadline_at: float | None
    phase: str
    failed: bool
    outcome: Outcome | None
    results: dict[str, Outcome]
    open: list[str]
    loops: list[_Loop]
    scope: dict[str, Any]
    fired: tuple[int, ...]
    synthesized: bool
    event: BoundaryEvent | None = None
    completed: list[CompletedRun] = []
    window: int = 1
    dedupe: str | None = None
    partition: str | None = None
    priority: float = 0.0


class _Compensating(Struct, array_like=True):
    id: str
    step: str
    run: CompletedRun


class _Record(Struct, array_like=True):
    name: str
    number: int
    open: int
    running: int
    failed: bool
    outcome: Outcome | None
    results: dict[str, Outcome]
    started_at: float | None
    finished_at: float | None
    last: str | None
    checksum: int


class _Child(Struct, array_like=True):
    key: str
    run_id: str
    request: ChildRequested
    child: str | None
    seq: int
    waiting: bool = False
    reported: int = 0


class _Ending(Struct, array_like=True):
    status: FinalStatus
    error: ErrorInfo | None
    step: str | None
    outcome: Outcome | None
    compensate: bool = True


class _State(Struct, array_like=True):
    version: int
    execution_id: str
    seq: int
    at: float
    request: ExecutionRequested | None
    started_at: float
    workload: dict[str, Any]
    ctx: dict[str, Any]
    entry: str
    started: bool
    paused: bool
    ending: _Ending | None
    finished: FinalStatus | None
    processed: bool
    output: Outcome | None
    error: ErrorInfo | None
    result_step: str | None
    tokens: int
    unexamined: int
    step_runs: int
    bucket: float
    bucket_at: float
    waiting: list[list[_Token]]
    runs: list[_StepRun]
    live: dict[str, int]
    looping: list[str]
    open: list[_Run]
    queued: list[str]
    steps: list[_Record]
    children: list[_Child]
    due: dict[str, float]
    last_leaf: str | None
    synthesized: list[Step]
    refused: dict[str, int]
    begun: bool = True  # older snapshots lack it; a log long enough for a snapshot has started
    waits: list[OpenWait] = []
    signals: dict[int, KeptSignal] = {}
    signal_ids: list[str] = []
    signal_contents: list[CommandContent | None] = []  # of `signal_ids`; older snapshots lack it
    completed: list[CompletedStep] = []
    compensations_left: int | None = None
    compensating: list[_Compensating] = []
    compensated: CompensationCounts = CompensationCounts()
    versions: dict[str, str] = {}
    uncommitted: list[str] = []


class _Version(Struct, array_like=True):
    version: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode
_version = msgspec.msgpack.Decoder(_Version).decode


def encode_state(state: State) -> bytes:
    """The state as bytes."""
    ending = state.ending
    return _encode(
        _State(
            version=VERSION,
            execution_id=state.execution_id,
            seq=state.seq,
            at=state.at,
            request=state.request,
            started_at=state.started_at,
            workload=state.workload,
            ctx=state.ctx,
            entry=state.entry,
            started=state.started,
            paused=state.paused,
            ending=None if ending is None else _from(ending, _Ending),
            finished=state.finished,
            processed=state.processed,
            output=state.output,
            error=state.error,
            result_step=state.result_step,
            tokens=state.tokens,
            unexamined=state.unexamined,
            step_runs=state.step_runs,
            bucket=state.bucket,
            bucket_at=state.bucket_at,
            waiting=[[_from(token, _Token) for token in group] for group in state.waiting.values()],
            runs=[_step_run(each) for each in state.runs.values()],
            live=state.live,
            looping=list(state.looping),
            open=[_run(each) for each in state.open.values()],
            queued=list(state.queued),
            steps=[_record(each) for each in state.steps.values()],
            children=[_from(each, _Child) for each in state.children.values()],
            due=state.due,
            last_leaf=state.last_leaf,
            synthesized=list(state.synthesized.values()),
            refused=state.refused,
            begun=state.begun,
            waits=list(state.waits.values()),
            signals=state.signals,
            signal_ids=list(state.signal_ids),
            signal_contents=list(state.signal_ids.values()),
            versions=state.versions,
            uncommitted=list(state.uncommitted),
            completed=state.completed,
            compensations_left=state.compensations_left,
            compensating=[_Compensating(run_id, each.step, each.run) for run_id, each in state.compensating.items()],
            compensated=state.compensated,
        )
    )


def _from(source: Any, shape: type[Any]) -> Any:
    """A `shape` with the values of the equally named attributes of `source`."""
    return shape(*(getattr(source, name) for name in shape.__struct_fields__))


def _record(record: StepRecord) -> _Record:
    values = {name: getattr(record, name) for name in _Record.__struct_fields__ if name != "checksum"}
    return _Record(checksum=checksum_of(record), **values)


def _run(run: Run) -> _Run:
    values = {name: getattr(run, name) for name in _Run.__struct_fields__ if name not in ("step_run", "seen")}
    return _Run(step_run=run.step_run.id, seen=checksums_seen(run), **values)


_STEP_RUN_OWN = ("step", "open", "loops")
_LOOP_OWN = ("ahead", "statuses", "checksums", "tail")


def _step_run(step_run: StepRun) -> _StepRun:
    values = {name: getattr(step_run, name) for name in _StepRun.__struct_fields__ if name not in _STEP_RUN_OWN}
    return _StepRun(
        step=step_run.step.name,
        open=list(step_run.open),
        loops=[_loop(loop) for loop in step_run.loops.values()],
        **values,
    )


def _loop(loop: Loop) -> _Loop:
    values = {name: getattr(loop, name) for name in _Loop.__struct_fields__ if name not in _LOOP_OWN}
    return _Loop(
        ahead=sorted(loop.ahead),
        statuses=bytes(loop.statuses),
        checksums=loop.checksums.tobytes(),
        tail=bytes(loop.tail),
        **values,
    )


def decode_state(playbook: Playbook, data: bytes) -> State:
    """The encoded state; CorruptLog if it cannot be read (then fold the log)."""
    try:
        version = _version(data).version
        if version != VERSION:
            raise CorruptLog(f"the snapshot has version {version}, not {VERSION}; fold the log instead")
        stored = _decode(data)
    except msgspec.MsgspecError as problem:
        raise CorruptLog(f"the snapshot cannot be decoded ({problem}); fold the log instead") from problem
    state = State(playbook, stored.execution_id)
    for name in _PLAIN:
        setattr(state, name, getattr(stored, name))
    if stored.ending is not None:
        ending = stored.ending
        state.ending = Ending(ending.status, ending.error, ending.step, ending.outcome, compensate=ending.compensate)
    if stored.synthesized:
        state.synthesized = {step.name: step for step in stored.synthesized}
        state.net = state.net.extended(state.synthesized)
    for undo in stored.compensating:
        state.compensating[undo.id] = Compensating(undo.step, undo.run)
    for group in stored.waiting:
        state.waiting[group[0].step] = [_token(token) for token in group]
    for each in stored.runs:
        state.runs[each.id] = _to_step_run(state, each)
    for run in stored.open:
        restored = state.open[run.id] = _to_run(state, run)
        if restored.suspect > SUSPECT:
            state.isolated[run.id] = None
        if restored.status == "leased":
            name = restored.step_run.step.name
            state.leased[name] = state.leased.get(name, 0) + 1
    state.queued = dict.fromkeys(stored.queued)
    state.looping = dict.fromkeys(stored.looping)
    for record in stored.steps:
        state.steps[record.name] = _into(StepRecord(record.name), record)
    for child in stored.children:
        restored_child = state.children[child.key] = Child(child.key, child.run_id, child.request, child.seq)
        restored_child.child = child.child
        restored_child.waiting, restored_child.reported = child.waiting, child.reported
        state.waiting_children += child.waiting
    state.waits = {wait.key: wait for wait in stored.waits}
    state.signal_ids = dict(zip_longest(stored.signal_ids, stored.signal_contents))
    state.uncommitted = dict.fromkeys(stored.uncommitted)
    return state


_PLAIN = tuple(
    name
    for name in _State.__struct_fields__
    if name
    not in (
        "version",
        "execution_id",
        "ending",
        "waiting",
        "runs",
        "open",
        "queued",
        "steps",
        "children",
        "synthesized",
        "compensating",
        "waits",
        "signal_ids",
        "signal_contents",
        "uncommitted",
    )
)


def _into(target: Any, stored: Struct) -> Any:
    for name in stored.__struct_fields__:
        setattr(target, name, getattr(stored, name))
    return target


def _token(stored: _Token) -> Token:
    token = Token(stored.id, stored.step, stored.args, stored.origin, stored.boundary, stored.seq)
    token.reason = stored.reason
    token.event, token.dedupe, token.partition = stored.event, stored.dedupe, stored.partition
    token.priority = stored.priority
    return token


def _to_run(state: State, stored: _Run) -> Run:
    run = Run(stored.id, state.runs[stored.step_run], stored.path)
    for name in _Run.__struct_fields__:
        if name != "step_run":
            setattr(run, name, getattr(stored, name))
    return run


def _to_step_run(state: State, stored: _StepRun) -> StepRun:
    step_run = StepRun(
        stored.id,
        state.net.compiled(stored.step).step,
        stored.number,
        stored.args,
        stored.input,
        stored.scheduled_at,
        stored.seq,
    )
    for name in _StepRun.__struct_fields__:
        if name not in _STEP_RUN_OWN:
            setattr(step_run, name, getattr(stored, name))
    step_run.open = dict.fromkeys(stored.open)
    for each in stored.loops:
        step_run.loops[each.path] = _to_loop(step_run, each)
    return step_run


def _to_loop(step_run: StepRun, stored: _Loop) -> Loop:
    loop = Loop(
        step_run, stored.path, stored.count, stored.window, stored.items, stored.collection, stored.keyed, stored.seq
    )
    _into(loop, stored)
    loop.ahead = set(stored.ahead)
    loop.statuses = bytearray(stored.statuses)
    loop.checksums = array("I")
    loop.checksums.frombytes(stored.checksums)
    loop.tail = bytearray(stored.tail)
    loop._announced = loop.issued
    return loop
