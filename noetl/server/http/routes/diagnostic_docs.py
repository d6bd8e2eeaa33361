"""Documentation pages of diagnostics, for clients without access to the online documentation."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from noetl.core.language.diagnostic_codes import CODES
from noetl.errors import NotFound
from noetl.runtime.manual import diagnostic_page
from noetl.server.http.dependencies import Viewer
from noetl.server.http.response_models import json_response

router = APIRouter(tags=["editing"])


@router.get("/api/diagnostics/{code}", summary="Explain a diagnostic, with a wrong and a right example")
async def explanation(_: Viewer, code: Annotated[str, Path(pattern="^[a-z0-9-]{1,100}$")]) -> Response:
    """`text` is Markdown; null if this installation does not contain the pages."""
    known = CODES.get(code)
    if known is None:
        raise NotFound(f"there is no diagnostic {code!r}")
    return json_response(
        {"code": code, "severity": known.severity, "title": known.title, "text": diagnostic_page(code)}
    )
