"""Payloads on their way to a store and back: measured, checksummed, compressed, cut to a range.

Every result store writes what `Packing` gives it and reads through `read_payload`, so all of
them keep the same promises: `sha256` and `bytes` are of the payload itself, a damaged payload
is noticed, and memory holds a block or two, never the whole.

Compression. Text of more than one block is packed as zstd, one frame for each block; before
each frame stands a skippable frame with both lengths. The whole is still a plain zstd file
(`zstd -d` reads it), and a reader that wants the end of it steps over the blocks before.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

from noetl.core.model.durations import seconds
from noetl.core.model.reference import Reference, ReferenceMeta, ReferenceType
from noetl.errors import PayloadUnavailable

BLOCK = 1 << 20
HOUR = 3600
COMPRESSIONS = ("auto", "zstd", "none")
_HEADER = struct.Struct("<IIII")  # skippable frame: magic, its length (8), plain length, packed length
_MAGIC = 0x184D2A5E
_TEXT = re.compile(r"^text/|json|xml|csv|yaml|javascript")

Stored = Callable[[int, int | None], AsyncGenerator[bytes, None]]


def storage_name(name: str) -> str:
    """A name that is safe as a relative path and as an object key, and never the same twice."""
    parts = [re.sub(r"[^A-Za-z0-9=_.-]", "_", part)[:100].lstrip(".") or "_" for part in name.split("/") if part]
    return "/".join(parts or ["_"]) + "-" + secrets.token_hex(6)


class Packing:
    """A payload on its way into a store; its measures are known when `blocks` has ended."""

    def __init__(self, chunks: AsyncIterator[bytes], *, content_type: str, compression: str = "auto") -> None:
        if compression not in COMPRESSIONS:
            raise ValueError(f"compression {compression!r} is not one of {', '.join(COMPRESSIONS)}")
        self.content_type = content_type
        self.compression: str | None = None
        self.bytes = 0
        self.failure: BaseException | None = None  # the producer's own, which a driver may hide
        self._wanted = compression
        self._chunks = chunks
        self._digest = hashlib.sha256()

    async def blocks(self) -> AsyncIterator[bytes]:
        """What is to be stored, in blocks of about a megabyte."""
        first: bytes | None = None
        async for block in _blocks(self._produced()):
            self.bytes += len(block)
            self._digest.update(block)
            if first is None and self._wanted == "auto":
                first = block  # whether it pays to compress is known when there is a second one
                continue
            if first is not None:
                if _TEXT.search(self.content_type):
                    self.compression = "zstd"
                self._wanted = self.compression or "none"
                yield await self._packed(first)
                first = None
            yield await self._packed(block)
        if first is not None:
            yield await self._packed(first)

    async def _produced(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._chunks:
                yield chunk
        except Exception as failure:
            self.failure = failure
            raise

    def meta(
        self, *, ttl: str | None = None, rows: int | None = None, columns: Sequence[str] | None = None
    ) -> ReferenceMeta:
        """What is known of the payload now that all of it has gone by."""
        return ReferenceMeta(
            content_type=self.content_type,
            bytes=self.bytes,
            sha256=self._digest.hexdigest(),
            ttl=ttl,
            rows=rows,
            columns=tuple(columns) if columns is not None else None,
            compression=self.compression,
        )

    async def _packed(self, block: bytes) -> bytes:
        if self._wanted == "zstd":
            self.compression = "zstd"
            block = await asyncio.to_thread(_pack, block)
        return block


class PayloadStore(ABC):
    """What every result store does alike: a payload is named, packed, measured; it is read back and verified.

    A store says how it keeps the blocks of a packing (`_keep`), which key a reference has (`_key`) and how it streams
    the bytes that lie under a key (`_stored`)."""

    type: ClassVar[ReferenceType]

    def __init__(
        self,
        *,
        compression: str = "auto",
        clock: Callable[[], float] = time.time,
        auth_reference: str | None = None,
    ) -> None:
        self.compression = compression
        self.auth_reference = auth_reference
        self._clock = clock

    async def put(
        self,
        name: str,
        chunks: AsyncIterator[bytes],
        *,
        content_type: str,
        rows: int | None = None,
        columns: Sequence[str] | None = None,
        ttl: str | None = None,
    ) -> Reference:
        """Store; the reference is returned after the payload is safe."""
        lifetime, now = seconds(ttl), self._clock()
        packing = Packing(chunks, content_type=content_type, compression=self.compression)
        locator = await self._keep(storage_name(name), packing, now, None if lifetime is None else now + lifetime)
        meta = packing.meta(ttl=ttl, rows=rows, columns=columns)
        return Reference(type=self.type, locator=locator, meta=meta, auth_reference=self.auth_reference)

    def open(self, reference: Reference, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Stream it back; PayloadUnavailable when it is missing or corrupt."""
        key = self._key(reference)

        def stored(start: int, count: int | None) -> AsyncGenerator[bytes, None]:
            return self._stored(key, reference, start, count)

        name = f"stored payload {key.rpartition('/')[2]}"
        return read_payload(reference.meta, stored, offset=offset, length=length, name=name)

    @abstractmethod
    async def _keep(self, key: str, packing: Packing, now: float, expires: float | None) -> dict[str, Any]:
        """Keep the packing's blocks under a key (or one made from it); what a reference needs to find them."""

    @abstractmethod
    def _key(self, reference: Reference) -> str:
        """The key of a reference, which cannot lead out of this store."""

    @abstractmethod
    def _stored(self, key: str, reference: Reference, start: int, count: int | None) -> AsyncGenerator[bytes, None]:
        """Stream a range of what lies under a key."""


def by_hour(key: str, expires: float | None) -> str:
    """A key below the hour in which it expires, so that collecting looks at nothing that is still needed."""
    return key if expires is None else f"ttl/{int(expires // HOUR)}/{key}.{int(expires)}"


def missing(key: str, reference: Reference) -> PayloadUnavailable:
    """There is nothing under this key."""
    gone = " (its ttl may have passed)" if reference.meta.ttl else ""
    return PayloadUnavailable(f"there is no stored payload {key}{gone}")


async def read_payload(
    meta: ReferenceMeta, stored: Stored, *, offset: int = 0, length: int | None = None, name: str = "the payload"
) -> AsyncGenerator[bytes, None]:
    """Stream a range of a stored payload; the whole of it is verified against its checksum.

    `stored(start, count)` streams that range of the bytes as they lie in the store.
    """
    end = meta.bytes if length is None else min(meta.bytes, offset + max(length, 0))
    offset = max(offset, 0)
    if meta.bytes and offset >= end:
        return
    whole = offset == 0 and end == meta.bytes
    digest = hashlib.sha256()
    count = 0
    source = _unpacked(stored(0, None), offset, end) if meta.compression else stored(offset, end - offset)
    async with aclosing(source):
        async for chunk in source:
            count += len(chunk)
            if whole:
                digest.update(chunk)
            yield chunk
    if count != end - offset:
        raise PayloadUnavailable(f"{name} is damaged: {count} of {end - offset} bytes are there", kind="ref.corrupt")
    if whole and digest.hexdigest() != meta.sha256:
        raise PayloadUnavailable(f"{name} is damaged: its sha256 is not {meta.sha256}", kind="ref.corrupt")


async def _blocks(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in blocks of BLOCK bytes (the last one is shorter)."""
    pending: list[bytes] = []
    size = 0
    async for chunk in chunks:
        view = memoryview(chunk)
        while size + len(view) >= BLOCK:
            cut = BLOCK - size
            pending.append(bytes(view[:cut]))
            yield b"".join(pending)
            pending, size, view = [], 0, view[cut:]
        if view:
            pending.append(bytes(view))
            size += len(view)
    if pending:
        yield b"".join(pending)


def _codec() -> Any:
    import pyarrow

    return pyarrow.Codec("zstd", compression_level=1)


def _pack(block: bytes) -> bytes:
    packed: bytes = _codec().compress(block, asbytes=True)
    return _HEADER.pack(_MAGIC, 8, len(block), len(packed)) + packed


async def _unpacked(stored: AsyncGenerator[bytes, None], offset: int, end: int) -> AsyncGenerator[bytes, None]:
    """Bytes `offset` to `end` of what was packed; blocks before them are stepped over unopened."""
    codec = _codec()
    buffer = bytearray()
    position = 0
    async with aclosing(stored):
        async for data in stored:
            buffer += data
            while position < end and len(buffer) >= _HEADER.size:
                magic, _, plain, packed = _HEADER.unpack_from(buffer)
                if magic != _MAGIC:
                    raise PayloadUnavailable("the payload is damaged: a block has no head", kind="ref.corrupt")
                if len(buffer) < _HEADER.size + packed:
                    break
                if position + plain > offset:
                    frame = bytes(memoryview(buffer)[_HEADER.size : _HEADER.size + packed])
                    yield _unpack(codec, frame, plain)[max(offset - position, 0) : end - position]
                position += plain
                del buffer[: _HEADER.size + packed]
            if position >= end:
                return


def _unpack(codec: Any, frame: bytes, plain: int) -> bytes:
    try:
        block: bytes = codec.decompress(frame, decompressed_size=plain, asbytes=True)
    except OSError as damage:
        raise PayloadUnavailable(f"the payload is damaged: {damage}", kind="ref.corrupt") from damage
    return block
