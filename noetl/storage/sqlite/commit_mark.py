"""Finds out whether a database is older than commits that were acknowledged (decision 89).

A row of the database counts up with a commit, at most once in `INTERVAL` seconds and with the first commit after every
checkpoint, so that the commits which are only in the write-ahead log have counted. After the commit is on disk, the
count is written to a file beside the database, without a flush. So the file never has a higher count than the disk: if
it has a higher one than the database, the write-ahead log was deleted or the database was replaced by an older copy.

The file records its own inode: in a copy of the whole folder, which may have been made while the database was written,
it says nothing.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
import zlib
from contextlib import closing, suppress
from urllib.parse import quote

PROBE = "probe"  # the row of `noetl_schema` that counts; not a part of the schema
INTERVAL = 1.0  # seconds between counted commits
_CONTENT = struct.Struct("<8sQQ")  # magic, inode of this file, count
_CHECKSUM = struct.Struct("<I")
_MAGIC = b"NoETLcm1"


def count_up(connection: sqlite3.Connection) -> None:
    """Count one commit, in its transaction."""
    connection.execute(
        "INSERT INTO noetl_schema(name, version) VALUES (?, 1) ON CONFLICT(name) DO UPDATE SET version = version + 1",
        (PROBE,),
    )


class CommitMark:
    """The file beside one database, written by its writer thread under the lock of the database."""

    def __init__(self, database: str) -> None:
        self._path = mark_of(database)
        self._descriptor: int | None = None
        self._inode = 0
        self._due = 0.0  # when the next commit is counted
        self._count = 0  # of the transaction that is open

    def count(self, connection: sqlite3.Connection) -> None:
        """Count the open transaction if it is due."""
        self._count = 0
        if time.monotonic() >= self._due:
            count_up(connection)
            self._count = stored_count(connection)

    def committed(self) -> None:
        """The transaction is on disk."""
        if self._count:
            self._write(self._count)
            self._due = time.monotonic() + INTERVAL

    def checkpointed(self) -> None:
        """The next commit may begin a new write-ahead log, which must not be lost unnoticed."""
        self._due = 0.0

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self, count: int) -> None:
        with suppress(OSError):  # the commit is on disk: an older count detects less, and is never wrong
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                self._inode = os.fstat(self._descriptor).st_ino
            content = _CONTENT.pack(_MAGIC, self._inode, count)
            os.pwrite(self._descriptor, content + _CHECKSUM.pack(zlib.crc32(content)), 0)


def stored_count(connection: sqlite3.Connection) -> int:
    """The count of a database."""
    row = connection.execute("SELECT version FROM noetl_schema WHERE name = ?", (PROBE,)).fetchone()
    return 0 if row is None else int(row[0])


def marked_count(database: str) -> int:
    """The count that the database had at least; 0 if nothing says so."""
    try:
        with open(mark_of(database), "rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            data = file.read(_CONTENT.size + _CHECKSUM.size)
    except OSError:
        return 0
    if len(data) < _CONTENT.size + _CHECKSUM.size:
        return 0
    content, checksum = data[: _CONTENT.size], _CHECKSUM.unpack(data[_CONTENT.size :])[0]
    magic, own, count = _CONTENT.unpack(content)
    return int(count) if (magic, own, zlib.crc32(content)) == (_MAGIC, inode, checksum) else 0


def is_older(connection: sqlite3.Connection, database: str) -> bool:
    """Whether the database lacks commits that were acknowledged."""
    marked = marked_count(database)
    return marked > 0 and stored_count(connection) < marked


def remove_mark(database: str) -> None:
    """Continue with the database as it is."""
    with suppress(FileNotFoundError):
        os.unlink(mark_of(database))


def accept_older(database: str) -> bool:
    """Continue with the database as it is; whether it lacks commits."""
    older = False
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{quote(database)}?mode=ro", uri=True)) as connection:
        older = is_older(connection, database)
    remove_mark(database)
    return older


def mark_of(database: str) -> str:
    """The file beside a database."""
    return f"{database}.mark"
