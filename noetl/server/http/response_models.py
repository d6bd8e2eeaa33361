"""Response bodies that several routes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from noetl.server.read_models.documents import when
from noetl.storage.ports.playbooks import StoredPlaybook

_encode = msgspec.json.Encoder(enc_hook=str).encode


def json_response(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(_encode(document), status_code=status, media_type="application/json", headers=headers)


def page(items: Sequence[Any], following: str | None) -> dict[str, Any]:
    """One page of a list; `next` is the `before` or `after` parameter of the next request."""
    return {"items": items, "next": following}


def playbook_document(stored: StoredPlaybook, *, text: bool = False) -> dict[str, Any]:
    """One version of a playbook in the catalog."""
    from noetl.core.language.editor.summary import summarize

    document = {
        "path": stored.path,
        "version": stored.version,
        "digest": stored.digest,
        "registered_at": when(stored.registered_at),
        **summarize(stored.text)._asdict(),
    }
    return {**document, "content": stored.text} if text else document
