"""Verifies that every stored payload that a log refers to can be read and has its checksum."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

from noetl.core.model.reference import Reference
from noetl.errors import CorruptLog, PayloadUnavailable, StoreUnavailable
from noetl.storage.ports.events import EventStore, ExecutionFilter, ExecutionSummary
from noetl.storage.ports.results import ResultStore

PAGE = 500
EVENTS = 5_000


async def verify_results(store: EventStore, results: ResultStore) -> tuple[int, list[str]]:
    """Read every payload; returns how many are intact, and the problems.

    A payload with a time to live may have been deleted and is not reported as missing. The references after the damage
    in a log or in the list of executions are unknown; `log_verifier` reports these."""
    intact = 0
    damaged: list[str] = []
    async for execution_id, reference in _references(store):
        try:
            async for _ in results.open(reference):
                pass
            intact += 1
        except PayloadUnavailable as problem:
            if problem.kind == "ref.corrupt" or reference.meta.ttl is None:
                damaged.append(f"execution {execution_id}: {problem}")
        except StoreUnavailable as problem:
            damaged.append(f"execution {execution_id}: {problem}")
    return intact, damaged


async def _references(store: EventStore) -> AsyncIterator[tuple[str, Reference]]:
    """The references of all logs, each once for its execution."""
    before: str | None = None
    while page := await _page(store, before):
        before = page[-1].execution_id
        for summary in page:
            try:
                async for reference in _references_of(store, summary.execution_id):
                    yield summary.execution_id, reference
            except CorruptLog:
                continue


async def _page(store: EventStore, before: str | None) -> list[ExecutionSummary]:
    try:
        return await store.executions(ExecutionFilter(before=before, limit=PAGE))
    except CorruptLog:
        return []


async def _references_of(store: EventStore, execution_id: str) -> AsyncIterator[Reference]:
    seen: set[str] = set()
    seq = 0
    while events := await store.read(execution_id, seq, EVENTS):
        seq = events[-1].seq
        for event in events:
            encoded = msgspec.json.encode(event.body)
            if b'"sha256"' not in encoded:
                continue
            for reference in _found(msgspec.json.decode(encoded)):
                name = msgspec.json.encode(reference.locator).decode()
                if name not in seen:
                    seen.add(name)
                    yield reference


def _found(value: Any) -> Iterator[Reference]:
    """The references in JSON data."""
    if isinstance(value, dict):
        if "locator" in value and "meta" in value:
            try:
                yield msgspec.convert(value, Reference)
            except msgspec.ValidationError:
                return  # data that only looks like one
            return
        for each in value.values():
            yield from _found(each)
    elif isinstance(value, list):
        for each in value:
            yield from _found(each)
