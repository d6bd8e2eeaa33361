"""The NATS connection of servers and workers: published messages, and requests with replies.

Invariant: nothing here is authoritative. The client reconnects by itself; without a connection a message is not
published, and a request fails at once. A request that waits for its reply fails as soon as the connection or the
server it was sent to is known to be lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from noetl.errors import StoreUnavailable
from noetl.runtime.tasks import cancel

log = logging.getLogger("noetl.nats")

OnMessage = Callable[[str, bytes], None]  # takes the last part of the subject, and the payload
Handler = Callable[[str, bytes], Awaitable[bytes]]  # takes the verb and the payload of a request, returns the reply
Receive = Callable[[Any], Awaitable[None]]

REVOKED = "revoked"  # kind of the messages that revoke a lease: to the worker, with the id of the run
WITHDRAWN = "withdrawn"  # kind of the messages that withdraw the open claims of a worker
PING_SECONDS = 5
RECONNECT_SECONDS = 0.5
AFFINITY_SECONDS = 60.0  # how long requests prefer one server; then a new server gets its share
DISCOVERY_SECONDS = 1.0


class NatsBus:
    """One connection; all subjects begin with `prefix`, which separates installations on one NATS server."""

    def __init__(self, url: str, *, prefix: str = "noetl", name: str = "noetl") -> None:
        self._url = url
        self._prefix = encode_part(prefix)
        self._name = name
        self._client: Any = None
        self._connecting: asyncio.Task[None] | None = None
        self._subscriptions: dict[str, tuple[str, Receive]] = {}  # subject -> queue group and callback
        self._subscribed: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending: dict[asyncio.Timeout, str] = {}  # deadlines of requests without a reply -> id of the server
        self._first_connection = asyncio.Event()
        self._closed = False
        self._id = secrets.token_hex(8)
        self._preferred: tuple[str, float] | None = None  # id of the preferred server ("": any), and until when

    # ── connection ────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Connect in the background, and reconnect after every failure."""
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    @property
    def up(self) -> bool:
        """Whether the connection is up."""
        return self._client is not None and bool(self._client.is_connected)

    async def connected(self, seconds: float) -> bool:
        """Wait up to `seconds` for the first connection; return whether the connection is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # not wait_for, which may swallow a cancellation before Python 3.12
                await self._first_connection.wait()
        return self.up

    async def stop_replying(self) -> None:
        """Accept no new requests, and finish the pending ones."""
        for subject in [subject for subject, (group, _) in self._subscriptions.items() if group]:
            del self._subscriptions[subject]
            subscribed = self._subscribed.pop(subject, None)
            if subscribed is not None and self.up:
                with contextlib.suppress(*_errors()):
                    await subscribed.drain()  # received requests still get a reply
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
        if self.up:
            with contextlib.suppress(*_errors()):
                await self._client.flush(2)

    async def close(self) -> None:
        """Close the connection."""
        self._closed = True
        await cancel(self._connecting, *self._tasks)
        if self._client is not None:
            with contextlib.suppress(*_errors()):
                await self._client.close()

    # ── messages ───────────────────────────────────────────────────────────────────────────

    def publish(self, kind: str, to: str, payload: bytes = b"") -> bool:
        """Publish a message to the subscribers of `kind`; False without a connection."""
        return self._send(f"{self._prefix}.{kind}.{encode_part(to)}", payload)

    def subscribe(self, kind: str, on_message: OnMessage, *, to: str = "*") -> None:
        """Call `on_message` for every message of `kind`, also after a reconnect."""

        async def receive(message: Any) -> None:
            on_message(decode_part(message.subject.rpartition(".")[2]), message.data)

        self._subscribe(f"{self._prefix}.{kind}.{to if to == '*' else encode_part(to)}", "", receive)

    # ── requests ───────────────────────────────────────────────────────────────────────

    async def request(self, verb: str, payload: bytes, *, seconds: float) -> bytes:
        """The reply of one server; StoreUnavailable if there is none in time."""
        client = self._client
        if not self.up:
            raise StoreUnavailable("NATS is not connected")
        if len(payload) > client.max_payload:
            raise StoreUnavailable(f"the message is larger than NATS allows ({len(payload)} bytes)")
        server = await self._find_server()
        try:
            if server is not None:
                try:
                    return await self._request(f"at.{server}.{encode_part(verb)}", payload, seconds, server)
                except _no_responders():
                    self._forget(server)  # that server has stopped
            return await self._request(f"ask.{encode_part(verb)}", payload, seconds)
        except _errors() as problem:
            self._forget(server)
            raise StoreUnavailable(f"NATS: no reply to {verb}: {problem or type(problem).__name__}") from None

    def _forget(self, server: str | None) -> None:
        """Prefer a server that did not reply no longer, and fail the other requests to it: their replies are lost."""
        self._preferred = None
        self._fail_requests([each for each, to in self._pending.items() if to == server])

    async def _find_server(self) -> str | None:
        """The id of the preferred server (None: any): it has the executions of earlier requests in its cache."""
        now = asyncio.get_running_loop().time()
        if self._preferred is None or now > self._preferred[1]:
            self._preferred = ("", now + AFFINITY_SECONDS)  # concurrent requests meanwhile go to any server
            try:
                name = (await self._request("who", b"", DISCOVERY_SECONDS)).decode("ascii", "replace")
                self._preferred = (name, now + AFFINITY_SECONDS) if name.isalnum() else self._preferred
            except _errors() as problem:
                log.debug("NATS: no server replied with its id: %s", problem or type(problem).__name__)
                self._preferred = ("", asyncio.get_running_loop().time() + DISCOVERY_SECONDS)
        return self._preferred[0] or None

    async def _request(self, subject: str, payload: bytes, seconds: float, server: str = "") -> bytes:
        async with asyncio.timeout(seconds) as deadline:
            self._pending[deadline] = server
            try:
                reply = await self._client.request(f"{self._prefix}.{subject}", payload, timeout=seconds + 1)
            finally:
                del self._pending[deadline]
        data: bytes = reply.data
        return data

    def _fail_requests(self, pending: Iterable[asyncio.Timeout]) -> None:
        """Fail requests whose reply is lost."""
        now = asyncio.get_running_loop().time()
        for deadline in list(pending):
            if not deadline.expired():
                deadline.reschedule(now)

    def reply(self, handler: Handler) -> None:
        """Reply to requests with `handler`, as one server of a queue group; requests are handled concurrently.

        A client addresses the same server again by its id."""

        async def identify(message: Any) -> None:
            with contextlib.suppress(*_errors()):
                await message.respond(self._id.encode())

        async def handle(message: Any) -> None:
            self._start_task(self._handle(message, handler))

        for subject, receive in (("ask.*", handle), (f"at.{self._id}.*", handle), ("who", identify)):
            self._subscribe(f"{self._prefix}.{subject}", "servers", receive)

    @property
    def max_payload(self) -> int:
        """The maximum size of a message in bytes; 0 without a connection."""
        return int(self._client.max_payload) if self._client is not None else 0

    # ── internals ──────────────────────────────────────────────────────────────────────────

    async def _connect(self) -> None:
        from noetl.connections.nats_client import NatsClient

        client = NatsClient()

        async def on_error(problem: Exception) -> None:
            log.debug("NATS: %s", problem)

        async def on_disconnect() -> None:
            if not self._closed:
                log.warning("NATS is disconnected; continuing without it")
            self._fail_requests(self._pending)

        async def on_reconnect() -> None:
            log.warning("NATS is connected again")

        await client.connect(
            [each.strip() for each in self._url.split(",")],
            name=self._name,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_SECONDS,  # type: ignore[arg-type]  # fractions of a second are valid
            connect_timeout=2,
            ping_interval=PING_SECONDS,
            error_cb=on_error,
            disconnected_cb=on_disconnect,
            reconnected_cb=on_reconnect,
        )
        self._client = client
        for subject in list(self._subscriptions):
            await self._open(subject)
        with contextlib.suppress(*_errors()):
            await client.flush()  # from now on requests reach this subscriber
        self._first_connection.set()

    def _subscribe(self, subject: str, group: str, receive: Receive) -> None:
        self._subscriptions[subject] = (group, receive)
        if self._client is not None:
            self._spawn(self._open(subject))

    async def _open(self, subject: str) -> None:
        group, receive = self._subscriptions[subject]
        self._subscribed[subject] = await self._client.subscribe(subject, queue=group, cb=receive)

    def _send(self, subject: str, payload: bytes) -> bool:
        if not self.up or len(payload) > self._client.max_payload:
            return False
        self._spawn(self._client.publish(subject, payload))
        return True

    def _spawn(self, sending: Awaitable[Any]) -> None:
        async def send() -> None:
            with contextlib.suppress(*_errors()):  # a lost message costs one poll
                await sending

        self._start_task(send())

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, message: Any, handler: Handler) -> None:
        reply = await handler(decode_part(message.subject.rpartition(".")[2]), message.data)
        with contextlib.suppress(*_errors()):  # the client repeats a request without a reply
            await message.respond(reply)


def encode_part(text: str) -> str:
    """Encode a text as one part of a subject."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: f"={ord(found[0]):x}=", text) or "=="


def decode_part(part: str) -> str:
    """The text of a part that `encode_part` returned."""
    return "" if part == "==" else re.sub(r"=([0-9a-f]{1,6})=", _character, part)


def _character(found: re.Match[str]) -> str:
    code = int(found[1], 16)
    return found[0] if code > sys.maxunicode or 0xD800 <= code < 0xE000 else chr(code)  # UTF-8 has no surrogates


def _no_responders() -> type[BaseException]:
    from nats.errors import NoRespondersError

    return NoRespondersError


def _errors() -> tuple[type[BaseException], ...]:
    from nats import errors

    return (errors.Error, OSError, TimeoutError)


def open_bus(url: str, prefix: str, name: str) -> NatsBus:
    """Create the bus of an installation; `start` connects it."""
    return NatsBus(url, prefix=prefix, name=f"noetl-{name}")
