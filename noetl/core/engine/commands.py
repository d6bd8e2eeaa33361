"""Commands: the input of the engine, which `advance` judges and turns into events.

A command is not an event. `accept` accepts or rejects it (a report under a stale lease is rejected,
and so is everything after the end) and answers with a `Reply`; only accepted commands reach the log.
There is one reply per command, in the same order.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from noetl.core.model.events import ExecutionRequested
from noetl.core.model.outcome import ErrorInfo, Outcome
from noetl.core.model.work import Report, ReportAck, RunOrder


class Command(Struct, frozen=True, gc=False):
    """Base of the commands to an execution."""


class StartExecution(Command, frozen=True):
    """Start an execution: always the first command.

    The shell has checked the keychain entries before; `error` names those that are missing."""

    request: ExecutionRequested
    keychain: tuple[str, ...] = ()
    error: ErrorInfo | None = None
    state: dict[str, Any] = field(default_factory=dict)  # the stored values that the playbook's executions share
    state_versions: dict[str, str] = field(default_factory=dict)


class ClaimRun(Command, frozen=True):
    """A worker claims the lease of an enqueued run. The reply has the run order."""

    worker: str
    run_id: str


class ClaimAnyRun(Command, frozen=True):
    """A worker has free slots: lease it up to `slots` queued runs of this execution.

    Sent after a report, one append ends a step, starts the next one and leases it.
    Only steps of `pool` count (None: steps that name no pool). With several live `workers` in the pool, the worker
    gets at most its share of the runs that are ready, at least one."""

    worker: str
    slots: int = 1
    pool: str | None = None
    workers: int = 1
    labels: tuple[str, ...] = ()  # of the worker
    capacity: int = 0  # all slots of the worker


class ReportRun(Command, frozen=True):
    """A worker reports the events of a run. The reply has the acknowledgement."""

    report: Report
    worker: str = ""


class ExpireLease(Command, frozen=True):
    """A lease expired without a heartbeat: the run is queued again, and one attempt is used up.

    `stopped`: the process that ran server and worker was stopped, which is not counted against the run.
    `together`: other workers may have been lost at the same time, perhaps by a run of theirs."""

    run_id: str
    epoch: int
    stopped: bool = False
    together: bool = False


class ReturnRun(Command, frozen=True):
    """A worker returns a run; an attempt is used up only if its tool had `begun`."""

    run_id: str
    epoch: int
    begun: bool = False


class CancelExecution(Command, frozen=True):
    """Cancel the execution; with an `error` it ends as failed. With `compensate`, completed steps are undone."""

    reason: str = ""
    error: ErrorInfo | None = None
    compensate: bool = False
    id: str = ""  # idempotency key: a command that was accepted before is accepted without an effect


class PauseExecution(Command, frozen=True):
    """Start no new run until the execution is resumed."""

    reason: str = ""
    id: str = ""


class ResumeExecution(Command, frozen=True):
    """Resume a paused execution."""

    reason: str = ""
    id: str = ""


class SendSignal(Command, frozen=True):
    """Answer a `wait` task, by the name of its signal or by the `wait` itself; or patch `ctx` from outside:
    `payload` replaces its keys one by one.

    A signal with an `id` that was accepted before is accepted without an effect."""

    name: str = ""
    payload: dict[str, Any] = field(default_factory=dict)
    by: str = ""
    roles: tuple[str, ...] | None = None  # of the sender; None: unrestricted
    wait: str = ""  # key of the wait that it answers
    id: str = ""


class FireTimer(Command, frozen=True):
    """A timer fired: everything due at or before `at` of this advance times out."""


class RecordChildStart(Command, frozen=True):
    """The child of `StartChild(key)` exists under this execution id."""

    key: str
    child: str


class RecordChildWait(Command, frozen=True):
    """The child only waits for a signal or a time, or does so no longer; `seq` is that of its log."""

    key: str
    child: str
    waiting: bool
    seq: int


class RecordChildEnd(Command, frozen=True):
    """The child has ended, or could not be started (then `child` may be empty)."""

    key: str
    child: str
    outcome: Outcome
    compensable: bool = False  # it completed steps that have a compensation


class Reply(Struct, frozen=True, omit_defaults=True, gc=False):
    """The answer to one command; `reason` says why it was rejected."""

    accepted: bool
    reason: str = ""
    ack: ReportAck | None = None  # to a report
    orders: tuple[RunOrder, ...] = ()  # to a claim
    reserved: bool = False  # to a claim: the run is reserved for another worker; claim it again later
    limit: str | None = None  # to a claim: the key whose limit is reached; the run stays queued
    problem: Literal["", "role", "data"] = ""  # to a signal: the sender may not send it, or its data does not fit
