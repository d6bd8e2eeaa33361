"""The web page: one HTML document for all of its paths, and its assets.

The assets are built from `ui/` into the package (`noetl/ui`). Their names contain a hash of their content, so browsers
cache them without limit; the document is not cached. Its content security policy allows only these files: the
document has no inline script, and styles that the editor adds at run time carry the nonce of the response.
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

SECTIONS = ("/executions", "/compare", "/inbox", "/playbooks", "/lineage", "/operations")
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
IMMUTABLE = "public, max-age=31536000, immutable"
SECURITY_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin"}


class Asset(Struct, frozen=True):
    """A built file, plain and compressed."""

    media_type: str
    plain: bytes
    compressed: bytes


async def page(request: Request) -> Response:
    """The HTML document, the same for every path."""
    nonce = secrets.token_urlsafe(16)
    prefix = request.scope.get("root_path", "").rstrip("/")
    text = _document().replace('<base href="/">', f'<base href="{escape(prefix)}/">', 1)
    text = text.replace('name="style-nonce" content=""', f'name="style-nonce" content="{nonce}"', 1)
    headers = {**SECURITY_HEADERS, "Cache-Control": "no-store", "Content-Security-Policy": policy(nonce)}
    return Response(text, media_type="text/html", headers=headers)


for _path in ("/", *SECTIONS, *(f"{section}/{{rest:path}}" for section in SECTIONS)):
    router.add_api_route(_path, page, methods=["GET", "HEAD"])


@router.get("/assets/{name}")
async def asset(request: Request, name: str) -> Response:
    """A built file."""
    found = _assets().get(name)
    if found is None:
        raise NotFound(f"there is no file {name!r}")
    headers = {**SECURITY_HEADERS, "Cache-Control": IMMUTABLE, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(found.compressed, media_type=found.media_type, headers=headers)
    return Response(found.plain, media_type=found.media_type, headers=headers)


def policy(nonce: str) -> str:
    """The content security policy of the document."""
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
    """All built files; read once."""
    found = {}
    for entry in (files("noetl") / "ui" / "assets").iterdir():
        media_type = TYPES.get(PurePosixPath(entry.name).suffix)
        if media_type is not None:
            plain = entry.read_bytes()
            found[entry.name] = Asset(media_type, plain, gzip.compress(plain, 9, mtime=0))
    return found
