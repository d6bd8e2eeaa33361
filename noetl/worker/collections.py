"""One element of a stored collection, without holding the whole of it.

A loop over a million elements stores them once, as a JSON list; a run names its element by index.
A small list is kept decoded for a while. A large one is read forwards in blocks, since the
indices a worker is given go up; marks on the way let it step back without starting again.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from typing import Any

import msgspec

from noetl.core.model.reference import Reference
from noetl.errors import PayloadUnavailable
from noetl.storage.ports.results import ResultStore

SMALL = 4 << 20  # bytes of a list that is kept decoded
KEPT = 64 << 20  # bytes of all lists that are kept
BLOCK = 1 << 20  # bytes read at a time of a large one
MARK_EVERY = 256  # elements between two marks

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{},]')  # a text may be cut off by the end of the block


class StoredCollections:
    """Elements of stored lists by index."""

    def __init__(self, results: ResultStore) -> None:
        self._results = results
        self._small: OrderedDict[str, tuple[int, list[Any]]] = OrderedDict()
        self._large: OrderedDict[str, LargeList] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}

    async def element(self, reference: Reference, index: int) -> Any:
        """The element of that index."""
        key = reference.meta.sha256
        async with self._locks.setdefault(key, asyncio.Lock()):
            if reference.meta.bytes <= SMALL:
                return _at(await self._whole(reference), index)
            large = self._large.get(key)
            if large is None:
                large = self._large[key] = LargeList(reference, self._results)
                while len(self._large) > 16:
                    self._large.popitem(last=False)
            return await large.element(index)

    async def _whole(self, reference: Reference) -> list[Any]:
        key = reference.meta.sha256
        known = self._small.get(key)
        if known is not None:
            self._small.move_to_end(key)
            return known[1]
        encoded = b"".join([chunk async for chunk in self._results.open(reference)])
        items = msgspec.json.decode(encoded)
        if not isinstance(items, list):
            raise PayloadUnavailable("the stored collection is not a list", kind="ref.corrupt")
        self._small[key] = (reference.meta.bytes, items)
        while len(self._small) > 1 and sum(size for size, _ in self._small.values()) > KEPT:
            self._small.popitem(last=False)
        return items


class LargeList:
    """A JSON list in the store, read block by block: where its elements begin is found on the way."""

    def __init__(self, reference: Reference, results: ResultStore) -> None:
        self._reference = reference
        self._results = results
        self._marks: list[int] = []  # byte offset of element 0, MARK_EVERY, 2 * MARK_EVERY, ...
        self._first = 0  # index of the first element of the window
        self._window: list[bytes] = []
        self._next = 0  # byte offset behind the window

    async def element(self, index: int) -> Any:
        """The element of that index."""
        if not self._first <= index < self._first + len(self._window):
            await self._move_to(index)
        return msgspec.json.decode(self._window[index - self._first])

    async def _move_to(self, index: int) -> None:
        mark = min(index // MARK_EVERY, len(self._marks) - 1)
        if index >= self._first + len(self._window) and (
            mark < 0 or mark * MARK_EVERY <= self._first + len(self._window)
        ):
            first, offset = self._first + len(self._window), self._next
        else:
            first, offset = mark * MARK_EVERY, self._marks[mark]
        while True:
            self._first, self._window, self._next = first, *await self._read(first, offset)
            if index < first + len(self._window):
                return
            if not self._window:
                raise PayloadUnavailable(f"the stored collection has no element {index}", kind="ref.corrupt")
            first, offset = first + len(self._window), self._next

    async def _read(self, first: int, offset: int) -> tuple[list[bytes], int]:
        """Elements from byte `offset` on, as many as a block holds (one at least), and where they end."""
        size = BLOCK
        total = self._reference.meta.bytes
        while True:
            chunks = [c async for c in self._results.open(self._reference, offset=offset, length=size)]
            block = b"".join(chunks)
            pieces, ended = _split(block, opened=offset > 0)
            if pieces or ended or offset + size >= total:
                break
            size *= 4  # one element is larger than the block
        for number, (start, _) in enumerate(pieces):
            if (first + number) % MARK_EVERY == 0 and (first + number) // MARK_EVERY == len(self._marks):
                self._marks.append(offset + start)
        behind = offset + (pieces[-1][1] + 1 if pieces else len(block))
        return [block[start:end] for start, end in pieces], behind


def _split(block: bytes, *, opened: bool) -> tuple[list[tuple[int, int]], bool]:
    """Spans of the complete elements at the top level of a list; whether its end was seen."""
    depth = 1 if opened else 0
    start = 0
    pieces: list[tuple[int, int]] = []
    for token in _TOKEN.finditer(block):
        mark = token.group()
        if mark in (b"[", b"{"):
            depth += 1
            if depth == 1:
                start = token.end()
        elif mark in (b"]", b"}"):
            depth -= 1
            if depth == 0:
                if block[start : token.start()].strip():
                    pieces.append((start, token.start()))
                return pieces, True
        elif mark == b"," and depth == 1:
            pieces.append((start, token.start()))
            start = token.end()
    return pieces, False


def _at(items: list[Any], index: int) -> Any:
    try:
        return items[index]
    except IndexError:
        raise PayloadUnavailable(
            f"the stored collection has {len(items)} elements, not {index + 1}", kind="ref.corrupt"
        ) from None
