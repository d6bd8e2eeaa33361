"""One pass over files of JSON lines before DuckDB reads them: the longest line, and lines that are no rows.

If a line is not an object, DuckDB reads all lines as one column of JSON; it reads `null` as a row of nulls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

BLOCK = 1 << 16
LONGEST_LINE = 64 << 20  # such lines need about ten times the memory
_BLANK = b" \t\r\n"
_OBJECT = re.compile(rb"\n[ \t\r\n]*\{")
_OTHER = re.compile(rb"\n[ \t\r\n]*[^{ \t\r\n]")


def longest_line(paths: Iterable[Path]) -> int:
    """The length of the longest line, rounded up to a block; an error if some lines are objects and others are not."""
    scans = []
    for path in paths:
        scans.append(_Scan(path))
        scans[-1].read()
    others = [f"{scan.path}: line {scan.other:,}" for scan in scans if scan.other is not None]
    if others and any(scan.has_object for scan in scans):
        from duckdb import InvalidInputException

        raise InvalidInputException(
            f"{others[0]} is not a JSON object, and other lines are: every line is a row; remove the line, or set "
            "`bad_rows: quarantine`"
        )
    return max((scan.longest for scan in scans), default=0)


class _Scan:
    """What the lines of a file are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.longest = 0
        self.has_object = False
        self.other: int | None = None  # the first line that is not an object

    def read(self) -> None:
        """Read the file in blocks."""
        carried = lines = 0
        before = b"\n"  # the end of the last line, if nothing but blanks follows it
        with self.path.open("rb") as file:
            while block := file.read(BLOCK):
                first, last = block.find(b"\n"), block.rfind(b"\n")
                self.longest = max(self.longest, len(block), carried + (first if first >= 0 else len(block)))
                if self.longest > LONGEST_LINE:
                    from duckdb import InvalidInputException

                    raise InvalidInputException(
                        f"{self.path}: line {lines + 1:,} has more than {LONGEST_LINE >> 20} MB"
                    )
                before = self._look(before, block, lines)
                carried = carried + len(block) if last < 0 else len(block) - last
                lines += block.count(b"\n")

    def _look(self, before: bytes, block: bytes, lines: int) -> bytes:
        """Look at the first characters of lines; returns a line end if the next block begins a line."""
        text = before + (block.removeprefix(b"\xef\xbb\xbf") if not self.has_object and not lines else block)
        self.has_object = self.has_object or _OBJECT.search(text) is not None
        if self.other is None and (found := _OTHER.search(text)):
            self.other = lines + text.count(b"\n", len(before), found.end()) + 1
        blanks = text[len(text.rstrip(_BLANK)) :]
        return b"\n" if b"\n" in blanks else b""
