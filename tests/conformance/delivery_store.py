"""The contract of `ports.DeliveryStore`, as tests: a back end subclasses the suite and inherits them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from noetl.storage.ports.deliveries import Delivery, DeliveryFilter, DeliveryStore

Scenario = Callable[[DeliveryStore], Awaitable[None]]


def delivery(id: str, due: float | None = 1.0, name: str = "a", kind: str = "nats") -> Delivery:
    """A pending row."""
    return Delivery(id, kind, name, f"key-{id}", float(int(id)), b'{"payload": {}}', due=due)


class DeliveryStoreSuite:
    """Unique keys; one writer of each change; pending ones in order; a paged history."""

    async def within(self, scenario: Scenario) -> None:
        """Run the scenario with an empty store, and close it."""
        raise LookupError("the suite's subclass says how to open its store")

    def run(self, scenario: Scenario) -> None:
        asyncio.run(self.within(scenario))

    def test_a_key_is_recorded_once(self) -> None:
        async def scenario(store: DeliveryStore) -> None:
            first = delivery("01")
            again = msgspec.structs.replace(first, id="02", data=b"other")
            assert sorted(await asyncio.gather(store.add(first), store.add(again))) == [False, True]
            kept = await store.by_key(first.key)
            assert kept in (first, again)
            assert await store.get(kept.id) == kept
            assert await store.get("03") is None
            assert await store.by_key("none") is None

        self.run(scenario)

    def test_one_of_two_concurrent_changes_is_rejected(self) -> None:
        async def scenario(store: DeliveryStore) -> None:
            await store.add(delivery("01"))
            started = msgspec.structs.replace(delivery("01"), status="started", due=None, holds=True, execution_id="7")
            skipped = msgspec.structs.replace(delivery("01"), status="skipped", due=None)
            answers = await asyncio.gather(store.save(started), store.save(skipped))
            assert sorted(answers) == [False, True]
            assert await store.get("01") == (started if answers[0] else skipped)
            assert await store.save(delivery("09")) is False

        self.run(scenario)

    def test_counts_newest_and_pending_of_several_triggers_are_read_together(self) -> None:
        async def scenario(store: DeliveryStore) -> None:
            rows = [delivery("01", 5.0), delivery("02", 3.0), delivery("03", 4.0), delivery("04", 9.0, "b")]
            ended = [
                msgspec.structs.replace(delivery(id, None, name), status=status)
                for id, name, status in (("05", "a", "started"), ("06", "a", "failed"), ("07", "b", "started"))
            ]
            for each in (*rows, *ended, delivery("08", 1.0, kind="other"), delivery("09", 1.0, "c")):
                await store.add(each)
            names = ["a", "b", "none"]
            counts = {"a": {"pending": 3, "started": 1, "failed": 1}, "b": {"pending": 1, "started": 1}}
            assert await store.counts_of("nats", names) == counts
            assert await store.newest("nats", names, ("started", "failed")) == {"a": ended[1], "b": ended[2]}
            assert await store.newest("nats", names, ("started",)) == {"a": ended[0], "b": ended[2]}
            assert await store.pending_of("nats", names, 2) == {"a": [rows[1], rows[2]], "b": [rows[3]]}
            assert await store.counts_of("nats", []) == await store.newest("nats", [], ("started",)) == {}
            assert await store.pending_of("nats", [], 2) == {}

        self.run(scenario)

    def test_pending_deliveries_are_ordered_by_due_time(self) -> None:
        async def scenario(store: DeliveryStore) -> None:
            for each in (delivery("01", 5.0), delivery("02", 3.0), delivery("03", 3.0), delivery("04", 9.0, "b")):
                await store.add(each)
            assert await store.next_due() == 3.0
            assert await store.owners(2.0) == []
            assert await store.owners(5.0) == [("nats", "a")]
            assert await store.owners(9.0) == [("nats", "a"), ("nats", "b")]
            assert [each.id for each in await store.pending("nats", "a", 9.0, 10)] == ["02", "03", "01"]
            assert [each.id for each in await store.pending("nats", "a", 4.0, 1)] == ["02"]
            await store.save(msgspec.structs.replace(delivery("02"), status="started", due=None, holds=True))
            assert [each.id for each in await store.pending("nats", "a", 4.0, 9)] == ["03"]
            assert [each.id for each in await store.holding("nats", "a")] == ["02"]
            assert await store.counts("nats", "a") == {"pending": 2, "started": 1}
            assert await store.counts("nats", "none") == {}

        self.run(scenario)

    def test_the_history_is_paged_and_old_rows_are_dropped(self) -> None:
        async def scenario(store: DeliveryStore) -> None:
            for number in range(1, 6):
                await store.add(delivery(f"{number:02}", name="a" if number < 5 else "b"))
            for id in ("01", "02"):
                await store.save(msgspec.structs.replace(delivery(id), status="skipped", due=None))
            listed = await store.list(DeliveryFilter("nats", "a", limit=2))
            assert [each.id for each in listed] == ["04", "03"]
            assert [each.id for each in await store.list(DeliveryFilter(before="03"))] == ["02", "01"]
            assert [each.id for each in await store.list(DeliveryFilter(status=("skipped",)))] == ["02", "01"]
            assert [each.id for each in await store.list(DeliveryFilter("nats", "b"))] == ["05"]
            assert await store.drop(2.0) == 1  # 02 was received at 2, and the others are pending
            assert [each.id for each in await store.list(DeliveryFilter())] == ["05", "04", "03", "02"]

        self.run(scenario)
