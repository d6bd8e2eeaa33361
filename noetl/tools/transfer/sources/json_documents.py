"""The rows of a large JSON document as lines: the objects of a list, copied as they are written.

DuckDB holds a document as a whole, and needs several times its size; lines are read in pieces. Only the object that is
being copied is in memory. What is not a list of objects is left to DuckDB, and so are its errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

BLOCK = 1 << 20
MOST_AROUND = 4 << 20
_STRING = rb'"(?:[^"\\\x00-\x1f]|\\.)*+"'
_OTHER = rb'[^{}\[\]"]*+'
_FLAT = _OTHER + rb"(?:" + _STRING + _OTHER + rb")*+"
_NESTED = _FLAT
for _ in range(4):
    _NESTED = _OTHER + rb"(?:(?:" + _STRING + rb"|[\[{]" + _NESTED + rb"[\]}])" + _OTHER + rb")*+"
# An object without nested values, a text (a key if a colon follows), a bracket, or a quote that does not end here.
_REST = _STRING + rb'\s*+:?|[\[\]{}"]'
_TOKEN = re.compile(rb"\{" + _FLAT + rb"\}|" + _REST)
# Inside of a list of rows: an object or list as a whole, if it has no more than a few levels and ends in the buffer.
_ROW_TOKEN = re.compile(rb"[\[{]" + _NESTED + rb"[\]}]|" + _REST)
_BREAKS = bytes.maketrans(b"\r\n", b"  ")


class NotRows(Exception):
    """The document has something else where rows are expected."""


class Lines(NamedTuple):
    """The rows of a document as lines."""

    path: Path
    size: int  # the number of rows
    around: bytes | None  # the document with empty lists at `emptied`; None if it is large
    emptied: list[str]  # dotted paths


def write_lines(path: str, steps: Sequence[str], keys: Sequence[str], target: Path) -> Lines | None:
    """Write the objects of a document's list as lines; None if the document is no such list.

    The list is the document itself, or the value at `steps` inside of it, or at the first of `keys` that has one."""
    places = [tuple(steps)] if steps else [(), *((key,) for key in keys)]
    with ExitStack() as stack:
        files: dict[tuple[str, ...], BinaryIO] = {
            place: stack.enter_context(target.with_suffix(f".{n}").open("wb")) for n, place in enumerate(places)
        }
        document = _Document(files)
        try:
            document.read(stack.enter_context(Path(path).open("rb")))
            around = document.around()
        except NotRows:
            return None
    counts = document.counts
    number = next((number for number, place in enumerate(places) if place in counts), None)
    if number is None or not counts[places[number]]:
        return None
    copied = target.with_suffix(f".{number}")
    return Lines(copied, counts[places[number]], around, [".".join(place) for place in counts])


class _Document:
    """One pass over a document, which copies the objects of some of its lists."""

    def __init__(self, files: dict[tuple[str, ...], BinaryIO]) -> None:
        self._files = files
        self._open: list[bytes] = []  # the brackets around the current position
        self._keys: list[str | None] = []  # the current key of each of them
        self._out: BinaryIO | None = None  # of the list around the current position
        self._depth = 0  # of that list
        self._first = True
        self._around = bytearray()  # what is outside of the lists
        self.counts: dict[tuple[str, ...], int] = {}  # the rows of each list
        self._ended = False
        self._buffer = b""
        self._start: int | None = None  # of the current object in the buffer

    def read(self, file: BinaryIO) -> None:
        """Copy the objects."""
        for text, start, end, before in self._tokens(file):
            if self._ended:
                raise NotRows
            kind = text[:1]
            if self._out is None:
                if len(self._around) <= MOST_AROUND:
                    self._around += before + text
            elif len(self._open) == self._depth:
                self._next_row(kind, before)
            if len(text) > 1 and kind in (b"{", b"["):
                self._row_ends(text, 0, len(text))
            elif kind in (b"{", b"["):
                self._begin(kind, start)
            elif kind in (b"}", b"]"):
                self._end(kind, end)
            elif text.endswith(b":") and self._out is None and self._open:
                self._keys[-1] = _decoded(text)
        if self._open or not self._ended:
            raise NotRows

    def around(self) -> bytes | None:
        """The document without the objects; None if it is still large."""
        if len(self._around) > MOST_AROUND:
            return None
        around = bytes(self._around.removeprefix(b"\xef\xbb\xbf"))
        try:
            decoded = msgspec.json.decode(around)
        except (msgspec.DecodeError, RecursionError):
            raise NotRows from None
        for place in self.counts:
            value = decoded
            for key in place:
                value = value.get(key) if isinstance(value, dict) else None
            if value != []:  # a key that occurs twice
                raise NotRows
        return around

    def _tokens(self, file: BinaryIO) -> Iterator[tuple[bytes, int, int, bytes]]:
        """Each token, its place in the buffer, and what is between it and the token before."""
        position = 0
        while block := file.read(max(BLOCK, len(self._buffer))):
            keep = position if self._start is None else min(position, self._start)
            self._buffer = self._buffer[keep:] + block
            position -= keep
            self._start = None if self._start is None else self._start - keep
            while found := (_TOKEN if self._out is None else _ROW_TOKEN).search(self._buffer, position):
                text = found[0]
                # A text at the end of the block may be a key.
                if text == b'"' or (found.end() == len(self._buffer) and text[:1] == b'"'):
                    break
                yield text, found.start(), found.end(), self._buffer[position : found.start()]
                position = found.end()
        if self._buffer[position:].strip():
            raise NotRows

    def _next_row(self, kind: bytes, before: bytes) -> None:
        """Check what is between the objects of a list."""
        between = before.strip()
        if kind == b"]" and not between:
            return
        if kind != b"{" or between != (b"" if self._first else b","):
            raise NotRows
        self._first = False

    def _begin(self, kind: bytes, start: int) -> None:
        place = self._place()
        self._open.append(kind)
        self._keys.append(None)
        if self._out is not None:
            if len(self._open) == self._depth + 1:
                self._start = start
        elif kind == b"[" and place in self._files and self._open.count(b"[") == 1:
            if place in self.counts:  # a key that occurs twice
                raise NotRows
            self._out, self._depth, self._first = self._files[place], len(self._open), True
            self.counts[place] = 0

    def _end(self, kind: bytes, end: int) -> None:
        if not self._open or self._open.pop() != {b"}": b"{", b"]": b"["}[kind]:
            raise NotRows
        self._keys.pop()
        if self._out is not None and len(self._open) == self._depth:
            assert self._start is not None
            self._row_ends(self._buffer, self._start, end)
        elif self._out is not None and len(self._open) < self._depth:
            self._out = None
            self._around += b"]"
        self._ended = not self._open

    def _row_ends(self, buffer: bytes, start: int, end: int) -> None:
        if self._out is None or len(self._open) != self._depth:
            self._ended = not self._open
            return
        self._out.write(buffer[start:end].translate(_BREAKS) + b"\n")
        self._start = None
        self.counts[self._place()] += 1

    def _place(self) -> tuple[str, ...]:
        return tuple(key for key in self._keys if key is not None)


def _decoded(key: bytes) -> str:
    try:
        return msgspec.json.decode(key.rstrip(b": \t\r\n"), type=str)
    except msgspec.DecodeError:
        raise NotRows from None
