"""The catalog in memory: for tests, simulation and `--store memory:`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from noetl.core.model.bundle import Bundle, split_bundle_file
from noetl.storage.ports.playbooks import StoredPlaybook


class MemoryPlaybookStore:
    """`ports.PlaybookStore` in memory."""

    def __init__(self) -> None:
        self._texts: dict[str, tuple[str, str]] = {}
        self._versions: dict[str, list[StoredPlaybook]] = {}
        self._files: dict[str, bytes] = {}
        self._bundles: dict[str, Bundle] = {}
        self._used: dict[str, float] = {}  # texts, bundles and files

    async def save_text(self, digest: str, text: str, file: str) -> None:
        """Store the text of an execution's playbook, once per digest; it counts as used now."""
        self._texts.setdefault(digest, (text, file))
        self._use([digest])

    async def text(self, digest: str) -> tuple[str, str] | None:
        """Text and file of a digest."""
        return self._texts.get(digest)

    async def unregistered_texts(self, age: float, limit: int) -> Sequence[str]:
        """Texts of no version that were not used for `age` seconds, the oldest first."""
        registered = self._registered()
        unused = [digest for digest in self._texts if self._is_unused(digest, age) and digest not in registered]
        return sorted(unused, key=lambda digest: (self._used[digest], digest))[:limit]

    async def keep_texts(self, digests: Sequence[str]) -> None:
        """Mark texts as used now."""
        self._use(digests)

    async def delete_texts(self, digests: Sequence[str], age: float) -> int:
        """Delete these texts if they were not used for `age` seconds."""
        gone = [digest for digest in digests if digest in self._texts and self._is_unused(digest, age)]
        for digest in gone:
            del self._texts[digest]
        return len(gone)

    async def register(self, playbook: StoredPlaybook) -> StoredPlaybook:
        """Add a version of a path; an unchanged digest is not a new version."""
        await self.save_text(playbook.digest, playbook.text, playbook.file)
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
        self._use(contents)

    async def file(self, digest: str) -> bytes | None:
        """The content of a file."""
        return self._files.get(digest)

    async def absent_files(self, digests: Sequence[str]) -> Sequence[str]:
        """Which of these files are not stored; the others count as used now."""
        self._use(digests)
        return [digest for digest in digests if digest not in self._files]

    async def save_bundle(self, bundle: Bundle) -> None:
        """Store a bundle under its digest; it counts as used now."""
        self._bundles[bundle.digest] = bundle
        self._use([bundle.digest])

    async def bundle(self, digest: str) -> Bundle | None:
        """A stored bundle."""
        return self._bundles.get(digest)

    async def unregistered_bundles(self, age: float, limit: int) -> Sequence[tuple[str, Sequence[str]]]:
        """Bundles that no version is part of and that were not used for `age` seconds, with their texts."""
        texts: dict[str, list[str]] = {}
        for digest, (_, file) in self._texts.items():
            texts.setdefault((split_bundle_file(file) or ("",))[0], []).append(digest)
        registered = self._registered()
        found = [
            (digest, texts.get(digest, []))
            for digest in sorted(self._bundles, key=self._used.__getitem__)
            if self._is_unused(digest, age) and not registered & {*texts.get(digest, [])}
        ]
        return found[:limit]

    async def keep_bundle(self, digest: str) -> None:
        """Mark a bundle as used now."""
        self._use([digest])

    async def delete_bundles(self, digests: Sequence[str], age: float) -> int:
        """Delete these bundles if they were not used for `age` seconds, and unused files of no bundle."""
        gone = [digest for digest in digests if digest in self._bundles and self._is_unused(digest, age)]
        for digest in gone:
            del self._bundles[digest]
        named = {content for bundle in self._bundles.values() for content in bundle.files.values()}
        files = [digest for digest in self._files if digest not in named and self._is_unused(digest, age)]
        for digest in files:
            del self._files[digest]
        return len(gone) + len(files)

    def _registered(self) -> set[str]:
        return {each.digest for versions in self._versions.values() for each in versions}

    def _use(self, digests: Iterable[str]) -> None:
        self._used.update(dict.fromkeys(digests, time.time()))

    def _is_unused(self, digest: str, age: float) -> bool:
        return self._used[digest] <= time.time() - age
