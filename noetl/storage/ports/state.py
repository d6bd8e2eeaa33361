"""The port of state: small values that the executions of a playbook share, by the path of the playbook.

Every stored value has a version. A commit names the versions that it replaces and changes all its keys or none.
"""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct


class StateEntry(Struct, frozen=True):
    """One stored value of a playbook's state."""

    key: str
    value: Any
    version: str
    updated_at: float
    execution_id: str | None = None  # that committed it; None: a user has set it


class StateChange(Struct, frozen=True, gc=False):
    """One key of a commit; `expected` is the version that it replaces, None if there is none."""

    key: str
    data: bytes | None  # JSON; None removes the key
    expected: str | None
    version: str


class StateCommit(Struct, frozen=True, gc=False):
    """Changes of the state of one playbook that are stored together or not at all."""

    path: str
    changes: tuple[StateChange, ...]
    at: float
    execution_id: str | None = None


class StatePath(Struct, frozen=True):
    """A playbook that has state."""

    path: str
    keys: int
    bytes: int
    updated_at: float


class StateStore(Protocol):
    """The state of all playbooks, in the database of the event log."""

    async def read(self, path: str) -> dict[str, StateEntry]:
        """The values of a playbook by key."""

    async def commit(self, commit: StateCommit) -> None:
        """Store the changes; StateConflict if a key does not have the expected version."""

    async def paths(self, after: str = "", limit: int = 100) -> list[StatePath]:
        """One page of the playbooks that have state, by path."""
