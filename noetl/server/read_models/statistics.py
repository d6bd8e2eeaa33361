"""Many executions at once, from their stored summaries: counts, causes of failures, durations, and the newest ones.

The store counts; nothing is kept in memory, so statistics survive restarts. What retention has deleted is known per
day (`EventStore.days`).
"""

from __future__ import annotations

import re
from collections import Counter
from math import ceil, floor
from typing import Any

import msgspec

from noetl.server.read_models.documents import summary_document, when
from noetl.storage.ports.events import (
    DayHistory,
    EventStore,
    ExecutionFilter,
    ExecutionStatistics,
    ExecutionSummary,
    FailureCount,
    PathActivity,
    band_duration,
)

BARS = 48  # of the histogram
RUNS = 30  # newest executions that are listed
MAX_CAUSES = 20
MAX_HOME_CAUSES = 5
MAX_PLAYBOOKS = 20  # of the home page
ENDED = ("success", "failed")
DAY = 86_400

_PLACE = re.compile(r" ?\([^()\s]+:\d+(?::\d+)?\)$")  # at the end of a message
_VARIABLE = re.compile(
    r"""'[^'\s]*'|"[^"\s]*"|\b0x[0-9a-f]+\b|\b[0-9a-f]{8,}\b|\d+(?:\.\d+)*""",
    re.IGNORECASE,
)


def cause_of(error: str) -> str:
    """An error message without its variable parts, so that failures with the same cause are equal."""
    return _VARIABLE.sub("…", _PLACE.sub("", " ".join(error.split())))[:200]


async def statistics_document(store: EventStore, where: ExecutionFilter, now: float) -> dict[str, Any]:
    """Counts by status, causes of failures, durations, a histogram over time, and the newest executions."""
    found = await store.statistics(where, now, BARS)
    statuses: Counter[str] = Counter()
    for (_, status), count in found.bars.items():
        statuses[status] += count
    newest = await store.executions(
        msgspec.structs.replace(where, sort="started", ascending=False, offset=0, limit=RUNS, before=None)
    )
    causes = _causes(found.failures)
    last = await _starts(store, [each["newest"] for each in causes[:MAX_CAUSES]])
    return {
        "total": sum(statuses.values()),
        "statuses": dict(statuses),
        "success_rate": success_rate(statuses),
        "p50_ms": _rounded(found.percentiles.get(0.5)),
        "p95_ms": _rounded(found.percentiles.get(0.95)),
        "causes": [{**each, "last_at": when(last.get(each["newest"]))} for each in causes[:MAX_CAUSES]],
        "more_causes": max(0, len(causes) - MAX_CAUSES),
        "histogram": _histogram(found),
        "newest": [summary_document(each) for each in newest],
    }


async def activity_document(store: EventStore, now: float, days: int) -> dict[str, Any]:
    """The executions of the last days by day and status, and the latest playbooks with their newest executions."""
    today = int(now // DAY)
    since = float((today - days + 1) * DAY)
    found = await store.statistics(ExecutionFilter(since=since, until=since + days * DAY), now, days)
    by_day = _by_day(today, days, found, await store.days(None, since))
    total: Counter[str] = sum(by_day.values(), Counter())
    return {
        "since": when(since),
        "days": [{"day": when(day * DAY), **statuses} for day, statuses in by_day.items()],
        "total": sum(total.values()),
        "statuses": dict(total),
        "success_rate": success_rate(total),
        "p50_ms": _rounded(found.percentiles.get(0.5)),
        "p95_ms": _rounded(found.percentiles.get(0.95)),
        "causes": _causes(found.failures)[:MAX_HOME_CAUSES],
        "playbooks": [await _playbook(store, each, since) for each in (await store.activity(since))[:MAX_PLAYBOOKS]],
    }


async def _playbook(store: EventStore, each: PathActivity, since: float) -> dict[str, Any]:
    newest = await store.executions(ExecutionFilter(path=each.path, limit=RUNS))
    taken = sorted(row.took for row in newest if row.status == "success" and row.took is not None)
    return {
        "path": each.path,
        "total": sum(each.statuses.values()),
        "statuses": each.statuses,
        "success_rate": success_rate(Counter(each.statuses)),
        "p50_ms": _rounded(taken[len(taken) // 2]) if taken else None,
        "p95_ms": _rounded(taken[min(len(taken) - 1, int(0.95 * len(taken)))]) if taken else None,
        "newest": [summary_document(row) for row in newest],
    }


def _by_day(today: int, days: int, live: ExecutionStatistics, deleted: list[DayHistory]) -> dict[int, Counter[str]]:
    by_day: dict[int, Counter[str]] = {today - days + 1 + n: Counter() for n in range(days)}
    for (bar, status), count in live.bars.items():
        by_day[today - days + 1 + bar][status] += count
    for each in deleted:
        by_day[each.day].update(each.statuses)
    return by_day


async def history_document(store: EventStore, path: str, now: float, days: int) -> dict[str, Any]:
    """One playbook over many days, deleted executions included; and the durations of its steps in the newest ones."""
    today = int(now // DAY)
    since = float((today - days + 1) * DAY)
    live = await store.statistics(ExecutionFilter(path=path, since=since, until=since + days * DAY), now, days)
    deleted = await store.days(path, since)
    by_day = _by_day(today, days, live, deleted)
    total: Counter[str] = sum(by_day.values(), Counter())
    percentiles = live.percentiles or _band_percentiles(deleted)
    newest = await store.executions(ExecutionFilter(path=path, limit=RUNS))
    return {
        "path": path,
        "days": [{"day": when(day * DAY), **statuses} for day, statuses in by_day.items()],
        "total": sum(total.values()),
        "statuses": dict(total),
        "deleted": sum(sum(each.statuses.values()) for each in deleted),
        "success_rate": success_rate(total),
        "p50_ms": _rounded(percentiles.get(0.5)),
        "p95_ms": _rounded(percentiles.get(0.95)),
        "newest": [summary_document(each) for each in newest],
        "steps": _step_trends(newest),
    }


def success_rate(statuses: Counter[str]) -> float | None:
    """The share of successful ones among those that succeeded or failed."""
    ended = sum(statuses[status] for status in ENDED)
    return statuses["success"] / ended if ended else None


def _step_trends(newest: list[ExecutionSummary]) -> list[dict[str, Any]]:
    """The durations of each step in the newest executions, oldest first; null where it did not end."""
    ended = [each for each in reversed(newest) if each.steps]
    names = dict.fromkeys(name for each in reversed(ended) for name in each.steps or ())
    rows = []
    for name in names:
        durations = [(each.steps or {}).get(name) for each in ended]
        known = sorted(value for value in durations if value is not None)
        rows.append(
            {
                "step": name,
                "executions": [each.execution_id for each in ended],
                "durations_ms": durations,
                "p50_ms": known[len(known) // 2],
                "last_ms": next(value for value in reversed(durations) if value is not None),
            }
        )
    return rows


def _band_percentiles(days: list[DayHistory]) -> dict[float, float]:
    bands: Counter[int] = Counter()
    for each in days:
        bands.update(each.durations)
    total = sum(bands.values())
    found: dict[float, float] = {}
    for share in (0.5, 0.95) if total else ():
        seen = 0
        for band in sorted(bands):
            seen += bands[band]
            if seen > min(total - 1, int(share * total)):
                found[share] = band_duration(band)
                break
    return found


def _causes(failures: list[FailureCount]) -> list[dict[str, Any]]:
    """Failures grouped by cause, the most frequent first."""
    causes: dict[str, dict[str, Any]] = {}
    for each in failures:
        cause = cause_of(each.error or "no error message")
        known = causes.setdefault(cause, {"cause": cause, "count": 0, "newest": "0", "example": None, "paths": set()})
        known["count"] += each.count
        known["paths"].add(each.path)
        if int(each.newest) > int(known["newest"]):
            known |= {"newest": each.newest, "example": each.error or None}
    found = sorted(causes.values(), key=lambda each: -each["count"])
    return [{**each, "paths": sorted(each["paths"])[:5]} for each in found]


async def _starts(store: EventStore, executions: list[str]) -> dict[str, float]:
    found = [await store.summary(each) for each in executions]
    return {each.execution_id: each.started_at for each in found if each is not None}


def _histogram(found: ExecutionStatistics) -> list[dict[str, Any]]:
    if not found.bars:
        return []
    bars: list[Counter[str]] = [Counter() for _ in range(BARS)]
    for (bar, status), count in found.bars.items():
        bars[bar][status if status in ENDED else "other"] += count
    # Whole milliseconds that contain the bar: a range of the list must not exclude the executions of its bar.
    return [
        {
            "at": floor(1000 * (found.begin + n * found.width)),
            "until": ceil(1000 * (found.begin + (n + 1) * found.width)) + 1,
            **bar,
        }
        for n, bar in enumerate(bars)
    ]


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 1)
