"""The contract of `ports.ResultStore`, as tests.

Subclass `ResultStoreSuite` in a test module and give it the fixture `open_store`, a function that
opens a store on the same place each time it is called (`compression` and `clock` are passed on):

    class TestMyResults(ResultStoreSuite):
        @pytest.fixture
        def open_store(self, tmp_path):
            return lambda **options: MyResults(tmp_path, **options)
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from noetl.core.model.reference import Reference
from noetl.errors import PayloadUnavailable
from noetl.storage.ports.results import ResultStore

OpenStore = Callable[..., ResultStore]


async def chunked(data: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    """The bytes in chunks."""
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def read(store: ResultStore, reference: Reference, **part: Any) -> bytes:
    """A payload (or a range of it) as bytes."""
    return b"".join([chunk async for chunk in store.open(reference, **part)])


class ResultStoreSuite:
    """Tests every result store must pass."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """A function that opens the store under test."""
        raise TypeError("a subclass gives the store under test")

    def run(
        self, open_store: OpenStore, scenario: Callable[[ResultStore], Coroutine[Any, Any, Any]], **options: Any
    ) -> Any:
        """Open the store, run the scenario, close the store."""

        async def opened() -> Any:
            store = open_store(**options)
            try:
                return await scenario(store)
            finally:
                await store.close()

        return asyncio.run(opened())

    @pytest.mark.parametrize("size", [0, 1, 100_000, 3_500_000])
    @pytest.mark.parametrize("content_type", ["application/json", "application/octet-stream"])
    def test_a_payload_is_read_as_written(self, open_store: OpenStore, size: int, content_type: str) -> None:
        """Any size, text (which is compressed) or bytes (which are not)."""
        data = (os.urandom(64) * (size // 64 + 1))[:size]

        async def scenario(store: ResultStore) -> None:
            reference = await store.put("1:a:1", chunked(data), content_type=content_type, rows=7, columns=["x", "y"])
            assert reference.meta.bytes == size
            assert reference.meta.sha256 == hashlib.sha256(data).hexdigest()
            assert (reference.meta.rows, reference.meta.columns) == (7, ("x", "y"))
            assert reference.meta.content_type == content_type
            assert await read(store, reference) == data

        self.run(open_store, scenario)

    def test_a_reference_survives_the_log_and_a_new_process(self, open_store: OpenStore) -> None:
        """References are data: written as JSON, read by another process that opened the same store."""

        async def write(store: ResultStore) -> bytes:
            return msgspec.json.encode(await store.put("1:a:1", chunked(b"hello"), content_type="text/plain"))

        kept = self.run(open_store, write)

        async def again(store: ResultStore) -> bytes:
            return await read(store, msgspec.json.decode(kept, type=Reference))

        assert self.run(open_store, again) == b"hello"

    @pytest.mark.parametrize("compression", ["none", "zstd"])
    @pytest.mark.parametrize(
        ("offset", "length"),
        [(0, 10), (5, None), (2**20 - 6, 20), (2_000_000, 7**7), (2_999_999, 5), (3_000_000, 1), (10**7, None), (4, 0)],
    )  # fmt: skip
    def test_a_range_is_read(self, open_store: OpenStore, compression: str, offset: int, length: int | None) -> None:
        """Ranges agree with slices, packed or not, over block borders and past the end."""
        data = bytes(range(256)) * 11_718 + b"tail of it.."
        assert len(data) == 2_999_820
        data += b"x" * (3_000_000 - len(data))

        async def scenario(store: ResultStore) -> bytes:
            reference = await store.put("1:a:1", chunked(data), content_type="application/json")
            assert reference.meta.compression == (None if compression == "none" else compression)
            return await read(store, reference, offset=offset, length=length)

        part = self.run(open_store, scenario, compression=compression)
        assert part == data[offset : None if length is None else offset + length]

    def test_reading_may_stop_early(self, open_store: OpenStore) -> None:
        """A reader that stops early leaves nothing open."""

        async def scenario(store: ResultStore) -> bytes:
            reference = await store.put("1:a:1", chunked(b"x" * 5_000_000), content_type="application/octet-stream")
            stream = store.open(reference)
            async with aclosing(stream):  # type: ignore[type-var]
                return await anext(stream)

        assert self.run(open_store, scenario).startswith(b"x")

    def test_payloads_with_the_same_name_are_separate(self, open_store: OpenStore) -> None:
        """A second attempt does not change the payload of the first one."""

        async def scenario(store: ResultStore) -> list[bytes]:
            references = [
                await store.put("1:a:1/0:t:1:1", chunked(text), content_type="text/plain") for text in (b"one", b"two")
            ]
            return [await read(store, reference) for reference in references]

        assert self.run(open_store, scenario) == [b"one", b"two"]

    def test_a_deleted_payload_cannot_be_resolved(self, open_store: OpenStore) -> None:
        """Deleting twice is no error; reading afterwards is, of kind ref.unresolved."""

        async def scenario(store: ResultStore) -> None:
            reference = await store.put("1:a:1", chunked(b"hello"), content_type="text/plain")
            other = await store.put("1:a:1", chunked(b"hello"), content_type="text/plain")
            await store.delete(reference)
            await store.delete(reference)
            with pytest.raises(PayloadUnavailable) as caught:
                await read(store, reference)
            assert caught.value.kind == "ref.unresolved"
            assert await read(store, other) == b"hello"

        self.run(open_store, scenario)

    def test_only_expired_payloads_are_collected(self, open_store: OpenStore) -> None:
        """The clock is an argument; payloads without ttl are never collected."""

        async def scenario(store: ResultStore) -> None:
            ttls = ("30m", "2h", None)
            short, long, lasting = [
                await store.put("1:a:1", chunked(b"hello"), content_type="text/plain", ttl=ttl) for ttl in ttls
            ]
            assert [reference.meta.ttl for reference in (short, long, lasting)] == ["30m", "2h", None]
            assert await store.collect(start + 1000) == 0
            assert await store.collect(start + 1801) == 1
            with pytest.raises(PayloadUnavailable, match="ttl"):
                await read(store, short)
            assert await store.collect(start + 1801) == 0
            assert await read(store, long) == b"hello"
            assert await store.collect(start + 10_000_000) == 1
            assert await read(store, lasting) == b"hello"

        start = 1_800_000_000.0
        self.run(open_store, scenario, clock=lambda: start)

    def test_an_invalid_ttl_is_rejected(self, open_store: OpenStore) -> None:
        """The error is raised before anything is written."""

        async def scenario(store: ResultStore) -> None:
            with pytest.raises(ValueError, match="tomorrow"):
                await store.put("1:a:1", chunked(b"hello"), content_type="text/plain", ttl="tomorrow")

        self.run(open_store, scenario)

    def test_payloads_of_an_execution_are_deleted_with_it(self, open_store: OpenStore) -> None:
        """Payloads of other executions, also with ids that share a prefix, and payloads with a ttl are kept."""

        async def scenario(store: ResultStore) -> None:
            gone = [await store.put(f"471/s/{n}", chunked(b"a"), content_type="text/plain") for n in range(3)]
            kept = [
                await store.put("4711/s/1", chunked(b"b"), content_type="text/plain"),
                await store.put("47/s/1", chunked(b"c"), content_type="text/plain"),
                await store.put("471/s/ttl", chunked(b"d"), content_type="text/plain", ttl="1d"),
            ]
            assert await store.forget(["471", "999"]) == 3
            for reference in gone:
                with pytest.raises(PayloadUnavailable):
                    await read(store, reference)
            assert [await read(store, reference) for reference in kept] == [b"b", b"c", b"d"]
            assert await store.forget(["471"]) == 0

        self.run(open_store, scenario)

    def test_a_failed_producer_leaves_no_payload(self, open_store: OpenStore) -> None:
        """The error of the producer is raised, and no partial payload can be read."""

        async def broken() -> AsyncIterator[bytes]:
            for _ in range(30):
                yield b"x" * 100_000
            raise ConnectionResetError("the other side hung up")

        async def scenario(store: ResultStore) -> None:
            with pytest.raises(ConnectionResetError, match="hung up"):
                await store.put("1:a:1", broken(), content_type="application/octet-stream")
            reference = await store.put("1:a:1", chunked(b"hello"), content_type="text/plain")
            assert await read(store, reference) == b"hello"

        self.run(open_store, scenario)

    @pytest.mark.parametrize("compression", ["none", "zstd"])
    def test_a_checksum_mismatch_is_detected(self, open_store: OpenStore, compression: str) -> None:
        """Reading the whole verifies it; the error's kind is ref.corrupt."""

        async def scenario(store: ResultStore) -> None:
            reference = await store.put("1:a:1", chunked(b"hello" * 1000), content_type="text/plain")
            lied = msgspec.structs.replace(reference, meta=msgspec.structs.replace(reference.meta, sha256="0" * 64))
            with pytest.raises(PayloadUnavailable) as caught:
                await read(store, lied)
            assert caught.value.kind == "ref.corrupt"
            longer = msgspec.structs.replace(reference, meta=msgspec.structs.replace(reference.meta, bytes=6000))
            with pytest.raises(PayloadUnavailable) as caught:
                await read(store, longer)
            assert caught.value.kind == "ref.corrupt"

        self.run(open_store, scenario, compression=compression)

    def test_a_locator_outside_the_store_is_rejected(self, open_store: OpenStore) -> None:
        """Locators may be forged; none leads out of the store."""

        async def scenario(store: ResultStore) -> None:
            reference = await store.put("1:a:1", chunked(b"hello"), content_type="text/plain")
            stolen = dict.fromkeys(reference.locator, "../../../etc/passwd")
            with pytest.raises(PayloadUnavailable):
                await read(store, msgspec.structs.replace(reference, locator=stolen))
            with pytest.raises(PayloadUnavailable):
                await read(store, msgspec.structs.replace(reference, locator={}))

        self.run(open_store, scenario)

    def test_concurrent_writers_and_readers(self, open_store: OpenStore) -> None:
        """Concurrent writers and readers do not affect each other."""

        async def one(store: ResultStore, number: int) -> bool:
            data = str(number).encode() * 50_000
            reference = await store.put(f"1:a:1/{number}", chunked(data), content_type="application/json")
            return await read(store, reference) == data

        async def scenario(store: ResultStore) -> list[bool]:
            return await asyncio.gather(*(one(store, number) for number in range(20)))

        assert all(self.run(open_store, scenario))
