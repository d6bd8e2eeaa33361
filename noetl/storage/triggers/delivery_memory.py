"""Deliveries in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf

from noetl.storage.ports.deliveries import Delivery, DeliveryFilter


class MemoryDeliveryStore:
    """`ports.DeliveryStore` in memory."""

    def __init__(self) -> None:
        self._deliveries: dict[str, Delivery] = {}
        self._keys: dict[str, str] = {}

    async def add(self, delivery: Delivery) -> bool:
        """Record a delivery; False if its key is known."""
        if delivery.key in self._keys:
            return False
        self._keys[delivery.key] = delivery.id
        self._deliveries[delivery.id] = delivery
        return True

    async def save(self, delivery: Delivery, was: str = "pending") -> bool:
        """Replace a delivery; False if its status is not `was`."""
        known = self._deliveries.get(delivery.id)
        if known is None or known.status != was:
            return False
        self._deliveries[delivery.id] = delivery
        return True

    async def get(self, id: str) -> Delivery | None:
        """The delivery of an id."""
        return self._deliveries.get(id)

    async def by_key(self, key: str) -> Delivery | None:
        """The delivery of a key."""
        return self._deliveries.get(self._keys.get(key, ""))

    async def owners(self, now: float) -> list[tuple[str, str]]:
        """The triggers and rules (kind, name) with a pending delivery that is due."""
        return sorted({(each.kind, each.name) for _, each in self._due(now)})

    async def next_due(self) -> float | None:
        """The earliest `due` of a pending delivery."""
        return min((due for due, _ in self._due(float("inf"))), default=None)

    async def pending(self, kind: str, name: str, now: float, limit: int) -> list[Delivery]:
        """The pending deliveries of a trigger that are due, the earliest first."""
        found = [(due, each.id) for due, each in self._due(now) if (each.kind, each.name) == (kind, name)]
        return [self._deliveries[id] for _, id in sorted(found)[:limit]]

    async def holding(self, kind: str, name: str) -> list[Delivery]:
        """The deliveries of a trigger whose executions count for its concurrency, oldest first."""
        return [each for each in self._of(kind, name) if each.holds]

    async def counts(self, kind: str, name: str) -> dict[str, int]:
        """The number of deliveries of a trigger by status."""
        return dict(Counter(each.status for each in self._of(kind, name)))

    async def counts_of(self, kind: str, names: Sequence[str]) -> dict[str, dict[str, int]]:
        """The number of deliveries of each of these triggers by status."""
        return {name: counts for name in names if (counts := await self.counts(kind, name))}

    async def newest(self, kind: str, names: Sequence[str], status: Sequence[str]) -> dict[str, Delivery]:
        """The newest delivery of each of these triggers with one of these statuses."""
        rows = [each for name in names for each in self._of(kind, name) if each.status in status]
        return {each.name: each for each in rows}

    async def pending_of(self, kind: str, names: Sequence[str], limit: int) -> dict[str, list[Delivery]]:
        """The first pending deliveries of each of these triggers, the earliest first."""
        return {name: found for name in names if (found := await self.pending(kind, name, inf, limit))}

    async def list(self, where: DeliveryFilter) -> list[Delivery]:
        """One page, newest first."""
        found = [
            each
            for each in self._of(where.kind, where.name)
            if (not where.kinds or each.kind in where.kinds)
            and (not where.status or each.status in where.status)
            and (where.before is None or each.id < where.before)
        ]
        return found[::-1][: where.limit]

    async def drop(self, before: float) -> int:
        """Delete the ended deliveries that were received before that time; return their number."""
        ended = [
            each
            for each in self._deliveries.values()
            if each.received_at < before and each.status != "pending" and not each.holds
        ]
        for each in ended:
            del self._deliveries[each.id], self._keys[each.key]
        return len(ended)

    def _due(self, now: float) -> Sequence[tuple[float, Delivery]]:
        pending = (each for each in self._deliveries.values() if each.status == "pending")
        return [(each.due, each) for each in pending if each.due is not None and each.due <= now]

    def _of(self, kind: str | None, name: str | None) -> Sequence[Delivery]:
        rows = sorted(self._deliveries.values(), key=lambda each: each.id)
        return [each for each in rows if kind in (None, each.kind) and name in (None, each.name)]
