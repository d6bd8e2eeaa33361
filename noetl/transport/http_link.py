"""The link of a worker to a server over HTTP (`ports.WorkLink`).

Every request may be sent twice: the server recognizes reports by their keys, and runs whose order was
lost are found by the next heartbeat (`on_lost_reply` requests one at once). So a failed request is
repeated until a server responds. A rejected request (an unknown token, for example) is raised.
"""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import aiohttp
import msgspec

from noetl.core.model import wire
from noetl.core.model.task_log import LogChunk
from noetl.core.model.work import Claim, HeartbeatReply, Report, ReportAck, RunOrder
from noetl.errors import SecretUnavailable, StoreUnavailable
from noetl.transport.server_policy import ServerAddresses, ServerBusy, problem_detail, response_error

log = logging.getLogger("noetl.work")
T = TypeVar("T")

LARGE = 512 * 1024
LEASING = ("/api/work/claim", "/api/work/report")  # requests whose replies carry orders
FIRST_DELAY, MAX_DELAY = 0.05, 5.0  # seconds between attempts
_encode = msgspec.json.Encoder().encode


class HttpWorkLink:
    """A link to one server at a time; the next address is used when a server does not respond."""

    def __init__(self, url: str, token: str, *, slots: int = 0, patience: float = 20.0) -> None:
        self._addresses = ServerAddresses(url)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._slots = slots
        self._patience = patience  # seconds that a response may take in addition to the long poll
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._unreachable = False
        self.on_lost_reply: Callable[[], None] = _ignore  # called when a reply was lost that may have had orders

    # ── ports.WorkLink ──────────────────────────────────────────────────────────────────

    async def claim(self, claim: Claim, *, wait: float) -> list[RunOrder]:
        """Lease runs."""
        request = wire.ClaimRequest(claim, wait, self._slots)
        return wire.unpack_orders(await self._request("claim", request, wire.OrdersReply, wait=wait))

    async def extend(self, worker: str, runs: Sequence[tuple[str, int]]) -> HeartbeatReply:
        """Send a heartbeat with all leases of this worker, which extends them."""
        return await self._request("extend", wire.ExtendRequest(worker, list(runs)), HeartbeatReply)

    async def revoked(self, worker: str, *, wait: float) -> list[str]:
        """The runs that this worker has lost."""
        return (await self._request("revoked", wire.RevokedRequest(worker, wait), wire.RunsReply, wait=wait)).lost

    async def give_back(self, worker: str, runs: Sequence[tuple[str, int]], *, begun: Collection[str] = ()) -> None:
        """Return unfinished runs."""
        await self._request("give-back", wire.RunsRequest(worker, list(runs), list(begun)), wire.RunsReply)

    async def report(
        self, worker: str, reports: Sequence[Report], *, free: int = 0
    ) -> tuple[list[ReportAck], list[RunOrder]]:
        """Report events; returns after they are committed."""
        request = wire.ReportRequest(worker, wire.encode_reports(reports), free)
        reply = await self._request("report", request, wire.ReportReply)
        return reply.acks, wire.unpack_orders(reply.orders)

    async def logs(self, worker: str, number: int, chunks: Sequence[LogChunk]) -> None:
        """Send lines that tasks have printed."""
        await self._request("logs", wire.LogsRequest(worker, number, list(chunks)), wire.RunsReply)

    async def playbook(self, digest: str) -> bytes:
        """The compiled playbook."""
        return await self._send_until_done("GET", f"/api/work/playbooks/{digest}", None, 0.0)

    async def bundle(self, digest: str) -> bytes:
        """The bundle of a playbook."""
        return await self._send_until_done("GET", f"/api/work/bundles/{digest}", None, 0.0)

    async def bundle_file(self, digest: str) -> bytes:
        """The content of a file of a bundle."""
        return await self._send_until_done("GET", f"/api/work/files/{digest}", None, 0.0)

    async def secrets(self, execution_id: str, names: Sequence[str]) -> dict[str, Any]:
        """Resolved keychain values."""
        return await self._request("secrets", wire.SecretsRequest(execution_id, list(names)), dict[str, Any])

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    # ── internals ──────────────────────────────────────────────────────────────────────────

    async def _request(self, name: str, request: msgspec.Struct, reply: type[T], *, wait: float = 0.0) -> T:
        data = await self._send_until_done("POST", f"/api/work/{name}", _encode(request), wait)
        return msgspec.json.decode(data, type=reply)

    async def _send_until_done(self, method: str, path: str, body: bytes | None, wait: float) -> bytes:
        """Repeat a request until a server responds; a rejection is raised."""
        delay = FIRST_DELAY
        while True:
            url = self._addresses.url
            try:
                data = await self._send(url, method, path, body, wait)
            except (aiohttp.ClientError, TimeoutError, OSError, StoreUnavailable) as problem:
                if self._closed:
                    raise StoreUnavailable("the link to the server is closed") from None
                if not self._unreachable:
                    self._unreachable = True
                    log.warning("no response from the server at %s (%s); retrying", url, problem or "timeout")
                if path in LEASING and not isinstance(problem, ServerBusy):
                    self.on_lost_reply()
                self._addresses.use_next(failed=url)
                await asyncio.sleep(delay)
                delay = min(2 * delay, MAX_DELAY)
                continue
            if self._unreachable:
                self._unreachable = False
                log.warning("the server at %s responds again", url)
            return data

    async def _send(self, url: str, method: str, path: str, body: bytes | None, wait: float) -> bytes:
        session = self._session
        if session is None:
            connector = aiohttp.TCPConnector(limit=64, keepalive_timeout=60)
            session = self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        timeout = aiohttp.ClientTimeout(total=wait + self._patience)
        # A large body is sent in pieces, so that it does not block the event loop.
        data = io.BytesIO(body) if body is not None and len(body) > LARGE else body
        async with session.request(method, url + path, data=data, timeout=timeout) as response:
            content = await response.read()
            if response.status < 300:
                return content
        detail = problem_detail(content)
        if response.status == 422 and path.endswith("/secrets"):
            raise SecretUnavailable({"": detail})
        raise response_error(url, response.status, detail)


def _ignore() -> None:
    """Do nothing."""
