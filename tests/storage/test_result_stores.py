"""Every result store fulfils the contract of the port, against its real server."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from devcluster import services
from noetl.core.model.reference import Reference
from noetl.errors import PayloadUnavailable, RequestRefused, StoreUnavailable
from noetl.storage.results import ResultStores, open_results, open_store
from tests.conformance.result_store import OpenStore, ResultStoreSuite, chunked, read


class TestBlob(ResultStoreSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda **options: open_store(f"blob://{tmp_path}/results", **options)

    def test_a_flipped_bit_is_detected(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            store = open_store(f"blob://{tmp_path}")
            reference = await store.put("1:a:1", chunked(b'{"n": 1}' * 300_000), content_type="application/json")
            file = tmp_path / reference.locator["path"]
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
            with pytest.raises(PayloadUnavailable) as caught:
                await read(store, reference)
            assert caught.value.kind == "ref.corrupt"

        asyncio.run(scenario())

    def test_an_abandoned_write_is_deleted(self, tmp_path: Path) -> None:
        left = tmp_path / "unfinished" / "payload-1"
        left.parent.mkdir()
        left.write_bytes(b"half")
        store: Any = open_store(f"blob://{tmp_path}")
        asyncio.run(store.collect(left.stat().st_mtime + 3600))
        assert left.exists()
        asyncio.run(store.collect(left.stat().st_mtime + 90_000))
        assert not left.exists()

    def test_a_disk_error_is_a_storage_error(self, tmp_path: Path) -> None:
        from noetl.errors import StoreUnavailable

        (tmp_path / "results").write_text("in the way")
        store = open_store(f"blob://{tmp_path}/results")
        with pytest.raises(StoreUnavailable) as caught:
            asyncio.run(store.put("1:a:1", chunked(b"hello"), content_type="text/plain"))
        assert caught.value.kind == "storage.access"

    @pytest.mark.parametrize(
        ("number", "kind", "remedy"),
        [(errno.ENOSPC, "storage.quota", "free disk space"), (errno.EIO, "storage.access", "check it")],
    )
    def test_a_full_or_broken_disk_is_named_with_its_remedy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: str, remedy: str
    ) -> None:
        from noetl.errors import StoreUnavailable

        def fail(_: int) -> None:
            raise OSError(number, os.strerror(number))

        store = open_store(f"blob://{tmp_path}")
        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(StoreUnavailable, match=f"{tmp_path}.*{remedy}") as caught:
            asyncio.run(store.put("1:a:1", chunked(b"hello"), content_type="text/plain"))
        assert caught.value.kind == kind
        assert not [each for each in tmp_path.rglob("*") if each.is_file()]


class TestSqlite(ResultStoreSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda **options: open_store(f"sqlite://{tmp_path}/results.db", **options)


class TestPostgres(ResultStoreSuite):
    @pytest.fixture
    def open_store(self, database: str) -> OpenStore:
        return lambda **options: open_store(database, **options)


class TestObjectStore(ResultStoreSuite):
    @pytest.fixture
    def open_store(self, s3: dict[str, Any], bucket: str) -> OpenStore:
        return lambda **options: open_store(f"s3://{bucket}/results", fields=s3, **options)


class TestNats(ResultStoreSuite):
    @pytest.fixture
    def open_store(self, nats_server: str, tmp_path: Path) -> OpenStore:
        return lambda **options: open_store(f"{nats_server}/{tmp_path.name}", **options)


def test_an_unknown_scheme_names_the_known_ones() -> None:
    with pytest.raises(RequestRefused, match="file:, sqlite:, postgresql:"):
        open_store("ftp://somewhere")


def test_a_store_is_selected_by_the_kind_in_a_playbook(tmp_path: Path) -> None:
    stores = open_results(f"file://{tmp_path}/a,sqlite://{tmp_path}/b.db")
    assert stores.of({}) is stores.default is stores.of({"kind": "disk"})
    assert stores.of({"kind": "postgres"}) is stores.of({"type": "DB"}) is stores.stores[1]
    assert stores.of({"kind": "nats"}) is None and stores.of({"kind": "tape"}) is None
    assert stores.types == ("blob", "relational")


def test_a_bucket_of_the_same_account_is_used(s3: dict[str, Any], bucket: str) -> None:
    """Below a prefix of its own: a reference reaches nothing else in it."""

    async def scenario(other: str) -> None:
        stores = ResultStores([open_store(f"s3://{bucket}", fields=s3)])
        store = stores.of({"kind": "s3", "bucket": other})
        assert store is stores.of({"kind": "object", "bucket": other}) and store is not stores.default
        reference = await store.put("17/a/1", chunked(b"hello"), content_type="text/plain")
        assert (reference.locator["bucket"], reference.locator["key"].split("/")[0]) == (other, "noetl-results")
        await stores.close()
        fresh = ResultStores([open_store(f"s3://{bucket}", fields=s3)])  # another process
        assert await read(fresh, reference) == b"hello"
        foreign = msgspec.structs.replace(reference, locator={**reference.locator, "key": "secrets.json"})
        with pytest.raises(PayloadUnavailable, match="outside"):
            await read(fresh, foreign)
        for wrong in ("x?endpoint=http://127.0.0.1:1", "a/b", "", "x@y"):
            with pytest.raises(StoreUnavailable, match="not a name of a bucket"):
                fresh.of({"kind": "s3", "bucket": wrong})
        await fresh.close()

    with services.fresh_bucket(s3) as other:
        asyncio.run(scenario(other))


def test_retention_finds_buckets_that_only_playbooks_have_named(s3: dict[str, Any], bucket: str) -> None:
    def opened() -> ResultStores:
        return ResultStores([open_store(f"s3://{bucket}/results", fields=s3)])

    async def store_in(name: str) -> Reference:
        worker = opened()
        store = worker.of({"kind": "s3", "bucket": name})
        assert store is not None
        reference = await store.put("17/a/1", chunked(b"hello"), content_type="text/plain")
        await store.put("18/a/1", chunked(b"brief"), content_type="text/plain", ttl="1s")
        await worker.close()
        return reference

    async def retain(reference: Reference) -> None:
        server = opened()
        deleted: Any = server.of({"kind": "s3", "bucket": "t-deleted-since"})
        with pytest.raises(StoreUnavailable):
            await deleted.put("17/a/1", chunked(b"hello"), content_type="text/plain")
        await server.close()
        server = opened()
        assert await server.collect(time.time() + 60) == 1
        assert await server.forget(["17"]) == 1
        with pytest.raises(PayloadUnavailable):
            await read(server, reference)
        await server.close()

    with services.fresh_bucket(s3) as other:
        asyncio.run(retain(asyncio.run(store_in(other))))


def test_a_bucket_selects_a_store_of_the_configuration_or_a_bucket_of_nats(
    nats_server: str, s3: dict[str, Any], bucket: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        inner = f"{tmp_path.name}-own"
        stores = ResultStores(
            [
                open_store(f"blob://{tmp_path}"),
                open_store(f"{nats_server}/{tmp_path.name}"),
                open_store(f"s3://{bucket}/a", fields=s3),
            ]
        )
        assert stores.of({"kind": "s3", "bucket": bucket}) is stores.stores[2]
        assert stores.of({"kind": "gcs", "bucket": bucket}) is None is stores.of({"kind": "gcs"})
        own = stores.of({"kind": "nats_object", "bucket": inner})
        assert own is stores.of({"kind": "kv", "bucket": inner}) and own is not stores.of({"kind": "nats"})
        reference = await own.put("17/a/1", chunked(b"hello"), content_type="text/plain")
        assert reference.locator["bucket"] == inner
        await stores.close()
        fresh = open_results(f"{nats_server}/{tmp_path.name}")  # another process
        assert await read(fresh, reference) == b"hello"
        assert await fresh.forget(["17"]) == 1  # retention finds buckets that playbooks have named
        foreign = msgspec.structs.replace(reference, locator={**reference.locator, "name": "secrets.json"})
        with pytest.raises(PayloadUnavailable, match="not a stored result"):
            await read(fresh, foreign)
        await fresh.close()

    asyncio.run(scenario())


def test_a_locator_says_where_the_payload_is_and_has_no_credential(
    tmp_path: Path, database: str, nats_server: str, s3: dict[str, Any], bucket: str
) -> None:
    async def scenario() -> None:
        host = socket.gethostname()
        port = urlsplit(nats_server).port
        expected = {
            f"blob://{tmp_path}": {"store": "blob", "scheme": "file", "host": host, "root": str(tmp_path)},
            f"sqlite://{tmp_path}/r.db": {"scheme": "sqlite", "host": host, "database": f"{tmp_path}/r.db"},
            database: {
                "scheme": "postgresql",
                "database": urlsplit(database).path.strip("/"),
                "table": "noetl_results",
            },
            f"{nats_server}/{tmp_path.name}": {"host": f"127.0.0.1:{port}", "bucket": tmp_path.name},
            f"s3://{bucket}/a": {"scheme": "s3", "bucket": bucket},
        }
        for url, part in expected.items():
            options = {"fields": s3} if url.startswith("s3:") else {}
            store = open_store(url, **options)
            reference = await store.put("1/a/1", chunked(b"hello"), content_type="text/plain")
            assert part.items() <= reference.locator.items(), reference.locator
            with_credential = url.startswith("s3:") or bool(urlsplit(url).password)
            assert (reference.auth_reference == "settings/results") is with_credential
            assert not {str(value) for value in s3.values() if "http" not in str(value)} & {
                str(value) for value in reference.locator.values()
            }
            await store.close()

    asyncio.run(scenario())


def test_references_are_read_from_the_store_of_their_type(tmp_path: Path) -> None:
    async def scenario() -> None:
        both = open_results([f"file://{tmp_path}/a", f"sqlite://{tmp_path}/b.db"])
        reference = await both.of({"kind": "db"}).put("1:a:1", chunked(b"hello"), content_type="text/plain")
        assert await read(both, reference) == b"hello"
        only = ResultStores([both.default])
        with pytest.raises(PayloadUnavailable, match="relational"):
            await read(only, reference)
        await both.close()

    asyncio.run(scenario())
