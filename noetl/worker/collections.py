"""Elements of stored collections by index, without loading the whole collection.

A loop over a million elements stores them once, as a JSON list; a run refers to its element by index. Small lists are
cached decoded. Large lists are read forwards in blocks, because a worker gets ascending indices; recorded
offsets allow reading backwards without starting at the beginning.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from noetl.core.model.reference import Reference
from noetl.errors import PayloadUnavailable
from noetl.storage.ports.results import ResultStore

MAX_SMALL = 4 << 20  # bytes of a list that is cached decoded
MAX_CACHED = 64 << 20  # bytes of all cached lists
BLOCK = 1 << 20  # bytes read at a time from a large list
MARK_EVERY = 256  # elements between two recorded offsets

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{},]')  # a string may be truncated by the end of the block


class StoredCollections:
    """Elements of stored lists by index."""

    def __init__(self, results: ResultStore) -> None:
        self._results = results
        self._small: OrderedDict[str, tuple[int, list[Any]]] = OrderedDict()
        self._large: OrderedDict[str, LargeList] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # of calls that are active

    async def element(self, reference: Reference, index: int) -> Any:
        """The element at an index."""
        key = reference.meta.sha256
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            if reference.meta.bytes <= MAX_SMALL:
                return _element_at(await self._whole(reference), index)
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
        while len(self._small) > 1 and sum(size for size, _ in self._small.values()) > MAX_CACHED:
            self._small.popitem(last=False)
        return items


class LargeList:
    """A stored JSON list that is read block by block; offsets of elements are recorded while reading."""

    def __init__(self, reference: Reference, results: ResultStore) -> None:
        self._reference = reference
        self._results = results
        self._marks: list[int] = []  # byte offset of element 0, MARK_EVERY, 2 * MARK_EVERY, ...
        self._first = 0  # index of the first element of the window
        self._window: list[bytes] = []
        self._next = 0  # byte offset after the window

    async def element(self, index: int) -> Any:
        """The element at an index."""
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
        """The elements from byte `offset` on, as many as fit into a block (at least one), and the offset after them."""
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
    """Spans of the complete elements at the top level of a list; whether the list ends in the block."""
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


def _element_at(items: list[Any], index: int) -> Any:
    try:
        return items[index]
    except IndexError:
        raise PayloadUnavailable(
            f"the stored collection has {len(items)} elements; element {index} does not exist", kind="ref.corrupt"
        ) from None
