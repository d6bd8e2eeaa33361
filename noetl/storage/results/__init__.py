"""Result stores, for payloads too large for the event log: one module per back end, selected by a URL.

blob:///var/lib/noetl/results                        files on disk
sqlite:///var/lib/noetl/results.db                   relational, embedded
postgresql://user:secret@host/database               relational
s3://bucket/prefix  gs://...  az://...  file:///...  object_store
nats://host:4222/bucket                              nats object store
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from noetl.core.model.reference import INLINE_STORES, STORE_KINDS, Reference
from noetl.errors import PayloadUnavailable, RequestRefused
from noetl.storage.ports.results import ResultStore

OBJECT_SCHEMES = ("s3", "gs", "gcs", "az", "azure", "abfs", "abfss")


def open_store(url: str, **options: Any) -> ResultStore:
    """Open the result store of a URL; `options` are those of the back end (compression, clock, ...)."""
    scheme = url.partition(":")[0].lower()
    if scheme in ("blob", "file"):
        from noetl.storage.results.blob import BlobResults

        return BlobResults(_path(url), **options)
    if scheme == "sqlite":
        from noetl.storage.results.sqlite import SqliteResults

        path = _path(url)
        if not path.strip("/"):
            raise RequestRefused(
                "a sqlite: URL needs the path of a file, for example sqlite:///var/lib/noetl/results.db"
            )
        return SqliteResults(path, **options)
    if scheme in ("postgres", "postgresql"):
        from noetl.storage.results.postgres import PostgresResults

        return PostgresResults(url, **options)
    if scheme in OBJECT_SCHEMES:
        from noetl.storage.results.object_store import ObjectResults

        return ObjectResults(url, **options)
    if scheme == "nats":
        from noetl.storage.results.nats import NatsResults

        return NatsResults(url, **options)
    raise RequestRefused(f"unknown result store {scheme!r}: use file:, sqlite:, postgresql:, s3:, gs:, az: or nats:")


_TYPES = {"blob": "blob", "file": "blob", "sqlite": "relational", "postgres": "relational", "nats": "nats"}


def store_types(urls: str) -> tuple[str, ...]:
    """The types of the stores of a setting, without opening them."""
    schemes = [url.strip().partition(":")[0].lower() for url in urls.split(",")]
    types = [_TYPES.get(scheme.removesuffix("ql"), "object_store") for scheme in schemes]
    return tuple(dict.fromkeys(types))


def _path(url: str) -> str:
    parts = urlsplit(url)
    return unquote(parts.netloc + parts.path)


_SCHEMES = {"s3": "s3", "gcs": "gs", "gs": "gs", "azure": "az", "az": "az"}


class ResultStores:
    """The result stores of an installation: new payloads go to the first unless the playbook selects another one.

    A playbook selects by type (`store: {kind: nats_object}`) and bucket; stores of NATS and object stores can use any
    bucket of their server or account. A reference is read from the store that its locator names."""

    def __init__(self, stores: Sequence[ResultStore]) -> None:
        if not stores:
            raise ValueError("an installation needs at least one result store")
        self.default = stores[0]
        self.stores: list[Any] = list(stores)

    @property
    def types(self) -> tuple[str, ...]:
        """The types of the stores, each once."""
        return tuple(dict.fromkeys(store.type for store in self.stores))

    def of(self, store: Mapping[str, Any]) -> ResultStore | None:
        """The store for `store: {kind, bucket?}` of a playbook; None if this installation has none of that kind."""
        kind = str(store.get("kind") or store.get("type") or "").lower()
        if kind in INLINE_STORES:
            return self.default
        ours = [each for each in self.stores if each.type == STORE_KINDS.get(kind)]
        scheme = _SCHEMES.get(kind)
        if scheme is not None:  # another provider's store is not of this kind
            ours = [each for each in ours if each.address.get("scheme") == scheme]
        bucket = store.get("bucket")
        if not ours or bucket is None:
            return ours[0] if ours else None
        return next((each for each in ours if each.bucket == bucket), None) or self._in_bucket(ours[0], str(bucket))

    def _in_bucket(self, store: Any, bucket: str) -> ResultStore | None:
        """The same server with another bucket, opened once; None if stores of this type are bound to their bucket."""
        other = store.in_bucket(bucket)
        if other is not None:
            self.stores.append(other)
        return other  # type: ignore[no-any-return]

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
        """Store a payload in the first store."""
        return await self.default.put(name, chunks, content_type=content_type, rows=rows, columns=columns, ttl=ttl)

    def open(self, reference: Reference, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Stream a payload from its store."""
        return self._store(reference).open(reference, offset=offset, length=length)

    async def delete(self, reference: Reference) -> None:
        """Delete a payload."""
        await self._store(reference).delete(reference)

    async def collect(self, now: float) -> int:
        """Delete expired payloads in all stores; return their number."""
        return sum([await store.collect(now) for store in await self._all()])

    async def forget(self, executions: Sequence[str]) -> int:
        """Delete the payloads of these executions that have no ttl, in all stores; return their number."""
        return sum([await store.forget(executions) for store in await self._all()])

    async def close(self) -> None:
        """Close all stores."""
        for store in self.stores:
            await store.close()

    async def _all(self) -> list[Any]:
        """All stores, with the buckets that playbooks have made."""
        for store in [each for each in self.stores if each.type in ("nats", "object_store")]:
            scheme = store.address.get("scheme")
            for bucket in await store.made_buckets():
                ours = (each for each in self.stores if each.type == store.type and each.bucket == bucket)
                if all(each.address.get("scheme") != scheme for each in ours):
                    self._in_bucket(store, bucket)
        return list(self.stores)

    def _store(self, reference: Reference) -> ResultStore:
        ours = [each for each in self.stores if each.type == reference.type]
        if not ours:
            raise PayloadUnavailable(
                f"the payload is in a result store of type {reference.type!r}, which this installation does not have"
            )
        found: ResultStore | None = next((each for each in ours if each.holds(reference)), None)
        bucket = reference.locator.get("bucket")
        if found is None and isinstance(bucket, str):
            scheme = reference.locator.get("scheme")
            base = next((each for each in ours if each.address.get("scheme") == scheme), ours[0])
            found = self._in_bucket(base, bucket)
        return found or ours[0]


def open_results(urls: str | Sequence[str], **options: Any) -> ResultStores:
    """Open the result stores of one or more URLs (in one text: separated by commas)."""
    named = urls.split(",") if isinstance(urls, str) else urls
    return ResultStores([open_store(url.strip(), **options) for url in named if url.strip()])
