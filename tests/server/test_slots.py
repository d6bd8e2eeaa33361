"""The slots of a range: fixed lengths, calendar units, time zones and changes of the clock."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.errors import RequestRefused
from noetl.server.scheduling.backfills import MAX_SLOTS, Backfill, _checked
from noetl.server.scheduling.slots import Step, read_step


def backfill(start: Any, end: Any, every: Any, timezone: str = "") -> Backfill:
    return _checked("p", start, end, every, {"timezone": timezone})


def starts(found: Backfill) -> list[str]:
    return [found.slot(index)["start"] for index in range(found.total)]


@pytest.mark.parametrize(
    ("every", "zoned", "step"),
    [
        ("15m", False, Step(900)), (30, False, Step(30)), ("1h30m", False, Step(5400)), ("6 hours", True, Step(21600)),
        ("1d", False, Step(86400)), ("1 day", False, Step(86400)), ("2w", True, Step(days=14)), ("1d", True, Step(days=1)),
        ("1 month", False, Step(months=1)), ("3 months", True, Step(months=3)), ("2mo", False, Step(months=2)),
        ("1 quarter", True, Step(months=3)), ("1 year", False, Step(months=12)), ("P1M", True, Step(months=1)),
        ("P2W", True, Step(days=14)), ("P1D", False, Step(86400)),
    ],
)  # fmt: skip
def test_lengths(every: Any, zoned: bool, step: Step) -> None:
    assert read_step(every, zoned=zoned) == step


@pytest.mark.parametrize("every", ["", "soon", "1 fortnight", "-1d", "1.5 months", "month", "1d2mo"])
def test_what_is_no_length(every: str) -> None:
    with pytest.raises(ValueError, match="write 15m"):
        read_step(every, zoned=True)


def test_days_of_a_zone_begin_at_midnight_also_when_the_clock_changes() -> None:
    spring = backfill("2026-03-28", "2026-03-31", "1d", "Europe/Berlin")
    assert starts(spring) == ["2026-03-28T00:00:00+01:00", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"]
    assert [spring.begin(n + 1) - spring.begin(n) for n in range(3)] == [86400, 82800, 86400]
    assert spring.slot(1) == {
        "start": "2026-03-29T00:00:00+01:00", "end": "2026-03-30T00:00:00+02:00", "date": "2026-03-29", "index": 1,
    }  # fmt: skip
    autumn = backfill("2026-10-24", "2026-10-27", "1 day", "Europe/Berlin")
    assert [autumn.begin(n + 1) - autumn.begin(n) for n in range(3)] == [86400, 90000, 86400]
    fixed = backfill("2026-03-28", "2026-03-31", "24h", "Europe/Berlin")  # hours are hours
    assert starts(fixed)[2] == "2026-03-30T01:00:00+02:00"
    assert fixed.total == 3


def test_a_local_time_that_does_not_exist_is_moved_and_one_that_exists_twice_is_used_once() -> None:
    spring = backfill("2026-03-28T02:30", "2026-03-31T02:30", "1d", "Europe/Berlin")
    assert starts(spring) == ["2026-03-28T02:30:00+01:00", "2026-03-29T03:30:00+02:00", "2026-03-30T02:30:00+02:00"]
    autumn = backfill("2026-10-24T02:30", "2026-10-27", "1d", "Europe/Berlin")
    assert starts(autumn) == ["2026-10-24T02:30:00+02:00", "2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]


def test_months_are_counted_from_the_start() -> None:
    found = backfill("2026-01-31", "2026-06-01", "1 month")
    assert starts(found) == [
        "2026-01-31T00:00:00Z", "2026-02-28T00:00:00Z", "2026-03-31T00:00:00Z", "2026-04-30T00:00:00Z", "2026-05-31T00:00:00Z",
    ]  # fmt: skip
    assert found.slot(4)["end"] == "2026-06-01T00:00:00Z"  # the range ends before the slot
    leap = backfill("2024-02-29", "2029-01-01", "1 year", "America/New_York")
    assert [each[:10] for each in starts(leap)] == [
        "2024-02-29",
        "2025-02-28",
        "2026-02-28",
        "2027-02-28",
        "2028-02-29",
    ]
    quarters = backfill("2026-01-01", "2027-01-01", "1 quarter", "Europe/Berlin")
    assert [each[5:] for each in starts(quarters)] == [
        "01-01T00:00:00+01:00", "04-01T00:00:00+02:00", "07-01T00:00:00+02:00", "10-01T00:00:00+02:00",
    ]  # fmt: skip


def test_slots_are_contiguous_over_years_in_many_zones() -> None:
    for zone in ("Europe/Berlin", "America/Sao_Paulo", "Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Apia", "UTC"):
        for every in ("1d", "1 week", "1 month"):
            found = backfill("2010-12-25T00:30", "2014-01-01", every, zone)
            begins = [found.begin(index) for index in range(found.total + 1)]
            assert begins == sorted(begins)
            assert begins[found.total - 1] < found.end <= begins[found.total] + 1e-6


def test_an_offset_counts_more_than_the_zone() -> None:
    found = backfill("2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z", "12h", "Europe/Berlin")
    assert starts(found) == ["2026-03-01T01:00:00+01:00", "2026-03-01T13:00:00+01:00"]


def test_what_is_refused() -> None:
    for start, end, every, zone, message in (
        ("2026-01-01", "2026-02-01", "1d", "Europe/Berlim", "is not a time zone"),
        ("2026-01-01", "2026-02-01", "0 months", "", "greater than 0"),
        ("2026-02-01", "2026-01-01", "1 month", "", "range is empty"),
        ("soon", "2026-01-01", "1 month", "Europe/Berlin", "is not an instant"),
        ("1000-01-01", "5000-01-01", "1 day", "Europe/Berlin", f"limit of {MAX_SLOTS:,}"),
    ):
        with pytest.raises(RequestRefused, match=message):
            backfill(start, end, every, zone)
    assert backfill("0001-01-02", "5000-01-01", "1 month").total == 4999 * 12
