"""Checks before every route: host, origin, body size, rate and caller.

`Host` and `Origin` are checked so that a page of another site cannot make a browser send requests to a server on the
visitor's machine (DNS rebinding, cross-site requests).
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections import OrderedDict
from collections.abc import Iterable
from functools import lru_cache
from http.cookies import CookieError, SimpleCookie

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from noetl.server.http.access import Tokens
from noetl.server.http.guarded_protocol import GuardedProtocol
from noetl.server.http.problems import problem, unauthorized

COOKIE = "noetl_token"
HOST_COOKIE = "__Host-noetl_token"  # over https: no other host and no other path can set it
LOOPBACK = ("127.0.0.1", "localhost", "::1")
WORKER_PATHS = "/api/work/"

Headers = dict[bytes, str]
_SINGLE = frozenset({b"host", b"origin", b"authorization", b"content-length", b"transfer-encoding"})
# The only value of each that is supported, with the response to others.
_SUPPORTED = {
    b"transfer-encoding": ("chunked", 400),
    b"content-encoding": ("identity", 415),
    b"expect": ("100-continue", 417),
}
_USED = _SINGLE | {b"cookie", b"sec-fetch-site", *_SUPPORTED}

# Requests to these paths without a caller are rejected before their body is read.
PROTECTED = ("/api/", "/metrics", "/openapi.json", "/docs", "/schema/")
SIGN_IN = "/api/session"
# Texts that are checked or translated take CPU time: callers that cannot register playbooks send short ones, not many.
TEXT_PATHS = frozenset(
    f"/api/{name}" for name in ("validate", "graph", "plan", "format", "migrate", "complete", "hover", "values", "form")
)
MAX_TEXT_BODY = 192 * 2**10
TEXT_BYTES_PER_SECOND = 64 * 2**10
TOO_MANY_OPEN = "too many requests of this token or address are open; close streams and retry later"
MAX_SIGN_IN_BODY = 8 * 2**10
MAX_ANONYMOUS_BYTES = 128 * 2**20  # of all bodies that are read for callers without a token (webhooks)


class SecurityMiddleware:
    """ASGI middleware that sets `scope["state"]["caller"]`; None for requests without a token."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: Tokens,
        hosts: Iterable[str] = (),
        max_body: int = 16 * 2**20,
        max_report: int = 256 * 2**20,
        per_second: float = 2_000.0,
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._hosts = frozenset(host.lower() for host in (*LOOPBACK, *hosts))
        self._max_body = max_body
        self._max_report = max_report
        self._rate = RateLimiter(per_second)
        self._failures = RateLimiter(10.0, burst=50.0)  # invalid tokens, per address
        self._sign_ins = RateLimiter(1 / 6, burst=10.0)  # failed attempts to sign in, per address
        self._texts = RateLimiter(TEXT_BYTES_PER_SECOND, burst=8 * TEXT_BYTES_PER_SECOND)
        self._anonymous = 0  # bytes of bodies that are being read for callers without a token
        self._max_open = GuardedProtocol.limit // 2
        self._open: dict[str, int] = {}  # requests without a response by token or address: also streams and long polls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request and pass it on or reject it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = route_path(scope)
        limit = self._max_report if path.startswith(WORKER_PATHS) else self._max_body
        is_sign_in = path == SIGN_IN and scope["method"] == "POST"
        limit = MAX_SIGN_IN_BODY if is_sign_in else limit
        headers, duplicate = _headers(scope)
        rejection = duplicate or self._check_host(headers) or self._check_origin(scope["method"], headers)
        send = _with_security_headers(send)
        if rejection is None and _length(headers) > limit:
            rejection = problem(413, f"the request body exceeds {limit} bytes")
        if rejection is None:
            rejection = self._check_caller(scope, path, headers)
        if rejection is None and is_sign_in:
            address = _address(scope)
            if not self._sign_ins.has(address):
                rejection = problem(
                    429, "too many failed attempts to sign in; retry later", headers={"Retry-After": "6"}
                )
            send = self._counting_failures(send, address)
        if rejection is not None:
            await rejection(scope, receive, send)
            return
        caller = scope["state"]["caller"]
        name = caller.name if caller else _address(scope)
        opened = self._open.get(name, 0) + 1
        if opened > self._max_open:
            await problem(429, TOO_MANY_OPEN, headers={"Retry-After": "1"})(scope, receive, send)
            return
        self._open[name] = opened
        try:
            if caller is None and scope["method"] == "POST":
                await self._limit_anonymous(limit, scope, receive, send, _length(headers))
            elif b"transfer-encoding" not in headers:
                await self._app(scope, receive, send)  # the server reads at most Content-Length bytes, without it none
            else:
                await self._limit_body(limit, scope, receive, send)
        finally:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]

    def _counting_failures(self, send: Send, address: str) -> Send:
        async def counting_send(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401:
                self._sign_ins.allow(address)
            await send(message)

        return counting_send

    async def _limit_anonymous(self, limit: int, scope: Scope, receive: Receive, send: Send, length: int) -> None:
        """Limit the memory that all callers without a token use together."""
        held = 0

        async def limited_receive() -> Message:
            nonlocal held
            message = await receive()
            count = len(message.get("body", b""))
            held += count
            self._anonymous += count
            if self._anonymous > MAX_ANONYMOUS_BYTES:
                raise HTTPException(503, "too many request bodies are being read; retry later")
            return message

        if self._anonymous + length > MAX_ANONYMOUS_BYTES:
            await problem(503, "too many request bodies are being read; retry later")(scope, receive, send)
            return
        try:
            await self._limit_body(limit, scope, limited_receive, send)
        finally:
            self._anonymous -= held

    async def _limit_body(self, limit: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the bytes while reading, because a chunked body has no declared length."""
        read = 0

        async def limited_receive() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                if read > limit:
                    raise HTTPException(413, f"the request body exceeds {limit} bytes")
            return message

        await self._app(scope, limited_receive, send)

    def _check_caller(self, scope: Scope, path: str, headers: Headers) -> ASGIApp | None:
        """Identify the caller and apply rate limits."""
        address = _address(scope)
        text = _token(headers, is_secure=scope.get("scheme") == "https")
        caller = self._tokens.caller(text) if text else None
        if text and caller is None and not self._failures.allow(address):
            return problem(429, "too many invalid tokens from this address; retry later", headers={"Retry-After": "1"})
        # The worker protocol has no rate limit: the server itself controls how much work there is.
        is_worker_call = caller is not None and caller.may("worker") and path.startswith(WORKER_PATHS)
        if not is_worker_call and not self._rate.allow(caller.name if caller else address):
            return problem(429, "rate limit exceeded; retry later", headers={"Retry-After": "1"})
        if caller is None and _is_protected(scope, path):
            return unauthorized(wrong_token=bool(text))
        if path in TEXT_PATHS and caller is not None and not caller.may("author"):
            length = _length(headers)
            if length > MAX_TEXT_BODY or b"content-length" not in headers:
                return problem(413, f"a text of more than {MAX_TEXT_BODY:,} bytes needs the role author")
            if not self._texts.allow(caller.name, length):
                return problem(429, "too many texts; retry later", headers={"Retry-After": "5"})
        state = scope.setdefault("state", {})
        state["caller"] = caller
        state["wrong_token"] = bool(text) and caller is None
        return None

    def _check_host(self, headers: Headers) -> ASGIApp | None:
        name = _host_name(headers.get(b"host", ""))
        if name in self._hosts:
            return None
        return problem(421, f"host {name!r} is not allowed; add it to the setting server.hosts")

    def _check_origin(self, method: str, headers: Headers) -> ASGIApp | None:
        """Only pages of this server may change something: another port of the same host is another origin."""
        site = headers.get(b"sec-fetch-site", "none")
        if method not in ("GET", "HEAD", "OPTIONS") and site not in ("none", "same-origin"):
            return problem(403, "requests from pages of other sites are not allowed", title="Origin not allowed")
        origin = headers.get(b"origin")
        if origin is None:
            return None
        scheme, host, port = _origin(origin)
        if scheme in ("http", "https") and host in self._hosts:
            netloc = headers.get(b"host", "")
            own_port = _port(netloc) or ("443" if scheme == "https" else "80")
            is_same = (host, port) == (_host_name(netloc), own_port)
            # Behind a proxy that changes Host, the page has a name of its own and the scheme's port.
            is_proxied = host != _host_name(netloc) and port == ("443" if scheme == "https" else "80")
            if is_same or is_proxied:
                return None
        return problem(403, f"requests from the origin {origin!r} are not allowed", title="Origin not allowed")


class RateLimiter:
    """Token buckets by name: requests per second with a burst; only the most recent names are stored."""

    def __init__(self, per_second: float, burst: float | None = None, names: int = 10_000) -> None:
        self._per_second = per_second
        self._burst = burst or 2 * per_second
        self._names = names
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def has(self, name: str) -> bool:
        """Whether the bucket of a name has a token."""
        left, then = self._buckets.get(name, (self._burst, 0.0))
        return left >= 1 or left + (time.monotonic() - then) * self._per_second >= 1

    def allow(self, name: str, cost: float = 1.0) -> bool:
        """Take tokens; False if the bucket has too few."""
        now = time.monotonic()
        left, then = self._buckets.pop(name, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._per_second)
        allowed = left >= cost
        self._buckets[name] = (left - cost if allowed else left, now)
        if len(self._buckets) > self._names:
            self._buckets.popitem(last=False)
        return allowed


def route_path(scope: Scope) -> str:
    """The path without the prefix of a reverse proxy."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "").rstrip("/")) or "/"


def _is_protected(scope: Scope, path: str) -> bool:
    if not path.startswith(PROTECTED):
        return False
    # Signing in, and requests to webhooks, which have their own signature, or the token of a subscription.
    method = scope["method"]
    if path.startswith("/api/webhooks/"):
        return method != "POST" and not (method == "GET" and b"hub.mode=" in scope["query_string"])
    return not (method == "POST" and path == "/api/session")


def _headers(scope: Scope) -> tuple[Headers, ASGIApp | None]:
    """The headers that are used here, and a rejection of repeated ones, which readers could interpret differently."""
    found: Headers = {}
    for key, value in scope["headers"]:
        name = key.lower()
        if name in _USED:
            if name in _SINGLE and name in found:
                return found, problem(400, f"the header {name.decode().title()} must not be repeated")
            found[name] = value.decode("latin-1")
            if name in _SUPPORTED:
                supported, status = _SUPPORTED[name]
                if found[name].strip().lower() != supported:
                    return found, problem(status, f"{name.decode().title()} other than {supported} is not supported")
    return found, None


def _length(headers: Headers) -> int:
    text = headers.get(b"content-length", "0")
    return int(text) if text.isdecimal() else 0


_NETLOC = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:@/\\?#\[\],]+))(?::[0-9]{1,5})?")


def _host_name(netloc: str) -> str:
    """The host of `host:port` or `[::1]:port`, in lower case; empty if invalid."""
    found = _NETLOC.fullmatch(netloc.strip().lower())
    return (found[1] or found[2]) if found else ""


def _port(netloc: str) -> str:
    """The port of `host:port`; empty if there is none."""
    found = re.search(r":([0-9]{1,5})$", netloc.strip())
    return found[1] if found else ""


def _origin(text: str) -> tuple[str, str, str]:
    """Scheme, host and port of an Origin; empty if invalid (with a path or a user)."""
    scheme, separator, netloc = text.strip().lower().partition("://")
    if not separator:
        return "", "", ""
    return scheme, _host_name(netloc), _port(netloc) or ("443" if scheme == "https" else "80")


_SECURITY_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


def _with_security_headers(send: Send) -> Send:
    """Responses are not stored by browsers and not interpreted as another type, unless the route says otherwise."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            known = {name.lower() for name, _ in headers}
            message = {**message, "headers": [*headers, *(each for each in _SECURITY_HEADERS if each[0] not in known)]}
        await send(message)

    return sending


def _address(scope: Scope) -> str:
    """The address of the client; of IPv6 the network, of which a client has all addresses."""
    address: str = scope["client"][0] if scope.get("client") else ""
    return _network(address) if ":" in address else address


@lru_cache(4096)
def _network(address: str) -> str:
    try:
        return str(ipaddress.IPv6Network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address


def _token(headers: Headers, *, is_secure: bool) -> str | None:
    scheme, _, text = headers.get(b"authorization", "").partition(" ")
    if scheme.lower() == "bearer" and text.strip():
        return text.strip()
    try:
        cookies = SimpleCookie(headers.get(b"cookie", ""))
    except CookieError:
        return None
    morsel = cookies.get(HOST_COOKIE) or (None if is_secure else cookies.get(COOKIE))
    return morsel.value if morsel else None
