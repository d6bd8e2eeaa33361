"""The catalog port: playbook texts under paths and versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from noetl.core.model.bundle import Bundle


class Origin(Struct, frozen=True, omit_defaults=True):
    """Where a version comes from: project, profile, git commit, and whether files differed from the commit."""

    project: str = ""
    profile: str = ""
    commit: str = ""
    modified: bool = False


class StoredPlaybook(Struct, frozen=True, omit_defaults=True):
    """The text of a playbook as it was registered or run."""

    path: str
    version: int
    digest: str
    text: str
    registered_at: float = 0.0
    file: str = ""  # the file of the playbook; its folder is the base of relative paths
    origin: Origin = Origin()


class PlaybookStore(Protocol):
    """The catalog, and the texts of executed playbooks by digest."""

    async def save_text(self, digest: str, text: str, file: str) -> None:
        """Store the text of an execution's playbook, once per digest; it counts as used now."""

    async def text(self, digest: str) -> tuple[str, str] | None:
        """Text and file of a digest."""

    async def unregistered_texts(self, age: float, limit: int) -> Sequence[str]:
        """Digests of texts that no version of the catalog has and that were not used for `age` seconds, the oldest
        first."""

    async def keep_texts(self, digests: Sequence[str]) -> None:
        """Mark texts as used now."""

    async def delete_texts(self, digests: Sequence[str], age: float) -> int:
        """Delete those of these texts that were not used for `age` seconds; return their number."""

    async def register(self, playbook: StoredPlaybook) -> StoredPlaybook:
        """Add a version of a path (`version` is ignored); an unchanged digest is not a new version."""

    async def find(self, path: str, version: int | None = None) -> StoredPlaybook | None:
        """One version of a path; None is the newest."""

    async def list(
        self, *, search: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[StoredPlaybook]:
        """The newest version of each path."""

    async def versions(self, path: str, *, before: int | None = None, limit: int = 100) -> Sequence[StoredPlaybook]:
        """The versions of a path before `before`, newest first."""

    async def save_files(self, contents: Mapping[str, bytes]) -> None:
        """Store files by the digest of their content."""

    async def file(self, digest: str) -> bytes | None:
        """The content of a file."""

    async def absent_files(self, digests: Sequence[str]) -> Sequence[str]:
        """Which of these files are not stored; the others count as used now."""

    async def save_bundle(self, bundle: Bundle) -> None:
        """Store a bundle under its digest; it counts as used now."""

    async def unregistered_bundles(self, age: float, limit: int) -> Sequence[tuple[str, Sequence[str]]]:
        """Bundles that no version of the catalog is part of and that were not used for `age` seconds, the oldest first,
        each with the digests of the texts that are part of it."""

    async def keep_bundle(self, digest: str) -> None:
        """Mark a bundle as used now."""

    async def delete_bundles(self, digests: Sequence[str], age: float) -> int:
        """Delete those of these bundles that were not used for `age` seconds, and the files that are part of no bundle
        and were not used for that time; return the number of bundles and files."""

    async def bundle(self, digest: str) -> Bundle | None:
        """A stored bundle."""
