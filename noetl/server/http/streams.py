"""What all streams of an execution share: where they go on, that they are counted, their form (server-sent events)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any

from fastapi import Header, Query, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from noetl.core.model.events import Recorded
from noetl.server.http.dependencies import app_state
from noetl.server.http.routes.operations import Operations, operations_of

STILL = b": still here\n\n"
END = b"event: end\ndata: {}\n\n"
KEEP_ALIVE = 15.0  # seconds between comments on a silent stream
FORM = "text/event-stream"
STREAM: dict[str, Any] = {
    "response_class": StreamingResponse,
    "responses": {200: {"content": {FORM: {}}}},
}  # of a route

After = Annotated[int, Query(ge=0, le=2**53)]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID")]
Told = Callable[[Sequence[Recorded]], bytes]


async def streamed(
    request: Request,
    execution_id: str,
    after: int,
    last: str | None,
    told: Told,
    *,
    most: int = 200,
    linger: float = 0.0,
) -> StreamingResponse:
    """The execution's events after `after`, or after the last one the reader had, as `told` tells them: at most so
    many at once, and what comes within `linger` seconds together."""
    parts = app_state(request)
    await parts.orchestrator.summary(execution_id, newest=False)
    if last is not None and last.isdecimal() and len(last) < 17:
        after = max(after, int(last))
    return EventStream(
        parts.orchestrator.subscribe(execution_id, after), parts.stopped(), operations_of(request), told, most, linger
    )


class EventStream(StreamingResponse):
    """All that there is of a log at a moment goes out in one piece, until its end, or until the reader hangs up."""

    def __init__(
        self,
        events: AsyncIterator[Recorded],
        stopping: asyncio.Future[Any],
        operations: Operations,
        told: Told,
        most: int,
        linger: float,
    ) -> None:
        super().__init__((), media_type=FORM, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._gathered = Gathered(events, stopping, most)
        self._operations = operations
        self._told = told
        self._linger = linger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell what comes."""
        gone = asyncio.ensure_future(_hung_up(receive))
        self._gathered.until(gone)
        self._operations.streams += 1
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            begin = b"retry: 1000\n\n"
            more = True
            while more:
                events, ended = await self._gathered.take(self._linger)
                block = begin + (self._told(events) if events else b"") + (END if ended else b"")
                more = not ended and not self._gathered.stopped
                await send({"type": "http.response.body", "body": block or (STILL if more else b""), "more_body": more})
                begin = b""
        finally:
            self._operations.streams -= 1
            gone.cancel()
            await self._gathered.close()


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Gathered:
    """Events of a log as they come, to be taken all at once; nobody waits any more when the server stops, or the reader
    has gone."""

    def __init__(self, events: AsyncIterator[Recorded], stopping: asyncio.Future[Any], most: int) -> None:
        self._events = events
        self._ends = [stopping]
        self._most = most
        self._come: list[Recorded] = []
        self._bell = asyncio.Event()
        self._room = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        stopping.add_done_callback(self._ring)

    @property
    def stopped(self) -> bool:
        """Nobody is told any more: the reader comes back, or has gone."""
        return any(end.done() for end in self._ends)

    def until(self, end: asyncio.Future[Any]) -> None:
        """This ends it, too."""
        self._ends.append(end)
        end.add_done_callback(self._ring)

    async def take(self, linger: float) -> tuple[list[Recorded], bool]:
        """What has come (nothing, when that takes too long), and whether that was the last of it."""
        if self._pump is None:
            self._pump = asyncio.ensure_future(self._follow())
            self._pump.add_done_callback(self._ring)
        if not self._come and not self._pump.done():
            try:
                async with asyncio.timeout(KEEP_ALIVE):
                    await self._bell.wait()
            except TimeoutError:
                return [], False
        if linger and not self._pump.done() and not self.stopped:
            await asyncio.sleep(linger)
        self._bell.clear()
        come, self._come = self._come, []
        self._room.set()
        ended = self._pump.done()
        if ended and not come:
            self._pump.result()  # its problem is ours
        return come, ended and self._pump.exception() is None

    async def close(self) -> None:
        """Nobody reads on."""
        for end in self._ends:
            end.remove_done_callback(self._ring)
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        await self._events.aclose()  # type: ignore[attr-defined]

    async def _follow(self) -> None:
        async for recorded in self._events:
            self._come.append(recorded)
            self._bell.set()
            if len(self._come) >= self._most:
                self._room.clear()
                await self._room.wait()

    def _ring(self, _: asyncio.Future[Any]) -> None:
        self._bell.set()
