"""Documentation pages of diagnostics, for clients without access to the online documentation.

Their source is `docs/reference/diagnostics/`; the wheel contains them as `noetl/manual/`.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as InPath
from starlette.responses import Response

import noetl
from noetl.core.language.diagnostic_codes import CODES
from noetl.errors import NotFound
from noetl.server.http.dependencies import Viewer
from noetl.server.http.response_models import json_response

router = APIRouter(tags=["editing"])


@router.get("/api/diagnostics/{code}", summary="Explain a diagnostic, with a wrong and a right example")
async def explanation(_: Viewer, code: Annotated[str, InPath(pattern="^[a-z0-9-]{1,100}$")]) -> Response:
    """`text` is Markdown; null if this installation does not contain the pages."""
    known = CODES.get(code)
    if known is None:
        raise NotFound(f"there is no diagnostic {code!r}")
    return json_response({"code": code, "severity": known.severity, "title": known.title, "text": _page(code)})


@lru_cache(maxsize=256)
def _page(code: str) -> str | None:
    for folder in (files("noetl") / "manual", Path(noetl.__file__).parents[1] / "docs" / "reference" / "diagnostics"):
        page = folder / f"{code}.md"
        if page.is_file():
            return page.read_text(encoding="utf-8")
    return None
