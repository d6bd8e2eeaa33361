"""The link of a worker over NATS (`ports.WorkLink`), with the HTTP link as its fallback.

A request goes to any server, and later ones to the same one; a claim stays open there until a run is leased; a worker
is notified of lost runs at once. None of this is authoritative: without a connection to NATS, or without a reply in
time, the same request is sent over HTTP, because every request may be repeated. Values of secrets are never sent over
NATS.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from noetl.core.model import wire
from noetl.core.model.work import Claim, RunOrder
from noetl.errors import NoetlError, StoreUnavailable
from noetl.transport.http_link import HttpWorkLink
from noetl.transport.nats_bus import REVOKED, WITHDRAWN, NatsBus
from noetl.transport.server_policy import response_error
from noetl.transport.signing import MAX_SKEW, key_of, read_answer, signature_of, signed_question

POLL_SECONDS = 5.0  # that a claim or a poll stays open: the time after which the loss of its server has no effect
MAX_HINTS = 10_000
WRONG_CLOCK = 425
HTTP_ACCEPTS = (413, WRONG_CLOCK)  # refusals over NATS: too large, or of a worker with a wrong clock
LATE_SECONDS = 60.0  # how long a late reply is still processed

log = logging.getLogger("noetl.worker")

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class NatsWorkLink(HttpWorkLink):
    """The link of one worker, over HTTP whenever NATS fails."""

    def __init__(
        self,
        bus: NatsBus,
        url: str,
        token: str,
        *,
        worker: str,
        slots: int = 0,
        nats_patience: float = 5.0,
        poll: float = POLL_SECONDS,
    ) -> None:
        super().__init__(url, token, slots=slots)
        self._worker = worker
        self._bus = bus
        self._key = key_of(token)
        self._nats_patience = nats_patience  # seconds that a reply may take before the request is sent over HTTP
        self._poll = poll
        self._warned = False  # of a wrong clock
        self._returning: set[asyncio.Future[None]] = set()  # returns of runs whose orders arrived too late
        self._revoked: asyncio.Queue[str] = asyncio.Queue(MAX_HINTS)
        bus.subscribe(REVOKED, lambda _, run_id: self._hint(run_id), to=worker)

    # ── ports.WorkLink ──────────────────────────────────────────────────────────────────

    async def claim(self, claim: Claim, *, wait: float) -> list[RunOrder]:
        """Lease runs. A claim that is cancelled is withdrawn, so that nothing is leased to a worker that stops."""
        try:
            return await super().claim(claim, wait=min(wait, self._poll))
        except asyncio.CancelledError:
            self._bus.publish(WITHDRAWN, claim.worker)
            raise

    async def revoked(self, worker: str, *, wait: float) -> list[str]:
        """The runs that this worker has lost; the next heartbeat finds those whose message was lost."""
        if not self._bus.up and self._revoked.empty():
            return await super().revoked(worker, wait=min(wait, self._poll))
        runs: list[str] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):  # not wait_for, which may swallow a cancellation before Python 3.12
                runs.append(await self._revoked.get())
        while not self._revoked.empty():
            runs.append(self._revoked.get_nowait())
        return runs

    async def close(self) -> None:
        """Close both links."""
        if self._returning:
            _, pending = await asyncio.wait(self._returning, timeout=self._nats_patience)
            for each in pending:
                each.cancel()
        await self._bus.close()
        await super().close()

    # ── internals ──────────────────────────────────────────────────────────────────────────

    def _hint(self, run_id: bytes) -> None:
        """Keep a message that a run is revoked; heartbeats find those that do not fit."""
        with suppress(asyncio.QueueFull):
            self._revoked.put_nowait(run_id.decode("utf-8", "replace"))

    async def _request(self, name: str, request: msgspec.Struct, reply: type[T], *, wait: float = 0.0) -> T:
        """Send a request over NATS, or over HTTP if NATS fails. Secrets are never sent over NATS."""
        if name != "secrets":
            with suppress(StoreUnavailable):
                if isinstance(request, wire.ClaimRequest):
                    return await self._request_orders(request.claim.worker, name, request, reply, wait)
                if isinstance(request, wire.ReportRequest):
                    return await self._request_orders(request.worker, name, request, reply)
                return await self._request_over_nats(name, request, reply, wait + self._nats_patience)
        return await super()._request(name, request, reply, wait=wait)

    async def _request_orders(
        self, worker: str, name: str, request: msgspec.Struct, reply: type[T], wait: float = 0.0
    ) -> T:
        """Send a request whose reply may have orders. The runs of a reply that arrives too late are returned, because
        otherwise they would wait until their leases expire."""
        was_up = self._bus.up
        pending = asyncio.ensure_future(self._request_over_nats(name, request, reply, LATE_SECONDS))
        try:
            await asyncio.wait((pending,), timeout=wait + self._nats_patience)
        finally:
            if not pending.done():
                self.on_lost_reply()
                late = asyncio.ensure_future(self._return(worker, pending))
                self._returning.add(late)
                late.add_done_callback(self._returning.discard)
        if not pending.done():
            raise StoreUnavailable(f"NATS: no reply to {name} in time")
        try:
            return pending.result()
        except StoreUnavailable:
            if was_up:
                self.on_lost_reply()
            raise

    async def _return(self, worker: str, pending: asyncio.Future[Any]) -> None:
        try:
            reply: wire.OrdersReply | wire.ReportReply = await pending
        except NoetlError:
            return  # no reply: the leases expire
        orders = self._received(reply.orders if isinstance(reply, wire.ReportReply) else reply)
        if orders:
            await self.give_back(worker, [(order.run_id, order.epoch) for order in orders])

    async def _request_over_nats(self, name: str, request: msgspec.Struct, reply: type[T], seconds: float) -> T:
        question = signed_question(self._key, name, _encode(request))
        data = await self._bus.request(name, question, seconds=seconds)
        if data.startswith(b"!"):  # not signed: from a server that does not know the token, or from an attacker
            raise StoreUnavailable(_refusal(data).detail)
        body = read_answer(self._key, signature_of(question), data)
        if body is None:
            raise StoreUnavailable("NATS: a reply has an invalid signature")
        if body.startswith(b"="):
            return msgspec.json.decode(body[1:], type=reply)
        refused = _refusal(body)
        if refused.status == WRONG_CLOCK and not self._warned:
            self._warned = True
            log.warning("NATS: %s by more than %.0f s; HTTP is used instead", refused.detail, MAX_SKEW)
        if refused.status in HTTP_ACCEPTS:
            raise StoreUnavailable(refused.detail)
        raise response_error("NATS", refused.status, refused.detail)


def _refusal(data: bytes) -> wire.Refusal:
    try:
        return msgspec.json.decode(data[1:], type=wire.Refusal)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return wire.Refusal(502, "NATS: a reply cannot be decoded")
