"""A worker's line over NATS (`ports.WorkLink`), with HTTP behind it.

Work is announced by tickets in a JetStream work queue, one subject per pool; questions go to whichever server takes
them; what was taken from a worker is told to it at once. None of it is the truth: when NATS is away, lost what it
had, or carries no answer in time, the same question is asked over HTTP, which may repeat anything without harm.
The values of secrets never cross the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
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
from noetl.errors import NoetlError, NotFound, RequestRefused, StoreUnavailable
from noetl.storage.ports.work_link import RemoteLink
from noetl.transport.nats_bus import NatsBus
from noetl.transport.signing import key_of, read_answer, signature_of, signed_question

LOOK_SECONDS = 5.0  # how soon a run is found whose ticket was lost
MOST_TICKETS = 32
LATE_SECONDS = 60.0  # how long an answer may take and still be heard

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class NatsWorkLink:
    """One worker's line; `behind` is asked whenever NATS cannot."""

    def __init__(
        self,
        bus: NatsBus,
        token: str,
        behind: RemoteLink,
        *,
        worker: str,
        slots: int = 0,
        patience: float = 5.0,
        look: float = LOOK_SECONDS,
    ) -> None:
        self._bus = bus
        self._key = key_of(token)
        self._behind = behind
        self._slots = slots
        self._patience = patience  # seconds an answer may take before it is asked over HTTP
        self._look = look
        self._returning: set[asyncio.Future[None]] = set()  # runs that came too late, on their way back
        self._taken: asyncio.Queue[str] = asyncio.Queue()
        bus.listen("revoked", lambda _, said: self._taken.put_nowait(said.decode()), to=worker)

    @property
    def doubt(self) -> Callable[[], None]:
        """Who is told that an answer got lost, over whichever line."""
        return self._behind.doubt

    @doubt.setter
    def doubt(self, told: Callable[[], None]) -> None:
        self._behind.doubt = told

    # ── ports.WorkLink ──────────────────────────────────────────────────────────────────

    async def claim(self, claim: Claim, *, wait: float) -> list[RunOrder]:
        """Runs this worker now holds the lease of: a look, and a wait for a ticket when there are none."""
        if not self._bus.up:
            return await self._behind.claim(claim, wait=wait)
        orders = await self._claim(claim)
        if orders or wait <= 0:
            return orders
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while (remaining := deadline - loop.time()) > 0:
            try:
                await self._bus.ticket(claim.pool, most=min(claim.slots, MOST_TICKETS), wait=min(remaining, self._look))
            except StoreUnavailable:
                return await self._behind.claim(claim, wait=min(self._look, max(0.0, deadline - loop.time())))
            orders = await self._claim(claim)
            if orders:
                return orders
        return []

    async def extend(self, worker: str, runs: Sequence[tuple[str, int]]) -> HeartbeatReply:
        """Say what this worker holds, which prolongs it."""
        try:
            return await self._ask("extend", ExtendRequest(worker, list(runs)), HeartbeatReply)
        except StoreUnavailable:
            return await self._behind.extend(worker, runs)

    async def revoked(self, worker: str, *, wait: float) -> list[str]:
        """Runs taken away from this worker; a word that got lost is made good by the next heartbeat."""
        if not self._bus.up and self._taken.empty():
            return await self._behind.revoked(worker, wait=min(wait, self._look))
        try:
            runs = [await asyncio.wait_for(self._taken.get(), wait)] if wait > 0 else []
        except TimeoutError:
            return []
        while not self._taken.empty():
            runs.append(self._taken.get_nowait())
        return runs

    async def give_back(self, worker: str, runs: Sequence[tuple[str, int]]) -> None:
        """Let go of runs."""
        try:
            await self._ask("give-back", RunsRequest(worker, list(runs)), RunsReply)
        except StoreUnavailable:
            await self._behind.give_back(worker, runs)

    async def report(
        self, worker: str, reports: Sequence[Report], *, free: int = 0
    ) -> tuple[list[ReportAck], list[RunOrder]]:
        """Hand over events; answered after they are on disk."""
        try:
            reply = await self._ask_leasing(
                worker,
                "report",
                ReportRequest(worker, encode_reports(reports), free),
                ReportReply,
                lambda late: unpack_orders(late.orders),
            )
        except StoreUnavailable:
            return await self._behind.report(worker, reports, free=free)
        return reply.acks, unpack_orders(reply.orders)

    async def playbook(self, digest: str) -> bytes:
        """The compiled playbook; asked once per playbook, so HTTP does."""
        return await self._behind.playbook(digest)

    async def secrets(self, execution_id: str, names: Sequence[str]) -> dict[str, Any]:
        """Resolved keychain values, over HTTP: the broker never sees them."""
        return await self._behind.secrets(execution_id, names)

    async def close(self) -> None:
        """Let go."""
        if self._returning:
            _, hanging = await asyncio.wait(self._returning, timeout=self._patience)
            for each in hanging:
                each.cancel()
        await self._bus.close()
        await self._behind.close()

    # ── inside ──────────────────────────────────────────────────────────────────────────

    async def _claim(self, claim: Claim) -> list[RunOrder]:
        try:
            reply = await self._ask_leasing(
                claim.worker, "claim", ClaimRequest(claim, 0.0, self._slots), OrdersReply, unpack_orders
            )
        except StoreUnavailable:
            return await self._behind.claim(claim, wait=0.0)
        return unpack_orders(reply)

    async def _ask_leasing(
        self, worker: str, verb: str, request: msgspec.Struct, reply: type[T], orders: Callable[[T], list[RunOrder]]
    ) -> T:
        """Ask for what may bring runs along. An answer that comes when nobody waits for it any more must not be
        lost, or its runs would wait for their leases to run out: they are given back."""
        was_up = self._bus.up
        asked = asyncio.ensure_future(self._ask(verb, request, reply, seconds=LATE_SECONDS))
        try:
            await asyncio.wait((asked,), timeout=self._patience)
        finally:
            if not asked.done():
                self.doubt()
                late = asyncio.ensure_future(self._return(worker, asked, orders))
                self._returning.add(late)
                late.add_done_callback(self._returning.discard)
        if not asked.done():
            raise StoreUnavailable(f"NATS: nobody answered {verb} in time")
        try:
            return asked.result()
        except StoreUnavailable:
            if was_up:
                self.doubt()
            raise

    async def _return(self, worker: str, asked: asyncio.Future[T], orders: Callable[[T], list[RunOrder]]) -> None:
        try:
            runs = [(order.run_id, order.epoch) for order in orders(await asked)]
        except NoetlError:
            return  # nothing came, or nobody knows: the leases run out by themselves
        if runs:
            await self.give_back(worker, runs)

    async def _ask(self, verb: str, request: msgspec.Struct, reply: type[T], *, seconds: float | None = None) -> T:
        question = signed_question(self._key, verb, _encode(request))
        data = await self._bus.ask(verb, question, seconds=seconds or self._patience)
        if data.startswith(b"!"):  # not signed: a server that does not know our token, or somebody else
            raise StoreUnavailable(_refusal(data).detail)
        body = read_answer(self._key, signature_of(question), data)
        if body is None:
            raise StoreUnavailable("an answer came from somebody who does not know this worker's token")
        if body.startswith(b"="):
            return msgspec.json.decode(body[1:], type=reply)
        refused = _refusal(body)
        if refused.status == 404:
            raise NotFound(refused.detail)
        if refused.status in (413, 429) or refused.status >= 500:
            raise StoreUnavailable(refused.detail)
        raise RequestRefused(f"the server refused {verb} ({refused.status}): {refused.detail}")


def _refusal(data: bytes) -> Refusal:
    try:
        return msgspec.json.decode(data[1:], type=Refusal)
    except msgspec.DecodeError:
        return Refusal(502, "an answer came that is none")
