"""The event log port: append, read, list, follow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from noetl.core.model.events import Recorded


class ExecutionSummary(Struct, frozen=True, omit_defaults=True, gc=False):
    """One row of the list of executions: a projection, always derivable from the log."""

    execution_id: str
    path: str
    status: str  # pending | running | paused | success | failed | cancelled
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
    held: dict[str, int] | None = None  # slots of what can be limited (`pool gpu`) that its runs hold now


class SlotReservation(Struct, frozen=True, gc=False):
    """Slots of a limited key that an append adds to what is held, and how many may be held in all."""

    key: str
    count: int
    most: int


class Append(Struct, frozen=True, gc=False):
    """One atomic addition to one execution's log, with the projection it leads to."""

    execution_id: str
    expected_seq: int
    events: tuple[Recorded, ...]
    summary: ExecutionSummary
    was: str | None = None  # the status in the row that this one replaces; None: not known
    takes: tuple[SlotReservation, ...] = ()  # limits that must hold in its own transaction, for what it takes


class ExecutionFilter(Struct, frozen=True, omit_defaults=True):
    """What a list of executions is narrowed to."""

    status: tuple[str, ...] = ()
    path: str | None = None
    parent: str | None = None
    search: str | None = None
    before: str | None = None  # execution id: page on from there
    limit: int = 100


class EventStore(Protocol):
    """The truth. An append is acknowledged after its commit is flushed."""

    async def append(self, append: Append) -> None:
        """Add events at `expected_seq`; VersionConflict when somebody was first,
        Conflict when a new execution's `key` is taken, LimitReached when it takes more than there is."""

    async def read(self, execution_id: str, after: int = 0, limit: int | None = None) -> list[Recorded]:
        """Events with seq > after, in order."""

    def tail(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """Events as they come, until the execution's last one; NotFound when there is no such execution."""

    async def summary(self, execution_id: str) -> ExecutionSummary | None:
        """The projection of one execution."""

    async def by_key(self, key: str) -> ExecutionSummary | None:
        """The execution that was started under this idempotency key."""

    async def executions(self, where: ExecutionFilter) -> list[ExecutionSummary]:
        """Newest first, one page."""

    async def unfinished(self) -> list[str]:
        """Ids of executions that have not reached playbook.processed."""

    async def logs(self, executions: Sequence[str], most: int) -> dict[str, tuple[ExecutionSummary, list[Recorded]]]:
        """The rows and whole logs of several executions at once; those with more than `most` events, damaged ones
        and ones that grow just now are left out."""

    async def counts(self) -> dict[str, int]:
        """How many executions there are, by status."""

    async def holders(self, key: str) -> list[ExecutionSummary]:
        """The unfinished executions that hold slots of a key (`held` in their rows), oldest first."""

    async def held(self, keys: Sequence[str]) -> dict[str, int]:
        """How many slots of each key are held now, by all unfinished executions together."""

    async def expired(self, before: float, most: int = 1000) -> list[str]:
        """Executions that ended before that instant and that nobody needs any more, oldest first; a child is needed
        as long as its caller is there."""

    async def drop(self, executions: Sequence[str]) -> None:
        """Forget these executions: they are not listed, not found by their keys, and their logs are gone or go soon."""

    async def tidy(self, now: float) -> int:
        """Give back the space of what was dropped and make room for what comes; how many partitions went."""

    async def check(self) -> None:
        """Write something and flush it; the error says why nothing can be written now."""

    async def save_snapshot(self, execution_id: str, seq: int, data: bytes) -> None:
        """Keep a folded state; losing it costs only time."""

    async def snapshot(self, execution_id: str) -> tuple[int, bytes] | None:
        """The newest folded state, if any."""

    async def close(self) -> None:
        """Flush and let go."""


@runtime_checkable
class SharedLogs(Protocol):
    """An event store whose logs other processes of this machine write to without telling."""

    async def touched(self) -> bool:
        """Whether another process may have written since this was last asked."""

    async def lengths(self, ids: Sequence[str]) -> list[tuple[str, int]]:
        """How long these logs are now (those that exist)."""
