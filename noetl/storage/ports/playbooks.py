"""The catalog port: playbook texts under paths and versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class StoredPlaybook(Struct, frozen=True, omit_defaults=True):
    """A playbook's text as it was registered or run."""

    path: str
    version: int
    digest: str
    text: str
    registered_at: float = 0.0
    file: str = ""  # the folder relative files are found in, when it came from a file


class PlaybookStore(Protocol):
    """The catalog, and the texts executions were started from (by digest)."""

    async def keep(self, digest: str, text: str, file: str) -> None:
        """Remember the text an execution runs; the same digest is kept once."""

    async def text(self, digest: str) -> tuple[str, str] | None:
        """Text and file of a digest."""

    async def register(self, path: str, digest: str, text: str, at: float) -> StoredPlaybook:
        """A new version of a path (the same text again is the same version)."""

    async def find(self, path: str, version: int | None = None) -> StoredPlaybook | None:
        """A version, or the newest."""

    async def list(
        self, *, search: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[StoredPlaybook]:
        """The newest version of each path."""

    async def versions(self, path: str, *, before: int | None = None, limit: int = 100) -> Sequence[StoredPlaybook]:
        """The versions of a path, newest first; those older than `before`."""
