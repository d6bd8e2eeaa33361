"""Objects that templates read: an output, a result by name, a reference; and their conversion to plain data.

`output.x` is read from the envelope, then from the payload's keys; `fetch.x` (a result by name) from the payload's
keys, then from the envelope, so `fetch.x` and `fetch.data.x` agree. As a whole both are the payload, with two
exceptions: an http result is `{data, body, status_code, headers, url}` and a loop `{results, stats}`, in which every
element of `results` is a result again.

A stored payload is read by `resolve` when a template first needs it. Where no `resolve` is given (the server),
the extracted parts (`Outcome.extracts`) are available and everything else raises `NeedsPayload`.
"""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, cast

import msgspec

from noetl.core.model.outcome import ANSWERS, ErrorInfo, Outcome
from noetl.core.model.reference import STORED, Reference, is_stored
from noetl.core.templates.budget import MAX_DEPTH, EvaluationBudget, limit_exceeded
from noetl.core.templates.lookup import MAX_PATH, Missing, Undefined, View, is_reference, key_text, lookup, unwrap
from noetl.errors import TemplateError

__all__ = [
    "Missing",
    "NeedsPayload",
    "NeedsReference",
    "OutputView",
    "PayloadView",
    "ReferenceView",
    "ResultView",
    "Undefined",
    "View",
    "extract",
    "plain",
    "unwrap",
]

Resolve = Callable[[Reference], Any]
Locate = Callable[[Any], Reference]

_ABSENT: Any = object()
_json = msgspec.json.Encoder().encode
# The extract with the names of a stored mapping's keys.
KEYS = ""
_MOST_KEYS = 256
_WITHOUT_PAYLOAD = frozenset(["status", "ref", "_ref", "meta", "error"])
_ENVELOPE = ("status", "data", "ref", "error", "meta")
# Fields of the built-in kinds beside `data`; on an output of another kind they are `Missing`.
HELPERS = frozenset(["http", "pg", "py", "sh", "duckdb", "sqlite", "nats", "object", "loop"])
_HTTP_HABITS = {"status_code": "status", "headers": "headers", "url": "url"}


class NeedsPayload(TemplateError):
    """A template reads a stored payload that is not loaded; load `reference` and evaluate again."""

    def __init__(self, reference: Reference) -> None:
        super().__init__("the template needs a stored payload that is not loaded", kind="ref.unresolved")
        self.reference = reference


class NeedsReference(TemplateError):
    """A template reads the reference of an output that is not stored; store `encoded` and evaluate again."""

    def __init__(self, key: str, data: Any, encoded: bytes) -> None:
        super().__init__("the template needs the reference of an output that is not stored", kind="ref.unresolved")
        self.key = key
        self.data = data
        self.encoded = encoded


def located(data: Any, known: Mapping[str, Any]) -> Any:
    """The entry of `known` for the reference of this data; else NeedsReference is raised."""
    encoded = _json(data)
    key = "ref-" + hashlib.sha256(encoded).hexdigest()
    if key not in known:
        raise NeedsReference(key, data, encoded)
    return known[key]


class ReferenceView(View):
    """A reference: its fields can be read, those of the payload cannot."""

    __slots__ = ("_plain",)

    def __init__(self, reference: Reference | Mapping[str, Any]) -> None:
        held = msgspec.to_builtins(reference) if isinstance(reference, Reference) else dict(reference)
        self._plain: dict[str, Any] = {"auth_reference": None, **held}

    def field(self, key: Any) -> Any:
        """A field of the reference; a payload field is an error that mentions `kind: resolve`."""
        return lookup(self._plain, key)

    def fields(self) -> list[str]:
        """The fields of the reference."""
        return list(self._plain)

    def value(self) -> Any:
        """The reference object as plain data."""
        return self._plain


class PayloadView(View):
    """A stored payload or a part of it: read from extracts, or from the payload if necessary."""

    __slots__ = ("_at", "_owner")

    def __init__(self, owner: _Envelope, at: tuple[Any, ...] = ()) -> None:
        self._owner = owner
        self._at = at

    def field(self, key: Any) -> Any:
        """An extract, a part that has extracts below it, or a part of the payload."""
        found = self._owner.extracted((*self._at, key))
        return lookup(self.value(), key) if found is _ABSENT else found

    def fields(self) -> list[str]:
        """The payload's keys, when it is a mapping."""
        value = self.value()
        return [str(key) for key in value] if isinstance(value, Mapping) else []

    def value(self) -> Any:
        """The data, hydrated."""
        value = self._owner.payload()
        for key in self._at:
            value = unwrap(lookup(value, key))
        return value


class StoredView(View):
    """A value of a scope that is stored because it is too large for the log: fetched when a template reads it."""

    __slots__ = ("_reference", "_resolve")

    def __init__(self, marker: Mapping[str, Any], resolve: Resolve) -> None:
        self._reference = msgspec.convert(marker[STORED], Reference)
        self._resolve = resolve

    def field(self, key: Any) -> Any:
        """A field of the value."""
        return lookup(self.value(), key)

    def fields(self) -> list[str]:
        """The keys of the value, if it is a mapping."""
        value = self.value()
        return [str(key) for key in value] if isinstance(value, Mapping) else []

    def value(self) -> Any:
        """The value."""
        return self._resolve(self._reference)


def with_stored(values: dict[str, Any], resolve: Resolve) -> dict[str, Any]:
    """A scope in which stored values are read on demand."""
    if not any(map(is_stored, values.values())):
        return values
    return {key: StoredView(value, resolve) if is_stored(value) else value for key, value in values.items()}


class _DataOf(View):
    """`fetch.data` where `.data` alone does not say all: the data's own keys, then those beside it.

    A payload may have a `data` key itself, and an http result has `status_code` and friends;
    `fetch.data.x` and `fetch.x` agree in both cases.
    """

    __slots__ = ("_beside", "_own")

    def __init__(self, own: Any, beside: Mapping[str, Any]) -> None:
        self._own = own
        self._beside = beside

    def field(self, key: Any) -> Any:
        """A field of the data; else one beside it."""
        found = lookup(self._own, key)
        if isinstance(found, Undefined) and isinstance(key, str) and key in self._beside:
            return self._beside[key]
        if key == "data" and isinstance(self._own, Mapping) and "body" in self._beside:
            # `output.data.data` is the body in other runtimes: beside the body's own `data` are its other keys.
            return _DataOf(found, self._own)
        return found

    def fields(self) -> list[str]:
        """Keys of both."""
        own = dict.fromkeys(str(key) for key in self._own) if isinstance(self._own, Mapping) else {}
        return [*own, *(key for key in self._beside if key not in own)]

    def value(self) -> Any:
        """The data."""
        return self._own


class _Envelope(View):
    """Base of OutputView and ResultView: the outcome and the access to its payload.

    `locate` stores data that is not in a store when a template reads its `ref`."""

    __slots__ = ("_hydrated", "_loop", "_loop_value", "locate", "name", "outcome", "resolve", "results")

    def __init__(
        self,
        outcome: Outcome,
        *,
        name: str = "output",
        results: Mapping[str, Any] | None = None,
        resolve: Resolve | None = None,
        locate: Locate | None = None,
    ) -> None:
        self.locate = locate
        self.outcome = outcome
        self.name = name
        self.results = results
        self.resolve = resolve
        self._hydrated: Any = _ABSENT
        self._loop: Any = _ABSENT
        self._loop_value: Any = _ABSENT

    # ── the payload ─────────────────────────────────────────────────────────────────────

    def _resolver(self) -> Resolve | None:
        """Share the loaded payload with a derived view."""
        return None if self.resolve is None else lambda reference: self.payload()

    def stored(self) -> bool:
        """Whether the payload is stored and has not been loaded."""
        return self.outcome.ref is not None and self.outcome.data is None and self._hydrated is _ABSENT

    def payload(self) -> Any:
        """The payload as data; loaded once."""
        outcome = self.outcome
        if outcome.ref is None or outcome.data is not None:
            return outcome.data
        if self._hydrated is _ABSENT:
            if self.resolve is None:
                raise NeedsPayload(outcome.ref)
            self._hydrated = self.resolve(outcome.ref)
        return self._hydrated

    def extracted(self, at: tuple[Any, ...]) -> Any:
        """The extract of that part of the payload, or `_ABSENT`."""
        extracts = self.outcome.extracts
        if not extracts or not self.stored():
            return _ABSENT
        path = ".".join(str(key) for key in at)
        for dotted in (path, f"data.{path}"):
            if dotted in extracts:
                return extracts[dotted]
        if self.resolve is not None:
            return _ABSENT
        below = (path + ".", f"data.{path}.")
        return PayloadView(self, at) if any(key.startswith(below) for key in extracts) else _ABSENT

    def data(self) -> Any:
        """`output.data`: the payload, lazily when it is stored."""
        outcome = self.outcome
        if outcome.ref is None or outcome.data is not None:
            return outcome.data
        return PayloadView(self) if self._hydrated is _ABSENT else self._hydrated

    def payload_field(self, key: Any) -> Any:
        """A key of the payload, or `_ABSENT`."""
        if self.stored():
            found = self.extracted((key,))
            if found is not _ABSENT:
                return found
            keys = self.outcome.extracts.get(KEYS)
            if keys is not None and key not in keys:
                return _ABSENT
        payload = self.payload()
        if isinstance(payload, Mapping):
            return payload.get(key, _ABSENT)
        if isinstance(payload, (list, tuple, str)) and isinstance(key, int):
            return lookup(payload, key)
        return _ABSENT

    # ── the envelope ────────────────────────────────────────────────────────────────────

    def envelope_field(self, key: Any) -> Any:
        """A field of the envelope or an alias of one, or `_ABSENT`."""
        outcome = self.outcome
        if key == "status":
            return outcome.status
        if key == "data":
            return self.data()
        if key in outcome.helpers:
            return _Http(self) if key == "http" else outcome.helpers[key]
        if key == "error":
            return self._error()
        if key == "meta":
            return outcome.meta
        if key == "ref" or key == "_ref":
            return self._reference()
        if key == "results" and self.results is not None:
            return _Results(self.results, self.resolve, self.locate)
        return self._habit(key)

    def _reference(self) -> Any:
        reference = self.outcome.ref
        if reference is None and self.outcome.data is not None and self.locate is not None:
            reference = self.locate(self.outcome.data)
        return None if reference is None else ReferenceView(reference)

    def _error(self) -> Any:
        if self.outcome.error is None:
            return Missing(f"{self.name}.error", "there was no error")
        http = self.outcome.helpers.get("http") or {}
        return {**error_fields(self.outcome.error), "status": http.get("status")}

    def _habit(self, key: Any) -> Any:
        """Aliases of fields: `.body`, `.status_code`, `.results`, `.stats`, `.context`."""
        helpers = self.outcome.helpers
        if "http" in helpers:
            if key == "body":
                return self.data()
            if key in _HTTP_HABITS:
                return helpers["http"].get(_HTTP_HABITS[key])
        if "loop" in helpers:
            if key == "results":
                return self.loop_results()
            if key == "stats":
                return helpers["loop"]
        return self.data() if key == "context" else _ABSENT

    def fields(self) -> list[str]:
        """Envelope and payload keys, for error messages."""
        names = [*_ENVELOPE, *self.outcome.helpers]
        payload = None if self.stored() else self.payload()
        if isinstance(payload, Mapping):
            names += [str(key) for key in payload if key not in names]
        return names

    def absent(self, key: Any) -> Any:
        """The value of a field that neither envelope nor payload has: a method of the payload, or undefined."""
        payload = None if self.stored() else self.payload()
        if isinstance(payload, (Mapping, list, str)) and isinstance(key, str):
            found = lookup(payload, key)
            if not isinstance(found, Undefined):
                return found
        path = f"{self.name}.{key_text(key)}" if not isinstance(key, str) or len(key) < MAX_PATH else None
        return Undefined(name=key, path=path, container=self)

    def http_fields(self) -> dict[str, Any]:
        """The fields of an http result beside its body."""
        http = self.outcome.helpers["http"]
        return {name: http.get(field) for name, field in _HTTP_HABITS.items()}

    def loop_results(self) -> Any:
        """`.results` of a loop: the results of its iterations, each like a result by name."""
        if self._loop is _ABSENT:
            payload = self.payload()
            if not isinstance(payload, list):
                return payload
            self._loop = _loop_results(payload, self._answers(self.outcome.helpers), self)
        return self._loop

    def _answers(self, helpers: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields of the answers of an http loop, by index."""
        found = helpers.get(ANSWERS) or {}
        if not is_stored(found):
            return cast(Mapping[str, Any], found)
        reference = msgspec.convert(found[STORED], Reference)
        if self.resolve is None:
            raise NeedsPayload(reference)
        return cast(Mapping[str, Any], self.resolve(reference))

    def value(self) -> Any:
        """The result as a whole."""
        helpers = self.outcome.helpers
        if "http" in helpers:
            body = self.payload()
            return {"data": body, "body": body, **self.http_fields()}
        if "loop" in helpers:
            if self._loop_value is _ABSENT:
                self._loop_value = {"results": plain(self.loop_results()), "stats": helpers["loop"]}
            return self._loop_value
        return self.payload()


class OutputView(_Envelope):
    """`output`: the envelope first, then the payload's keys."""

    __slots__ = ()

    def field(self, key: Any) -> Any:
        """`output.key`."""
        if key == "data" and "http" in self.outcome.helpers and not self.stored():
            # Playbooks of other runtimes read `output.data.status_code` and `output.data.data` (the body).
            body = self.payload()
            return _DataOf(body, {**self.http_fields(), "body": body, "data": body})
        found = self.envelope_field(key)
        if found is not _ABSENT:
            return found
        if key == "result_ref":  # v10
            return self._reference()
        if key == "result":
            return ResultView(self.outcome, name=f"{self.name}.result", results=self.results, resolve=self._resolver())
        found = self.payload_field(key)
        if found is not _ABSENT:
            return found
        found = self.absent(key)
        if key in HELPERS and isinstance(found, Undefined):
            # A rule that several tasks share may read a field that only some of them have.
            return Missing(f"{self.name}.{key}", f"the output of this kind has no {key}")
        return found


class ResultView(_Envelope):
    """A finished step or task read by its name: the payload's own keys first, then the envelope."""

    __slots__ = ()

    def field(self, key: Any) -> Any:
        """`fetch.key`."""
        if key in _WITHOUT_PAYLOAD and self.stored() and KEYS not in self.outcome.extracts:
            # The envelope is read first, so that no payload is loaded only to look up a key.
            return self.envelope_field(key)
        found = self._own(key)
        if found is _ABSENT:
            found = self.envelope_field(key)
        if found is _ABSENT and key == "result":  # of other runtimes: `fetch.result.id`
            return ResultView(self.outcome, name=f"{self.name}.result", results=self.results, resolve=self._resolver())
        return self.absent(key) if found is _ABSENT else found

    def _own(self, key: Any) -> Any:
        if key != "data":
            return self.payload_field(key)
        lazily = self.resolve is None or (bool(self.outcome.extracts) and "http" not in self.outcome.helpers)
        return self.data() if self.stored() and lazily else self._data()

    def _data(self) -> Any:
        payload = self.payload()
        beside: dict[str, Any] = self.http_fields() if "http" in self.outcome.helpers else {}
        if isinstance(payload, Mapping) and "data" in payload:
            return _DataOf(payload["data"], ChainMap(cast(Any, payload), beside) if beside else payload)
        return _DataOf(payload, beside) if beside else payload


class _LoopResults(list[Any]):
    """The results of a loop's iterations. It is a type of its own because it contains views: `plain` converts it."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return _LoopResults(found) if isinstance(key, slice) else found

    def __add__(self, other: Any) -> Any:
        return _LoopResults([*self, *other])


def _loop_results(payload: list[Any], answers: Mapping[str, Any], owner: _Envelope) -> list[Any]:
    """The elements of a loop's output as results; scalars are their own results."""
    return _LoopResults(_loop_result(each, answers.get(str(index)), owner) for index, each in enumerate(payload))


def _loop_result(data: Any, answer: Mapping[str, Any] | None, owner: _Envelope) -> Any:
    if answer is not None and ANSWERS in answer and isinstance(data, list):
        return _loop_results(data, owner._answers(answer), owner)
    if answer is None and not isinstance(data, Mapping):
        return data
    outcome = Outcome("ok", data=data, helpers={} if answer is None else {"http": dict(answer)})
    if is_reference(data):
        outcome = msgspec.structs.replace(outcome, data=None, ref=msgspec.convert(data, Reference))
    return ResultView(outcome, name=f"{owner.name}.results[]", resolve=owner.resolve, locate=owner.locate)


class _Http(View):
    """`.http` of a result: the fields of the answer, and its `body` whatever keys the body has."""

    __slots__ = ("_owner",)

    def __init__(self, owner: _Envelope) -> None:
        self._owner = owner

    def field(self, key: Any) -> Any:
        """A field of the answer."""
        return self._owner.data() if key == "body" else lookup(self.value(), key)

    def fields(self) -> list[str]:
        """Names of the fields."""
        return [*self.value(), "body"]

    def value(self) -> Any:
        """The fields of the answer without its body."""
        return self._owner.outcome.helpers["http"]


class _Results(View):
    """`.results.<task>` of a composite step."""

    __slots__ = ("_locate", "_resolve", "_results")

    def __init__(self, results: Mapping[str, Any], resolve: Resolve | None, locate: Locate | None) -> None:
        self._results = results
        self._locate = locate
        self._resolve = resolve

    def field(self, key: Any) -> Any:
        """One task's result by its name."""
        found = self._results.get(key, _ABSENT)
        if isinstance(found, Outcome):
            return ResultView(found, name=f"results.{key}", resolve=self._resolve, locate=self._locate)
        return lookup(self._results, key) if found is _ABSENT else found

    def fields(self) -> list[str]:
        """Names of the tasks."""
        return list(self._results)

    def value(self) -> Any:
        """All results."""
        return {name: plain(self.field(name)) for name in self._results}


def error_fields(error: ErrorInfo) -> dict[str, Any]:
    """`output.error` as templates see it."""
    fields = {"kind": error.kind, "message": error.message, "retryable": error.retryable, "details": error.details}
    return fields if error.secondary is None else {**fields, "secondary": error_fields(error.secondary)}


def extract(outcome: Outcome, paths: Iterable[str]) -> dict[str, Any]:
    """The parts of a payload that `Step.exports` names, as stored in `Outcome.extracts` beside a `ref`.

    A path is below the output (`data.count`, or `count` for short). What the payload does not have is
    left out, and so is what `output.data.x` and `step.data.x` would read differently. The names of the
    payload's own keys go along under `KEYS`, so that a reader knows what is not there.
    """
    payload = outcome.data
    found: dict[str, Any] = {}
    if not isinstance(payload, Mapping):
        return found
    if len(payload) <= _MOST_KEYS:
        found[KEYS] = [str(key) for key in payload]
    for path in paths:
        below = path.removeprefix("data.")
        if below == "data" or (below != path and "data" in payload):
            continue
        value = _part(payload, below)
        if value is not _ABSENT:
            found[path] = plain(value)
    return found


def _part(value: Any, path: str) -> Any:
    """The value at a dotted path of plain data, or `_ABSENT`."""
    for key in path.split("."):
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, (list, tuple)) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return _ABSENT
    return value


# ── plain data ──────────────────────────────────────────────────────────────────────────

_SCALARS = frozenset([str, int, float, bool, type(None)])


def plain(value: Any, budget: EvaluationBudget | None = None, depth: int = 0) -> Any:
    """Views, tuples, ranges, sets, dates and decimals as JSON data; what JSON cannot hold is an error.

    The value of a view is plain already and is passed on. `budget` is charged for the traversal.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if depth > MAX_DEPTH:
        limit_exceeded(f"a result nested more than {MAX_DEPTH} levels deep")
    if kind is list or kind is tuple or kind is range:
        if budget is not None:
            budget.charge(1 + (len(value) >> 2))
        return [each if type(each) in _SCALARS else plain(each, budget, depth + 1) for each in value]
    if isinstance(value, View):
        return value.value()
    if isinstance(value, Undefined):
        value.fail()
    if isinstance(value, Mapping):
        if budget is not None:
            budget.charge(1 + (len(value) >> 2))
        return {
            key if type(key) is str else _plain_key(key): each
            if type(each) in _SCALARS
            else plain(each, budget, depth + 1)
            for key, each in value.items()
        }
    return _plain_other(value, budget, depth)


def _plain_key(key: Any) -> str:
    if key is None:
        return "null"
    if isinstance(key, bool):
        return "true" if key else "false"
    return str(plain(key))


def _plain_other(value: Any, budget: EvaluationBudget | None, depth: int) -> Any:
    if isinstance(value, str):  # a subclass: Markup
        return str.__str__(value)
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (set, frozenset)):
        return sorted((plain(each, budget, depth + 1) for each in value), key=repr)
    if isinstance(value, (list, tuple)) or hasattr(value, "__next__") or type(value).__name__.startswith("dict_"):
        return [plain(each, budget, depth + 1) for each in value]
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.to_builtins(value), budget, depth + 1)
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise TemplateError("bytes are not JSON data; encode them, for example with b64encode")
    raise TemplateError(f"a {type(value).__name__} is not data and cannot be the result of a template")
