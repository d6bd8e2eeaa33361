"""`Idempotency-Key` on requests that change the installation: limits, schedules, triggers, playbooks, credentials.

The response to the first request with a key is stored and sent again for a repetition with the same content, for a day;
another content under a known key is rejected. A repetition waits while the first request is processed. Commands to
executions have their key in the log instead, in the append that has the effect, so they are not handled here. Neither
are requests of callers that change nothing (viewers), for which nothing is stored, nor deliveries of webhooks, which
have no token: their keys are read after their signature is verified.

A request that failed with an error of the server, or whose server was killed some minutes ago, has no response, and it
is not known whether it had its effect. A repetition of it is processed only if that has the same effect as processing
it once; another one is refused.

A response is stored before it is sent, and encrypted with the master key: it may have the text of a token, and the
checksum of a request is that of a secret that it stores.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Callable

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from noetl.errors import Conflict, NoetlError
from noetl.server.http import problems
from noetl.server.http.dependencies import AppState
from noetl.server.http.middleware.security import route_path
from noetl.storage.ports.triggers import StoredTrigger

KIND = "idempotency-key"
KEPT_SECONDS = 86_400.0
PROCESSING_SECONDS = 120.0  # after which the server of an unanswered request is taken for dead
WAIT_SECONDS = 10.0  # for which a repetition waits for the response to the first request
POLL_SECONDS = 0.05
UNKNOWN = (
    "the server failed while it processed the request with this Idempotency-Key, and it is not known whether the "
    "request had its effect: look at what it changes, and use a new key to send it again"
)
MAX_KEY = 200
MAX_BODY = 16 << 20
MAX_RESPONSE = 1 << 20
_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# `POST` requests that can be processed twice, like PUT and DELETE: the second one finds what the first one has done.
_SAME_TWICE = re.compile(
    r"/api/(catalog/register|bundles|inbox/links|schedules/[^/]+/run)|/api/(schedules|triggers|backfills)/.*/(pause|resume|cancel)"
)
# Paths that keep their keys themselves, or change nothing.
_OTHERS = re.compile(r"/api/(execute|work/|executions/|session|validate|editor|complete)|/(?!api/)")


class StoredResponse(Struct, frozen=True, omit_defaults=True):
    """The response to a request; `status` 0: the request is being processed, or there is no response."""

    digest: str
    status: int = 0
    headers: list[tuple[str, str]] = []
    body: str = ""  # base64
    begun: float = 0.0  # when its processing began; 0: it has failed


class IdempotencyMiddleware:
    """Answers a repeated request with the response to the first one."""

    def __init__(self, app: ASGIApp, state: Callable[[], AppState]) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        key = _key_of(scope)
        if key is None:
            await self._app(scope, receive, send)
            return
        if not 1 <= len(key) <= MAX_KEY:
            await problems.problem(422, f"Idempotency-Key must have 1 to {MAX_KEY} characters")(scope, receive, send)
            return
        try:
            body = await _read(receive)
        except ClientDisconnect:
            return  # a part of a body is not a request
        if body is None:
            await problems.problem(413, "the body of a request with an Idempotency-Key is too large")(
                scope, receive, send
            )
            return
        try:
            await self._handle(scope, body, send, key)
        except NoetlError as problem:  # such as an unreachable store; the framework handles only errors of routes
            response = await problems.response_to(Request(scope), problem)
            await response(scope, receive, send)

    async def _seal(self, name: str, response: StoredResponse) -> bytes:
        """The document of a row."""
        ring = await self._state().run_in_thread(self._state().key_ring)
        return msgspec.json.encode(ring.seal(msgspec.json.encode(response), name.encode()))

    async def _unseal(self, name: str, data: bytes) -> StoredResponse | None:
        """A stored response; None if it cannot be read, because the master key was replaced."""
        ring = await self._state().run_in_thread(self._state().key_ring)
        try:
            sealed = msgspec.json.decode(data, type=bytes)
            return msgspec.json.decode(ring.unseal(sealed, name.encode()), type=StoredResponse)
        except ValueError:
            return None

    async def _handle(self, scope: Scope, body: bytes, send: Send, key: str) -> None:
        caller = scope.get("state", {}).get("caller")
        name = hashlib.sha256(f"{getattr(caller, 'name', '')}\0{key}".encode()).hexdigest()
        target = f"{scope['method']} {scope['path']}?{scope.get('query_string', b'').decode('latin-1')}\0".encode()
        digest = hashlib.sha256(target + body).hexdigest()
        state = self._state()
        store = state.triggers.store
        for old in await store.due(KIND, state.now()):
            await store.remove(KIND, old.name)
        row = await self._begin(scope, name, digest, send)
        if row is None:
            return
        recorder = _Recorder(send)
        try:
            await self._app(scope, _replayed(body), recorder)
        except BaseException:
            await self._save(row, StoredResponse(digest))
            raise
        if row.revision > 1 and scope["method"] == "DELETE":
            recorder.accept_absence()
        if recorder.is_refused:
            await self._forget(row)  # it had no effect: the client may try again
        else:
            await self._save(row, recorder.response(digest))
        await recorder.send_rest()

    async def _save(self, row: StoredTrigger, response: StoredResponse) -> None:
        data = await self._seal(row.name, response)
        await self._state().triggers.store.save(msgspec.structs.replace(row, data=data, revision=row.revision + 1))

    async def _begin(self, scope: Scope, name: str, digest: str, send: Send) -> StoredTrigger | None:
        """Record that a request is processed and return its row; None if it has been answered here."""
        state = self._state()
        store = state.triggers.store
        for _ in range(int(WAIT_SECONDS / POLL_SECONDS)):
            now = state.now()
            begun = await self._seal(name, StoredResponse(digest, begun=now))
            row = StoredTrigger(KIND, name, begun, 1, now + KEPT_SECONDS)
            try:
                await store.add(row)
                return row
            except Conflict:
                known = await store.get(KIND, name)
            if known is not None:
                stored = await self._unseal(name, known.data)
                if stored is None or stored.digest != digest or stored.status:
                    await _answer(scope, send, digest, stored)
                    return None
                if stored.begun + PROCESSING_SECONDS < now:  # it failed, or its server was killed or does not respond
                    if scope["method"] in ("POST", "PATCH") and not _SAME_TWICE.fullmatch(route_path(scope)):
                        await problems.problem(409, UNKNOWN)(scope, _replayed(b""), send)
                        return None
                    row = msgspec.structs.replace(row, revision=known.revision + 1)
                    if await store.save(row):
                        return row
            await asyncio.sleep(POLL_SECONDS)
        message = "a request with this Idempotency-Key is being processed; try again"
        await problems.problem(409, message)(scope, _replayed(b""), send)
        return None

    async def _forget(self, row: StoredTrigger) -> None:
        """Delete the row of a refused request, unless another server processes a repetition of it."""
        store = self._state().triggers.store
        known = await store.get(KIND, row.name)
        if known is not None and known.revision == row.revision:
            await store.remove(KIND, row.name)


async def _answer(scope: Scope, send: Send, digest: str, stored: StoredResponse | None) -> None:
    """Send a stored response, or why there is none for this request."""
    if stored is None:
        message = "the response to the request with this Idempotency-Key cannot be read"
        await problems.problem(409, message)(scope, _replayed(b""), send)
    elif stored.digest != digest:
        await problems.problem(422, "this Idempotency-Key was used for another request")(scope, _replayed(b""), send)
    else:
        headers = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in stored.headers]
        headers.append((b"idempotency-replayed", b"true"))
        await send({"type": "http.response.start", "status": stored.status, "headers": headers})
        await send({"type": "http.response.body", "body": base64.b64decode(stored.body)})


class _Recorder:
    """Keeps a response until it is stored; one that is too large to be stored is passed on."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._status = 0
        self._headers: list[tuple[str, str]] = []
        self._body = bytearray()
        self._messages: list[Message] = []

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = [
                (key.decode("latin-1"), value.decode("latin-1")) for key, value in message.get("headers", ())
            ]
        elif message["type"] == "http.response.body" and len(self._body) <= MAX_RESPONSE:
            self._body += message.get("body", b"")
        self._messages.append(message)
        if len(self._body) > MAX_RESPONSE:
            await self.send_rest()

    async def send_rest(self) -> None:
        """Send what was kept."""
        messages, self._messages = self._messages, []
        for each in messages:
            await self._send(each)

    def accept_absence(self) -> None:
        """A deletion that is processed again has succeeded if there is nothing to delete."""
        if self._status == 404:
            self._status, self._headers, self._body = 204, [], bytearray()
            start: Message = {"type": "http.response.start", "status": 204, "headers": []}
            self._messages = [start, {"type": "http.response.body", "body": b""}]

    @property
    def is_refused(self) -> bool:
        """Whether the request had no effect; after an error of the server this is not known."""
        return 300 <= self._status < 500

    def response(self, digest: str) -> StoredResponse:
        """The copy of a success; without a status if there is none, or it is too large."""
        if not 200 <= self._status < 300 or len(self._body) > MAX_RESPONSE:
            return StoredResponse(digest)
        headers = [
            (key, value)
            for key, value in self._headers
            if key.lower() in ("content-type", "content-length", "location")
        ]
        return StoredResponse(digest, self._status, headers, base64.b64encode(self._body).decode())


def _key_of(scope: Scope) -> str | None:
    if scope["type"] != "http" or scope["method"] not in _METHODS or _OTHERS.match(route_path(scope)):
        return None
    found = next((value for name, value in scope["headers"] if name == b"idempotency-key"), None)
    caller = scope.get("state", {}).get("caller")
    return None if found is None or caller is None or not caller.may("operator") else found.decode("latin-1")


async def _read(receive: Receive) -> bytes | None:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            return None
        if not message.get("more_body"):
            return bytes(body)


def _replayed(body: bytes) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive
