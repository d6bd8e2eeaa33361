"""What differs between two executions: inputs, version, durations, outputs, and where they diverge first.

Events are compared per step run, iteration and task, so that the order of parallel work does not matter. Ids, times and
attempts of an event are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from noetl.core.model import events as ev
from noetl.core.model.outcome import Outcome
from noetl.core.model.secret_names import MASK, is_secret_name, mask_secret_names
from noetl.server.read_models.documents import summary_document
from noetl.server.read_models.summaries import Progress, StepRow
from noetl.storage.ports.events import ExecutionSummary

MAX_DIFFERENCES = 100
MAX_SHOWN = 400  # characters of a value in a difference
_IGNORED = frozenset(
    {"step_run_id", "position", "draws", "meta", "epoch", "worker", "tokens", "token", "deadline_at", "attempt"}
)
_COMPARED = (
    ev.RequestEvaluated, ev.StepScheduled, ev.StepDone, ev.StepFailed, ev.StepSkipped, ev.NextEvaluated, ev.LoopStarted,
    ev.IterationDone, ev.IterationFailed, ev.LoopDone, ev.TaskDone, ev.WaitFinished, ev.WorkflowFinished,
)  # fmt: skip

Entry = tuple[str, ...]


def compare(
    summaries: tuple[ExecutionSummary, ExecutionSummary], logs: tuple[Sequence[ev.Recorded], Sequence[ev.Recorded]]
) -> dict[str, Any]:
    """The differences of two executions as a document; `a` is the first one, `b` the second."""
    tables = tuple(_table(log) for log in logs)
    workloads = tuple(_workload(log) for log in logs)
    outputs = tuple(_payload(table.output) for table in tables)
    versions = [{"version": each.version, "playbook": each.playbook} for each in summaries]
    return {
        "a": summary_document(summaries[0]),
        "b": summary_document(summaries[1]),
        "version": {"same": summaries[0].playbook == summaries[1].playbook, "a": versions[0], "b": versions[1]},
        "inputs": list(differences(*workloads)),
        "outputs": list(differences(*outputs)),
        "steps": list(_steps(tables[0], tables[1], logs)),
        "first_divergence": _divergence(*logs),
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


def _table(log: Iterable[ev.Recorded]) -> Progress:
    table = Progress()
    for recorded in log:
        table.apply(recorded)
    return table


def _steps(a: Progress, b: Progress, logs: tuple[Sequence[ev.Recorded], Sequence[ev.Recorded]]) -> Iterator[Any]:
    results = tuple(_results(log) for log in logs)
    for name in dict.fromkeys([*a.steps, *b.steps]):
        left, right = (results[0].get(name), results[1].get(name))
        yield {
            "step": name,
            "a": _row(a.steps.get(name)),
            "b": _row(b.steps.get(name)),
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


def _results(log: Iterable[ev.Recorded]) -> dict[str, list[Any]]:
    """The outputs of all runs of each step; those that a rerun kept come first."""
    found: dict[str, list[Any]] = {}
    for body in (each.body for each in log):
        if isinstance(body, ev.ExecutionRequested) and body.rerun is not None:
            for name, outcome in body.rerun.results.items():
                found[name] = [_payload(outcome)]
        elif isinstance(body, ev.StepDone | ev.StepFailed):
            found.setdefault(body.step, []).append(_payload(body.output))
    return found


def _payload(output: Outcome | None) -> Any:
    """The part of an output that is compared: its data, or the checksum of stored data, and its error."""
    if output is None:
        return None
    error = {"kind": output.error.kind, "message": output.error.message} if output.error else None
    data = {"sha256": output.ref.meta.sha256} if output.ref is not None and output.data is None else output.data
    return {"status": output.status, "data": data, "error": error}


def _workload(log: Iterable[ev.Recorded]) -> Any:
    return next((each.body.workload for each in log if isinstance(each.body, ev.RequestEvaluated)), {})


# ── the first divergence ────────────────────────────────────────────────────────────────


def _divergence(a: Sequence[ev.Recorded], b: Sequence[ev.Recorded]) -> dict[str, Any] | None:
    """The earliest event that the other execution does not have at the same place; None if there is none."""
    left, right = _grouped(a), _grouped(b)
    found: list[tuple[int, dict[str, Any]]] = []
    for place in dict.fromkeys([*left, *right]):
        mine, other = left.get(place, []), right.get(place, [])
        for index in range(max(len(mine), len(other))):
            one = mine[index] if index < len(mine) else None
            two = other[index] if index < len(other) else None
            if one is not None and two is not None and _content(one.body) == _content(two.body):
                continue
            seq = min(each.seq for each in (one, two) if each is not None)
            found.append((seq, _described(place, one, two)))
            break
    return min(found, key=lambda each: each[0])[1] if found else None


def _grouped(log: Sequence[ev.Recorded]) -> dict[Entry, list[ev.Recorded]]:
    """Events by place: step, number of the run, iteration and task."""
    numbers: dict[str, int] = {}
    places: dict[str, tuple[str, int]] = {}
    found: dict[Entry, list[ev.Recorded]] = {}
    for recorded in log:
        body: Any = recorded.body
        if not isinstance(body, _COMPARED):
            continue
        step = getattr(body, "step", None) if not isinstance(body, ev.WorkflowFinished) else None
        run = getattr(body, "step_run_id", None)
        if isinstance(body, ev.StepScheduled):
            numbers[body.step] = numbers.get(body.step, 0) + 1
            places[body.step_run_id] = (body.step, numbers[body.step])
        number = places[run][1] if run in places else 0
        iteration = ".".join(map(str, getattr(body, "path", ())))
        place = (step or "", str(number), iteration, getattr(body, "task", "") or "")
        found.setdefault(place, []).append(recorded)
    return found


def _content(body: ev.Event) -> Any:
    """The fields of an event that are compared."""
    return body.NAME, _without(msgspec.to_builtins(body))


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(each) for key, each in value.items() if key not in _IGNORED}
    return [_without(each) for each in value] if isinstance(value, list | tuple) else value


def _described(place: Entry, one: ev.Recorded | None, two: ev.Recorded | None) -> dict[str, Any]:
    step, _, iteration, task = place
    where = ".".join(filter(None, (f"{step}/{iteration}" if iteration else step, task))) or "execution"
    changes: list[dict[str, Any]] = []
    if one is not None and two is not None:
        changes = list(differences(_content(one.body)[1], _content(two.body)[1]))
    sides = {
        name: None if each is None else {"seq": each.seq, "name": each.body.NAME}
        for name, each in (("a", one), ("b", two))
    }
    return {"where": where, **sides, "differences": changes}
