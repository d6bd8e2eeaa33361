"""Response bodies that several routes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response

from noetl.server.read_models.documents import when
from noetl.storage.ports.playbooks import StoredPlaybook

T = TypeVar("T")

_encode = msgspec.json.Encoder(enc_hook=str).encode


def json_response(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(_encode(document), status_code=status, media_type="application/json", headers=headers)


def started_response(execution_id: str) -> Response:
    """The response to a request that started an execution."""
    document = {"execution_id": execution_id, "status": "running"}
    return json_response(document, 202, {"Location": f"/api/executions/{execution_id}"})


def page(items: Sequence[Any], following: str | None = None) -> dict[str, Any]:
    """One page of a list; `next` is the `before` or `after` parameter of the next request."""
    return {"items": items, "next": following}


def page_of(found: Sequence[T], limit: int, cursor: Callable[[T], Any], document: Callable[[T], Any]) -> dict[str, Any]:
    """The documents of at most `limit` rows; one row more means that another page follows."""
    following = str(cursor(found[limit - 1])) if len(found) > limit else None
    return page([document(each) for each in found[:limit]], following)


def playbook_document(stored: StoredPlaybook, *, text: bool = False) -> dict[str, Any]:
    """One version of a playbook in the catalog."""
    from noetl.core.language.editor.summary import summarize

    document = {
        "path": stored.path,
        "version": stored.version,
        "digest": stored.digest,
        "registered_at": when(stored.registered_at),
        "file": stored.file,
        "origin": msgspec.to_builtins(stored.origin),
        **summarize(stored.text)._asdict(),
    }
    return {**document, "content": stored.text} if text else document
