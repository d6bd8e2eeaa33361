"""The rows of a large JSON document as lines: the objects of a list, copied as they are written.

DuckDB holds a document as a whole, and needs several times its size; lines are read in pieces. Only the object that is
being copied is in memory. What is not a list of objects is left to DuckDB, and so are its errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import msgspec

BLOCK = 1 << 20
_STRING = rb'"(?:[^"\\\x00-\x1f]|\\.)*+"'
# An object without nested values, a text (a key if a colon follows), a bracket, or a quote that does not end here.
_TOKEN = re.compile(rb'\{[^{}\[\]"]*+(?:' + _STRING + rb'[^{}\[\]"]*+)*+\}|' + _STRING + rb'\s*+:?|[\[\]{}"]')
_BREAKS = bytes.maketrans(b"\r\n", b"  ")


class NotRows(Exception):
    """The document has something else where rows are expected."""


def write_lines(path: str, steps: Sequence[str], keys: Sequence[str], target: Path) -> Path | None:
    """Write the objects of a document's list as lines; return the file, or None if the document is no such list.

    The list is the document itself, or the value at `steps` inside of it, or at the first of `keys` that has one."""
    places = [tuple(steps)] if steps else [(), *((key,) for key in keys)]
    with ExitStack() as stack:
        files: dict[tuple[str, ...], BinaryIO] = {
            place: stack.enter_context(target.with_suffix(f".{n}").open("wb")) for n, place in enumerate(places)
        }
        try:
            found = _Document(files).read(stack.enter_context(Path(path).open("rb")))
        except NotRows:
            return None
    chosen = next((number for number, place in enumerate(places) if place in found), None)
    return None if chosen is None else target.with_suffix(f".{chosen}")


class _Document:
    """One pass over a document, which copies the objects of some of its lists."""

    def __init__(self, files: dict[tuple[str, ...], BinaryIO]) -> None:
        self._files = files
        self._open: list[bytes] = []  # the brackets around the current position
        self._keys: list[str | None] = []  # the current key of each of them
        self._out: BinaryIO | None = None  # of the list around the current position
        self._depth = 0  # of that list
        self._first = True
        self._found: set[tuple[str, ...]] = set()  # lists with rows
        self._ended = False
        self._buffer = b""
        self._start: int | None = None  # of the current object in the buffer

    def read(self, file: BinaryIO) -> set[tuple[str, ...]]:
        """Copy the objects; returns the lists that have some."""
        for text, start, end, before in self._tokens(file):
            if self._ended:
                raise NotRows
            kind = text[:1]
            if self._out is not None and len(self._open) == self._depth:
                self._next_row(kind, before)
            if kind == b"{" and len(text) > 1:
                self._row_ends(text, 0, len(text))
            elif kind in (b"{", b"["):
                self._begin(kind, start)
            elif kind in (b"}", b"]"):
                self._end(kind, end)
            elif text.endswith(b":") and self._out is None and self._open:
                self._keys[-1] = _decoded(text)
        if self._open or not self._ended:
            raise NotRows
        return self._found

    def _tokens(self, file: BinaryIO) -> Iterator[tuple[bytes, int, int, bytes]]:
        """Each token, its place in the buffer, and what is between it and the token before."""
        position = 0
        while block := file.read(max(BLOCK, len(self._buffer))):
            keep = position if self._start is None else min(position, self._start)
            self._buffer = self._buffer[keep:] + block
            position -= keep
            self._start = None if self._start is None else self._start - keep
            for found in _TOKEN.finditer(self._buffer, position):
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
            self._out, self._depth, self._first = self._files[place], len(self._open), True

    def _end(self, kind: bytes, end: int) -> None:
        if not self._open or self._open.pop() != {b"}": b"{", b"]": b"["}[kind]:
            raise NotRows
        self._keys.pop()
        if self._out is not None and len(self._open) == self._depth:
            assert self._start is not None
            self._row_ends(self._buffer, self._start, end)
        elif self._out is not None and len(self._open) < self._depth:
            self._out = None
        self._ended = not self._open

    def _row_ends(self, buffer: bytes, start: int, end: int) -> None:
        if self._out is None or len(self._open) != self._depth:
            self._ended = not self._open
            return
        self._out.write(buffer[start:end].translate(_BREAKS) + b"\n")
        self._start = None
        self._found.add(self._place())

    def _place(self) -> tuple[str, ...]:
        return tuple(key for key in self._keys if key is not None)


def _decoded(key: bytes) -> str:
    try:
        return msgspec.json.decode(key.rstrip(b": \t\r\n"), type=str)
    except msgspec.DecodeError:
        raise NotRows from None
