"""Schedules under a clock that the test moves: every tick once, over changes of the clock, restarts and two servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from itertools import takewhile
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from noetl.errors import Conflict, NotFound, RequestRefused, StoreUnavailable
from noetl.runtime.tasks import running
from noetl.server.composition import Options, Stores, build_orchestrator
from noetl.server.orchestrator.catalog import Source
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.scheduling.cron import Cron
from noetl.server.scheduling.deliveries import Deliveries
from noetl.server.scheduling.kinds import KINDS
from noetl.server.scheduling.scheduler import BATCH, Scheduler, run_schedules
from noetl.server.scheduling.schedules import Progress, Schedules
from noetl.server.scheduling.trigger_service import Triggers
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.playbooks.memory import MemoryPlaybookStore
from noetl.storage.ports.events import ExecutionFilter
from noetl.storage.queue.memory import MemoryRunQueue
from noetl.storage.results.blob import BlobResults
from noetl.storage.triggers.delivery_memory import MemoryDeliveryStore
from noetl.storage.triggers.memory import MemoryTriggerStore
from noetl.tools.registry import specs

BERLIN = ZoneInfo("Europe/Berlin")
NOOP = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: daily, path: daily}\nworkflow:\n  - step: start\n    tool: {kind: noop}\n"


def at(text: str, zone: ZoneInfo = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


class MovedClock:
    """A clock that stands still until the test moves it."""

    def __init__(self, now: float) -> None:
        self.time = self.passed = now

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        self.passed = max(self.passed, self.time)
        return self.passed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Installation:
    """A store with one registered playbook; servers come and go."""

    def __init__(self, begin: str, results: Any) -> None:
        self.clock = MovedClock(at(begin))
        self.events = MemoryEventStore()
        self.playbooks = MemoryPlaybookStore()
        self.triggers = MemoryTriggerStore()
        self.deliveries = MemoryDeliveryStore()
        self.results = results
        self.orchestrators: list[Orchestrator] = []
        self.schedules, self.scheduler = self.server()

    def server(self, number: int = 1) -> tuple[Schedules, Scheduler]:
        stores = Stores(self.events, self.playbooks, self.results, MemoryRunQueue())
        orchestrator = build_orchestrator(stores, specs, clock=self.clock, options=Options(process_number=number))
        self.orchestrators.append(orchestrator)
        self.orchestrator = orchestrator
        triggers = Triggers(self.triggers, orchestrator.catalog, self.clock, KINDS)
        deliveries = Deliveries(self.deliveries, triggers, orchestrator, self.clock)
        return Schedules(triggers, deliveries, self.clock), Scheduler(self.triggers, deliveries, self.clock)

    async def progress(self, name: str = "daily") -> Progress:
        (found,) = await self.schedules.progress([await self.schedules.get(name)])
        return found

    async def move_to(self, text: str) -> list[str]:
        """Let it be that time, look once, and say at which local times executions were started so far."""
        self.clock.time = at(text)
        await self.scheduler.run_due()
        return await self.started()

    async def started(self) -> list[str]:
        rows = await self.events.executions(ExecutionFilter(limit=10_000))
        keys = sorted(float(row.key.rpartition(":")[2]) for row in rows if row.key and ":manual:" not in row.key)
        return [datetime.fromtimestamp(tick, BERLIN).strftime("%m-%d %H:%M") for tick in keys]

    async def statuses(self) -> list[str]:
        return [row.status for row in await self.events.executions(ExecutionFilter(limit=100))][::-1]

    async def end(self, name: str = "daily") -> None:
        """End the execution that a schedule started last."""
        await self.orchestrator.cancel((await self.progress(name)).last_execution or "")


@pytest.fixture
def at_noon(tmp_path):
    return installed("2026-01-10T12:00", tmp_path)


def installed(begin: str, tmp_path) -> Callable[[Callable[[Installation], Awaitable[None]]], None]:
    def run(scenario: Callable[[Installation], Awaitable[None]]) -> None:
        async def whole() -> None:
            installation = Installation(begin, BlobResults(str(tmp_path / "results")))
            try:
                await installation.orchestrator.catalog.register(Source(NOOP), 0.0)
                await scenario(installation)
            finally:
                for orchestrator in installation.orchestrators:
                    await orchestrator.close()

        asyncio.run(whole())

    return run


def test_a_page_of_schedules_is_read_by_a_bounded_number_of_queries(at_noon, monkeypatch):
    async def scenario(here: Installation) -> None:
        for number in range(20):
            await here.schedules.add("daily", "0 * * * *", name=f"s{number}", deadline="5m")
        await here.move_to("2026-01-10T13:00")
        queries: list[str] = []
        store = here.deliveries

        class Counted:
            def __getattr__(self, name: str) -> Any:
                queries.append(name)
                return getattr(store, name)

        page = await here.schedules.list()
        monkeypatch.setattr(here.schedules._deliveries, "store", Counted())
        documents = await here.schedules.documents(page)
        assert [(each["name"], each["fired"]) for each in documents] == [(each.name, 1) for each in page]
        assert len(queries) == 5

    at_noon(scenario)


# ── ticks ───────────────────────────────────────────────────────────────────────────────


def test_a_tick_starts_one_execution_with_the_payload_of_its_time(at_noon):
    async def scenario(here: Installation) -> None:
        await here.schedules.add(
            "daily",
            "30 6 * * *",
            tz="Europe/Berlin",
            payload={"day": "{{ tick[:10] }}", "by": "{{ schedule }}", "n": 1},
        )
        assert await here.move_to("2026-01-11T06:29") == []
        assert await here.move_to("2026-01-11T06:30") == ["01-11 06:30"]
        assert await here.move_to("2026-01-11T06:30") == ["01-11 06:30"]
        schedule = await here.schedules.get("daily")
        progress = await here.progress()
        (first,) = await here.events.read(progress.last_execution or "", 0, 1)
        assert first.body.payload == {"day": "2026-01-11", "by": "daily", "n": 1}
        assert first.body.requested_by == "schedule daily"
        assert (progress.fired, schedule.next_at) == (1, at("2026-01-12T06:30"))

    at_noon(scenario)


def test_a_time_inside_a_skipped_hour_ticks_right_after_the_gap(tmp_path):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "30 2 * * *", tz="Europe/Berlin")
        assert await here.move_to("2026-03-29T01:59") == []
        assert await here.move_to("2026-03-29T03:00") == ["03-29 03:00"]
        assert await here.move_to("2026-03-30T02:30") == ["03-29 03:00", "03-30 02:30"]

    installed("2026-03-28T12:00", tmp_path)(scenario)


def test_a_time_inside_a_repeated_hour_ticks_once_and_patterns_follow_elapsed_time(tmp_path):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "30 2 * * *", tz="Europe/Berlin", name="fixed")
        await here.schedules.add("daily", "0 * * * *", tz="Europe/Berlin", name="hourly")
        for minute in range(0, 6 * 60, 10):  # from midnight on, through both hours of two
            here.clock.time = at("2026-10-25T00:00") + 60 * minute
            await here.scheduler.run_due()
        fired = {name: (await here.progress(name)).fired for name in ("fixed", "hourly")}
        assert fired == {"fixed": 1, "hourly": 5}

    installed("2026-10-25T00:00", tmp_path)(scenario)


@pytest.mark.parametrize("catch_up", ["none", "last", "all"])
def test_ticks_of_a_few_seconds_that_are_late_together_all_start(at_noon, catch_up):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "*/2 * * * * *", catch_up=catch_up)
        here.clock.time += 7.5
        await here.scheduler.run_due()
        assert (await here.progress()).fired == 3  # 2, 4 and 6 seconds
        here.clock.time += 7.5
        await here.scheduler.run_due()
        assert (await here.progress()).fired == 7

    at_noon(scenario)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("catch_up", ["none", "last", "all"])
def test_ticks_of_an_hour_that_the_clock_repeats_start_at_their_time(at_noon, catch_up, restart):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "*/20 * * * *", catch_up=catch_up)
        await here.move_to("2026-01-10T12:20")
        early = await here.move_to("2026-01-10T13:40")  # the clock is wrong, and then corrected
        caught_up = ["01-10 12:40", "01-10 13:00", "01-10 13:20"] if catch_up == "all" else []
        assert early == ["01-10 12:20", *caught_up, "01-10 13:40"]
        if restart:
            here.schedules, here.scheduler = here.server(2)
        assert await here.move_to("2026-01-10T12:21") == early
        times = ["12:20", "12:40", "13:00", "13:20", "13:40", "14:00"]
        for time in times[1:]:
            await here.move_to(f"2026-01-10T{time}")
        assert await here.started() == [f"01-10 {time}" for time in times]

    at_noon(scenario)


def test_ticks_between_a_correction_of_the_clock_and_the_next_pass_start(at_noon):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "*/2 * * * * *")
        here.clock.time += 3600
        await here.scheduler.run_due()
        assert (await here.progress()).fired == 1
        here.clock.time += 7  # on the monotonic clock
        here.clock.monotonic()
        here.clock.time -= 3600
        await here.scheduler.run_due()
        assert (await here.progress()).fired == 4  # 2, 4 and 6 seconds

    at_noon(scenario)


def test_a_skipping_schedule_runs_one_execution_although_the_save_after_its_start_is_lost(at_noon, monkeypatch):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "* * * * *", overlap="skip")
        save, lost = here.deliveries.save, []

        async def losing(delivery: Any, **fields: Any) -> Any:
            if delivery.status == "started" and not lost:
                lost.append(delivery)
                raise StoreUnavailable("the save is lost")
            return await save(delivery, **fields)

        monkeypatch.setattr(here.deliveries, "save", losing)
        here.clock.time += 60
        with pytest.raises(StoreUnavailable):
            await here.scheduler.run_due()
        here.clock.time += 60
        await here.scheduler.run_due()
        assert lost and await here.statuses() == ["running"]

    at_noon(scenario)


def test_two_years_of_ticks_over_clock_jumps_and_restarts_start_once_each(tmp_path):
    """G16: each tick starts one execution, whatever restarts, second servers and changes of the time zone do."""

    async def scenario(here: Installation) -> None:
        import random

        chance = random.Random(16)
        crons = {"daily-at-two": "30 2 * * *", "six-hours": "0 */6 * * *"}
        for name, cron in crons.items():
            await here.schedules.add("daily", cron, tz="Europe/Berlin", name=name, catch_up="all")
        began, end = here.clock.time, at("2028-01-10T12:00")
        servers = [here.scheduler]
        now = began
        while now < end:
            now += chance.uniform(3600, 20 * 3600)
            here.clock.time = now
            if chance.random() < 0.05:
                servers = [here.server(chance.randint(1, 9))[1] for _ in range(chance.randint(1, 2))]
            if chance.random() < 0.1:
                here.clock.time = now - 3600  # a clock that is set back: nothing starts twice
                await servers[0].run_due()
                here.clock.time = now
            for server in servers:
                await server.run_due()
        rows = await here.events.executions(ExecutionFilter(limit=100_000))
        keys = [row.key for row in rows if row.key]
        assert len(keys) == len(set(keys))
        for name, cron in crons.items():
            schedule = await here.schedules.get(name)
            expected = []
            for tick in Cron(cron, "Europe/Berlin").after(began):
                if tick > now:
                    break
                expected.append(schedule.tick_key(tick))
            assert sorted(key.rpartition(":")[2] for key in keys if schedule.id in key) == sorted(expected)

    installed("2026-01-10T12:00", tmp_path)(scenario)


def test_an_invalid_expression_is_refused_with_a_reason():
    assert Cron("@daily").description == "At 00:00 every day" or "00:00" in Cron("@daily").description
    ticks = Cron("0 9 * * mon-fri", "America/New_York").upcoming(at("2026-01-09T20:00"), 2)
    assert [datetime.fromtimestamp(tick, ZoneInfo("America/New_York")).strftime("%a %H:%M") for tick in ticks] == [
        "Mon 09:00",
        "Tue 09:00",
    ]
    for wrong, words in (("61 * * * *", "minute"), ("* * *", "fields"), ("", "fields"), ("0 0 31 2 *", "day")):
        with pytest.raises(RequestRefused, match=words):
            Cron(wrong)
    for zone in ("Mars/Olympus", "", "../../etc/passwd", "Europe"):
        with pytest.raises(RequestRefused, match="time zone"):
            Cron("* * * * *", zone)


# ── late ticks ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("none", []),
        ("last", ["01-10 15:00"]),
        ("all", ["01-10 13:00", "01-10 14:00", "01-10 15:00"]),
    ],
)
def test_missed_ticks_are_caught_up_according_to_the_rule(at_noon, catch_up, expected):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "0 * * * *", tz="Europe/Berlin", catch_up=catch_up)
        here.schedules, here.scheduler = here.server(2)  # the first one died; this one comes up late
        assert await here.move_to("2026-01-10T15:40") == expected
        assert await here.move_to("2026-01-10T15:50") == expected
        assert (await here.move_to("2026-01-10T16:00"))[-1] == "01-10 16:00"

    at_noon(scenario)


def test_a_tick_that_is_a_little_late_is_not_missed(at_noon):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "0 * * * *", tz="Europe/Berlin", catch_up="none")
        assert await here.move_to("2026-01-10T13:00:45") == ["01-10 13:00"]

    at_noon(scenario)


def test_missed_ticks_of_a_year_of_seconds_are_not_enumerated(at_noon):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "* * * * * *", tz="Europe/Berlin", catch_up="last")
        assert len(await here.move_to("2027-01-10T12:00:30")) == 1
        await here.schedules.remove("daily")
        await here.schedules.add("daily", "* * * * *", name="many", catch_up="all")
        assert len(await here.move_to("2027-03-01T12:00")) == 1 + 1_000

    at_noon(scenario)


def test_ticks_during_a_pause_are_dropped(at_noon):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "0 * * * *", tz="Europe/Berlin", catch_up="all")
        await here.schedules.pause("daily")
        assert await here.move_to("2026-01-10T15:30") == []
        await here.schedules.resume("daily")
        assert await here.move_to("2026-01-10T16:00") == ["01-10 16:00"]

    at_noon(scenario)


# ── overlapping ticks ───────────────────────────────────────────────────────────────────


def test_allow_starts_a_second_execution(at_noon):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "0 * * * *", tz="Europe/Berlin", overlap="allow")
        await here.move_to("2026-01-10T13:00")
        await here.move_to("2026-01-10T14:00")
        assert await here.statuses() == ["running", "running"]

    at_noon(scenario)


def test_skip_drops_the_tick(at_noon):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "0 * * * *", tz="Europe/Berlin", overlap="skip")
        await here.move_to("2026-01-10T13:00")
        assert await here.move_to("2026-01-10T14:00") == ["01-10 13:00"]
        await here.end()
        assert await here.move_to("2026-01-10T15:00") == ["01-10 13:00", "01-10 15:00"]
        progress = await here.progress()
        assert (progress.fired, progress.skipped) == (2, 1)

    at_noon(scenario)


def test_queue_starts_ticks_in_order_one_at_a_time(at_noon):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "0 * * * *", tz="Europe/Berlin", overlap="queue")
        for hour in (13, 14, 15):
            await here.move_to(f"2026-01-10T{hour}:00")
        assert await here.started() == ["01-10 13:00"]
        assert len((await here.progress()).queued) == 2
        await here.end()
        assert await here.move_to("2026-01-10T15:10") == ["01-10 13:00", "01-10 14:00"]
        here.schedules, here.scheduler = here.server(2)  # what waits survives its server
        await here.end()
        assert await here.move_to("2026-01-10T15:20") == ["01-10 13:00", "01-10 14:00", "01-10 15:00"]

    at_noon(scenario)


def test_cancel_ends_the_running_execution_first(at_noon):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "0 * * * *", tz="Europe/Berlin", overlap="cancel")
        await here.move_to("2026-01-10T13:00")
        await here.move_to("2026-01-10T14:00")
        assert await here.statuses() == ["cancelled", "running"]

    at_noon(scenario)


@pytest.mark.parametrize("overlap", ["skip", "cancel", "queue"])
def test_missed_ticks_that_overlap_wait_and_none_is_lost(at_noon, overlap):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "0 * * * *", tz="Europe/Berlin", catch_up="all", overlap=overlap)
        assert await here.move_to("2026-01-10T15:40") == ["01-10 13:00"]
        assert len((await here.progress()).queued) == 2
        assert await here.move_to("2026-01-10T16:00") == ["01-10 13:00"]  # this tick waits behind the missed ones
        for _ in range(3):
            await here.end()
            await here.move_to("2026-01-10T16:10")
        assert await here.started() == ["01-10 13:00", "01-10 14:00", "01-10 15:00", "01-10 16:00"]
        assert (await here.progress()).skipped == 0
        await here.move_to("2026-01-10T17:00")  # all is made up for: the rule applies again
        assert len(await here.started()) == (5 if overlap == "cancel" else 4)

    at_noon(scenario)


def test_concurrency_is_the_number_of_executions_that_may_overlap(at_noon):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "0 * * * *", tz="Europe/Berlin", overlap="queue", concurrency=2)
        for hour in (13, 14, 15):
            await here.move_to(f"2026-01-10T{hour}:00")
        assert await here.started() == ["01-10 13:00", "01-10 14:00"]
        await here.end()
        assert len(await here.move_to("2026-01-10T15:10")) == 3

    at_noon(scenario)


# ── parts of a tick ─────────────────────────────────────────────────────────────────────


def test_the_payload_reads_the_time_since_the_previous_tick(tmp_path):
    async def scenario(here: Installation) -> None:
        payload = {
            "from": "{{ tick.start }}",
            "to": "{{ tick.end }}",
            "day": "{{ tick.start[:10] }}",
            "at": "{{ tick }}",
        }
        await here.schedules.add("daily", "0 2 * * *", tz="Europe/Berlin", payload=payload)
        await here.move_to("2026-03-29T03:00")
        (first,) = await here.events.read((await here.progress()).last_execution or "", 0, 1)
        assert first.body.payload == {
            "from": "2026-03-28T02:00:00+01:00",
            "to": "2026-03-29T03:00:00+02:00",  # the hour of two does not exist on this day
            "day": "2026-03-28",
            "at": "2026-03-29T03:00:00+02:00",
        }

    installed("2026-03-28T12:00", tmp_path)(scenario)


def test_jitter_delays_each_tick_by_the_same_time_on_every_server(at_noon):
    async def scenario(here: Installation) -> None:
        added = await here.schedules.add("daily", "0 * * * *", tz="Europe/Berlin", jitter="10m")
        assert added.jitter == 600
        delays = [added.due(tick) - tick for tick in Cron("0 * * * *").upcoming(here.clock.now(), 50)]
        assert all(0 <= delay < 600 for delay in delays)
        assert len(set(delays)) == 50
        due = added.due(at("2026-01-10T13:00"))
        here.clock.time = due - 0.001
        await here.scheduler.run_due()
        assert await here.started() == []
        assert 0 < await here.scheduler.seconds_until_next() <= 0.01
        here.clock.time = due
        await here.scheduler.run_due()
        assert await here.started() == ["01-10 13:00"]

    at_noon(scenario)


def test_an_edit_moves_the_next_tick_and_run_now_starts_at_once(at_noon):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "0 13 * * *", tz="Europe/Berlin", overlap="skip")
        edited = await here.schedules.edit("daily", {"cron": "30 12 * * *", "payload": {"n": 2}})
        assert edited.next_at == at("2026-01-10T12:30")
        with pytest.raises(RequestRefused, match="has no field 'crom'"):
            await here.schedules.edit("daily", {"crom": "* * * * *"})
        with pytest.raises(RequestRefused, match="deadline is a duration"):
            await here.schedules.edit("daily", {"deadline": "soon"})
        first = await here.schedules.run_now("daily", "mine", "ann")
        again = await here.schedules.run_now("daily", "mine", "ann")
        assert (first.status, first.execution_id) == ("started", again.execution_id)
        (event,) = await here.events.read(first.execution_id or "", 0, 1)
        assert event.body.payload == {"n": 2}
        assert await here.move_to("2026-01-10T12:30") == await here.started()
        assert (await here.progress()).skipped == 1  # the started execution still runs

    at_noon(scenario)


# ── once ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue", "cancel"])
def test_two_servers_that_process_a_tick_at_the_same_time_start_it_once(at_noon, overlap):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "0 * * * *", tz="Europe/Berlin", overlap=overlap)
        others = [here.server(number)[1] for number in (2, 3)]
        for hour in (13, 14, 15):
            here.clock.time = at(f"2026-01-10T{hour}:00")
            await asyncio.gather(here.scheduler.run_due(), *(other.run_due() for other in others))
        for _ in range(3):
            if overlap == "queue":
                await here.end()
                await asyncio.gather(here.scheduler.run_due(), *(other.run_due() for other in others))
        started = await here.started()
        assert len(started) == len(set(started)) == (1 if overlap == "skip" else 3)

    at_noon(scenario)


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue", "cancel"])
def test_a_crash_between_start_and_store_starts_the_execution_once(at_noon, overlap, monkeypatch):
    async def scenario(here: Installation) -> None:
        await here.schedules.add("daily", "0 * * * *", tz="Europe/Berlin", overlap=overlap)

        async def dies(_: Any) -> bool:
            raise StoreUnavailable("the process died here")

        with monkeypatch.context() as patched:
            patched.setattr(here.triggers, "save", dies)
            with pytest.raises(StoreUnavailable):
                await here.move_to("2026-01-10T13:00")
        here.schedules, here.scheduler = here.server(2)
        assert await here.move_to("2026-01-10T13:00:20") == ["01-10 13:00"]
        assert await here.statuses() == ["running"]
        progress = await here.progress()
        assert (progress.fired, progress.skipped, progress.queued) == (1, 0, ())

    at_noon(scenario)


def test_a_schedule_of_the_same_name_has_ticks_of_its_own(at_noon):
    async def scenario(here: Installation) -> None:
        for _ in range(2):
            here.clock.time = at("2026-01-10T12:59")
            await here.schedules.add("daily", "0 * * * *", tz="Europe/Berlin")
            await here.move_to("2026-01-10T13:00")
            await here.schedules.remove("daily")
        assert await here.started() == ["01-10 13:00", "01-10 13:00"]

    at_noon(scenario)


def test_a_tick_that_cannot_start_is_recorded_and_the_next_one_follows(at_noon):
    async def scenario(here: Installation) -> None:
        added = await here.schedules.add("daily", "0 * * * *", tz="Europe/Berlin")
        here.playbooks._versions.clear()
        assert await here.move_to("2026-01-10T13:00") == []
        failed = await here.progress(added.name)
        assert "no playbook 'daily'" in (failed.last_error or "")
        await here.orchestrator.catalog.register(Source(NOOP), 0.0)
        assert await here.move_to("2026-01-10T14:00") == ["01-10 14:00"]
        assert (await here.progress(added.name)).last_error is None

    at_noon(scenario)


def test_a_running_scheduler_starts_ticks_and_a_new_schedule_wakes_it(at_noon):
    async def scenario(here: Installation) -> None:
        async with running(partial(run_schedules, here.scheduler)):
            await asyncio.sleep(0)
            here.clock.time = at("2026-01-10T12:30")
            added = asyncio.ensure_future(here.schedules.add("daily", "31 12 * * *", tz="Europe/Berlin"))
            await added
            here.clock.time = at("2026-01-10T12:31")
            here.schedules.changed.set()
            for _ in range(200):
                if await here.started():
                    break
                await asyncio.sleep(0.01)
        assert await here.started() == ["01-10 12:31"]

    at_noon(scenario)


# ── keeping them ────────────────────────────────────────────────────────────────────────


def test_an_invalid_schedule_is_refused_when_it_is_added(at_noon):
    async def scenario(here: Installation) -> None:
        add = here.schedules.add
        with pytest.raises(NotFound, match="no playbook 'nobody'"):
            await add("nobody", "* * * * *")
        with pytest.raises(NotFound, match="version 7"):
            await add("daily", "* * * * *", version=7)
        with pytest.raises(RequestRefused, match="cron"):
            await add("daily", "now and then")
        with pytest.raises(RequestRefused, match="overlap is one of"):
            await add("daily", "* * * * *", overlap="maybe")
        with pytest.raises(RequestRefused, match="may read `tick`"):
            await add("daily", "* * * * *", payload={"x": "{{ 1 / 0 }}"})
        with pytest.raises(RequestRefused, match="not a valid name"):
            await add("daily", "* * * * *", name="a/b")
        await add("daily", "* * * * *", name="one")
        with pytest.raises(Conflict):
            await add("daily", "* * * * *", name="one")
        assert [(await add("daily", "* * * * *")).name for _ in range(2)] == ["daily", "daily-2"]
        with pytest.raises(NotFound):
            await here.schedules.remove("nobody")

    at_noon(scenario)


def test_the_document_has_the_next_ticks_in_the_time_zone_of_the_schedule(at_noon):
    async def scenario(here: Installation) -> None:
        added = await here.schedules.add("daily", "30 6 * * *", tz="Europe/Berlin")
        document = await here.schedules.document(added, 2)
        assert document["upcoming"] == ["2026-01-11T06:30:00+01:00", "2026-01-12T06:30:00+01:00"]
        assert document["next_at"] == "2026-01-11T05:30:00.000000Z"
        assert "06:30" in document["description"]

    at_noon(scenario)


# ── 24 months ───────────────────────────────────────────────────────────────────────────

QUICK = NOOP.replace("daily", "quick").replace("    tool: {kind: noop}\n", "")
CRONS = (("30 2 * * *", "Europe/Berlin"), ("0 */7 * * *", "America/New_York"), ("15 3 * * sun", "Australia/Lord_Howe"))


@pytest.mark.parametrize("seed", range(2))
def test_24_months_with_clock_jumps_and_restarts_start_each_tick_once(tmp_path, seed):
    """G16: changes of time zones, jumps of the clock by an hour in both directions, and stops at any write."""

    async def scenario(here: Installation) -> None:
        random = Random(seed)
        await here.orchestrator.catalog.register(Source(QUICK), 0.0)
        begin, end = here.clock.now(), at("2028-01-10T12:00")
        for number, (cron, tz) in enumerate(CRONS):
            for catch_up in ("all", "last"):
                overlap = random.choice(("allow", "skip", "queue", "cancel"))
                await here.schedules.add(
                    "quick", cron, tz=tz, name=f"{catch_up}-{number}", catch_up=catch_up, overlap=overlap
                )
        server = 1
        while here.clock.time < end:
            here.clock.time += random.choice((600, 3600, 4 * 3600, 20 * 3600, 3 * 86_400))
            jump = random.choice((0.0, 0.0, 3600.0, -3600.0))
            here.clock.time += jump
            if random.random() < 0.2:
                await _stop_at_a_write(here, random)
                server += 1
                here.schedules, here.scheduler = here.server(1 + server % 1000)
            await here.scheduler.run_due()
        for _ in range(50):
            await here.scheduler.run_due()
        last = here.clock.now()
        rows = await here.events.executions(ExecutionFilter(path="quick", limit=100_000))
        started = Counter(row.key for row in rows)
        assert set(started.values()) == {1}
        for number, (cron, tz) in enumerate(CRONS):
            ticks = list(takewhile(lambda tick: tick <= last, Cron(cron, tz).after(begin)))
            everything = await here.schedules.get(f"all-{number}")
            assert {everything.key(everything.tick_key(tick)) for tick in ticks} == {
                key for key in started if key.startswith(f"schedule:{everything.id}:")
            }
            newest = await here.schedules.get(f"last-{number}")
            assert {key for key in started if key.startswith(f"schedule:{newest.id}:")} <= {
                newest.key(newest.tick_key(tick)) for tick in ticks
            }
        await here.orchestrator.background.close(1.0)

    installed("2026-01-10T12:00", tmp_path)(scenario)


async def _stop_at_a_write(here: Installation, random: Random) -> None:
    """Run the scheduler until one of its writes does not happen; what it wrote before stays."""
    left = random.randrange(6)

    def failing(original: Any) -> Any:
        async def write(*values: Any, **others: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise StoreUnavailable("the process stopped here")
            return await original(*values, **others)

        return write

    kept = here.triggers.save, here.deliveries.add, here.deliveries.save
    here.triggers.save, here.deliveries.add, here.deliveries.save = map(failing, kept)  # type: ignore[method-assign]
    try:
        await here.scheduler.run_due()
    except StoreUnavailable:
        pass
    finally:
        here.triggers.save, here.deliveries.add, here.deliveries.save = kept  # type: ignore[method-assign]


def test_a_full_batch_of_due_schedules_is_followed_by_the_next_one_at_once():
    class Due:
        counts = iter([BATCH, BATCH, 3])
        done: list[str] = []
        changed = asyncio.Event()

        async def run_due(self) -> int:
            self.done.append("run")
            return next(self.counts)

        async def seconds_until_next(self) -> float:
            self.done.append("pause")
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run_schedules(Due()))
    assert Due.done == ["run", "run", "run", "pause"]
