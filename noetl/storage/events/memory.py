"""The event log in memory: for tests, simulation and `noetl run --store memory:`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from noetl.core.model.events import PlaybookProcessed, Recorded
from noetl.core.model.ids import number_at
from noetl.core.model.text_matching import has_parts
from noetl.errors import Conflict, NotFound, StoreUnavailable, VersionConflict
from noetl.storage.events.event_rows import FINAL
from noetl.storage.events.execution_queries import SHARES, error_parts
from noetl.storage.events.slot_counts import check_capacity
from noetl.storage.ports.events import (
    Append,
    DayHistory,
    ExecutionFilter,
    ExecutionStatistics,
    ExecutionSummary,
    FailureCount,
    LogPage,
    PathActivity,
    with_day,
)
from noetl.storage.state.memory import MemoryStateStore


class MemoryEventStore:
    """`ports.EventStore` in memory."""

    def __init__(self) -> None:
        self._logs: dict[str, list[Recorded]] = {}
        self._summaries: dict[str, ExecutionSummary] = {}
        self._keys: dict[str, str] = {}
        self._snapshots: dict[str, tuple[int, bytes]] = {}
        self._tails: dict[str, dict[asyncio.Event, None]] = {}
        self._news: set[str] = set()
        self._days: dict[tuple[str, int], DayHistory] = {}
        self._closed = False
        self.state = MemoryStateStore()

    async def append(self, append: Append) -> None:
        """Append events at the expected seq."""
        self._check_open()
        execution_id, summary = append.execution_id, append.summary
        if append.takes:
            check_capacity(append, await self.held([take.key for take in append.takes]))
        if append.state is not None:
            self.state.check(append.state)
        log = self._logs.get(execution_id)
        found = len(log) if log is not None else None
        if append.expected_seq == 0:
            if found is not None:
                raise VersionConflict(execution_id, 0, found)
            if summary.key is not None and summary.key in self._keys:
                raise Conflict(f"an execution with the key {summary.key!r} already exists")
            log = self._logs[execution_id] = []
            if summary.key is not None:
                self._keys[summary.key] = execution_id
        elif log is None or found != append.expected_seq:
            raise VersionConflict(execution_id, append.expected_seq, found)
        log.extend(append.events)
        if append.state is not None:
            self.state.write(append.state)
        self._summaries[execution_id] = msgspec.structs.replace(summary, seq=len(log))
        if append.news:
            self._news.add(execution_id)
        for changed in self._tails.get(execution_id, ()):
            changed.set()

    async def read(self, execution_id: str, after: int = 0, limit: int | None = None) -> LogPage:
        """Events with seq > after, in order."""
        self._check_open()
        log = self._logs.get(execution_id, [])
        return LogPage(
            log[after : None if limit is None else after + limit], more=limit is not None and len(log) > after + limit
        )

    async def tail(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """Stream events as they are appended, until the last one; NotFound if the execution does not exist."""
        if execution_id not in self._logs:
            raise NotFound(f"there is no execution {execution_id}")
        seen = min(after, len(self._logs[execution_id]))
        if seen and isinstance(self._logs[execution_id][seen - 1].body, PlaybookProcessed):
            return  # the last event has been seen
        changed = asyncio.Event()
        self._tails.setdefault(execution_id, {})[changed] = None
        try:
            while True:
                for recorded in await self.read(execution_id, seen):
                    if recorded.seq > after:
                        yield recorded
                    seen = recorded.seq
                    if isinstance(recorded.body, PlaybookProcessed):
                        return
                await changed.wait()
                changed.clear()
        finally:
            self._tails[execution_id].pop(changed, None)

    async def summary(self, execution_id: str) -> ExecutionSummary | None:
        """The projection of one execution."""
        return self._summaries.get(execution_id)

    async def by_key(self, key: str) -> ExecutionSummary | None:
        """The execution with this idempotency key."""
        return self._summaries.get(self._keys.get(key, ""))

    async def executions(self, where: ExecutionFilter) -> list[ExecutionSummary]:
        """One page of executions, newest first."""
        newest = sorted(
            self._summaries.values(),
            key=lambda s: int(s.execution_id),
            reverse=where.sort != "started" or not where.ascending,
        )
        found = [summary for summary in newest if _matches(summary, where)]
        if where.sort != "started":
            valued = [each for each in found if _SORTS[where.sort](each) is not None]
            valued.sort(key=_SORTS[where.sort], reverse=not where.ascending)
            found = [*valued, *(each for each in found if _SORTS[where.sort](each) is None)]
        return found[where.offset : where.offset + where.limit]

    async def statistics(self, where: ExecutionFilter, now: float, bars: int) -> ExecutionStatistics:
        """Counts, durations and failures of all executions that match."""
        found = [each for each in self._summaries.values() if _matches(each, where)]
        if not found:
            return ExecutionStatistics(now, 1.0, {}, {}, [])
        starts = [each.started_at for each in found]
        begin = where.since if where.since is not None else min(starts)
        end = max(now if where.until is None else where.until, max(starts) + 0.001)
        width = max(0.001, (end - begin) / bars)
        counts = Counter((min(bars - 1, max(0, int((each.started_at - begin) / width))), each.status) for each in found)
        taken = sorted(each.took for each in found if each.status == "success" and each.took is not None)
        percentiles = {share: taken[min(len(taken) - 1, int(share * len(taken)))] for share in SHARES} if taken else {}
        failed: dict[tuple[str, str], list[int]] = {}
        for each in found:
            if each.status == "failed":
                failed.setdefault((each.error or "", each.path), []).append(int(each.execution_id))
        failures = [FailureCount(error, path, len(ids), str(max(ids))) for (error, path), ids in failed.items()]
        failures.sort(key=lambda each: -each.count)
        return ExecutionStatistics(begin, width, dict(counts), percentiles, failures)

    async def activity(self, since: float) -> list[PathActivity]:
        """The playbooks with executions since an instant, the latest first."""
        found: dict[str, list[ExecutionSummary]] = {}
        for each in await self.executions(ExecutionFilter(since=since, limit=len(self._summaries))):
            found.setdefault(each.path, []).append(each)
        return [
            PathActivity(path, rows[0].execution_id, dict(Counter(each.status for each in rows)))
            for path, rows in found.items()
        ]

    async def days(self, path: str | None, since: float) -> list[DayHistory]:
        """What is known of deleted executions that began on or after the day of an instant."""
        found = [each for each in self._days.values() if each.day >= int(since // 86_400) and path in (None, each.path)]
        return sorted(found, key=lambda each: (each.day, each.path))

    async def latest(self, paths: Sequence[str]) -> dict[str, ExecutionSummary]:
        """The newest execution of each of these playbooks that has one."""
        found = {path: await self.executions(ExecutionFilter(path=path, limit=1)) for path in dict.fromkeys(paths)}
        return {path: rows[0] for path, rows in found.items() if rows}

    async def unfinished(self, *, waiting: bool = True) -> list[str]:
        """Ids of unfinished executions, oldest first."""
        excluded = FINAL if waiting else FINAL | {"waiting"}
        return [summary.execution_id for summary in self._summaries.values() if summary.status not in excluded]

    async def due(self, before: float, limit: int = 1000) -> list[tuple[str, float]]:
        """Waiting executions whose timer is due before that time, earliest first."""
        found = [(each.execution_id, each.due) for each in self._summaries.values() if each.due is not None]
        return sorted((each for each in found if each[1] < before), key=lambda each: each[1])[:limit]

    async def logs(self, executions: Sequence[str], most: int) -> dict[str, tuple[ExecutionSummary, list[Recorded]]]:
        """The summaries and complete logs of several executions."""
        self._check_open()
        return {
            each: (self._summaries[each], list(self._logs[each]))
            for each in executions
            if each in self._logs and len(self._logs[each]) <= most
        }

    async def counts(self) -> dict[str, int]:
        """The number of executions by status."""
        return dict(Counter(summary.status for summary in self._summaries.values()))

    async def holders(self, keys: Sequence[str]) -> dict[str, list[ExecutionSummary]]:
        """The unfinished executions with slots of each key, oldest first."""
        unfinished = [each for each in self._summaries.values() if each.held and each.status not in FINAL]
        return {key: [each for each in unfinished if key in (each.held or ())] for key in keys}

    async def held(self, keys: Sequence[str]) -> dict[str, int]:
        """The number of slots of each key that are in use."""
        rows = [each.held for each in self._summaries.values() if each.held and each.status not in FINAL]
        return {key: sum(held.get(key, 0) for held in rows) for key in keys}

    async def news(self, limit: int = 100) -> list[ExecutionSummary]:
        """Executions whose new status has not been marked as read, oldest first."""
        return [self._summaries[each] for each in sorted(self._news, key=int)[:limit]]

    async def mark_read(self, executions: Sequence[ExecutionSummary]) -> None:
        """Mark the news of these executions as read; one that has changed since stays unread."""
        for each in executions:
            if self._summaries[each.execution_id].seq == each.seq:
                self._news.discard(each.execution_id)

    async def expired(self, before: float, most: int = 1000) -> list[str]:
        """Finished executions that can be deleted, oldest first: they ended before that time, have no parent, and
        no other execution refers to their results."""
        reused = {summary.reuses for summary in self._summaries.values()}
        return [
            summary.execution_id
            for summary in self._summaries.values()
            if summary.status in FINAL
            and summary.ended_at is not None
            and summary.ended_at < before
            and summary.parent not in self._summaries
            and summary.execution_id not in reused
        ][:most]

    async def drop(self, executions: Sequence[str]) -> None:
        """Delete these executions."""
        for execution_id in executions:
            summary = self._summaries.pop(execution_id, None)
            if summary is not None and summary.ended_at is not None:
                day = (summary.path, int(summary.started_at // 86_400))
                self._days[day] = with_day(self._days.get(day), summary)
            if summary is not None and summary.key is not None:
                self._keys.pop(summary.key, None)
            self._logs.pop(execution_id, None)
            self._news.discard(execution_id)
            self._snapshots.pop(execution_id, None)

    async def executed_playbooks(self, digests: Sequence[str]) -> set[str]:
        """Those of these digests of playbooks of which there are executions."""
        return {each.playbook for each in self._summaries.values()} & {*digests}

    async def tidy(self, now: float) -> int:
        """Do nothing: memory is released by `drop`."""
        return 0

    async def check(self) -> None:
        """Raise an error if the store is closed."""
        self._check_open()

    async def save_snapshot(self, execution_id: str, seq: int, data: bytes) -> None:
        """Save a snapshot of the state; an older one never replaces a newer one."""
        known = self._snapshots.get(execution_id)
        if known is None or known[0] < seq:
            self._snapshots[execution_id] = (seq, data)

    async def snapshot(self, execution_id: str) -> tuple[int, bytes] | None:
        """The newest snapshot, if any."""
        return self._snapshots.get(execution_id)

    async def close(self) -> None:
        """Close the store and wake the remaining tails."""
        self._closed = True
        for tails in self._tails.values():
            for changed in tails:
                changed.set()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")


_SORTS: dict[str, Callable[[ExecutionSummary], Any]] = {
    "duration": lambda each: each.took,
    "path": lambda each: each.path,
    "status": lambda each: each.status,
}


def _matches(summary: ExecutionSummary, where: ExecutionFilter) -> bool:
    return _matches_columns(summary, where) and _matches_facts(summary, where)


def _matches_facts(summary: ExecutionSummary, where: ExecutionFilter) -> bool:
    parts = ["", *error_parts(where.error.lower()), ""] if where.error is not None else None
    took = summary.took
    return (
        where.version in (None, summary.version)
        and (where.trigger in (None, summary.trigger) or summary.trigger.startswith(f"{where.trigger} "))
        and all(any(_has_label(each, label) for each in summary.labels) for label in where.labels)
        and (parts is None or (summary.error is not None and has_parts(summary.error.lower(), parts)))
        and (where.least_ms is None or (took is not None and took >= where.least_ms))
        and (where.most_ms is None or (took is not None and took <= where.most_ms))
    )


def _has_label(label: str, wanted: str) -> bool:
    return label == wanted if "=" in wanted else label.startswith(f"{wanted}=")


def _matches_columns(summary: ExecutionSummary, where: ExecutionFilter) -> bool:
    return (
        (not where.status or summary.status in where.status)
        and (where.path is None or summary.path == where.path)
        and (where.parent is None or summary.parent == where.parent)
        and (not where.inbox or summary.inbox > 0)
        and (where.since is None or int(summary.execution_id) >= number_at(where.since))
        and (where.until is None or int(summary.execution_id) < number_at(where.until))
        and (not where.search or where.search.lower() in summary.path.lower() or where.search in summary.execution_id)
        and (
            where.before is None
            or (len(summary.execution_id), summary.execution_id) < (len(where.before), where.before)
        )
    )
