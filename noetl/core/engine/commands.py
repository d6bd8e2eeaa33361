"""What the world tells the engine: facts that `advance` judges and turns into events.

A fact is not yet an event. `accept` decides whether it is welcome (a stale lease is not, nor is
anything after the end), and answers it with a `Reply`; only what was accepted gets into the log.
Replies come back in the order of the facts, one for each.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from noetl.core.model.events import ExecutionRequested
from noetl.core.model.outcome import ErrorInfo, Outcome
from noetl.core.model.work import Report, ReportAck, RunOrder


class Command(Struct, frozen=True, gc=False):
    """Base of everything that can be told to an execution."""


class StartExecution(Command, frozen=True):
    """Somebody asks for this execution: the first fact of every one.

    The shell has looked for the keychain's entries before; `error` says what it missed."""

    request: ExecutionRequested
    keychain: tuple[str, ...] = ()
    error: ErrorInfo | None = None


class ClaimRun(Command, frozen=True):
    """A worker takes the lease of a run that was enqueued. The reply brings the order."""

    worker: str
    run_id: str


class ClaimAnyRun(Command, frozen=True):
    """A worker has free slots: lease it what this execution owes, up to `slots` runs.

    Put it behind a report, and one append ends a step, starts the next and leases it.
    `pool` narrows it to steps of that pool (None: steps that name no pool)."""

    worker: str
    slots: int = 1
    pool: str | None = None


class ReportRun(Command, frozen=True):
    """A worker hands over what happened in a run. The reply brings the verdict."""

    report: Report
    worker: str = ""


class ExpireLease(Command, frozen=True):
    """No heartbeat came for too long: the run is taken back, and that uses up an attempt."""

    run_id: str
    epoch: int


class ReturnRun(Command, frozen=True):
    """A worker that is shutting down gives a run back; no attempt is lost."""

    run_id: str
    epoch: int


class CancelExecution(Command, frozen=True):
    """Somebody wants the execution stopped."""

    reason: str = ""


class PauseExecution(Command, frozen=True):
    """Somebody wants no new run to be started for a while."""

    reason: str = ""


class ResumeExecution(Command, frozen=True):
    """Somebody wants the execution to go on."""

    reason: str = ""


class SendSignal(Command, frozen=True):
    """Somebody outside patches `ctx`: `payload` is laid over it, key by key."""

    name: str = ""
    payload: dict[str, Any] = field(default_factory=dict)


class FireTimer(Command, frozen=True):
    """Time has passed: whatever was due by `at` of this advance is carried out."""


class RecordChildStart(Command, frozen=True):
    """The child asked for by `StartChild(key)` exists under this execution id."""

    key: str
    child: str


class RecordChildEnd(Command, frozen=True):
    """The child has ended (or could not be started: then `child` may be empty)."""

    key: str
    child: str
    outcome: Outcome


class Reply(Struct, frozen=True, omit_defaults=True, gc=False):
    """The answer to one fact. `reason` says why it was not accepted."""

    accepted: bool
    reason: str = ""
    verdict: ReportAck | None = None  # to a report
    orders: tuple[RunOrder, ...] = ()  # to a claim
    kept: bool = False  # to a claim: the run waits for another worker; ask again later
    limit: str | None = None  # to a claim: the key whose limit is reached; the run waits in line
