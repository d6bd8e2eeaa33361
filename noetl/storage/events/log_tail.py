"""Following logs that grow: what this process appends is handed on, what others append is found by one shared poll."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from noetl.core.model.events import PlaybookProcessed, Recorded
from noetl.errors import NoetlError, NotFound
from noetl.storage.ports.events import Append, EventStore

POLL_SECONDS = 0.2  # how soon a tail notices what another process wrote
PAGE = 2_000  # events a tail reads at once

Lengths = Callable[[list[str]], Awaitable[list[tuple[str, int]]]]  # followed ids -> those and their seq


async def follow(store: EventStore, tails: LogTails, execution_id: str, after: int) -> AsyncIterator[Recorded]:
    """Events as they come, until the execution's last one; NotFound when there is no such execution.

    Who asks for what comes after an event that is not there yet is told nothing before it, and the end all the same.
    """
    looked = False
    with tails.watch(execution_id, after) as watch:
        while True:
            events = watch.take()
            if not events and watch.behind:
                watch.behind = False
                events = await store.read(execution_id, watch.seen, PAGE)
                watch.behind = watch.behind or len(events) == PAGE
                watch.known = events[-1].seq if events else watch.known
            if not events and not looked:
                looked = True
                last = await _last(store, execution_id, after)
                if last is None:
                    return
                if last < after:
                    watch.go_back(last)
                    continue
            looked = True
            for recorded in events:
                if recorded.seq > after:
                    yield recorded
                watch.seen = recorded.seq
                if isinstance(recorded.body, PlaybookProcessed):
                    return
            if not events and not watch.behind:
                await watch.wait()


async def _last(store: EventStore, execution_id: str, after: int) -> int | None:
    """The event to go on after, where nothing follows on `after`; None when that was the last one of all."""
    summary = await store.summary(execution_id)
    if summary is None:
        raise NotFound(f"there is no execution {execution_id}")
    last = min(after, summary.seq)
    if last and any(isinstance(each.body, PlaybookProcessed) for each in await store.read(execution_id, last - 1, 1)):
        return None
    return last


class Subscription:
    """One follower of one log: what it has seen, and a bell."""

    def __init__(self, tails: LogTails, execution_id: str, seen: int) -> None:
        self._tails = tails
        self.execution_id = execution_id
        self.seen = seen
        self.bell = asyncio.Event()
        self.behind = True  # the log may have more than what was handed on
        self.known = seen  # the last event that was read or handed on
        self._handed: list[Recorded] = []

    def __enter__(self) -> Subscription:
        self._tails.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._tails.remove(self)

    def hand(self, events: Sequence[Recorded]) -> None:
        """Events that are on disk: they need not be read when they follow on what was seen or handed before."""
        if events and events[0].seq == self.known + 1 and len(self._handed) < PAGE:
            self._handed += events
            self.known = events[-1].seq
        else:
            self.behind = True
        self.bell.set()

    def ring(self) -> None:
        """Somebody else has written, or may have."""
        self.behind = True
        self.bell.set()

    def take(self) -> list[Recorded]:
        """What was handed on, if it follows on what was seen."""
        handed, self._handed = self._handed, []
        if handed and handed[0].seq != self.seen + 1:
            self.behind, self.known = True, self.seen
            return []
        return handed

    def go_back(self, seen: int) -> None:
        """It has seen less than it said."""
        self.seen = self.known = seen
        self.behind = True
        self._handed.clear()

    async def wait(self) -> None:
        """Until there may be more."""
        await self.bell.wait()
        self.bell.clear()


class LogTails:
    """All followers: rung by appends of this process at once, by those of others after one shared poll."""

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        self._watches: dict[str, set[Subscription]] = {}
        self._poller: asyncio.Task[None] | None = None

    def watch(self, execution_id: str, after: int) -> Subscription:
        """A follower, to be entered."""
        return Subscription(self, execution_id, after)

    def add(self, watch: Subscription) -> None:
        """It wants to be rung."""
        self._watches.setdefault(watch.execution_id, set()).add(watch)
        if self._poller is None:
            self._poller = asyncio.get_running_loop().create_task(self._poll())

    def remove(self, watch: Subscription) -> None:
        """It has seen enough."""
        others = self._watches[watch.execution_id]
        others.discard(watch)
        if not others:
            del self._watches[watch.execution_id]
        if not self._watches:
            self._stop()

    def written(self, append: Append) -> None:
        """An append of this process is on disk."""
        for watch in self._watches.get(append.execution_id, ()):
            watch.hand(append.events)

    def ring(self, execution_id: str, seq: int) -> None:
        """This log is so long now."""
        for watch in self._watches.get(execution_id, ()):
            if seq > watch.known:
                watch.ring()

    def close(self) -> None:
        """Ring everybody once more; they meet a closed store."""
        self._stop()
        self._ring_all()

    def _stop(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
            self._poller = None

    def _ring_all(self) -> None:
        for watches in self._watches.values():
            for watch in watches:
                watch.ring()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                grown = await self._lengths(list(self._watches))
            except NoetlError:
                self._ring_all()  # each follower reads for itself, and meets the error there
                continue
            for name, seq in grown:
                self.ring(name, seq)
