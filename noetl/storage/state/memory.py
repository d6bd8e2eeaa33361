"""State in memory, beside the event log in memory."""

from __future__ import annotations

import msgspec

from noetl.storage.events.state_commits import check_versions
from noetl.storage.ports.state import StateCommit, StateEntry, StatePath


class MemoryStateStore:
    """`ports.StateStore` in memory."""

    def __init__(self) -> None:
        self._paths: dict[str, dict[str, tuple[bytes, StateEntry]]] = {}

    async def read(self, path: str) -> dict[str, StateEntry]:
        """The values of a playbook by key."""
        return {
            key: msgspec.structs.replace(entry, value=msgspec.json.decode(data))
            for key, (data, entry) in sorted(self._paths.get(path, {}).items())
        }

    def check(self, commit: StateCommit) -> None:
        """Compare the stored versions; nothing is changed."""
        check_versions(commit, {key: entry.version for key, (_, entry) in self._paths.get(commit.path, {}).items()})

    def write(self, commit: StateCommit) -> None:
        """Write a commit that was checked."""
        values = self._paths.setdefault(commit.path, {})
        for change in commit.changes:
            if change.data is None:
                values.pop(change.key, None)
            else:
                entry = StateEntry(change.key, None, change.version, commit.at, commit.execution_id)
                values[change.key] = (change.data, entry)
        if not values:
            del self._paths[commit.path]

    async def commit(self, commit: StateCommit) -> None:
        """Store the changes; StateConflict if a key does not have the expected version."""
        self.check(commit)
        self.write(commit)

    async def paths(self, after: str = "", limit: int = 100) -> list[StatePath]:
        """One page of the playbooks that have state, by path."""
        found = sorted(path for path in self._paths if path > after)[:limit]
        return [
            StatePath(
                path,
                len(values),
                sum(len(data) for data, _ in values.values()),
                max(entry.updated_at for _, entry in values.values()),
            )
            for path in found
            if (values := self._paths[path])
        ]
