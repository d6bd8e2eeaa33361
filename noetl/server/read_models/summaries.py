"""Read models of an execution, derived only from its log.

`project` maintains the summary row, which is stored in the transaction of the append. `Progress` is the step table:
live progress while events are applied, the summary of a run after the whole log. `RunResult` is the document that
`noetl run --json` prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Struct, field

from noetl.core.engine.state import State
from noetl.core.model import events as ev
from noetl.core.model.outcome import ErrorInfo, Outcome
from noetl.core.model.playbook import COMPENSATION, ctx_part
from noetl.core.model.waits import NO_WAITS, WaitCounts
from noetl.core.templates.views import error_fields
from noetl.storage.ports.events import ExecutionSummary

# ── the list of executions ──────────────────────────────────────────────────────────────


def project(
    summary: ExecutionSummary | None,
    events: Iterable[ev.Recorded],
    held: dict[str, int] | None = None,
    waits: WaitCounts = NO_WAITS,
    steps: dict[str, float] | None = None,
) -> ExecutionSummary:
    """The summary after these events; `held` are the slots that the state holds (`capacity.slots_held`), `waits` its
    open waits (`views.open_waits`), and `steps` the durations of the steps of an ended execution."""
    row = msgspec.structs.asdict(summary) if summary else dict(_EMPTY)
    for recorded in events:
        apply = _PROJECTORS.get(type(recorded.body))
        if apply is not None:
            apply(row, recorded.body, recorded)
        row["seq"] = recorded.seq
    if row["status"] in ("running", "waiting"):
        row["status"] = "waiting" if waits.only else "running"
    row |= {"held": held or None, "due": waits.due, "inbox": waits.inbox, "steps": steps or row["steps"]}
    return ExecutionSummary(**row)


_EMPTY = msgspec.structs.asdict(ExecutionSummary(execution_id="", path="", status="pending", started_at=0.0))
Row = dict[str, Any]


def _requested(row: Row, body: ev.ExecutionRequested, recorded: ev.Recorded) -> None:
    row |= {
        "execution_id": recorded.execution_id,
        "path": body.path,
        "version": body.version,
        "playbook": body.playbook,
        "started_at": recorded.at,
        "parent": body.parent.execution_id if body.parent else None,
        "trigger": _trigger(body),
        "labels": tuple(f"{key}={value}" for key, value in sorted(body.labels.items())),
        "late": None if body.due is None else max(0.0, recorded.at - body.due),
    }
    if body.rerun is not None:
        source = body.rerun
        row["forked_from" if source.mode == "fork" else "rerun_of"] = source.execution_id
        if source.results or source.task_results or source.loops or source.ctx or source.args or source.tokens:
            row["reuses"] = source.execution_id


TRIGGER_KINDS = frozenset({"schedule", "webhook", "nats", "object", "execution", "backfill"})


def _trigger(body: ev.ExecutionRequested) -> str:
    """What started an execution."""
    if body.parent is not None:
        return "playbook"
    by = body.requested_by or ""
    if by.partition(" ")[0] in TRIGGER_KINDS and " " in by:
        return by
    return "rerun" if body.rerun is not None else f"user {by}".rstrip()


def step_durations(state: State) -> dict[str, float]:
    """How long the last run of each step took, in ms."""
    return {
        record.name: round(1000 * (record.finished_at - record.started_at), 3)
        for record in state.steps.values()
        if record.started_at is not None and record.finished_at is not None
    }


def _set_status(status: str) -> Callable[[Row, ev.Event, ev.Recorded], None]:
    def apply(row: Row, _: ev.Event, __: ev.Recorded) -> None:
        row["status"] = status

    return apply


def _step_scheduled(row: Row, _: ev.Event, __: ev.Recorded) -> None:
    row["steps_running"] += 1


def _step_ended(row: Row, body: ev.StepDone | ev.StepFailed, _: ev.Recorded) -> None:
    if not body.step.endswith(COMPENSATION):
        row["steps_running"] -= 1
        row["steps_done"] += 1


def _synthesized(row: Row, body: ev.WorkflowSynthesized, _: ev.Recorded) -> None:
    if body.error is not None:  # the synthesized steps were rejected: the step is not done, step.failed follows
        row["steps_running"] += 1
        row["steps_done"] -= 1


def _finished(row: Row, body: ev.WorkflowFinished, recorded: ev.Recorded) -> None:
    row |= {"error": body.error.message if body.error else None, "steps_running": 0, "ended_at": recorded.at}


def _processed(row: Row, body: ev.PlaybookProcessed, recorded: ev.Recorded) -> None:
    row |= {"status": body.outcome, "ended_at": recorded.at}


_PROJECTORS: dict[type[ev.Event], Callable[[Row, Any, ev.Recorded], None]] = {
    ev.ExecutionRequested: _requested,
    ev.WorkflowStarted: _set_status("running"),
    ev.ExecutionPaused: _set_status("paused"),
    ev.ExecutionResumed: _set_status("running"),
    ev.StepScheduled: _step_scheduled,
    ev.StepDone: _step_ended,
    ev.StepFailed: _step_ended,
    ev.WorkflowSynthesized: _synthesized,
    ev.WorkflowFinished: _finished,
    ev.PlaybookProcessed: _processed,
}


# ── the step table ──────────────────────────────────────────────────────────────────────


class StepRow(Struct, omit_defaults=True):
    """One step with all its runs. `attempts` is the maximum over its tasks."""

    step: str
    status: str = "pending"  # pending | running | success | failed | skipped
    runs: int = 0
    attempts: int = 0
    tasks: int = 0  # task executions so far
    started_at: float | None = None
    ended_at: float | None = None
    iterations: int = 0  # of all its loops
    iterations_done: int = 0
    iterations_failed: int = 0
    children: int = 0
    error: ErrorInfo | None = None


class Progress:
    """The step table, live: `apply` every event once, in order."""

    def __init__(self) -> None:
        self.steps: dict[str, StepRow] = {}
        self.status = "pending"
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.ctx: dict[str, Any] = {}
        self.output: Outcome | None = None
        self.error: ErrorInfo | None = None
        self.compensation: dict[str, int] | None = None  # None: nothing is undone
        self.path = ""
        self.seq = 0

    def apply(self, recorded: ev.Recorded) -> None:
        """Apply one event."""
        body, at = recorded.body, recorded.at
        if isinstance(body, _STEP_EVENTS):
            _apply_to_step(self.row(body.step), body, at)
        elif isinstance(body, ev.ExecutionRequested):
            self.path = body.path
            self.started_at = at
            if body.rerun:
                self.ctx = dict(body.rerun.ctx)
        elif isinstance(body, ev.WorkflowStarted):
            self.status = "running"
        elif isinstance(body, _COMPENSATION_EVENTS):
            self._apply_compensation(body, at)
        elif isinstance(body, ev.CtxPatched):
            self.ctx.update(ctx_part(body.patch))
        elif isinstance(body, ev.WorkflowFinished):
            self.output = body.output
            self.error = body.error
            self.ended_at = at
        elif isinstance(body, ev.PlaybookProcessed):
            self.status = body.outcome
            self.ended_at = at
        self.seq = recorded.seq

    def _apply_compensation(self, body: ev.Event, at: float) -> None:
        counts = self.compensation = self.compensation or {"done": 0, "failed": 0}
        match body:
            case ev.CompensationStarted():
                row = self.row(body.step + COMPENSATION)
                row.runs += 1
                row.status = "running"
                row.attempts = max(row.attempts, 1)
                row.started_at = row.started_at or at
                row.children += body.child is not None
            case ev.CompensationDone():
                kind = "skipped" if body.skipped else "done"
                counts[kind] = counts.get(kind, 0) + 1
                if not body.skipped:
                    row = self.row(body.step + COMPENSATION)
                    row.ended_at = at
                    row.status = "failed" if row.error else "success"
            case ev.CompensationFailed():
                counts["failed"] += 1
                row = self.row(body.step + COMPENSATION)
                row.status, row.ended_at, row.error = "failed", at, body.error

    def row(self, step: str) -> StepRow:
        """The row of a step."""
        found = self.steps.get(step)
        if found is None:
            found = self.steps[step] = StepRow(step=step)
        return found


_COMPENSATION_EVENTS = (ev.CompensationStarted, ev.CompensationDone, ev.CompensationFailed)
_STEP_EVENTS = (
    ev.StepScheduled,
    ev.StepStarted,
    ev.StepDone,
    ev.StepFailed,
    ev.StepSkipped,
    ev.LoopStarted,
    ev.IterationDone,
    ev.IterationFailed,
    ev.TaskDone,
    ev.ChildRequested,
)


def _apply_to_step(row: StepRow, body: ev.Event, at: float) -> None:
    match body:
        case ev.StepScheduled():
            row.runs += 1
            row.status = "running"
            row.attempts = max(row.attempts, 1)
            row.started_at = row.started_at or at
        case ev.StepStarted():
            row.status = "running"
        case ev.StepDone() | ev.StepFailed():
            row.status = "success" if isinstance(body, ev.StepDone) else "failed"
            row.ended_at = at
            row.error = body.output.error or (row.error if row.step.endswith(COMPENSATION) else None)
        case ev.StepSkipped() if not row.runs:
            row.status = "skipped"
            row.ended_at = at
        case ev.LoopStarted():
            row.iterations += body.count
        case ev.IterationDone():
            row.iterations_done += 1
        case ev.IterationFailed():
            row.iterations_done += 1
            row.iterations_failed += 1
        case ev.TaskDone() if not body.skipped:
            row.tasks += 1
            row.attempts = max(row.attempts, body.attempt)
        case ev.ChildRequested():
            row.children += 1


# ── the result of a run ─────────────────────────────────────────────────────────────────


class StepResult(Struct, frozen=True):
    """One row of the step summary."""

    step: str
    status: str
    runs: int
    attempts: int


class RunResult(Struct, frozen=True):
    """The document of `noetl run --json`."""

    execution_id: str
    path: str
    status: str
    output: dict[str, Any]
    ctx: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    duration_ms: float = 0.0
    steps: tuple[StepResult, ...] = ()
    compensation: dict[str, int] | None = None  # how many compensations were done and failed; None: none was needed
    timed_out: bool = False  # cancelled because of the timeout

    def document(self) -> dict[str, Any]:
        """The stable fields, for scripts; `compensation` only if something was to be undone."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        del document["timed_out"]
        if self.compensation is None:
            del document["compensation"]
        return document

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.status == "success"

    @property
    def data(self) -> Any:
        """The payload of its output."""
        return self.output.get("data")


def run_result(execution_id: str, progress: Progress, *, timed_out: bool = False) -> RunResult:
    """The result, from a step table to which the whole log was applied."""
    error = progress.error or (progress.output.error if progress.output else None)
    ended = progress.ended_at or progress.started_at or 0.0
    return RunResult(
        execution_id=execution_id,
        path=progress.path,
        status=progress.status,
        output=output_document(progress.output, error if progress.status != "success" else None),
        ctx=dict(progress.ctx),
        error=error_document(error) if progress.status != "success" else None,
        duration_ms=round(1000 * (ended - (progress.started_at or ended)), 3),
        steps=tuple(
            StepResult(step=row.step, status=row.status, runs=row.runs, attempts=row.attempts)
            for row in progress.steps.values()
        ),
        compensation=progress.compensation,
        timed_out=timed_out,
    )


def output_document(output: Outcome | None, error: ErrorInfo | None = None) -> dict[str, Any]:
    """The output envelope `{status, data, ref, error}`, with the additional fields of the tool kind."""
    output = output or Outcome(status="error" if error else "ok", error=error)
    document: dict[str, Any] = {
        "status": output.status,
        "data": output.data,
        "ref": msgspec.to_builtins(output.ref) if output.ref else None,
        "error": error_document(output.error),
    }
    for name, helper in output.helpers.items():
        document.setdefault(name, helper)
    return document


def error_document(error: ErrorInfo | None) -> dict[str, Any] | None:
    """An error with all its fields."""
    return None if error is None else error_fields(error)
