"""Our own mistakes and the world's, as exceptions.

    NoetlError
    ├── InvalidPlaybook        the author's mistake, already collected as diagnostics
    ├── RequestRefused         a request that cannot be served: what, and what to do instead
    │   ├── NotFound           no such execution, playbook, credential, result
    │   ├── AccessRefused      a server does not know the token, or its role is too low
    │   ├── SecretUnavailable  keychain entries that cannot be had, each with its reason
    │   └── Conflict           it exists already, or is in a state that forbids the request
    ├── VersionConflict        somebody appended first; reload and decide again
    ├── LimitReached           somebody took the last slot first; decide again with what is left
    ├── TemplateError          a template could not be evaluated (kind: template)
    ├── PayloadUnavailable        a stored payload is missing, corrupt or too large to hydrate
    ├── CorruptLog             the log cannot be folded: a gap, a checksum, an unknown event
    └── StoreUnavailable       a back end cannot be reached; nothing was lost, try again

What a tool meets in the world is not here: that is an `Outcome` with `status: error`.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """A request that cannot be served, in words for the person who made it."""


class NotFound(RequestRefused):
    """What was named does not exist."""


class AccessRefused(RequestRefused):
    """A server that does not let this caller do that: no token, an unknown one, or a role too low."""


class SecretUnavailable(RequestRefused):
    """Keychain entries that cannot be had; `reasons` says why for each name, never with a value."""

    def __init__(self, reasons: Mapping[str, str], *, kind: str = "auth") -> None:
        super().__init__("; ".join(f'keychain entry "{name}": {reason}' for name, reason in sorted(reasons.items())))
        self.reasons = dict(reasons)
        self.kind = kind


class Conflict(RequestRefused):
    """What was asked contradicts what is already there."""


class VersionConflict(NoetlError):
    """Another writer appended to this execution first."""

    def __init__(self, execution_id: str, expected: int, actual: int | None = None) -> None:
        super().__init__(f"execution {execution_id}: expected seq {expected}, found {actual}")
        self.execution_id = execution_id
        self.expected = expected
        self.actual = actual


class LimitReached(NoetlError):
    """An append would take more of a limited key than there is."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the limit of {key} is reached")
        self.key = key


class TemplateError(NoetlError):
    """A template could not be evaluated; `text` is its source, `path` the place inside the value."""

    def __init__(self, message: str, *, text: str = "", path: str = "", kind: str = "template") -> None:
        super().__init__(message)
        self.message = message
        self.text = text
        self.path = path
        self.kind = kind


class PayloadUnavailable(NoetlError):
    """A stored payload could not be had; `kind` is `ref.unresolved`, `ref.corrupt` or `limit`."""

    def __init__(self, message: str, *, kind: str = "ref.unresolved") -> None:
        super().__init__(message)
        self.kind = kind


class CorruptLog(NoetlError):
    """A log that cannot be folded; it is never skipped over."""


class StoreUnavailable(NoetlError):
    """A back end is out of reach; `kind` is `connection`, `auth`, `storage.quota` or `storage.access`."""

    def __init__(self, message: str = "", *, kind: str = "connection") -> None:
        super().__init__(message)
        self.kind = kind
