"""New and changed objects as deliveries.

A listing is compared with what has been seen: by name and version while the process runs, and after a restart by the
cursor, the time before which everything has been seen. Objects near the cursor are recorded again, and their deliveries
are known by key. A folder is listed in the same way; `watchfiles` only says when.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from noetl.connections.objects import parse_location, shared_store
from noetl.errors import TemplateError
from noetl.server.scheduling.deliveries import Deliveries
from noetl.server.scheduling.event_triggers import ObjectTrigger

LAG_SECONDS = 86_400.0  # an object may appear with a time that is older by this much (a long upload)
SKEW_SECONDS = 300.0  # between the clocks of the store and of the server
FULL_SECONDS = 1.0
PAGE = 1000  # objects per request


class Found(NamedTuple):
    """An object of a listing."""

    name: str  # below the address of the trigger
    url: str
    version: str
    size: int
    modified: float


class Listing:
    """What a trigger has seen, and the comparison with a new listing."""

    def __init__(self, trigger: ObjectTrigger) -> None:
        self._trigger = trigger
        self._seen: set[int] = set()
        self._oldest = max(trigger.cursor - LAG_SECONDS, 0.0 if trigger.existing else trigger.created_at - SKEW_SECONDS)
        self._first = True
        self.baseline = not trigger.cursor and not trigger.existing  # what is listed now is older than the trigger
        self.cursor = trigger.cursor

    def new(self, found: Found) -> bool:
        """Whether an object has to be delivered; the objects of the first listing are judged by their time."""
        mark = hash((found.name, found.version if self._trigger.changed else ""))
        if mark in self._seen:
            return False
        self._seen.add(mark)
        self.cursor = max(self.cursor, found.modified)
        return not self._first or found.modified >= self._oldest

    def forget(self, found: Found) -> None:
        """Judge an object again in the next listing."""
        self._seen.discard(hash((found.name, found.version if self._trigger.changed else "")))

    def complete(self, now: float) -> None:
        """A listing has been seen."""
        self._first = self.baseline = False
        self.cursor = self.cursor or now


async def listen(trigger: ObjectTrigger, deliveries: Deliveries, fields: Mapping[str, Any], connected: Any) -> None:
    """Record new objects until cancelled; an exception of the store ends it. `connected` is called after a listing."""
    listing = Listing(trigger)
    changes = _Changes(trigger) if trigger.is_folder else None
    try:
        while True:
            if not await deliveries.has_room(trigger):
                await asyncio.sleep(FULL_SECONDS)
                continue
            unsettled = await _scan(trigger, deliveries, fields, listing)
            await connected(cursor=listing.cursor)
            pause = max(trigger.settle, 0.05) if unsettled else trigger.poll
            if changes is None or unsettled:
                await asyncio.sleep(pause)
            else:
                await changes.wait(pause)
    finally:
        if changes is not None:
            await changes.close()


async def _scan(trigger: ObjectTrigger, deliveries: Deliveries, fields: Mapping[str, Any], listing: Listing) -> bool:
    """Record the new objects of one listing; True if some were not ready."""
    unsettled = False
    waiting: list[Found] = []
    async for found in _list(trigger, fields):
        if not trigger.wants(found.name) or not listing.new(found):
            continue
        if listing.baseline:
            await deliveries.skip(trigger, _key(trigger, found), "older than the trigger", event=found._asdict())
            continue
        if trigger.is_folder and _now() - found.modified < trigger.settle:
            listing.forget(found)
            unsettled = True
            continue
        waiting.append(found)
    listing.complete(_now())
    for found in sorted(waiting, key=lambda each: (each.modified, each.name)):
        await _record(trigger, deliveries, found)
    if waiting:
        deliveries.triggers.changed.set()
    return unsettled


async def _record(trigger: ObjectTrigger, deliveries: Deliveries, found: Found) -> None:
    event, key = found._asdict(), _key(trigger, found)
    try:
        payload = trigger.render({"event": event}, {"object": event})
    except TemplateError as problem:
        await deliveries.reject(trigger, key, str(problem), event=event)
        return
    await deliveries.receive(trigger, key, payload, event=event)


def _key(trigger: ObjectTrigger, found: Found) -> str:
    return f"{found.name}@{found.version}" if trigger.changed else found.name


async def _list(trigger: ObjectTrigger, fields: Mapping[str, Any]) -> AsyncIterator[Found]:
    if trigger.is_folder:
        folder = trigger.url.removeprefix("file://")
        for found in await asyncio.to_thread(lambda: list(_files(folder))):
            yield found
        return
    place = parse_location(trigger.url)
    store = shared_store(place, fields)
    prefix = place.key
    base = prefix if prefix.endswith("/") or not prefix else prefix.rpartition("/")[0]
    async for page in store.list(prefix=base.rstrip("/") or None, chunk_size=PAGE):
        for meta in page:
            path = meta["path"]
            if not path.startswith(prefix):
                continue
            modified = meta["last_modified"].timestamp()
            version = meta.get("e_tag") or meta.get("version") or f"{modified:.6f}-{meta['size']}"
            url = f"{place.scheme}://{place.bucket}/{path}"
            yield Found(path[len(prefix) :].lstrip("/"), url, version.strip('"'), meta["size"], modified)


def _files(folder: str) -> Iterator[Found]:
    """The files below a folder; FileNotFoundError when it does not exist."""
    for parent, _, names in os.walk(folder, onerror=_raise):
        for name in names:
            path = os.path.join(parent, name)
            try:
                known = os.stat(path)
            except FileNotFoundError:
                continue  # deleted since it was listed
            # A file that was moved here keeps its time of modification; the time of its inode changes.
            modified = max(known.st_mtime, known.st_ctime)
            version = f"{known.st_mtime_ns:x}-{known.st_size:x}"
            yield Found(os.path.relpath(path, folder), Path(path).as_uri(), version, known.st_size, modified)


def _raise(problem: OSError) -> None:
    raise problem


def _now() -> float:
    import time

    return time.time()  # the clock of the file system


class _Changes:
    """Wakes a listener when something in a folder changes."""

    def __init__(self, trigger: ObjectTrigger) -> None:
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._watch(trigger.url.removeprefix("file://")))

    async def wait(self, seconds: float) -> None:
        """Until something changes, at most some seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    async def close(self) -> None:
        """Stop watching."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self, folder: str) -> None:
        from watchfiles import awatch

        async for _ in awatch(folder, step=50, debounce=100):
            self._changed.set()
