"""The event index: every event as one short row in columns, so that the web page can load a whole log.

A hundred thousand full events have fifty megabytes, their index three. It has what the graph, the timeline and
the event list need: time, type, step, run, iteration, task, status and cause. Fields that only some events have
(arcs, tokens, counts, errors) are in `more`, by seq. The payload of an event is read separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from noetl.core.model import events as ev
from noetl.core.model.outcome import ErrorInfo
from noetl.core.model.playbook import target_name

STATES = ("in_progress", "success", "error", "skipped")
_MAX_MESSAGE = 300  # characters of an error message; the event has all of it


class _Table:
    """Distinct texts, numbered."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str | None, int] = {None: -1, "": -1}

    def number(self, text: str | None) -> int:
        found = self._numbers.get(text)
        if found is None:
            assert text is not None
            found = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return found


def outline_document(events: Iterable[ev.Recorded]) -> dict[str, Any]:
    """The events as columns; numbers in `step`, `run`, `task` and `name` are indexes into the tables."""
    names, steps, runs, tasks = _Table(), _Table(), _Table(), _Table()
    columns: dict[str, list[Any]] = {
        key: [] for key in ("at", "name", "state", "step", "run", "path", "task", "attempt", "cause", "took")
    }
    at, name, state, step, run, path, task, attempt, cause, took = columns.values()
    more: dict[int, dict[str, Any]] = {}
    first = 0
    for recorded in events:
        body = recorded.body
        first = first or recorded.seq
        at.append(round(recorded.at * 1000, 3))
        name.append(names.number(body.NAME))
        state.append(STATES.index(ev.status_of(body)))
        step.append(steps.number(getattr(body, "step", None)))
        run.append(runs.number(getattr(body, "step_run_id", None)))
        path.append(_path(getattr(body, "path", ())))
        task.append(tasks.number(getattr(body, "task", None)))
        attempt.append(getattr(body, "attempt", 0))
        cause.append(recorded.parent_seq or 0)
        took.append(_took(body) if type(body) is ev.TaskDone else 0)
        details = _MORE.get(type(body))
        found = details(body) if details is not None else None
        if found:
            more[recorded.seq] = found
    return {
        "first": first,
        "count": len(at),
        "names": names.texts,
        "steps": steps.texts,
        "runs": runs.texts,
        "tasks": tasks.texts,
        **columns,
        "more": more,
    }


def _took(body: ev.TaskDone) -> float:
    """The duration of a tool in ms: the start of many tasks is recorded together with their end."""
    found = body.outcome.meta.get("duration_ms")
    return round(found, 1) if isinstance(found, int | float) else 0


def _path(path: Any) -> int | str:
    """The index of an iteration; dotted in nested loops, -1 outside of loops."""
    if not isinstance(path, tuple) or not path:
        return -1
    return path[0] if len(path) == 1 else ".".join(map(str, path))


def _error(error: ErrorInfo | None) -> dict[str, Any]:
    return {"error": [error.kind, error.message[:_MAX_MESSAGE]]} if error else {}


def _task_done(body: ev.TaskDone) -> dict[str, Any]:
    details: dict[str, Any] = _error(body.outcome.error)
    if body.do != "continue":
        details["do"] = body.do
        if body.to:
            details["to"] = body.to
        if body.delay:
            details["delay"] = body.delay
    return details


def _next_evaluated(body: ev.NextEvaluated) -> dict[str, Any]:
    arcs = [[arc.index, arc.target, arc.held, arc.token] for arc in body.arcs]
    return {"boundary": body.boundary, "arcs": arcs, **_error(body.error)}


def _ctx_patched(body: ev.CtxPatched) -> dict[str, Any]:
    return {"keys": [target_name(key).removeprefix("ctx.") for key in body.patch], "by": body.cause}


def _loop_done(body: ev.LoopDone) -> dict[str, Any]:
    return {"total": body.total, "succeeded": body.succeeded, "failed": body.failed, "skipped": body.skipped}


def _lease(body: ev.StepStarted | ev.IterationStarted) -> dict[str, Any] | None:
    return {"worker": body.worker, "epoch": body.epoch} if body.epoch > 1 else None


_MORE: dict[type[ev.Event], Callable[[Any], dict[str, Any] | None]] = {
    ev.ExecutionRequested: lambda body: {"by": body.requested_by, "path": body.path},
    ev.RequestEvaluated: lambda body: _error(body.error),
    ev.SignalReceived: lambda body: {"signal": body.name, "keys": list(body.payload)},
    ev.ExecutionPaused: lambda body: {"reason": body.reason},
    ev.ExecutionResumed: lambda body: {"reason": body.reason},
    ev.ExecutionCancelled: lambda body: {"reason": body.reason},
    ev.CtxPatched: _ctx_patched,
    ev.StateCommitted: lambda body: {"keys": list(body.values)},
    ev.WorkflowSynthesized: lambda body: {"made": [each.name for each in body.steps], **_error(body.error)},
    ev.WorkflowFinished: lambda body: {"outcome": body.outcome, **_error(body.error)},
    ev.PlaybookProcessed: lambda body: {"outcome": body.outcome},
    ev.TokenParked: lambda body: {"token": body.token, "reason": body.reason, "from": body.origin},
    ev.StepScheduled: lambda body: {"tokens": body.tokens} if body.tokens else None,
    ev.StepStarted: _lease,
    ev.StepDone: lambda body: {"ref": True} if body.output.ref else None,
    ev.StepFailed: lambda body: _error(body.output.error),
    ev.StepSkipped: lambda body: {"token": body.token, "reason": body.reason},
    ev.NextEvaluated: _next_evaluated,
    ev.LoopStarted: lambda body: {"count": body.count, "in_flight": body.max_in_flight},
    ev.LoopDone: _loop_done,
    ev.IterationStarted: _lease,
    ev.IterationFailed: lambda body: _error(body.output.error),
    ev.TaskDone: _task_done,
    ev.ChildStarted: lambda body: {"child": body.child},
    ev.WorkerLost: lambda body: {"worker": body.worker, "returned": body.returned},
}
