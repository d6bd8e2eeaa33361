"""JSON that is too large to hold: find a value by its path, then take it element by element.

    document = JsonStream(chunks)
    if await document.go_to(("data", "items")) == "[":
        async for element in document.elements(): ...      # each as bytes, to be decoded

Only the element that is just being read is in memory. What is stepped over is checked for balance
and nothing more; what is given out is checked by whoever decodes it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import msgspec

_BLANK = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
# A lone quote begins a string that is not all here yet.
_NESTING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,:\[\]{}\"]+")
_LEAST = 1 << 16


class JsonStream:
    """A JSON document read from front to back, once."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._buffer = b""
        self._position = 0
        self._ended = False

    async def go_to(self, path: Sequence[str]) -> str | None:
        """Go to the value at a path of keys and indexes.

        Gives its first character (`{`, `[`, `"` or other), or None when there is no such value."""
        for step in path:
            opening = await self._peek()
            if opening == "{":
                found = await self._to_key(step)
            elif opening == "[" and re.fullmatch(r"\d+", step):
                found = await self._to_index(int(step))
            else:
                return None
            if not found:
                return None
        return await self._peek()

    async def elements(self, *, skip: int = 0) -> AsyncGenerator[bytes, None]:
        """The elements of the array that begins here, each as it is written; `skip` are stepped over first."""
        await self._expect(b"[")
        if await self._peek() == "]":
            return
        while True:
            if skip > 0:
                skip -= 1
                await self._step_over()
            else:
                yield await self._take()
            if not await self._another(b"]"):
                return

    async def whole(self) -> bytes:
        """The value that begins here, as it is written."""
        return await self._take()

    async def _to_key(self, key: str) -> bool:
        await self._expect(b"{")
        if await self._peek() == "}":
            return False
        while True:
            name = await self._take()
            await self._expect(b":")
            if msgspec.json.decode(name) == key:
                return True
            await self._step_over()
            if not await self._another(b"}"):
                return False

    async def _to_index(self, index: int) -> bool:
        await self._expect(b"[")
        if await self._peek() == "]":
            return False
        for _ in range(index):
            await self._step_over()
            if not await self._another(b"]"):
                return False
        return True

    async def _another(self, closing: bytes) -> bool:
        """Whether a comma follows, rather than the end."""
        await self._peek()
        found = self._buffer[self._position : self._position + 1]
        if found not in (b",", closing):
            raise msgspec.DecodeError(f"JSON is malformed: expected ',' or '{closing.decode()}', found {found!r}")
        self._position += 1
        return found == b","

    async def _expect(self, character: bytes) -> None:
        await self._peek()
        found = self._buffer[self._position : self._position + 1]
        if found != character:
            raise msgspec.DecodeError(f"JSON is malformed: expected '{character.decode()}', found {found!r}")
        self._position += 1

    async def _peek(self) -> str:
        """The next character that is not blank."""
        while True:
            blank = _BLANK.match(self._buffer, self._position)
            assert blank is not None
            self._position = blank.end()
            if self._position < len(self._buffer):
                return chr(self._buffer[self._position])
            if not await self._more():
                raise msgspec.DecodeError("JSON is malformed: it ends too early")

    async def _take(self) -> bytes:
        """The next value as it is written."""
        await self._peek()
        while (end := self._end_of_value()) is None:
            # Twice as much each time, so that looking again from the start stays cheap.
            if not await self._more(len(self._buffer) - self._position):
                raise msgspec.DecodeError("JSON is malformed: it ends too early")
        value = self._buffer[self._position : end]
        self._position = end
        return value

    async def _step_over(self) -> None:
        """Pass the next value, keeping none of it."""
        if await self._peek() not in "{[":
            await self._take()
            return
        depth = 0
        while True:
            for token in _NESTING.finditer(self._buffer, self._position):
                text = token[0]
                if text == b'"':
                    self._position = token.start()  # the string goes on in what has not come yet
                    break
                self._position = token.end()
                if text in (b"{", b"["):
                    depth += 1
                elif text in (b"}", b"]"):
                    depth -= 1
                    if depth == 0:
                        return
            else:
                self._position = len(self._buffer)
            if not await self._more(len(self._buffer) - self._position):
                raise msgspec.DecodeError("JSON is malformed: it ends too early")

    def _end_of_value(self) -> int | None:
        """Where the value that begins here ends; None while not all of it is here."""
        first = self._buffer[self._position : self._position + 1]
        if first == b'"':
            string = _STRING.match(self._buffer, self._position)
            return string.end() if string else None
        if first in (b"{", b"["):
            depth = 0
            for token in _NESTING.finditer(self._buffer, self._position):
                text = token[0]
                if text == b'"':
                    return None
                if text in (b"{", b"["):
                    depth += 1
                elif text in (b"}", b"]"):
                    depth -= 1
                    if depth == 0:
                        return token.end()
            return None
        scalar = _SCALAR.match(self._buffer, self._position)
        if scalar is None:
            raise msgspec.DecodeError(f"JSON is malformed: a value cannot begin with {first!r}")
        return scalar.end() if scalar.end() < len(self._buffer) or self._ended else None

    async def _more(self, least: int = 0) -> bool:
        """Read on; False when there is nothing more to decide with."""
        if self._ended:
            return False
        pieces = [self._buffer[self._position :]]
        size = 0
        self._position = 0
        while size <= max(least, _LEAST):
            piece = await anext(self._chunks, None)
            if piece is None:
                self._ended = True
                break
            pieces.append(bytes(piece))
            size += len(piece)
        self._buffer = b"".join(pieces)
        return True
