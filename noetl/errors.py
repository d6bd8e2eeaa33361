"""The exceptions of this package.

    NoetlError
    ├── InvalidPlaybook        errors in a playbook, collected as diagnostics
    ├── RequestRefused         a request that cannot be served; the message says what to do instead
    │   ├── NotFound           no such execution, playbook, credential, result
    │   ├── AccessRefused      no token, an unknown token, or an insufficient role
    │   │   └── RoleRequired   the role of the token is not sufficient
    │   ├── SecretUnavailable  unavailable keychain entries, each with its reason
    │   ├── NotEncodable       events that JSON cannot hold; a retry cannot help
    │   └── Conflict           the object exists already, or its state does not allow the request
    ├── VersionConflict        another writer appended first; reload and decide again
    ├── LimitReached           another execution took the last slot; decide again with the rest
    ├── StateConflict          another execution changed the state that an append commits; decide again
    ├── TemplateError          a template could not be evaluated (kind: template)
    ├── PayloadUnavailable     a stored payload is missing, corrupt or too large to load
    ├── CorruptLog             the log cannot be folded: a gap, a checksum, an unknown event
    ├── DecisionFailed         a decision raised an exception: a defect of this package; a retry cannot help
    └── StoreUnavailable       a back end is unreachable; nothing was lost, retry later

The failure of a tool is not an exception, but an `Outcome` with `status: error`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any


class NoetlError(Exception):
    """Base of every exception this package raises on purpose."""


class InvalidPlaybook(NoetlError):
    """A playbook with errors; `diagnostics` has all of them."""

    def __init__(self, diagnostics: Any) -> None:
        wrong = [each for each in diagnostics if each.severity == "error"]
        lines = [f"{each.file or 'playbook'}:{each.line}:{each.column}: {each.message} [{each.code}]" for each in wrong]
        super().__init__("\n".join(["the playbook has errors", *lines]))
        self.diagnostics = diagnostics


class RequestRefused(NoetlError):
    """A request that cannot be served; the message is shown to the user."""


class NotFound(RequestRefused):
    """The named object does not exist."""


def unknown(what: str, name: str, known: Iterable[str], otherwise: str) -> NotFound:
    """The error for a name that does not exist: a similar known name, or what to do otherwise."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=1)
    return NotFound(f"there is no {what} {name!r}; {f'did you mean {close[0]!r}?' if close else otherwise}")


class AccessRefused(RequestRefused):
    """The server denies access: no token, an unknown token, or an insufficient role."""


class RoleRequired(AccessRefused):
    """The role of the token is not sufficient."""


class SecretUnavailable(RequestRefused):
    """Unavailable keychain entries; `reasons` has a message per name, never a value."""

    def __init__(self, reasons: Mapping[str, str], *, kind: str = "auth") -> None:
        named = (f'keychain entry "{name}": {reason}' if name else reason for name, reason in sorted(reasons.items()))
        super().__init__("; ".join(named))
        self.reasons = dict(reasons)
        self.kind = kind


_REASON = re.compile(r'(?:^|; )keychain entry "([^"]*)": ')


def read_reasons(message: str) -> dict[str, str]:
    """The reasons of a SecretUnavailable, from its message."""
    parts = _REASON.split(message)
    return dict(zip(parts[1::2], parts[2::2], strict=True)) or {"": message}


class Conflict(RequestRefused):
    """The request contradicts the existing state."""


class NotEncodable(RequestRefused):
    """Events cannot be encoded as JSON; the message names the part that cannot. A retry cannot help."""


class Overloaded(RequestRefused):
    """The request may succeed later: too much is waiting."""


class TooManyRequests(Overloaded):
    """A request is refused so that others are served; it may succeed after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class VersionConflict(NoetlError):
    """Another writer appended to this execution first."""

    def __init__(self, execution_id: str, expected: int, actual: int | None = None) -> None:
        super().__init__(f"execution {execution_id}: expected seq {expected}, found {actual}")
        self.execution_id = execution_id
        self.expected = expected
        self.actual = actual


class LimitReached(NoetlError):
    """An append would exceed the limit of a key."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the limit of {key} is reached")
        self.key = key


class StateConflict(NoetlError):
    """The stored state of a playbook is not the one that a commit replaces."""


class TemplateError(NoetlError):
    """A template could not be evaluated; `text` is its source, `path` its path inside the value."""

    def __init__(self, message: str, *, text: str = "", path: str = "", kind: str = "template") -> None:
        super().__init__(message)
        self.message = message
        self.text = text
        self.path = path
        self.kind = kind


class PayloadUnavailable(NoetlError):
    """A stored payload is unavailable; `kind` is `ref.unresolved`, `ref.corrupt` or `limit`."""

    def __init__(self, message: str, *, kind: str = "ref.unresolved") -> None:
        super().__init__(message)
        self.kind = kind


class WorkerLost(NoetlError):
    """The node of a cluster that executed a task was lost, and it is unknown how far the task got."""

    kind = "worker.lost"


class CorruptLog(NoetlError):
    """A log that cannot be folded; damaged events are never skipped."""


class DecisionFailed(NoetlError):
    """A decision raised an exception, which is a defect of this package; the same decision raises it again."""


class StoreUnavailable(NoetlError):
    """A back end is unreachable; `kind` is `connection`, `auth`, `storage.quota` or `storage.access`."""

    def __init__(self, message: str = "", *, kind: str = "connection") -> None:
        super().__init__(message)
        self.kind = kind
