"""The asynchronous connection to a server's HTTP API, over aiohttp; the rules are those of `ServerAddress`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, BinaryIO

import aiohttp
from yarl import URL

from noetl.errors import StoreUnavailable
from noetl.transport.api_connection import (
    COPY_BYTES,
    IDLE_SECONDS,
    INTERRUPTED,
    RECONNECT_DELAY,
    EventParser,
    Request,
    Response,
    ServerAddress,
    stream_request,
)
from noetl.transport.server_policy import GATEWAY_ERRORS

UNREACHABLE = (OSError, aiohttp.ClientError)


class AsyncApiConnection(ServerAddress):
    """A connection to one server at a time, for the event loop in which it is first used."""

    def __init__(self, url: str, token: str | None = None, *, timeout: float = 30.0) -> None:
        super().__init__(url, token)
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._streaming = aiohttp.ClientTimeout(total=None, sock_connect=timeout, sock_read=IDLE_SECONDS)
        self._session: aiohttp.ClientSession | None = None

    async def request(self, request: Request) -> Any:
        """Send a request and return the document of the response (None where it is empty)."""
        problem: BaseException | None = None
        for _ in self.urls:
            try:
                response = await self._send(request)
                if response.status not in GATEWAY_ERRORS:
                    return self.decode(request, response)
                problem = self.error(response)
            except UNREACHABLE as broken:
                problem = broken
            self.use_next()
        raise self.failure(problem) from None

    async def stream(self, path: str, after: int, *, until: float | None = None) -> AsyncIterator[bytes]:
        """Yield the data of server-sent events after an id, over broken connections, until the server sends `end`.

        `until` is an instant of time.monotonic() after which TimeoutError is raised."""
        broken_at: float | None = None
        while True:
            try:
                async for number, data in self._stream_once(path, after, until):
                    broken_at = None
                    if number is None:
                        return
                    after = number
                    yield data
                raise aiohttp.ClientPayloadError("the connection was closed")
            except (*UNREACHABLE, StoreUnavailable) as problem:
                broken_at = self.reconnect(problem, broken_at, until)
            await asyncio.sleep(RECONNECT_DELAY)

    def unreachable(self, problem: BaseException) -> StoreUnavailable:
        """The exception for a server that none of the addresses reaches, with the error of the operating system."""
        cause = getattr(problem, "os_error", None) or getattr(problem, "certificate_error", None)
        return super().unreachable(cause if isinstance(cause, BaseException) else problem)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _send(self, request: Request) -> Response:
        try:
            return await self._exchange(request)
        except aiohttp.ServerDisconnectedError:
            return await self._exchange(request)  # the server has closed an idle connection

    async def _exchange(self, request: Request) -> Response:
        sending = self._open().request(
            request.method,
            URL(self.url + request.target, encoded=True),
            data=request.data,
            headers=self.headers(request),
            timeout=aiohttp.ClientTimeout(sock_read=request.seconds) if request.seconds else self._timeout,
            allow_redirects=False,
        )
        async with sending as reply:
            if request.into is not None and reply.status < 300:
                return await _copied(reply, request.into)
            return await _read(reply)

    async def _stream_once(self, path: str, after: int, until: float | None) -> AsyncIterator[tuple[int | None, bytes]]:
        request = stream_request(path, after)
        async with asyncio.timeout(_left(until)):
            reply = await self._open().get(
                URL(self.url + request.target, encoded=True), headers=self.headers(request), timeout=self._streaming
            )
        async with reply:
            if reply.status != 200:
                raise self.error(await _read(reply))
            parser = EventParser()
            async for line in _lines(reply.content, until):
                if (event := parser.feed(line)) is not None:
                    yield event

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self._session


async def _read(reply: aiohttp.ClientResponse) -> Response:
    return Response(reply.status, reply.headers.get("Content-Type", ""), await reply.read())


async def _copied(reply: aiohttp.ClientResponse, file: BinaryIO) -> Response:
    """Copy the body to a file; it cannot be requested again once something is written."""
    try:
        async for chunk in reply.content.iter_chunked(COPY_BYTES):
            await asyncio.to_thread(file.write, chunk)
    except aiohttp.ClientError as broken:
        raise StoreUnavailable(f"{INTERRUPTED}: {broken}") from None
    return Response(reply.status, reply.headers.get("Content-Type", ""), b"")


async def _lines(content: aiohttp.StreamReader, until: float | None) -> AsyncIterator[bytes]:
    """The lines of a stream, however long they are."""
    rest = b""
    while True:
        async with asyncio.timeout(_left(until)):
            chunk = await content.readany()
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


def _left(until: float | None) -> float | None:
    return None if until is None else until - time.monotonic()
