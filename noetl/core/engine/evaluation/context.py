"""What a decision may use beside the state: the time, recorded draws, and answers to its needs.

Handlers ask here for what they cannot have: a stored payload, a reference for a large value, a
validated piece of workflow. When the answer is not there, `DataNeeded` is raised; it travels up to
`advance`, which hands the need to the shell and later repeats the same decision with the answer.
Since deciding only reads, repeating it is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from noetl.core.engine.capacity import Capacity
from noetl.core.engine.effects import DataRequest, FetchPayload, StorePayload, Synthesized
from noetl.core.model.outcome import ERROR_KINDS, ErrorInfo, Outcome, error_info
from noetl.core.model.playbook import Playbook
from noetl.core.model.reference import Reference
from noetl.core.templates.budget import NondeterminismSource
from noetl.core.templates.template import Compiled, holds
from noetl.core.templates.views import NeedsPayload
from noetl.errors import NoetlError, PayloadUnavailable, TemplateError

Resolve = Callable[[Reference], Any]
_json = msgspec.json.Encoder(order="sorted").encode


class DataNeeded(Exception):
    """A question that must be answered before the decision can be made."""

    def __init__(self, need: DataRequest) -> None:
        super().__init__(need.key)
        self.need = need


class Failure(NoetlError):
    """Something the author wrote could not be evaluated; becomes `step.failed` or ends the execution."""

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__(error.message)
        self.error = error


class EvaluationContext(Struct, eq=False, gc=False):
    """The surroundings of one advance."""

    playbook: Playbook
    at: float
    nondeterminism: NondeterminismSource | None
    answers: dict[str, Any]
    room: Capacity | None = None  # what is left of what is limited; None: nothing is

    def evaluate(self, compiled: Compiled, names: Mapping[str, Any], path: str) -> Any:
        """The value of a template; a mistake in it is a Failure with its place."""
        try:
            return compiled.evaluate(names, self.nondeterminism)
        except NeedsPayload as missing:
            raise DataNeeded(FetchPayload(reference_key(missing.reference), missing.reference)) from None
        except TemplateError as mistake:
            raise self.failure(mistake, path) from mistake

    def holds(self, compiled: Compiled, names: Mapping[str, Any], path: str) -> bool:
        """Whether a guard holds."""
        try:
            return holds(compiled, names, self.nondeterminism)
        except NeedsPayload as missing:
            raise DataNeeded(FetchPayload(reference_key(missing.reference), missing.reference)) from None
        except TemplateError as mistake:
            raise self.failure(mistake, path) from mistake

    def failure(self, mistake: TemplateError, path: str) -> Failure:
        """A template's mistake as an error with file, line and column."""
        where = self.playbook.where(f"{path}/{mistake.path}" if mistake.path else path)
        details: dict[str, Any] = {"where": where}
        if mistake.text:
            details["template"] = mistake.text
        kind = mistake.kind if mistake.kind in ERROR_KINDS else "template"
        return Failure(error_info(kind, f"{where}: {mistake.message}", details=details))

    def fail(self, kind: str, message: str, path: str) -> Failure:
        """An error about a node of the playbook."""
        where = self.playbook.where(path)
        return Failure(error_info(kind, f"{where}: {message}", details={"where": where}))

    def resolve(self, reference: Reference) -> Any:
        """A stored payload, for the views that templates look at."""
        key = reference_key(reference)
        if key not in self.answers:
            raise NeedsPayload(reference)
        answer = self.answers[key]
        if isinstance(answer, PayloadUnavailable):
            raise TemplateError(str(answer), kind=answer.kind)
        return answer

    def resolver(self, outcome: Outcome) -> Resolve | None:
        """How a view of this outcome reads stored payloads: not at all as long as its extracts may do."""
        if not self.answers:
            return None
        if outcome.ref is not None and reference_key(outcome.ref) not in self.answers:
            return None
        return self.resolve

    def hydrated(self, reference: Reference, path: str) -> Any:
        """A stored payload, for the engine itself."""
        try:
            return self.resolve(reference)
        except NeedsPayload:
            raise DataNeeded(FetchPayload(reference_key(reference), reference)) from None
        except TemplateError as mistake:
            raise self.failure(mistake, path) from mistake

    def kept(
        self, key: str, data: bytes, rows: int | None = None, parts: tuple[Reference | bytes, ...] = ()
    ) -> Reference:
        """The reference under which these bytes were stored."""
        if key not in self.answers:
            raise DataNeeded(StorePayload(key, data, rows, parts))
        answer = self.answers[key]
        if isinstance(answer, PayloadUnavailable):
            raise Failure(error_info(answer.kind, str(answer)))
        reference: Reference = answer
        return reference

    def synthesized(self, need: DataRequest) -> Synthesized:
        """The validator's answer about workflow nodes handed over as data."""
        if need.key not in self.answers:
            raise DataNeeded(need)
        answer: Synthesized = self.answers[need.key]
        return answer


def reference_key(reference: Reference) -> str:
    """A name for a stored payload, the same for the same payload."""
    return f"{reference.type}:{reference.meta.sha256}:{_json(reference.locator).decode()}"
