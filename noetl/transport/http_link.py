"""A worker's line to a server over HTTP (`ports.WorkLink`).

Everything here may be sent twice without harm: reports are recognised by their keys, and runs whose order
got lost are given back as soon as the worker says what it holds (`doubt`), so a connection that breaks is
simply used again.
A server that is away is waited for; a token that is not known is not.
"""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import aiohttp
import msgspec

from noetl.core.model.wire import (
    ClaimRequest,
    ExtendRequest,
    OrdersReply,
    ReportReply,
    ReportRequest,
    RevokedRequest,
    RunsReply,
    RunsRequest,
    SecretsRequest,
    encode_reports,
    unpack_orders,
)
from noetl.core.model.work import Claim, HeartbeatReply, Report, ReportAck, RunOrder
from noetl.errors import NotFound, RequestRefused, SecretUnavailable, StoreUnavailable

log = logging.getLogger("noetl.work")
T = TypeVar("T")

LARGE = 512 * 1024
LEASING = ("/api/work/claim", "/api/work/report")  # questions whose answers bring orders
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
_encode = msgspec.json.Encoder().encode


class HttpWorkLink:
    """Speaks to one server at a time; of several addresses (with commas) the next one when it is away."""

    def __init__(self, url: str, token: str, *, slots: int = 0, patience: float = 20.0) -> None:
        self._urls = [each.strip().rstrip("/") for each in url.split(",") if each.strip()]
        self._at = 0
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._slots = slots
        self._patience = patience  # seconds an answer may take beyond what was waited for
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._away = False
        self.doubt: Callable[[], None] = _nobody  # is told that an answer got lost which may have brought orders

    # ── ports.WorkLink ──────────────────────────────────────────────────────────────────

    async def claim(self, claim: Claim, *, wait: float) -> list[RunOrder]:
        """Runs this worker now holds the lease of."""
        request = ClaimRequest(claim, wait, self._slots)
        return unpack_orders(await self._ask("claim", request, OrdersReply, wait=wait))

    async def extend(self, worker: str, runs: Sequence[tuple[str, int]]) -> HeartbeatReply:
        """Say what this worker holds, which prolongs it."""
        return await self._ask("extend", ExtendRequest(worker, list(runs)), HeartbeatReply)

    async def revoked(self, worker: str, *, wait: float) -> list[str]:
        """Runs taken away from this worker."""
        return (await self._ask("revoked", RevokedRequest(worker, wait), RunsReply, wait=wait)).lost

    async def give_back(self, worker: str, runs: Sequence[tuple[str, int]]) -> None:
        """Let go of runs."""
        await self._ask("give-back", RunsRequest(worker, list(runs)), RunsReply)

    async def report(
        self, worker: str, reports: Sequence[Report], *, free: int = 0
    ) -> tuple[list[ReportAck], list[RunOrder]]:
        """Hand over events; answered after they are on disk."""
        reply = await self._ask("report", ReportRequest(worker, encode_reports(reports), free), ReportReply)
        return reply.acks, unpack_orders(reply.orders)

    async def playbook(self, digest: str) -> bytes:
        """The compiled playbook."""
        return await self._run_until_done("GET", f"/api/work/playbooks/{digest}", None, 0.0)

    async def secrets(self, execution_id: str, names: Sequence[str]) -> dict[str, Any]:
        """Resolved keychain values."""
        return await self._ask("secrets", SecretsRequest(execution_id, list(names)), dict[str, Any])

    async def close(self) -> None:
        """Let go."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    # ── inside ──────────────────────────────────────────────────────────────────────────

    async def _ask(self, name: str, request: msgspec.Struct, reply: type[T], *, wait: float = 0.0) -> T:
        data = await self._run_until_done("POST", f"/api/work/{name}", _encode(request), wait)
        return msgspec.json.decode(data, type=reply)

    async def _run_until_done(self, method: str, path: str, body: bytes | None, wait: float) -> bytes:
        """Send until it is answered; what the server refuses is raised."""
        pause = FIRST_PAUSE
        while True:
            asked = self._url
            try:
                data = await self._send(asked, method, path, body, wait)
            except (aiohttp.ClientError, TimeoutError, OSError, StoreUnavailable) as problem:
                if self._closed:
                    raise StoreUnavailable("the line to the server is closed") from None
                if not self._away:
                    self._away = True
                    log.warning("the server at %s does not answer (%s); trying again", self._url, problem or "timeout")
                if path in LEASING and not isinstance(problem, _Busy):
                    self.doubt()
                if self._urls[self._at % len(self._urls)] == asked:
                    self._at += 1  # whoever asked meanwhile may have moved on already
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            if self._away:
                self._away = False
                log.warning("the server at %s answers again", self._url)
            return data

    @property
    def _url(self) -> str:
        return self._urls[self._at % len(self._urls)]

    async def _send(self, url: str, method: str, path: str, body: bytes | None, wait: float) -> bytes:
        session = self._session
        if session is None:
            connector = aiohttp.TCPConnector(limit=64, keepalive_timeout=60)
            session = self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        timeout = aiohttp.ClientTimeout(total=wait + self._patience)
        # A large body is sent in pieces, so that others have the loop meanwhile.
        data = io.BytesIO(body) if body is not None and len(body) > LARGE else body
        async with session.request(method, url + path, data=data, timeout=timeout) as response:
            answer = await response.read()
            if response.status < 300:
                return answer
        detail = _detail(answer)
        if response.status in (429, 503):
            raise _Busy(f"the server answered {response.status}: {detail}")
        if response.status in (500, 502, 504):
            raise StoreUnavailable(f"the server answered {response.status}: {detail}")
        if response.status == 404:
            raise NotFound(detail)
        if response.status == 422 and path.endswith("/secrets"):
            raise SecretUnavailable({"": detail})
        raise RequestRefused(f"the server refused {path} ({response.status}): {detail}")


class _Busy(StoreUnavailable):
    """The server said that it cannot now: nothing was leased."""


def _nobody() -> None:
    """Nobody wants to know."""


def _detail(data: bytes) -> str:
    try:
        document = msgspec.json.decode(data)
        return str(document.get("detail", document))
    except (msgspec.DecodeError, AttributeError):
        return data[:200].decode(errors="replace")
