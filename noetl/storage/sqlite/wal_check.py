"""Finds out whether commits of a killed process were lost with its write-ahead log.

SQLite ignores everything after the first invalid frame of a WAL, so a flipped bit, a cut or a deleted file rolls
acknowledged commits back without an error. The shared-memory file of the killed process still says how many frames were
committed; after the first connection has read the WAL, it says how many are valid. That connection rewrites both files,
so a loss is recorded in a file beside the database until a user accepts it (decision 87).
"""

from __future__ import annotations

import os
import struct
import sys
import time
from array import array
from typing import NamedTuple

_HEADER = struct.Struct("=IIIBBHII2I2I2I")  # the first copy of WalIndexHdr
_BACKFILLED = struct.Struct("=I")  # at the beginning of WalCkptInfo, which follows the second copy
_WAL_HEADER, _WAL_MAGIC = 32, b"\x37\x7f\x06"
_DMS_BYTE = 128  # of the -shm file: every connection holds a shared lock on it


class Committed(NamedTuple):
    """What a killed process had committed."""

    frames: int
    copied: int  # frames whose pages are in the database
    replaced: bool  # the WAL file is one of another time

    def lost(self, valid: int) -> int:
        """The frames that are lost, if the first connection found this many valid ones."""
        if not valid and self.copied >= self.frames:
            return 0
        return max(0, self.frames - valid)


def left_behind(path: str) -> Committed | None:
    """What a killed process has committed; None if the database is in use, was closed, or the system has restarted
    since: the shared-memory file is not flushed.

    No connection of this process may be open: closing the file would release its locks."""
    try:
        with open(f"{path}-shm", "rb") as shm:
            if _in_use(shm.fileno()) or os.fstat(shm.fileno()).st_mtime < time.time() - _uptime():
                return None
            data = shm.read(2 * _HEADER.size + _BACKFILLED.size)
    except OSError:
        return None
    if len(data) < 2 * _HEADER.size + _BACKFILLED.size:
        return None
    fields = _HEADER.unpack_from(data)
    if not fields[3] or _checksum(data[:40]) != fields[12:]:
        return None  # never used, or written halfway
    (copied,) = _BACKFILLED.unpack_from(data, 2 * _HEADER.size)
    frames, salts = int(fields[6]), data[32:40]
    return Committed(frames, int(copied), bool(frames) and _salts(path) not in (salts, None))


def _salts(path: str) -> bytes | None:
    """Two numbers that identify a WAL, as in its file; None if it has no header."""
    try:
        with open(f"{path}-wal", "rb") as wal:
            header = wal.read(_WAL_HEADER)
    except OSError:
        return None
    return header[16:24] if len(header) == _WAL_HEADER and header[:3] == _WAL_MAGIC else None


def recorded_loss(path: str) -> int:
    """The frames of a loss that no user has accepted."""
    try:
        with open(f"{path}.lost", encoding="ascii") as file:
            return int(file.read() or "1")
    except FileNotFoundError:
        return 0


def record_loss(path: str, frames: int) -> None:
    """Keep a loss until a user accepts it."""
    with open(f"{path}.lost", "w", encoding="ascii") as file:
        file.write(str(frames))
        file.flush()
        os.fsync(file.fileno())


def accept_loss(path: str) -> int:
    """Continue without the lost commits; returns how many frames they had. A WAL of another time is put aside."""
    frames = recorded_loss(path)
    if frames:
        found = left_behind(path)
        if found is not None and found.replaced:
            os.rename(f"{path}-wal", f"{path}-wal.replaced")
            os.unlink(f"{path}-shm")
        os.unlink(f"{path}.lost")
    return frames


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


def _in_use(descriptor: int) -> bool:
    import fcntl

    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, _DMS_BYTE)
        probe = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, _DMS_BYTE, 1, 0)
        found = fcntl.fcntl(descriptor, fcntl.F_GETLK, probe)
        return bool(struct.unpack("hhqqi", found)[0] != fcntl.F_UNLCK)
    except OSError:
        return True


def _checksum(data: bytes) -> tuple[int, int]:
    """SQLite's checksum over pairs of words."""
    words = array("I", data)
    one = two = 0
    for index in range(0, len(words), 2):
        one = (one + words[index] + two) & 0xFFFFFFFF
        two = (two + words[index + 1] + one) & 0xFFFFFFFF
    return one, two
