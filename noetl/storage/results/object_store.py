"""Results as objects of S3 (and compatible stores), Google Cloud Storage or Azure: the store of a cluster.

Invariant: an object exists completely or not at all. Payloads with a ttl are below `ttl/<hour of expiry>/`, so
`collect` lists only those. The URL may have options: `endpoint`, `region`, keys
(`s3://results/noetl?endpoint=http://127.0.0.1:9000&region=us-east-1`); prefer the fields of a credential.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from noetl.connections import objects
from noetl.connections.auth import plain_fields
from noetl.core.model.reference import Reference, ReferenceType
from noetl.errors import PayloadUnavailable, StoreUnavailable
from noetl.storage.results.payload_store import Packing, PayloadStore, by_hour, missing


class ObjectResults(PayloadStore):
    """A result store in a bucket, below a prefix."""

    type: ClassVar[ReferenceType] = "object_store"

    def __init__(
        self,
        url: str,
        *,
        fields: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        parts = urlsplit(url)
        place = objects.parse_location(parts._replace(query="").geturl().rstrip("/") + "/")
        given = plain_fields({**dict(parse_qsl(parts.query)), **(fields or {})}, objects.PREFIXES)
        self.place = place
        self.prefix = place.key.strip("/")
        self._store = objects.new_store(place, objects.config_of(place, given))

    async def _store_blocks(self, key: str, packing: Packing, now: float, expires: float | None) -> dict[str, Any]:
        path = self._path(by_hour(key, expires))
        try:
            await objects.upload(self._store, path, packing.blocks(), content_type=packing.content_type)
        except Exception as problem:
            if packing.failure is not None:  # the producer of the payload failed, not the store
                raise packing.failure from problem
            raise self._unavailable(problem, key) from problem
        return {"url": f"{self.place.scheme}://{self.place.bucket}", "key": path}

    async def _stored(
        self, key: str, reference: Reference, start: int, count: int | None
    ) -> AsyncGenerator[bytes, None]:
        if reference.meta.bytes == 0 and count == 0:
            if not await objects.exists(self._store, key):
                raise missing(key, reference)
            return
        try:
            async for chunk in objects.download(self._store, key, start=start, count=count):
                yield chunk
        except FileNotFoundError:
            raise missing(key, reference) from None
        except (GeneratorExit, PayloadUnavailable):
            raise
        except Exception as problem:
            if "416" in str(problem) or "range" in str(problem).lower():
                raise PayloadUnavailable(f"stored payload {key} is damaged: too short", kind="ref.corrupt") from None
            raise self._unavailable(problem, key) from problem

    async def delete(self, reference: Reference) -> None:
        """Delete a payload; a missing one is not an error."""
        await self._delete([self._key(reference)])

    async def collect(self, now: float) -> int:
        """Delete expired payloads; return their number."""
        import obstore

        expired: list[str] = []
        try:
            async for page in obstore.list(self._store, prefix=self._path("ttl")):
                for entry in page:
                    expires = entry["path"].rpartition(".")[2]
                    if expires.isdigit() and int(expires) <= now:
                        expired.append(entry["path"])
        except Exception as problem:
            raise self._unavailable(problem, "ttl") from problem
        for start in range(0, len(expired), 1000):
            await self._delete(expired[start : start + 1000])
        return len(expired)

    async def forget(self, executions: Sequence[str]) -> int:
        """Delete the payloads of these executions that have no ttl; return their number."""
        import obstore

        deleted = 0
        for execution_id in executions:
            try:
                async for page in obstore.list(self._store, prefix=self._path(execution_id)):
                    keys = [entry["path"] for entry in page]
                    await self._delete(keys)
                    deleted += len(keys)
            except StoreUnavailable:
                raise
            except Exception as problem:
                raise self._unavailable(problem, execution_id) from problem
        return deleted

    async def close(self) -> None:
        """Do nothing: no connection is open."""

    async def _delete(self, keys: list[str]) -> None:
        import obstore

        try:
            await obstore.delete_async(self._store, keys)
        except FileNotFoundError:
            return
        except Exception as problem:
            raise self._unavailable(problem, keys[0]) from problem

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

    def _unavailable(self, problem: Exception, key: str) -> StoreUnavailable:
        info = objects.to_error_info(problem, f"result store {self.place.scheme}://{self.place.bucket} ({key})")
        known = info.kind in ("auth", "storage.quota", "storage.access")
        return StoreUnavailable(info.message, kind=info.kind if known else "connection")
