"""The worker protocol over NATS: the same requests and replies as over HTTP.

The servers of an installation form one queue group, so any of them may receive a request. Requests and replies are
signed with the worker's token, which is never sent over the broker, and neither are secret values. A reply that does
not fit into a message is refused as too large, and the worker repeats the request over HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from noetl.core.model.wire import OrdersReply, Refusal, ReportReply, unpack_orders
from noetl.errors import NoetlError
from noetl.runtime.disk_errors import disk_error
from noetl.server.http import problems
from noetl.server.http.access import Caller, caller_of
from noetl.server.http.dependencies import AppState
from noetl.server.http.routes.worker_protocol import WORKER_CALLS, WorkerCall, WorkerRegistry
from noetl.transport.nats_bus import REVOKED, WITHDRAWN, NatsBus
from noetl.transport.signing import Question, ReplayFilter, proves, read_question, signed_answer

log = logging.getLogger("noetl.api")

MARGIN = 1024  # bytes of a message besides the reply
MAX_LISTENERS = 10_000  # remembered worker names, including workers that have stopped

_encode = msgspec.json.Encoder().encode


class NatsWorkerEndpoint:
    """Handles worker requests over NATS, and notifies workers of revoked leases."""

    def __init__(self, bus: NatsBus, state: Callable[[], AppState], workers: WorkerRegistry) -> None:
        self._bus = bus
        self._state = state
        self._workers = workers
        self._replays = ReplayFilter()
        self._listeners: set[str] = set()  # workers that are notified over NATS
        self._decoders = {name: msgspec.json.Decoder(call.body) for name, call in WORKER_CALLS.items()}

    def start(self) -> None:
        """Start handling requests."""
        work = self._state().orchestrator.work
        work.leases.push_revocations(self._notify_revoked)
        self._bus.subscribe(WITHDRAWN, lambda worker, _: work.withdraw_claims(worker))
        self._bus.reply(self._handle)

    def _notify_revoked(self, worker: str, run_id: str) -> bool:
        """Notify a worker of a revoked lease; False if it must learn of it by polling."""
        return self._bus.publish(REVOKED, worker, run_id.encode()) and worker in self._listeners

    async def _handle(self, name: str, data: bytes) -> bytes:
        question = read_question(data)
        token = self._state().tokens.keys().get(question.key_name) if question else None
        if question is None or token is None or not proves(question, token.sha256, name):
            # There is no key to sign with, so the reason is sent unsigned.
            return b"!" + _encode(Refusal(401, "the request is not signed with a known token"))
        if not self._replays.is_new(question, self._state().now()):
            refusal = _encode(
                Refusal(425, "the request was sent before, or the clock of the worker differs from that of the server")
            )
            return signed_answer(token.sha256, question.signature, b"!" + refusal)
        caller = caller_of(token)
        if not caller.may("worker"):
            refusal = _encode(
                Refusal(403, f"the role worker is required; the token {token.name!r} has the role {token.role}")
            )
            return signed_answer(token.sha256, question.signature, b"!" + refusal)
        call = WORKER_CALLS.get(name)
        body = await self._call(name, call, question, caller)
        return signed_answer(token.sha256, question.signature, body)

    async def _call(self, name: str, call: WorkerCall | None, question: Question, caller: Caller) -> bytes:
        if call is None or call.http_only:
            return b"!" + _encode(Refusal(404, f"{name} is not available over NATS"))
        state = self._state()
        try:
            request = self._decoders[name].decode(question.body)
            reply = await call.handle(state, self._workers, request, caller)
            if name == "extend":  # every worker sends heartbeats; this one has proved its name
                if len(self._listeners) >= MAX_LISTENERS:
                    self._listeners.clear()  # active workers are added again with their next heartbeat
                self._listeners.add(request.worker)
            return await self._encode_reply(request, reply)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
            return b"!" + _encode(Refusal(422, f"invalid {call.body.__name__}: {wrong}"))
        except NoetlError as refused:
            status = problems.problem_of(refused).status_code
            return b"!" + _encode(Refusal(status, str(refused)))
        except Exception as problem:
            found = disk_error(problem) if isinstance(problem, OSError) else None
            if found is not None:
                return b"!" + _encode(Refusal(503, found))
            log.exception("%s over NATS failed", name)
            return b"!" + _encode(Refusal(500, problems.INTERNAL_ERROR))

    async def _encode_reply(self, request: Any, reply: Any) -> bytes:
        """The encoded reply; orders that do not fit are given back, so that they can be claimed over HTTP."""
        encoded = _encode(reply)
        if len(encoded) + MARGIN <= self._bus.max_payload:
            return b"=" + encoded
        work = self._state().orchestrator.work
        if isinstance(reply, ReportReply) and reply.orders.orders:
            await work.give_back(request.worker, _leases(reply.orders))
            return b"=" + _encode(ReportReply(reply.acks, OrdersReply([], [])))
        if isinstance(reply, OrdersReply):
            await work.give_back(request.claim.worker, _leases(reply))
        return b"!" + _encode(Refusal(413, f"the reply of {len(encoded)} bytes exceeds the message size; use HTTP"))


def _leases(reply: OrdersReply) -> list[tuple[str, int]]:
    return [(order.run_id, order.epoch) for order in unpack_orders(reply)]
