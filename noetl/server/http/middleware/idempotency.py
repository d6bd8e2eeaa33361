"""`Idempotency-Key` on requests that change the installation: limits, schedules, triggers, playbooks, credentials.

The response to the first request with a key is stored and sent again for a repetition with the same content, for a day;
another content under a known key is rejected. A repetition waits while the first request is processed. A request that a
server did not finish within minutes, because it was killed, may be repeated. Commands to executions have their key in
the log instead, in the append that has the effect, so they are not handled here. Neither are requests of callers that
change nothing (viewers), for which nothing is stored, nor deliveries of webhooks, which have no token: their keys are
read after their signature is verified.

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
MAX_KEY = 200
MAX_BODY = 16 << 20
MAX_RESPONSE = 1 << 20
_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# Paths that keep their keys themselves, or change nothing.
_OTHERS = re.compile(r"/api/(execute|work/|executions/|session|validate|editor|complete)|/(?!api/)")


class StoredResponse(Struct, frozen=True, omit_defaults=True):
    """The response to a request; `status` 0: the request is being processed."""

    digest: str
    status: int = 0
    headers: list[tuple[str, str]] = []
    body: str = ""  # base64


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
        ring = await self._state().run_in_thread(self._state().key_ring)
        return ring.seal(msgspec.json.encode(response), name.encode())

    async def _unseal(self, name: str, data: bytes) -> StoredResponse | None:
        """A stored response; None if it cannot be read, because the master key was replaced."""
        ring = await self._state().run_in_thread(self._state().key_ring)
        try:
            return msgspec.json.decode(ring.unseal(data, name.encode()), type=StoredResponse)
        except ValueError:
            return None

    async def _handle(self, scope: Scope, body: bytes, send: Send, key: str) -> None:
        caller = scope.get("state", {}).get("caller")
        name = hashlib.sha256(f"{getattr(caller, 'name', '')}\0{key}".encode()).hexdigest()
        target = f"{scope['method']} {scope['path']}?{scope.get('query_string', b'').decode('latin-1')}\0".encode()
        digest = hashlib.sha256(target + body).hexdigest()
        state = self._state()
        store = state.triggers.store
        for row in await store.due(KIND, state.now()):
            await store.remove(KIND, row.name)
        begun = await self._seal(name, StoredResponse(digest))
        row = StoredTrigger(KIND, name, begun, 1, state.now() + PROCESSING_SECONDS)
        waits = [POLL_SECONDS] * int(WAIT_SECONDS / POLL_SECONDS)
        while True:
            try:
                await store.add(row)
                break
            except Conflict:
                if await self._repeat(scope, send, row, digest, wait=bool(waits)):
                    return
            await asyncio.sleep(waits.pop())
        recorder = _Recorder(send)
        try:
            await self._app(scope, _replayed(body), recorder)
        except BaseException:
            await store.remove(KIND, name)
            raise
        stored = recorder.response(digest)
        if stored is None:
            await store.remove(KIND, name)  # it failed: the client may try again
        else:
            kept, data = state.now() + KEPT_SECONDS, await self._seal(name, stored)
            await store.save(msgspec.structs.replace(row, data=data, revision=2, wake=kept))
        await recorder.send_rest()

    async def _repeat(self, scope: Scope, send: Send, row: StoredTrigger, digest: str, *, wait: bool) -> bool:
        """Answer a request whose key is known; False: the first request is being processed, or it has just failed."""
        known = await self._state().triggers.store.get(KIND, row.name)
        stored = None if known is None else await self._unseal(row.name, known.data)
        if known is not None and stored is None:
            response = problems.problem(409, "the response to the request with this Idempotency-Key cannot be read")
        elif stored is not None and stored.digest != digest:
            response = problems.problem(422, "this Idempotency-Key was used for another request")
        elif stored is None or not stored.status:
            if wait:
                return False
            response = problems.problem(409, "a request with this Idempotency-Key is being processed; try again")
        else:
            headers = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in stored.headers]
            headers.append((b"idempotency-replayed", b"true"))
            await send({"type": "http.response.start", "status": stored.status, "headers": headers})
            await send({"type": "http.response.body", "body": base64.b64decode(stored.body)})
            return True
        await response(scope, _replayed(b""), send)
        return True


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

    def response(self, digest: str) -> StoredResponse | None:
        """The copy of a success; None if the request failed, so that it can be repeated."""
        if not 200 <= self._status < 300 or len(self._body) > MAX_RESPONSE:
            return None
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
