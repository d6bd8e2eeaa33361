"""The worker protocol: claim, extend, report and the like; batched, long-polled, fenced by epochs.

Raw routes with msgspec on both sides, because every run uses them several times. Orders of one response share their
contexts: each context is sent once and orders refer to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope

from noetl.core.engine.concurrency_keys import DEFAULT_POOL
from noetl.core.model import wire
from noetl.core.model.ids import execution_of
from noetl.core.model.outcome import error_info
from noetl.core.model.quotas.token_bucket import QuotaCall, QuotaReply, checked_call
from noetl.core.model.work import MAX_SLOTS, HeartbeatReply, ReportAck
from noetl.errors import AccessRefused, RoleRequired
from noetl.runtime.tasks import cancel
from noetl.server.dispatch.dispatcher import pool_name
from noetl.server.dispatch.worker_service import WorkerService
from noetl.server.http.access import Caller
from noetl.server.http.dependencies import AppState, require_role
from noetl.server.http.middleware.fast_path import RawResponse, RawRoute
from noetl.server.orchestrator.service import Orchestrator

MAX_WAIT = 30.0
log = logging.getLogger("noetl.workers")

NOT_PROVED = "the request does not prove that the run is leased to this worker"
_encode = msgspec.json.Encoder().encode


class WorkerInfo(msgspec.Struct):
    """A worker as this server last saw it."""

    worker: str
    pool: str
    slots: int
    labels: tuple[str, ...]
    first_seen: float
    last_seen: float


class WorkerRegistry:
    """Workers that recently claimed runs from this server."""

    FORGET_AFTER = 3600.0
    MAX_NAMES = 10_000  # per token; a token that uses more loses its own oldest ones, and no others

    def __init__(self) -> None:
        self._owners: dict[str, tuple[str, str]] = {}  # worker -> token and session
        self._names: dict[str, dict[str, None]] = {}  # token -> its workers, least recently used first
        self._seen: dict[str, WorkerInfo] = {}
        self.forget: Callable[[str], None] = lambda worker: None  # called for a worker that is not known any more

    def identify(self, caller: Caller, worker: str, session: str) -> None:
        """Bind a worker's name to the token and the process that use it first; another one is refused."""
        known = self._owners.setdefault(worker, (caller.name, session))
        if known != (caller.name, session):
            raise RoleRequired(f"the worker {worker!r} belongs to another token or process")
        names = self._names.setdefault(caller.name, {})
        names.pop(worker, None)
        names[worker] = None
        if len(names) > self.MAX_NAMES:
            oldest = next(iter(names))
            del names[oldest]
            del self._owners[oldest]
            self._seen.pop(oldest, None)
            self.forget(oldest)

    def record_claim(self, request: wire.ClaimRequest, at: float) -> None:
        """Record a claim and the slots it offers."""
        claim = request.claim
        known = self._seen.get(claim.worker)
        if known is None or request.slots > known.slots:
            first = known.first_seen if known else at
            known = WorkerInfo(claim.worker, claim.pool, request.slots, claim.labels, first, at)
            self._seen[claim.worker] = known
        known.last_seen = at

    def record_contact(self, worker: str, at: float) -> None:
        """Record a request of a known worker."""
        known = self._seen.get(worker)
        if known is not None:
            known.last_seen = at

    def all(self, at: float) -> list[WorkerInfo]:
        """All workers of the last `FORGET_AFTER` seconds, most recently seen first."""
        for worker in [each.worker for each in self._seen.values() if at - each.last_seen > self.FORGET_AFTER]:
            del self._seen[worker]
        return sorted(self._seen.values(), key=lambda each: -each.last_seen)


Handler = Callable[[AppState, WorkerRegistry, Any, Caller], Awaitable[msgspec.Struct | bytes | dict[str, Any]]]


def raw_routes(state: Callable[[], AppState], workers: WorkerRegistry) -> list[RawRoute]:
    """The routes that every run uses."""
    return [_route(name, call, state, workers) for name, call in WORKER_CALLS.items()]


def _route(name: str, call: WorkerCall, state: Callable[[], AppState], workers: WorkerRegistry) -> RawRoute:
    decoder = msgspec.json.Decoder(call.body)

    async def handler(scope: Scope, data: bytes, receive: Receive) -> RawResponse:
        try:
            decoded = decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
            raise HTTPException(422, f"invalid {call.body.__name__}: {wrong}") from None
        handling = call.handle(state(), workers, decoded, scope["state"]["caller"])
        if getattr(decoded, "wait", 0) > 0:
            return await _unless_disconnected(receive, state(), decoded, handling)
        return RawResponse(_encode(await handling))

    return RawRoute(f"/api/work/{name}", handler, role="worker")


async def _unless_disconnected(
    receive: Receive, state: AppState, request: Any, handling: Awaitable[Any]
) -> RawResponse:
    """The response to a long poll; if the worker disconnects meanwhile, nothing stays leased to it."""
    waiting = asyncio.ensure_future(handling)
    disconnected = asyncio.ensure_future(receive())  # after the body the next message is the disconnect
    try:
        await asyncio.wait((waiting, disconnected), return_when=asyncio.FIRST_COMPLETED)
        if not disconnected.done():
            return RawResponse(_encode(waiting.result()))
        if waiting.done() and waiting.exception() is None and isinstance(waiting.result(), wire.OrdersReply):
            runs = [(order.run_id, order.epoch) for order in waiting.result().orders]
            await state.orchestrator.work.give_back(request.claim.worker, runs)
        return RawResponse(b"", 408, ())  # the client is gone
    finally:
        await cancel(waiting, disconnected)


async def _claim(
    state: AppState, workers: WorkerRegistry, request: wire.ClaimRequest, caller: Caller
) -> wire.OrdersReply:
    worker, pool = request.claim.worker, pool_name(request.claim.pool) or DEFAULT_POOL
    if caller.pools and pool not in caller.pools:
        raise RoleRequired(f"the token {caller.name!r} may not claim runs of the pool {pool!r}")
    workers.identify(caller, worker, request.session)
    workers.record_claim(request, state.now())
    wait = min(max(request.wait, 0.0), MAX_WAIT)
    waiting = state.orchestrator.work.claim(request.claim, wait=wait)
    orders = await (state.unless_stopping(waiting, []) if wait else waiting)
    if orders and wait and not state.tokens.is_valid(caller):
        await state.orchestrator.work.give_back(worker, [(order.run_id, order.epoch) for order in orders])
        raise AccessRefused("the token was revoked while the claim was open")
    return wire.pack_orders(orders, state.tokens.proofs.for_orders(caller.name, worker, orders))


async def _extend(
    state: AppState, workers: WorkerRegistry, request: wire.ExtendRequest, caller: Caller
) -> HeartbeatReply:
    workers.identify(caller, request.worker, request.session)
    workers.record_contact(request.worker, state.now())
    proofs = state.tokens.proofs
    proved = proofs.checks(caller.name, request.worker, request.runs, request.proofs)
    runs = [run for run, is_proved in zip(request.runs, proved, strict=True) if is_proved]
    reply = await state.orchestrator.work.extend(request.worker, runs)
    refused = [run for run, is_proved in zip(request.runs, proved, strict=True) if not is_proved]
    # The first caller that uses the name of a worker after a restart gets no proof of the leases before the restart.
    hidden = {tuple(each) for each in refused}
    leases = state.orchestrator.work.leases
    unknown = [run for run in reply.unknown if tuple(run) not in hidden and not leases.is_adopted(run[0])]
    given = [proofs.make(caller.name, request.worker, run_id, epoch) for run_id, epoch in unknown]
    lost = [*reply.lost, *(run_id for run_id, _ in refused)]
    return HeartbeatReply(lost, unknown, reply.term, given, reply.ended)


async def _revoked(
    state: AppState, workers: WorkerRegistry, request: wire.RevokedRequest, caller: Caller
) -> wire.RunsReply:
    workers.identify(caller, request.worker, request.session)
    workers.record_contact(request.worker, state.now())
    wait = min(max(request.wait, 0.0), MAX_WAIT)
    waiting = state.orchestrator.work.revoked(request.worker, wait=wait)
    return wire.RunsReply(await (state.unless_stopping(waiting, []) if wait else waiting))


async def _give_back(
    state: AppState, workers: WorkerRegistry, request: wire.RunsRequest, caller: Caller
) -> wire.RunsReply:
    workers.identify(caller, request.worker, request.session)
    proved = state.tokens.proofs.checks(caller.name, request.worker, request.runs, request.proofs)
    runs = [run for run, is_proved in zip(request.runs, proved, strict=True) if is_proved]
    await state.orchestrator.work.give_back(request.worker, runs, begun=request.begun)
    return wire.RunsReply(
        [run_id for (run_id, _), is_proved in zip(request.runs, proved, strict=True) if not is_proved]
    )


async def _report(
    state: AppState, workers: WorkerRegistry, request: wire.ReportRequest, caller: Caller
) -> wire.ReportReply:
    worker = request.worker
    workers.identify(caller, worker, request.session)
    workers.record_contact(worker, state.now())
    reports = request.decoded()
    runs = [(report.run_id, report.epoch) for report in reports]
    proved = state.tokens.proofs.checks(caller.name, worker, runs, request.proofs)
    accepted = [report for report, is_proved in zip(reports, proved, strict=True) if is_proved]
    if accepted or not reports:
        free = min(max(request.free, 0), MAX_SLOTS)
        verdicts, orders = await state.orchestrator.work.report(worker, accepted, free=free)
    else:
        verdicts, orders = [], []
    given = iter(verdicts)
    acks = [
        next(given) if is_proved else ReportAck(report.run_id, False, error_info("auth", NOT_PROVED))
        for report, is_proved in zip(reports, proved, strict=True)
    ]
    return wire.ReportReply(acks, wire.pack_orders(orders, state.tokens.proofs.for_orders(caller.name, worker, orders)))


async def _logs(state: AppState, workers: WorkerRegistry, request: wire.LogsRequest, caller: Caller) -> wire.RunsReply:
    workers.identify(caller, request.worker, request.session)
    proved = state.tokens.proofs.checks(caller.name, request.worker, request.runs, request.proofs)
    leased = {execution_of(run_id) for (run_id, _), is_proved in zip(request.runs, proved, strict=True) if is_proved}
    chunks = [chunk for chunk in request.chunks if chunk.execution_id in leased or caller.may("admin")]
    if len(chunks) < len(request.chunks):
        log.warning("worker %s sent lines of executions of which it has no lease; they are dropped", request.worker)
    await state.orchestrator.work.logs(request.worker, request.number, chunks)
    return wire.RunsReply([])


async def _secrets(
    state: AppState, workers: WorkerRegistry, request: wire.SecretsRequest, caller: Caller
) -> dict[str, Any]:
    proved = state.tokens.proofs.checks(caller.name, request.worker, request.runs, request.proofs)
    runs = [run for run, is_proved in zip(request.runs, proved, strict=True) if is_proved]
    return await state.orchestrator.work.secrets_of_runs(request.execution_id, request.worker, runs, request.names)


async def _quota(state: AppState, workers: WorkerRegistry, request: QuotaCall, caller: Caller) -> QuotaReply:
    return await state.orchestrator.work.quota(checked_call(request))


def content_routes(state: Callable[[], AppState]) -> list[Route]:
    """`GET /api/work/playbooks|bundles|files|schemas/{digest}`: a playbook, a bundle, a file of one, a schema."""

    def route(name: str, read: Callable[[WorkerService, str], Awaitable[bytes]], media_type: str) -> Route:
        async def endpoint(request: Request) -> Response:
            require_role(request.scope, "worker")
            content = await read(state().orchestrator.work, request.path_params["digest"])
            return Response(content, media_type=media_type)

        return Route(f"/api/work/{name}/{{digest:path}}", endpoint, methods=["GET"], include_in_schema=False)

    return [
        route("playbooks", WorkerService.playbook, "application/json"),
        route("bundles", WorkerService.bundle, "application/json"),
        route("schemas", WorkerService.schema, "application/json"),
        route("files", WorkerService.bundle_file, "application/octet-stream"),
    ]


class WorkerCall(msgspec.Struct, frozen=True):
    """A call of the worker protocol: its request type and handler, and whether only HTTP may carry it."""

    body: type[Any]
    handle: Handler
    http_only: bool = False


WORKER_CALLS = {
    "claim": WorkerCall(wire.ClaimRequest, _claim),
    "extend": WorkerCall(wire.ExtendRequest, _extend),
    "revoked": WorkerCall(wire.RevokedRequest, _revoked),
    "give-back": WorkerCall(wire.RunsRequest, _give_back),
    "report": WorkerCall(wire.ReportRequest, _report),
    "logs": WorkerCall(wire.LogsRequest, _logs),
    "quota": WorkerCall(QuotaCall, _quota),
    "secrets": WorkerCall(wire.SecretsRequest, _secrets, http_only=True),
}


def workers_document(seen: Sequence[WorkerInfo], orchestrator: Orchestrator) -> list[dict[str, Any]]:
    """The workers with their leases and the remaining time of each lease."""
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
                {"run_id": lease.run_id, "epoch": lease.epoch, "expires_in_s": _round(leases.remaining(lease))}
                for lease in leases.held_by(each.worker)
            ],
        }
        for each in seen
    ]


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(max(0.0, seconds), 1)
