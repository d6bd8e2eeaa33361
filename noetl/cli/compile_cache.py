"""Keeps compiled playbooks in NOETL_HOME/cache, so that `noetl run` of an unchanged text does not load the compiler.

Only a playbook without diagnostics is kept: warnings are shown on every run. An entry is valid for one text, one
name, the same modes, the same code of NoETL and the same installed packages. A missing, damaged or unwritable cache
only costs time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec

import noetl
from noetl.core.model.playbook import Playbook
from noetl.runtime.private_files import create_private

MAX_ENTRIES = 200
COMPILER = ("core", "tools")  # the packages whose code decides what a text means


class CompileCache:
    """Compiled playbooks by the digest of everything that decides the result."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "cache" / "playbooks"
        self._environment = _environment_digest()

    def key(self, text: bytes, name: str, *, strict: bool, legacy: bool) -> str:
        """The key of a compilation."""
        modes = f"{name}\0{strict}\0{legacy}\0{self._environment}\0".encode("utf-8", "surrogateescape")
        return sha256(modes + text).hexdigest()

    def get(self, key: str) -> Playbook | None:
        """The compiled playbook; None if it is not in the cache."""
        try:
            return msgspec.json.decode((self._folder / key).read_bytes(), type=Playbook)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def put(self, key: str, playbook: Playbook) -> None:
        """Keep a compiled playbook, if the folder can be written."""
        temporary = self._folder / f"{key}.{os.getpid()}"
        with suppress(OSError):
            with create_private(temporary) as file:
                file.write(msgspec.json.encode(playbook))
            os.replace(temporary, self._folder / key)
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        entries = [(entry.stat().st_mtime_ns, entry.path) for entry in os.scandir(self._folder)]
        for _, path in sorted(entries)[:-MAX_ENTRIES]:
            os.unlink(path)


def _environment_digest() -> str:
    """Changes with the code of the compiler and with every installed or removed package."""
    digest = sha256(noetl.__version__.encode())
    for folder in dict.fromkeys(sys.path):
        if os.path.exists(folder):
            digest.update(f"{folder}\0{os.stat(folder).st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    for package in COMPILER:
        for line in sorted(_files(os.path.join(noetl.__path__[0], package))):
            digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _files(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                state = entry.stat()
                yield f"{entry.path}\0{state.st_mtime_ns}\0{state.st_size}\n"
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _files(entry.path)
