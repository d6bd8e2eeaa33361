"""What the engine asks the shell to do: commands after the append, needs before it.

*Commands* are deeds that the log has promised: they are carried out after the decision's events
are on disk, and they can be lost, since `outstanding(state)` lists all of them again.

*Needs* are answers the engine must have before it can decide; nothing is on disk yet. The shell
answers them and calls `decision.resume(answers)`; the events of both halves are one append.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from noetl.core.model.events import Parent
from noetl.core.model.ids import IterationPath
from noetl.core.model.outcome import Outcome
from noetl.core.model.reference import Reference


class Effect(Struct, frozen=True, gc=False):
    """Base of everything the engine asks for after the append."""


class EnqueueRun(Effect, frozen=True):
    """Let a worker claim this run (answer with the fact ClaimMade)."""

    run_id: str
    step: str
    step_run_id: str
    path: IterationPath = ()
    pool: str | None = None
    together: str | None = None  # runs with the same word stay on one worker (exec: local)
    limit: str | None = None  # it waits in line: the limit of this key is reached


class CancelRun(Effect, frozen=True):
    """Tell the worker that holds this lease to stop and to kill its tool; its reports are refused."""

    run_id: str
    epoch: int
    worker: str
    reason: str = "cancelled"


class StartChild(Effect, frozen=True):
    """Find or start the child execution of this key (answer with ChildBegan, or ChildEnded).

    `key` is the calling task run's id and the child's idempotency key: a restart finds it."""

    key: str
    parent: Parent
    playbook: str
    payload: dict[str, Any] = field(default_factory=dict)
    version: str | None = None
    entry_step: str | None = None
    return_step: str | None = None


class AwaitChild(Effect, frozen=True):
    """A child is under way; answer with ChildEnded when it has ended (or already had)."""

    key: str
    child: str


class CancelChild(Effect, frozen=True):
    """Nobody waits for this child's answer any more: cancel it. Still answer with ChildEnded."""

    key: str
    child: str | None
    reason: str = ""


class AnswerParent(Effect, frozen=True):
    """This execution has ended: give its caller ChildEnded(parent.task_run_id, child, outcome)."""

    parent: Parent
    child: str
    outcome: Outcome


class SetTimer(Effect, frozen=True):
    """Send TimerDue at this instant (seconds since the epoch); None: no timer is needed now."""

    at: float | None


class ContinueLater(Effect, frozen=True):
    """There was more to decide than one append should hold: call advance again without facts."""


class DataRequest(Struct, frozen=True):
    """Base of what must be answered before the decision can be made; `key` names the answer."""

    key: str


class FetchPayload(DataRequest, frozen=True):
    """A template reads a stored payload: answer with the data, or with PayloadUnavailable."""

    reference: Reference


class StorePayload(DataRequest, frozen=True):
    """A value is too large for the log: store these bytes (JSON) and answer with the Reference.

    With `parts` it is the list of all elements of these JSON lists, stored ones and given ones, in order."""

    data: bytes
    rows: int | None = None
    parts: tuple[Reference | bytes, ...] = ()
    content_type: str = "application/json"


class ValidateSynthesis(DataRequest, frozen=True):
    """A step hands over workflow nodes as data: answer with `Synthesized`.

    The validator is the one playbooks are validated with; `known` are the steps that exist."""

    step: str
    nodes: Any
    max_steps: int
    kinds: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


class Synthesized(Struct, frozen=True):
    """The validator's answer: lowered steps (IR) and where they begin, or what is wrong."""

    steps: tuple[Any, ...] = ()  # model.playbook.Step
    entry: str | None = None
    problems: tuple[str, ...] = ()
