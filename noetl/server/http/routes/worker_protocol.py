"""The workers' line: claim, extend, report; batched, long-polled, fenced.

Plain routes with msgspec on both sides, since every run passes here several times (`api.direct` finds them). Orders
of one answer share their contexts: a context is sent once, orders name it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope

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
    pack_orders,
)
from noetl.core.model.work import HeartbeatReply
from noetl.server.http.dependencies import AppState, require, require_in
from noetl.server.http.middleware.fast_path import RawEndpoint, RawResponse
from noetl.server.orchestrator.service import Orchestrator

MAX_WAIT = 30.0
_encode = msgspec.json.Encoder().encode


class WorkerInfo(msgspec.Struct):
    """A worker as this server knows it."""

    worker: str
    pool: str
    slots: int
    labels: tuple[str, ...]
    first_seen: float
    last_seen: float


class WorkerRegistry:
    """Workers that asked for work lately."""

    FORGET = 3600.0

    def __init__(self) -> None:
        self._seen: dict[str, WorkerInfo] = {}

    def asked(self, request: ClaimRequest, at: float) -> None:
        """A worker offers its slots."""
        claim = request.claim
        known = self._seen.get(claim.worker)
        if known is None or request.slots > known.slots:
            first = known.first_seen if known else at
            known = WorkerInfo(claim.worker, claim.pool, request.slots, claim.labels, first, at)
            self._seen[claim.worker] = known
        known.last_seen = at

    def alive(self, worker: str, at: float) -> None:
        """A sign of life."""
        known = self._seen.get(worker)
        if known is not None:
            known.last_seen = at

    def all(self, at: float) -> list[WorkerInfo]:
        """Those not forgotten yet, newest sign of life first."""
        for worker in [each.worker for each in self._seen.values() if at - each.last_seen > self.FORGET]:
            del self._seen[worker]
        return sorted(self._seen.values(), key=lambda each: -each.last_seen)


Answering = Callable[[AppState, WorkerRegistry, Any], Awaitable[msgspec.Struct | bytes | dict[str, Any]]]


def routes(parts: Callable[[], AppState], roster: WorkerRegistry) -> list[Route]:
    """The work routes; every one needs the role worker."""
    return [
        *(_route(name, verb.body, verb.answer, parts, roster) for name, verb in VERBS.items()),
        Route("/api/work/playbooks/{digest}", _playbook(parts), methods=["GET"], name="work:playbook"),
    ]


def _route(
    name: str, body: type[Any], answer: Answering, parts: Callable[[], AppState], roster: WorkerRegistry
) -> Route:
    decoder = msgspec.json.Decoder(body)

    async def answered(scope: Scope, data: bytes, receive: Receive) -> RawResponse:
        require_in(scope, "worker")
        try:
            decoded = decoder.decode(data)
        except msgspec.DecodeError as wrong:
            raise HTTPException(422, f"this is not a {body.__name__}: {wrong}") from None
        answering = answer(parts(), roster, decoded)
        if getattr(decoded, "wait", 0) > 0:
            return await _unless_gone(receive, parts(), decoded, answering)
        return RawResponse(_encode(await answering))

    return Route(f"/api/work/{name}", RawEndpoint(answered), methods=["POST"], name=f"work:{name}")


async def _unless_gone(receive: Receive, parts: AppState, asked: Any, answering: Awaitable[Any]) -> RawResponse:
    """The answer of one who may have to wait; when the worker hangs up meanwhile, nothing is leased to it."""
    waiting = asyncio.ensure_future(answering)
    gone = asyncio.ensure_future(receive())  # the body has been read: the next message is the farewell
    try:
        await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
        if not gone.done():
            return RawResponse(_encode(waiting.result()))
        if waiting.done() and waiting.exception() is None and isinstance(waiting.result(), OrdersReply):
            runs = [(order.run_id, order.epoch) for order in waiting.result().orders]
            await parts.orchestrator.work.give_back(asked.claim.worker, runs)
        return RawResponse(b"", 408, ())  # to nobody
    finally:
        for each in (waiting, gone):
            each.cancel()
        await asyncio.gather(waiting, gone, return_exceptions=True)


async def _claim(parts: AppState, roster: WorkerRegistry, request: ClaimRequest) -> OrdersReply:
    roster.asked(request, time.time())
    wait = min(max(request.wait, 0.0), MAX_WAIT)
    waiting = parts.orchestrator.work.claim(request.claim, wait=wait)
    return pack_orders(await (parts.unless_stopping(waiting, []) if wait else waiting))


async def _extend(parts: AppState, roster: WorkerRegistry, request: ExtendRequest) -> HeartbeatReply:
    roster.alive(request.worker, time.time())
    return await parts.orchestrator.work.extend(request.worker, request.runs)


async def _revoked(parts: AppState, roster: WorkerRegistry, request: RevokedRequest) -> RunsReply:
    roster.alive(request.worker, time.time())
    wait = min(max(request.wait, 0.0), MAX_WAIT)
    waiting = parts.orchestrator.work.revoked(request.worker, wait=wait)
    return RunsReply(await (parts.unless_stopping(waiting, []) if wait else waiting))


async def _give_back(parts: AppState, roster: WorkerRegistry, request: RunsRequest) -> RunsReply:
    await parts.orchestrator.work.give_back(request.worker, request.runs)
    return RunsReply([])


async def _report(parts: AppState, roster: WorkerRegistry, request: ReportRequest) -> ReportReply:
    roster.alive(request.worker, time.time())
    verdicts, orders = await parts.orchestrator.work.report(request.worker, request.decoded(), free=request.free)
    return ReportReply(verdicts, pack_orders(orders))


async def _secrets(parts: AppState, roster: WorkerRegistry, request: SecretsRequest) -> dict[str, Any]:
    return await parts.orchestrator.work.secrets(request.execution_id, request.names)


def _playbook(parts: Callable[[], AppState]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        require(request, "worker")
        encoded = await parts().orchestrator.work.playbook(request.path_params["digest"])
        return Response(encoded, media_type="application/json")

    return endpoint


class Verb(msgspec.Struct, frozen=True):
    """One thing a worker asks: the shape of the question, who answers, and whether a broker may carry it."""

    body: type[Any]
    answer: Answering
    secret: bool = False


VERBS = {
    "claim": Verb(ClaimRequest, _claim),
    "extend": Verb(ExtendRequest, _extend),
    "revoked": Verb(RevokedRequest, _revoked),
    "give-back": Verb(RunsRequest, _give_back),
    "report": Verb(ReportRequest, _report),
    "secrets": Verb(SecretsRequest, _secrets, secret=True),
}


def workers_document(seen: Sequence[WorkerInfo], orchestrator: Orchestrator) -> list[dict[str, Any]]:
    """The workers with what they hold, and for how long yet if nothing more is heard of them."""
    from noetl.server.read_models.documents import when

    leases = orchestrator.work.leases
    return [
        {
            "worker": each.worker,
            "pool": each.pool,
            "slots": each.slots,
            "labels": list(each.labels),
            "first_seen": when(each.first_seen),
            "last_seen": when(each.last_seen),
            "runs": [lease.run_id for lease in leases.held_by(each.worker)],
            "leases": [
                {"run_id": lease.run_id, "epoch": lease.epoch, "expires_in_s": _rounded(leases.remaining(lease))}
                for lease in leases.held_by(each.worker)
            ],
        }
        for each in seen
    ]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(max(0.0, seconds), 1)
