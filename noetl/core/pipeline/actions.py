"""The actions of a pipeline: what the worker must do next.

`next_action` returns exactly one of these. `events` are the events that precede the action and have
not been reported yet. The shell reports them, and waits until they are durable before it runs a tool
with side effects, unless `start_recorded` is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from noetl.core.model.events import Event, IterationDone, IterationFailed, StepDone, StepFailed
from noetl.core.model.ids import IterationPath
from noetl.core.model.outcome import Outcome
from noetl.core.model.playbook import Task
from noetl.core.model.quotas.token_bucket import Demand, Turn
from noetl.core.model.reference import Reference


class RecordedInput(Struct, frozen=True, gc=False):
    """What the log has of a task's input: the values that its templates gave, or a reference to them."""

    values: dict[str, Any] | None = None
    ref: Reference | None = None


class RunTask(Struct, frozen=True, gc=False):
    """Run the tool of `task` with this rendered input, then call `apply_outcome`."""

    task: Task
    label: str  # the name of the task in events; a task of a called block is `call/inner`
    input: dict[str, Any]
    spec: dict[str, Any]
    visit: int
    attempt: int
    task_run_id: str
    scopes: Mapping[str, Any]
    events: tuple[Event, ...]
    start_recorded: bool  # the append of the lease also records this start
    state: Mapping[str, Any] = {}  # of the task, from earlier executions
    state_writers: tuple[str, ...] = ()  # executions with writes to it that are not committed yet
    quotas: tuple[Demand, ...] = ()  # whose tokens it has


class TakeToken(Struct, frozen=True, gc=False):
    """Take a token of a quota: call `token_taken`, then `next_action`; or release the run with `wait_for_token`."""

    demand: Demand
    turn: Turn | None  # that the run has waited for
    of_step: bool
    events: tuple[Event, ...]


class KnownOutcome(Struct, frozen=True, gc=False):
    """The outcome of a task that needs no tool: pack it, then call `apply_outcome`.

    A called block ended, a child execution ended, or the input could not be rendered."""

    task: Task
    outcome: Outcome
    events: tuple[Event, ...]


class Wait(Struct, frozen=True, gc=False):
    """Wait this long, then call `next_action` again; after a crash the run resumes without the remaining wait."""

    seconds: float
    events: tuple[Event, ...]


class Suspend(Struct, frozen=True, gc=False):
    """The server executes the task (a child playbook): release the run."""

    events: tuple[Event, ...]


class Finished(Struct, frozen=True, gc=False):
    """The pipeline has ended: pack the output, then report `events` and the terminal event."""

    step: str
    step_run_id: str
    path: IterationPath
    status: Literal["done", "failed"]
    outcome: Outcome  # with its data
    recorded: Outcome  # as in its task.done event
    results: dict[str, Outcome]
    patch: dict[str, Any]
    step_patch: dict[str, Any]
    nondeterminism: dict[str, Any]
    events: tuple[Event, ...]
    stop: bool
    skipped: bool
    looping: bool
    item: Any  # of a failed iteration, if the server does not have it
    input: dict[str, Any] | None  # for the compensation and the arcs, if the server does not have it

    def event(self, output: Outcome, results: dict[str, Outcome]) -> Event:
        """The terminal event, with the packed output."""
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
                    input=self.input or {},
                )
            return IterationFailed(
                step=self.step,
                step_run_id=self.step_run_id,
                path=self.path,
                output=output,
                step_patch=self.step_patch,
                item=self.item,
            )
        if self.status == "done":
            return StepDone(
                step=self.step,
                step_run_id=self.step_run_id,
                output=output,
                patch=self.patch,
                nondeterminism=self.nondeterminism,
                results=results,
                input=self.input or {},
            )
        return StepFailed(
            step=self.step,
            step_run_id=self.step_run_id,
            output=output,
            patch=self.patch,
            nondeterminism=self.nondeterminism,
            results=results,
            input=self.input or {},
        )


Action = RunTask | TakeToken | KnownOutcome | Wait | Suspend | Finished
