"""Stored lists are joined into one list by streaming."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from noetl.core.engine.effects import StorePayload
from noetl.core.model.reference import Reference, ReferenceMeta
from noetl.server.orchestrator.request_resolver import RequestResolver


class Results:
    """A result store that hands out its bytes in small pieces."""

    def __init__(self, piece: int) -> None:
        self.piece = piece
        self.stored: dict[str, bytes] = {}

    async def put(self, name: str, chunks: AsyncIterator[bytes], **meta: Any) -> Reference:
        self.stored[name] = b"".join([chunk async for chunk in chunks])
        return Reference("blob", {"key": name}, ReferenceMeta("application/json", len(self.stored[name]), "0"))

    async def open(self, reference: Reference) -> AsyncIterator[bytes]:
        data = self.stored[reference.locator["key"]]
        for start in range(0, len(data), self.piece):
            yield data[start : start + self.piece]


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "lists", [[[1, 2], [3]], [[], [1]], [[1], []], [[], []], [["a,b]", {"x": [1]}], [None], [[]]], [[1], [], [2], []]]
)
def test_lists_are_joined_element_by_element(piece, lists):
    async def join() -> Any:
        results = Results(piece)
        resolver = RequestResolver(results, dict)  # type: ignore[arg-type]
        parts: list[Any] = []
        for number, each in enumerate(lists[:-1]):
            results.stored[f"p{number}"] = msgspec.json.encode(each)
            parts.append(Reference("blob", {"key": f"p{number}"}, ReferenceMeta("application/json", 1, "0")))
        parts.append(msgspec.json.encode(lists[-1]))
        (reference,) = (await resolver.resolve([StorePayload("k", b"", 3, tuple(parts))], "1", None)).values()  # type: ignore[arg-type]
        return msgspec.json.decode(results.stored[reference.locator["key"]])

    assert asyncio.run(join()) == [item for each in lists for item in each]
