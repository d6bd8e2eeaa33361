"""A worker without I/O: executes one order with the real pipeline; the outcomes of its tools are random."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from noetl.core.model.events import Event
from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.playbook import Playbook
from noetl.core.model.reference import Reference, ReferenceMeta
from noetl.core.model.tool import ToolSpec
from noetl.core.model.work import RunOrder
from noetl.core.pipeline.actions import Finished, KnownOutcome, RunTask, Suspend, TakeToken, Wait
from noetl.core.pipeline.advance import apply_outcome, next_action
from noetl.core.pipeline.frame import open_frame
from noetl.core.pipeline.nondeterminism_log import NondeterminismLog
from noetl.core.pipeline.program import Programs
from noetl.core.pipeline.quotas import token_taken, wait_for_token
from noetl.core.pipeline.scopes import NeedsSecret, SharedScope
from noetl.core.templates.views import NeedsPayload, NeedsReference
from noetl.tools.registry import specs

KINDS = {**specs(), "effect": ToolSpec(kind="effect", open_fields=True)}
ERRORS = ("server_error", "timeout", "python", "ambiguous")


class Nondeterminism:
    """Numbers in order instead of times, ids and random numbers."""

    def __init__(self) -> None:
        self.count = 0

    def now(self) -> str:
        self.count += 1
        return f"2026-01-01T00:{self.count // 60 % 60:02d}:{self.count % 60:02d}Z"

    def uuid(self) -> str:
        self.count += 1
        return f"00000000-0000-4000-8000-{self.count:012d}"

    def random(self) -> float:
        self.count += 1
        return self.count % 100 / 100


class Worker:
    """A worker that executes one order with the pipeline; `act` performs one action."""

    def __init__(self, order: RunOrder, playbook: Playbook, failing: float, stored: dict[str, Any]) -> None:
        """`failing` is the share of tools that fail; `stored` are the payloads outside the log by key."""
        self.order, self.failing, self.stored = order, failing, stored
        self.source = Nondeterminism()
        sent = msgspec.json.decode(msgspec.json.encode(order), type=RunOrder)
        shared = SharedScope(sent.context, playbook)
        self.frame = open_frame(sent, Programs(playbook, KINDS), shared, NondeterminismLog(self.source))
        self.events: list[Event] = []  # not reported yet
        self.started: RunTask | None = None
        self.ended = False
        self.notes: list[Any] = []

    def _call(self, function: Any, *arguments: Any) -> Any:
        for _ in range(20):
            drawn = self.source.count
            try:
                return function(self.frame, *arguments)
            except NeedsPayload as needed:
                self.frame.shared.provide(needed.reference, self.stored[needed.reference.locator["key"]])
            except NeedsReference as needed:
                self.stored[needed.key] = needed.data
                meta = ReferenceMeta("application/json", len(needed.encoded), f"sha-{needed.key}")
                self.frame.shared.references[needed.key] = Reference("blob", {"key": needed.key}, meta)
            except NeedsSecret as needed:
                self.frame.keychain.provide({needed.secret: f"secret of {needed.secret}"})
            self.source.count = drawn  # the evaluation is repeated
        raise AssertionError("the pipeline asks for the same data again and again")

    def act(self, chance: random.Random, at: float) -> None:
        """Perform the next action, or end the tool that runs."""
        if self.started is not None:
            self.started = None
            self.events += self._call(apply_outcome, self._outcome(chance))
            return
        action = self._call(next_action)
        self.events += action.events
        match action:
            case Wait():
                self.notes.append({"wait": action.seconds})
            case TakeToken() if action.turn is None and chance.random() < 0.5:
                waiting = wait_for_token(self.frame, action, at + 5.0)
                self.events += waiting.events
                self.ended = True
            case TakeToken():
                token_taken(self.frame, action)
            case RunTask():
                fields = ("label", "input", "spec", "visit", "attempt", "start_recorded", "quotas")
                self.notes.append({each: getattr(action, each) for each in fields})
                self.started = action
            case KnownOutcome():
                self.events += self._call(apply_outcome, action.outcome)
            case Suspend():
                self.ended = True
            case Finished():
                self.events.append(action.event(action.recorded, action.results))
                self.ended = True

    def _outcome(self, chance: random.Random) -> Outcome:
        if chance.random() < self.failing:
            return error(chance.choice(ERRORS), "it broke")
        size = chance.choice([0, 1, 2, 3])
        choices: list[Any] = [size, size, {"n": size, "id": size, "data": [size]}, [size, 1], "text", None]
        return ok(chance.choice(choices))
