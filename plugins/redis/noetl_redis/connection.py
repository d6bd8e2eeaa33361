"""Redis clients: one per server and credential of an event loop; errors of the driver as error kinds."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

from redis import asyncio as aioredis
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from noetl.tool import (
    BadAuth,
    ErrorInfo,
    SourceCall,
    TargetCall,
    ToolCall,
    error_info,
    flag,
    jsonable,
    per_loop,
    server_fields,
    tls_context,
)

PREFIXES = ("redis_",)
CONNECT_SECONDS = 10.0


async def client_for(call: ToolCall | SourceCall | TargetCall, auth: Any) -> aioredis.Redis:
    """The shared client for `auth` of a task, source or target."""
    fields = await server_fields(auth, call.host, schemes=("redis", "rediss"), prefixes=PREFIXES)
    timeout = call.timeout.connect or CONNECT_SECONDS
    key = ("noetl-redis", repr(sorted(fields.items(), key=lambda item: item[0])), timeout)
    return per_loop(key, lambda: _Shared(fields, timeout)).client


class _Shared:
    """A client that is closed with the event loop."""

    def __init__(self, fields: Mapping[str, Any], timeout: float) -> None:
        # No timeout per command: the driver would use `asyncio.wait_for`, which loses cancellations in Python 3.11.
        # No retries: a command whose connection is lost may have been executed; the rules of the task decide.
        waits: dict[str, Any] = {
            "socket_connect_timeout": timeout, "socket_timeout": None, "retry": Retry(NoBackoff(), 0),
            "redis_connect_func": _sign_in,
        }  # fmt: skip
        self.client = aioredis.Redis(
            host=str(fields.get("host") or "127.0.0.1"),
            port=fields.get("port") or 6379,
            db=_database(fields),
            username=fields.get("user"),
            password=fields.get("password"),
            **_tls(fields),
            **waits,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self.client.aclose()


async def _sign_in(connection: Any) -> None:
    """The first commands of a connection; a server that accepts connections may be too busy to answer."""
    seconds = connection.socket_connect_timeout
    try:
        async with asyncio.timeout(seconds):
            await connection.on_connect()
    except TimeoutError:
        raise exceptions.TimeoutError(f"no reply within {seconds:g} s after connecting to the server") from None


def _database(fields: Mapping[str, Any]) -> int:
    given = next((fields[name] for name in ("db", "database") if fields.get(name) not in (None, "")), 0)
    if isinstance(given, bool) or not str(given).isdecimal():
        raise BadAuth(f"`db` of a Redis server must be a number, not {given!r}")
    return int(given)


def _tls(fields: Mapping[str, Any]) -> dict[str, Any]:
    given = {**fields, "tls": True} if fields.get("scheme") == "rediss" else fields
    if tls_context(given) is None:  # also checks the fields
        return {}
    verify, authority = flag(given, "verify", True), fields.get("ca")
    options = {"ssl": True, "ssl_cert_reqs": "required" if verify else "none", "ssl_check_hostname": verify}
    if authority:
        options["ssl_ca_data" if "-----BEGIN" in str(authority) else "ssl_ca_certs"] = str(authority)
    return options


def text_of(data: Any) -> str:
    """What the server has sent as text; bytes that are no UTF-8 as base64."""
    try:
        return data.decode() if isinstance(data, bytes) else str(data)
    except UnicodeDecodeError:
        return str(jsonable(data))


def parsed(data: bytes) -> Any:
    """The value of JSON, else the text."""
    try:
        return json.loads(data.decode())
    except ValueError:
        return text_of(data)


_DENIED = "The user executing the script can't"  # run this command, access the key
_RIGHTS = "; a target needs the keys `noetl:staging:*` beside its own, and the command EVAL"
_PIPELINE = re.compile(r"Command # \d+ \(.*\) of pipeline caused error: (.*)", re.DOTALL)


def _reason(failure: Exception) -> str:
    """The message of the server, without the values of the command that it refers to."""
    found = _PIPELINE.fullmatch(str(failure))
    return found[1] if found else str(failure)


def _is_target(failure: Exception) -> bool:
    return any(part in str(failure) for part in (_DENIED, "noetl:staging", "'eval'"))


def explain(failure: Exception) -> ErrorInfo | None:
    """The error for an exception of the driver; None for other exceptions."""
    if str(failure).startswith("HELLO must be called with the client already authenticated"):
        return error_info(
            "auth", "redis: the server requires a password; set `password` (and `user`) of the credential"
        )
    if isinstance(failure, exceptions.AuthenticationError | exceptions.NoPermissionError) or _DENIED in str(failure):
        return error_info("auth", f"redis: {_reason(failure)}{_RIGHTS if _is_target(failure) else ''}")
    if isinstance(failure, exceptions.TimeoutError):
        hint = "; check `host`, `port` and `tls` of the connection" if "connecting" in str(failure) else ""
        return error_info("timeout", f"redis: {failure}{hint}")
    if isinstance(failure, exceptions.BusyLoadingError | exceptions.ReadOnlyError):
        return error_info("server_error", f"redis: {failure}")
    if isinstance(failure, exceptions.ConnectionError | OSError):
        hint = "; check `tls`, `ca` and `verify` of the connection" if "[SSL" in str(failure) else ""
        return error_info("connection", f"redis: {failure}{hint}")
    if isinstance(failure, exceptions.RedisError):
        kind = "auth" if str(failure).startswith(("NOAUTH", "WRONGPASS", "NOPERM")) else "client_error"
        if isinstance(failure, exceptions.OutOfMemoryError):
            kind = "limit"
        return error_info(kind, f"redis: {_reason(failure)}")
    return None
