"""Rotation of the log file of a background process.

The process writes to its standard error, which is the file. A full file is copied and truncated in place, because
the descriptor stays open; everything that is written to standard error stays in the same file.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
from pathlib import Path
from typing import TextIO

CHECK_RECORDS = 50  # records between two looks at the size


class RotatingStreamHandler(logging.StreamHandler[TextIO]):
    """Writes to a stream whose file is rotated when it is larger than `max_bytes`."""

    def __init__(self, stream: TextIO, file: Path, max_bytes: int, keep: int) -> None:
        super().__init__(stream)
        self._file = file
        self._max_bytes = max_bytes
        self._keep = keep
        self._records = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; now and then look at the size of the file."""
        super().emit(record)
        self._records += 1
        if self._records % CHECK_RECORDS == 0:
            self.rotate_if_full()

    def rotate_if_full(self) -> None:
        """Rotate the file if it is too large; a failure costs nothing but the rotation."""
        try:
            descriptor = self.stream.fileno()
            if os.fstat(descriptor).st_size <= self._max_bytes:
                return
            for number in range(self._keep - 1, 0, -1):
                older = self._numbered(number)
                if older.exists():
                    older.replace(self._numbered(number + 1))
            shutil.copyfile(self._file, self._numbered(1))
            os.ftruncate(descriptor, 0)
        except OSError as problem:
            self._records = 0
            super().emit(
                logging.LogRecord("noetl.log", logging.WARNING, "", 0, f"the log is not rotated: {problem}", None, None)
            )

    def _numbered(self, number: int) -> Path:
        return self._file.with_name(f"{self._file.name}.{number}")


def is_file(stream: TextIO, file: Path) -> bool:
    """Whether a stream writes to this file."""
    try:
        found, expected = os.fstat(stream.fileno()), file.stat()
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and (found.st_dev, found.st_ino) == (expected.st_dev, expected.st_ino)
