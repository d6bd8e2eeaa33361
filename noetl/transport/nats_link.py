"""The link of a worker over NATS (`ports.WorkLink`), with the HTTP link as its fallback.

Waiting runs are announced by work notifications; a request goes to any server; a worker is notified of lost runs at
once. None of this is authoritative: without a connection to NATS, or without a reply in time, the same request is
sent over HTTP, because every request may be repeated. Values of secrets are never sent over NATS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from noetl.core.model.wire import (
    ClaimRequest,
    ExtendRequest,
    OrdersReply,
    Refusal,
    ReportReply,
    ReportRequest,
    RunsReply,
    RunsRequest,
    encode_reports,
    unpack_orders,
)
from noetl.core.model.work import Claim, HeartbeatReply, Report, ReportAck, RunOrder
from noetl.errors import NoetlError, StoreUnavailable
from noetl.storage.ports.work_link import RemoteLink
from noetl.transport.nats_bus import NatsBus
from noetl.transport.server_policy import response_error
from noetl.transport.signing import key_of, read_answer, signature_of, signed_question

POLL_SECONDS = 5.0  # after which a run is found whose notification was lost
MAX_NOTIFICATIONS = 32  # received at once
LATE_SECONDS = 60.0  # how long a late reply is still processed

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class NatsWorkLink:
    """The link of one worker; `fallback` is used whenever NATS fails."""

    def __init__(
        self,
        bus: NatsBus,
        token: str,
        fallback: RemoteLink,
        *,
        worker: str,
        slots: int = 0,
        patience: float = 5.0,
        poll: float = POLL_SECONDS,
    ) -> None:
        self._bus = bus
        self._key = key_of(token)
        self._fallback = fallback
        self._slots = slots
        self._patience = patience  # seconds that a reply may take before the request is sent over HTTP
        self._poll = poll
        self._returning: set[asyncio.Future[None]] = set()  # returns of runs whose orders arrived too late
        self._revoked: asyncio.Queue[str] = asyncio.Queue()
        bus.subscribe("revoked", lambda _, run_id: self._revoked.put_nowait(run_id.decode()), to=worker)

    @property
    def on_lost_reply(self) -> Callable[[], None]:
        """Called when a reply was lost that may have had orders, over either transport."""
        return self._fallback.on_lost_reply

    @on_lost_reply.setter
    def on_lost_reply(self, callback: Callable[[], None]) -> None:
        self._fallback.on_lost_reply = callback

    # ── ports.WorkLink ──────────────────────────────────────────────────────────────────

    async def claim(self, claim: Claim, *, wait: float) -> list[RunOrder]:
        """Lease runs: poll once, then wait for work notifications and poll again."""
        if not self._bus.up:
            return await self._fallback.claim(claim, wait=wait)
        orders = await self._claim(claim)
        if orders or wait <= 0:
            return orders
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while (remaining := deadline - loop.time()) > 0:
            try:
                await self._bus.wait_for_work(
                    claim.pool, most=min(claim.slots, MAX_NOTIFICATIONS), wait=min(remaining, self._poll)
                )
            except StoreUnavailable:
                return await self._fallback.claim(claim, wait=min(self._poll, max(0.0, deadline - loop.time())))
            orders = await self._claim(claim)
            if orders:
                return orders
        return []

    async def extend(self, worker: str, runs: Sequence[tuple[str, int]]) -> HeartbeatReply:
        """Send a heartbeat with all leases of this worker, which extends them."""
        try:
            return await self._request("extend", ExtendRequest(worker, list(runs)), HeartbeatReply)
        except StoreUnavailable:
            return await self._fallback.extend(worker, runs)

    async def revoked(self, worker: str, *, wait: float) -> list[str]:
        """The runs that this worker has lost; the next heartbeat finds those whose message was lost."""
        if not self._bus.up and self._revoked.empty():
            return await self._fallback.revoked(worker, wait=min(wait, self._poll))
        runs: list[str] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):  # not wait_for, which may swallow a cancellation before Python 3.12
                runs.append(await self._revoked.get())
        while not self._revoked.empty():
            runs.append(self._revoked.get_nowait())
        return runs

    async def give_back(self, worker: str, runs: Sequence[tuple[str, int]]) -> None:
        """Return unfinished runs."""
        try:
            await self._request("give-back", RunsRequest(worker, list(runs)), RunsReply)
        except StoreUnavailable:
            await self._fallback.give_back(worker, runs)

    async def report(
        self, worker: str, reports: Sequence[Report], *, free: int = 0
    ) -> tuple[list[ReportAck], list[RunOrder]]:
        """Report events; returns after they are committed."""
        try:
            reply = await self._request_orders(
                worker,
                "report",
                ReportRequest(worker, encode_reports(reports), free),
                ReportReply,
                lambda late: unpack_orders(late.orders),
            )
        except StoreUnavailable:
            return await self._fallback.report(worker, reports, free=free)
        return reply.acks, unpack_orders(reply.orders)

    async def playbook(self, digest: str) -> bytes:
        """The compiled playbook, over HTTP: it is fetched once per playbook."""
        return await self._fallback.playbook(digest)

    async def secrets(self, execution_id: str, names: Sequence[str]) -> dict[str, Any]:
        """Resolved keychain values, over HTTP: they are never sent over NATS."""
        return await self._fallback.secrets(execution_id, names)

    async def close(self) -> None:
        """Close both links."""
        if self._returning:
            _, pending = await asyncio.wait(self._returning, timeout=self._patience)
            for each in pending:
                each.cancel()
        await self._bus.close()
        await self._fallback.close()

    # ── internals ──────────────────────────────────────────────────────────────────────────

    async def _claim(self, claim: Claim) -> list[RunOrder]:
        try:
            reply = await self._request_orders(
                claim.worker, "claim", ClaimRequest(claim, 0.0, self._slots), OrdersReply, unpack_orders
            )
        except StoreUnavailable:
            return await self._fallback.claim(claim, wait=0.0)
        return unpack_orders(reply)

    async def _request_orders(
        self, worker: str, verb: str, request: msgspec.Struct, reply: type[T], orders: Callable[[T], list[RunOrder]]
    ) -> T:
        """Send a request whose reply may have orders. The runs of a reply that arrives too late are returned, because
        otherwise they would wait until their leases expire."""
        was_up = self._bus.up
        pending = asyncio.ensure_future(self._request(verb, request, reply, seconds=LATE_SECONDS))
        try:
            await asyncio.wait((pending,), timeout=self._patience)
        finally:
            if not pending.done():
                self.on_lost_reply()
                late = asyncio.ensure_future(self._return(worker, pending, orders))
                self._returning.add(late)
                late.add_done_callback(self._returning.discard)
        if not pending.done():
            raise StoreUnavailable(f"NATS: no reply to {verb} in time")
        try:
            return pending.result()
        except StoreUnavailable:
            if was_up:
                self.on_lost_reply()
            raise

    async def _return(self, worker: str, pending: asyncio.Future[T], orders: Callable[[T], list[RunOrder]]) -> None:
        try:
            runs = [(order.run_id, order.epoch) for order in orders(await pending)]
        except NoetlError:
            return  # no reply: the leases expire
        if runs:
            await self.give_back(worker, runs)

    async def _request(self, verb: str, request: msgspec.Struct, reply: type[T], *, seconds: float | None = None) -> T:
        question = signed_question(self._key, verb, _encode(request))
        data = await self._bus.request(verb, question, seconds=seconds or self._patience)
        if data.startswith(b"!"):  # not signed: from a server that does not know the token, or from an attacker
            raise StoreUnavailable(_refusal(data).detail)
        body = read_answer(self._key, signature_of(question), data)
        if body is None:
            raise StoreUnavailable("NATS: a reply has an invalid signature")
        if body.startswith(b"="):
            return msgspec.json.decode(body[1:], type=reply)
        refused = _refusal(body)
        if refused.status == 413:  # too large for NATS, but not for HTTP
            raise StoreUnavailable(refused.detail)
        raise response_error("NATS", refused.status, refused.detail)


def _refusal(data: bytes) -> Refusal:
    try:
        return msgspec.json.decode(data[1:], type=Refusal)
    except msgspec.DecodeError:
        return Refusal(502, "NATS: a reply cannot be decoded")
