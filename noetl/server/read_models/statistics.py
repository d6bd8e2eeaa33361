"""Many executions at once, from their stored summaries: pages by error, version and duration; counts, causes, trends.

Summaries are scanned newest first, up to `MAX_SCANNED`; the document says whether that was all of them. Nothing is kept
in memory, so statistics survive restarts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator
from math import ceil, floor
from typing import Any

import msgspec

from noetl.server.read_models.documents import summary_document, when
from noetl.storage.ports.events import EventStore, ExecutionFilter, ExecutionSummary

MAX_SCANNED = 20_000
PAGE = 2_000
BARS = 48  # of the histogram
RUNS = 30  # newest executions that are listed
MAX_CAUSES = 20

_VARIABLE = re.compile(
    r"""\([^()\s]+:\d+(?::\d+)?\)$"""  # the place at the end of a message
    r"""|'[^'\s]*'|"[^"\s]*"|\b0x[0-9a-f]+\b|\b[0-9a-f]{8,}\b|\d+(?:\.\d+)*""",
    re.IGNORECASE,
)


class RowFilter(msgspec.Struct, frozen=True):
    """What the columns of the store do not have."""

    error: str | None = None  # text in the error, or a cause (`cause_of`)
    version: str | None = None
    least_ms: float | None = None
    most_ms: float | None = None

    def matches(self, summary: ExecutionSummary) -> bool:
        """Whether an execution is wanted."""
        if self.version is not None and summary.version != self.version:
            return False
        if self.error is not None:
            wanted = self.error.lower()
            if summary.error is None or (
                wanted not in summary.error.lower() and wanted != cause_of(summary.error).lower()
            ):
                return False
        if self.least_ms is None and self.most_ms is None:
            return True
        took = None if summary.ended_at is None else 1000 * (summary.ended_at - summary.started_at)
        if took is None:
            return False
        return (self.least_ms is None or took >= self.least_ms) and (self.most_ms is None or took <= self.most_ms)


def cause_of(error: str) -> str:
    """An error message without its variable parts, so that failures with the same cause are equal."""
    return " ".join(_VARIABLE.sub("…", " ".join(error.split())).split())[:200]


async def scan(
    store: EventStore, where: ExecutionFilter, rows: RowFilter, most: int = MAX_SCANNED
) -> AsyncIterator[ExecutionSummary | None]:
    """Matching executions, newest first; None at the end if not all of them were looked at."""
    before, seen = where.before, 0
    while True:
        page = await store.executions(msgspec.structs.replace(where, before=before, limit=PAGE))
        for summary in page:
            if rows.matches(summary):
                yield summary
        seen += len(page)
        if len(page) < PAGE:
            return
        if seen >= most:
            yield None
            return
        before = page[-1].execution_id


async def statistics_document(store: EventStore, where: ExecutionFilter, rows: RowFilter, now: float) -> dict[str, Any]:
    """Counts by status, causes of failures, durations, a histogram over time, and the newest executions."""
    statuses: Counter[str] = Counter()
    causes: dict[str, dict[str, Any]] = {}
    durations: list[float] = []
    newest: list[ExecutionSummary] = []
    starts: list[tuple[float, str]] = []
    complete = True
    async for summary in scan(store, where, rows):
        if summary is None:
            complete = False
            break
        statuses[summary.status] += 1
        starts.append((summary.started_at, summary.status))
        if len(newest) < RUNS:
            newest.append(summary)
        if summary.status == "success" and summary.ended_at is not None:
            durations.append(1000 * (summary.ended_at - summary.started_at))
        if summary.status == "failed":
            _count_cause(causes, summary)
    ended = statuses["success"] + statuses["failed"]
    found = sorted(causes.values(), key=lambda each: -each["count"])
    return {
        "total": sum(statuses.values()),
        "complete": complete,
        "statuses": dict(statuses),
        "success_rate": statuses["success"] / ended if ended else None,
        "p50_ms": _percentile(durations, 0.5),
        "p95_ms": _percentile(durations, 0.95),
        "causes": [{**each, "paths": sorted(each["paths"])[:5]} for each in found[:MAX_CAUSES]],
        "more_causes": max(0, len(found) - MAX_CAUSES),
        "histogram": _histogram(starts, where, now),
        "newest": [summary_document(each) for each in newest],
    }


def _count_cause(causes: dict[str, dict[str, Any]], summary: ExecutionSummary) -> None:
    cause = cause_of(summary.error or "no error message")
    known = causes.get(cause)
    if known is None:
        known = causes[cause] = {
            "cause": cause,
            "count": 0,
            "newest": summary.execution_id,
            "example": summary.error,
            "last_at": when(summary.started_at),
            "paths": set(),
        }
    known["count"] += 1
    known["paths"].add(summary.path)


def _histogram(starts: list[tuple[float, str]], where: ExecutionFilter, now: float) -> list[dict[str, Any]]:
    if not starts:
        return []
    begin = where.since if where.since is not None else starts[-1][0]
    end = max(where.until or now, starts[0][0] + 0.001)
    width = max((end - begin) / BARS, 0.001)
    bars: list[Counter[str]] = [Counter() for _ in range(BARS)]
    for at, status in starts:
        name = status if status in ("success", "failed") else "other"
        bars[min(BARS - 1, max(0, int((at - begin) / width)))][name] += 1
    # Whole milliseconds that contain the bar: a range of the list must not exclude the executions of its bar.
    return [
        {"at": floor(1000 * (begin + n * width)), "until": ceil(1000 * (begin + (n + 1) * width)) + 1, **bar}
        for n, bar in enumerate(bars)
    ]


def _percentile(values: list[float], share: float) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)
