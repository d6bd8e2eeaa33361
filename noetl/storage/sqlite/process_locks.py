"""Which processes on this machine are alive: each holds a lock on a file of its own.

An embedded engine marks its executions with a number of its own (it is part of their ids). When an
execution is found unfinished, the number's file tells whether its process still works on it: the
kernel lets go of a lock when its holder dies, however it dies. So one process never takes over
what another is doing, and what a dead one left behind can be taken over at once.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Sequence

from noetl.core.model.ids import PROCESS_BITS, process_of
from noetl.errors import StoreUnavailable

TRIES = 100


class ProcessLocks:
    """Numbers of live processes, as locked files in a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._held: dict[int, int] = {}  # number -> file descriptor

    def claim(self) -> int:
        """A number that no live process has; it is ours until we close or die."""
        for _ in range(TRIES):
            number = secrets.randbits(PROCESS_BITS)
            if self.take(number):
                return number
        raise StoreUnavailable(f"{self._folder}: no free process number after {TRIES} tries")

    def take(self, number: int) -> bool:
        """Make a number ours, if its process is gone (or it is ours already)."""
        if number in self._held:
            return True
        path = self._path(number)
        try:
            os.makedirs(self._folder, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise StoreUnavailable(f"cannot write {path} ({problem.strerror})") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Somebody may have removed the file between our opening and our locking it.
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                self._held[number] = descriptor
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(descriptor)
        return False

    def orphans(self, ids: Sequence[str]) -> list[str]:
        """Executions whose process is gone; their numbers are ours now, so that nobody else takes them over."""
        ours = {number for number in set(map(process_of, ids)) if self.take(number)}
        return [execution_id for execution_id in ids if process_of(execution_id) in ours]

    def close(self) -> None:
        """Let go of all our numbers."""
        for number, descriptor in self._held.items():
            os.unlink(self._path(number))
            os.close(descriptor)
        self._held.clear()

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"{number:04x}")
