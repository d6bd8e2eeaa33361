"""Results as Arrow batches: the response is written to a temporary file and read from there, with bounded memory."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp

from noetl_clickhouse.connection import ServerError

BLOCK = 1024 * 1024
END = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow stream; readers do not require it
TAIL = 64 * 1024


async def batches(response: Any, rows: int) -> AsyncGenerator[Any, None]:
    """The batches of a response in the format ArrowStream; none if the statement has no result."""
    import pyarrow as pa

    with tempfile.TemporaryFile(prefix="noetl-clickhouse-") as file:
        async for block in response.content.iter_chunked(BLOCK):
            await asyncio.to_thread(file.write, block)
        if not file.tell():
            return
        _check_end(file)
        file.seek(0)
        reader = await asyncio.to_thread(pa.ipc.open_stream, file)

        def following() -> Any:
            try:
                return reader.read_next_batch()
            except StopIteration:
                return None

        count = 0
        while (batch := await asyncio.to_thread(following)) is not None:
            for start in range(0, batch.num_rows, rows):
                count += 1
                yield batch.slice(start, rows)
        if not count:
            yield pa.RecordBatch.from_pylist([], reader.schema)


def _check_end(file: Any) -> None:
    """An error if the response does not end with the end of its stream: a server that fails after the status is sent
    writes its error behind the rows, and a proxy may end a response that it did not receive whole."""
    file.seek(max(0, file.tell() - TAIL))
    tail = file.read()
    if tail.endswith(END):
        return
    found = re.search(rb"Code: (\d+)\. DB::.*", tail, re.DOTALL)
    if found is None:
        raise aiohttp.ClientPayloadError("the response is not a complete Arrow stream; is this the port of HTTP?")
    raise ServerError(200, int(found[1]), found[0].decode(errors="replace").strip())
