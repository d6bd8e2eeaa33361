"""The progress of an execution, computed from its events: one row per step.

There is no I/O here; `display.py` draws the rows.
"""

from __future__ import annotations

from noetl.core.model import events as ev
from noetl.core.model.ids import IterationPath
from noetl.core.model.outcome import Outcome


class StepRow:
    """The progress of one step over all its runs."""

    def __init__(self, name: str, at: float) -> None:
        self.name = name
        self.state = "waiting"  # waiting | running | done | failed | skipped | parked
        self.scheduled_at = at
        self.ended_at: float | None = None
        self.runs = 0
        self.open_runs = 0
        self.attempts = 0
        self.retries = 0
        self.task = ""  # the task that is running
        self.error = ""  # the last error
        self._loops: dict[int, list[int]] = {}  # depth -> iterations in total, done, failed

    @property
    def loop(self) -> tuple[int, int, int] | None:
        """Iterations of the innermost loop: in total, done and failed."""
        if not self._loops:
            return None
        total, done, failed = self._loops[max(self._loops)]
        return total, done, failed

    def seconds(self, now: float) -> float:
        """The duration so far, or from the start to the end."""
        return max(0.0, (self.ended_at or now) - self.scheduled_at)

    def schedule(self, at: float) -> None:
        """A run of the step is scheduled."""
        if not self.open_runs and self.runs == 0:
            self.scheduled_at = at
        self.runs += 1
        self.open_runs += 1
        self.state, self.ended_at = "running", None

    def finish_task(self, body: ev.TaskDone) -> None:
        """An attempt of a task has ended."""
        self.task = body.task
        self.attempts += 1
        self.retries += body.do == "retry"
        if body.outcome.error is not None:
            self.error = f"{body.task}: {_error_text(body.outcome)}"

    def finish(self, body: ev.StepDone | ev.StepFailed, at: float) -> None:
        """A run of the step has ended."""
        self.open_runs = max(0, self.open_runs - 1)
        failed = isinstance(body, ev.StepFailed)
        if failed:
            self.error = _error_text(body.output) or self.error
        if failed or self.state != "failed":
            self.state = "failed" if failed else ("running" if self.open_runs else "done")
        if not self.open_runs:
            self.ended_at, self.task = at, ""

    def count(self, path: IterationPath, total: int = 0, done: int = 0, failed: int = 0) -> None:
        """Add to the iterations of the loop at the depth of `path`."""
        counts = self._loops.setdefault(len(path), [0, 0, 0])
        counts[0] += total
        counts[1] += done
        counts[2] += failed


class Progress:
    """The rows of one execution, in the order in which steps were first scheduled."""

    def __init__(self) -> None:
        self.execution_id = ""
        self.path = ""
        self.status = "running"
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.steps: dict[str, StepRow] = {}

    def apply(self, recorded: ev.Recorded) -> str | None:
        """Apply an event; return the name of the step that it changed, if any."""
        body, at = recorded.body, recorded.at
        if self.started_at is None:
            self.started_at = at
            self.execution_id = recorded.execution_id
        if isinstance(body, ev.ExecutionRequested):
            self.path = body.path
        elif isinstance(body, ev.WorkflowFinished):
            self.status, self.ended_at = body.outcome, at
        elif isinstance(body, ev.ExecutionPaused):
            self.status = "paused"
        elif isinstance(body, ev.ExecutionResumed):
            self.status = "running"
        name = getattr(body, "step", None)
        if name is None or isinstance(body, ev.WorkflowFinished | ev.CtxPatched | ev.NextEvaluated):
            return None
        row = self.steps.get(name)
        if row is None:
            row = self.steps[name] = StepRow(name, at)
        self._change(row, body, at)
        return str(name)

    def _change(self, row: StepRow, body: ev.Event, at: float) -> None:
        match body:
            case ev.StepScheduled():
                row.schedule(at)
            case ev.TokenParked() if not row.open_runs and row.state == "waiting":
                row.state = "parked"
            case ev.StepSkipped() if not row.runs:
                row.state, row.ended_at = "skipped", at
            case ev.LoopStarted():
                row.count((*body.path, 0), total=body.count)
            case ev.IterationDone():
                row.count(body.path, done=1)
            case ev.IterationFailed():
                row.count(body.path, failed=1)
                row.error = _error_text(body.output)
            case ev.TaskStarted():
                row.task = body.task
            case ev.TaskDone():
                row.finish_task(body)
            case ev.StepDone() | ev.StepFailed():
                row.finish(body, at)


def _error_text(outcome: Outcome) -> str:
    if outcome.error is None:
        return ""
    return f"{outcome.error.kind}: {outcome.error.message}"
