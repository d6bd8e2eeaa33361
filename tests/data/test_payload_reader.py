"""Parts of stored payloads: long lines, long values, and content that does not match its format."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.core.model.reference import Reference
from noetl.data import payload_reader, row_stream
from noetl.data.files import formats
from noetl.data.payload_reader import MemoryPayload, Part, TooLarge, csv_records, lines_of, read_part
from noetl.runtime.resources import close_loop_resources
from noetl.storage.results import open_store
from noetl.testing.tools import ToolHost, run_tool

BLOCK = 1 << 16


async def blocks(data: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(data), BLOCK):
        yield data[start : start + BLOCK]


async def collected(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


@pytest.mark.parametrize("size", [1, 3, BLOCK])
@pytest.mark.parametrize("data", [b"", b"a", b"a\n", b"\n", b"a\n\nbc\n", b"a\nb\r\n\nlonger than three"])
def test_lines_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch, size: int, data: bytes) -> None:
    monkeypatch.setitem(globals(), "BLOCK", size)
    assert asyncio.run(collected(lines_of(blocks(data), keep=True))) == io.BytesIO(data).readlines()


@pytest.mark.parametrize(
    "data",
    [b'a,b\n"x,1\n' + b"hello,world\n" * 100_000, b"x" * (32 << 20), b"a,b\n" + b"1," + b"y" * (32 << 20) + b"\n"],
    ids=["a quote that is not closed", "one line", "one value"],
)
def test_the_time_to_find_records_is_linear(data: bytes) -> None:
    """The server reads parts of results for viewers: a quadratic search took 12 s for one megabyte with one quote."""
    began = time.process_time()
    with suppress(msgspec.DecodeError):
        asyncio.run(collected(csv_records(blocks(data), ",")))
    assert time.process_time() - began < 5


def test_long_lines_and_quotes_that_are_not_closed_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_reader, "MAX_LINE", 1 << 20)
    with pytest.raises(TooLarge, match="a line has more than"):
        asyncio.run(collected(lines_of(blocks(b"x" * (2 << 20)))))
    read = 0

    async def counted() -> AsyncGenerator[bytes, None]:
        nonlocal read
        async for block in blocks(b'a,b\n"x,1\n' + b"hello,world\n" * 400_000):
            read += len(block)
            yield block

    with pytest.raises(msgspec.DecodeError, match="a quoted field does not end"):
        asyncio.run(collected(csv_records(counted(), ",")))
    assert read < 2 << 20


def test_records_that_end_with_a_carriage_return_are_not_lost() -> None:
    records = asyncio.run(collected(csv_records(blocks(b"a,b\r1,2\r3,4\r"), ",")))
    assert [row for row, _ in records] == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]


def test_long_values_of_csv_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,t\n1," + "x" * 200_000 + "\n2,y\n")
    host = ToolHost(folder=tmp_path)
    for more in ({}, {"limit": 2}):
        outcome = run_tool("object", {"action": "get", "uri": str(tmp_path / "a.csv"), **more}, host=host)
        assert outcome.error is None, outcome.error
        assert [len(row["t"]) for row in outcome.data["rows"]] == [200_000, 1]
    quarantine = {"bad_rows": "quarantine", "quarantine": {"kind": "file", "path": "bad.jsonl"}}
    target = {"kind": "sqlite", "file": "b.sqlite", "table": "t"}
    moved = run_tool(
        "transfer", {"source": {"kind": "file", "path": "a.csv"}, "targets": [target], **quarantine}, host=host
    )
    assert (moved.data["rows"], moved.data["quarantined"]) == (2, 0)


@pytest.mark.parametrize("more", [{}, {"limit": 2}])
def test_csv_that_python_refuses_is_an_error_of_its_content(tmp_path: Path, more: dict[str, Any]) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,t\n1,x" + b"y" * (65 << 20) + b"\n")
    outcome = run_tool(
        "object", {"action": "get", "uri": str(tmp_path / "a.csv"), **more}, host=ToolHost(folder=tmp_path),
        spec={"inline_bytes": 100 << 20, "max_bytes": 100 << 20},
    )  # fmt: skip
    assert outcome.error is not None and outcome.error.kind in ("parse", "limit"), outcome.error


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_the_rows_of_a_table_are_read_once(format: str) -> None:
    """Every batch read the whole payload again, to check it."""
    count, sink = 350_000, io.BytesIO()
    table = pa.table({"n": pa.array(range(count), pa.int64())})
    if format == "parquet":
        pq.write_table(table, sink, row_group_size=50_000)
    else:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=50_000)
    data = sink.getvalue()
    sent = 0

    async def opened(reference: Reference, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        nonlocal sent
        part = data[offset:] if length is None else data[offset : offset + length]
        sent += len(part)
        yield part

    meta = {"content_type": f"application/vnd.apache.{format}{'' if format == 'parquet' else '.stream'}"}
    reference = msgspec.convert(
        {"type": "blob", "locator": {"path": "x"}, "meta": {**meta, "bytes": len(data), "sha256": "a"}}, Reference
    )
    rows = asyncio.run(collected(row_stream.rows_of(reference, opened)))
    assert [row["n"] for row in rows] == list(range(count))
    assert sent < 3.5 * len(data)


@pytest.mark.parametrize("way", ["part", "rows"])
def test_many_tables_are_read_at_the_same_time(tmp_path: Path, way: str) -> None:
    """The threads that read tables must not be those that read their files: together they waited for each other."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": list(range(1000))}), sink)

    async def scenario() -> list[Any]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        store = open_store(f"blob://{tmp_path}")
        try:
            reference = await store.put("1/a/b", blocks(sink.getvalue()), content_type=formats.PARQUET)
            payload = payload_reader.StoredPayload(reference, store.open)
            async with asyncio.timeout(30):
                if way == "part":
                    found = await asyncio.gather(
                        *(read_part(payload, "parquet", Part("n", 5, 10), verify=False) for _ in range(8))
                    )
                else:
                    found = await asyncio.gather(
                        *(collected(row_stream.rows_of(reference, store.open)) for _ in range(8))
                    )
        finally:
            await store.close()
            await close_loop_resources()
        return found

    found = asyncio.run(scenario())
    assert len(found) == 8 and all(each == found[0] for each in found)


def test_a_part_of_csv_with_long_values_is_read_from_memory() -> None:
    data = b"a\n" + b"x" * 300_000 + b"\n"
    found = asyncio.run(read_part(MemoryPayload(data), "csv", Part(None, 1, 0)))
    assert len(found["rows"][0]["a"]) == 300_000
