"""Where limits are kept: in this machine's store, or on a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from noetl.errors import RequestRefused

if TYPE_CHECKING:
    from noetl.client import Client
    from noetl.embedded import LocalEngine
    from noetl.server.concurrency.limits import Limits

PAGE = 1_000


class LocalLimits:
    """Limits in this machine's store."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    async def set(self, subject: str, name: str, most: int | None, weight: int | None) -> Mapping[str, Any]:
        """Set or change it."""
        limit = await self._limits.set(subject, name, most, weight=weight, by="the command line")
        return await self._limits.document(limit)

    async def list(self) -> list[Mapping[str, Any]]:
        """All of them."""
        found: list[Mapping[str, Any]] = []
        after: str | None = None
        while page := await self._limits.list(after=after, limit=PAGE):
            found += [await self._limits.document(each) for each in page]
            after = page[-1].key
        return found

    async def get(self, subject: str, name: str) -> Mapping[str, Any]:
        """One of them."""
        return await self._limits.document(await self._limits.get(subject, name))

    async def remove(self, subject: str, name: str) -> None:
        """Forget it."""
        await self._limits.remove(subject, name)

    @property
    def _limits(self) -> Limits:
        limits = self._engine.orchestrator.limits
        if limits is None:
            raise RequestRefused("this store keeps no limits")
        return limits


class RemoteLimits:
    """Limits of a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def set(self, subject: str, name: str, most: int | None, weight: int | None) -> Mapping[str, Any]:
        """Set or change it."""
        return await asyncio.to_thread(lambda: self._client.set_limit(subject, name, most, weight=weight))

    async def list(self) -> list[Mapping[str, Any]]:
        """All of them."""
        return await asyncio.to_thread(lambda: list(self._client.limits()))

    async def get(self, subject: str, name: str) -> Mapping[str, Any]:
        """One of them."""
        return await asyncio.to_thread(self._client.limit, subject, name)

    async def remove(self, subject: str, name: str) -> None:
        """Forget it."""
        await asyncio.to_thread(self._client.remove_limit, subject, name)
