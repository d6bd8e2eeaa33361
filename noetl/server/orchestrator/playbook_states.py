"""The state that executions of a playbook share: what a request reads, what an append commits, what users change."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from noetl.core.model.events import Recorded, StateCommitted, instant
from noetl.core.model.merge import has_path, put_path, without_path
from noetl.core.model.playbook import Limits
from noetl.core.model.secret_names import mask_secret_names
from noetl.errors import Conflict, NotFound, RequestRefused, StateConflict
from noetl.runtime.clock import Clock
from noetl.storage.ports.state import StateChange, StateCommit, StateEntry, StatePath, StateStore

MAX_BYTES = Limits().max_state_bytes  # that a user may set; a playbook may have another limit
MAX_KEY = 500  # characters

_json = msgspec.json.Encoder().encode


def commit_of(path: str, events: Sequence[Recorded]) -> StateCommit | None:
    """What an append stores for the commits among its events; of several for one key, the last value counts."""
    found = [(each.at, each.execution_id, each.body) for each in events if isinstance(each.body, StateCommitted)]
    if not found:
        return None
    changes: dict[str, StateChange] = {}
    for _, _, body in found:
        for key, value in body.values.items():
            expected = changes[key].expected if key in changes else body.replaced.get(key)
            changes[key] = StateChange(key, _json(value), expected, body.version)
    at, execution_id, _ = found[-1]
    return StateCommit(path, tuple(changes.values()), at, execution_id)


class PlaybookStates(Struct, eq=False):
    """Reads and changes the state of playbooks for users."""

    _store: StateStore
    _clock: Clock

    async def read(self, path: str) -> tuple[dict[str, Any], dict[str, str]]:
        """The values and their versions, for the request of an execution."""
        found = await self._store.read(path)
        return {key: each.value for key, each in found.items()}, {key: each.version for key, each in found.items()}

    async def entries(self, path: str) -> list[StateEntry]:
        """The values of a playbook, by key."""
        return list((await self._store.read(path)).values())

    async def paths(self, after: str = "", limit: int = 100) -> list[StatePath]:
        """One page of the playbooks that have state."""
        return await self._store.paths(after, limit)

    async def set(
        self, path: str, values: Mapping[str, Any], expected: Mapping[str, str | None] | None = None
    ) -> list[StateEntry]:
        """Set values by key or dotted path (`a.b` is inside the value of `a`); return the state after it.

        With `expected`, Conflict unless these keys have that version (None: the key does not exist)."""
        if not path or "\x00" in path:
            raise RequestRefused("state belongs to the path of a playbook: give one")
        stored = await self._store.read(path)
        after = {key: each.value for key, each in stored.items()}
        changed: dict[str, bytes] = {}
        for dotted, value in values.items():
            keys = tuple(dotted.split("."))
            if not all(keys) or len(dotted) > MAX_KEY or "\x00" in dotted:
                raise RequestRefused(f"{dotted!r} is not a key of state, nor a path below one (a.b)")
            after = put_path(after, keys, value)
            changed[keys[0]] = _json(after[keys[0]])
        size, before = len(_json(after)), len(_json({key: each.value for key, each in stored.items()}))
        if size > max(MAX_BYTES, before):  # an execution may have written more
            raise RequestRefused(f"the state of {path} would have {size:,} bytes, the limit is {MAX_BYTES:,}")
        if changed:
            await self._commit(path, changed, stored, expected)
        return await self.entries(path)

    async def reset(self, path: str, keys: Sequence[str] = ()) -> int:
        """Remove these keys or dotted paths, or all keys; return their number. NotFound if one does not exist."""
        stored = await self._store.read(path)
        before = {key: each.value for key, each in stored.items()}
        after: dict[str, Any] = before if keys else {}
        missing = [key for key in keys if not has_path(before, key.split("."))]
        if missing or not stored:
            what = f"no key {', '.join(map(repr, missing))}" if missing else "no state"
            raise NotFound(f"{path} has {what}")
        for key in keys:
            after = without_path(after, key.split("."))
        changed = {key.partition(".")[0] for key in keys} or stored.keys()
        values = {key: _json(after[key]) if key in after else None for key in changed}
        await self._commit(path, values, stored, None)
        return len(keys or stored)

    async def _commit(
        self,
        path: str,
        values: Mapping[str, bytes | None],
        stored: Mapping[str, StateEntry],
        expected: Mapping[str, str | None] | None,
    ) -> None:
        versions = {**{key: each.version for key, each in stored.items()}, **(expected or {})}
        version = f"user-{uuid.uuid4().hex}"
        changes = tuple(StateChange(key, data, versions.get(key), version) for key, data in values.items())
        try:
            await self._store.commit(StateCommit(path, changes, self._clock.now()))
        except StateConflict as problem:
            raise Conflict(f"{problem}") from None


def state_document(path: str, entries: Sequence[StateEntry]) -> dict[str, Any]:
    """The state of a playbook as users see it: values under secret names are masked."""
    values: dict[str, Any] = {each.key: each.value for each in entries}
    shown: dict[str, Any] = mask_secret_names(values)
    return {
        "path": path,
        "bytes": len(_json(values)) if values else 0,
        "entries": [
            {
                "key": each.key,
                "value": shown[each.key],
                "version": each.version,
                "updated_at": instant(each.updated_at),
                "execution_id": each.execution_id,
            }
            for each in entries
        ],
    }


def path_document(found: StatePath) -> dict[str, Any]:
    """One row of the list of playbooks that have state."""
    return {"path": found.path, "keys": found.keys, "bytes": found.bytes, "updated_at": instant(found.updated_at)}
