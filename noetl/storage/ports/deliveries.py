"""The port of deliveries: the inbox of triggers and the outbox of notifications.

A delivery is recorded before it is acted on, and its `key` is unique. So a process that stops between receipt and
action neither loses nor repeats it: the action is derived again from the row, under the same key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

Status = Literal["pending", "started", "sent", "skipped", "failed"]


class Delivery(Struct, frozen=True):
    """One delivery of a trigger (`kind`, `name`), or one message of a notification rule; `data` is its document."""

    id: str  # text in order of receipt
    kind: str
    name: str
    key: str  # unique; the idempotency key of the execution that it starts
    received_at: float
    data: bytes = b"{}"
    status: Status = "pending"
    due: float | None = None  # of a pending one: when to act on it
    holds: bool = False  # its execution counts for the concurrency of the trigger
    execution_id: str | None = None


class DeliveryFilter(Struct, frozen=True):
    """The filter and the page of a list of deliveries."""

    kind: str | None = None
    name: str | None = None
    status: tuple[str, ...] = ()
    before: str | None = None  # id: the page begins before it
    limit: int = 100
    kinds: tuple[str, ...] = ()  # any of them


class DeliveryStore(Protocol):
    """Deliveries, in the database of the triggers."""

    async def add(self, delivery: Delivery) -> bool:
        """Record a delivery; False if its key is known."""

    async def save(self, delivery: Delivery, was: str = "pending") -> bool:
        """Replace a delivery; False if its status is not `was`."""

    async def get(self, id: str) -> Delivery | None:
        """The delivery of an id."""

    async def by_key(self, key: str) -> Delivery | None:
        """The delivery of a key."""

    async def owners(self, now: float) -> list[tuple[str, str]]:
        """The triggers and rules (kind, name) with a pending delivery that is due."""

    async def next_due(self) -> float | None:
        """The earliest `due` of a pending delivery."""

    async def pending(self, kind: str, name: str, now: float, limit: int) -> list[Delivery]:
        """The pending deliveries of a trigger that are due, the earliest first."""

    async def holding(self, kind: str, name: str) -> list[Delivery]:
        """The deliveries of a trigger whose executions count for its concurrency, oldest first."""

    async def counts(self, kind: str, name: str) -> dict[str, int]:
        """The number of deliveries of a trigger by status."""

    async def counts_of(self, kind: str, names: Sequence[str]) -> dict[str, dict[str, int]]:
        """The number of deliveries of each of these triggers by status."""

    async def newest(self, kind: str, names: Sequence[str], status: Sequence[str]) -> dict[str, Delivery]:
        """The newest delivery of each of these triggers with one of these statuses."""

    async def pending_of(self, kind: str, names: Sequence[str], limit: int) -> dict[str, list[Delivery]]:
        """The first pending deliveries of each of these triggers, the earliest first; up to `limit` each."""

    async def list(self, where: DeliveryFilter) -> list[Delivery]:
        """One page, newest first."""

    async def drop(self, before: float) -> int:
        """Delete the ended deliveries that were received before that time; return their number."""
