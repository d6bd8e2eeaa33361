"""Preallocation of SQLite's write-ahead log (setting `sqlite.wal_preallocate`, decision 0027).

Flushing overwritten blocks is faster than flushing a file that has grown, because a growing file also commits the
journal of the file system. SQLite reads zeros as the end of the log, like the remains of an earlier log.
"""

from __future__ import annotations

import os
import sqlite3

WAL_HEADER, FRAME = 32, 24 + 4096  # bytes of the header of the WAL file, and of one frame with its page
MIN_BYTES, MAX_BYTES = 256 * 1024, 1024 * 1024  # that are added at once


def preallocate(connection: sqlite3.Connection, path: str) -> int:
    """Append as many zeros as the WAL file has bytes, unless another process has done so; return its new size.

    The write transaction excludes programs that do not use the lock file beside the database."""
    with open(path, "r+b", buffering=0) as file:
        connection.execute("BEGIN IMMEDIATE")
        try:
            wal = file.fileno()
            size = os.fstat(wal).st_size
            last = (size - WAL_HEADER) // FRAME - 1
            if last >= 0 and any(os.pread(wal, 4, WAL_HEADER + last * FRAME)):
                size += os.pwrite(wal, bytes(min(max(size, MIN_BYTES), MAX_BYTES)), size)
            return size
        finally:
            connection.execute("ROLLBACK")
