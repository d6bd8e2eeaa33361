"""The port of schedules and webhooks."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class StoredTrigger(Struct, frozen=True, omit_defaults=True):
    """What starts executions by itself (a schedule, a webhook), as a row: `data` is its document.

    `revision` counts its changes: of two who change the same one, the second is refused."""

    kind: str
    name: str
    data: bytes
    revision: int = 1
    wake: float | None = None  # when it wants to be looked at


class TriggerStore(Protocol):
    """Schedules and webhooks, beside the catalog they name."""

    async def add(self, trigger: StoredTrigger) -> None:
        """Keep a new one; Conflict when its name is taken (among its kind)."""

    async def save(self, trigger: StoredTrigger) -> bool:
        """Replace the revision before this one; False when it is not there any more: somebody was first."""

    async def get(self, kind: str, name: str) -> StoredTrigger | None:
        """One of them."""

    async def due(self, kind: str, now: float, limit: int = 100) -> list[StoredTrigger]:
        """Those whose `wake` has come, the longest due first."""

    async def next_wake(self, kind: str) -> float | None:
        """The earliest `wake` of all."""

    async def remove(self, kind: str, name: str) -> bool:
        """Forget it; False when there was none."""

    async def list(self, kind: str, *, after: str | None = None, limit: int = 100) -> list[StoredTrigger]:
        """By name, one page."""
