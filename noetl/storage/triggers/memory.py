"""Schedules and webhooks in memory, gone with the process."""

from __future__ import annotations

from noetl.errors import Conflict
from noetl.storage.ports.triggers import StoredTrigger


class MemoryTriggerStore:
    """`ports.TriggerStore` that forgets everything with its process."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], StoredTrigger] = {}

    async def add(self, trigger: StoredTrigger) -> None:
        """Keep a new one."""
        if (trigger.kind, trigger.name) in self._kept:
            raise Conflict(f"there is a {trigger.kind} named {trigger.name!r} already")
        self._kept[trigger.kind, trigger.name] = trigger

    async def save(self, trigger: StoredTrigger) -> bool:
        """Replace the revision before this one."""
        known = self._kept.get((trigger.kind, trigger.name))
        if known is None or known.revision != trigger.revision - 1:
            return False
        self._kept[trigger.kind, trigger.name] = trigger
        return True

    async def get(self, kind: str, name: str) -> StoredTrigger | None:
        """One of them."""
        return self._kept.get((kind, name))

    async def due(self, kind: str, now: float, limit: int = 100) -> list[StoredTrigger]:
        """Those whose `wake` has come."""
        due = [(each.wake, each.name) for each in self._kept.values() if each.kind == kind and each.wake is not None]
        return [self._kept[kind, name] for wake, name in sorted(due)[:limit] if wake <= now]

    async def next_wake(self, kind: str) -> float | None:
        """The earliest `wake` of all."""
        return min((e.wake for e in self._kept.values() if e.kind == kind and e.wake is not None), default=None)

    async def remove(self, kind: str, name: str) -> bool:
        """Forget it."""
        return self._kept.pop((kind, name), None) is not None

    async def list(self, kind: str, *, after: str | None = None, limit: int = 100) -> list[StoredTrigger]:
        """By name, one page."""
        names = sorted(name for of, name in self._kept if of == kind and name > (after or ""))
        return [self._kept[kind, name] for name in names[:limit]]
