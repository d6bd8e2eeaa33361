"""The pages that explain diagnostics, for whoever has no connection to the documentation.

They are written in `docs/reference/diagnostics/`; the wheel has them as `noetl/manual/`.
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
from noetl.server.http.access import Caller
from noetl.server.http.dependencies import requires_role
from noetl.server.http.response_models import answer

router = APIRouter(tags=["editing"])


@router.get("/api/diagnostics/{code}", summary="Why a diagnostic is told, with a wrong and a right example")
async def explanation(
    code: Annotated[str, InPath(pattern=r"^[a-z0-9-]{1,100}$")], _: Caller = requires_role("viewer")
) -> Response:
    """`text` is Markdown; null where this installation came without the pages."""
    known = CODES.get(code)
    if known is None:
        raise NotFound(f"there is no diagnostic {code!r}")
    return answer({"code": code, "severity": known.severity, "title": known.title, "text": _page(code)})


@lru_cache(maxsize=256)
def _page(code: str) -> str | None:
    for folder in (files("noetl") / "manual", Path(noetl.__file__).parents[1] / "docs" / "reference" / "diagnostics"):
        page = folder / f"{code}.md"
        if page.is_file():
            return page.read_text(encoding="utf-8")
    return None
