"""Following logs that grow: appends of this process ring at once, those of others after one shared poll."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from noetl.errors import NoetlError, NotFound
from noetl.model.events import PlaybookProcessed, Recorded
from noetl.ports import EventStore

POLL_SECONDS = 0.2  # how soon a tail notices what another process wrote
PAGE = 2_000  # events a tail reads at once

Lengths = Callable[[list[str]], Awaitable[list[tuple[str, int]]]]  # followed ids -> those and their seq


async def follow(store: EventStore, tails: Tails, execution_id: str, after: int) -> AsyncIterator[Recorded]:
    """Events as they come, until the execution's last one; NotFound when there is no such execution."""
    if await store.summary(execution_id) is None:
        raise NotFound(f"there is no execution {execution_id}")
    with tails.watch(execution_id, after) as watch:
        while True:
            events = await store.read(execution_id, watch.seen, PAGE)
            for recorded in events:
                yield recorded
                watch.seen = recorded.seq
                if isinstance(recorded.body, PlaybookProcessed):
                    return
            if len(events) < PAGE:
                await watch.wait()


class Watch:
    """One follower of one log: what it has seen, and a bell."""

    def __init__(self, tails: Tails, execution_id: str, seen: int) -> None:
        self._tails = tails
        self.execution_id = execution_id
        self.seen = seen
        self.bell = asyncio.Event()

    def __enter__(self) -> Watch:
        self._tails.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._tails.remove(self)

    async def wait(self) -> None:
        """Until there may be more to read."""
        await self.bell.wait()
        self.bell.clear()


class Tails:
    """All followers: rung by appends of this process at once, by those of others after one shared poll."""

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        self._watches: dict[str, set[Watch]] = {}
        self._poller: asyncio.Task[None] | None = None

    def watch(self, execution_id: str, after: int) -> Watch:
        """A follower, to be entered."""
        return Watch(self, execution_id, after)

    def add(self, watch: Watch) -> None:
        """It wants to be rung."""
        self._watches.setdefault(watch.execution_id, set()).add(watch)
        if self._poller is None:
            self._poller = asyncio.get_running_loop().create_task(self._poll())

    def remove(self, watch: Watch) -> None:
        """It has seen enough."""
        others = self._watches[watch.execution_id]
        others.discard(watch)
        if not others:
            del self._watches[watch.execution_id]
        if not self._watches:
            self._stop()

    def written(self, execution_id: str, done: asyncio.Future[None]) -> None:
        """An append of this process has been answered."""
        if not done.cancelled() and done.exception() is None:
            self.ring(execution_id)

    def ring(self, execution_id: str) -> None:
        """There is more to read of this log."""
        for watch in self._watches.get(execution_id, ()):
            watch.bell.set()

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
                watch.bell.set()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                grown = await self._lengths(list(self._watches))
            except NoetlError:
                self._ring_all()  # each follower reads for itself, and meets the error there
                continue
            for name, seq in grown:
                for watch in self._watches.get(name, ()):
                    if seq > watch.seen:
                        watch.bell.set()
