"""Stored payloads: download with ranges, and parts as JSON."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query
from starlette.responses import Response, StreamingResponse

from noetl.core.model.reference import Reference
from noetl.data.files.formats import format_of
from noetl.data.payload_reader import Part, PartNotFound, StoredPayload, TooLarge, read_part
from noetl.errors import NotFound, RequestRefused
from noetl.server.http.dependencies import App, Viewer
from noetl.server.http.problems import problem
from noetl.server.http.response_models import json_response

router = APIRouter(tags=["results"])

MAX_PART = 8 * 2**20  # bytes of one part


@router.get(
    "/api/results/{ref}",
    summary="Download a stored payload",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/octet-stream": {}}}, 206: {"description": "The requested range"}},
)
async def result(
    state: App, _: Viewer, ref: str, part: Annotated[str | None, Header(alias="Range")] = None
) -> Response:
    """`ref` is the reference object as JSON in URL-safe base64; `Range: bytes=a-b` selects a range."""
    reference = decode(ref)
    total = reference.meta.bytes
    headers = {
        "Content-Disposition": f'attachment; filename="{reference.meta.sha256[:12]}"',
        "X-Content-Type-Options": "nosniff",
        "Accept-Ranges": "bytes",
        "ETag": f'"{reference.meta.sha256}"',
    }
    results = state.orchestrator.results
    span = _span(part, total)
    if part is not None and span is None:
        return problem(416, f"the payload has {total} bytes", headers={"Content-Range": f"bytes */{total}"})
    start, end = span or (0, total - 1)
    chunks = results.open(reference, offset=start, length=end - start + 1) if span else results.open(reference)
    first = await anext(chunks, b"")  # a missing or corrupt payload fails before the status is sent

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


@router.get("/api/results/{ref}/part", summary="Read a part of a stored payload as JSON")
async def part(
    state: App,
    _: Viewer,
    ref: str,
    select: Annotated[str | None, Query(max_length=1000, description="a dotted path")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
) -> Response:
    """Rows of tables, elements of lists or lines of text, as `{format, data}`, without loading the whole payload."""
    reference = decode(ref)
    payload = StoredPayload(reference, state.orchestrator.results.open)
    try:
        format = format_of(given=None, content_type=reference.meta.content_type)
        data = await read_part(payload, format, Part(select, limit, offset), most=MAX_PART, verify=False)
    except PartNotFound as missing:
        raise NotFound(str(missing.args[0])) from None
    except (TooLarge, ValueError) as wrong:
        raise RequestRefused(str(wrong)) from None
    return json_response({"format": format, "data": data})


def encode(reference: Reference) -> str:
    """A reference as text for a URL."""
    return base64.urlsafe_b64encode(msgspec.json.encode(reference)).decode().rstrip("=")


def decode(text: str) -> Reference:
    """The reference of a URL."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return msgspec.json.decode(data, type=Reference)
    except (binascii.Error, ValueError, msgspec.DecodeError) as wrong:
        raise NotFound(f"invalid reference to a stored payload: {wrong}") from None


def _span(header: str | None, total: int) -> tuple[int, int] | None:
    """First and last byte of a single range; None if it is invalid or not satisfiable."""
    unit, _, span = (header or "").partition("=")
    first, dash, last = span.partition("-")
    if unit.strip() != "bytes" or not dash or not (first + last).isdecimal() or not total:
        return None
    if not first:
        start, end = max(0, total - int(last)), total - 1
    else:
        start, end = int(first), min(int(last), total - 1) if last else total - 1
    return (start, end) if start <= end < total else None
