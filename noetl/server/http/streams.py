"""Events and log lines of an execution as server-sent events: start position, batching, keep-alive and end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any

from fastapi import Header, Query, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from noetl.runtime.tasks import cancel
from noetl.server.http.dependencies import AppState, app_state
from noetl.server.http.routes.operations import Operations, operations_of

KEEP_ALIVE = b": keep-alive\n\n"
END = b"event: end\ndata: {}\n\n"
KEEP_ALIVE_SECONDS = 15.0  # between comments on an idle stream
MEDIA_TYPE = "text/event-stream"
STREAM_ROUTE: dict[str, Any] = {
    "response_class": StreamingResponse,
    "responses": {200: {"content": {MEDIA_TYPE: {}}}},
}  # keyword arguments of a stream route

After = Annotated[int, Query(ge=0, le=2**53)]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID")]
EncodeEvents = Callable[[Sequence[Any]], bytes]


def start_after(after: int, last: str | None) -> int:
    """The number after which a stream starts: that of the request, or `Last-Event-ID`."""
    return max(after, int(last)) if last is not None and last.isdecimal() and len(last) < 17 else after


async def stream_events(
    request: Request,
    execution_id: str,
    after: int,
    last: str | None,
    encode: EncodeEvents,
    *,
    max_batch: int = 200,
    linger: float = 0.0,
) -> StreamingResponse:
    """A stream of the execution's events after `after` or `Last-Event-ID`, encoded by `encode`.

    A message has at most `max_batch` events; events within `linger` seconds share one."""
    state = await app_state(request)
    await state.orchestrator.summary(execution_id, newest=False)
    events = state.orchestrator.subscribe(execution_id, start_after(after, last))
    return EventStream(events, state, operations_of(request), encode, max_batch, linger)


class EventStream(StreamingResponse):
    """Sends all available events in one message, until the log ends, the client disconnects or its token is revoked."""

    def __init__(
        self,
        events: AsyncIterator[Any],
        state: AppState,
        operations: Operations,
        encode: EncodeEvents,
        max_batch: int,
        linger: float,
    ) -> None:
        super().__init__((), media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._batcher = EventBatcher(events, state.stop_signal(), max_batch)
        self._tokens = state.tokens
        self._operations = operations
        self._encode = encode
        self._linger = linger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        disconnected = asyncio.ensure_future(_disconnected(receive))
        self._batcher.stop_on(disconnected)
        self._operations.streams += 1
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            prefix = b"retry: 1000\n\n"
            more = True
            while more:
                events, ended = await self._batcher.next_batch(self._linger)
                if not self._tokens.is_valid(scope["state"]["caller"]):
                    await send({"type": "http.response.body", "body": b""})
                    return
                block = prefix + (self._encode(events) if events else b"") + (END if ended else b"")
                more = not ended and not self._batcher.stopped
                await send(
                    {"type": "http.response.body", "body": block or (KEEP_ALIVE if more else b""), "more_body": more}
                )
                prefix = b""
        finally:
            self._operations.streams -= 1
            disconnected.cancel()
            await self._batcher.close()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventBatcher:
    """Collects the events of a log, to be taken all at once; stops with the server or the client."""

    def __init__(self, events: AsyncIterator[Any], stopping: asyncio.Future[Any], max_batch: int) -> None:
        self._events = events
        self._stop_futures = [stopping]
        self._max_batch = max_batch
        self._received: list[Any] = []
        self._wakeup = asyncio.Event()
        self._not_full = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()  # when events were last taken
        self._timer: asyncio.TimerHandle | None = None
        stopping.add_done_callback(self._wake)

    @property
    def stopped(self) -> bool:
        """Whether the server stops or the client disconnected."""
        return any(future.done() for future in self._stop_futures)

    def stop_on(self, future: asyncio.Future[Any]) -> None:
        """Stop when this future is done."""
        self._stop_futures.append(future)
        future.add_done_callback(self._wake)

    async def next_batch(self, linger: float) -> tuple[list[Any], bool]:
        """The events since the last call (none after `KEEP_ALIVE_SECONDS`), and whether the log has ended."""
        if self._reader is None:
            self._reader = asyncio.ensure_future(self._read())
            self._reader.add_done_callback(self._wake)
            self._timer = self._loop.call_later(KEEP_ALIVE_SECONDS, self._keep_alive)
        if not self._received and not self._reader.done():
            await self._wakeup.wait()
        if linger and not self._reader.done() and not self.stopped:
            await asyncio.sleep(linger)
        self._wakeup.clear()
        self._last = self._loop.time()
        received, self._received = self._received, []
        self._not_full.set()
        ended = self._reader.done()
        if ended and not received:
            self._reader.result()  # raises its exception
        return received, ended and self._reader.exception() is None

    async def close(self) -> None:
        """Stop reading the log."""
        if self._timer is not None:
            self._timer.cancel()
        for future in self._stop_futures:
            future.remove_done_callback(self._wake)
        await cancel(self._reader)
        await self._events.aclose()  # type: ignore[attr-defined]

    async def _read(self) -> None:
        async for recorded in self._events:
            self._received.append(recorded)
            self._wakeup.set()
            if len(self._received) >= self._max_batch:
                self._not_full.clear()
                await self._not_full.wait()

    def _keep_alive(self) -> None:
        """End the wait of an idle stream. One timer for all waits: a timer for each would cost as much as the wait."""
        left = self._last + KEEP_ALIVE_SECONDS - self._loop.time()
        if left <= 0:
            self._wakeup.set()
        self._timer = self._loop.call_later(left if left > 0 else KEEP_ALIVE_SECONDS, self._keep_alive)

    def _wake(self, _: asyncio.Future[Any]) -> None:
        self._wakeup.set()
