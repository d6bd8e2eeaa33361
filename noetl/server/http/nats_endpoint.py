"""The workers' line over NATS: the same questions as over HTTP, and the same answers.

Any server of the installation may get a question (they form one queue group). Questions and answers are signed with the
worker's token, which itself never crosses the broker; values of secrets do not cross it either. What does not fit
into a message is refused as too large, and the worker asks for it over HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from noetl.core.model.wire import OrdersReply, Refusal, ReportReply, unpacked
from noetl.errors import NoetlError
from noetl.server.http import problems
from noetl.server.http.access import Caller
from noetl.server.http.dependencies import AppState
from noetl.server.http.routes.worker_protocol import VERBS, Verb, WorkerRegistry
from noetl.transport.nats_bus import NatsBus
from noetl.transport.signing import proves, read_question, signed_answer

log = logging.getLogger("noetl.api")

MARGIN = 1024  # bytes of a message that are not the answer's own
MOST_LISTENERS = 10_000  # workers remembered; names of those that left are among them
REVOKED = "revoked"  # the kind of words that tell a worker what was taken from it

_encode = msgspec.json.Encoder().encode


class NatsWorkerEndpoint:
    """Answers workers that ask over NATS, and tells them what was taken from them."""

    def __init__(self, bus: NatsBus, parts: Callable[[], AppState], roster: WorkerRegistry) -> None:
        self._bus = bus
        self._parts = parts
        self._roster = roster
        self._listeners: set[str] = set()  # workers that hear of revocations over NATS
        self._decoders = {name: msgspec.json.Decoder(verb.body) for name, verb in VERBS.items()}

    def start(self) -> None:
        """Answer from now on."""
        self._parts().orchestrator.work.leases.tell = self._tell
        self._bus.reply(self._answer)

    def _tell(self, worker: str, run_id: str) -> bool:
        """Tell a worker that a run was taken from it; False when it must hear it otherwise."""
        return self._bus.publish(REVOKED, worker, run_id.encode()) and worker in self._listeners

    async def _answer(self, name: str, data: bytes) -> bytes:
        question = read_question(data)
        token = self._parts().tokens.keys().get(question.key_name) if question else None
        if question is None or token is None or not proves(question, token.sha256, name):
            # Nobody to sign for: it is told in clear why there is no answer, and nothing else.
            return b"!" + _encode(Refusal(401, "this question is not signed with a token that is known here"))
        if not Caller(token.name, token.role).may("worker"):
            said = _encode(Refusal(403, f"this needs the role worker; the token {token.name!r} has {token.role}"))
            return signed_answer(token.sha256, question.signature, b"!" + said)
        verb = VERBS.get(name)
        body = await self._body(name, verb, question.body)
        return signed_answer(token.sha256, question.signature, body)

    async def _body(self, name: str, verb: Verb | None, body: bytes) -> bytes:
        if verb is None or verb.secret:
            return b"!" + _encode(Refusal(404, f"{name} is not answered here"))
        parts = self._parts()
        try:
            asked = self._decoders[name].decode(body)
            if len(self._listeners) >= MOST_LISTENERS:
                self._listeners.clear()  # who is still there asks again at once
            self._listeners.add(asked.claim.worker if name == "claim" else asked.worker)
            answer = await verb.answer(parts, self._roster, asked)
            return await self._fitting(asked, answer)
        except msgspec.DecodeError as wrong:
            return b"!" + _encode(Refusal(422, f"this is not a {verb.body.__name__}: {wrong}"))
        except NoetlError as refused:
            status = problems.of_exception(refused).status_code
            return b"!" + _encode(Refusal(status, str(refused)))
        except Exception:
            log.exception("%s over NATS failed", name)
            return b"!" + _encode(Refusal(500, "the server made a mistake; its log says more"))

    async def _fitting(self, asked: Any, answer: Any) -> bytes:
        """The answer's bytes; orders that do not fit are given back, so that they can be had over HTTP."""
        encoded = _encode(answer)
        if len(encoded) + MARGIN <= self._bus.max_payload:
            return b"=" + encoded
        work = self._parts().orchestrator.work
        if isinstance(answer, ReportReply) and answer.orders.orders:
            await work.give_back(asked.worker, _leases(answer.orders))
            return b"=" + _encode(ReportReply(answer.verdicts, OrdersReply([], [])))
        if isinstance(answer, OrdersReply):
            await work.give_back(asked.claim.worker, _leases(answer))
        return b"!" + _encode(Refusal(413, f"{len(encoded)} bytes are more than a message may hold: ask over HTTP"))


def _leases(reply: OrdersReply) -> list[tuple[str, int]]:
    return [(order.run_id, order.epoch) for order in unpacked(reply)]
