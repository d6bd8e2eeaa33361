"""The port of triggers, notification rules and limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class StoredTrigger(Struct, frozen=True, omit_defaults=True):
    """A trigger, a notification rule or a limit as a row; `data` is its document.

    `revision` counts its changes: of two concurrent changes the second is rejected."""

    kind: str
    name: str
    data: bytes
    revision: int = 1
    wake: float | None = None  # time of the next action


class TriggerStore(Protocol):
    """Triggers, notification rules and limits, in the database of the catalog that they refer to."""

    async def add(self, trigger: StoredTrigger) -> None:
        """Add a trigger; Conflict if the name exists among its kind."""

    async def save(self, trigger: StoredTrigger) -> bool:
        """Replace the previous revision; False if it is not the stored one."""

    async def get(self, kind: str, name: str) -> StoredTrigger | None:
        """The trigger of a name; None if it does not exist."""

    async def named(self, kind: str, names: Sequence[str]) -> dict[str, StoredTrigger]:
        """Those of these names that exist."""

    async def due(self, kind: str, now: float, limit: int = 100) -> list[StoredTrigger]:
        """Triggers whose `wake` has passed, the earliest first."""

    async def next_wake(self, kind: str) -> float | None:
        """The earliest `wake` of a kind."""

    async def remove(self, kind: str, name: str) -> bool:
        """Delete it; False if it does not exist."""

    async def list(self, kind: str, *, after: str | None = None, limit: int = 100) -> list[StoredTrigger]:
        """One page of triggers, by name."""
