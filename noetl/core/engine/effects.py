"""What the shell does for the engine: effects after the append, data requests before it.

*Effects* follow from the log: the shell performs them after the decision's events are durable. An
effect may be lost in a crash, since `outstanding(state)` lists all of them again.

*Data requests* are answered before the engine can decide, while nothing is durable yet. The shell
answers them and calls `decision.resume(answers)`; the events of both parts are one append.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from noetl.core.model.events import Parent
from noetl.core.model.ids import IterationPath
from noetl.core.model.outcome import ErrorInfo, Outcome
from noetl.core.model.quotas.token_bucket import Demand
from noetl.core.model.reference import Reference


class Effect(Struct, frozen=True, gc=False):
    """Base of the effects: what the shell performs after the append."""


class EnqueueRun(Effect, frozen=True):
    """Enqueue a run, so that a worker can claim it with the command `ClaimRun`."""

    run_id: str
    step: str
    step_run_id: str
    path: IterationPath = ()
    pool: str | None = None
    affinity: str | None = None  # runs with the same key stay on one worker (exec: local)
    limit: str | None = None  # the run waits because the limit of this key is reached
    priority: float = 0.0
    labels: tuple[str, ...] = ()  # that its worker must have
    cost: int = 1  # slots that it occupies


class CancelRun(Effect, frozen=True):
    """Stop a leased run on its worker and kill its tool; its further reports are rejected."""

    run_id: str
    epoch: int
    worker: str


class ReturnTurns(Effect, frozen=True):
    """Runs that waited for a quota have ended: their turns (instants) are free for others."""

    demand: Demand
    instants: tuple[float, ...]


class StartChild(Effect, frozen=True):
    """Find or start the child execution of this key; send `RecordChildStart`, or `RecordChildEnd` if it failed.

    `key` is the calling task run's id and the child's idempotency key: a restart finds it."""

    key: str
    parent: Parent
    playbook: str
    payload: dict[str, Any] = field(default_factory=dict)
    version: str | None = None
    entry_step: str | None = None
    return_step: str | None = None
    compensates: str | None = None  # the ended execution whose completed steps the child undoes
    failure: ErrorInfo | None = None  # why they are undone


class AwaitChild(Effect, frozen=True):
    """Wait for a child that has started; send `RecordChildEnd` once it has ended."""

    key: str
    child: str


class CancelChild(Effect, frozen=True):
    """Cancel a child whose output is no longer needed; send `RecordChildEnd` once it has ended."""

    key: str
    child: str | None
    reason: str = ""
    compensate: bool = True  # its completed steps are undone


class AnswerParent(Effect, frozen=True):
    """This execution has ended: send its caller `RecordChildEnd(parent.task_run_id, child, outcome)`."""

    parent: Parent
    child: str
    outcome: Outcome
    compensable: bool = False


class SetTimer(Effect, frozen=True):
    """Send `FireTimer` at this instant (seconds since the epoch); None: no timer is set."""

    at: float | None


class ContinueLater(Effect, frozen=True):
    """The append is full and more is to be decided: call advance again without commands."""


class DataRequest(Struct, frozen=True):
    """Base of the requests that are answered before the decision is complete; `key` names the answer."""

    key: str


class FetchPayload(DataRequest, frozen=True):
    """A template reads a stored payload: the answer is the data, or a `PayloadUnavailable`."""

    reference: Reference


class StorePayload(DataRequest, frozen=True):
    """A value is too large for the log: store these bytes (JSON); the answer is the Reference.

    With `parts` the value is the concatenation of these JSON lists, stored or inline, in order."""

    data: bytes
    rows: int | None = None
    parts: tuple[Reference | bytes, ...] = ()
    content_type: str = "application/json"


class ValidateSynthesis(DataRequest, frozen=True):
    """A step returned workflow nodes as data: validate them; the answer is a `Synthesized`.

    The validator is the one for playbooks; `known` are the existing steps."""

    step: str
    nodes: Any
    max_steps: int
    kinds: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


class Synthesized(Struct, frozen=True):
    """The validator's answer: lowered steps (IR) and their entry, or the problems found."""

    steps: tuple[Any, ...] = ()  # model.playbook.Step
    entry: str | None = None
    problems: tuple[str, ...] = ()
