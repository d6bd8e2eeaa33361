"""Requests to ClickHouse's HTTP interface, and its errors as error kinds."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from noetl.tool import BadAuth, ErrorInfo, Host, Timeout, error_info, server_fields, tls_context
from noetl_clickhouse.parameters import parameter

_KINDS = {
    60: "not_found", 81: "not_found", 516: "auth", 497: "auth", 192: "auth", 193: "auth", 194: "auth",
    159: "db.timeout", 160: "db.timeout", 209: "db.timeout", 210: "db.connection", 202: "rate_limit", 241: "limit",
    243: "storage.quota", 469: "db.constraint", 27: "parse", 117: "parse",
}  # fmt: skip
_RESERVED = ("query", "user", "password", "database", "default_format", "wait_end_of_query")  # of requests


class ServerError(Exception):
    """An answer of the server that is an error."""

    def __init__(self, status: int, code: int, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


class Client:
    """One server and user."""

    def __init__(self, session: Any, url: str, headers: dict[str, str], database: str) -> None:
        self._session, self._url, self._headers, self._database = session, url, headers, database

    @asynccontextmanager
    async def request(
        self, query: str, *, params: Any = None, settings: Any = None, body: Any = None
    ) -> AsyncIterator[Any]:
        """Send a statement; the response is the result in the format ArrowStream, if the statement has one."""
        sent: dict[str, str] = {"default_format": "ArrowStream", "wait_end_of_query": "1"}
        if self._database:
            sent["database"] = self._database
        sent |= _settings(settings or {})
        sent |= {f"param_{name}": parameter(value) for name, value in (params or {}).items()}
        if body is not None:
            sent["query"] = query
        data = query.encode() if body is None else body
        # Redirects are not followed: they would send statements and the password to another server.
        async with self._session.post(
            self._url, params=sent, data=data, headers=self._headers, allow_redirects=False
        ) as response:
            if response.status != 200:
                text = (await response.text(errors="replace")).strip()
                if not text or text.startswith("<"):  # of a proxy, or a page
                    text = f"the server answered {response.status} {response.reason or ''}".rstrip()
                found = re.search(r"Code: (\d+)", text)
                code = response.headers.get("X-ClickHouse-Exception-Code") or (found[1] if found else "0")
                raise ServerError(response.status, int(code), text)
            yield response

    async def execute(self, query: str, **others: Any) -> None:
        """Send a statement without a result."""
        async with self.request(query, **others) as response:
            await response.read()


@asynccontextmanager
async def connected(auth: Any, host: Host, timeout: Timeout) -> AsyncIterator[Client]:
    """A client for `auth`."""
    given = await server_fields(auth, host, schemes=("http", "https", "clickhouse"), prefixes=("clickhouse_", "db_"))
    if given.get("scheme") == "https":
        given.setdefault("tls", True)
    tls = tls_context(given)
    port = given.get("port") or (8443 if tls else 8123)
    server = str(given.get("host") or "127.0.0.1")
    url = f"{'https' if tls else 'http'}://{f'[{server}]' if ':' in server else server}:{port}/"
    headers = {}
    if given.get("user"):
        headers["X-ClickHouse-User"] = str(given["user"])
        headers["X-ClickHouse-Key"] = str(given.get("password") or "")
    limits = aiohttp.ClientTimeout(total=None, sock_connect=timeout.connect or 10)
    async with aiohttp.ClientSession(timeout=limits, connector=aiohttp.TCPConnector(ssl=tls or True)) as session:
        yield Client(session, url, headers, str(given.get("database") or ""))


def _settings(given: Mapping[str, Any]) -> dict[str, str]:
    for name in given:
        if name in _RESERVED or str(name).startswith("param_"):
            raise BadAuth(f"`settings`: {name} is no setting of ClickHouse; use `command`, `params` or `auth`")
    return {str(name): _setting(value) for name, value in given.items()}


def _setting(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def explain(failure: Exception) -> ErrorInfo | None:
    """The error for a failed request; None for other exceptions."""
    if isinstance(failure, ServerError):
        if failure.status == 414:
            text = "the values of `params` are too long for a request; insert them as rows of a transfer"
            return error_info("limit", f"clickhouse: {text}")
        kind = _KINDS.get(failure.code) or ("auth" if failure.status in (401, 403) else "db.syntax")
        return error_info(kind, f"clickhouse: {failure}", details={"code": failure.code})
    if isinstance(failure, aiohttp.ClientConnectorError):
        secure = isinstance(failure, aiohttp.ClientSSLError | aiohttp.ClientConnectorCertificateError)
        hint = "; check `tls`, `port`, `ca` and `verify` of the connection" if secure else ""
        reason = getattr(failure, "certificate_error", None) or getattr(failure, "os_error", failure)
        return error_info(
            "db.connection", f"clickhouse: cannot connect to {failure.host}:{failure.port}: {reason}{hint}"
        )
    if isinstance(failure, aiohttp.ClientError | OSError):
        return error_info("db.connection", f"clickhouse: {failure or type(failure).__name__}")
    return None
