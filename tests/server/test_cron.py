"""Ticks of cron expressions over changes of the clock: none in the past, none twice, none left out."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest

from noetl.server.scheduling.cron import Cron

CHANGES = [  # a time some hours before a change, in the zone
    ("Europe/Berlin", "2026-03-28T20:00"),
    ("Europe/Berlin", "2026-10-24T20:00"),
    ("America/New_York", "2026-03-07T20:00"),
    ("America/New_York", "2026-10-31T20:00"),
    ("Australia/Lord_Howe", "2026-04-04T20:00"),
    ("Australia/Lord_Howe", "2026-10-03T20:00"),
    ("Pacific/Apia", "2011-12-29T20:00"),  # the next day does not exist
]
FIXED = ["30 2 * * *", "0 30 2 * * *", "45 1 * * *", "0,30 1-3 * * *", "15 2-4/2 * * *", "0 0 3 * * *"]
PATTERNS = ["*/15 2 * * *", "15 */2 * * *", "0 * * * *", "*/7 1-2 * * *", "*/20 30 2 * * *"]


def shown(expression: str, tz: str, since: str, count: int) -> list[str]:
    cron = Cron(expression, tz)
    return [cron.shown(tick)[5:] for tick in cron.upcoming(at(since, tz), count)]


def at(text: str, tz: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)).timestamp()


@pytest.mark.parametrize("expression", [*FIXED, *PATTERNS])
@pytest.mark.parametrize(("tz", "since"), CHANGES)
def test_the_next_tick_is_the_same_from_every_instant_and_the_previous_one_precedes_it(tz, since, expression):
    cron, begin = Cron(expression, tz), at(since, tz)
    ticks = list(takewhile(lambda tick: tick <= begin + 2 * 86_400, cron.after(begin)))
    assert all(one < two for one, two in pairwise(ticks))
    for instant in range(int(begin), int(ticks[-1]), 1031):
        assert cron.next(instant) == next(tick for tick in ticks if tick > instant)
    assert all(cron.interval(two) == (one, two) for one, two in pairwise(ticks))


@pytest.mark.parametrize("expression", PATTERNS)
@pytest.mark.parametrize(("tz", "since"), CHANGES)
def test_a_pattern_ticks_at_every_matching_local_time_that_exists(tz, since, expression):
    cron, begin, zone = Cron(expression, tz), int(at(since, tz)), ZoneInfo(tz)
    local = {tick: datetime.fromtimestamp(tick, zone) for tick in range(begin + 1, begin + 86_401)}
    plain = Cron(expression)  # a day without a change
    day = takewhile(lambda tick: tick < 10 * 86_400, plain.after(9 * 86_400 - 1))
    times = {datetime.fromtimestamp(tick, ZoneInfo("UTC")).time() for tick in day}
    expected = [tick for tick, each in local.items() if each.time() in times]
    assert list(takewhile(lambda tick: tick <= begin + 86_400, cron.after(begin))) == expected


@pytest.mark.parametrize("expression", ["30 2 * * *", "0 30 2 * * *"])
def test_a_fixed_time_ticks_once_with_and_without_seconds(expression):
    spring = shown(expression, "Europe/Berlin", "2026-03-28T12:00", 2)
    assert spring == ["03-29T03:00:00+02:00", "03-30T02:30:00+02:00"]
    autumn = shown(expression, "Europe/Berlin", "2026-10-24T12:00", 2)
    assert autumn == ["10-25T02:30:00+02:00", "10-26T02:30:00+01:00"]


def test_the_first_tick_of_a_schedule_that_is_added_in_a_repeated_hour_is_not_in_the_past():
    cron = Cron("30 2 * * *", "Europe/Berlin")
    second = datetime(2026, 10, 25, 2, 10, fold=1, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    assert cron.shown(cron.next(second) or 0) == "2026-10-26T02:30:00+01:00"


def test_a_time_after_a_change_of_half_an_hour_is_not_left_out():
    found = shown("15 */2 * * *", "Australia/Lord_Howe", "2026-04-05T00:00", 3)
    assert found == ["04-05T00:15:00+11:00", "04-05T02:15:00+10:30", "04-05T04:15:00+10:30"]
