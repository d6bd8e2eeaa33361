"""The link of a worker to a server over HTTP (`ports.WorkLink`).

Every request may be sent twice: the server recognizes reports by their keys, and runs whose order was
lost are found by the next heartbeat (`on_lost_reply` requests one at once). So a failed request is
repeated until a server responds. A rejected request (an unknown token, for example) is raised.
"""

from __future__ import annotations

import asyncio
import io
import logging
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from noetl.core.model import wire
from noetl.core.model.ids import execution_of
from noetl.core.model.quotas.token_bucket import QuotaCall, QuotaReply
from noetl.core.model.task_log import LogChunk
from noetl.core.model.work import Claim, HeartbeatReply, Report, ReportAck, RunOrder
from noetl.errors import SecretUnavailable, StoreUnavailable, read_reasons
from noetl.transport.server_policy import ServerAddresses, ServerBusy, problem_detail, response_error

log = logging.getLogger("noetl.work")
T = TypeVar("T")

LARGE = 512 * 1024
LEASING = ("/api/work/claim", "/api/work/report")  # requests whose replies carry orders
MAX_ENDED = 10_000  # ended leases whose proofs are kept
FIRST_DELAY, MAX_DELAY = 0.05, 5.0  # seconds between attempts
_ENDS = frozenset(["step.done", "step.failed", "loop.iteration.done", "loop.iteration.failed"])
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
        self._worker = ""  # the name under which runs are claimed
        self._unreachable = False
        self._session_key = secrets.token_hex(16)
        self._proofs: dict[tuple[str, int], str] = {}  # of the leases that this worker holds
        self._unheld: set[tuple[str, int]] = set()  # leases with a proof that the last heartbeat did not have
        self._latest: dict[str, tuple[str, int]] = {}  # the latest lease of each execution
        self._ended: dict[tuple[str, int], str] = {}  # of leases that have ended
        self.on_lost_reply: Callable[[], None] = _ignore  # called when a reply was lost that may have had orders

    # ── ports.WorkLink ──────────────────────────────────────────────────────────────────

    async def claim(self, claim: Claim, *, wait: float) -> list[RunOrder]:
        """Lease runs."""
        self._worker = claim.worker
        request = wire.ClaimRequest(claim, wait, self._slots, self._session_key)
        return self._received(await self._request("claim", request, wire.OrdersReply, wait=wait))

    async def extend(self, worker: str, runs: Sequence[tuple[str, int]]) -> HeartbeatReply:
        """Send a heartbeat with all leases of this worker, which extends them."""
        # A lease also ends without a report that says so (a run that waits): two heartbeats did not have it.
        unheld = self._proofs.keys() - {(run_id, epoch) for run_id, epoch in runs}
        for run in unheld & self._unheld:
            self._retire(run)
        self._unheld = unheld
        request = wire.ExtendRequest(worker, list(runs), self._proofs_of(runs), self._session_key)
        reply = await self._request("extend", request, HeartbeatReply)
        for (run_id, epoch), proof in zip(reply.unknown, reply.proofs, strict=False):
            self._proofs[run_id, epoch] = proof
            self._latest[execution_of(run_id)] = (run_id, epoch)
        lost = set(reply.lost)
        for run in runs:
            if run[0] in lost:
                self._retire(run)
        return reply

    async def revoked(self, worker: str, *, wait: float) -> list[str]:
        """The runs that this worker has lost."""
        return (
            await self._request(
                "revoked", wire.RevokedRequest(worker, wait, self._session_key), wire.RunsReply, wait=wait
            )
        ).lost

    async def give_back(self, worker: str, runs: Sequence[tuple[str, int]], *, begun: Collection[str] = ()) -> None:
        """Return unfinished runs."""
        proofs = self._proofs_of(runs)
        request = wire.RunsRequest(worker, list(runs), list(begun), proofs, self._session_key)
        await self._request("give-back", request, wire.RunsReply)
        for run in runs:
            self._retire(run)

    async def report(
        self, worker: str, reports: Sequence[Report], *, free: int = 0
    ) -> tuple[list[ReportAck], list[RunOrder]]:
        """Report events; returns after they are committed."""
        runs = [(report.run_id, report.epoch) for report in reports]
        encoded = wire.encode_reports(reports)
        request = wire.ReportRequest(worker, encoded, free, self._proofs_of(runs), self._session_key)
        reply = await self._request("report", request, wire.ReportReply)
        for report, ack in zip(reports, reply.acks, strict=False):
            if not ack.accepted or any(event.NAME in _ENDS for event in report.events):
                self._retire((report.run_id, report.epoch))
        return reply.acks, self._received(reply.orders)

    async def logs(self, worker: str, number: int, chunks: Sequence[LogChunk]) -> None:
        """Send lines that tasks have printed."""
        names = dict.fromkeys(chunk.execution_id for chunk in chunks)
        runs = [self._latest[name] for name in names if name in self._latest]
        request = wire.LogsRequest(worker, number, list(chunks), runs, self._proofs_of(runs), self._session_key)
        await self._request("logs", request, wire.RunsReply)

    async def playbook(self, digest: str) -> bytes:
        """The compiled playbook."""
        return await self._send_until_done("GET", f"/api/work/playbooks/{digest}", None, 0.0)

    async def bundle(self, digest: str) -> bytes:
        """The bundle of a playbook."""
        return await self._send_until_done("GET", f"/api/work/bundles/{digest}", None, 0.0)

    async def bundle_file(self, digest: str) -> bytes:
        """The content of a file of a bundle."""
        return await self._send_until_done("GET", f"/api/work/files/{digest}", None, 0.0)

    async def schema(self, reference: str) -> bytes:
        """A registered schema."""
        return await self._send_until_done("GET", f"/api/work/schemas/{quote(reference)}", None, 0.0)

    async def quota(self, call: QuotaCall) -> QuotaReply:
        """Take a token of a quota, or pause it."""
        return await self._request("quota", call, QuotaReply)

    async def secrets(self, execution_id: str, names: Sequence[str]) -> dict[str, Any]:
        """Resolved keychain values."""
        runs = [run for run in self._proofs if execution_of(run[0]) == execution_id]
        request = wire.SecretsRequest(execution_id, list(names), self._worker, runs, self._proofs_of(runs))
        return await self._request("secrets", request, dict[str, Any])

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _received(self, reply: wire.OrdersReply) -> list[RunOrder]:
        """The orders of a reply; the proofs of their leases are kept."""
        for order, proof in zip(reply.orders, reply.proofs, strict=False):
            self._proofs[order.run_id, order.epoch] = proof
            self._latest.pop(order.context.execution_id, None)
            self._latest[order.context.execution_id] = (order.run_id, order.epoch)
        while len(self._latest) > MAX_ENDED:
            del self._latest[next(iter(self._latest))]
        return wire.unpack_orders(reply)

    def _retire(self, run: tuple[str, int]) -> None:
        """Keep the proof of an ended lease for a while: its last report may be sent again."""
        proof = self._proofs.pop((run[0], run[1]), None)
        if proof is not None:
            self._ended[run[0], run[1]] = proof
            if len(self._ended) > MAX_ENDED:
                del self._ended[next(iter(self._ended))]

    def _proofs_of(self, runs: Sequence[tuple[str, int]]) -> list[str]:
        return [self._proofs.get((each[0], each[1])) or self._ended.get((each[0], each[1]), "") for each in runs]

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
            raise SecretUnavailable(read_reasons(detail))
        raise response_error(url, response.status, detail)


def _ignore() -> None:
    """Do nothing."""
