"""Tails of event logs: appends of this process are delivered directly, those of others are found by one shared poll.

A client mostly follows an execution that it has just started, so the events of the latest executions are kept: their
tails begin without a read.

Invariant: a tail yields every event once and in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from noetl.core.model.events import PlaybookProcessed, Recorded
from noetl.errors import NoetlError, NotFound
from noetl.storage.ports.events import Append, EventStore

POLL_SECONDS = 0.2  # between polls for appends of other processes
PAGE = 2_000  # events per read
RECENT_LOGS, RECENT_BYTES = 256, 1 << 20  # that are kept in memory

Lengths = Callable[[list[str]], Awaitable[list[tuple[str, int]]]]  # execution ids -> the ids and their lengths


async def follow(store: EventStore, tails: LogTails, execution_id: str, after: int) -> AsyncIterator[Recorded]:
    """Stream events as they are appended, until the last one; NotFound if the execution does not exist.

    Following from a sequence number that does not exist yet yields nothing until that event arrives; the stream still
    ends with the execution."""
    checked = False
    with tails.subscribe(execution_id, after) as subscription:
        while True:
            events = subscription.take()
            if not events and subscription.behind:
                subscription.behind = False
                events = page = await store.read(execution_id, subscription.seen, PAGE)
                subscription.behind = subscription.behind or page.more
                subscription.known = events[-1].seq if events else subscription.known
            if not events and not checked:
                checked = True
                start = await _start(store, execution_id, after)
                if start is None:
                    return
                if start < after:
                    subscription.rewind(start)
                    continue
            checked = True
            for recorded in events:
                if recorded.seq > after:
                    yield recorded
                subscription.seen = recorded.seq
                if isinstance(recorded.body, PlaybookProcessed):
                    return
            if not events and not subscription.behind:
                await subscription.wait()


async def _start(store: EventStore, execution_id: str, after: int) -> int | None:
    """The seq to follow from, if no event follows `after`; None if the execution has finished there."""
    summary = await store.summary(execution_id)
    if summary is None:
        raise NotFound(f"there is no execution {execution_id}")
    last = min(after, summary.seq)
    if last and any(isinstance(each.body, PlaybookProcessed) for each in await store.read(execution_id, last - 1, 1)):
        return None
    return last


class Subscription:
    """One tail of one log: its position, and the events that were delivered to it."""

    def __init__(self, seen: int) -> None:
        self.seen = seen
        self._changed = asyncio.Event()
        self.behind = True  # the log may have events that were not delivered
        self.known = seen  # the last event that was read or delivered
        self._delivered: list[Recorded] = []

    def deliver(self, events: Sequence[Recorded]) -> None:
        """Take committed events, which need no read if they follow the known ones."""
        if events and events[0].seq == self.known + 1 and len(self._delivered) < PAGE:
            self._delivered += events
            self.known = events[-1].seq
        else:
            self.behind = True
        self._changed.set()

    def begin_with(self, events: Sequence[Recorded]) -> None:
        """Take the first events of the log."""
        self.behind = False
        self.deliver(events[self.seen :])

    def notify(self) -> None:
        """Another process may have appended events."""
        self.behind = True
        self._changed.set()

    def take(self) -> list[Recorded]:
        """The delivered events, if they follow the seen ones."""
        delivered, self._delivered = self._delivered, []
        if delivered and delivered[0].seq != self.seen + 1:
            self.behind, self.known = True, self.seen
            return []
        return delivered

    def rewind(self, seen: int) -> None:
        """Set the position back to an existing event."""
        self.seen = self.known = seen
        self.behind = True
        self._delivered.clear()

    async def wait(self) -> None:
        """Wait until there may be more events."""
        await self._changed.wait()
        self._changed.clear()


class _RecentLog(Struct):
    events: list[Recorded]
    size: int


class RecentLogs:
    """Whole logs of executions that this process has begun, until another process appends to them."""

    def __init__(self) -> None:
        self._logs: dict[str, _RecentLog] = {}  # the oldest first
        self._size = 0

    def get(self, execution_id: str) -> Sequence[Recorded]:
        """The events of a log; empty if it is not kept."""
        log = self._logs.get(execution_id)
        return () if log is None else log.events

    def add(self, append: Append, size: int) -> None:
        """Keep a committed append of this process; `size` is its encoded size."""
        if append.expected_seq == 0:
            self._logs[append.execution_id] = _RecentLog(list(append.events), size)
        else:
            log = self._logs.get(append.execution_id)
            if log is None:
                return
            if len(log.events) != append.expected_seq:
                self.forget(append.execution_id)
                return
            log.events += append.events
            log.size += size
        self._size += size
        while self._size > RECENT_BYTES or len(self._logs) > RECENT_LOGS:
            self.forget(next(iter(self._logs)))

    def forget(self, execution_id: str) -> None:
        """Keep a log no longer."""
        log = self._logs.pop(execution_id, None)
        if log is not None:
            self._size -= log.size


class LogTails:
    """All tails of a store: appends of this process are delivered at once, those of others after the next poll."""

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        self._subscriptions: dict[str, set[Subscription]] = {}
        self.recent = RecentLogs()
        self._followed = False  # no log is kept before the first tail: most embedded engines have none
        self._poller: asyncio.Task[None] | None = None

    @contextmanager
    def subscribe(self, execution_id: str, after: int) -> Iterator[Subscription]:
        """A subscription for the duration of the block."""
        self._followed = True
        subscription = Subscription(after)
        known = self.recent.get(execution_id)
        if len(known) > after:
            subscription.begin_with(known)
        others = self._subscriptions.setdefault(execution_id, set())
        others.add(subscription)
        if self._poller is None:
            self._poller = asyncio.get_running_loop().create_task(self._poll())
        try:
            yield subscription
        finally:
            others.discard(subscription)
            if not others:
                del self._subscriptions[execution_id]

    def deliver(self, append: Append, size: int) -> None:
        """Deliver a committed append of this process; `size` is its encoded size."""
        if self._followed:
            self.recent.add(append, size)
        for subscription in self._subscriptions.get(append.execution_id, ()):
            subscription.deliver(append.events)

    def notify(self, execution_id: str, seq: int) -> None:
        """Notify the tails of a log of its length."""
        if seq > len(self.recent.get(execution_id)):
            self.recent.forget(execution_id)
        for subscription in self._subscriptions.get(execution_id, ()):
            if seq > subscription.known:
                subscription.notify()

    def forget(self, executions: Sequence[str]) -> None:
        """Forget logs that were deleted."""
        for execution_id in executions:
            self.recent.forget(execution_id)

    def close(self) -> None:
        """Wake all tails; their next read raises the error of a closed store."""
        self._stop()
        self._notify_all()

    def _stop(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
            self._poller = None

    def _notify_all(self) -> None:
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                subscription.notify()

    async def _poll(self) -> None:
        """Poll until no tail is left; clients that follow one execution after the other share one task."""
        await asyncio.sleep(POLL_SECONDS)
        while self._subscriptions:
            try:
                grown = await self._lengths(list(self._subscriptions))
            except NoetlError:
                self._notify_all()  # each tail reads, and raises the error
                grown = []
            for name, seq in grown:
                self.notify(name, seq)
            await asyncio.sleep(POLL_SECONDS)
        self._poller = None
