"""Results as Arrow batches: the response is written to a temporary file and read from there, with bounded memory."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from typing import Any

BLOCK = 1024 * 1024


async def batches(response: Any, rows: int) -> AsyncGenerator[Any, None]:
    """The batches of a response in the format ArrowStream; none if the statement has no result."""
    import pyarrow as pa

    with tempfile.TemporaryFile(prefix="noetl-clickhouse-") as file:
        async for block in response.content.iter_chunked(BLOCK):
            await asyncio.to_thread(file.write, block)
        if not file.tell():
            return
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
