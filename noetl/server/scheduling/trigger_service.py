"""The triggers of an installation: added, changed, paused, removed and listed, for every kind alike."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from noetl.errors import Conflict, NotFound, unknown
from noetl.runtime.clock import Clock
from noetl.server.orchestrator.catalog import Catalog
from noetl.server.scheduling.triggers import Trigger, check_credential, check_registered, decode, define, name_after
from noetl.storage.ports.secrets import CredentialStore
from noetl.storage.ports.triggers import StoredTrigger, TriggerStore

MAX_ATTEMPTS = 20


class Triggers:
    """The definitions of triggers."""

    def __init__(
        self,
        store: TriggerStore,
        catalog: Catalog,
        clock: Clock,
        kinds: Mapping[str, type[Trigger]],
        credentials: CredentialStore | None = None,  # without it credentials are not checked
    ) -> None:
        self.kinds = kinds
        self.changed = asyncio.Event()  # a trigger was added or changed: act at once
        self.store = store
        self._catalog = catalog
        self._clock = clock
        self._credentials = credentials

    async def add(self, kind: str, fields: Mapping[str, Any], *, name: str | None = None, by: str = "") -> Trigger:
        """Store a new trigger. The default name is derived from the path."""
        trigger = await self._validated(kind, name or name_after(str(fields.get("path", ""))), fields, by)
        for number in range(1, MAX_ATTEMPTS):
            named = trigger if number == 1 else msgspec.structs.replace(trigger, name=f"{trigger.name}-{number}")
            try:
                await self.store.add(named.row(1))
            except Conflict:
                if name is not None:
                    raise
                continue
            self.changed.set()
            return named
        raise Conflict(f"there are {MAX_ATTEMPTS} triggers named {trigger.name!r}; give this one a name")

    async def edit(self, kind: str, name: str, fields: Mapping[str, Any]) -> Trigger:
        """Change fields of a trigger."""
        for _ in range(MAX_ATTEMPTS):
            row = await self._row(kind, name)
            changed = await self._validated(kind, name, fields, "", decode(self._class(kind), row))
            if await self.store.save(changed.row(row.revision + 1)):
                self.changed.set()
                return changed
        raise _changed_meanwhile(kind, name)

    async def put(self, kind: str, name: str, fields: Mapping[str, Any], *, by: str = "") -> Trigger:
        """Store a trigger with exactly this definition; an existing one keeps its identity and its progress."""
        row = await self.store.get(kind, name)
        if row is None:
            return await self.add(kind, fields, name=name, by=by)
        of = self._class(kind)
        defaults = {
            each.name: each.default if each.default_factory is msgspec.NODEFAULT else each.default_factory()
            for each in msgspec.structs.fields(of)
            if not each.required and each.name not in of.INTERNAL
        }
        return await self.edit(kind, name, {**msgspec.to_builtins(defaults), **fields})

    async def change(self, kind: str, name: str, **fields: Any) -> Trigger:
        """Replace fields of a trigger without validation."""
        for _ in range(MAX_ATTEMPTS):
            row = await self._row(kind, name)
            known = decode(self._class(kind), row)
            changed = msgspec.structs.replace(known, **fields)
            if changed == known or await self.store.save(changed.row(row.revision + 1)):
                return changed
        raise _changed_meanwhile(kind, name)

    async def warnings(self, trigger: Trigger) -> list[str]:
        """Why a valid trigger receives nothing: its pattern of paths matches no registered playbook."""
        pattern = getattr(trigger, "of", None)
        problem = await self._catalog.unmatched(pattern) if isinstance(pattern, str) else None
        return [] if problem is None else [problem]

    async def pause(self, kind: str, name: str) -> Trigger:
        """Pause a trigger: it receives nothing and starts nothing."""
        return await self.change(kind, name, paused=True)

    async def resume(self, kind: str, name: str) -> Trigger:
        """Resume a trigger from now on."""
        return await self.edit(kind, name, {"paused": False})

    async def remove(self, kind: str, name: str) -> None:
        """Remove a trigger; executions that it started continue."""
        if not await self.store.remove(kind, name):
            raise await self._unknown(kind, name)
        self.changed.set()

    async def get(self, kind: str, name: str) -> Trigger:
        """The trigger of a name; NotFound when there is none."""
        return decode(self._class(kind), await self._row(kind, name))

    async def all(self, kind: str) -> list[Trigger]:
        """All triggers of a kind, by name."""
        found: list[Trigger] = []
        while page := await self.list(kind, after=found[-1].name if found else None, limit=1000):
            found += page
        return found

    def _class(self, kind: str) -> type[Trigger]:
        of = self.kinds.get(kind)
        if of is None:
            raise NotFound(f"{kind!r} is not a kind of trigger; kinds are {', '.join(self.kinds)}")
        return of

    async def _row(self, kind: str, name: str) -> StoredTrigger:
        row = await self.store.get(kind, name)
        if row is None:
            self._class(kind)
            raise await self._unknown(kind, name)
        return row

    async def _unknown(self, kind: str, name: str) -> NotFound:
        command = kind if kind in ("schedule", "webhook") else "trigger"
        known = [row.name for row in await self.store.list(kind, limit=1000)]
        return unknown(kind, name, known, f"`noetl {command} list` shows all")

    async def _validated(
        self, kind: str, name: str, fields: Mapping[str, Any], by: str, known: Trigger | None = None
    ) -> Trigger:
        now = self._clock.now()
        trigger = define(self._class(kind), name, fields, now=now, by=by, known=known)
        await check_registered(self._catalog, trigger.path, trigger.version)
        await check_credential(self._credentials, getattr(trigger, "credential", None))
        return trigger.prepared(known, now)

    async def list(self, kind: str, *, after: str | None = None, limit: int = 100) -> list[Trigger]:
        """One page of the triggers of a kind, by name."""
        of = self._class(kind)
        return [decode(of, row) for row in await self.store.list(kind, after=after, limit=limit)]


def _changed_meanwhile(kind: str, name: str) -> Conflict:
    return Conflict(f"{kind} {name!r} was changed at the same time by another request; try again")
