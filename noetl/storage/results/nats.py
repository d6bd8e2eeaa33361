"""Results in a bucket of a NATS object store (JetStream).

Invariant: an object is readable after its metadata is written, which happens last. The name of a payload with a
ttl ends with the second of its expiry, so `collect` needs only the names.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from urllib.parse import urlsplit

from noetl.connections import nats as driver
from noetl.core.model.reference import Reference, ReferenceType
from noetl.errors import PayloadUnavailable, StoreUnavailable
from noetl.storage.results.payload_store import SETTING, Packing, PayloadStore, missing

BUCKET = "noetl-results"
ABANDONED = 24 * 3600
DESCRIPTION = "NoETL results"
_BUCKET = re.compile(r"[A-Za-z0-9_-]+")
_PAYLOAD = re.compile(r"\d+/.+-[0-9a-f]{12}(\.\d+)?")


class NatsResults(PayloadStore):
    """A result store in NATS; the bucket is the URL's path (`nats://host:4222/noetl-results`)."""

    type: ClassVar[ReferenceType] = "nats"
    bucket: str

    def __init__(self, url: str, *, fields: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(**options)
        parts = urlsplit(url)
        self.bucket = parts.path.strip("/") or BUCKET
        self._fields = {**(fields or {}), "url": parts._replace(path="").geturl()}
        self.address = {"scheme": "nats", "host": f"{parts.hostname}:{parts.port or 4222}", "bucket": self.bucket}
        if parts.username or fields:
            self.auth_reference = self.auth_reference or SETTING
        self._options = options
        self._own = True  # the bucket of the configuration
        self._client: Any = None
        self._opening = asyncio.Lock()

    async def _store_blocks(self, key: str, packing: Packing, now: float, expires: float | None) -> dict[str, Any]:
        nuid = key.rpartition("-")[2]  # identifies chunks without an object
        if expires is not None:
            key += f".{int(expires)}"
        with self._store_errors():
            objects = await self._objects()
            await objects.put(key, packing.blocks(), nuid=nuid, headers={"Content-Type": packing.content_type})
        return {"name": key}

    async def _stored(
        self, key: str, reference: Reference, start: int, count: int | None
    ) -> AsyncGenerator[bytes, None]:
        with self._store_errors():
            objects = await self._objects()
            info = await objects.find(key)
            if info is None:
                raise missing(key, reference)
            position, end = 0, info.size if count is None else start + count
            async for chunk in objects.read(info):
                piece = chunk[max(start - position, 0) : max(end - position, 0)]
                position += len(chunk)
                if piece:
                    yield piece
                if position >= end:
                    return

    async def delete(self, reference: Reference) -> None:
        """Delete a payload; a missing one is not an error."""
        await self._delete([self._key(reference)])

    async def collect(self, now: float) -> int:
        """Delete expired payloads; return their number."""
        with self._store_errors():
            objects = await self._objects()
            names = await objects.names()
            expired = [name for name in names if (last := name.rpartition(".")[2]).isdigit() and int(last) <= now]
            await self._delete(expired)
            stored = {name.rpartition("-")[2].partition(".")[0] for name in names}
            await objects.drop_abandoned(stored, now - ABANDONED)
        return len(expired)

    async def forget(self, executions: Sequence[str]) -> int:
        """Delete the payloads of these executions that have no ttl; return their number."""
        with self._store_errors():
            names = await (await self._objects()).names()
        theirs = set(executions)
        deleted = [name for name in names if name.partition("/")[0] in theirs and not name.rpartition(".")[2].isdigit()]
        await self._delete(deleted)
        return len(deleted)

    async def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _objects(self) -> driver.ObjectBucket:
        async with self._opening:
            if self._client is None or self._client.is_closed:
                self._client = await driver.connect(self._fields)
                await driver.ObjectBucket(self._client, self.bucket).ensure(DESCRIPTION)
            return driver.ObjectBucket(self._client, self.bucket)

    async def _delete(self, names: Sequence[str]) -> None:
        with self._store_errors():
            objects = await self._objects()
            for name in names:
                await objects.delete(name)

    def _key(self, reference: Reference) -> str:
        name, bucket = reference.locator.get("name"), reference.locator.get("bucket")
        if reference.type != "nats" or not isinstance(name, str):
            raise PayloadUnavailable(f"not a reference to a NATS object: {reference.type} {reference.locator}")
        if bucket != self.bucket:
            raise PayloadUnavailable(
                f"bucket {bucket!r} is not the result store of this installation ({self.bucket!r})"
            )
        if not self._own and not _PAYLOAD.fullmatch(name):  # other programs may have objects in that bucket
            raise PayloadUnavailable(f"object {name!r} of bucket {bucket!r} is not a stored result")
        return name

    def in_bucket(self, bucket: str) -> NatsResults:
        """The same server with another bucket, which is created at first use."""
        if not _BUCKET.fullmatch(bucket):
            raise StoreUnavailable(f"{bucket!r} is not a name of a NATS bucket", kind="storage.access")
        url = urlsplit(str(self._fields["url"]))._replace(path=f"/{bucket}").geturl()
        other = NatsResults(url, fields={k: v for k, v in self._fields.items() if k != "url"}, **self._options)
        other._own = False
        return other

    async def made_buckets(self) -> list[str]:
        """The buckets that NoETL has made on this server."""
        with self._store_errors():
            await self._objects()
            return await driver.buckets_described(self._client, DESCRIPTION)

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        """Raise an error of the server or the connection as StoreUnavailable."""
        from nats.errors import Error

        try:
            yield
        except (Error, OSError) as problem:
            info = driver.to_error_info(problem, f"result store in NATS (bucket {self.bucket})")
            kind = info.kind if info.kind in ("auth", "storage.quota") else "connection"
            raise StoreUnavailable(info.message, kind=kind) from problem
