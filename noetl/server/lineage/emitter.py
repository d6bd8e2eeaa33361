"""Sends the OpenLineage events of ended executions to a file, an HTTP endpoint or NATS.

Events are sent after the execution has ended and never delay it. An endpoint that cannot be reached is tried again for
some time; then the events of the execution are dropped, with a message in the log. `GET /api/executions/{id}/lineage`
has them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from noetl.errors import RequestRefused
from noetl.observability import lineage, metrics
from noetl.server.lineage.open_lineage import ExecutionLineage, has_lineage
from noetl.server.read_models.log_pages import log_events
from noetl.settings import without_password
from noetl.storage.ports.events import EventStore

log = logging.getLogger("noetl.lineage")

MAX_WAITING = 10_000  # executions
PAUSES = (1.0, 5.0, 30.0)
HTTP_PATH = "/api/v1/lineage"  # of Marquez, if the address has no path
SUBJECT = "openlineage.events"
SEND_SECONDS = 30.0
BATCH = 200  # events that are made and sent together
_REFUSALS = (400, 405, 413, 415, 422)
END_SECONDS = 10.0  # for what waits when the server stops


class EventsRefused(Exception):
    """Events that an endpoint does not accept, also if they are sent again."""


class Sender(Protocol):
    """Sends events; an exception other than EventsRefused means that they have to be sent again."""

    async def send(self, events: list[dict[str, Any]]) -> None:
        """Send some of the events of one execution, in order."""

    async def close(self) -> None:
        """Release the connection."""


def open_sender(address: str) -> Sender:
    """The sender of an address; RequestRefused if it is none."""
    scheme, _, rest = address.partition("://")
    if scheme in ("http", "https", "nats"):
        if not _has_host(address):
            raise RequestRefused(f"lineage: {without_password(address)!r} has no valid host and port")
        return NatsSender(address) if scheme == "nats" else HttpSender(address)
    if scheme == "file" or (not rest and address.startswith("/")):
        return FileSender(unquote(rest) if rest else address)
    raise RequestRefused(
        f"lineage: {without_password(address)!r} is not off, a file:// path, an http(s):// or a nats:// address"
    )


def _has_host(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return bool(parts.hostname) and parts.port != 0  # reading the port checks it
    except ValueError:
        return False


class FileSender:
    """Appends one JSON document per line."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def send(self, events: list[dict[str, Any]]) -> None:
        """Append the events in one write."""
        text = b"".join(msgspec.json.encode(event) + b"\n" for event in events)

        def append() -> None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(text)

        await asyncio.to_thread(append)

    async def close(self) -> None:
        """Nothing is open."""


class HttpSender:
    """Posts each event."""

    def __init__(self, address: str) -> None:
        self._url = address if urlsplit(address).path.strip("/") else address.rstrip("/") + HTTP_PATH
        parts = urlsplit(self._url)
        self._shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # for messages
        self._session: Any = None

    async def send(self, events: list[dict[str, Any]]) -> None:
        """Post the events; a status other than 2xx is an exception, EventsRefused if it is about the event."""
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SEND_SECONDS))
        headers = {"Content-Type": "application/json"}
        for event in events:
            async with self._session.post(self._url, data=msgspec.json.encode(event), headers=headers) as response:
                if response.status >= 300:
                    refused = response.status in _REFUSALS
                    problem = f"{self._shown} answered {response.status} {response.reason}"
                    raise EventsRefused(problem) if refused else OSError(problem)

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()


class NatsSender:
    """Publishes each event on a subject: the path of the address."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._subject = parts.path.strip("/").replace("/", ".") or SUBJECT
        self._url = f"nats://{parts.netloc}"
        self._client: Any = None

    async def send(self, events: list[dict[str, Any]]) -> None:
        """Publish the events and wait until the server has them."""
        from noetl.connections.nats import connect

        if self._client is None or self._client.is_closed:
            self._client = await connect({"url": self._url})
        for event in events:
            await self._client.publish(self._subject, msgspec.json.encode(event))
        await self._client.flush(timeout=int(SEND_SECONDS))

    async def close(self) -> None:
        """Close the connection."""
        if self._client is not None and not self._client.is_closed:
            await self._client.close()


class LineageEmitter:
    """Sends the events of executions that this server has ended."""

    def __init__(
        self,
        store: EventStore,
        sender: Sender,
        namespace: str,
        pauses: tuple[float, ...] = PAUSES,
        end_seconds: float = END_SECONDS,
    ) -> None:
        self._store = store
        self._sender = sender
        self._namespace = namespace
        self._pauses = pauses
        self._end_seconds = end_seconds
        self._waiting: asyncio.Queue[str] = asyncio.Queue(MAX_WAITING)
        self._current: str | None = None  # the execution whose events are being sent

    async def run(self) -> None:
        """Send until cancelled; what waits then is sent once more, for a bounded time."""
        lineage.ENDED = self.ended
        try:
            while True:
                self._current = await self._waiting.get()
                await self._emit(self._current, self._pauses)
        finally:
            lineage.ENDED = None
            try:
                async with asyncio.timeout(self._end_seconds):
                    await self._emit_rest()
            except TimeoutError:
                waiting = self._waiting.qsize() + 1
                metrics.LINEAGE.add(waiting, "dropped")
                log.warning("lineage of %d executions is not sent: the server stops", waiting)
            finally:
                await self._sender.close()

    def ended(self, execution_id: str) -> None:
        """Send the events of an execution later."""
        try:
            self._waiting.put_nowait(execution_id)
        except asyncio.QueueFull:
            metrics.LINEAGE.add(1, "dropped")
            log.warning("lineage of execution %s is not sent: %d executions wait", execution_id, MAX_WAITING)

    async def _emit_rest(self) -> None:
        if self._current is not None:
            await self._emit(self._current, ())
        while not self._waiting.empty():
            await self._emit(self._waiting.get_nowait(), ())

    async def _emit(self, execution_id: str, pauses: tuple[float, ...]) -> None:
        sent = 0  # events, which are not sent again
        for pause in (*pauses, None):
            try:
                async for batch in self._batches(execution_id, sent):
                    await self._sender.send(batch)
                    sent += len(batch)
                metrics.LINEAGE.add(1 if sent else 0, "sent")
                break
            except Exception as problem:  # noqa: BLE001 - whatever a client or store raises: the events are sent again
                if pause is None or isinstance(problem, EventsRefused):
                    reason = str(problem) or type(problem).__name__
                    metrics.LINEAGE.add(1, "dropped")
                    log.warning("lineage of execution %s is not sent: %s", execution_id, reason)
                    break
            await asyncio.sleep(pause)
        self._current = None

    async def _batches(self, execution_id: str, sent: int) -> AsyncIterator[list[dict[str, Any]]]:
        """The events after the first ones."""
        batch: list[dict[str, Any]] = []
        async for event in lineage_events(self._store, execution_id, self._namespace):
            if sent:
                sent -= 1
                continue
            batch.append(event)
            if len(batch) == BATCH:
                yield batch
                batch = []
        if batch:
            yield batch


async def lineage_events(store: EventStore, execution_id: str, namespace: str) -> AsyncGenerator[dict[str, Any], None]:
    """The events of an execution, from its log; none if it has no task with datasets."""
    summary = await store.summary(execution_id)
    if summary is None:
        return
    found: ExecutionLineage | None = None
    async for each in log_events(store, execution_id):
        if not has_lineage(each):
            continue
        if found is None:
            caller = await store.summary(summary.parent) if summary.parent else None
            found = ExecutionLineage(summary, namespace, caller)
            yield found.begin()
        for event in found.task(each):
            yield event
    for event in found.end() if found is not None else ():
        yield event
