"""Connections with deadlines and limits that apply before a request is authenticated.

A connection is closed if the head of a request is not complete after `HEAD_SECONDS`, or if its body arrives too slowly.
A head is limited in bytes and in fields, and so is what a chunked body has besides its content (extensions, trailers;
trailers are not read). The target of a request and its Host must agree. The number of connections is limited: those
that have waited longest without a request are closed for new ones. One task per server checks all connections every few
seconds: requests have no timers.
"""

from __future__ import annotations

import asyncio
import heapq
import re
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from noetl.server.http.problems import encoded_problem

HEAD_SECONDS = 20.0
BODY_SECONDS = 30.0
BODY_BYTES_PER_SECOND = 4096  # after BODY_SECONDS, on average
DRAIN_SECONDS = 5.0  # for the rest of a body after its response
MAX_HEAD = 64 * 1024
MAX_FIELDS = 200
MAX_CHUNK_OVERHEAD = 256 * 1024  # bytes of a body that are not content, besides OVERHEAD_PER_BYTE of its content
OVERHEAD_PER_BYTE = 16
MAX_CONNECTIONS = 10_000
SWEEP_SECONDS = 2.0
RESERVED_FILES = 256  # descriptors for stores, logs and connections to other servers


def connection_limit(wanted: int = MAX_CONNECTIONS) -> int:
    """The number of connections that a process can serve, by its limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(64, min(wanted, soft - RESERVED_FILES))


_HEAD = (
    b"content-type: application/problem+json\r\nx-content-type-options: nosniff\r\ncache-control: no-store\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n"
)


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with the limits of this module."""

    limit = MAX_CONNECTIONS

    def connection_made(self, transport: Any) -> None:
        """Accept a connection; close an idle one for it, or refuse it, if there are too many."""
        self._since = self.loop.time()  # of the current wait of the client: for a head, or for a body
        self._waits = True
        self._in_head = True
        self._received = self._content = 0
        self._refused = False
        super().connection_made(transport)
        if len(self.connections) > self.limit and not self._close_idle():
            self._refuse(503, "too many connections")

    def on_message_begin(self) -> None:
        """A request begins."""
        self._waits = self._in_head = True
        self._since = self.loop.time()
        super().on_message_begin()

    def data_received(self, data: bytes) -> None:
        """Count the bytes of a request and limit its head."""
        self._received += len(data)
        super().data_received(data)
        if self._in_head and self._received > MAX_HEAD:
            self._refuse(431, "the head of the request is too large")
        elif self._waits and self._received > MAX_CHUNK_OVERHEAD + OVERHEAD_PER_BYTE * self._content:
            self._refuse(413, "the chunks of the body have too much besides their content")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head. Trailers are ignored: they would change headers that have been checked."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head of a request is complete."""
        self._in_head = False
        self._received = self._content = 0
        if len(self.headers) > MAX_FIELDS:
            self._refuse(431, "the request has too many header fields")
        elif self.parser.get_http_version() not in ("1.0", "1.1"):
            self._refuse(400, "only HTTP/1.0 and HTTP/1.1 are supported")
        elif not self.url.startswith(b"/") and not self._names_host():
            self._refuse(400, "the target of the request is not one of the host that the header Host names")
        else:
            super().on_headers_complete()

    def _names_host(self) -> bool:
        """Whether a target that is a URL has the host of the header; `*` has none."""
        _, found, rest = self.url.partition(b"://")
        if not found:
            return True
        hosts = [value.strip().lower() for name, value in self.headers if name == b"host"]
        return re.split(rb"[/?#]", rest, maxsplit=1)[0].lower() in hosts

    def on_body(self, body: bytes) -> None:
        """A part of the body of a request that was accepted."""
        self._content += len(body)
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._waits = False
        self._received = self._content = 0
        if not self._refused:
            super().on_message_complete()

    def is_late(self, now: float) -> bool:
        """Whether the client has not sent what the server waits for."""
        waited = now - self._since
        if not self._waits or self.transport is None or self.transport.is_closing():
            return False
        if self._in_head:
            is_idle = self.cycle is None or self.cycle.response_complete
            return is_idle and waited > HEAD_SECONDS
        if self.cycle is not None and self.cycle.response_complete:
            return waited > DRAIN_SECONDS
        if self.flow.read_paused:  # the server does not read
            return False
        return waited > BODY_SECONDS + self._received / BODY_BYTES_PER_SECOND

    def _close_idle(self) -> bool:
        """Close the connections that have waited longest without a complete request; False if there is none.

        It closes several at once, because it looks at all connections: for each new one that would take longer than
        to serve it."""
        idle = [
            each
            for each in self.connections
            if isinstance(each, GuardedProtocol)
            and each is not self
            and (each._in_head or (not each._waits and (each.cycle is None or each.cycle.response_complete)))
            and not each.transport.is_closing()
        ]
        if not idle:
            return False
        for oldest in heapq.nsmallest(max(1, len(idle) // 50), idle, key=lambda each: each._since):
            self.connections.discard(oldest)
            oldest.transport.abort()
        return True

    def _refuse(self, status: int, reason: str) -> None:
        self._in_head = self._waits = False
        self._refused = True
        if self.transport.is_closing():
            return
        document = encoded_problem(status, reason)
        self.transport.write(STATUS_LINE[status] + _HEAD % len(document) + document)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not HTTP."""
        self._refuse(400, msg)


async def close_late_connections(connections: set[Any]) -> None:
    """Close connections whose clients are late, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        now = loop.time()
        for each in list(connections):
            if isinstance(each, GuardedProtocol) and each.is_late(now):
                each.transport.abort()
