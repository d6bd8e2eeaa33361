"""What differs between two executions: inputs, version, durations, outputs, and where they diverge first.

Events are compared per step run, iteration and task, so that the order of parallel work does not matter. Ids, times and
attempts of an event are not compared. Both logs are read page by page at the same time, and only events that the other
one has not had yet are kept, as checksums: logs of any length need little memory.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from noetl.core.model import events as ev
from noetl.core.model.outcome import Outcome
from noetl.core.model.secret_names import MASK, is_secret_name, mask_secret_names
from noetl.server.read_models.documents import summary_document
from noetl.server.read_models.log_pages import log_events
from noetl.server.read_models.summaries import Progress, StepRow
from noetl.storage.ports.events import EventStore, ExecutionSummary

MAX_DIFFERENCES = 100
MAX_PENDING = 100_000  # events that the other log has not had yet, after which it does not have the first of them
MAX_SHOWN = 400  # characters of a value in a difference
_IGNORED = frozenset(
    {"step_run_id", "position", "draws", "meta", "epoch", "worker", "tokens", "token", "deadline_at", "attempt"}
)
_COMPARED = (
    ev.RequestEvaluated, ev.StepScheduled, ev.StepDone, ev.StepFailed, ev.StepSkipped, ev.NextEvaluated, ev.LoopStarted,
    ev.IterationDone, ev.IterationFailed, ev.LoopDone, ev.TaskDone, ev.WaitFinished, ev.WorkflowFinished,
)  # fmt: skip

Entry = tuple[str, ...]
_encode = msgspec.json.Encoder(enc_hook=str, order="deterministic").encode


class _Execution:
    """What is kept of one log while it is read."""

    def __init__(self) -> None:
        self.table = Progress()
        self.workload: Any = None
        self.results: dict[str, str] = {}  # step -> digest of the outputs of all its runs
        self._runs: dict[str, int] = {}  # step -> number of its runs
        self._numbers: dict[str, int] = {}  # step run -> its number

    def apply(self, recorded: ev.Recorded) -> Entry | None:
        """Take an event; returns the place at which it is compared."""
        body: Any = recorded.body
        self.table.apply(recorded)
        if isinstance(body, ev.RequestEvaluated) and self.workload is None:
            self.workload = body.workload
        elif isinstance(body, ev.ExecutionRequested) and body.rerun is not None:
            for name, outcome in body.rerun.results.items():  # those that a rerun kept come first
                self.results[name] = _digest("", _payload(outcome))
        elif isinstance(body, ev.StepDone | ev.StepFailed):
            self.results[body.step] = _digest(self.results.get(body.step, ""), _payload(body.output))
        return self._place(body) if isinstance(body, _COMPARED) else None

    def _place(self, body: Any) -> Entry:
        """Step, number of the run, iteration and task."""
        step = getattr(body, "step", None) if not isinstance(body, ev.WorkflowFinished) else None
        if isinstance(body, ev.StepScheduled):
            self._runs[body.step] = self._runs.get(body.step, 0) + 1
            self._numbers[body.step_run_id] = self._runs[body.step]
        number = self._numbers.get(getattr(body, "step_run_id", None) or "", 0)
        iteration = ".".join(map(str, getattr(body, "path", ())))
        return (step or "", str(number), iteration, getattr(body, "task", "") or "")


class Divergence:
    """Finds the earliest event that the other execution does not have at the same place."""

    def __init__(self) -> None:
        self._pending: dict[Entry, tuple[int, deque[tuple[int, str]]]] = {}  # place -> side, its events without a pair
        self._count = 0
        self._found: dict[Entry, tuple[int | None, int | None]] = {}  # place -> the seq of both sides
        self.complete = False  # nothing that is read later can be earlier

    def add(self, side: int, place: Entry, seq: int, content: str) -> None:
        """Take an event of one side."""
        if place in self._found or self.complete:
            return
        known = self._pending.get(place)
        if known is None or known[0] == side:
            if known is None:
                known = self._pending[place] = (side, deque())
            known[1].append((seq, content))
            self._count += 1
            self.complete = self._count > MAX_PENDING
            return
        other, expected = known[1].popleft()
        self._count -= 1
        if not known[1]:
            del self._pending[place]
        if expected != content:
            self._found[place] = (seq, other) if side == 0 else (other, seq)
            self._pending.pop(place, None)

    def first(self) -> tuple[Entry, int | None, int | None] | None:
        """The place of the earliest one, and its seq in both logs; None if there is none."""
        found = dict(self._found)
        for place, (side, events) in self._pending.items():
            found[place] = (events[0][0], None) if side == 0 else (None, events[0][0])
        if not found:
            return None
        place = min(found, key=lambda each: min(seq for seq in found[each] if seq is not None))
        return (place, *found[place])


async def compare(store: EventStore, summaries: tuple[ExecutionSummary, ExecutionSummary]) -> dict[str, Any]:
    """The differences of two executions as a document; `a` is the first one, `b` the second."""
    sides = (_Execution(), _Execution())
    divergence = Divergence()
    logs = [log_events(store, each.execution_id, until=each.seq) for each in summaries]
    read = [True, True]
    while any(read):
        for side, log in enumerate(logs):
            recorded = await anext(log, None) if read[side] else None
            if recorded is None:
                read[side] = False
                continue
            place = sides[side].apply(recorded)
            if place is not None and not divergence.complete:
                divergence.add(side, place, recorded.seq, _digest("", _content(recorded.body)))
    tables = tuple(each.table for each in sides)
    outputs = tuple(_payload(table.output) for table in tables)
    versions = [{"version": each.version, "playbook": each.playbook} for each in summaries]
    return {
        "a": summary_document(summaries[0]),
        "b": summary_document(summaries[1]),
        "version": {"same": summaries[0].playbook == summaries[1].playbook, "a": versions[0], "b": versions[1]},
        "inputs": list(differences(*(each.workload or {} for each in sides))),
        "outputs": list(differences(*outputs)),
        "steps": list(_steps(*sides)),
        "first_divergence": await _described(store, summaries, divergence.first()),
    }


def differences(a: Any, b: Any) -> Iterator[dict[str, Any]]:
    """Every path at which two values differ; `a` or `b` is missing where it has no such path."""
    for number, each in enumerate(_walk(a, b, ())):
        if number == MAX_DIFFERENCES:
            return
        yield each


_MISSING: Any = object()


def _walk(a: Any, b: Any, path: Entry) -> Iterator[dict[str, Any]]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            yield from _walk(a.get(key, _MISSING), b.get(key, _MISSING), (*path, str(key)))
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple):
        for index in range(max(len(a), len(b))):
            left = a[index] if index < len(a) else _MISSING
            right = b[index] if index < len(b) else _MISSING
            yield from _walk(left, right, (*path, str(index)))
    elif a is _MISSING or b is _MISSING or a != b:
        is_secret = any(map(is_secret_name, path))
        sides = {
            name: MASK if is_secret and isinstance(value, str) else _shown(value)
            for name, value in (("a", a), ("b", b))
            if value is not _MISSING
        }
        yield {"path": ".".join(path), **sides}


def _shown(value: Any) -> Any:
    value = mask_secret_names(value)
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return value if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text)} characters)"


# ── steps ───────────────────────────────────────────────────────────────────────────────


def _steps(a: _Execution, b: _Execution) -> Iterator[Any]:
    for name in dict.fromkeys([*a.table.steps, *b.table.steps]):
        left, right = a.results.get(name), b.results.get(name)
        yield {
            "step": name,
            "a": _row(a.table.steps.get(name)),
            "b": _row(b.table.steps.get(name)),
            "output": "same" if left == right else "differs" if left and right else "missing",
        }


def _row(row: StepRow | None) -> dict[str, Any] | None:
    if row is None:
        return None
    took = None if row.started_at is None or row.ended_at is None else round(1000 * (row.ended_at - row.started_at), 3)
    return {
        "status": row.status,
        "runs": row.runs,
        "attempts": row.attempts,
        "duration_ms": took,
        "iterations": row.iterations,
        "iterations_failed": row.iterations_failed,
        "error": None if row.error is None else row.error.message,
    }


def _payload(output: Outcome | None) -> Any:
    """The part of an output that is compared: its data, or the checksum of stored data, and its error."""
    if output is None:
        return None
    error = {"kind": output.error.kind, "message": output.error.message} if output.error else None
    data = {"sha256": output.ref.meta.sha256} if output.ref is not None and output.data is None else output.data
    return {"status": output.status, "data": data, "error": error}


# ── the first divergence ────────────────────────────────────────────────────────────────


def _digest(before: str, value: Any) -> str:
    """A digest of a value, and of what was digested before it."""
    return hashlib.sha256(before.encode() + _encode(value)).hexdigest()[:32]


def _content(body: ev.Event) -> Any:
    """The fields of an event that are compared."""
    return body.NAME, _without(msgspec.to_builtins(body))


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(each) for key, each in value.items() if key not in _IGNORED}
    return [_without(each) for each in value] if isinstance(value, list | tuple) else value


async def _described(
    store: EventStore,
    summaries: tuple[ExecutionSummary, ExecutionSummary],
    found: tuple[Entry, int | None, int | None] | None,
) -> dict[str, Any] | None:
    if found is None:
        return None
    (step, _, iteration, task), *seqs = found
    events = [
        None if seq is None else (await store.read(summary.execution_id, seq - 1, 1))[0]
        for summary, seq in zip(summaries, seqs, strict=True)
    ]
    where = ".".join(filter(None, (f"{step}/{iteration}" if iteration else step, task))) or "execution"
    one, two = events
    changes: list[dict[str, Any]] = []
    if one is not None and two is not None:
        changes = list(differences(_content(one.body)[1], _content(two.body)[1]))
    sides = {
        name: None if each is None else {"seq": each.seq, "name": each.body.NAME}
        for name, each in (("a", one), ("b", two))
    }
    return {"where": where, **sides, "differences": changes}
