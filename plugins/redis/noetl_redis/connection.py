"""Redis clients: one per server and credential of an event loop; errors of the driver as error kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis import asyncio as aioredis
from redis import exceptions

from noetl.tool import ErrorInfo, SourceCall, TargetCall, ToolCall, auth_fields, error_info, per_loop

PREFIXES = ("redis_",)
CONNECT_SECONDS = 10.0


async def client_for(call: ToolCall | SourceCall | TargetCall, auth: Any) -> aioredis.Redis:
    """The shared client for `auth` of a task, source or target."""
    fields = await auth_fields(auth, call.host, prefixes=PREFIXES)
    timeout = call.timeout.connect or CONNECT_SECONDS
    key = ("noetl-redis", repr(sorted(fields.items(), key=lambda item: item[0])), timeout)
    return per_loop(key, lambda: _Shared(fields, timeout)).client


class _Shared:
    """A client that is closed with the event loop."""

    def __init__(self, fields: Mapping[str, Any], timeout: float) -> None:
        # No timeout per command: the driver would use `asyncio.wait_for`, which loses cancellations in Python 3.11.
        waits: dict[str, Any] = {"socket_connect_timeout": timeout, "socket_timeout": None}
        if fields.get("dsn"):
            self.client = aioredis.Redis.from_url(str(fields["dsn"]), **waits)
            return
        self.client = aioredis.Redis(
            host=str(fields.get("host") or "127.0.0.1"),
            port=int(fields.get("port") or 6379),
            db=int(fields.get("db") or fields.get("database") or 0),
            username=fields.get("user") or fields.get("username"),
            password=fields.get("password"),
            ssl=bool(fields.get("tls") or fields.get("ssl")),
            **waits,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self.client.aclose()


def explain(failure: Exception) -> ErrorInfo | None:
    """The error for an exception of the driver; None for other exceptions."""
    if isinstance(failure, exceptions.AuthenticationError | exceptions.NoPermissionError):
        return error_info("auth", f"redis: {failure}")
    if isinstance(failure, exceptions.TimeoutError):
        return error_info("timeout", f"redis: {failure}")
    if isinstance(failure, exceptions.ConnectionError | OSError):
        return error_info("connection", f"redis: {failure}")
    if isinstance(failure, exceptions.BusyLoadingError | exceptions.ReadOnlyError):
        return error_info("server_error", f"redis: {failure}")
    if isinstance(failure, exceptions.RedisError):
        kind = "auth" if str(failure).startswith(("NOAUTH", "WRONGPASS", "NOPERM")) else "client_error"
        return error_info(kind, f"redis: {failure}")
    return None
