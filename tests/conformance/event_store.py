"""The contract of `ports.EventStore`, as tests: a back end subclasses the suite and inherits them.

    class TestRocks(EventStoreSuite):
        async def open_store(self, place):      # `place`: a folder for this test
            return RocksEventStore(place / "log")

Set `survives` to False for a store that forgets when it is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from noetl.core.model.events import (
    CtxPatched,
    Event,
    ExecutionRequested,
    PlaybookProcessed,
    Recorded,
    StepDone,
    StepScheduled,
    TaskDone,
    WorkflowStarted,
)
from noetl.core.model.ids import number_at
from noetl.core.model.outcome import error, ok
from noetl.errors import Conflict, LimitReached, NoetlError, NotFound, VersionConflict
from noetl.server.read_models.log_pages import log_events
from noetl.server.read_models.step_table import StepTables
from noetl.storage.events import event_rows, postgres
from noetl.storage.ports.events import Append, EventStore, ExecutionFilter, ExecutionSummary, SlotReservation

BODIES: tuple[Event, ...] = (
    ExecutionRequested(playbook="d1", path="shop/orders", payload={"n": 1, "text": "ä\u2028\x00", "none": None}),
    WorkflowStarted(entry="start"),
    StepScheduled(step="start", step_run_id="1:start:1", args={"deep": [{"a": [1.5, True]}]}),
    TaskDone(
        step="start", step_run_id="1:start:1", task="t", kind="http", outcome=error("timeout", "slow"), path=(3, 1)
    ),
    StepDone(step="start", step_run_id="1:start:1", output=ok({"rows": [1, 2, 3]})),
)


def make_append(execution_id: str, expected: int, *bodies: Event, status: str = "running", **summary: Any) -> Append:
    """An append with fixed times; `summary` fields as given."""
    events = tuple(
        Recorded(execution_id, expected + 1 + n, 1_700_000_000.0 + n, body, expected + n or None)
        for n, body in enumerate(bodies)
    )
    fields: dict[str, Any] = {"path": "shop/orders", "started_at": 1_700_000_000.0} | summary
    return Append(
        execution_id=execution_id,
        expected_seq=expected,
        events=events,
        summary=ExecutionSummary(execution_id=execution_id, status=status, **fields),
    )


class EventStoreSuite:
    """Subclass it and implement `open_store` to test a back end."""

    survives = True
    bounded = True  # pages, in bytes

    async def open_store(self, place: Path) -> EventStore:
        """Open the store in the folder `place`; a second call reopens it."""
        raise LookupError("the suite's subclass says how to open its store")

    def _run(self, tmp_path: Path, scenario: Callable[[EventStore], Awaitable[None]]) -> None:
        async def whole() -> None:
            store = await self.open_store(tmp_path)
            try:
                await scenario(store)
            finally:
                await store.close()

        asyncio.run(whole())

    # ── appending and reading ───────────────────────────────────────────────────────────

    def test_news_are_listed_until_they_are_read(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            news = msgspec.structs.replace(make_append("2", 0, BODIES[0]), news=True)
            await store.append(make_append("1", 0, BODIES[0]))
            await store.append(news)
            await store.append(msgspec.structs.replace(make_append("3", 0, BODIES[0]), news=True))
            assert [each.execution_id for each in await store.news()] == ["2", "3"]
            (first,) = await store.news(limit=1)
            await store.append(msgspec.structs.replace(make_append("2", 1, BODIES[1]), was=None))
            await store.mark_read([first])  # it has changed since
            assert [each.execution_id for each in await store.news()] == ["2", "3"]
            await store.mark_read(await store.news())
            assert await store.news() == []
            later = msgspec.structs.replace(make_append("1", 1, BODIES[1]), was=None, news=True)
            await store.append(later)
            assert [each.seq for each in await store.news()] == [later.expected_seq + len(later.events)]
            same = make_append("3", 1, BODIES[1])  # its status does not change
            await store.append(msgspec.structs.replace(same, was=same.summary.status, news=True))
            assert [each.execution_id for each in await store.news()] == ["1", "3"]

        self._run(tmp_path, scenario)

    def test_slots_are_counted_from_rows_and_limits_hold(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            def takes(execution_id: str, expected: int, count: int, *, most: int = 2, by: int = 1) -> Append:
                body = BODIES[expected]
                append = make_append(execution_id, expected, body, held={"pool gpu": count, "playbook p": 1})
                return msgspec.structs.replace(append, takes=(SlotReservation("pool gpu", by, most),))

            assert await store.held(["pool gpu", "credential x"]) == {"pool gpu": 0, "credential x": 0}
            await store.append(takes("1", 0, 1))
            many = [store.append(takes(str(number), 0, 1)) for number in range(2, 8)]
            results = await asyncio.gather(*many, return_exceptions=True)
            refused = [each for each in results if each is not None]
            assert [type(each) for each in refused] == [LimitReached] * 5
            assert await store.held(["pool gpu"]) == {"pool gpu": 2}
            found = await store.holders(["pool gpu", "pool gpus"])
            (other,) = [each for each in found["pool gpu"] if each.execution_id != "1"]
            assert found["pool gpus"] == []
            # A lower limit revokes nothing, and a higher one admits more.
            (refusal,) = await asyncio.gather(store.append(takes("1", 1, 2, most=1)), return_exceptions=True)
            assert isinstance(refusal, LimitReached) and refusal.key == "pool gpu"
            await store.append(takes("1", 1, 2, most=3))
            assert await store.held(["pool gpu"]) == {"pool gpu": 3}
            # Returned and ended runs hold no slot.
            await store.append(make_append("1", 2, BODIES[2], held={"playbook p": 1}))
            assert await store.held(["pool gpu", "playbook p"]) == {"pool gpu": 1, "playbook p": 2}
            await store.append(make_append(other.execution_id, 1, PlaybookProcessed(outcome="failed"), status="failed"))
            assert await store.held(["pool gpu", "playbook p"]) == {"pool gpu": 0, "playbook p": 1}

        self._run(tmp_path, scenario)

    def test_events_are_read_as_written(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            first = make_append("1001", 0, *BODIES[:2])
            second = make_append("1001", 2, *BODIES[2:])
            await store.append(first)
            await store.append(second)
            assert await store.read("1001") == [*first.events, *second.events]

        self._run(tmp_path, scenario)

    def test_read_starts_after_a_seq_and_stops_at_a_limit(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            await store.append(make_append("1001", 0, *BODIES[:2]))
            await store.append(make_append("1001", 2, *BODIES[2:]))
            for after in range(6):
                for limit in (None, 1, 2, 10):
                    page = await store.read("1001", after, limit)
                    assert [recorded.seq for recorded in page] == list(range(1, 6))[after:][: limit or 6]
                    assert page.more is (limit is not None and after + limit < 5)

        self._run(tmp_path, scenario)

    def test_a_page_of_large_events_is_short(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (event_rows, postgres):
            monkeypatch.setattr(module, "PAGE_BYTES", 2_500)
        large = [CtxPatched({"text": "x" * 1_000}) for _ in range(120)]

        async def scenario(store: EventStore) -> None:
            for expected, body in enumerate(large):
                await store.append(make_append("1001", expected, body))
            log = await store.read("1001")
            assert len(log) == 120 and not log.more
            pages, after = [], 0
            while page := await store.read("1001", after, 100):
                pages.append(len(page))
                assert [each.seq for each in page] == list(range(after + 1, after + 1 + len(page)))
                after = page[-1].seq
                assert page.more is (after < 120)
            assert after == 120 and max(pages) <= (3 if self.bounded else 100)
            tailed = store.tail("1001")
            assert [(await anext(tailed)).seq for _ in range(120)] == list(range(1, 121))
            progress = await StepTables(store).get("1001")
            assert progress.seq == 120
            assert [each.seq async for each in log_events(store, "1001", 7)] == list(range(8, 121))
            assert ("1001" in await store.logs(["1001"], 200)) is not self.bounded

        self._run(tmp_path, scenario)

    def test_an_unknown_execution_is_empty(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            assert await store.read("4040") == []
            assert await store.summary("4040") is None
            assert await store.snapshot("4040") is None
            assert await store.by_key("nobody") is None
            assert await store.read("not-a-number") == []
            assert await store.summary("9" * 40) is None

        self._run(tmp_path, scenario)

    def test_one_of_two_conflicting_appends_wins(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            await store.append(make_append("1001", 0, BODIES[0]))
            rivals = [make_append("1001", 1, CtxPatched(patch={"who": n})) for n in range(20)]
            answers = await asyncio.gather(*(store.append(rival) for rival in rivals), return_exceptions=True)
            assert sorted(type(answer).__name__ for answer in answers) == sorted(
                ["NoneType"] + ["VersionConflict"] * 19
            )
            winner = answers.index(None)
            assert (await store.read("1001"))[1:] == list(rivals[winner].events)

        self._run(tmp_path, scenario)

    def test_an_append_beyond_the_end_is_rejected(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            await _refused(VersionConflict, store.append(make_append("1001", 3, BODIES[1])))
            await store.append(make_append("1001", 0, *BODIES[:2]))
            await _refused(VersionConflict, store.append(make_append("1001", 0, BODIES[0])))
            await _refused(VersionConflict, store.append(make_append("1001", 1, BODIES[1])))
            await _refused(VersionConflict, store.append(make_append("1001", 5, BODIES[1])))
            assert len(await store.read("1001")) == 2

        self._run(tmp_path, scenario)

    def test_a_rejected_append_does_not_affect_others_of_its_group(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            good = [make_append(str(2000 + n), 0, *BODIES) for n in range(50)]
            bad = [make_append(str(3000 + n), 7, *BODIES) for n in range(50)]
            mixed = [append for pair in zip(good, bad, strict=True) for append in pair]
            answers = await asyncio.gather(*(store.append(append) for append in mixed), return_exceptions=True)
            assert [type(answer) for answer in answers] == [type(None), VersionConflict] * 50
            for append in good:
                assert len(await store.read(append.execution_id)) == 5
            for append in bad:
                assert await store.read(append.execution_id) == []

        self._run(tmp_path, scenario)

    def test_grouped_appends_keep_their_order(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            await store.append(make_append("1001", 0, BODIES[0]))
            await asyncio.gather(
                *(store.append(make_append("1001", n, CtxPatched(patch={"n": n}))) for n in range(1, 200))
            )
            events = await store.read("1001")
            assert [recorded.seq for recorded in events] == list(range(1, 201))
            assert [recorded.body.patch["n"] for recorded in events[1:]] == list(range(1, 200))  # type: ignore[attr-defined]

        self._run(tmp_path, scenario)

    # ── keys and projections ────────────────────────────────────────────────────────────

    def test_an_idempotency_key_is_unique(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            await store.append(make_append("1001", 0, BODIES[0], key="order-7"))
            await _refused(Conflict, store.append(make_append("1002", 0, BODIES[0], key="order-7")))
            assert await store.read("1002") == []
            found = await store.by_key("order-7")
            assert found is not None and found.execution_id == "1001"
            await store.append(make_append("1001", 1, BODIES[1], key="order-7"))
            await store.append(make_append("1003", 0, BODIES[0]))
            await store.append(make_append("1004", 0, BODIES[0]))

        self._run(tmp_path, scenario)

    def test_several_logs_are_read_at_once(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            for number in range(5):
                await store.append(make_append(str(1001 + number), 0, *BODIES[: number + 1]))
            await store.append(make_append("1001", 1, BODIES[1]))
            found = await store.logs(["1001", "1002", "1005", "4711", "none"], 4)
            assert sorted(found) == ["1001", "1002"], "1005 is too long, others are not there"
            for execution_id, (summary, events) in found.items():
                assert summary == await store.summary(execution_id)
                assert events == await store.read(execution_id)

        self._run(tmp_path, scenario)

    def test_executions_are_counted_by_status(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            assert await store.counts() == {}
            for number, status in enumerate(("running", "running", "paused", "success")):
                await store.append(make_append(str(1001 + number), 0, BODIES[0], status=status))
            await store.append(make_append("1001", 1, BODIES[1], status="failed"))
            assert await store.counts() == {"running": 1, "paused": 1, "success": 1, "failed": 1}

        self._run(tmp_path, scenario)

    def test_waiting_executions_are_found_by_their_timer_and_in_the_inbox(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            await store.append(make_append("1001", 0, BODIES[0]))
            await store.append(make_append("1002", 0, BODIES[0], status="waiting", due=70.0, inbox=1))
            await store.append(make_append("1003", 0, BODIES[0], status="waiting", due=50.0))
            await store.append(make_append("1004", 0, BODIES[0], status="waiting", inbox=2))
            assert await store.unfinished(waiting=False) == ["1001"]
            assert await store.unfinished() == ["1001", "1002", "1003", "1004"]
            assert await store.due(70.0) == [("1003", 50.0)]
            assert await store.due(71.0) == [("1003", 50.0), ("1002", 70.0)]
            assert await store.due(71.0, 1) == [("1003", 50.0)]
            inbox = await store.executions(ExecutionFilter(inbox=True))
            assert [each.execution_id for each in inbox] == ["1004", "1002"]
            again = make_append("1002", 1, BODIES[1], status="waiting", due=90.0, inbox=1)
            await store.append(msgspec.structs.replace(again, was="waiting", rewaits=True))
            assert await store.due(100.0) == [("1003", 50.0), ("1002", 90.0)]
            await store.append(make_append("1002", 2, BODIES[1], status="running"))
            assert await store.due(100.0) == [("1003", 50.0)]
            assert await store.unfinished(waiting=False) == ["1001", "1002"]
            inbox = await store.executions(ExecutionFilter(inbox=True, before="1004"))
            assert inbox == []

        self._run(tmp_path, scenario)

    def test_an_execution_is_not_deleted_while_another_one_refers_to_its_results(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            def ended(execution_id: str, at: float, **more: Any) -> Append:
                return make_append(execution_id, 0, *BODIES[:2], status="success", ended_at=at, **more)

            await store.append(ended("1001", 1_700_000_100.0))
            await store.append(ended("1002", 1_700_000_200.0, rerun_of="1001", reuses="1001"))
            await store.append(make_append("1003", 0, BODIES[0], forked_from="1002", reuses="1002"))
            await store.append(ended("1004", 1_700_000_300.0, rerun_of="1001"))
            assert await store.expired(1_700_000_500.0) == ["1004"]
            await store.append(
                make_append("1003", 1, BODIES[1], status="success", ended_at=1_700_000_400.0, reuses="1002")
            )
            assert await store.expired(1_700_000_500.0) == ["1003", "1004"]
            for rest in (["1001", "1002"], ["1001"]):
                await store.drop(await store.expired(1_700_000_500.0))
                assert await store.expired(1_700_000_500.0) == rest[-1:]

        self._run(tmp_path, scenario)

    def test_expired_executions_can_be_deleted(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            def ended(execution_id: str, at: float, **more: Any) -> Append:
                return make_append(execution_id, 0, *BODIES[:2], status="success", ended_at=at, **more)

            await store.append(ended("1001", 1_700_000_100.0, key="k"))
            await store.append(ended("1002", 1_700_000_900.0))
            await store.append(make_append("1003", 0, BODIES[0]))
            await store.append(ended("1004", 1_700_000_100.0, parent="1003"))
            await store.append(ended("1005", 1_700_000_100.0, parent="1001"))
            await store.save_snapshot("1001", 2, b"state")
            assert await store.expired(1_700_000_500.0) == ["1001"], "1005 is needed by its caller until that is gone"
            assert await store.expired(1_700_000_950.0, 1) == ["1001"]
            await store.drop(["1001"])
            assert await store.expired(1_700_000_500.0) == ["1005"]
            await store.drop(["1005", "4711"])
            await store.tidy(1_700_000_500.0)
            assert await store.summary("1001") is None
            assert await store.by_key("k") is None
            assert await store.snapshot("1001") is None
            listed = [each.execution_id for each in await store.executions(ExecutionFilter())]
            assert listed == ["1004", "1003", "1002"]
            for kept in listed:
                assert len(await store.read(kept)) in (1, 2)
            await store.append(make_append("1003", 1, BODIES[1]))

        self._run(tmp_path, scenario)

    def test_a_check_writes_and_changes_nothing_else(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            await store.append(make_append("1001", 0, BODIES[0]))
            for _ in range(3):
                await store.check()
            assert await store.counts() == {"running": 1}

        self._run(tmp_path, scenario)

    def test_the_summary_follows_the_log(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            await store.append(make_append("1001", 0, *BODIES[:2], parent="900", key="k"))
            summary = await store.summary("1001")
            assert summary is not None
            assert (summary.seq, summary.status, summary.parent, summary.key) == (2, "running", "900", "k")
            assert await store.unfinished() == ["1001"]
            last = make_append(
                "1001",
                2,
                PlaybookProcessed(outcome="failed"),
                status="failed",
                error="no luck",
                parent="900",
                key="k",
                ended_at=5.0,
            )
            await store.append(last)
            summary = await store.summary("1001")
            assert summary == msgspec.structs.replace(last.summary, seq=3)
            assert await store.unfinished() == []

        self._run(tmp_path, scenario)

    def test_executions_are_listed_newest_first_by_page_and_filter(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            for n in range(30):
                status = "success" if n % 3 == 0 else "failed" if n % 3 == 1 else "running"
                await store.append(
                    make_append(
                        str(1000 + n),
                        0,
                        BODIES[0],
                        status=status,
                        path=f"shop/p_{n % 2}",
                        parent="1000" if n > 25 else None,
                    )
                )

            async def ids(**where: Any) -> list[int]:
                return [int(row.execution_id) for row in await store.executions(ExecutionFilter(**where))]

            assert await ids() == list(range(1029, 999, -1))
            assert await ids(limit=10) == list(range(1029, 1019, -1))
            assert await ids(limit=10, before="1020") == list(range(1019, 1009, -1))
            assert await ids(status=("failed",), limit=2) == [1028, 1025]
            assert await ids(status=("failed", "running"), limit=3) == [1029, 1028, 1026]
            assert await ids(path="shop/p_1", limit=2) == [1029, 1027]
            assert await ids(search="P_1", limit=2) == [1029, 1027]
            assert await ids(search="p%1") == []
            assert await ids(search="1017") == [1017]
            assert await ids(parent="1000") == [1029, 1028, 1027, 1026]
            assert await ids(since=1_700_000_000.0, limit=2) == [1029, 1028]
            assert await ids(until=1_700_000_000.0) == []
            latest = await store.latest(["shop/p_0", "shop/p_1", "shop/p_1", "shop/none"])
            assert {path: row.execution_id for path, row in latest.items()} == {"shop/p_0": "1028", "shop/p_1": "1029"}
            assert await store.latest([]) == {}

        self._run(tmp_path, scenario)

    # ── following ───────────────────────────────────────────────────────────────────────

    def test_executions_are_filtered_and_sorted_by_what_is_known_of_them(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            def ended(n: int, status: str, seconds: float, **more: Any) -> Append:
                started = 1_800_000_000.0 + n
                times = {"started_at": started, "ended_at": started + seconds}
                return make_append(str(number_at(started)), 0, BODIES[0], status=status, **(times | more))

            await store.append(ended(1, "success", 4.0, version="1", trigger="schedule nightly", labels=("team=data",)))
            await store.append(
                ended(2, "failed", 2.0, version="2", trigger="schedule 100%", error="Row 7 of\n'a' is wrong", path="b")
            )
            await store.append(ended(3, "success", 1.0, version="2", trigger="user ann", labels=("a=b", "team=web")))
            await store.append(ended(4, "failed", 3.0, trigger="playbook", error="timeout after 30 s", path="c"))
            running = str(number_at(1_800_000_005.0))
            await store.append(make_append(running, 0, BODIES[0], path="a", started_at=1_800_000_005.0))

            async def found(**where: Any) -> list[int]:
                rows = await store.executions(ExecutionFilter(**where))
                return [round(each.started_at - 1_800_000_000.0) for each in rows]

            assert await found(version="2") == [3, 2]
            assert await found(trigger="schedule") == [2, 1]
            assert await found(trigger="schedule nightly") == [1]
            assert await found(trigger="sched") == []
            assert await found(labels=("team",)) == [3, 1]
            assert await found(labels=("team=data",)) == [1]
            assert await found(labels=("team=data", "a")) == []
            assert await found(labels=("team=d",)) == []
            assert await found(error="row 7") == [2]
            assert await found(error="Row … of … is wrong") == [2]
            assert await found(error="%") == []
            assert await found(least_ms=2000, most_ms=3000) == [4, 2]
            assert await found(sort="duration") == [1, 4, 2, 3, 5], "one without a duration is last"
            assert await found(sort="duration", ascending=True, limit=2) == [3, 2]
            assert await found(sort="duration", ascending=True, limit=2, offset=2) == [4, 1]
            assert await found(sort="path", ascending=True) == [5, 2, 4, 3, 1]
            assert await found(ascending=True) == [1, 2, 3, 4, 5]

            counted = await store.statistics(ExecutionFilter(since=1_800_000_000.0), 1_800_000_010.0, 10)
            assert counted.width == 1.0
            assert counted.bars == {
                (1, "success"): 1, (2, "failed"): 1, (3, "success"): 1, (4, "failed"): 1, (5, "running"): 1,
            }  # fmt: skip
            assert counted.percentiles == {0.5: 4000.0, 0.95: 4000.0}
            assert sorted((each.error, each.path, each.count) for each in counted.failures) == [
                ("Row 7 of\n'a' is wrong", "b", 1),
                ("timeout after 30 s", "c", 1),
            ]
            nothing = await store.statistics(ExecutionFilter(path="none"), 1_800_000_010.0, 10)
            assert (nothing.bars, nothing.percentiles, nothing.failures) == ({}, {}, [])
            of_two = await store.statistics(ExecutionFilter(version="2"), 1_800_000_010.0, 10)
            assert sum(of_two.bars.values()) == 2

            latest = await store.activity(1_800_000_003.0)
            assert [(each.path, each.statuses) for each in latest] == [
                ("a", {"running": 1}), ("c", {"failed": 1}), ("shop/orders", {"success": 1}),
            ]  # fmt: skip

        self._run(tmp_path, scenario)

    def test_deleted_executions_are_counted_by_day(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            day = 1_800_000_000.0 // 86_400
            ids = []
            for n in range(6):
                started = day * 86_400 + n * 20_000.0
                ids.append(str(number_at(started)))
                status = "failed" if n == 1 else "success"
                times = {"started_at": started, "ended_at": started + 1 + n}
                await store.append(make_append(ids[-1], 0, BODIES[0], status=status, **times))
            assert await store.days(None, 0.0) == []
            await store.drop(ids[:2])
            await store.drop([ids[1], *ids[2:]])  # one that is gone already is not counted again
            found = await store.days("shop/orders", day * 86_400)
            assert [(each.day, each.statuses) for each in found] == [
                (day, {"success": 4, "failed": 1}), (day + 1, {"success": 1}),
            ]  # fmt: skip
            assert sum(found[0].durations.values()) == 4
            assert await store.days("shop/orders", (day + 1) * 86_400) == found[1:]
            assert await store.days("other", 0.0) == []

        self._run(tmp_path, scenario)

    def test_a_tail_catches_up_follows_and_ends(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            await store.append(make_append("1001", 0, *BODIES[:2]))
            caught_up = asyncio.Event()
            seen: list[int] = []

            async def follow() -> None:
                async for recorded in store.tail("1001", 1):
                    seen.append(recorded.seq)
                    caught_up.set()

            follower = asyncio.create_task(follow())
            await caught_up.wait()
            assert seen == [2]
            await store.append(make_append("1001", 2, *BODIES[2:4]))
            await store.append(
                make_append("1001", 4, BODIES[4], PlaybookProcessed(outcome="success"), status="success")
            )
            await asyncio.wait_for(follower, 10)
            assert seen == [2, 3, 4, 5, 6]
            assert [recorded.seq async for recorded in store.tail("1001")] == [1, 2, 3, 4, 5, 6]
            assert [recorded.seq async for recorded in store.tail("1001", 6)] == []
            async with asyncio.timeout(10):
                assert [recorded.seq async for recorded in store.tail("1001", 999)] == []

        self._run(tmp_path, scenario)

    def test_a_tail_that_starts_beyond_the_end_ends_with_the_execution(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            await store.append(make_append("1001", 0, *BODIES[:2]))
            beyond = [asyncio.create_task(_seqs(store.tail("1001", after))) for after in (5, 999)]
            await asyncio.sleep(0)
            await store.append(make_append("1001", 2, *BODIES[2:5]))
            await store.append(make_append("1001", 5, PlaybookProcessed(outcome="success"), status="success"))
            async with asyncio.timeout(10):
                assert await asyncio.gather(*beyond) == [[6], []]

        self._run(tmp_path, scenario)

    def test_a_tail_of_an_unknown_execution_is_not_found(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            async def follow() -> list[Recorded]:
                return [recorded async for recorded in store.tail("4040")]

            await _refused(NotFound, follow())

        self._run(tmp_path, scenario)

    # ── snapshots and durability ────────────────────────────────────────────────────────

    def test_the_newest_snapshot_is_stored(self, tmp_path: Path) -> None:
        async def scenario(store: EventStore) -> None:
            await store.append(make_append("1001", 0, *BODIES))
            await store.save_snapshot("1001", 3, b"three")
            assert await store.snapshot("1001") == (3, b"three")
            await store.save_snapshot("1001", 5, b"five")
            await store.save_snapshot("1001", 4, b"four")
            assert await store.snapshot("1001") == (5, b"five")

        self._run(tmp_path, scenario)

    def test_acknowledged_appends_survive_reopening(self, tmp_path: Path) -> None:
        if not self.survives:
            return

        async def scenario() -> None:
            store = await self.open_store(tmp_path)
            await store.append(make_append("1001", 0, *BODIES, key="k"))
            await store.save_snapshot("1001", 5, b"five")
            await store.close()
            store = await self.open_store(tmp_path)
            assert [recorded.body for recorded in await store.read("1001")] == list(BODIES)
            assert await store.unfinished() == ["1001"]
            assert await store.snapshot("1001") == (5, b"five")
            await _refused(Conflict, store.append(make_append("1002", 0, BODIES[0], key="k")))
            await store.close()

        asyncio.run(scenario())

    def test_a_closed_store_rejects_calls(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            store = await self.open_store(tmp_path)
            await store.append(make_append("1001", 0, BODIES[0]))
            follower = asyncio.create_task(_drain(store, "1001"))
            await asyncio.sleep(0)
            await store.close()
            await store.close()
            await _refused(NoetlError, store.append(make_append("1001", 1, BODIES[1])))
            await _refused(NoetlError, store.read("1001"))
            await _refused(NoetlError, asyncio.wait_for(follower, 10))

        asyncio.run(scenario())


async def _drain(store: EventStore, execution_id: str) -> None:
    async for _ in store.tail(execution_id):
        pass


async def _refused(kind: type[Exception], asked: Awaitable[Any]) -> Exception:
    """The exception that the call raises."""
    try:
        answer = await asked
    except kind as refusal:
        return refusal
    raise AssertionError(f"expected {kind.__name__}, got the answer {answer!r}")


async def _seqs(tail: AsyncIterator[Recorded]) -> list[int]:
    return [recorded.seq async for recorded in tail]
