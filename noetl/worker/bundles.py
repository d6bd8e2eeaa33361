"""The worker's copies of bundles: one folder per bundle, in which its playbooks find their files.

A copy is made once, from files that are checked against their digests, and renamed into place when it is complete, so
several workers of one machine share it. What a playbook writes beside itself stays in the copy of that version on that
worker.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from noetl.core.model.bundle import Bundle, file_digest, is_inner_path, split_bundle_file
from noetl.errors import CorruptLog
from noetl.runtime.threads import in_thread
from noetl.storage.ports.work_link import WorkLink

UNUSED_SECONDS = 30 * 86400.0


class BundleFolders:
    """The copies of bundles in one folder."""

    def __init__(self, home: Path | None = None) -> None:
        self._home = home
        self._copying: dict[str, asyncio.Task[Path]] = {}
        self._folders: dict[str, Path] = {}

    async def prepare(self, link: WorkLink, file: str) -> None:
        """Copy the bundle of a file, if it is in one."""
        found = split_bundle_file(file)
        if found is None or found[0] in self._folders:
            return
        digest = found[0]
        copying = self._copying.get(digest)
        if copying is None:
            copying = self._copying[digest] = asyncio.ensure_future(self._copy(link, digest))
            copying.add_done_callback(lambda _: self._copying.pop(digest, None))
        self._folders[digest] = await asyncio.shield(copying)

    def local_file(self, file: str) -> str:
        """The file in the copy of its bundle; other files unchanged."""
        found = split_bundle_file(file)
        return file if found is None else str(self._folders[found[0]] / found[1])

    async def _copy(self, link: WorkLink, digest: str) -> Path:
        if self._home is None:
            self._home = Path(tempfile.mkdtemp(prefix="noetl-bundles-"))  # no name that another user could create first
        home = self._home
        folder = home / digest
        if await in_thread(lambda: _is_copied(folder)):
            return folder
        bundle = msgspec.json.decode(await link.bundle(digest), type=Bundle)
        if bundle.digest != digest:
            raise CorruptLog(f"the bundle {digest} is damaged")
        contents: dict[str, bytes] = {}
        for name, content_digest in bundle.files.items():
            contents[name] = await link.bundle_file(content_digest)
            if file_digest(contents[name]) != content_digest or not is_inner_path(name):
                raise CorruptLog(f"the file {name} of bundle {digest} is damaged")
        await in_thread(lambda: _write(home, folder, contents))
        return folder


def _is_copied(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    os.utime(folder)
    return True


def _write(home: Path, folder: Path, contents: Mapping[str, bytes]) -> None:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    _remove_unused(home)
    temporary = Path(tempfile.mkdtemp(dir=home, prefix=".copy-"))
    try:
        for name, content in contents.items():
            place = temporary / name
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("xb") as file:  # two names may be one on this file system
                file.write(content)
            if content.startswith(b"#!"):
                place.chmod(0o700)
        try:
            temporary.rename(folder)
        except OSError:  # another worker was faster
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_unused(home: Path) -> None:
    """Remove copies that no worker has used for a month."""
    for folder in home.iterdir():
        if folder.stat().st_mtime < time.time() - UNUSED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
