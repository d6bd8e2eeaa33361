"""What a run looks like from outside, folded from its events: one row per step.

Pure: events in, rows out. `display.py` draws the rows.
"""

from __future__ import annotations

from noetl.core.model import events as ev
from noetl.core.model.ids import IterationPath
from noetl.core.model.outcome import Outcome


class StepRow:
    """How far one step is, over all its runs."""

    def __init__(self, name: str, at: float) -> None:
        self.name = name
        self.state = "waiting"  # waiting | running | done | failed | skipped | parked
        self.scheduled_at = at
        self.ended_at: float | None = None
        self.runs = 0
        self.open_runs = 0
        self.attempts = 0
        self.retries = 0
        self.doing = ""  # the task that runs now
        self.trouble = ""  # the last error
        self._loops: dict[int, list[int]] = {}  # depth -> iterations owed, done, failed

    @property
    def loop(self) -> tuple[int, int, int] | None:
        """Iterations owed, ended well and failed, counted where the pipelines run (the innermost loop)."""
        if not self._loops:
            return None
        owed, done, failed = self._loops[max(self._loops)]
        return owed, done, failed

    def seconds(self, now: float) -> float:
        """How long it took, or has taken so far."""
        return max(0.0, (self.ended_at or now) - self.scheduled_at)

    def _count(self, path: IterationPath, owed: int = 0, done: int = 0, failed: int = 0) -> None:
        counts = self._loops.setdefault(len(path), [0, 0, 0])
        counts[0] += owed
        counts[1] += done
        counts[2] += failed


class Progress:
    """The rows of one execution, in the order in which their steps were first reached."""

    def __init__(self) -> None:
        self.execution_id = ""
        self.path = ""
        self.status = "running"
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.steps: dict[str, StepRow] = {}

    def apply(self, recorded: ev.Recorded) -> str | None:
        """Take an event in; the name of the step it changed, if any."""
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
        if isinstance(body, ev.StepScheduled):
            if not row.open_runs and row.runs == 0:
                row.scheduled_at = at
            row.runs += 1
            row.open_runs += 1
            row.state, row.ended_at = "running", None
        elif isinstance(body, ev.TokenParked):
            if not row.open_runs and row.state == "waiting":
                row.state = "parked"
        elif isinstance(body, ev.StepSkipped):
            if not row.runs:
                row.state, row.ended_at = "skipped", at
        elif isinstance(body, ev.LoopStarted):
            row._count((*body.path, 0), owed=body.count)
        elif isinstance(body, ev.IterationDone):
            row._count(body.path, done=1)
        elif isinstance(body, ev.IterationFailed):
            row._count(body.path, failed=1)
            row.trouble = _words(body.output)
        elif isinstance(body, ev.TaskStarted):
            row.doing = body.task
        elif isinstance(body, ev.TaskDone):
            row.doing = body.task
            row.attempts += 1
            row.retries += body.do == "retry"
            if body.outcome.error is not None:
                row.trouble = f"{body.task}: {_words(body.outcome)}"
        elif isinstance(body, ev.StepDone | ev.StepFailed):
            row.open_runs = max(0, row.open_runs - 1)
            failed = isinstance(body, ev.StepFailed)
            if failed:
                row.trouble = _words(body.output) or row.trouble
            if failed or row.state != "failed":
                row.state = "failed" if failed else ("running" if row.open_runs else "done")
            if not row.open_runs:
                row.ended_at, row.doing = at, ""


def _words(outcome: Outcome) -> str:
    if outcome.error is None:
        return ""
    return f"{outcome.error.kind}: {outcome.error.message}"
