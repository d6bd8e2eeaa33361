"""What a pipeline asks of the worker that carries it out.

`next_action` answers with exactly one of these. `events` are the facts that became true on the
way to it and have not been reported yet; the shell reports them (and, before a tool touches the
world, waits until they are on disk unless `covered` says that the lease's own append did).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from noetl.core.model.events import Event, IterationDone, IterationFailed, StepDone, StepFailed
from noetl.core.model.ids import IterationPath
from noetl.core.model.outcome import Outcome
from noetl.core.model.playbook import Task


class RunTask(Struct, frozen=True, gc=False):
    """Run the tool of `task` with this rendered input, then `apply_outcome`."""

    task: Task
    label: str  # as events name it: a task of a called block is `call/inner`
    input: dict[str, Any]
    spec: dict[str, Any]
    visit: int
    attempt: int
    task_run_id: str
    scopes: Mapping[str, Any]
    events: tuple[Event, ...]
    covered: bool  # the append that gave the lease stands for this start


class Returned(Struct, frozen=True, gc=False):
    """The task's outcome is known without running a tool: pack it, then `apply_outcome`.

    A called block came to its end, a child execution answered, or the input could not be rendered."""

    task: Task
    outcome: Outcome
    events: tuple[Event, ...]


class Wait(Struct, frozen=True, gc=False):
    """Wait this long, then ask again; a crash meanwhile resumes without the rest of the wait."""

    seconds: float
    events: tuple[Event, ...]


class Suspend(Struct, frozen=True, gc=False):
    """The server carries out the task (a child playbook); let go of the run."""

    events: tuple[Event, ...]


class Finished(Struct, frozen=True, gc=False):
    """The pipeline has ended: pack the output, then report `events` and the terminal event."""

    step: str
    step_run_id: str
    path: IterationPath
    status: Literal["done", "failed"]
    outcome: Outcome  # with its data
    recorded: Outcome  # as its task.done has it
    results: dict[str, Outcome]
    patch: dict[str, Any]
    step_patch: dict[str, Any]
    nondeterminism: dict[str, Any]
    events: tuple[Event, ...]
    stop: bool = False
    skipped: bool = False
    looping: bool = False

    def event(self, output: Outcome, results: dict[str, Outcome]) -> Event:
        """The terminal event, with the output as it travels."""
        if self.looping:
            if self.status == "done":
                return IterationDone(
                    step=self.step,
                    step_run_id=self.step_run_id,
                    path=self.path,
                    output=output,
                    step_patch=self.step_patch,
                    stop=self.stop,
                    skipped=self.skipped,
                )
            return IterationFailed(
                step=self.step,
                step_run_id=self.step_run_id,
                path=self.path,
                output=output,
                step_patch=self.step_patch,
            )
        terminal = StepDone if self.status == "done" else StepFailed
        return terminal(
            step=self.step,
            step_run_id=self.step_run_id,
            output=output,
            patch=self.patch,
            nondeterminism=self.nondeterminism,
            results=results,
        )


Action = RunTask | Returned | Wait | Suspend | Finished
