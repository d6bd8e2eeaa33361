"""Large JSON responses of an API: the rows are in a temporary file, and read from it some at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from noetl.core.model.outcome import Outcome, elements_of, ok
from noetl.data.arrow_tables import SeenColumns
from noetl.data.content import save
from noetl.data.files.duckdb_files import ROWS_KEYS
from noetl.runtime.temporary_folders import TemporaryFolder
from noetl.tools.transfer.sources.json_documents import write_lines

LARGE_PAGE = 2 << 20  # bytes; Python's values of JSON take up to 16 times as much
PIECE_BYTES = 1 << 20
_decode = msgspec.json.Decoder().decode


class LargeRows(NamedTuple):
    """Rows in a file, with a JSON object in each line."""

    path: Path
    size: int
    seen: SeenColumns
    around: Any  # the document without them

    def pieces(self) -> Iterator[list[dict[str, Any]]]:
        """The rows, some at a time; the file is removed after them."""
        yield from _pieces(self.path)
        self.path.unlink()


class LargePages:
    """The temporary files of responses."""

    def __init__(self) -> None:
        self._folder: TemporaryFolder | None = None
        self._number = 0

    def close(self) -> None:
        """Remove the files."""
        if self._folder is not None:
            self._folder.cleanup()

    async def keep(self, chunks: AsyncIterator[bytes], header: str | None) -> Outcome:
        """Write the body of a response to a file; the outcome has its path."""
        self._folder = self._folder or TemporaryFolder("noetl-transfer-")
        self._number += 1
        path = Path(self._folder.name, f"{self._number}.body")
        await save(chunks, str(path))
        return ok(path, meta={"content_type": header})


def read_rows(path: Path, rows_path: str | None, is_read: Callable[[str], bool]) -> LargeRows | None:
    """The rows of a JSON document; None if it has no list of objects, or if `is_read` is true for the list's path."""
    found = write_lines(str(path), rows_path.split(".") if rows_path else (), ROWS_KEYS, path)
    if found is None or found.around is None or any(map(is_read, found.emptied)):
        return None
    around = msgspec.json.decode(found.around)
    if elements_of(around) is not around:
        return None
    seen = SeenColumns()
    try:
        for rows in _pieces(found.path):
            seen.add(rows)
    except (msgspec.DecodeError, RecursionError):  # reported for the document as a whole
        return None
    return LargeRows(found.path, found.size, seen, around)


def _pieces(path: Path) -> Iterator[list[dict[str, Any]]]:
    with path.open("rb") as file:
        while lines := file.readlines(PIECE_BYTES):
            yield [_decode(line) for line in lines]
