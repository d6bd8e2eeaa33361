"""The requests that operations consist of: what an operation yields, pages of lists, and paths of the API."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Mapping
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from noetl.core.model.events import seconds
from noetl.errors import NotFound
from noetl.server.read_models.documents import summary_of
from noetl.storage.ports.events import ExecutionSummary
from noetl.storage.ports.playbooks import Origin, StoredPlaybook
from noetl.transport.api_connection import Request

PAGE_SIZE = 1_000
FINAL = ("success", "failed", "cancelled")

T = TypeVar("T")
Document: TypeAlias = dict[str, Any]


class StreamEnd(NamedTuple):
    """Wait until an execution's event stream has ended; TimeoutError after `until`, an instant of time.monotonic()."""

    path: str
    after: int
    until: float | None


Operation: TypeAlias = Generator[Request | StreamEnd, Any, T]


class Pages(NamedTuple, Generic[T]):
    """A list that is read page by page."""

    path: str
    decode: Callable[[Document], T]
    query: Mapping[str, Any] = {}
    cursor: Literal["before", "after"] = "after"  # the parameter that takes `next` of the page before
    limit: int | None = None  # the greatest number of items

    def page(self, at: Any, left: int | None) -> Request:
        """The request of one page."""
        size = PAGE_SIZE if left is None else min(PAGE_SIZE, left)
        start: Document = {} if at is None else {self.cursor: at}
        return Request("GET", self.path, query={**self.query, **start, "limit": size})


def log_stream_path(execution_id: str) -> str:
    """The path of the stream of task logs."""
    return f"{execution_path(execution_id)}/logs/stream"


def stream_path(execution_id: str) -> str:
    """The path of an execution's event stream."""
    return f"{execution_path(execution_id)}/events/stream"


def control(execution_id: str, command: str, body: Document) -> Operation[ExecutionSummary]:
    """Send a command to an execution."""
    path = f"{execution_path(execution_id)}/{command}"
    return summary_of((yield Request("POST", path, body, headers=idempotency(None))))


def execution_path(execution_id: str) -> str:
    """The path of an execution; a text that cannot be an id needs no request."""
    if not execution_id.isdecimal() or len(execution_id) > 19:
        raise NotFound(f"there is no execution {execution_id}")
    return f"/api/executions/{execution_id}"


def item_path(collection: str, name: str) -> str:
    """The path of a member of a collection; no name has a slash."""
    if "/" in name:
        raise NotFound(f"{name!r} is not in {collection}: a name has no `/`")
    return f"/api/{collection}/{quote(name, safe='')}"


def limit_path(subject: str, name: str) -> str:
    """The path of a limit."""
    return f"/api/limits/{quote(subject, safe='')}/{quote(name)}"


def idempotency(key: str | None) -> dict[str, str]:
    """Every request that starts work has a key, so that it can be sent again when its response is lost."""
    return {"Idempotency-Key": key or f"client-{secrets.token_hex(16)}"}


def trigger_path(kind: str, name: str) -> str:
    """The path of a trigger."""
    return f"{item_path('triggers', kind)}/{quote(name, safe='')}"


def without_none(options: Mapping[str, Any]) -> Document:
    """The options that are given."""
    return {name: value for name, value in options.items() if value is not None}


def document_of(value: Document) -> Document:
    """A document as it is."""
    return value


def bytes_of(value: bytes) -> bytes:
    """Bytes as they are."""
    return value


def execution_id_of(document: Document) -> str:
    """The id in the response of a request that starts an execution."""
    return str(document["execution_id"])


def stored_playbook(document: Document) -> StoredPlaybook:
    """The playbook of a document."""
    return StoredPlaybook(
        path=document["path"],
        version=document["version"],
        digest=document["digest"],
        text=document.get("content", ""),
        registered_at=seconds(document["registered_at"]),
        file=document.get("file", ""),
        origin=msgspec.convert(document.get("origin", {}), Origin),
    )
