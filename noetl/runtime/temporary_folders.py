"""Temporary folders of tasks and queries; what a killed process has left is removed by a later one.

A folder has a lock file, which its process holds: a folder whose lock is free belongs to a process that has ended. This
holds for processes in containers with numbers of their own, too.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LOCK = ".noetl-lock"
YOUNG_S = 60.0  # a younger folder may not have its lock yet
LOOK_AGAIN_S = 600.0


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A temporary folder for data that may be large."""

    def __init__(self, prefix: str) -> None:
        _Sweep.start(tempfile.gettempdir())
        super().__init__(prefix=prefix)
        self._lock = Path(self.name, LOCK).open("wb")  # noqa: SIM115 - open as long as the folder exists
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def cleanup(self) -> None:
        """Remove the folder."""
        self._lock.close()
        super().cleanup()


class _Sweep:
    """The search for abandoned folders, in a thread and not too often."""

    next_at = 0.0

    @classmethod
    def start(cls, place: str) -> None:
        now = time.monotonic()
        if now >= cls.next_at:
            cls.next_at = now + LOOK_AGAIN_S
            threading.Thread(target=remove_abandoned, args=(place,), daemon=True, name="noetl-sweep").start()


def remove_abandoned(place: str) -> None:
    """Remove the folders of processes that have ended."""
    for folder in _abandoned(place):
        shutil.rmtree(folder, ignore_errors=True)


def _abandoned(place: str) -> Iterator[Path]:
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            lock = Path(entry.path, LOCK)
            if not entry.name.startswith("noetl-") or not lock.exists():
                continue
            with suppress(OSError):  # of another user, removed meanwhile, or locked
                if time.time() - lock.stat().st_mtime > YOUNG_S and _is_free(lock):
                    yield Path(entry.path)


def _is_free(lock: Path) -> bool:
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)
    return True
