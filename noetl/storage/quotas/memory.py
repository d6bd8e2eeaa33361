"""Token buckets in memory."""

from __future__ import annotations

from typing import TypeVar

from noetl.core.model.quotas.token_bucket import Bucket
from noetl.storage.ports.quotas import Change

T = TypeVar("T")


class MemoryQuotaStore:
    """`ports.QuotaStore` of one process."""

    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}

    async def update(self, key: str, now: float, change: Change[T]) -> T:
        """Replace a bucket."""
        self._buckets[key], answer = change(self._buckets.get(key, Bucket()), now)
        return answer

    async def drop_idle(self, before: float) -> None:
        """Delete idle buckets."""
        self._buckets = {key: each for key, each in self._buckets.items() if each.idle_at >= before}
