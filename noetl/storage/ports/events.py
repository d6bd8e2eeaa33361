"""The event log port: append, read, list, follow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from math import log2
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct

from noetl.core.model.events import Recorded
from noetl.storage.ports.state import StateCommit


class ExecutionSummary(Struct, frozen=True, omit_defaults=True, gc=False):
    """One row of the list of executions: a projection of the log."""

    execution_id: str
    path: str
    status: str  # pending | running | waiting | paused | success | failed | cancelled
    started_at: float
    version: str | None = None
    playbook: str = ""  # digest
    ended_at: float | None = None
    seq: int = 0
    parent: str | None = None
    key: str | None = None  # idempotency key, unique
    error: str | None = None
    steps_done: int = 0
    steps_running: int = 0
    held: dict[str, int] | None = None  # slots in use by its runs, by limited key (`pool gpu`)
    due: float | None = None  # when a timer continues a waiting execution
    inbox: int = 0  # waits that a signal answers
    rerun_of: str | None = None  # the execution that it repeats, as a whole or in part
    forked_from: str | None = None  # the execution of whose log it continues
    reuses: str | None = None  # the execution whose results it refers to
    trigger: str = ""  # what started it: `schedule nightly`, `playbook` (a caller), `rerun`, `user ann`
    labels: tuple[str, ...] = ()  # `key=value`
    late: float | None = None  # seconds from when it was due to its start; None: it was not planned
    steps: dict[str, float] | None = None  # of an ended execution: how long the last run of each step took, in ms

    @property
    def took(self) -> float | None:
        """Its duration in ms, if it has ended."""
        return None if self.ended_at is None else 1000 * (self.ended_at - self.started_at)


class SlotReservation(Struct, frozen=True, gc=False):
    """Slots of a limited key that an append acquires, and the limit."""

    key: str
    count: int
    most: int


class Append(Struct, frozen=True, gc=False):
    """One atomic append to the log of one execution, with the resulting projection."""

    execution_id: str
    expected_seq: int
    events: tuple[Recorded, ...]
    summary: ExecutionSummary
    was: str | None = None  # the status in the replaced row; None: unknown
    takes: tuple[SlotReservation, ...] = ()  # slots that it acquires, checked in its transaction
    rewaits: bool = False  # `due` or `inbox` differ from the replaced row
    news: bool = False  # the new status is listed by `EventStore.news` until it is read
    state: StateCommit | None = None  # values of `state` that it commits, checked in its transaction


Sort = Literal["started", "duration", "path", "status"]


class ExecutionFilter(Struct, frozen=True, omit_defaults=True):
    """The filter and the page of a list of executions. Without `sort` the newest is first."""

    status: tuple[str, ...] = ()
    path: str | None = None
    parent: str | None = None
    search: str | None = None
    before: str | None = None  # execution id: the page begins before it
    limit: int = 100
    inbox: bool = False  # only executions with a wait that a signal answers
    since: float | None = None  # started at or after
    until: float | None = None  # started before
    version: str | None = None
    trigger: str | None = None  # `schedule`: of this kind; `schedule nightly`: exactly this one
    labels: tuple[str, ...] = ()  # each `key=value`, or `key` with any value
    error: str | None = None  # text in its error, without regard to case; `…` stands for any text
    least_ms: float | None = None  # took at least
    most_ms: float | None = None  # took at most
    sort: Sort = "started"
    ascending: bool = False
    offset: int = 0  # rows before the page


class FailureCount(Struct, frozen=True):
    """How many executions of a playbook failed with one error message."""

    error: str
    path: str
    count: int
    newest: str  # execution id


class ExecutionStatistics(Struct, frozen=True):
    """Many executions: by status and time, their durations and failures."""

    begin: float  # of the first bar
    width: float  # of a bar, in seconds
    bars: dict[tuple[int, str], int]  # number of a bar and status -> count
    percentiles: dict[float, float]  # share -> duration in ms of successful executions
    failures: list[FailureCount]  # most frequent first, at most `MAX_FAILURES`


class PathActivity(Struct, frozen=True):
    """The executions of one playbook since an instant, by status."""

    path: str
    newest: str  # execution id
    statuses: dict[str, int]


class DayHistory(Struct, frozen=True, omit_defaults=True):
    """Deleted executions of one playbook that began on one day (UTC)."""

    path: str
    day: int  # days since 1970
    statuses: dict[str, int]
    durations: dict[int, int] = {}  # of the successful ones: band (see `duration_band`) -> count


MAX_FAILURES = 20_000
_BANDS = 8  # per doubling of the duration: a band is 9 % wide


def duration_band(ms: float) -> int:
    """The number of the band of a duration."""
    return int(_BANDS * log2(max(0.0, ms) + 1))


def band_duration(band: int) -> float:
    """The duration in ms in the middle of a band."""
    return float(2 ** ((band + 0.5) / _BANDS) - 1)


def with_day(known: DayHistory | None, summary: ExecutionSummary) -> DayHistory:
    """The history of a day with one more ended execution."""
    known = known or DayHistory(summary.path, int(summary.started_at // 86_400), {})
    statuses = {**known.statuses, summary.status: known.statuses.get(summary.status, 0) + 1}
    durations = known.durations
    if summary.status == "success" and summary.took is not None:
        band = duration_band(summary.took)
        durations = {**durations, band: durations.get(band, 0) + 1}
    return DayHistory(known.path, known.day, statuses, durations)


class LogPage(list[Recorded]):
    """Consecutive events of a log; `more`: others follow."""

    def __init__(self, events: Iterable[Recorded] = (), *, more: bool = False) -> None:
        super().__init__(events)
        self.more = more


class EventStore(Protocol):
    """The event log, which is authoritative. An append is acknowledged after its commit is flushed."""

    async def append(self, append: Append) -> None:
        """Append events at `expected_seq`; VersionConflict if the log has another length,
        Conflict if the `key` of a new execution exists, LimitReached if it needs more slots than are free,
        StateConflict if the state that it commits has changed."""

    async def read(self, execution_id: str, after: int = 0, limit: int | None = None) -> LogPage:
        """Events with seq > after, in order; with a limit fewer, but at least one, if they are large."""

    def tail(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """Stream events as they are appended, until the last one; NotFound if the execution does not exist."""

    async def summary(self, execution_id: str) -> ExecutionSummary | None:
        """The projection of one execution."""

    async def by_key(self, key: str) -> ExecutionSummary | None:
        """The execution with this idempotency key."""

    async def executions(self, where: ExecutionFilter) -> list[ExecutionSummary]:
        """One page of executions, newest first."""

    async def latest(self, paths: Sequence[str]) -> dict[str, ExecutionSummary]:
        """The newest execution of each of these playbooks that has one."""

    async def statistics(self, where: ExecutionFilter, now: float, bars: int) -> ExecutionStatistics:
        """Counts, durations and failures of all executions that match; its page and order do not matter."""

    async def activity(self, since: float) -> list[PathActivity]:
        """The playbooks with executions since an instant, the latest first."""

    async def days(self, path: str | None, since: float) -> list[DayHistory]:
        """What is known of deleted executions that began on or after the day of an instant; `path` None: of all."""

    async def unfinished(self, *, waiting: bool = True) -> list[str]:
        """Ids of unfinished executions (those without playbook.processed), oldest first; `waiting` False: without those
        that only wait for a signal or a timer."""

    async def due(self, before: float, limit: int = 1000) -> list[tuple[str, float]]:
        """Waiting executions whose timer is due before that time, and its instant, earliest first."""

    async def logs(self, executions: Sequence[str], most: int) -> dict[str, tuple[ExecutionSummary, list[Recorded]]]:
        """The summaries and complete logs of several executions, except those with more than `most` events, large and
        damaged ones, and ones that change during the call."""

    async def counts(self) -> dict[str, int]:
        """The number of executions by status."""

    async def holders(self, keys: Sequence[str]) -> dict[str, list[ExecutionSummary]]:
        """The unfinished executions with slots of each key (`held` in their rows), oldest first."""

    async def held(self, keys: Sequence[str]) -> dict[str, int]:
        """The number of slots of each key that all unfinished executions use."""

    async def expired(self, before: float, most: int = 1000) -> list[str]:
        """Finished executions that can be deleted, oldest first: they ended before that time, their parent does not
        exist any more, and no execution refers to their results (`reuses`)."""

    async def drop(self, executions: Sequence[str]) -> None:
        """Delete these executions, their keys and snapshots, and count the ended ones in `days`, in one transaction;
        their logs are deleted now or by `tidy`."""

    async def executed_playbooks(self, digests: Sequence[str]) -> set[str]:
        """Those of these digests of playbooks of which there are executions; it reads every summary."""

    async def tidy(self, now: float) -> int:
        """Release the space of deleted logs and prepare partitions; return the number of dropped partitions."""

    async def news(self, limit: int = 100) -> list[ExecutionSummary]:
        """Executions whose new status (`Append.news`) has not been marked as read, oldest first."""

    async def mark_read(self, executions: Sequence[ExecutionSummary]) -> None:
        """Mark the news of these executions as read; one that has changed since stays unread."""

    async def check(self) -> None:
        """Write and flush something; raise the reason if that fails."""

    async def save_snapshot(self, execution_id: str, seq: int, data: bytes) -> None:
        """Save a snapshot of the state, which speeds up recovery."""

    async def snapshot(self, execution_id: str) -> tuple[int, bytes] | None:
        """The newest snapshot, if any."""

    async def close(self) -> None:
        """Flush and close the store."""


@runtime_checkable
class SharedLogs(Protocol):
    """An event store that other processes of this machine write to without a notification."""

    async def touched(self) -> bool:
        """Whether another process may have written since the last call."""

    async def lengths(self, ids: Sequence[str]) -> list[tuple[str, int]]:
        """The current lengths of the logs that exist."""
