"""Large sheets of xlsx workbooks, read in pieces of some rows.

The library that reads workbooks holds all cells of a sheet. So the XML of a large sheet is divided between rows, and
each piece is read as a small workbook with the styles of the large one and the shared strings that the piece uses: the
values are those that the library would read from the whole. Unusual XML is refused when the sheet is first read.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import zipfile
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Self
from xml.etree import ElementTree

from noetl.runtime.temporary_folders import TemporaryFolder

_COLUMNS = 1 << 14  # that a sheet can have
LARGE = 32 << 20  # bytes of the XML of a sheet and its strings; the cells need several times as much
PIECE = 4 << 20
SMALL_PART = 4 << 20  # of the parts that each piece has too
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, OSError)
_NO_TAGS = (b"<![CDATA[", b"<!--", b"<!DOCTYPE", b"t='s'")


class UnusualSheet(Exception):
    """A sheet that cannot be divided."""


class LargeSheet:
    """A sheet of an xlsx file; a context that has a temporary file for its shared strings."""

    def __init__(self, path: str, index: int, archive: zipfile.ZipFile, part: str, strings: str | None) -> None:
        self._path = path
        self._index = index
        self._part = part
        self._strings = strings
        self._small = {
            each.filename: archive.read(each)
            for each in archive.infolist()
            if each.filename.endswith((".xml", ".rels"))
            and each.file_size <= SMALL_PART
            and "worksheets/" not in each.filename
            and each.filename != strings
        }
        self.left = _COLUMNS  # columns without cells before the others, after the first pass
        self._right = 0
        self._is_read = False

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        folder = self._stack.enter_context(TemporaryFolder("noetl-workbook-"))
        self._texts = _SharedStrings(self._stack.enter_context(Path(folder, "strings").open("w+b")))
        self._read = self._stack.enter_context(Path(folder, "rows").open("w+b"))
        return self

    @property
    def width(self) -> int:
        """The number of columns, after the first pass."""
        return max(self._right - self.left, 0)

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def rows(self) -> Iterator[tuple[int, list[Any]]]:
        """The rows with their numbers, from 1; a row may end before the last column.

        The first pass also has the columns on the left that have no cells. It must be complete, and writes the rows to
        a temporary file for the next ones."""
        if not self._is_read:
            yield from self._first_rows()
            self._is_read = True
            return
        self._read.seek(0)
        with suppress(EOFError):
            while True:
                for number, row in pickle.load(self._read):  # written by this process, in a folder of its own
                    yield number, row[self.left :]

    def _first_rows(self) -> Iterator[tuple[int, list[Any]]]:
        try:
            with zipfile.ZipFile(self._path) as archive:
                if self._strings is not None:
                    with archive.open(self._strings) as file:
                        self._texts.read(file)
                with archive.open(self._part) as file:
                    for head, tail, piece in _pieces(file):
                        rows = self._piece_rows(head + self._own_strings(piece) + tail)
                        pickle.dump(rows, self._read, pickle.HIGHEST_PROTOCOL)
                        yield from rows
        except _UNREADABLE as wrong:
            raise UnusualSheet from wrong

    def _own_strings(self, piece: bytes) -> bytes:
        """The piece with the numbers that its shared strings have in its own workbook."""
        places: dict[int, int] = {}

        def placed(found: re.Match[bytes]) -> bytes:
            return found[1] + b"%d" % places.setdefault(int(found[2]), len(places))

        changed, count = _STRING_CELL.subn(placed, piece)
        if count != piece.count(b't="s"'):
            raise UnusualSheet
        if self._strings is not None:
            self._small[self._strings] = self._texts.part(list(places))
        return changed

    def _piece_rows(self, sheet: bytes) -> list[tuple[int, list[Any]]]:
        import python_calamine

        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in (self._small | {self._part: sheet}).items():
                archive.writestr(name, content)
        file.seek(0)
        try:
            read = python_calamine.CalamineWorkbook.from_filelike(file).get_sheet_by_index(self._index)
        except python_calamine.CalamineError as wrong:  # the whole workbook has a better message
            raise UnusualSheet from wrong
        if read.start is None:
            return []
        row, column = read.start
        before = [""] * column
        self.left, self._right = min(self.left, column), max(self._right, column + read.width)
        return [(number, before + cells) for number, cells in enumerate(read.to_python(), row + 1)]


class _SharedStrings:
    """The shared strings of a workbook, as elements in a temporary file."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._ends = array("Q", [0])
        self._head = b""
        self._tail = b""

    @property
    def count(self) -> int:
        return len(self._ends) - 1

    def read(self, file: Any) -> None:
        head, pending = _beginning(file, rb"<(?:(\w+):)?sst[\s>][^>]*>")
        prefix = head[2]
        name = prefix + b"si"
        element = re.compile(rb"<%b\s*/>|<%b(?:\s[^>]*)?>.*?</%b>" % (name, name, name), re.DOTALL)
        self._head, self._tail = head[0] + head[1], b"</%bsst>" % prefix
        while pending:
            end = 0
            for found in element.finditer(_checked(pending)):
                self._file.write(found[0])
                self._ends.append(self._ends[-1] + len(found[0]))
                end = found.end()
            more = file.read(PIECE)
            if not more:
                break
            pending = pending[end:] + more
        self._file.flush()

    def part(self, numbers: Sequence[int]) -> bytes:
        """The part of a workbook with these strings."""
        if max(numbers, default=-1) >= self.count:
            raise UnusualSheet
        pieces, first = [], 0
        for place, number in enumerate(numbers, 1):
            if place == len(numbers) or numbers[place] != number + 1:  # the end of a run
                begin = self._ends[numbers[first]]
                pieces.append(os.pread(self._file.fileno(), self._ends[number + 1] - begin, begin))
                first = place
        return self._head + b"".join(pieces) + self._tail


_STRING_CELL = re.compile(rb'(\bt="s"[^>]*>\s*<(?:\w+:)?v>\s*)(\d+)')


def _checked(data: bytes) -> bytes:
    if any(mark in data for mark in _NO_TAGS):
        raise UnusualSheet
    return data


def _beginning(file: Any, root: bytes) -> tuple[tuple[bytes, bytes, bytes], bytes]:
    """What is before the first element and its start tag, the prefix of the names, and what was read after it."""
    data = _checked(file.read(PIECE))
    found = re.search(root, data)
    if found is None or data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UnusualSheet
    return (data[: found.start()], found[0], found[1] + b":" if found[1] else b""), data[found.end() :]


def _pieces(file: Any) -> Iterator[tuple[bytes, bytes, bytes]]:
    """The rows of a sheet in pieces, each with what makes it a sheet."""
    (before, root, prefix), pending = _beginning(file, rb"<(?:(\w+):)?worksheet[\s>][^>]*>")
    data, end_of_row = b"%bsheetData" % prefix, b"</%brow>" % prefix
    head, tail = before + root + b"<" + data + b">", b"</" + data + b"></" + prefix + b"worksheet>"
    start, number = b"<%brow" % prefix, re.compile(rb'<%brow\s(?:[^>]*?\s)?r="(\d+)"' % prefix)
    begun = re.search(rb"<%b(?:\s[^>]*)?>" % data, pending)
    if begun is None:
        raise UnusualSheet
    pending, last = pending[begun.end() :], 0
    while True:
        closed = pending.find(b"</" + data)
        end = closed if closed >= 0 else pending.rfind(end_of_row) + len(end_of_row)
        if closed >= 0 or end >= len(end_of_row):
            piece, pending = pending[:end], pending[end:]
            numbers = [int(found) for found in number.findall(_checked(piece))]
            if len(numbers) != piece.count(start) or any(
                a >= b for a, b in zip([last, *numbers], numbers, strict=False)
            ):
                raise UnusualSheet  # rows without a number, or in another order
            last = numbers[-1] if numbers else last
            yield head, tail, piece
        if closed >= 0:
            return
        more = file.read(PIECE)
        if not more or len(pending) > 8 * PIECE:
            raise UnusualSheet
        pending += more


def large_sheet(path: str, wanted: Any) -> LargeSheet | None:
    """The sheet with a name or number, if it is large and can be divided."""
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {each.filename: each.file_size for each in archive.infolist()}
            if max(sizes.values(), default=0) < LARGE or sizes["xl/workbook.xml"] > SMALL_PART:
                return None
            sheets = [
                each for each in _xml(archive, "xl/workbook.xml").iter() if each.tag.rpartition("}")[2] == "sheet"
            ]
            index = _index([each.get("name") for each in sheets], wanted)
            relations = {each.get("Id"): each for each in _xml(archive, "xl/_rels/workbook.xml.rels")}
            part = _part(relations[sheets[index].get(_RELATION)])
            shared = (each for each in relations.values() if str(each.get("Type")).endswith("/sharedStrings"))
            strings = next(map(_part, shared), None)
            if sizes[part] + (sizes[strings] if strings else 0) < LARGE:
                return None
            return LargeSheet(path, index, archive, part, strings)
    except (*_UNREADABLE, UnusualSheet, ElementTree.ParseError, LookupError, ValueError, RuntimeError):
        return None  # the library says what is wrong


def _index(names: list[str | None], wanted: Any) -> int:
    number = wanted if isinstance(wanted, int) and not isinstance(wanted, bool) else names.index(wanted or names[0])
    if number < 0:
        raise LookupError(number)
    return number


def _xml(archive: zipfile.ZipFile, name: str) -> ElementTree.Element:
    return ElementTree.fromstring(_checked(archive.read(name)))


def _part(relation: ElementTree.Element) -> str:
    target = str(relation.get("Target"))
    return target.removeprefix("/") if target.startswith("/") else str(PurePosixPath("xl", target))
