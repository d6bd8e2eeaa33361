"""Results as objects of S3 (and compatible stores), Google Cloud Storage or Azure: the store of a cluster.

Invariant: an object exists completely or not at all. Payloads with a ttl are below `ttl/<hour of expiry>/`, so
`collect` lists only those. A bucket that only playbooks name is recorded as `buckets/<name>` in the configured
bucket before its first payload, so that retention finds it. The URL may have options: `endpoint`, `region`, keys
(`s3://results/noetl?endpoint=http://127.0.0.1:9000&region=us-east-1`); prefer the fields of a credential.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from noetl.connections import objects
from noetl.connections.auth import plain_fields
from noetl.core.model.reference import Reference, ReferenceType
from noetl.errors import NoetlError, PayloadUnavailable, StoreUnavailable
from noetl.storage.results.payload_store import SETTING, Packing, PayloadStore, by_hour, missing

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
PREFIX = "noetl-results"  # in buckets that are not configured
BUCKETS = "buckets"  # below it, an empty object for each bucket that a playbook has named


class ObjectResults(PayloadStore):
    """A result store in a bucket, below a prefix."""

    type: ClassVar[ReferenceType] = "object_store"

    def __init__(self, url: str, *, fields: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._options = options
        self._recorded_in: ObjectResults | None = None  # where this bucket has to be recorded
        self._fields = fields
        self._url = parts = urlsplit(url)
        self.place = objects.parse_location(parts._replace(query="").geturl().rstrip("/") + "/")
        given = plain_fields({**dict(parse_qsl(parts.query)), **(fields or {})}, objects.PREFIXES)
        self.prefix = self.place.key.strip("/")
        self.bucket = self.place.bucket
        self.address = {"scheme": self.place.scheme, "bucket": self.bucket}
        if given.get("endpoint"):
            self.address["endpoint"] = str(given["endpoint"])
        if len(given) > len(given.keys() & {"endpoint", "region"}):
            self.auth_reference = self.auth_reference or SETTING
        self._store = objects.new_store(self.place, objects.config_of(self.place, given))

    def in_bucket(self, bucket: str) -> ObjectResults:
        """The same account with another bucket, below a prefix, so that references reach nothing else in it."""
        if not _BUCKET.fullmatch(bucket):
            raise StoreUnavailable(f"{bucket!r} is not a name of a bucket", kind="storage.access")
        account = self._url.netloc.partition("@")[1:]
        url = self._url._replace(netloc=bucket + "".join(account), path="/" + (self.prefix or PREFIX)).geturl()
        other = ObjectResults(url, fields=self._fields, **self._options)
        other.configured = False
        other._recorded_in = self
        return other

    async def made_buckets(self) -> list[str]:
        """The buckets of this account that playbooks have named."""
        if not self.configured:
            return []
        return [key.rpartition("/")[2] async for keys in self._listed(BUCKETS) for key in keys]

    async def _record_bucket(self, bucket: str) -> None:
        import obstore

        with self._store_errors(bucket):
            await obstore.put_async(self._store, self._path(f"{BUCKETS}/{bucket}"), b"")

    async def _store_blocks(self, key: str, packing: Packing, now: float, expires: float | None) -> dict[str, Any]:
        path = self._path(by_hour(key, expires))
        if self._recorded_in is not None:
            await self._recorded_in._record_bucket(self.bucket)
            self._recorded_in = None
        with self._store_errors(key):
            await objects.upload(self._store, path, packing.blocks(), content_type=packing.content_type)
        return {"url": f"{self.place.scheme}://{self.place.bucket}", "key": path}

    async def _stored(
        self, key: str, reference: Reference, start: int, count: int | None
    ) -> AsyncGenerator[bytes, None]:
        if reference.meta.bytes == 0 and count == 0:
            if not await objects.exists(self._store, key):
                raise missing(key, reference)
            return
        with self._store_errors(key):
            try:
                async for chunk in objects.download(self._store, key, start=start, count=count):
                    yield chunk
            except FileNotFoundError:
                raise missing(key, reference) from None
            except objects.errors() as problem:
                if "416" in str(problem) or "range" in str(problem).lower():
                    damage = f"stored payload {key} is damaged: too short"
                    raise PayloadUnavailable(damage, kind="ref.corrupt") from None
                raise

    async def delete(self, reference: Reference) -> None:
        """Delete a payload; a missing one is not an error."""
        await self._delete([self._key(reference)])

    async def collect(self, now: float) -> int:
        """Delete expired payloads; return their number."""
        expired = []
        async for keys in self._listed("ttl"):
            for key in keys:
                expires = key.rpartition(".")[2]
                if expires.isdigit() and int(expires) <= now:
                    expired.append(key)
        for start in range(0, len(expired), 1000):
            await self._delete(expired[start : start + 1000])
        return len(expired)

    async def forget(self, executions: Sequence[str]) -> int:
        """Delete the payloads of these executions that have no ttl; return their number."""
        deleted = 0
        for execution_id in executions:
            async for keys in self._listed(execution_id):
                await self._delete(keys)
                deleted += len(keys)
        return deleted

    async def _listed(self, folder: str) -> AsyncGenerator[list[str], None]:
        """The keys below a folder, in pages; none if a playbook named the bucket and it has been deleted since."""
        import obstore

        with self._store_errors(folder):
            try:
                async for page in obstore.list(self._store, prefix=self._path(folder)):
                    if page:
                        yield [entry["path"] for entry in page]
            except Exception as problem:
                if self.configured or not _is_missing(problem):
                    raise

    async def _delete(self, keys: list[str]) -> None:
        import obstore

        with self._store_errors(keys[0]), suppress(FileNotFoundError):
            await obstore.delete_async(self._store, keys)

    def _path(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key

    def _key(self, reference: Reference) -> str:
        """The key of the object, which is always inside of the bucket and prefix of the store."""
        key, url = reference.locator.get("key"), reference.locator.get("url")
        if reference.type != "object_store" or not isinstance(key, str):
            raise PayloadUnavailable(f"not a reference to an object: {reference.type} {reference.locator}")
        inside = not self.prefix or key.startswith(self.prefix + "/")
        if url != f"{self.place.scheme}://{self.place.bucket}" or not inside or ".." in key.split("/"):
            raise PayloadUnavailable(f"{url}/{key} is outside of the result store of this installation")
        return key

    @contextmanager
    def _store_errors(self, key: str) -> Iterator[None]:
        """Raise an error of the driver as StoreUnavailable."""
        try:
            yield
        except NoetlError:
            raise
        except objects.errors() as problem:
            info = objects.to_error_info(problem, f"result store {self.place.scheme}://{self.place.bucket} ({key})")
            kind = info.kind if info.kind in ("auth", "storage.quota", "storage.access") else "connection"
            raise StoreUnavailable(info.message, kind=kind) from problem


def _is_missing(problem: Exception) -> bool:
    """Whether an error of the driver means that the bucket does not exist."""
    codes = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
    return isinstance(problem, FileNotFoundError) or any(code in str(problem) for code in codes)
