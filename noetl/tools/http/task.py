"""One call of kind http: the author's parameters into a request, the answer into an outcome."""

from __future__ import annotations

import errno
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from email.utils import parsedate_to_datetime
from typing import Any

from msgspec import structs

from noetl.connections.http.client import MAX_REDIRECTS, HttpFailure, HttpResponse, Request, client, exchange, shown_url
from noetl.connections.oauth2 import tokens
from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.tool import ToolCall
from noetl.errors import StoreUnavailable
from noetl.observability import tracing
from noetl.tools.http import bodies
from noetl.tools.http.request_auth import Auth, authenticate

STREAM_ABOVE = 32 * 1024 * 1024
MOST_BYTES = 16 * 1024 * 1024 * 1024
MOST_ERROR_BYTES = 1024 * 1024
PROGRESS_BYTES = 4 * 1024 * 1024
REQUEST_IDS = frozenset(
    {"x-request-id", "request-id", "x-correlation-id", "x-amzn-requestid", "x-amz-request-id", "cf-ray"}
)
SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
BODIES = frozenset({"json", "form", "multipart", "body", "data", "payload", "body_base64", "body_file", "body_ref"})
TLS = frozenset({"verify", "ca", "cert", "key"})
NO_AUTH = Auth()
_NO_BODY: tuple[Any, Any, str | None] = {}, None, None


async def perform(call: ToolCall, given: Mapping[str, Any], nulls: Mapping[str, Any]) -> Outcome:
    """Send the request that the (named) parameters describe and read the answer."""
    started = time.perf_counter()
    about = dict(nulls)
    try:
        request, auth = await _request_of(call, given)
        async with exchange(request, call.host.allows_address) as answer:
            _describe(answer, about)
            outcome = await _outcome_of(call, answer)
        if answer.status == 401 and auth.grant is not None:
            tokens().forget(auth.grant)
    except HttpFailure as failure:
        outcome = error(failure.kind, failure.message, retryable=failure.retryable, details=failure.details)
    except bodies.BadBody as wrong:
        outcome = error("schema", str(wrong))
    about["elapsed_ms"] = round((time.perf_counter() - started) * 1000, 3)
    return structs.replace(outcome, helpers={"http": about})


# ── the request ─────────────────────────────────────────────────────────────────────────


async def _request_of(call: ToolCall, given: Mapping[str, Any]) -> tuple[Request, Auth]:
    url = given.get("url")
    if not isinstance(url, str) or not url.strip():
        raise HttpFailure("schema", f"http needs a `url`, and it is {url!r}")
    named = given.get("headers")
    headers = _headers(named) if named else {}
    written = {name.lower() for name in headers} if headers else frozenset()
    query, body, content_type = _NO_BODY if BODIES.isdisjoint(given) else _body_of(call, given, headers)
    method = str(given.get("method") or ("GET" if body is None else "POST")).upper()
    if content_type and "content-type" not in written:
        headers["Content-Type"] = content_type
    if method not in SAFE and "idempotency-key" not in written and call.spec.get("idempotency_key") is not False:
        headers["Idempotency-Key"] = call.idempotency_key
    trace = tracing.outgoing()
    if trace is not None and tracing.HEADER not in written:
        headers[tracing.HEADER] = trace
    auth = NO_AUTH
    if given.get("auth"):
        auth = await authenticate(given["auth"], call.host.credential, call.host.allows_address)
        headers |= {name: value for name, value in auth.headers.items() if name.lower() not in written}
    params = given.get("params")
    redirects = call.spec.get("redirects", given.get("follow_redirects"))
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
        proxy=_proxy(given["proxy"]) if given.get("proxy") else None,
        tls=True if TLS.isdisjoint(given) else _tls(call, given),
        private=frozenset(name.lower() for name in auth.headers) if auth.headers else frozenset(),
    )
    return request, auth


def _proxy(url: Any) -> str:
    if not str(url).lower().startswith(("http://", "https://")):
        raise HttpFailure(
            "client_error", f"`proxy` is the URL of an HTTP proxy (http://host:port), not {shown_url(url)!r}"
        )
    return str(url)


def _headers(named: Any) -> dict[str, str]:
    if not isinstance(named, Mapping):
        raise HttpFailure("schema", "`headers` is a mapping of names to values")
    return {str(name): bodies.text_of(value) for name, value in named.items() if value is not None}


def _tls(call: ToolCall, given: Mapping[str, Any]) -> Any:
    if given.get("key") and not given.get("cert"):
        raise HttpFailure("client_error", "`key` is the key of a client certificate, and there is no `cert`")
    files = {name: _file(call, given.get(name)) for name in ("ca", "cert", "key")}
    verify = str(given.get("verify", True)).lower() != "false"
    return client().tls(verify=verify, password=given.get("key_password"), **files)


def _file(call: ToolCall, place: Any) -> str | None:
    """A file beside the playbook, or PEM text as it is."""
    if not place:
        return None
    return str(place) if str(place).lstrip().startswith("-----BEGIN") else call.host.resolve_path(str(place))


def _body_of(call: ToolCall, given: Mapping[str, Any], headers: dict[str, str]) -> tuple[Any, Any, str | None]:
    """Query parameters of `data`, what makes the body, and its content type."""
    query: Any = {}
    spelled = {name: value for name, value in given.items() if name in BODIES and value is not None}
    if not spelled:
        return query, None, None
    data = spelled.get("data")
    if isinstance(data, Mapping) and data and set(data) <= {"query", "params", "body", "json", "form"}:
        query = data.get("query") or data.get("params") or {}
        del spelled["data"]
        spelled |= {name: data[name] for name in ("body", "json", "form") if data.get(name) is not None}
    if set(spelled) == {"multipart", "form"} and all(isinstance(each, Mapping) for each in spelled.values()):
        spelled = {"multipart": {**spelled["form"], **spelled["multipart"]}}  # fields of a form beside its files
    if len(spelled) > 1:
        raise bodies.BadBody(
            f"a request has one body, and this one has {' and '.join(f'`{name}`' for name in spelled)}"
        )
    if not spelled:
        return query, None, None
    [(name, value)] = spelled.items()
    header = next((text for key, text in headers.items() if key.lower() == "content-type"), None)
    declared, _ = bodies.split_type(header)
    if name in ("body", "data", "payload") and isinstance(value, Mapping | list):
        if declared == bodies.FORM:
            name = "form"
        elif declared == "multipart/form-data":
            name = "multipart"
        else:
            name = "json"
    if name == "json":
        return query, *bodies.json_body(value)
    if name == "form":
        return query, *bodies.form_body(value)
    if name == "multipart":
        for key in [key for key in headers if key.lower() == "content-type"]:
            del headers[key]  # the library writes it, with the boundary
        return query, bodies.multipart_body(value, call.host.resolve_path), None
    if name == "body_base64":
        return query, *bodies.base64_body(value)
    if name == "body_file":
        return query, *bodies.file_body(call.host.resolve_path(str(value)))
    if name == "body_ref":
        return query, *bodies.stored_body(value, call.host.open_result)
    return query, *bodies.raw_body(value)


# ── the answer ──────────────────────────────────────────────────────────────────────────


def _describe(answer: HttpResponse, about: dict[str, Any]) -> None:
    """`output.http`; header names in lower case, repeated ones joined."""
    headers: dict[str, str] = {}
    for name, value in answer.headers.items():
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    about["status"] = answer.status
    about["headers"] = headers
    about["url"] = answer.url
    if not REQUEST_IDS.isdisjoint(headers):
        about["request_id"] = next(headers[name] for name in headers if name in REQUEST_IDS)
    if "retry-after" in headers:
        about["retry_after"] = _retry_after(headers["retry-after"])


def _retry_after(text: str) -> float | None:
    """`Retry-After` in seconds from now."""
    if text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, round(parsedate_to_datetime(text).timestamp() - time.time(), 3))
    except (ValueError, TypeError):
        return None


async def _outcome_of(call: ToolCall, answer: HttpResponse) -> Outcome:
    header = answer.headers.get("Content-Type")
    spec, length = call.spec, answer.length
    good = 200 <= answer.status < 300 or answer.status in _statuses(spec.get("ok_status"))
    most, above = MOST_BYTES, STREAM_ABOVE
    if "max_response_bytes" in spec or "stream_above" in spec:
        most = _number(spec.get("max_response_bytes") or MOST_BYTES, "max_response_bytes")
        above = min(_number(spec.get("stream_above") or STREAM_ABOVE, "stream_above"), most)
    if good and (length or 0) > most:
        raise _too_long(answer, most)
    if good and ((length or 0) > above or ("stream" in spec and _is_true(spec["stream"]))):
        return await _stored(call, _limited(call, answer, answer.chunks(), most), header)
    if length is not None and length <= above:
        body = await answer.read()
    else:
        pieces: list[bytes] = []
        size = 0
        async with aclosing(answer.chunks()) as stream:
            async for chunk in stream:
                pieces.append(chunk)
                size += len(chunk)
                if size > above and good:
                    return await _stored(call, _limited(call, answer, _chained(pieces, stream), most), header)
                if size > MOST_ERROR_BYTES and not good:
                    break
        body = b"".join(pieces)
    if not good:
        body = body[:MOST_ERROR_BYTES]
    if len(body) >= PROGRESS_BYTES:
        call.host.progress(bytes=len(body))
    wish = str(call.spec.get("parse") or "auto")
    try:
        data, meta = bodies.parsed(body, header, wish)
    except ValueError as wrong:
        text = bodies.decoded(body, bodies.split_type(header)[1])
        data, meta = text, {"content_type": header, "bytes": len(body)}
        if good:
            message = f"HTTP {answer.status} of {_short(answer)} says it is {header or wish}, and it is not: {wrong}"
            return error("parse", message, data=data, meta=meta)
    return ok(data, meta=meta) if good else _refused(answer, data, meta)


def _statuses(given: Any) -> frozenset[int]:
    each = given if isinstance(given, list) else [given]
    return frozenset(_number(status, "ok_status") for status in each if status)


def _refused(answer: HttpResponse, data: Any, meta: dict[str, Any]) -> Outcome:
    status = answer.status
    if status in (401, 403, 407):
        kind = "auth"
    elif status in (404, 410):
        kind = "not_found"
    elif status == 429:
        kind = "rate_limit"
    else:
        kind = "server_error" if status >= 500 else "client_error"
    message = f"HTTP {status} {answer.reason}".rstrip() + f" from {_short(answer)}"
    again = True if status in (408, 425) else None
    return error(kind, message, data=data, meta=meta, retryable=again, details={"status": status})


def _short(answer: HttpResponse) -> str:
    return shown_url(answer.url)


async def _chained(first: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """What was read already, then what still comes; each piece is let go as it is taken."""
    first.reverse()
    while first:
        yield first.pop()
    async for chunk in rest:
        yield chunk


async def _limited(
    call: ToolCall, answer: HttpResponse, chunks: AsyncIterator[bytes], most: int
) -> AsyncGenerator[bytes, None]:
    """The body on its way to the store: counted, reported, and cut off when it is too long."""
    size = said = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > most:
            raise _too_long(answer, most)
        if size - said >= PROGRESS_BYTES:
            call.host.progress(bytes=size)
            said = size
        yield chunk
    call.host.progress(bytes=size)


async def _stored(call: ToolCall, chunks: AsyncGenerator[bytes, None], header: str | None) -> Outcome:
    """The body in the result store, and an outcome that leads there."""
    async with aclosing(chunks):
        try:
            reference = await call.host.put_result(chunks, content_type=header or "application/octet-stream")
        except StoreUnavailable as failure:
            kind = "storage.access" if failure.kind == "connection" else failure.kind
            raise HttpFailure(kind, f"the body cannot be stored: {failure}", retryable=True) from failure
        except OSError as failure:
            if isinstance(failure, TimeoutError):
                raise
            kind = "storage.quota" if failure.errno in (errno.ENOSPC, errno.EDQUOT) else "storage.access"
            raise HttpFailure(kind, f"the body cannot be stored: {failure.strerror or failure}") from failure
    meta = {"content_type": reference.meta.content_type, "bytes": reference.meta.bytes}
    return structs.replace(ok(None, meta=meta), ref=reference)


def _too_long(answer: HttpResponse, most: int) -> Exception:
    return HttpFailure("limit", f"the body of {_short(answer)} is longer than spec.max_response_bytes ({most:,})")


def _number(value: Any, name: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise HttpFailure("schema", f"spec.{name} of an http task is a whole number, not {value!r}")
    return number


def _is_true(value: Any) -> bool:
    return value is True or str(value).lower() == "true"
