"""The Python client of a server: start, wait for, inspect and control executions; typed results.

    from noetl import Client

    with Client("http://127.0.0.1:8642", token="noetl_...") as client:
        result = client.run("reports/daily", {"day": "2026-01-31"})
        print(result.status, result.data)

`AsyncClient` has the same methods for asyncio. Errors are the exceptions of `noetl.errors`: NotFound, Conflict,
AccessRefused, InvalidPlaybook, RequestRefused; StoreUnavailable when the server is unreachable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from noetl.client.blocking import Client
from noetl.client.options import ScheduleOptions, SubmitOptions, WebhookOptions
from noetl.client.server_settings import server_settings

if TYPE_CHECKING:
    from noetl.client.asynchronous import AsyncClient

__all__ = ["AsyncClient", "Client", "ScheduleOptions", "SubmitOptions", "WebhookOptions", "server_settings"]


def __getattr__(name: str) -> Any:
    """Import `AsyncClient` when it is used: it needs aiohttp, which the command line does without."""
    if name != "AsyncClient":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from noetl.client.asynchronous import AsyncClient

    return AsyncClient
