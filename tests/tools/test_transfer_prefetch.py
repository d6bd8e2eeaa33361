"""Chunks that are fetched while another one is written."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pyarrow as pa
import pytest

from noetl.tools.transfer.chunks import Chunk
from noetl.tools.transfer.engine import prefetch

TABLE = pa.table({"n": [1, 2, 3]})


@pytest.mark.parametrize(("small", "ahead"), [(0, 1), (TABLE.nbytes - 1, 1), (TABLE.nbytes, 2)])
def test_two_small_chunks_or_one_large_are_fetched_in_advance(small, ahead):
    fetched = []

    async def chunks():
        for index in range(6):
            fetched.append(index)
            yield Chunk(index, TABLE, last=False)

    async def scenario():
        used = 0
        async with aclosing(prefetch(chunks(), small)) as stream:
            async for chunk in stream:
                for _ in range(20):  # more than the fetching task needs
                    await asyncio.sleep(0)
                assert chunk.index == used
                used += 1
                assert len(fetched) == min(used + ahead, 6)
        return used

    assert asyncio.run(scenario()) == 6
