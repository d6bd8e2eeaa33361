"""Result stores, for payloads too large for the event log: one module per back end, selected by a URL.

blob:///var/lib/noetl/results                        files on disk
sqlite:///var/lib/noetl/results.db                   relational, embedded
postgresql://user:secret@host/database               relational
s3://bucket/prefix  gs://...  az://...  file:///...  object_store
nats://host:4222/bucket                              nats object store
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from noetl.core.model.reference import Reference, ReferenceType
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


def _path(url: str) -> str:
    parts = urlsplit(url)
    return unquote(parts.netloc + parts.path)


# Values of `output: {store: {kind}}` in playbooks, and their reference types.
STORE_KINDS: dict[str, ReferenceType] = {
    "blob": "blob", "disk": "blob", "local": "blob",
    "relational": "relational", "postgres": "relational", "postgresql": "relational", "sqlite": "relational",
    "db": "relational",
    "object_store": "object_store", "object": "object_store", "s3": "object_store", "gcs": "object_store",
    "gs": "object_store", "azure": "object_store", "file": "object_store",
    "nats": "nats", "nats_object": "nats", "nats_objects": "nats", "nats_kv": "nats",
}  # fmt: skip


class ResultStores:
    """The result stores of an installation: new payloads go to the first, references to the store of their type."""

    def __init__(self, stores: Sequence[ResultStore]) -> None:
        if not stores:
            raise ValueError("an installation needs at least one result store")
        self.default = stores[0]
        self.by_type: dict[str, ResultStore] = {store.type: store for store in reversed(stores)}  # type: ignore[attr-defined]

    def of(self, kind: str | None) -> ResultStore:
        """The store for a value of `output.store.kind`; None is the first store."""
        if kind in (None, "", "auto", "default"):
            return self.default
        wanted = STORE_KINDS.get(str(kind).lower())
        if wanted in self.by_type:
            return self.by_type[wanted]
        raise RequestRefused(
            f"this installation has no result store of kind {kind!r}: it has {', '.join(sorted(self.by_type))}"
        )

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
        """Stream a payload from the store of its type."""
        return self._store(reference).open(reference, offset=offset, length=length)

    async def delete(self, reference: Reference) -> None:
        """Delete a payload."""
        await self._store(reference).delete(reference)

    async def collect(self, now: float) -> int:
        """Delete expired payloads in all stores; return their number."""
        return sum([await store.collect(now) for store in self.by_type.values()])

    async def forget(self, executions: Sequence[str]) -> int:
        """Delete the payloads of these executions that have no ttl, in all stores; return their number."""
        return sum([await store.forget(executions) for store in self.by_type.values()])

    async def close(self) -> None:
        """Close all stores."""
        for store in self.by_type.values():
            await store.close()

    def _store(self, reference: Reference) -> ResultStore:
        store = self.by_type.get(reference.type)
        if store is None:
            raise PayloadUnavailable(
                f"the payload is in a result store of type {reference.type!r}, which this installation does not have"
            )
        return store


def open_results(urls: str | Sequence[str], **options: Any) -> ResultStores:
    """Open the result stores of one or more URLs."""
    return ResultStores([open_store(url, **options) for url in ([urls] if isinstance(urls, str) else urls)])
