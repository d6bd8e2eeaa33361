"""One HTTP client per event loop: pooled connections, an address check, redirects, typed failures.

Address check. The network policy is applied where the socket is created, to the address that is connected to. So
DNS rebinding, redirects and unusual spellings of an address cannot bypass it. With a proxy the proxy
connects; then the host name is resolved and checked before the request, as far as that is possible.

Redirects are followed here and not by aiohttp, so that credentials in any header (not only `Authorization`)
are sent to their own origin only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import aiohttp
from aiohttp import http_exceptions
from msgspec import Struct, field
from yarl import URL

from noetl import __version__
from noetl.connections.http.raw_requests import RawRequestSender, RawResponse
from noetl.core.model.tool import Timeout
from noetl.errors import NoetlError
from noetl.runtime.network_policy import canonical
from noetl.runtime.resources import per_loop

CONNECT_S = 10.0
READ_S = 60.0
MAX_REDIRECTS = 10
MAX_CONNECTIONS = 512
_HEADER_LIMITS: dict[str, Any] = {"max_line_size": 64 * 1024, "max_field_size": 64 * 1024, "max_headers": 1000}

Allows = Callable[[str], bool]
Response = aiohttp.ClientResponse | RawResponse
# Headers that are not sent to another origin; an idempotency key is not a credential.
SENSITIVE = re.compile(r"auth|token|cookie|secret|session|signature|credential|(?<!idempotency-)key", re.IGNORECASE)


class HttpFailure(NoetlError):
    """A request without a usable response: an error kind, a message, and whether a retry may help."""

    def __init__(self, kind: str, message: str, *, retryable: bool | None = None, **details: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retryable = retryable
        self.details = details


class Request(Struct, frozen=True):
    """One request. `body` creates the data for every hop; `private` names headers for one origin only, and so are those
    whose value has a secret (`masked` changes it)."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Sequence[tuple[str, str]] = ()
    body: Callable[[], Any] | None = None
    timeout: Timeout = Timeout()
    redirects: int = MAX_REDIRECTS
    proxy: str | None = None
    tls: ssl.SSLContext | bool = True
    private: frozenset[str] = frozenset()
    masked: Callable[[str], str] | None = None


class _AddressCheck:
    """The network policy of one call, and the addresses that it has denied."""

    __slots__ = ("allows", "denied")

    def __init__(self, allows: Allows | None) -> None:
        self.allows = allows
        self.denied: list[str] = []

    def verify(self, address: str) -> None:
        if self.allows is None:
            return
        address = canonical(address)
        if not self.allows(address):
            self.denied.append(address)
            raise PermissionError(f"the address {address} is not allowed")


@lru_cache(256)
def _socket_limits(connect: float, read: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=read)


_current_check: ContextVar[_AddressCheck | None] = ContextVar("noetl_http_address_check", default=None)


def _guarded_socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, _, place = address
    check = _current_check.get()
    if check is not None:
        check.verify(place[0])
    return socket.socket(family=family, type=kind, proto=protocol)


class _GuardedConnector(aiohttp.TCPConnector):
    """Checks the address of a reused connection by the policy of this call too."""

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
        connection = await super().connect(req, traces, timeout)
        check = _current_check.get()
        transport = connection.transport
        peer = transport.get_extra_info("peername") if transport is not None else None
        if check is not None and peer:
            try:
                check.verify(peer[0])
            except PermissionError:
                connection.close()
                raise
        return connection


class HttpClient:
    """The HTTP client of one event loop: session, fast path, TLS contexts."""

    def __init__(self) -> None:
        connector = _GuardedConnector(
            limit=MAX_CONNECTIONS, keepalive_timeout=30, socket_factory=_guarded_socket, ttl_dns_cache=10
        )
        agent = f"noetl/{__version__}"
        self.session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),  # no call sees another call's cookies
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"User-Agent": agent},
            **_HEADER_LIMITS,
        )
        self.raw_requests = RawRequestSender(connector, agent, **_HEADER_LIMITS)
        self._contexts: dict[Any, ssl.SSLContext] = {}

    async def close(self) -> None:
        """Close all connections."""
        await self.session.close()

    def tls(
        self,
        *,
        verify: bool = True,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        password: str | None = None,
    ) -> ssl.SSLContext | bool:
        """Return the TLS context for these options; `ca`, `cert` and `key` are files or PEM text."""
        if verify and not (ca or cert):
            return True
        named = (verify, password, *((text, _changed(text)) for text in (ca, cert, key)))
        context = self._contexts.get(named)
        if context is None:
            context = self._contexts[named] = _tls_context(verify, ca, cert, key, password)
        return context


def client() -> HttpClient:
    """Return the client of the running loop."""
    return per_loop(HttpClient, HttpClient)


class HttpResponse:
    """A response whose body can be read while its exchange lasts."""

    def __init__(self, response: Response, request: Request, check: _AddressCheck) -> None:
        self.status = response.status
        self.reason = response.reason or ""
        self.headers = response.headers
        self.url = str(response.url.with_user(None) if response.url.raw_user else response.url)
        self._response = response
        self._request = request
        self._check = check

    @property
    def length(self) -> int | None:
        """The length of the body by its header; None if it is compressed or unknown."""
        return None if "Content-Encoding" in self.headers else self._response.content_length

    async def read(self) -> bytes:
        """Read the whole body."""
        try:
            return await self._response.read()
        except _FAILURES as failure:
            raise _failure_of(failure, self._request, self._check) from failure

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the decompressed body as it arrives, about 100 KB at a time."""
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except _FAILURES as failure:
            raise _failure_of(failure, self._request, self._check) from failure


_FAILURES = (aiohttp.ClientError, OSError, ValueError, http_exceptions.HttpProcessingError)


class exchange:  # noqa: N801 - read as a verb: `async with exchange(request) as answer`
    """Send a request, follow redirects, and provide the last response while its body can be read.

    Every failure of the exchange is raised as HttpFailure."""

    __slots__ = ("_check", "_request", "_response", "_timer", "_token")

    def __init__(self, request: Request, allows: Allows | None = None) -> None:
        self._request = request
        self._check = _AddressCheck(allows)
        self._response: Response | None = None
        total = request.timeout.total
        self._timer = None if total is None else asyncio.timeout(total)

    async def __aenter__(self) -> HttpResponse:
        self._token = _current_check.set(self._check)
        if self._timer is not None:
            await self._timer.__aenter__()
        try:
            self._response = await _send_with_redirects(self._request, self._check)
        except BaseException as failure:
            try:
                await self._leave(type(failure), failure, failure.__traceback__)
            except TimeoutError as late:
                raise _failure_of(late, self._request, self._check) from late
            if isinstance(failure, _FAILURES):
                raise _failure_of(failure, self._request, self._check) from failure
            raise
        return HttpResponse(self._response, self._request, self._check)

    async def __aexit__(self, *failure: Any) -> None:
        try:
            await self._leave(*failure)
        except TimeoutError as late:
            raise _failure_of(late, self._request, self._check) from late

    async def _leave(self, *failure: Any) -> None:
        with contextlib.suppress(ValueError):  # a generator that is closed by another task has another context
            _current_check.reset(self._token)
        response = self._response
        if response is not None:
            if response.content.at_eof():
                response.release()
            else:
                response.close()
        if self._timer is not None:
            await self._timer.__aexit__(*failure)


async def _send_with_redirects(request: Request, check: _AddressCheck) -> Response:
    """Send a request and follow redirects; return the last response."""
    http = client()
    url = checked_url(request.url)
    if request.params:
        url = url.extend_query(request.params)
    method, headers, body = request.method.upper(), dict(request.headers), request.body
    jar: aiohttp.CookieJar | None = None
    timeout = _socket_limits(request.timeout.connect or CONNECT_S, request.timeout.read or READ_S)
    for hop in range(request.redirects + 1):
        if request.proxy:
            await _check_behind_proxy(url, check)
        data = body() if body else None
        response: Response | None = None
        if jar is None and not request.proxy:
            response = await http.raw_requests.send(method, url, headers, data, request.tls, timeout)
        if response is None:
            response = await http.session.request(
                method,
                url,
                headers=headers,
                data=data,
                cookies=jar.filter_cookies(url) if jar is not None else None,
                allow_redirects=False,
                proxy=request.proxy,
                ssl=request.tls,
                timeout=timeout,
            )
        place = response.headers.get("Location")
        if response.status not in (301, 302, 303, 307, 308) or not place or request.redirects == 0:
            return response
        if hop == request.redirects:
            response.close()
            raise HttpFailure("client_error", f"more than {request.redirects} redirects, the last one to {place}")
        cookies = response.headers.getall("Set-Cookie", [])
        if cookies:
            jar = jar or aiohttp.CookieJar(unsafe=True)
            jar.update_cookies_from_headers(cookies, response.url)
        await _drain(response)
        target = checked_url(str(url.join(URL(place))))
        if target.origin() != url.origin():
            headers = {
                name: value
                for name, value in headers.items()
                if not SENSITIVE.search(name)
                and name.lower() not in request.private
                and (request.masked is None or request.masked(value) == value)
            }
        if (response.status == 303 and method != "HEAD") or (response.status in (301, 302) and method == "POST"):
            method, body = "GET", None
            headers = {name: value for name, value in headers.items() if not name.lower().startswith("content-")}
        url = target
    raise AssertionError("unreachable")


async def _drain(response: Response) -> None:
    """Read the rest of a redirect's body if it is short and release the connection; else close it."""
    if (response.content_length or 0) <= 65536 and not response.headers.get("Transfer-Encoding"):
        await response.read()
        response.release()
    else:
        response.close()


@lru_cache(256)
def checked_url(text: str) -> URL:
    """Return an absolute http(s) URL; raise HttpFailure if the text is not one."""
    try:
        url = URL(text.strip())
        has_port = url.explicit_port is None or 0 < url.explicit_port < 65536
    except (ValueError, TypeError) as wrong:
        raise HttpFailure("client_error", f"{text!r} is not a URL: {wrong}") from wrong
    if url.scheme not in ("http", "https"):
        reason = f'unsupported scheme "{url.scheme}"' if url.scheme else "it has no scheme"
        raise HttpFailure("client_error", f"invalid URL {text!r}: {reason}; use http://... or https://...")
    if not url.host or not has_port:
        raise HttpFailure("client_error", f"invalid URL {text!r}: it has no host")
    return url


async def _check_behind_proxy(url: URL, check: _AddressCheck) -> None:
    if check.allows is None or url.host is None:
        return
    try:
        found = await asyncio.get_running_loop().getaddrinfo(url.host, url.port or 0, type=socket.SOCK_STREAM)
    except OSError:
        return  # a name that only the proxy can resolve
    for *_, place in found:
        check.verify(str(place[0]))


# ── failures ────────────────────────────────────────────────────────────────────────────


def _failure_of(failure: Exception, request: Request, check: _AddressCheck) -> HttpFailure:
    """Convert an exception to an HttpFailure."""
    place = shown_url(request.url)
    if isinstance(failure, HttpFailure):
        return failure
    if check.denied and isinstance(failure, OSError):
        return HttpFailure(
            "client_error",
            f"{place}: the network policy of this installation does not allow the address "
            f"{', '.join(sorted(set(check.denied)))}; the setting NOETL_PRIVATE_NETWORKS allows private networks",
            retryable=False,
            denied=sorted(set(check.denied)),
        )
    if isinstance(failure, TimeoutError):
        return HttpFailure("timeout", f"{_stage(failure)} {place} timed out after {_allowed_time(failure, request)}")
    if isinstance(failure, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError | ssl.SSLError):
        why = getattr(failure, "certificate_error", None) or getattr(failure, "os_error", None) or failure
        return HttpFailure("connection", f"TLS connection to {place} failed: {why}", retryable=False)
    if isinstance(failure, aiohttp.ClientConnectorDNSError):
        return HttpFailure("connection", f"cannot resolve the host of {place}: {failure.os_error.strerror or failure}")
    if isinstance(failure, aiohttp.ClientConnectorError):
        through = f" through the proxy {shown_url(request.proxy)}" if request.proxy else ""
        return HttpFailure("connection", f"cannot connect to {place}{through}: {_reason(failure.os_error)}")
    if isinstance(failure, aiohttp.ServerDisconnectedError):
        return HttpFailure("connection", f"{place} closed the connection without a response")
    if isinstance(failure, aiohttp.ClientPayloadError):
        return HttpFailure("connection", f"the response body of {place} is incomplete or corrupt")
    if isinstance(failure, aiohttp.ClientHttpProxyError):
        return HttpFailure("connection", f"the proxy refused {place}: {failure.status} {failure.message}")
    if isinstance(failure, aiohttp.ClientResponseError | http_exceptions.HttpProcessingError):
        reason = str(failure.message).partition("\n")[0]
        if "more than" in reason or "too long" in reason.lower() or "too many" in reason.lower():
            return HttpFailure("limit", f"the response headers of {place} are too large: {reason}", retryable=False)
        return HttpFailure("parse", f"the response of {place} is not valid HTTP: {reason}")
    if isinstance(failure, aiohttp.InvalidURL):
        return HttpFailure("client_error", f"invalid URL {place}: {failure.description or 'it is malformed'}")
    if isinstance(failure, aiohttp.ClientError | OSError):
        return HttpFailure("connection", f"the connection to {place} failed: {failure}")
    return HttpFailure("client_error", f"the request to {place} cannot be sent: {failure}")


def _reason(failure: OSError) -> str:
    """`connection refused` and the like; asyncio's own messages name the system call."""
    number = failure.errno or next(iter(re.findall(r"\[Errno (\d+)\]", str(failure))), None)
    return os.strerror(int(number)).lower() if number else failure.strerror or str(failure)


def _stage(failure: Exception) -> str:
    return "connecting to" if isinstance(failure, aiohttp.ConnectionTimeoutError) else "the response of"


def _allowed_time(failure: Exception, request: Request) -> str:
    limits = request.timeout
    if isinstance(failure, aiohttp.ConnectionTimeoutError):
        return f"{limits.connect or CONNECT_S:g} s (timeout.connect)"
    if isinstance(failure, aiohttp.ServerTimeoutError) or limits.total is None:
        return f"{limits.read or READ_S:g} s without data (timeout.read)"
    return f"{limits.total:g} s (timeout.total)"


def shown_url(text: str) -> str:
    """A URL for messages: without user, password, query and fragment."""
    with contextlib.suppress(ValueError, TypeError):
        url = URL(text)
        if url.host:
            return str(url.with_user(None).with_query(None).with_fragment(None))
    return repr(text)


# ── TLS ─────────────────────────────────────────────────────────────────────────────────


def _changed(place: str | None) -> float:
    """The modification time of a file; 0 for PEM text, -1 if there is no such file."""
    if not place or place.lstrip().startswith("-----BEGIN"):
        return 0.0
    with contextlib.suppress(OSError):
        return os.stat(place).st_mtime
    return -1.0


def _tls_context(
    verify: bool, ca: str | None, cert: str | None, key: str | None, password: str | None
) -> ssl.SSLContext:
    is_text = bool(ca) and str(ca).lstrip().startswith("-----BEGIN")
    try:
        context = ssl.create_default_context(cafile=None if is_text else ca, cadata=ca if is_text else None)
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if cert:
            with _as_file(cert) as cert_file, _as_file(key) as key_file:
                # A callable, so that OpenSSL never prompts on the terminal.
                context.load_cert_chain(cert_file or cert, key_file, password=lambda: password or "")
    except (OSError, ssl.SSLError) as wrong:
        missing = [place for place in (ca, cert, key) if place and _changed(place) < 0]
        reason = f"no such file: {', '.join(missing)}" if missing else wrong.strerror or str(wrong)
        raise HttpFailure("client_error", f"invalid TLS options: {reason}") from wrong
    return context


@contextlib.contextmanager
def _as_file(place: str | None) -> Any:
    """Yield the path of a file; PEM text becomes a temporary file that only this process can read."""
    if not place or not place.lstrip().startswith("-----BEGIN"):
        yield place or None
        return
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("noetl-pem")
        try:
            os.write(fd, place.encode())
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(place)
        file.flush()
        yield file.name
