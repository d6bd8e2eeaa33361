"""The evaluation context: what a decision uses beside the state (time, nondeterminism, answers to data requests).

Handlers fetch here what the state does not have: a stored payload, a reference for a large value, a
validated piece of workflow. When the answer is missing, `DataNeeded` is raised. `advance` returns it
as a data request and repeats the same decision with the answer. Deciding only reads the state, so
repeating a decision is safe.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from noetl.core.engine.capacity import Capacity
from noetl.core.engine.effects import DataRequest, FetchPayload, StorePayload, Synthesized
from noetl.core.model.outcome import ERROR_KINDS, ErrorInfo, Outcome, error_info
from noetl.core.model.playbook import Playbook
from noetl.core.model.reference import Reference, is_stored, stored_marker
from noetl.core.templates.budget import Meter, NondeterminismSource
from noetl.core.templates.template import Compiled, holds
from noetl.core.templates.views import NeedsPayload, NeedsReference, StoredView, View, located
from noetl.errors import NoetlError, PayloadUnavailable, TemplateError

Resolve = Callable[[Reference], Any]
_json = msgspec.json.Encoder(order="sorted").encode
_SMALL_TYPES = frozenset({type(None), bool, int, float})


class DataNeeded(Exception):
    """A data request must be answered before the decision can be made."""

    def __init__(self, request: DataRequest) -> None:
        super().__init__(request.key)
        self.request = request


class Failure(NoetlError):
    """A part of the playbook could not be evaluated; becomes `step.failed` or ends the execution."""

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__(error.message)
        self.error = error


class EvaluationContext(Struct, eq=False, gc=False):
    """The inputs of one advance beside the state."""

    playbook: Playbook
    at: float
    nondeterminism: NondeterminismSource | None
    answers: dict[str, Any]
    capacity: Capacity | None = None  # free capacity of the limited keys; None: no limit applies
    conflict: str | None = None  # why the stored `state` cannot be changed: a commit of it was refused
    meter: Meter = msgspec.field(default_factory=Meter)  # what the templates of the current command may cost

    def evaluate(self, compiled: Compiled, names: Mapping[str, Any], path: str) -> Any:
        """The value of a template; an error in it is a Failure with its location."""
        try:
            return compiled.evaluate(names, self.nondeterminism, meter=self.meter)
        except (NeedsPayload, NeedsReference) as missing:
            raise _needed(missing) from None
        except TemplateError as problem:
            raise self.failure(problem, path) from problem

    def holds(self, compiled: Compiled, names: Mapping[str, Any], path: str) -> bool:
        """Whether a guard is true."""
        try:
            return holds(compiled, names, self.nondeterminism, self.meter)
        except (NeedsPayload, NeedsReference) as missing:
            raise _needed(missing) from None
        except TemplateError as problem:
            raise self.failure(problem, path) from problem

    def failure(self, problem: TemplateError, path: str) -> Failure:
        """The error of a template, with file, line and column."""
        where = self.playbook.where(f"{path}/{problem.path}" if problem.path else path)
        details: dict[str, Any] = {"where": where}
        if problem.text:
            details["template"] = problem.text
        kind = problem.kind if problem.kind in ERROR_KINDS else "template"
        return Failure(error_info(kind, f"{where}: {problem.message}", details=details))

    def fail(self, kind: str, message: str, path: str) -> Failure:
        """The error of a node of the playbook, with its location."""
        where = self.playbook.where(path)
        return Failure(error_info(kind, f"{where}: {message}", details={"where": where}))

    def resolve(self, reference: Reference) -> Any:
        """A stored payload, for the views that templates read."""
        key = reference_key(reference)
        if key not in self.answers:
            raise NeedsPayload(reference)
        answer = self.answers[key]
        if isinstance(answer, PayloadUnavailable):
            raise TemplateError(str(answer), kind=answer.kind)
        return answer

    def locate(self, data: Any) -> Reference:
        """The reference of data that a template reads by its `ref`, stored at this moment."""
        reference: Reference = located(data, self.answers)
        return reference

    def resolver(self, outcome: Outcome) -> Resolve | None:
        """The function by which a view of this outcome reads stored payloads; None while its extracts may suffice."""
        if not self.answers:
            return None
        if outcome.ref is not None and reference_key(outcome.ref) not in self.answers:
            return None
        return self.resolve

    def fetched(self, view: View) -> Any:
        """The value of a stored part of a scope, for the engine itself."""
        try:
            return view.value()
        except NeedsPayload as missing:
            raise _needed(missing) from None
        except TemplateError as problem:
            raise self.failure(problem, "") from problem

    def restored(self, value: Any) -> Any:
        """A value of a scope; if it is the marker of a stored one, the stored value."""
        return self.fetched(StoredView(value, self.resolve)) if is_stored(value) else value

    def fetch(self, reference: Reference, path: str) -> Any:
        """A stored payload, for the engine itself."""
        try:
            return self.resolve(reference)
        except NeedsPayload:
            raise DataNeeded(FetchPayload(reference_key(reference), reference)) from None
        except TemplateError as problem:
            raise self.failure(problem, path) from problem

    def store(
        self, key: str, data: bytes, rows: int | None = None, parts: tuple[Reference | bytes, ...] = ()
    ) -> Reference:
        """Store these bytes and return their reference."""
        if key not in self.answers:
            raise DataNeeded(StorePayload(key, data, rows, parts))
        answer = self.answers[key]
        if isinstance(answer, PayloadUnavailable):
            raise Failure(error_info(answer.kind, str(answer)))
        reference: Reference = answer
        return reference

    def for_log(self, value: Any) -> Any:
        """The value as an event has it: a marker if it is too large for the log, and stored."""
        if type(value) in _SMALL_TYPES:
            return value
        encoded = _json(value)
        if len(encoded) <= self.playbook.executor.limits.max_payload_bytes:
            return value
        return stored_marker(self.store("value-" + hashlib.sha256(encoded).hexdigest(), encoded))

    def validate(self, request: DataRequest) -> Synthesized:
        """The validator's answer about synthesized workflow nodes."""
        if request.key not in self.answers:
            raise DataNeeded(request)
        answer: Synthesized = self.answers[request.key]
        return answer


def _needed(missing: NeedsPayload | NeedsReference) -> DataNeeded:
    if isinstance(missing, NeedsReference):
        return DataNeeded(StorePayload(missing.key, missing.encoded))
    return DataNeeded(FetchPayload(reference_key(missing.reference), missing.reference))


def reference_key(reference: Reference) -> str:
    """The key of a stored payload, the same for the same payload."""
    return f"{reference.type}:{reference.meta.sha256}:{_json(reference.locator).decode()}"
