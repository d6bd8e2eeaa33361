"""The port of quotas: token buckets by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from noetl.core.model.quotas.token_bucket import Bucket

T = TypeVar("T")
Change = Callable[[Bucket, float], tuple[Bucket, T]]  # of a bucket at an instant


class QuotaStore(Protocol):
    """Token buckets, shared by all processes that open the same store."""

    async def update(self, key: str, now: float, change: Change[T]) -> T:
        """Replace a bucket in one transaction; concurrent changes of a key happen one after the other.

        `change` gets the bucket (a new one if there is none) and the time: that of the database if it has its own
        clock, else `now`. It may be called more than once."""

    async def drop_idle(self, before: float) -> None:
        """Delete buckets that have been like new ones since an instant."""
