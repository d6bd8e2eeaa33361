"""Which executions the graph of lineage is made of."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from noetl.server.lineage import graph as module
from noetl.storage.ports.events import ExecutionFilter, ExecutionSummary


class Store:
    """Executions by path, and which of them were read."""

    def __init__(self, paths: list[str]) -> None:
        self.all = [_summary(number, path) for number, path in enumerate(paths)]
        self.read: list[str] = []

    async def executions(self, where: ExecutionFilter) -> list[ExecutionSummary]:
        found = [each for each in reversed(self.all) if where.path in (None, each.path)]
        return found[: where.limit]

    async def latest(self, paths: Any) -> dict[str, ExecutionSummary]:
        return {each.path: each for each in self.all if each.path in paths}

    async def logs(self, ids: list[str], most: int) -> dict[str, Any]:
        self.read += ids
        return {id: (self.all[int(id)], []) for id in ids}


def _summary(number: int, path: str) -> ExecutionSummary:
    return ExecutionSummary(
        execution_id=str(number), path=path, version="1", status="success", started_at=0.0, playbook="x", seq=1
    )


@pytest.mark.parametrize(("limit", "read"), [(2, ["50", "0"]), (3, ["50", "49", "0"])])
def test_a_rare_playbook_is_in_the_graph_beside_a_frequent_one(monkeypatch, limit, read):
    monkeypatch.setattr(module, "SCANNED", 10)
    monkeypatch.setattr(module, "MAX_EXECUTIONS", limit)
    store = Store(["rare", *["frequent"] * 50])
    found = asyncio.run(module.graph(store, ["frequent", "rare", "never"]))  # type: ignore[arg-type]
    assert found["executions"] == limit
    assert store.read == read


def test_one_playbook(monkeypatch):
    store = Store(["a", "b", *["a"] * 9])
    found = asyncio.run(module.graph(store, [], "a"))  # type: ignore[arg-type]
    assert found["executions"] == module.PER_PLAYBOOK
    assert store.read == ["10", "9", "8", "7", "6"]
