"""Files and folders of an installation that only its owner can read, whatever the umask."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO


def private_folder(folder: Path) -> None:
    """Create a folder, and the missing ones above it, with mode 0700; an existing one is left as it is."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        try:
            each.mkdir(mode=0o700)
        except FileExistsError:
            if not each.is_dir():
                raise
        else:
            each.chmod(0o700)


def flush_folder(folder: Path) -> None:
    """Make the names of new and renamed files durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def private_opener(path: str, flags: int) -> int:
    """The opener of `open` for a file with mode 0600."""
    return os.open(path, flags, 0o600)


def create_private(path: Path) -> IO[bytes]:
    """Create a file that does not exist, in a private folder."""
    private_folder(path.parent)
    return open(path, "xb", opener=private_opener)


def ensure_private(path: str) -> None:
    """Create an empty file with mode 0600, unless it exists."""
    if not os.path.exists(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
