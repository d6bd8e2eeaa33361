"""Runs one call of kind `http`: builds the request from the fields, and the outcome from the response."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from msgspec import structs

from noetl.connections.http.client import MAX_REDIRECTS, HttpFailure, HttpResponse, Request, client, exchange, shown_url
from noetl.connections.oauth2 import tokens
from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.tool import ToolCall
from noetl.errors import StoreUnavailable
from noetl.observability import tracing
from noetl.runtime.disk_errors import disk_error, is_full
from noetl.tools.http import bodies
from noetl.tools.http.request_auth import Auth, authenticate
from noetl.tools.http.spec import NULLS

STREAM_ABOVE = 32 * 1024 * 1024
MAX_BYTES = 16 * 1024 * 1024 * 1024
MAX_ERROR_BYTES = 1024 * 1024
PROGRESS_BYTES = 4 * 1024 * 1024
REQUEST_IDS = frozenset(
    {"x-request-id", "request-id", "x-correlation-id", "x-amzn-requestid", "x-amz-request-id", "cf-ray"}
)
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
BODY_FIELDS = frozenset(
    {"json", "form", "multipart", "body", "data", "payload", "body_base64", "body_file", "body_ref"}
)
TLS_FIELDS = frozenset({"verify", "ca", "cert", "key"})
NO_AUTH = Auth()
_NO_BODY: tuple[Any, Any, str | None] = {}, None, None


Keep = Callable[[AsyncIterator[bytes], str | None], Awaitable[Outcome]]


async def run(call: ToolCall, fields: Mapping[str, Any], keep: Keep | None = None) -> Outcome:
    """Send the request that the (named) fields describe, and read the response.

    `keep` takes the body and the content type of a large response, which goes to the result store otherwise."""
    started = time.perf_counter()
    helper = dict(NULLS)
    try:
        request, auth = await _build_request(call, fields)
        async with exchange(request, call.host.allows_address) as answer:
            _describe(answer, helper)
            outcome = await _read_outcome(call, answer, keep or partial(_put_result, call))
        if answer.status == 401 and auth.grant is not None:
            tokens().forget(auth.grant)
    except HttpFailure as failure:
        outcome = error(failure.kind, failure.message, retryable=failure.retryable, details=failure.details)
    except bodies.BadBody as wrong:
        outcome = error("schema", str(wrong))
    helper["elapsed_ms"] = round((time.perf_counter() - started) * 1000, 3)
    return structs.replace(outcome, helpers={"http": helper})


# ── request ─────────────────────────────────────────────────────────────────────────────


async def _build_request(call: ToolCall, fields: Mapping[str, Any]) -> tuple[Request, Auth]:
    url = fields.get("url")
    if not isinstance(url, str) or not url.strip():
        raise HttpFailure("schema", f"http requires a `url`, not {url!r}")
    given_headers = fields.get("headers")
    headers = _headers(given_headers) if given_headers else {}
    explicit = {name.lower() for name in headers} if headers else frozenset()
    query, body, content_type = _NO_BODY if BODY_FIELDS.isdisjoint(fields) else _build_body(call, fields, headers)
    method = str(fields.get("method") or ("GET" if body is None else "POST")).upper()
    if content_type and "content-type" not in explicit:
        headers["Content-Type"] = content_type
    if (
        method not in SAFE_METHODS
        and "idempotency-key" not in explicit
        and call.spec.get("idempotency_key") is not False
    ):
        headers["Idempotency-Key"] = call.idempotency_key
    trace = tracing.current_traceparent()
    if trace is not None and tracing.HEADER not in explicit:
        headers[tracing.HEADER] = trace
    auth = NO_AUTH
    if fields.get("auth"):
        auth = await authenticate(fields["auth"], call.host.credential, call.host.allows_address)
        headers |= {name: value for name, value in auth.headers.items() if name.lower() not in explicit}
    params = fields.get("params")
    redirects = call.spec.get("redirects", fields.get("follow_redirects"))
    request = Request(
        method=method,
        url=url,
        headers=headers,
        params=(*bodies.pairs(params or {}), *bodies.pairs(query), *auth.params)
        if params or query or auth.params
        else (),
        body=body,
        timeout=call.timeout,
        redirects=MAX_REDIRECTS if redirects is None or redirects is True else _number(redirects or 0, "redirects"),
        proxy=_proxy(fields["proxy"]) if fields.get("proxy") else None,
        tls=True if TLS_FIELDS.isdisjoint(fields) else _tls(call, fields),
        private=frozenset(name.lower() for name in auth.headers) if auth.headers else frozenset(),
        masked=call.host.mask,
    )
    return request, auth


def _proxy(url: Any) -> str:
    if not str(url).lower().startswith(("http://", "https://")):
        raise HttpFailure(
            "client_error", f"`proxy` must be the URL of an HTTP proxy (http://host:port), not {shown_url(url)!r}"
        )
    return str(url)


def _headers(given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise HttpFailure("schema", "`headers` must be a mapping of names to values")
    return {str(name): bodies.text_of(value) for name, value in given.items() if value is not None}


def _tls(call: ToolCall, fields: Mapping[str, Any]) -> Any:
    if fields.get("key") and not fields.get("cert"):
        raise HttpFailure("client_error", "`key` is the key of a client certificate and requires `cert`")
    files = {name: _pem(call, fields.get(name)) for name in ("ca", "cert", "key")}
    verify = str(fields.get("verify", True)).lower() != "false"
    return client().tls(verify=verify, password=fields.get("key_password"), **files)


def _pem(call: ToolCall, value: Any) -> str | None:
    """PEM text, or the path of a file relative to the playbook."""
    if not value:
        return None
    return str(value) if str(value).lstrip().startswith("-----BEGIN") else call.host.resolve_path(str(value))


def _build_body(call: ToolCall, fields: Mapping[str, Any], headers: dict[str, str]) -> tuple[Any, Any, str | None]:
    """The query parameters in `data`, a function that returns the body, and its content type."""
    query, found = _body_fields(fields)
    if not found:
        return query, None, None
    if len(found) > 1:
        raise bodies.BadBody(f"a request can have one body; found {' and '.join(f'`{name}`' for name in found)}")
    [(name, value)] = found.items()
    if name in ("body", "data", "payload") and isinstance(value, Mapping | list):
        declared = next((text for key, text in headers.items() if key.lower() == "content-type"), None)
        name = _STRUCTURED_BODIES.get(bodies.split_type(declared)[0], "json")
    if name == "multipart":
        for key in [key for key in headers if key.lower() == "content-type"]:
            del headers[key]  # the library sets it, with the boundary
        return query, bodies.multipart_body(value, call.host.resolve_path), None
    if name == "body_file":
        return query, *bodies.file_body(call.host.resolve_path(str(value)))
    if name == "body_ref":
        return query, *bodies.stored_body(value, call.host.open_result)
    return query, *_ENCODERS.get(name, bodies.raw_body)(value)


_STRUCTURED_BODIES = {bodies.FORM: "form", "multipart/form-data": "multipart"}  # by content type; default: json
_ENCODERS = {"json": bodies.json_body, "form": bodies.form_body, "body_base64": bodies.base64_body}


def _body_fields(fields: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The query parameters in `data`, and the fields that contain a body."""
    query: Any = {}
    found = {name: value for name, value in fields.items() if name in BODY_FIELDS and value is not None}
    data = found.get("data")
    if isinstance(data, Mapping) and data and set(data) <= {"query", "params", "body", "json", "form"}:
        query = data.get("query") or data.get("params") or {}
        del found["data"]
        found |= {name: data[name] for name in ("body", "json", "form") if data.get(name) is not None}
    if set(found) == {"multipart", "form"} and all(isinstance(each, Mapping) for each in found.values()):
        found = {"multipart": {**found["form"], **found["multipart"]}}  # form fields next to files
    return query, found


# ── response ────────────────────────────────────────────────────────────────────────────


def _describe(answer: HttpResponse, helper: dict[str, Any]) -> None:
    """Fill `output.http`; header names are in lower case, values of repeated headers are joined."""
    headers: dict[str, str] = {}
    for name, value in answer.headers.items():
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    helper["status"] = answer.status
    helper["headers"] = headers
    helper["url"] = answer.url
    if not REQUEST_IDS.isdisjoint(headers):
        helper["request_id"] = next(headers[name] for name in headers if name in REQUEST_IDS)
    if "retry-after" in headers:
        helper["retry_after"] = _retry_after(headers["retry-after"])


def _retry_after(text: str) -> float | None:
    """`Retry-After` in seconds from now."""
    if text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, round(parsedate_to_datetime(text).timestamp() - time.time(), 3))
    except (ValueError, TypeError):
        return None


async def _read_outcome(call: ToolCall, answer: HttpResponse, keep: Keep) -> Outcome:
    header = answer.headers.get("Content-Type")
    spec, length = call.spec, answer.length
    is_ok = 200 <= answer.status < 300 or answer.status in _statuses(spec.get("ok_status"))
    max_bytes, stream_above = MAX_BYTES, STREAM_ABOVE
    if "max_response_bytes" in spec or "stream_above" in spec:
        max_bytes = _number(spec.get("max_response_bytes") or MAX_BYTES, "max_response_bytes")
        stream_above = min(_number(spec.get("stream_above") or STREAM_ABOVE, "stream_above"), max_bytes)
    if is_ok and (length or 0) > max_bytes:
        raise _too_large(answer, max_bytes)
    if is_ok and ((length or 0) > stream_above or ("stream" in spec and _is_true(spec["stream"]))):
        return await _store(keep, _limit(call, answer, answer.chunks(), max_bytes), header)
    if length is not None and length <= stream_above:
        body = await answer.read()
    else:
        chunks: list[bytes] = []
        size = 0
        async with aclosing(answer.chunks()) as stream:
            async for chunk in stream:
                chunks.append(chunk)
                size += len(chunk)
                if size > stream_above and is_ok:
                    return await _store(keep, _limit(call, answer, _chain(chunks, stream), max_bytes), header)
                if size > MAX_ERROR_BYTES and not is_ok:
                    break
        body = b"".join(chunks)
    if not is_ok:
        body = body[:MAX_ERROR_BYTES]
    if len(body) >= PROGRESS_BYTES:
        call.host.progress(bytes=len(body))
    return _body_outcome(answer, body, header, str(spec.get("parse") or "auto"), is_ok=is_ok)


def _body_outcome(answer: HttpResponse, body: bytes, header: str | None, mode: str, *, is_ok: bool) -> Outcome:
    try:
        data, meta = bodies.parse(body, header, mode)
    except ValueError as wrong:
        data = bodies.decode_text(body, bodies.split_type(header)[1])
        meta = {"content_type": header, "bytes": len(body)}
        if is_ok:
            return error("parse", invalid_body(answer.status, answer.url, header or mode, wrong), data=data, meta=meta)
    return ok(data, meta=meta) if is_ok else _status_failure(answer, data, meta)


def invalid_body(status: int, url: str, kind: str, wrong: ValueError) -> str:
    """The message for a body that cannot be decoded."""
    return f"HTTP {status} from {shown_url(url)}: the body is not valid {kind}: {wrong}"


def is_utf8_json(header: str | None, mode: str) -> bool:
    """Whether a body of this content type is decoded as JSON in UTF-8."""
    media, charset = bodies.split_type(header)
    is_json = mode == "json" or (mode == "auto" and (bodies.is_json(media) or not header))
    return is_json and (charset or "utf-8").lower() in ("utf-8", "utf8", "us-ascii")


def decoded(body: bytes, header: str | None, mode: str) -> Any:
    """The data of a body; ValueError if it does not match its content type."""
    return bodies.parse(body, header, mode)[0]


def _statuses(given: Any) -> frozenset[int]:
    each = given if isinstance(given, list) else [given]
    return frozenset(_number(status, "ok_status") for status in each if status)


def _status_failure(answer: HttpResponse, data: Any, meta: dict[str, Any]) -> Outcome:
    status = answer.status
    if status in (401, 403, 407):
        kind = "auth"
    elif status in (404, 410):
        kind = "not_found"
    elif status == 429:
        kind = "rate_limit"
    else:
        kind = "server_error" if status >= 500 else "client_error"
    message = f"HTTP {status} {answer.reason}".rstrip() + f" from {_short_url(answer)}"
    retryable = True if status in (408, 425) else None
    return error(kind, message, data=data, meta=meta, retryable=retryable, details={"status": status})


def _short_url(answer: HttpResponse) -> str:
    return shown_url(answer.url)


async def _chain(first: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The chunks that were read already, then the remaining ones; releases each chunk as it is yielded."""
    first.reverse()
    while first:
        yield first.pop()
    async for chunk in rest:
        yield chunk


async def _limit(
    call: ToolCall, answer: HttpResponse, chunks: AsyncIterator[bytes], max_bytes: int
) -> AsyncGenerator[bytes, None]:
    """The chunks of a body; reports progress, and fails if the body is too large."""
    size = reported = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(answer, max_bytes)
        if size - reported >= PROGRESS_BYTES:
            call.host.progress(bytes=size)
            reported = size
        yield chunk
    call.host.progress(bytes=size)


async def _store(keep: Keep, chunks: AsyncGenerator[bytes, None], header: str | None) -> Outcome:
    """Stream the body to where it is kept."""
    async with aclosing(chunks):
        try:
            return await keep(chunks, header)
        except StoreUnavailable as failure:
            kind = "storage.access" if failure.kind == "connection" else failure.kind
            raise HttpFailure(kind, f"cannot store the body: {failure}", retryable=True) from failure
        except OSError as failure:
            if isinstance(failure, TimeoutError):
                raise
            kind = "storage.quota" if is_full(failure) else "storage.access"
            what = disk_error(failure) or failure.strerror or failure
            raise HttpFailure(kind, f"cannot store the body: {what}") from failure


async def _put_result(call: ToolCall, chunks: AsyncIterator[bytes], header: str | None) -> Outcome:
    """Stream the body to the result store; the outcome has its reference."""
    reference = await call.host.put_result(chunks, content_type=header or "application/octet-stream")
    meta = {"content_type": reference.meta.content_type, "bytes": reference.meta.bytes}
    return structs.replace(ok(None, meta=meta), ref=reference)


def _too_large(answer: HttpResponse, max_bytes: int) -> Exception:
    return HttpFailure(
        "limit", f"the body of {_short_url(answer)} is larger than spec.max_response_bytes ({max_bytes:,})"
    )


def _number(value: Any, name: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise HttpFailure("schema", f"spec.{name} of an http task must be a non-negative integer, not {value!r}")
    return number


def _is_true(value: Any) -> bool:
    return value is True or str(value).lower() == "true"
