"""Bundles of a catalog: child playbooks found in them, profiles applied to compiled playbooks, completeness checks."""

from __future__ import annotations

import posixpath
import re
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from noetl.core.model.bundle import (
    Bundle,
    Profile,
    bundle_file,
    file_and_folder,
    is_inner_path,
    split_bundle_file,
)
from noetl.core.model.merge import deep_merge
from noetl.core.model.playbook import KeychainEntry, Playbook
from noetl.errors import CorruptLog, NotFound, RequestRefused
from noetl.storage.ports.playbooks import PlaybookStore

SUFFIXES = ("", ".yaml", ".yml")
MAX_CACHED = 64


class Bundles:
    """The stored bundles; recently used ones are cached, since a bundle never changes."""

    def __init__(self, playbooks: PlaybookStore) -> None:
        self._playbooks = playbooks
        self._cache: OrderedDict[str, Bundle] = OrderedDict()

    async def get(self, digest: str) -> Bundle:
        """A bundle; CorruptLog when it is not stored."""
        known = self._cache.get(digest)
        if known is None:
            known = await self._playbooks.bundle(digest)
            if known is None:
                raise CorruptLog(f"the bundle {digest} is missing from the store")
            self._cache[digest] = known
            while len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return known

    async def add(self, bundle: Bundle) -> Sequence[str]:
        """Store a bundle; return the digests of its files that are not stored yet."""
        for path in bundle.files:
            if not is_inner_path(path):
                raise RequestRefused(f"{path!r} is not a path inside a bundle")
        both = file_and_folder(bundle.files)
        if both is not None:
            raise RequestRefused(f"{both!r} is a file and a folder of the bundle")
        await self._playbooks.save_bundle(bundle)
        return await self._playbooks.absent_files(list(bundle.files.values()))

    async def check(self, file: str, text: str) -> None:
        """Raise RequestRefused unless `file` names this text in a bundle whose files are all stored."""
        digest, path = _split(file)
        bundle = await self._playbooks.bundle(digest)
        if bundle is None:
            raise NotFound(f"there is no bundle {digest}; send it to /api/bundles first")
        absent = set(await self._playbooks.absent_files(list(bundle.files.values())))
        names = sorted(name for name, content in bundle.files.items() if content in absent)
        if names:
            raise RequestRefused(f"files of bundle {digest} have not been sent: {', '.join(names[:5])}")
        if await self._text(bundle, path) != text:
            raise RequestRefused(f"the content differs from {path} in bundle {digest}")

    async def find(self, path: str, caller: str) -> tuple[str, str] | None:
        """A playbook beside its caller in a bundle: text and file."""
        digest, place = _split(caller)
        bundle = await self.get(digest)
        for suffix in SUFFIXES:
            name = posixpath.normpath(posixpath.join(posixpath.dirname(place), path + suffix))
            text = await self._text(bundle, name)
            if text is not None:
                return text, bundle_file(digest, name)
        return None

    async def profile(self, file: str) -> Profile | None:
        """The profile that applies to a file; None for files outside of bundles."""
        found = split_bundle_file(file)
        return (await self.get(found[0])).profile if found else None

    async def _text(self, bundle: Bundle, name: str) -> str | None:
        content = await self._playbooks.file(bundle.files[name]) if name in bundle.files else None
        try:
            return None if content is None else content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise RequestRefused(f"{name} is not UTF-8 text") from None


def _split(file: str) -> tuple[str, str]:
    found = split_bundle_file(file)
    if found is None:
        raise RequestRefused(f"{file!r} is not a file of a bundle (bundle:DIGEST/PATH)")
    return found


def with_profile(playbook: Playbook, profile: Profile, text: str) -> Playbook:
    """The playbook with the workload values and the credential names of a profile."""
    renamed = profile.credentials
    entries = [_renamed(entry, renamed) for entry in playbook.keychain]
    declared = {entry.name for entry in entries}
    for name, stored in renamed.items():  # `auth: NAME` without a keychain entry
        if name not in declared and re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", text):
            entries.append(KeychainEntry(name, "credential", {"credential": stored}))
    workload = deep_merge(playbook.workload, profile.workload)
    return msgspec.structs.replace(playbook, workload=workload, keychain=tuple(entries))


def _renamed(entry: KeychainEntry, renamed: dict[str, str]) -> KeychainEntry:
    if entry.kind != "credential" and not entry.kind.endswith("_credential"):
        return entry
    stored = renamed.get(str(entry.fields.get("credential") or entry.name))
    if stored is None:
        return entry
    return msgspec.structs.replace(entry, fields={**entry.fields, "credential": stored})
