"""Queries over the rows of executions: the condition and the order of a list, statistics, and the history of days.

They read the columns of the rows and not their documents, so that a table of many executions is counted by the
database.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from noetl.core.model.ids import COUNTER_BITS, EPOCH_MS, MAX_NUMBER, PROCESS_BITS, number_at
from noetl.storage.document_checksums import is_intact, with_checksum
from noetl.storage.events.event_rows import FINAL, number_of
from noetl.storage.ports.events import (
    MAX_FAILURES,
    DayHistory,
    ExecutionFilter,
    ExecutionStatistics,
    ExecutionSummary,
    FailureCount,
    PathActivity,
    with_day,
)
from noetl.storage.ports.sql import SqlDatabase, like_pattern

log = logging.getLogger("noetl.storage")

SHARES = (0.5, 0.95)
ID_BITS = PROCESS_BITS + COUNTER_BITS
_ORDERS = {"started": "id", "duration": "took", "path": "path", "status": "status"}


def condition(sql: SqlDatabase, where: ExecutionFilter) -> tuple[str, list[object]]:
    """The WHERE clause of a filter, and its values."""
    clauses: list[str] = []
    values: list[object] = []

    def add(clause: str, *given: object) -> None:
        values.extend(given)
        places = [f"${len(values) - len(given) + n + 1}" for n in range(len(given))]
        clauses.append(clause.format(*places))

    def add_like(column: str, pattern: str) -> None:
        add(f"{column} {sql.like} {{}} ESCAPE '\\'", pattern)

    if where.status:
        add(f"status IN ({', '.join(['{}'] * len(where.status))})", *where.status)
    for value, clause in (
        (where.path, "path = {}"),
        (None if where.parent is None else number_of(where.parent) or -1, "parent = {}"),
        (where.version, "version = {}"),
        (where.least_ms, "took >= {}"),
        (where.most_ms, "took <= {}"),
        (where.since and number_at(where.since), "id >= {}"),
        (where.until and number_at(where.until), "id < {}"),
        (where.before and (number_of(where.before) or 0), "id < {}"),
    ):
        if value is not None:
            add(clause, value)
    if where.inbox:
        clauses.append("inbox > 0")
    if where.search:
        pattern = like_pattern(where.search)
        add(f"(path {sql.like} {{0}} ESCAPE '\\' OR CAST(id AS text) LIKE {{0}} ESCAPE '\\')", pattern)
    if where.trigger is not None:
        kind = like_pattern(where.trigger + " ")[1:]
        add("(started_by = {} OR started_by LIKE {} ESCAPE '\\')", where.trigger, kind)
    for label in where.labels:
        add_like("labels", like_pattern(f"\n{label}\n" if "=" in label else f"\n{label}="))
    if where.error is not None:
        parts = error_parts(where.error)
        add_like("error", "%".join(like_pattern(part)[1:-1] for part in ("", *parts, "")))
    return f"WHERE {' AND '.join(clauses)}" if clauses else "", values


def order(where: ExecutionFilter) -> str:
    """The ORDER BY and LIMIT clauses of a filter; rows without a value are last."""
    direction = "ASC" if where.ascending else "DESC"
    column = _ORDERS[where.sort]
    keys = f"id {direction}" if column == "id" else f"{column} {direction} NULLS LAST, id DESC"
    return f"ORDER BY {keys} LIMIT {where.limit:d}" + (f" OFFSET {where.offset:d}" if where.offset else "")


OLDEST = ("status", "ended", "path", "key")  # columns that no row lacks; `parent` and the others may be null
COPIES = (*OLDEST, "parent", "due", "inbox", "reuses", "took", "error", "version", "started_by", "labels")


def copied_columns(summary: ExecutionSummary) -> dict[str, Any]:
    """The columns of an execution that repeat fields of its summary, in the order of COPIES."""
    values = (
        summary.status,
        summary.status in FINAL,
        summary.path,
        summary.key,
        int(summary.parent) if summary.parent else None,
        summary.due,
        summary.inbox,
        int(summary.reuses) if summary.reuses else None,
        summary.took,
        summary.error,
        *columns_of(summary),
    )
    return dict(zip(COPIES, values, strict=True))


def columns_of(summary: ExecutionSummary) -> tuple[str | None, str, str | None]:
    """The columns that the first append of an execution sets: version, started_by, labels."""
    labels = "".join(f"\n{label}" for label in summary.labels) + "\n" if summary.labels else None
    return summary.version, summary.trigger, labels


def error_parts(error: str) -> list[str]:
    """The parts of an error text in their order. A text with `…` is a cause, in which a space is any white space."""
    return [part for part in re.split(r"[…\s]+", error) if part] if "…" in error else [error]


async def statistics(
    sql: SqlDatabase, table: str, where: ExecutionFilter, now: float, bars: int
) -> ExecutionStatistics:
    """Counts, durations and failures of the executions that match."""
    matching, values = condition(sql, where)
    # One plan for both: the row of an execution that began before this instant is not counted in a later bar.
    ((first, last),) = await sql.fetch(f"SELECT min(id), max(id) FROM {table} {matching}", *values)
    if first is None:
        return ExecutionStatistics(now, 1.0, {}, {}, [])
    begin = where.since if where.since is not None else _time_of(first)
    end = max(now if where.until is None else where.until, _time_of(last) + 0.001)
    width_ms = max(1, -int(-1000 * (end - begin) // bars))
    base, width = number_at(begin), min(width_ms << ID_BITS, MAX_NUMBER)
    rows = await sql.fetch(
        f"SELECT (id - {base:d}) / {width:d} AS bar, status, count(*) FROM {table} {matching} GROUP BY 1, 2", *values
    )
    counts: dict[tuple[int, str], int] = defaultdict(int)
    for bar, status, count in rows:
        counts[min(bars - 1, max(0, int(bar))), status] += count
    succeeded = sum(count for (_, status), count in counts.items() if status == "success")
    percentiles = {}
    if succeeded:
        taken = f"{matching} {'AND' if matching else 'WHERE'} status = 'success' AND took IS NOT NULL"
        for share in SHARES:
            at = min(succeeded - 1, int(share * succeeded))
            query = f"SELECT took FROM {table} {taken} ORDER BY took LIMIT 1 OFFSET {at:d}"
            for (took,) in await sql.fetch(query, *values):
                percentiles[share] = float(took)
    failures: list[FailureCount] = []
    if any(status == "failed" for _, status in counts):
        failed = f"{matching} {'AND' if matching else 'WHERE'} status = 'failed'"
        failures = [
            FailureCount(error or "", path, count, str(newest))
            for error, path, count, newest in await sql.fetch(
                f"SELECT error, path, count(*), max(id) FROM {table} {failed} GROUP BY error, path "
                f"ORDER BY 3 DESC LIMIT {MAX_FAILURES:d}",
                *values,
            )
        ]
    return ExecutionStatistics(begin, width_ms / 1000, dict(counts), percentiles, failures)


async def activity(sql: SqlDatabase, table: str, since: float) -> list[PathActivity]:
    """The playbooks with executions since an instant, the latest first."""
    rows = await sql.fetch(
        f"SELECT path, status, count(*), max(id) FROM {table} WHERE id >= $1 GROUP BY path, status", number_at(since)
    )
    newest: dict[str, int] = {}
    statuses: dict[str, dict[str, int]] = {}
    for path, status, count, id in rows:
        newest[path] = max(id, newest.get(path, 0))
        statuses.setdefault(path, {})[status] = count
    return [
        PathActivity(path, str(newest[path]), statuses[path]) for path in sorted(newest, key=newest.__getitem__)[::-1]
    ]


# ── days ────────────────────────────────────────────────────────────────────────────────


async def days(sql: SqlDatabase, table: str, path: str | None, since: float) -> list[DayHistory]:
    """The rows of deleted executions; damaged ones are left out."""
    query, day = f"SELECT data, path, day FROM {table} WHERE day >= $1", int(since // 86_400)
    rows = await (
        sql.fetch(f"{query} ORDER BY day, path", day)
        if path is None
        else sql.fetch(f"{query} AND path = $2 ORDER BY day", day, path)
    )
    return [decode_day(row[0]) for row in rows if is_intact(*row)]


def day_changes(dropped: Iterable[ExecutionSummary]) -> dict[tuple[str, int], DayHistory]:
    """What the deletion of these executions adds to the history, by path and day."""
    changes: dict[tuple[str, int], DayHistory] = {}
    for summary in dropped:
        if summary.ended_at is not None:
            key = (summary.path, int(summary.started_at // 86_400))
            changes[key] = with_day(changes.get(key), summary)
    return changes


def merged(known: DayHistory, more: DayHistory) -> DayHistory:
    """Two parts of one day."""
    return DayHistory(known.path, known.day, _sum(known.statuses, more.statuses), _sum(known.durations, more.durations))


def extended_day(stored: bytes, change: DayHistory) -> bytes:
    """The document of a day with more deleted executions; a damaged one begins again."""
    if not is_intact(stored, change.path, change.day):
        log.error("the history of %s on day %d is damaged and begins again", change.path, change.day)
        return encode_day(change)
    return encode_day(merged(decode_day(stored), change))


def encode_day(day: DayHistory) -> bytes:
    """The document of a day, with its checksum."""
    return with_checksum(msgspec.json.encode(day), day.path, day.day)


decode_day = msgspec.json.Decoder(DayHistory).decode


def _sum(one: dict[Any, int], other: dict[Any, int]) -> dict[Any, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in (*one, *(each for each in other if each not in one))}


def _time_of(number: int) -> float:
    return float((number >> ID_BITS) + EPOCH_MS) / 1000
