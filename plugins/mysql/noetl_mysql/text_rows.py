"""Reads the rows of an unbuffered result as bytes, many at a time, and finds the values of each column.

The driver decodes rows one by one into Python objects. Here complete rows are taken from its receive buffer as they
are, and the positions of all values of a column are computed at once. What is not a complete row in the buffer (a row
in several packets, the end, an error) is left to the driver's `read_packet`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa
from asyncmy.errors import InternalError

MAX_BYTES = 8 << 20  # of the rows read at once; a larger row is read alone
MAX_PACKET = 0xFFFFFF
HEADER = Struct("<I")  # three bytes with the length of a packet, one with its number
HEADER_BYTES = HEADER.size
END = 0xFE  # the least first byte of a packet that is not a row
# The first byte of a value is its length, or one of these.
NULL, TWO_BYTES, THREE_BYTES, EIGHT_BYTES = 0xFB, 0xFC, 0xFD, 0xFE


class TextRows:
    """The rows of an executed, unbuffered cursor."""

    def __init__(self, cursor: Any) -> None:
        self._result = cursor._result
        self._connection = cursor._result.connection
        self._transport = self._connection._transport
        self._data = bytearray()  # packets with their headers
        self._ends: list[Any] = []  # of the rows in it, as arrays

    async def read(self, count: int) -> list[Any]:
        """The columns of the next rows, at most `count`, as binary Arrow arrays; empty if there are no more rows."""
        self._data, self._ends = bytearray(), []
        while self._result.unbuffered_active and count > 0 and len(self._data) < MAX_BYTES:
            count -= self._take_complete(count) or await self._take_next()
        if not self._ends:
            return []
        return list(_columns(self._data, np.concatenate(self._ends), len(self._result.fields)))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Receive nothing in the block: the driver receives as fast as the server sends, used or not."""
        if not self._transport.is_closing():
            self._transport.pause_reading()
        try:
            yield
        finally:
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _take_complete(self, count: int) -> int:
        """Take rows from the receive buffer that are complete; returns their number."""
        received = self._connection._proto
        buffer, first, length = received.buffer, received.pos, received.length
        position, last, ends, unpack = first, 0, list[int](), HEADER.unpack_from
        limit = min(length - HEADER_BYTES, first + MAX_BYTES)
        for _ in range(count):
            if position >= limit:
                break
            (header,) = unpack(buffer, position)
            size = header & MAX_PACKET
            end = position + HEADER_BYTES + size
            if end > length or size == MAX_PACKET or buffer[position + HEADER_BYTES] >= END:
                break
            ends.append(end)
            position, last = end, header >> 24
        if ends:
            self._ends.append(np.array(ends, np.int64) + (len(self._data) - first))
            self._data += memoryview(buffer)[first:position]
            received.pos = position
            self._check_number(last, len(ends))
        return len(ends)

    def _check_number(self, number: int, taken: int) -> None:
        """Check the number of the last packet taken: a difference means that packets are missing."""
        connection = self._connection
        connection._next_seq_id = (connection._next_seq_id + taken) & 0xFF
        if (number + 1) & 0xFF != connection._next_seq_id:
            raise InternalError(f"Packet sequence number wrong - got {number} after {taken} packets")

    async def _take_next(self) -> int:
        """Wait for the next packet; returns the number of its rows, 0 at the end. The driver raises its errors."""
        packet = await self._connection.read_packet()
        if self._result._check_packet_is_eof(packet):
            self._result.unbuffered_active = False
            self._result.connection = None
            return 0
        self._data += bytes(HEADER_BYTES) + packet.get_all_data()
        self._ends.append(np.array([len(self._data)], np.int64))
        return 1


def _columns(data: bytearray, ends: Any, count: int) -> Iterator[Any]:
    octets, content = np.frombuffer(data, np.uint8), pa.py_buffer(data)
    position = np.concatenate(([0], ends[:-1])) + HEADER_BYTES
    every_other = np.arange(0, 2 * len(ends), 2)
    for _ in range(count):
        if (position >= ends).any():
            raise InternalError("a row has too few values")
        start, end, missing = _bounds(octets, position)
        # An array of the values and what is between them needs no copy; every other element is a value.
        offsets = np.empty(2 * len(ends), np.int32)
        offsets[0::2], offsets[1::2] = start, end
        array = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), content])
        yield array.take(pa.array(every_other, mask=missing))
        position = end
    if (position != ends).any():
        raise InternalError("a row has too many values")


def _bounds(octets: Any, position: Any) -> tuple[Any, Any, Any]:
    """Where the values at the given positions begin and end, and which are NULL (None if none is)."""
    first = octets[position]
    start, size = position + 1, first.astype(np.int64)
    if first.max() < NULL:
        return start, start + size, None
    missing = first == NULL
    size[missing] = 0
    for mark, width in ((TWO_BYTES, 2), (THREE_BYTES, 3), (EIGHT_BYTES, 8)):
        (places,) = np.nonzero(first == mark)
        if len(places):
            digits = octets[start[places, None] + np.arange(width)].astype(np.int64)
            size[places] = (digits << (8 * np.arange(width))).sum(axis=1)
            start[places] += width
    return start, start + size, missing
