"""The contract of `ports.TriggerStore`, as tests: a back end subclasses the suite and inherits them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from noetl.errors import Conflict
from noetl.storage.ports.triggers import StoredTrigger, TriggerStore

Scenario = Callable[[TriggerStore], Awaitable[None]]


def trigger(name: str, wake: float | None = None, kind: str = "schedule", data: bytes = b"{}") -> StoredTrigger:
    """A row."""
    return StoredTrigger(kind, name, data, 1, wake)


class TriggerStoreSuite:
    """Named rows of two kinds; one writer of each revision; the due ones in order."""

    async def within(self, scenario: Scenario) -> None:
        """Run the scenario with an empty store, and close it."""
        raise LookupError("the suite's subclass says how to open its store")

    def run(self, scenario: Scenario) -> None:
        asyncio.run(self.within(scenario))

    def test_names_are_unique_by_kind(self) -> None:
        async def scenario(store: TriggerStore) -> None:
            await store.add(trigger("a", data=b"\x00\xff one"))
            await store.add(trigger("a", kind="webhook", data=b"two"))
            with pytest.raises(Conflict):
                await store.add(trigger("a"))
            kept = await store.get("schedule", "a")
            assert kept == trigger("a", data=b"\x00\xff one")
            assert await store.get("schedule", "b") is None
            assert await store.remove("schedule", "a") is True
            assert await store.remove("schedule", "a") is False
            assert await store.get("webhook", "a") is not None

        self.run(scenario)

    def test_one_of_two_concurrent_updates_is_rejected(self) -> None:
        async def scenario(store: TriggerStore) -> None:
            await store.add(trigger("a", 5.0))
            mine = msgspec.structs.replace(trigger("a", 6.0, data=b"mine"), revision=2)
            theirs = msgspec.structs.replace(trigger("a", 7.0, data=b"theirs"), revision=2)
            answers = await asyncio.gather(store.save(mine), store.save(theirs))
            assert sorted(answers) == [False, True]
            assert await store.get("schedule", "a") == (mine if answers[0] else theirs)
            await store.remove("schedule", "a")
            assert await store.save(msgspec.structs.replace(mine, revision=3)) is False

        self.run(scenario)

    def test_lists_are_paged_by_name(self) -> None:
        async def scenario(store: TriggerStore) -> None:
            for name in ("c", "a", "b-1", "B"):
                await store.add(trigger(name))
            assert [each.name for each in await store.list("schedule")] == ["B", "a", "b-1", "c"]
            assert [each.name for each in await store.list("schedule", after="B", limit=2)] == ["a", "b-1"]
            assert await store.list("webhook") == []

        self.run(scenario)

    def test_due_triggers_are_ordered_by_time(self) -> None:
        async def scenario(store: TriggerStore) -> None:
            for name, wake in (("late", 30.0), ("early", 10.25), ("asleep", None), ("next", 20.0)):
                await store.add(trigger(name, wake))
            await store.add(trigger("other", 1.0, kind="webhook"))
            assert [each.name for each in await store.due("schedule", 20.0)] == ["early", "next"]
            assert [each.name for each in await store.due("schedule", 99.0, limit=1)] == ["early"]
            assert await store.due("schedule", 10.0) == []
            assert await store.next_wake("schedule") == 10.25
            assert await store.next_wake("nothing") is None

        self.run(scenario)
