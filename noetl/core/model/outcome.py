"""The outcome of a tool: one envelope, the same for every kind.

`data` is the payload, `ref` its locator if it is in a result store, `error` is set exactly when
`status` is `error`, and `helpers` has fields of single kinds (`http`, `pg`, `py`, ...). The helpers of
a kind always exist; fields that do not apply are null.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field, structs

from noetl.core.model.reference import Reference

# The closed list of error kinds, each with whether a retry may succeed.
ERROR_KINDS: dict[str, bool] = {
    "connection": True,
    "timeout": True,
    "rate_limit": True,
    "auth": False,
    "not_found": False,
    "client_error": False,
    "server_error": True,
    "schema": False,
    "parse": False,
    "template": False,
    "python": False,
    "shell": False,
    "db.connection": True,
    "db.constraint": False,
    "db.deadlock": True,
    "db.timeout": True,
    "db.syntax": False,
    "storage.quota": False,
    "storage.access": False,
    "ref.unresolved": False,
    "ref.corrupt": False,
    "ctx.conflict": False,
    "state.conflict": False,
    "pipeline.runaway": False,
    "worker.lost": True,
    "ambiguous": False,
    "cancelled": False,
    "limit": False,
    "unknown": False,
}

MAX_MESSAGE = 64 * 1024  # characters of the message of an error

# The helper of an http loop's output: the fields of each answer, by index.
ANSWERS = "http_items"
ANSWER_FIELDS = ("status", "headers", "url")
# A whole http result and a whole loop result, as templates pass them on as data.
_WHOLE_HTTP = frozenset(["data", "body", "status_code", "headers", "url"])
_WHOLE_LOOP = frozenset(["results", "stats"])


class ErrorInfo(Struct, frozen=True, omit_defaults=True, gc=False):
    """An error: a kind of the closed list and a message.

    `secondary` is the error of a guard or `set` that could not be evaluated after this one."""

    kind: str
    message: str
    retryable: bool = False
    details: dict[str, Any] = field(default_factory=dict)
    secondary: ErrorInfo | None = None


class Outcome(Struct, frozen=True, omit_defaults=True, gc=False):
    """The envelope: `output` of a task, of an iteration, of a step, of an execution."""

    status: Literal["ok", "error"]
    data: Any = None
    ref: Reference | None = None
    error: ErrorInfo | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    helpers: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Parts of `data` that server-side templates read, stored beside a `ref` (dotted path -> value).
    extracts: dict[str, Any] = field(default_factory=dict)
    # What a successful task writes to its own state, `state.<step>.<task>`, before its `set`; not part of the log.
    state: dict[str, Any] = field(default_factory=dict)


def elements_of(value: Any) -> Any:
    """What a whole result stands for where elements are read (`loop.in`, rows): the body of an http result, the
    elements of a loop's results; any other value stands for itself."""
    if isinstance(value, dict):
        keys = value.keys()
        if keys == _WHOLE_HTTP:
            return value["data"]
        if keys == _WHOLE_LOOP and isinstance(value["results"], list):
            return [elements_of(each) for each in value["results"]]
    return value


def listed_failure(index: int, item: Any, problem: ErrorInfo) -> dict[str, Any]:
    """A failed iteration in `output.loop.failures`."""
    error = {"kind": problem.kind, "message": problem.message, "retryable": problem.retryable}
    return {"index": index, "item": item, "error": error, "kind": problem.kind, "message": problem.message}


def with_secondary(first: ErrorInfo, second: ErrorInfo) -> ErrorInfo:
    """The first error with another one that followed from it recorded beside it."""
    known = first.secondary
    return structs.replace(first, secondary=second if known is None else with_secondary(known, second))


def ok(data: Any = None, *, meta: dict[str, Any] | None = None, **helpers: dict[str, Any]) -> Outcome:
    """A successful outcome."""
    return Outcome(status="ok", data=data, meta=meta or {}, helpers=helpers)


def error(
    kind: str,
    message: str,
    *,
    data: Any = None,
    retryable: bool | None = None,
    details: dict[str, Any] | None = None,
    meta: dict[str, Any] | None = None,
    **helpers: dict[str, Any],
) -> Outcome:
    """A failed outcome; `retryable` defaults to that of its kind."""
    info = error_info(kind, message, retryable=retryable, details=details)
    return Outcome(status="error", data=data, error=info, meta=meta or {}, helpers=helpers)


def error_info(
    kind: str, message: str, *, retryable: bool | None = None, details: dict[str, Any] | None = None
) -> ErrorInfo:
    """An error of a known kind; `retryable` defaults to that of the kind."""
    return ErrorInfo(
        kind=kind,
        message=message,
        retryable=ERROR_KINDS[kind] if retryable is None else retryable,
        details=details or {},
    )
