"""What the event stores in SQLite and in Postgres share: the summaries of executions, and snapshots."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import ClassVar

import msgspec

from noetl.core.model.events import Recorded
from noetl.core.model.ids import number_at
from noetl.storage.events import execution_queries
from noetl.storage.events.event_rows import (
    checksum,
    decode_summary,
    encode_json,
    has_expired,
    intact,
    listed_summary,
    number_of,
    one_summary,
)
from noetl.storage.events.log_tail import LogTails, follow
from noetl.storage.events.slot_counts import json_key_pattern
from noetl.storage.ports.events import (
    DayHistory,
    EventStore,
    ExecutionFilter,
    ExecutionStatistics,
    ExecutionSummary,
    PathActivity,
)
from noetl.storage.ports.sql import SqlDatabase


class SqlEventStore(EventStore):
    """The base class of `ports.EventStore` in a database; a subclass appends to the logs, reads and deletes them."""

    ACTIVE: ClassVar[str]  # unfinished and not only waiting: the condition of the partial index
    CONTAINS: ClassVar[str]  # whether the bytes of `data` contain those of $1
    PLAYBOOKS: ClassVar[str]  # the digests of the playbooks of all executions, possibly with other texts
    NEWS: ClassVar[str]  # the condition of the partial index of unread news
    READ: ClassVar[str]  # the assignment that marks news as read

    def __init__(self, database: SqlDatabase, schema: Sequence[str]) -> None:
        self.sql = database
        self._executions, self._snapshots, self._days = (
            f"{database.prefix}{name}" for name in ("executions", "snapshots", "days")
        )
        self._select = f"SELECT id, seq, status, path, data, crc FROM {self._executions}"
        self._tails = LogTails(self.lengths)
        database.migrate("events", schema)

    @abstractmethod
    async def lengths(self, ids: Sequence[str]) -> list[tuple[str, int]]:
        """The current lengths of the logs that exist."""

    def tail(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """Stream events as they are appended, until the last one; NotFound if the execution does not exist."""
        return follow(self, self._tails, execution_id, after)

    async def summary(self, execution_id: str) -> ExecutionSummary | None:
        """The projection of one execution."""
        number = number_of(execution_id)
        return None if number is None else one_summary(await self.sql.row(f"{self._select} WHERE id = $1", number))

    async def executed_playbooks(self, digests: Sequence[str]) -> set[str]:
        """Those of these digests of playbooks of which there are executions; it reads every summary."""
        rows = await self.sql.fetch(self.PLAYBOOKS) if digests else ()
        return {row[0] for row in rows} & {*digests}

    async def by_key(self, key: str) -> ExecutionSummary | None:
        """The execution with this idempotency key."""
        return one_summary(await self.sql.row(f"{self._select} WHERE key = $1", key))

    async def executions(self, where: ExecutionFilter) -> list[ExecutionSummary]:
        """One page of executions, newest first; a damaged row is listed with its error."""
        matching, values = execution_queries.condition(self.sql, where)
        query = f"SELECT id, seq, data, crc FROM {self._executions} {matching} {execution_queries.order(where)}"
        return [
            decode_summary(data)
            if intact(crc, number, seq, data)
            else listed_summary(await self.sql.row(f"{self._select} WHERE id = $1", number))
            for number, seq, data, crc in await self.sql.fetch(query, *values)
        ]

    async def latest(self, paths: Sequence[str]) -> dict[str, ExecutionSummary]:
        """The newest execution of each of these playbooks that has one."""
        known = [path for path in dict.fromkeys(paths) if "\x00" not in path]
        if not known:
            return {}
        places = ", ".join(f"${number}" for number in range(1, len(known) + 1))
        newest = f"SELECT max(id) FROM {self._executions} WHERE path IN ({places}) GROUP BY path"
        rows = await self.sql.fetch(f"{self._select} WHERE id IN ({newest})", *known)
        return {summary.path: summary for summary in map(listed_summary, rows)}

    async def statistics(self, where: ExecutionFilter, now: float, bars: int) -> ExecutionStatistics:
        """Counts, durations and failures of all executions that match."""
        return await execution_queries.statistics(self.sql, self._executions, where, now, bars)

    async def activity(self, since: float) -> list[PathActivity]:
        """The playbooks with executions since an instant, the latest first."""
        return await execution_queries.activity(self.sql, self._executions, since)

    async def days(self, path: str | None, since: float) -> list[DayHistory]:
        """What is known of deleted executions that began on or after the day of an instant."""
        return await execution_queries.days(self.sql, self._days, path, since)

    async def unfinished(self, *, waiting: bool = True) -> list[str]:
        """Ids of unfinished executions, oldest first."""
        rows = await self.sql.fetch(f"SELECT id FROM {self._executions} WHERE {self.ACTIVE} ORDER BY id")
        numbers = {row[0] for row in rows}
        if waiting:
            rows = await self.sql.fetch(f"SELECT id FROM {self._executions} WHERE status = 'waiting'")
            numbers |= {row[0] for row in rows}
        return [str(number) for number in sorted(numbers)]

    async def due(self, before: float, limit: int = 1000) -> list[tuple[str, float]]:
        """Waiting executions whose timer is due before that time, earliest first."""
        query = f"SELECT id, due FROM {self._executions} WHERE due < $1 ORDER BY due LIMIT {limit:d}"
        return [(str(number), due) for number, due in await self.sql.fetch(query, before)]

    async def counts(self) -> dict[str, int]:
        """The number of executions by status."""
        rows = await self.sql.fetch(f"SELECT status, count(*) FROM {self._executions} GROUP BY status")
        return dict(rows)

    async def holders(self, keys: Sequence[str]) -> dict[str, list[ExecutionSummary]]:
        """The unfinished executions with slots of each key, oldest first."""
        any_key = " OR ".join(self.CONTAINS.replace("$1", f"${number}") for number in range(1, 1 + len(keys)))
        query = f"{self._select} WHERE {self.ACTIVE} AND ({any_key}) ORDER BY id"
        found = [listed_summary(row) for row in await self.sql.fetch(query, *map(json_key_pattern, keys))]
        return {key: [each for each in found if key in (each.held or ())] for key in keys}

    async def expired(self, before: float, most: int = 1000) -> list[str]:
        """Finished executions that can be deleted, oldest first: they ended before that time, have no parent, and
        no other execution refers to their results."""
        found: list[str] = []
        last = -1
        while len(found) < most:
            rows = await self.sql.fetch(
                f"{self._select} AS e WHERE id < $1 AND id > $2 AND ended AND "
                f"NOT EXISTS (SELECT 1 FROM {self._executions} AS caller WHERE caller.id = e.parent) "
                f"AND NOT EXISTS (SELECT 1 FROM {self._executions} AS rerun WHERE rerun.reuses = e.id) "
                "ORDER BY id LIMIT $3",
                number_at(before),
                last,
                most,
            )
            found += [str(row[0]) for row in rows if has_expired(row, before)]
            if len(rows) < most:
                break
            last = rows[-1][0]
        return found[:most]

    async def news(self, limit: int = 100) -> list[ExecutionSummary]:
        """Executions whose new status has not been marked as read, oldest first."""
        query = f"{self._select} WHERE {self.NEWS} ORDER BY id LIMIT {limit:d}"
        return [listed_summary(row) for row in await self.sql.fetch(query)]

    async def mark_read(self, executions: Sequence[ExecutionSummary]) -> None:
        """Mark the news of these executions as read; one that has changed since stays unread."""
        await self.sql.execute_many(
            f"UPDATE {self._executions} SET {self.READ} WHERE id = $1 AND seq = $2",
            [(int(each.execution_id), each.seq) for each in executions],
        )

    async def rewrite_summary(self, summary: ExecutionSummary) -> None:
        """Replace the row of an execution by what its log says; its idempotency key stays."""
        number = int(summary.execution_id)
        row = await self.sql.row(f"SELECT key FROM {self._executions} WHERE id = $1", number)
        summary = msgspec.structs.replace(summary, key=row[0] if row else None)
        data = encode_json(summary)
        copies = execution_queries.copied_columns(summary)
        columns = ("seq", "data", "crc", *copies)
        assignments = ", ".join(f"{name} = ${place}" for place, name in enumerate(columns, 2))
        crc = checksum(number, summary.seq, data)
        await self.sql.execute(
            f"UPDATE {self._executions} SET {assignments} WHERE id = $1",
            number,
            summary.seq,
            data,
            crc,
            *copies.values(),
        )

    async def check(self) -> None:
        """Write and flush something."""
        await self.sql.check()

    async def save_snapshot(self, execution_id: str, seq: int, data: bytes) -> None:
        """Save a snapshot of the state; an older one never replaces a newer one."""
        number = int(execution_id)
        await self.sql.execute(
            f"INSERT INTO {self._snapshots}(execution, seq, data, crc) VALUES ($1, $2, $3, $4) "
            "ON CONFLICT (execution) DO UPDATE SET seq = excluded.seq, data = excluded.data, crc = excluded.crc "
            f"WHERE excluded.seq > {self._snapshots}.seq",
            number,
            seq,
            data,
            checksum(number, seq, data),
        )

    async def snapshot(self, execution_id: str) -> tuple[int, bytes] | None:
        """The newest snapshot; None if there is none or it is damaged."""
        number = number_of(execution_id)
        if number is None:
            return None
        row = await self.sql.row(f"SELECT seq, data, crc FROM {self._snapshots} WHERE execution = $1", number)
        return (row[0], row[1]) if row and intact(row[2], number, row[0], row[1]) else None
