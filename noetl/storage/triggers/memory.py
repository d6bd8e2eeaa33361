"""Triggers in memory."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.errors import Conflict
from noetl.storage.ports.triggers import StoredTrigger


class MemoryTriggerStore:
    """`ports.TriggerStore` in memory."""

    def __init__(self) -> None:
        self._triggers: dict[tuple[str, str], StoredTrigger] = {}

    async def add(self, trigger: StoredTrigger) -> None:
        """Add a trigger; Conflict if the name exists."""
        if (trigger.kind, trigger.name) in self._triggers:
            raise Conflict(f"a {trigger.kind} named {trigger.name!r} already exists")
        self._triggers[trigger.kind, trigger.name] = trigger

    async def save(self, trigger: StoredTrigger) -> bool:
        """Replace the previous revision; False if it is not the stored one."""
        known = self._triggers.get((trigger.kind, trigger.name))
        if known is None or known.revision != trigger.revision - 1:
            return False
        self._triggers[trigger.kind, trigger.name] = trigger
        return True

    async def get(self, kind: str, name: str) -> StoredTrigger | None:
        """The trigger of a name; None if it does not exist."""
        return self._triggers.get((kind, name))

    async def named(self, kind: str, names: Sequence[str]) -> dict[str, StoredTrigger]:
        """Those of these names that exist."""
        return {name: self._triggers[kind, name] for name in names if (kind, name) in self._triggers}

    async def due(self, kind: str, now: float, limit: int = 100) -> list[StoredTrigger]:
        """Triggers whose `wake` has passed, the earliest first."""
        due = [
            (each.wake, each.name) for each in self._triggers.values() if each.kind == kind and each.wake is not None
        ]
        return [self._triggers[kind, name] for wake, name in sorted(due)[:limit] if wake <= now]

    async def next_wake(self, kind: str) -> float | None:
        """The earliest `wake` of a kind."""
        return min((e.wake for e in self._triggers.values() if e.kind == kind and e.wake is not None), default=None)

    async def remove(self, kind: str, name: str) -> bool:
        """Delete a trigger; False if it does not exist."""
        return self._triggers.pop((kind, name), None) is not None

    async def list(self, kind: str, *, after: str | None = None, limit: int = 100) -> list[StoredTrigger]:
        """One page of triggers, by name."""
        names = sorted(name for of, name in self._triggers if of == kind and name > (after or ""))
        return [self._triggers[kind, name] for name in names[:limit]]
