"""The result browser: stored payloads, ranged, as attachments."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Request
from starlette.responses import Response, StreamingResponse

from noetl.api.access import Caller
from noetl.api.parts import needs, parts_of
from noetl.api.problems import problem
from noetl.errors import RequestRefused
from noetl.model.reference import Reference

router = APIRouter(tags=["results"])


@router.get(
    "/api/results/{ref}",
    summary="A stored payload",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/octet-stream": {}}}, 206: {"description": "a part of it"}},
)
async def result(
    request: Request,
    ref: str,
    part: Annotated[str | None, Header(alias="Range")] = None,
    _: Caller = needs("viewer"),
) -> Response:
    """`ref` is the reference object as JSON in URL-safe base64; `Range: bytes=a-b` takes a part."""
    reference = decode(ref)
    total = reference.meta.bytes
    headers = {
        "Content-Disposition": f'attachment; filename="{reference.meta.sha256[:12]}"',
        "X-Content-Type-Options": "nosniff",
        "Accept-Ranges": "bytes",
        "ETag": f'"{reference.meta.sha256}"',
    }
    results = parts_of(request).orchestrator.results
    span = _span(part, total)
    if part is not None and span is None:
        return problem(416, f"the payload has {total} bytes", headers={"Content-Range": f"bytes */{total}"})
    start, end = span or (0, total - 1)
    chunks = results.open(reference, offset=start, length=end - start + 1) if span else results.open(reference)
    first = await anext(chunks, b"")  # what is missing or damaged is said before a status is

    async def body() -> object:
        yield first
        async for chunk in chunks:
            yield chunk

    if span:
        headers["Content-Range"] = f"bytes {start}-{end}/{total}"
    return StreamingResponse(
        body(),  # type: ignore[arg-type]
        status_code=206 if span else 200,
        media_type=reference.meta.content_type,
        headers=headers,
    )


def encode(reference: Reference) -> str:
    """A reference as it stands in the URL."""
    return base64.urlsafe_b64encode(msgspec.json.encode(reference)).decode().rstrip("=")


def decode(text: str) -> Reference:
    """A reference out of the URL."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return msgspec.json.decode(data, type=Reference)
    except (binascii.Error, ValueError, msgspec.DecodeError) as wrong:
        raise RequestRefused(f"this is not a reference: {wrong}") from None


def _span(header: str | None, total: int) -> tuple[int, int] | None:
    """First and last byte of a single range; None when there is no such range."""
    unit, _, span = (header or "").partition("=")
    first, dash, last = span.partition("-")
    if unit.strip() != "bytes" or not dash or not (first + last).isdecimal() or not total:
        return None
    if not first:
        start, end = max(0, total - int(last)), total - 1
    else:
        start, end = int(first), min(int(last), total - 1) if last else total - 1
    return (start, end) if start <= end < total else None
