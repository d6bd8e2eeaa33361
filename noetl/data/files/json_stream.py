"""JSON documents that are too large to hold in memory: select a value by its path, read a list element by element.

    with closing(JsonStream(chunks)) as document:
        if await document.go_to(("data", "items")) == "[":
            async for element in document.elements(): ...

ijson parses the stream; only the value that is being read is in memory. Numbers have the types that JSON gives them:
whole numbers are exact, all others are floats. Everything up to the end of the value that was read is checked.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cache
from math import isinf
from typing import Any

import msgspec

LOG = logging.getLogger(__name__)
FEED = 1 << 16  # bytes parsed at once
_OPENING = {"start_map": "{", "start_array": "[", "string": '"'}
_EMPTY: dict[str, Any] = {"start_map": dict, "start_array": list}
Check = Callable[[int], None]
_ENDS = frozenset(["end_map", "end_array"])
_DEPTH = {"start_map": 1, "start_array": 1, "end_map": -1, "end_array": -1}


class JsonStream:
    """A JSON document that is read from front to back, once."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        ijson = _ijson()
        self._chunks = chunks
        self._parsed: list[tuple[str, Any]] = ijson.sendable_list()
        self._parser = ijson.basic_parse_coro(self._parsed)
        self._malformed: type[Exception] = ijson.JSONError
        self._events: Iterator[tuple[str, Any]] = iter(())
        self._pieces: Iterator[bytes] = iter(())
        self._fed = 0
        self._next: tuple[str, Any] | None = None  # the first event of the value at the current position

    def close(self) -> None:
        """Close the parser, which raises if the document was not read to its end."""
        with suppress(self._malformed, RuntimeError):
            self._parser.close()

    async def go_to(self, path: Sequence[str]) -> str | None:
        """Move to the value at a path of keys and indexes.

        Return its first character (`{`, `[`, `"`, or empty for other values), or None if there is no such value."""
        for step in path:
            event, _ = await self._peek()
            if event == "start_map":
                found = await self._to_key(step)
            elif event == "start_array" and step.isdecimal():
                found = await self._to_index(int(step))
            else:
                return None
            if not found:
                return None
        event, _ = await self._peek()
        return _OPENING.get(event, "")

    async def elements(self, *, skip: int = 0, check: Check | None = None) -> AsyncGenerator[Any, None]:
        """Yield the elements of the list at the current position, without the first `skip`."""
        await self._take()
        while (await self._peek())[0] != "end_array":
            if skip > 0:
                skip -= 1
                await self._step_over()
            else:
                yield await self.value(check)

    async def value(self, check: Check | None = None) -> Any:
        """Return the value at the current position.

        While a long value is read, `check` is called with the number of its bytes so far and may raise."""
        first, root = await self._take()
        if first not in _EMPTY:
            return self._scalar(root)
        root = holder = _EMPTY[first]()
        stack = [root]
        key: Any = None
        start = self._fed  # the value began before this byte
        while True:
            for event, value in self._events:
                if event == "map_key":
                    key = value
                    continue
                if event in _ENDS:
                    stack.pop()
                    if not stack:
                        return root
                    holder = stack[-1]
                    continue
                if event in _EMPTY:
                    value = _EMPTY[event]()
                    stack.append(value)
                elif type(value) is Decimal:
                    value = self._scalar(value)
                if type(holder) is dict:
                    holder[key] = value
                else:
                    holder.append(value)
                holder = stack[-1]
            if check is not None:
                check(self._fed - start)
            await self._parse_more()

    async def _to_key(self, key: str) -> bool:
        await self._take()
        while True:
            event, name = await self._take()
            if event == "end_map":
                return False
            if name == key:
                return True
            await self._step_over()

    async def _to_index(self, index: int) -> bool:
        await self._take()
        for _ in range(index):
            if (await self._peek())[0] == "end_array":
                return False
            await self._step_over()
        return (await self._peek())[0] != "end_array"

    async def _step_over(self) -> None:
        """Read the next value without storing it."""
        depth = _DEPTH.get((await self._take())[0], 0)
        while depth:
            for event, _ in self._events:
                depth += _DEPTH.get(event, 0)
                if not depth:
                    return
            await self._parse_more()

    async def _peek(self) -> tuple[str, Any]:
        if self._next is None:
            self._next = await self._take()
        return self._next

    async def _take(self) -> tuple[str, Any]:
        event, self._next = self._next, None
        while event is None:
            event = next(self._events, None)
            if event is None:
                await self._parse_more()
        return event

    async def _parse_more(self) -> None:
        """Parse the next piece of the stream."""
        piece = next(self._pieces, None)
        while piece is None:
            chunk = await anext(self._chunks, None)
            if chunk is None:
                raise msgspec.DecodeError(f"JSON is malformed: it ends after byte {self._fed:,}, inside a value")
            self._pieces = (bytes(chunk[at : at + FEED]) for at in range(0, len(chunk), FEED))
            piece = next(self._pieces, None)
        self._parsed.clear()
        try:
            self._parser.send(piece)
        except self._malformed as problem:
            raise msgspec.DecodeError(f"JSON is malformed after byte {self._fed:,}: {_reason(problem)}") from None
        self._fed += len(piece)
        self._events = iter(self._parsed)

    def _scalar(self, number: Any) -> Any:
        if type(number) is not Decimal:
            return number
        value = float(number)
        if isinf(value):
            raise msgspec.DecodeError(
                f"JSON is malformed before byte {self._fed:,}: the number {number} is out of range"
            )
        return value


def _reason(problem: Exception) -> str:
    """The parser's message in one line: what is wrong, and the text around it."""
    message = problem.args[0]
    lines = (message.decode(errors="replace") if isinstance(message, bytes) else str(message)).splitlines()
    reason = lines[0].removeprefix("parse error: ").removeprefix("lexical error: ").rstrip(".")
    return f"{reason}, near `{' '.join(lines[1].split())}`" if len(lines) > 1 and lines[1].strip() else reason


@cache
def _ijson() -> Any:
    import ijson  # only large payloads need it

    if ijson.backend_name == "python":
        LOG.info("ijson has no C back end on this machine: large JSON payloads are read about ten times slower")
    return ijson
