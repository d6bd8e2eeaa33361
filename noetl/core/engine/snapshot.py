"""A folded state as bytes and back, so that a long log need not be folded again.

A snapshot is a convenience: losing it costs only time, and one that another version wrote is
refused (`CorruptLog`), whereupon the log is folded from its beginning. A state that comes back from
a snapshot equals the one that was folded; caches and hints are not in it.
"""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
from msgspec import Struct

from noetl.core.engine.identity import checksum_of, checksums_seen
from noetl.core.engine.state import Child, Ending, Loop, Run, RunStatus, State, StepRecord, StepRun, Token
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
    held: dict[int, bytes]
    failures: list[tuple[int, ErrorInfo]]
    writes: dict[str, tuple[Any, IterationPath]]
    parts: dict[str, Any]
    held_parts: dict[int, dict[str, Any]]


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


class _Ending(Struct, array_like=True):
    status: FinalStatus
    error: ErrorInfo | None
    step: str | None
    outcome: Outcome | None


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
    fresh: int
    step_runs: int
    heat: float
    heated_at: float
    waiting: list[list[_Token]]
    runs: list[_StepRun]
    live: dict[str, int]
    looping: list[str]
    open: list[_Run]
    queued: list[str]
    steps: list[_Record]
    children: list[_Child]
    due: dict[str, float]
    leaves: str | None
    synthesized: list[Step]
    refused: dict[str, int]
    begun: bool = True  # a log that is long enough for a snapshot has begun


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
            ending=None if ending is None else _Ending(ending.status, ending.error, ending.step, ending.outcome),
            finished=state.finished,
            processed=state.processed,
            output=state.output,
            error=state.error,
            result_step=state.result_step,
            tokens=state.tokens,
            fresh=state.fresh,
            step_runs=state.step_runs,
            heat=state.heat,
            heated_at=state.heated_at,
            waiting=[[_from(token, _Token) for token in group] for group in state.waiting.values()],
            runs=[_step_run(each) for each in state.runs.values()],
            live=state.live,
            looping=list(state.looping),
            open=[_run(each) for each in state.open.values()],
            queued=list(state.queued),
            steps=[_record(each) for each in state.steps.values()],
            children=[_from(each, _Child) for each in state.children.values()],
            due=state.due,
            leaves=state.leaves,
            synthesized=list(state.synthesized.values()),
            refused=state.refused,
            begun=state.begun,
        )
    )


def _from(source: Any, shape: type[Any]) -> Any:
    """The shape's fields, read off an object of the same field names."""
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
    """The state that was encoded; CorruptLog when it cannot be read (then fold the log)."""
    try:
        version = _version(data).version
        if version != VERSION:
            raise CorruptLog(f"this snapshot has version {version}, not {VERSION}; fold the log instead")
        held = _decode(data)
    except msgspec.MsgspecError as problem:
        raise CorruptLog(f"this snapshot cannot be read ({problem}); fold the log instead") from problem
    state = State(playbook, held.execution_id)
    for name in _PLAIN:
        setattr(state, name, getattr(held, name))
    if held.ending is not None:
        state.ending = Ending(held.ending.status, held.ending.error, held.ending.step, held.ending.outcome)
    if held.synthesized:
        state.synthesized = {step.name: step for step in held.synthesized}
        state.net = state.net.extended(state.synthesized)
    for group in held.waiting:
        state.waiting[group[0].step] = [_token(token) for token in group]
    for each in held.runs:
        state.runs[each.id] = _to_step_run(state, each)
    for run in held.open:
        made_run = state.open[run.id] = _to_run(state, run)
        if made_run.status == "leased":
            name = made_run.step_run.step.name
            state.leased[name] = state.leased.get(name, 0) + 1
    state.queued = dict.fromkeys(held.queued)
    state.looping = dict.fromkeys(held.looping)
    for record in held.steps:
        state.steps[record.name] = _into(StepRecord(record.name), record)
    for child in held.children:
        made = state.children[child.key] = Child(child.key, child.run_id, child.request, child.seq)
        made.child = child.child
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
    )
)


def _into(target: Any, held: Struct) -> Any:
    for name in held.__struct_fields__:
        setattr(target, name, getattr(held, name))
    return target


def _token(held: _Token) -> Token:
    token = Token(held.id, held.step, held.args, held.origin, held.boundary, held.seq)
    token.reason = held.reason
    return token


def _to_run(state: State, held: _Run) -> Run:
    run = Run(held.id, state.runs[held.step_run], held.path)
    for name in _Run.__struct_fields__:
        if name != "step_run":
            setattr(run, name, getattr(held, name))
    return run


def _to_step_run(state: State, held: _StepRun) -> StepRun:
    step_run = StepRun(
        held.id, state.net.steps[held.step], held.number, held.args, held.input, held.scheduled_at, held.seq
    )
    for name in _StepRun.__struct_fields__:
        if name not in _STEP_RUN_OWN:
            setattr(step_run, name, getattr(held, name))
    step_run.open = dict.fromkeys(held.open)
    for each in held.loops:
        step_run.loops[each.path] = _to_loop(step_run, each)
    return step_run


def _to_loop(step_run: StepRun, held: _Loop) -> Loop:
    loop = Loop(step_run, held.path, held.count, held.window, held.items, held.collection, held.keyed, held.seq)
    for name in _Loop.__struct_fields__:
        if name not in _LOOP_OWN:
            setattr(loop, name, getattr(held, name))
    loop.ahead = set(held.ahead)
    loop.statuses = bytearray(held.statuses)
    loop.checksums = array("I")
    loop.checksums.frombytes(held.checksums)
    loop.tail = bytearray(held.tail)
    loop._announced = loop.issued
    return loop
