"""The catalog in memory: for tests, simulation and `--store memory:`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from noetl.core.model.bundle import Bundle
from noetl.storage.ports.playbooks import StoredPlaybook


class MemoryPlaybookStore:
    """`ports.PlaybookStore` in memory."""

    def __init__(self) -> None:
        self._texts: dict[str, tuple[str, str]] = {}
        self._versions: dict[str, list[StoredPlaybook]] = {}
        self._files: dict[str, bytes] = {}
        self._bundles: dict[str, Bundle] = {}

    async def save_text(self, digest: str, text: str, file: str) -> None:
        """Store the text of an execution's playbook, once per digest."""
        self._texts.setdefault(digest, (text, file))

    async def text(self, digest: str) -> tuple[str, str] | None:
        """Text and file of a digest."""
        return self._texts.get(digest)

    async def register(self, playbook: StoredPlaybook) -> StoredPlaybook:
        """Add a version of a path; an unchanged digest is not a new version."""
        self._texts.setdefault(playbook.digest, (playbook.text, playbook.file))
        versions = self._versions.setdefault(playbook.path, [])
        if not versions or versions[-1].digest != playbook.digest:
            versions.append(msgspec.structs.replace(playbook, version=len(versions) + 1))
        return versions[-1]

    async def find(self, path: str, version: int | None = None) -> StoredPlaybook | None:
        """One version of a path; None is the newest."""
        versions = self._versions.get(path, [])
        if version is None:
            return versions[-1] if versions else None
        return versions[version - 1] if 0 < version <= len(versions) else None

    async def versions(self, path: str, *, before: int | None = None, limit: int = 100) -> Sequence[StoredPlaybook]:
        """The versions of a path before `before`, newest first."""
        known = self._versions.get(path, [])
        return known[: None if before is None else before - 1][::-1][:limit]

    async def list(
        self, *, search: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[StoredPlaybook]:
        """The newest version of each path, by path."""
        paths = sorted(
            path for path in self._versions if path > (after or "") and (not search or search.lower() in path.lower())
        )
        return [self._versions[path][-1] for path in paths[:limit]]

    async def save_files(self, contents: Mapping[str, bytes]) -> None:
        """Store files by the digest of their content."""
        self._files.update(contents)

    async def file(self, digest: str) -> bytes | None:
        """The content of a file."""
        return self._files.get(digest)

    async def absent_files(self, digests: Sequence[str]) -> Sequence[str]:
        """Which of these files are not stored."""
        return [digest for digest in digests if digest not in self._files]

    async def save_bundle(self, bundle: Bundle) -> None:
        """Store a bundle under its digest."""
        self._bundles[bundle.digest] = bundle

    async def bundle(self, digest: str) -> Bundle | None:
        """A stored bundle."""
        return self._bundles.get(digest)
