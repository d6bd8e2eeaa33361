"""Checks a write-ahead log that a killed process left, before SQLite reads it.

SQLite ignores everything after the first invalid frame of a WAL, so a flipped bit or a cut file rolls acknowledged
commits back without an error. The shared-memory file of the killed process still says how many frames were committed:
if fewer are valid, commits are lost. The check must run before any connection is opened: the first one rebuilds that
file.
"""

from __future__ import annotations

import os
import struct
import sys
from array import array

_SHM_HEADER = struct.Struct("=IIIBBHII2I2I2I")  # the first copy of WalIndexHdr
_FRAME_HEADER = 24
_DMS_BYTE = 128  # of the -shm file: every connection holds a shared lock on it


def lost_frames(path: str) -> int:
    """The number of committed frames of the WAL of a database that cannot be read; 0 if it is intact or in use."""
    try:
        with open(f"{path}-shm", "rb") as shm:
            if _in_use(shm.fileno()):
                return 0
            header = shm.read(_SHM_HEADER.size)
    except OSError:
        return 0  # the database was closed properly
    try:
        with open(f"{path}-wal", "rb") as wal:
            content = wal.read()
    except OSError:
        content = b""
    if len(header) < _SHM_HEADER.size:
        return 0
    fields = _SHM_HEADER.unpack(header)
    initialized, committed = bool(fields[3]), int(fields[6])
    salt1, salt2, sum1, sum2 = fields[10:]
    if not initialized or _checksum(header[:40], sys.byteorder == "big", (0, 0)) != (sum1, sum2):
        return 0  # never used, or written halfway
    return max(0, committed - _valid_frames(content, (salt1, salt2), committed))


def _in_use(descriptor: int) -> bool:
    import fcntl

    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, _DMS_BYTE)
        probe = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, _DMS_BYTE, 1, 0)
        found = fcntl.fcntl(descriptor, fcntl.F_GETLK, probe)
        return bool(struct.unpack("hhqqi", found)[0] != fcntl.F_UNLCK)
    except OSError:
        return True


def _valid_frames(content: bytes, salts: tuple[int, int], most: int) -> int:
    """How many frames from the start have valid checksums and the salts of this WAL."""
    if len(content) < 32:
        return 0
    magic, _, page, _, *own = struct.unpack(">IIIIIIII", content[:32])
    big = bool(magic & 1)
    # The index stores the salts as they are in the file.
    if struct.pack("=II", *salts) != content[16:24]:
        return most  # the WAL was started again: its frames are in the database
    total = _checksum(content[:24], big, (0, 0))
    if total != (own[2], own[3]):
        return 0
    for number in range(most):
        start = 32 + number * (_FRAME_HEADER + page)
        frame = content[start : start + _FRAME_HEADER + page]
        if len(frame) < _FRAME_HEADER + page or frame[8:16] != content[16:24]:
            return number
        total = _checksum(frame[_FRAME_HEADER:], big, _checksum(frame[:8], big, total))
        if total != struct.unpack(">II", frame[16:24]):
            return number
    return most


def _checksum(data: bytes, big: bool, start: tuple[int, int]) -> tuple[int, int]:
    """SQLite's cumulative checksum over pairs of words."""
    words = array("I", data)
    if big != (sys.byteorder == "big"):
        words.byteswap()
    one, two = start
    for index in range(0, len(words), 2):
        one = (one + words[index] + two) & 0xFFFFFFFF
        two = (two + words[index + 1] + one) & 0xFFFFFFFF
    return one, two
