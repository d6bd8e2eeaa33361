"""Locks of the processes that use one SQLite store: each process locks a file of its own.

The number of the process is part of the ids of its executions. The lock of an unfinished execution's number shows
whether its process is alive, because the kernel releases the locks of a process that ends for any reason.
Invariant: an execution of a live process is never taken over, and one of a dead process can be taken over at once.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from noetl.core.model.ids import PROCESS_BITS, process_of
from noetl.errors import StoreUnavailable
from noetl.runtime.disk_errors import disk_error
from noetl.runtime.private_files import private_folder

TRIES = 100


class ProcessLocks:
    """The locked numbers of live processes, as files in a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._held: dict[int, int] = {}  # number -> file descriptor

    def claim(self) -> int:
        """Lock an unused number until `close` or the end of the process."""
        for _ in range(TRIES):
            number = secrets.randbits(PROCESS_BITS)
            if self.acquire(number):
                return number
        raise StoreUnavailable(f"{self._folder}: no free process number after {TRIES} tries")

    def acquire(self, number: int) -> bool:
        """Lock a number; False if another live process has locked it."""
        if number in self._held:
            return True
        path = self._path(number)
        try:
            private_folder(Path(self._folder))
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            what = disk_error(problem, path) or f"cannot write {path} ({problem.strerror}); check its permissions"
            raise StoreUnavailable(what) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have removed the file between open and lock.
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                self._held[number] = descriptor
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(descriptor)
        return False

    def acquire_orphans(self, ids: Sequence[str]) -> list[str]:
        """The executions whose process has ended; their numbers are locked against other processes."""
        locked = {number for number in set(map(process_of, ids)) if self.acquire(number)}
        return [execution_id for execution_id in ids if process_of(execution_id) in locked]

    def close(self) -> None:
        """Release all numbers."""
        for number, descriptor in self._held.items():
            os.unlink(self._path(number))
            os.close(descriptor)
        self._held.clear()

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"{number:04x}")
