"""The output of a container: lines to the task log, and the first bytes as text of the result."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator

from noetl.tool import Host

LINE_CHARS = 64 * 1024  # a longer line is logged in parts
OVERLAP = 8 * 1024  # characters that are held back, in which a secret may have begun


class Transcript:
    """One stream of output."""

    def __init__(self, host: Host, stream: str, most: int) -> None:
        self._host = host
        self._stream = stream
        self._left = most
        self._kept: list[str] = []
        self._open = ""  # the line that has not ended
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.truncated = False

    async def read(self, chunks: AsyncIterator[bytes]) -> None:
        """Read to the end; waits while lines arrive faster than they are sent."""
        async for chunk in chunks:
            self._feed(self._decoder.decode(chunk))
            if self._host.log_full():
                await self._host.log_room()
        self._feed(self._decoder.decode(b"", final=True))
        if self._open:
            self._line(self._open, "")

    @property
    def text(self) -> str:
        """The text so far, with secrets masked, up to the largest size."""
        return "".join(self._kept)

    def _feed(self, text: str) -> None:
        *lines, self._open = (self._open + text).split("\n")
        for line in lines:
            self._line(line, "\n")
        if len(self._open) > LINE_CHARS:
            masked = self._host.mask(self._open)
            self._line(masked[:-OVERLAP], "")
            self._open = masked[-OVERLAP:]

    def _line(self, line: str, end: str) -> None:
        self._host.log(line.rstrip("\r"), stream=self._stream)
        if self.truncated:
            return
        masked = self._host.mask(line) + end  # before it is cut, so that no part of a secret remains
        size = len(masked.encode())
        if size > self._left:
            self.truncated = True
            masked = masked.encode()[: self._left].decode(errors="ignore")
        self._left -= size
        self._kept.append(masked)


async def chunks_of(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The bytes of a pipe as they arrive."""
    while chunk := await reader.read(64 * 1024):
        yield chunk
