"""The web page: one document for every address of it, and the files it names.

The files are built from `ui/` and lie in the package (`noetl/ui`). Their names carry a hash of their
content, so a browser may keep them for ever; the document itself is asked for each time. Its policy lets
it run and load nothing but these files: no script stands in the document, and styles that the editor adds
at run time carry the nonce of this answer.
"""

from __future__ import annotations

import gzip
import secrets
from functools import lru_cache
from html import escape
from importlib.resources import files
from pathlib import PurePosixPath

from fastapi import APIRouter, Request
from msgspec import Struct
from starlette.responses import Response

from noetl.errors import NotFound

router = APIRouter(include_in_schema=False)

ROOMS = ("/executions", "/playbooks", "/operations")
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
FOR_EVER = "public, max-age=31536000, immutable"
HARDENED = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin"}


class Asset(Struct, frozen=True):
    """One built file, plain and compressed."""

    media_type: str
    plain: bytes
    compressed: bytes


async def page(request: Request) -> Response:
    """The document, the same for every address of the page."""
    nonce = secrets.token_urlsafe(16)
    prefix = request.scope.get("root_path", "").rstrip("/")
    text = _document().replace('<base href="/">', f'<base href="{escape(prefix)}/">', 1)
    text = text.replace('name="style-nonce" content=""', f'name="style-nonce" content="{nonce}"', 1)
    headers = {**HARDENED, "Cache-Control": "no-store", "Content-Security-Policy": policy(nonce)}
    return Response(text, media_type="text/html", headers=headers)


for _place in ("/", *ROOMS, *(f"{room}/{{rest:path}}" for room in ROOMS)):
    router.add_api_route(_place, page, methods=["GET", "HEAD"])


@router.get("/assets/{name}")
async def asset(request: Request, name: str) -> Response:
    """A built file."""
    found = _assets().get(name)
    if found is None:
        raise NotFound(f"there is no file {name!r}")
    headers = {**HARDENED, "Cache-Control": FOR_EVER, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(found.compressed, media_type=found.media_type, headers=headers)
    return Response(found.plain, media_type=found.media_type, headers=headers)


def policy(nonce: str) -> str:
    """What the document may load and run."""
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            f"style-src 'self' 'nonce-{nonce}'",
            "img-src 'self' data:",
            "font-src 'self'",
            "connect-src 'self'",
            "base-uri 'self'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )


@lru_cache(maxsize=1)
def _document() -> str:
    return (files("noetl") / "ui" / "index.html").read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _assets() -> dict[str, Asset]:
    """Every built file, read once."""
    found = {}
    for entry in (files("noetl") / "ui" / "assets").iterdir():
        media_type = TYPES.get(PurePosixPath(entry.name).suffix)
        if media_type is not None:
            plain = entry.read_bytes()
            found[entry.name] = Asset(media_type, plain, gzip.compress(plain, 9, mtime=0))
    return found
