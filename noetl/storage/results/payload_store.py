"""The base of result stores: size, checksum, compression and ranges of payloads.

Every result store writes the blocks of `Packing` and reads through `read_payload`. Invariants:
`sha256` and `bytes` describe the uncompressed payload, a damaged payload
is detected, and at most two blocks are in memory.

Compression. Text of more than one block is compressed with zstd, one frame per block, preceded by
a skippable frame with both lengths. The result is a valid zstd file
(`zstd -d` reads it), and a reader of a range skips the blocks before it.
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
SETTING = "settings/results"  # `auth_reference` of a store whose credential is in its URL
COMPRESSIONS = ("auto", "zstd", "none")
_HEADER = struct.Struct("<IIII")  # skippable frame: magic, its length (8), plain length, packed length
_MAGIC = 0x184D2A5E
_TEXT = re.compile(r"^text/|json|xml|csv|yaml|javascript")

Stored = Callable[[int, int | None], AsyncGenerator[bytes, None]]


def storage_name(name: str) -> str:
    """A unique name that is safe as a relative path and as an object key."""
    parts = [re.sub(r"[^A-Za-z0-9=_.-]", "_", part)[:100].lstrip(".") or "_" for part in name.split("/") if part]
    return "/".join(parts or ["_"]) + "-" + secrets.token_hex(6)


class Packing:
    """A payload that is being stored; its size and checksum are known when `blocks` has ended."""

    def __init__(self, chunks: AsyncIterator[bytes], *, content_type: str, compression: str = "auto") -> None:
        if compression not in COMPRESSIONS:
            raise ValueError(f"compression {compression!r} is not one of {', '.join(COMPRESSIONS)}")
        self.content_type = content_type
        self.compression: str | None = None
        self.bytes = 0
        self.failure: BaseException | None = None  # of the producer, which a driver may wrap
        self._wanted = compression
        self._chunks = chunks
        self.digest = hashlib.sha256()

    async def blocks(self) -> AsyncIterator[bytes]:
        """The stored form, in blocks of about a megabyte."""
        first: bytes | None = None
        async for block in _blocks(self._produced()):
            self.bytes += len(block)
            self.digest.update(block)
            if first is None and self._wanted == "auto":
                first = block  # compress only if there is a second block
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

    async def _packed(self, block: bytes) -> bytes:
        if self._wanted == "zstd":
            self.compression = "zstd"
            block = await asyncio.to_thread(_pack, block)
        return block


class PayloadStore(ABC):
    """Base class of result stores: names and packs payloads, reads and verifies them.

    A subclass stores the blocks of a packing (`_store_blocks`), maps a reference to its key (`_key`) and streams
    the stored bytes of a key (`_stored`)."""

    type: ClassVar[ReferenceType]
    bucket: str = ""

    def __init__(
        self,
        *,
        compression: str = "auto",
        clock: Callable[[], float] = time.time,
        auth_reference: str | None = None,
    ) -> None:
        self.compression = compression
        self.auth_reference = auth_reference
        self.address: dict[str, Any] = {}  # where the store is, without credentials; a part of every locator
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
        """Store a payload; returns its reference after the payload is durable."""
        lifetime, now = seconds(ttl), self._clock()
        packing = Packing(chunks, content_type=content_type, compression=self.compression)
        expires = None if lifetime is None else now + lifetime
        try:
            locator = await self._store_blocks(storage_name(name), packing, now, expires)
        except Exception as problem:
            if packing.failure not in (None, problem):  # the producer of the payload failed, not the store
                raise packing.failure from problem
            raise
        meta = ReferenceMeta(
            content_type=content_type,
            bytes=packing.bytes,
            sha256=packing.digest.hexdigest(),
            ttl=ttl,
            rows=rows,
            columns=tuple(columns) if columns is not None else None,
            compression=packing.compression,
        )
        place = {"store": self.type, **self.address, **locator}
        return Reference(type=self.type, locator=place, meta=meta, auth_reference=self.auth_reference)

    def holds(self, reference: Reference) -> bool:
        """Whether the locator names this store; references of older versions name none."""
        return all(reference.locator.get(key, value) == value for key, value in self.address.items())

    configured = True  # False: opened because a playbook names its bucket

    def in_bucket(self, bucket: str) -> PayloadStore | None:
        """The same server with another bucket; None if this type of store is bound to its own."""
        return None

    def open(self, reference: Reference, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Stream a payload; PayloadUnavailable if it is missing or corrupt."""
        key = self._key(reference)

        def stored(start: int, count: int | None) -> AsyncGenerator[bytes, None]:
            return self._stored(key, reference, start, count)

        name = f"stored payload {key.rpartition('/')[2]}"
        return read_payload(reference.meta, stored, offset=offset, length=length, name=name)

    async def close(self) -> None:  # noqa: B027 - not every store has something to close
        """Close the store."""

    @abstractmethod
    async def _store_blocks(self, key: str, packing: Packing, now: float, expires: float | None) -> dict[str, Any]:
        """Store the blocks under a key (or one derived from it); return the locator of the reference."""

    @abstractmethod
    def _key(self, reference: Reference) -> str:
        """The key of a reference, which is always inside of this store."""

    @abstractmethod
    def _stored(self, key: str, reference: Reference, start: int, count: int | None) -> AsyncGenerator[bytes, None]:
        """Stream a range of the stored bytes of a key."""


def by_hour(key: str, expires: float | None) -> str:
    """A key below the hour of its expiry, so that `collect` lists only expired hours."""
    return key if expires is None else f"ttl/{int(expires // HOUR)}/{key}.{int(expires)}"


def missing(key: str, reference: Reference) -> PayloadUnavailable:
    """The error for a key without a payload."""
    expired = " (its ttl may have expired)" if reference.meta.ttl else ""
    return PayloadUnavailable(f"stored payload {key} does not exist{expired}")


async def read_payload(
    meta: ReferenceMeta, stored: Stored, *, offset: int = 0, length: int | None = None, name: str = "the payload"
) -> AsyncGenerator[bytes, None]:
    """Stream a range of a stored payload; a complete read is verified against the checksum.

    `stored(start, count)` streams that range of the stored bytes.
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
        raise PayloadUnavailable(f"{name} is damaged: {count} of {end - offset} bytes exist", kind="ref.corrupt")
    if whole and digest.hexdigest() != meta.sha256:
        raise PayloadUnavailable(f"{name} is damaged: its sha256 is not {meta.sha256}", kind="ref.corrupt")


async def _blocks(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Split the chunks into blocks of BLOCK bytes (the last one is shorter)."""
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
    """Bytes `offset` to `end` of the payload; blocks before them are skipped without decompression."""
    codec = _codec()
    buffer = bytearray()
    position = 0
    async with aclosing(stored):
        async for data in stored:
            buffer += data
            while position < end and len(buffer) >= _HEADER.size:
                magic, _, plain, packed = _HEADER.unpack_from(buffer)
                if magic != _MAGIC:
                    raise PayloadUnavailable("the payload is damaged: a block has no header", kind="ref.corrupt")
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
