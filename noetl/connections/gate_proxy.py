"""A proxy on the loopback interface for drivers that open their own connections: it applies the network policy.

Object stores and DuckDB resolve names themselves and follow redirects. Through this proxy, every connection that they
open is made to an address that was checked, wherever its name comes from. TLS is between driver and server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Collection

from noetl.connections.address_gate import AddressDenied, Allows, allowed_addresses, host_of
from noetl.errors import StoreUnavailable
from noetl.runtime.resources import per_loop

MAX_HEAD = 64 * 1024
HEAD_SECONDS = 30.0
CONNECT_SECONDS = 10.0
DENIED = 421  # the status of a response to a request for an address that is not allowed
_BLOCK = 256 * 1024
_HOP = re.compile(rb"^(?:proxy-[\w-]+|connection|keep-alive)[ \t]*:.*\r\n", re.IGNORECASE | re.MULTILINE)


async def gate_proxy(allows: Allows) -> str | None:
    """The URL of this loop's proxy; None if the environment names a proxy, which then connects."""
    return await per_loop(GateProxy, lambda: GateProxy(allows)).url() if _is_direct() else None


@contextlib.asynccontextmanager
async def trusting_proxy(allows: Allows, endpoint: str) -> AsyncIterator[str | None]:
    """A proxy for one call, which does not check the address of an endpoint: an administrator has chosen it."""
    if not _is_direct():
        yield None
        return
    place = re.sub(r"^\w+://", "", endpoint).partition("/")[0]
    proxy = GateProxy(allows, {(host_of(endpoint), _port(place, default)) for default in (80, 443)})
    try:
        yield await proxy.url()
    finally:
        await proxy.close()


def _is_direct() -> bool:
    names = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY")
    return not any(os.environ.get(name) for name in names)


class GateProxy:
    """The proxy of one event loop (or of one call) and network policy."""

    def __init__(self, allows: Allows, trusted: Collection[tuple[str, int]] = ()) -> None:
        self._allows = allows
        self._trusted = trusted
        self._server: asyncio.Server | None = None
        self._starting = asyncio.Lock()
        self._open: set[asyncio.Task[None]] = set()

    async def url(self) -> str:
        """Start it if necessary."""
        async with self._starting:
            if self._server is None:
                self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=MAX_HEAD)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Close all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(HEAD_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                await self._forward(head, reader, writer)
        finally:
            writer.close()

    async def _forward(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            place, sent = _request(head)
            server_reader, server = await self._connected(*place)
        except (StoreUnavailable, OSError, ValueError) as problem:
            status = b"%d Refused" % DENIED if isinstance(problem, AddressDenied) else b"502 Bad Gateway"
            text = str(problem).encode()
            writer.write(
                b"HTTP/1.1 %s\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
                % (status, len(text), text)
            )
            await writer.drain()
            return
        try:
            if sent:
                server.write(sent)
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_copy(reader, server), _copy(server_reader, writer))
        finally:
            server.close()

    async def _connected(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        problem: OSError = ConnectionRefusedError(f"{host}:{port}: connection refused")
        allows = self._allows if (host, port) not in self._trusted else lambda _: True
        for address in await allowed_addresses(host, allows):
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await asyncio.open_connection(address, port)
            except OSError as failure:  # also a timeout
                problem = failure
        raise problem


def _request(head: bytes) -> tuple[tuple[str, int], bytes]:
    """Host and port of a request to a proxy, and the head for the server, which is empty for a tunnel."""
    line, _, fields = head.partition(b"\r\n")
    method, _, rest = line.partition(b" ")
    target, _, version = rest.rpartition(b" ")
    url = target.decode("ascii")
    if not url.isprintable() or not version.startswith(b"HTTP/1."):
        raise ValueError("not a request to a proxy")
    if method == b"CONNECT":
        return (host_of(url), _port(url, 443)), b""
    place, slash, path = url.removeprefix("http://").partition("/")
    if not url.startswith("http://") or not host_of(place):
        raise ValueError("the target of a request to a proxy must be a URL with a host")
    # One request per connection: the next one may be for another server.
    origin = b"%s %s %s\r\nconnection: close\r\n" % (method, (slash + path or "/").encode(), version)
    return (host_of(place), _port(place, 80)), origin + _HOP.sub(b"", fields)


def _port(place: str, default: int) -> int:
    found = re.search(r":(\d{1,5})$", place)
    return int(found[1]) if found else default


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction until its end."""
    while block := await reader.read(_BLOCK):
        writer.write(block)
        await writer.drain()
    with contextlib.suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()
