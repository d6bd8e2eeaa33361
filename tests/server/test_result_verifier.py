"""Every stored payload that a log refers to is read, and damage is reported once."""

from __future__ import annotations

import asyncio

from noetl.core.model.events import ExecutionRequested, Recorded, TaskDone
from noetl.core.model.outcome import Outcome
from noetl.core.model.reference import Reference, ReferenceMeta
from noetl.errors import PayloadUnavailable, StoreUnavailable
from noetl.server.lifecycle import result_verifier
from noetl.server.lifecycle.result_verifier import verify_results
from noetl.server.read_models.summaries import project
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.ports.events import Append


def reference(key: str, ttl: str | None = None) -> Reference:
    return Reference("blob", {"key": key}, ReferenceMeta("application/json", 1, key, ttl=ttl))


class Results:
    def __init__(self, problems: dict[str, Exception]) -> None:
        self.problems = problems
        self.opened: list[str] = []

    async def open(self, wanted):
        key = str(wanted.locator["key"])
        self.opened.append(key)
        yield b"1"
        if key in self.problems:
            raise self.problems[key]


def task(seq: int, execution: str, *references: Reference, data=None) -> Recorded:
    outcome = Outcome(
        "ok",
        data=data if data is not None else [{"deep": each} for each in references[1:]],
        ref=(references or (None,))[0],
    )
    return Recorded(
        execution, seq, 1.0, TaskDone(step="s", step_run_id=f"{execution}:s:1", task="t", kind="noop", outcome=outcome)
    )


async def store_of(logs: dict[str, list[Recorded]]) -> MemoryEventStore:
    store = MemoryEventStore()
    for execution, events in logs.items():
        log = [Recorded(execution, 1, 1.0, ExecutionRequested("d", "p", payload={})), *events]
        await store.append(Append(execution, 0, log, project(None, log)))
    return store


def test_intact_payloads_are_counted_once_for_each_execution_and_damage_is_listed(monkeypatch):
    monkeypatch.setattr(result_verifier, "PAGE", 1)
    monkeypatch.setattr(result_verifier, "EVENTS", 2)
    lost, corrupt = PayloadUnavailable("it is lost"), PayloadUnavailable("it differs", kind="ref.corrupt")
    results = Results({"lost": lost, "old": lost, "bad": corrupt, "down": StoreUnavailable("no connection")})
    logs = {
        "1": [
            task(2, "1", reference("a"), reference("b")),
            task(3, "1", reference("a")),
            task(4, "1", reference("lost")),
        ],
        "2": [task(2, "2", reference("old", "1h")), task(3, "2", reference("bad", "1h"), reference("a"))],
        "3": [task(2, "3", data={"sha256": 1, "x": {"locator": 1, "meta": 2}}), task(3, "3", reference("down"))],
    }

    async def scenario():
        return await verify_results(await store_of(logs), results)

    intact, damaged = asyncio.run(scenario())
    assert sorted(results.opened) == ["a", "a", "b", "bad", "down", "lost", "old"]
    assert intact == 3
    assert sorted(line.partition(":")[0] for line in damaged) == ["execution 1", "execution 2", "execution 3"]
