"""Every link between workers and the control plane fulfils the contract of the port."""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
import pytest
import uvicorn

from devcluster.services import Nats
from noetl.core.model.events import WorkerLost
from noetl.core.model.work import Claim, HeartbeatReply
from noetl.errors import StoreUnavailable
from noetl.runtime.clock import RealClock
from noetl.server.dispatch import worker_service as workers
from noetl.server.http.access import Tokens
from noetl.server.http.app import create_app
from noetl.server.http.dependencies import AppState
from noetl.server.http.nats_endpoint import NatsWorkerEndpoint
from noetl.server.http.routes.worker_protocol import WORKER_CALLS
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.ports.work_link import WorkLink
from noetl.tools.registry import specs
from noetl.transport import nats_bus
from noetl.transport.http_link import HttpWorkLink
from noetl.transport.nats_bus import NatsBus, decode_part, encode_part
from noetl.transport.nats_link import NatsWorkLink
from noetl.transport.signing import key_of, name_of, read_answer, signature_of, signed_question
from noetl.worker import pool
from noetl.worker.factory import create_pool
from noetl.worker.host import HostServices
from tests.conformance.work_link import DOOR, ONE, TWO, Link, WorkLinkSuite, bodies, claim_until, done
from tests.waiting import until


def losing_one(send: Any, verb: str, problem: Exception) -> Any:
    """`send` that loses its first reply to the verb."""
    lost = False

    async def sending(*arguments: Any, **more: Any) -> Any:
        nonlocal lost
        answer = await send(*arguments, **more)
        if not lost and any(isinstance(word, str) and word.endswith(verb) for word in arguments):
            lost = True
            raise problem
        return answer

    return sending


class _ConnectedBus:
    """The part of `NatsBus` that `NatsWorkLink.revoked` uses."""

    up = True

    def subscribe(self, kind: str, on_message: Any, *, to: str) -> None:
        self.deliver = on_message


def test_the_proof_of_a_lease_that_ended_without_a_report_is_not_kept_forever(monkeypatch) -> None:
    """A run that waits holds no lease, and no report says that it ended."""
    replies = iter(HeartbeatReply(unknown=[(f"{number}:start:1", 1)], proofs=[f"p{number}"]) for number in range(1, 9))
    sent: list[Any] = []

    async def reply(name: str, request: Any, *_: Any) -> HeartbeatReply:
        sent.append(request)
        return next(replies)

    async def scenario() -> None:
        link = HttpWorkLink("http://127.0.0.1:1", "token")
        monkeypatch.setattr(link, "_request", reply)
        await link.extend("w", [])
        for _ in range(5):
            await link.extend("w", [("1:start:1", 1)])  # held all the time
        assert sent[-1].proofs == ["p1"]
        assert len(link._proofs) <= 3
        await link.extend("w", [("2:start:1", 1)])
        assert sent[-1].proofs == ["p2"]  # its last report may be sent again

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", range(4))
def test_a_cancelled_wait_for_a_revocation_ends_and_loses_none(turns: int) -> None:
    async def scenario() -> None:
        bus = _ConnectedBus()
        link = NatsWorkLink(bus, "http://127.0.0.1:1", "token", worker="w")  # type: ignore[arg-type]
        waiting = asyncio.create_task(link.revoked("w", wait=20))
        await asyncio.sleep(0.01)
        bus.deliver("w", b"run")
        for _ in range(turns):
            await asyncio.sleep(0)
        was_cancelled = waiting.cancel()
        await asyncio.wait((waiting,))
        assert waiting.cancelled() == was_cancelled
        assert (await link.revoked("w", wait=0) if was_cancelled else waiting.result()) == ["run"]

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", range(4))
def test_a_cancelled_wait_for_the_first_connection_ends(turns: int) -> None:
    async def scenario() -> None:
        bus = NatsBus("nats://127.0.0.1:1")
        waiting = asyncio.create_task(bus.connected(20))
        await asyncio.sleep(0.01)
        bus._first_connection.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        was_cancelled = waiting.cancel()
        await asyncio.wait((waiting,))
        assert waiting.cancelled() == was_cancelled

    asyncio.run(scenario())


class TestLocal(WorkLinkSuite):
    @asynccontextmanager
    async def joined(self, orchestrator: Orchestrator) -> AsyncIterator[Link]:
        yield lambda worker: orchestrator.work


class Served(WorkLinkSuite):
    """A server of this process, on a port of its own."""

    @pytest.fixture(autouse=True)
    def _home(self, tmp_path: Path) -> None:
        self.tokens = Tokens.prepare(tmp_path)
        self.token = self.tokens.add("w", "worker")

    @asynccontextmanager
    async def served(self, orchestrator: Orchestrator) -> AsyncIterator[str]:
        given = {"orchestrator": orchestrator, "tokens": self.tokens, "specs": specs}
        required = [each.name for each in msgspec.structs.fields(AppState) if each.required]
        self.parts = AppState(**{name: given.get(name) for name in required})  # type: ignore[arg-type]

        async def readiness() -> list[str]:
            return []

        self.app = create_app(lambda: self.parts, self.tokens, readiness=readiness, version="0")
        self.app.state.app_state = self.parts
        server = uvicorn.Server(uvicorn.Config(self.app, port=0, log_config=None, lifespan="off"))
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            self.parts.stopping.set()
            server.should_exit = True
            await serving

    def after_a_lost_reply(self, monkeypatch: pytest.MonkeyPatch, lose: Callable[[WorkLink], None]) -> None:
        """A server commits a claim and stops before it replies: the run is leased again, and no attempt is lost."""
        monkeypatch.setattr(workers, "DELIVERY_SECONDS", 0.0)
        monkeypatch.setattr(pool, "FIRST_CHECK", 0.05)

        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            execution_id = await orchestrator.submit(Submission(text=TWO))
            line = link("w")
            lose(line)
            worker = create_pool(line, HostServices(orchestrator.results), worker="w", clock=RealClock(), slots=4)
            line.on_lost_reply = worker.reconcile_soon
            await worker.start()
            try:
                assert (await orchestrator.wait(execution_id, 10)).status == "success"
            finally:
                await worker.abandon()
            assert [lost.returned for lost in await bodies(orchestrator, execution_id, WorkerLost)] == [True]

        self._run(scenario)

    def test_nothing_is_leased_to_a_disconnected_worker(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            claiming = asyncio.create_task(link("w").claim(Claim("w", 1), wait=20))
            listening = asyncio.create_task(link("w").revoked("w", wait=20))
            pending_polls = orchestrator.work._dispatcher._pools
            await until(lambda: bool(pending_polls))
            for each in (claiming, listening):
                each.cancel()
            await asyncio.gather(claiming, listening, return_exceptions=True)
            await until(lambda: not pending_polls)
            await orchestrator.submit(Submission(text=ONE))
            (order,) = await claim_until(link("other"), Claim("other", 1), 1)
            assert (order.epoch, order.lost) == (1, 0)

        self._run(scenario)


class TestHttp(Served):
    @asynccontextmanager
    async def joined(self, orchestrator: Orchestrator) -> AsyncIterator[Link]:
        async with self.served(orchestrator) as url:
            link = HttpWorkLink(url, self.token)
            yield lambda worker: link
            await link.close()

    def test_a_run_whose_order_was_lost_is_returned_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def lose(link: WorkLink) -> None:
            assert isinstance(link, HttpWorkLink)
            link._send = losing_one(link._send, "claim", aiohttp.ServerDisconnectedError())

        self.after_a_lost_reply(monkeypatch, lose)


class OverNats(Served):
    url: str

    @pytest.fixture(autouse=True)
    def _bus(self) -> None:
        self.prefix = f"t {secrets.token_hex(4)}"

    @asynccontextmanager
    async def joined(self, orchestrator: Orchestrator) -> AsyncIterator[Link]:
        async with AsyncExitStack() as closing:
            http = await closing.enter_async_context(self.served(orchestrator))
            bus = self.bus = NatsBus(self.url, prefix=self.prefix)
            closing.push_async_callback(bus.close)
            NatsWorkerEndpoint(bus, lambda: self.parts, self.app.state.workers).start()
            bus.start()
            assert await bus.connected(10)
            links: dict[str, WorkLink] = {}
            self.lines: dict[str, NatsBus] = {}

            def link(worker: str) -> WorkLink:
                if worker not in links:
                    line = self.lines[worker] = NatsBus(self.url, prefix=self.prefix)
                    links[worker] = NatsWorkLink(line, http, self.token, worker=worker)
                    line.start()
                    closing.push_async_callback(links[worker].close)
                return links[worker]

            for name in ("w", "a", "b"):
                link(name)
                assert await self.lines[name].connected(10)
            yield link


class TestNats(OverNats):
    @pytest.fixture(autouse=True)
    def _server(self, nats_server: str) -> None:
        self.url = nats_server

    def test_a_run_whose_order_was_lost_is_returned_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def lose(link: WorkLink) -> None:
            line = self.lines["w"]
            line.request = losing_one(line.request, "claim", StoreUnavailable("NATS: no reply"))

        self.after_a_lost_reply(monkeypatch, lose)

    def test_a_pending_request_fails_when_its_server_stops(self) -> None:
        async def scenario() -> None:
            held = asyncio.Event()

            async def hold(verb: str, payload: bytes) -> bytes:
                if verb == "claim":
                    held.set()
                    await asyncio.Event().wait()
                return b"x"

            server, worker = (NatsBus(self.url, prefix=self.prefix) for _ in range(2))
            server.reply(hold)
            for bus in (server, worker):
                bus.start()
                assert await bus.connected(10)
            while not (worker._preferred and worker._preferred[0]):  # a slow reply with its id is not waited for
                worker._preferred = None
                assert await worker.request("report", b"?", seconds=5) == b"x"
            claiming = asyncio.create_task(worker.request("claim", b"?", seconds=60))
            await asyncio.wait_for(held.wait(), 10)
            await server.close()  # without a reply, like a process that was killed
            with pytest.raises(StoreUnavailable, match="no reply to report"):
                await worker.request("report", b"?", seconds=5)
            with pytest.raises(StoreUnavailable, match="no reply to claim"):
                await asyncio.wait_for(claiming, 10)
            await worker.close()

        asyncio.run(scenario())

    def test_a_pending_request_fails_when_the_connection_is_lost(self) -> None:
        async def scenario() -> None:
            held = asyncio.Event()

            async def hold(verb: str, payload: bytes) -> bytes:
                held.set()
                await asyncio.Event().wait()
                return b""

            server, worker = (NatsBus(self.url, prefix=self.prefix) for _ in range(2))
            server.reply(hold)
            for bus in (server, worker):
                bus.start()
                assert await bus.connected(10)
            claiming = asyncio.create_task(worker.request("claim", b"?", seconds=60))
            await asyncio.wait_for(held.wait(), 10)
            worker._client._transport.close()  # the connection, not the client, which connects again
            with pytest.raises(StoreUnavailable, match="no reply to claim"):
                await asyncio.wait_for(claiming, 10)
            for bus in (server, worker):
                await bus.close()

        asyncio.run(scenario())

    def test_a_question_without_a_known_token_is_rejected(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            await orchestrator.submit(Submission(text=ONE))
            bus = self.lines["w"]
            body = b'{"claim":{"worker":"x","slots":1},"wait":0}'
            for question in (b"", b"{}", body, signed_question(key_of("noetl_guessed"), "claim", body)):
                assert b"not signed with a known token" in await bus.request("claim", question, seconds=5)
            good = signed_question(key_of(self.token), "claim", body)
            tampered = good.replace(b'"slots":1', b'"slots":9')
            assert b"not signed with a known token" in await bus.request("claim", tampered, seconds=5)
            assert b"not signed with a known token" in await bus.request(
                "report", good, seconds=5
            )  # signed for another verb
            answer = await bus.request("claim", good, seconds=5)
            assert read_answer(key_of(self.token), signature_of(good), answer) is not None
            assert read_answer(key_of(self.token), signature_of(tampered) + b"0", answer) is None
            assert read_answer(key_of("noetl_guessed"), signature_of(good), answer) is None

        self._run(scenario)

    @pytest.mark.parametrize("subject", [b"ask.=d800=", b"ask.\xff", b"ask.\xed\xa0\x80", b"ask.claim"])
    def test_a_hostile_subject_does_not_stop_a_server(self, subject: bytes, caplog) -> None:
        """Messages of a client that knows the id of a token, which is in every question, and no token."""

        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            problems: list[Any] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
            key = key_of(self.token)
            target = encode_part(self.prefix).encode() + b"." + subject
            payload = name_of(key).encode() + b"0" * 92
            head = b"NATS/1.0 \xff\xff\xff\r\na\xff: \xff\r\n\r\n"
            reader, writer = await asyncio.open_connection(*self.url.rpartition("/")[2].split(":"))
            writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
            for reply in (b"", b" re.\xff"):
                writer.write(b"PUB %s%s %d\r\n%s\r\n" % (target, reply, len(payload), payload))
                sizes = (len(head), len(head + payload))
                writer.write(b"HPUB %s%s %d %d\r\n%s%s\r\n" % (target, reply, *sizes, head, payload))
            writer.write(b"PING\r\n")
            while await reader.readline() != b"PONG\r\n":
                pass
            writer.close()
            await writer.wait_closed()
            question = signed_question(key, "claim", b'{"claim":{"worker":"w","slots":0}}')
            assert read_answer(key, signature_of(question), await self.lines["w"].request("claim", question, seconds=2))
            await asyncio.sleep(0)
            gc.collect()  # an exception of a task is reported when the task is deleted
            assert not problems

        self._run(scenario)
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]

    def test_a_token_without_the_role_is_refused(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            viewer = key_of(self.tokens.add("looks", "viewer"))
            question = signed_question(viewer, "claim", b'{"claim":{"worker":"x","slots":1}}')
            answer = read_answer(
                viewer, signature_of(question), await self.lines["w"].request("claim", question, seconds=5)
            )
            assert answer is not None
            assert b"403" in answer

        self._run(scenario)

    @pytest.mark.parametrize("stops", ["cancelled", "timed out"])
    def test_runs_of_a_late_reply_are_returned(self, stops: str) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            began, late = asyncio.Event(), asyncio.Event()
            lease = orchestrator.work.claim

            async def slowly(claim: Claim, *, wait: float):
                orders = await lease(claim, wait=wait)
                began.set()
                await late.wait()
                return orders

            line = link("w")
            line._nats_patience = 20 if stops == "cancelled" else 0.1
            await orchestrator.submit(Submission(text=ONE))
            orchestrator.work.claim = slowly  # type: ignore[method-assign]
            claiming = asyncio.create_task(line.claim(Claim("w", 1), wait=0))
            await asyncio.wait_for(began.wait(), 10)
            orchestrator.work.claim = lease  # type: ignore[method-assign]
            if stops == "cancelled":
                claiming.cancel()
                await asyncio.gather(claiming, return_exceptions=True)
            else:
                assert await claiming == []
            late.set()
            (order,) = await claim_until(link("a"), Claim("a", 1), 1)
            assert (order.epoch, order.lost) == (2, 0)

        self._run(scenario)

    def test_requests_prefer_one_server_until_it_stops(self, monkeypatch) -> None:
        monkeypatch.setattr(nats_bus, "DISCOVERY_SECONDS", 30.0)  # also on a busy machine

        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            served_by: list[str] = []

            def server(name: str) -> NatsBus:
                async def handle(verb: str, payload: bytes) -> bytes:
                    served_by.append(name)
                    return b"x"

                bus = NatsBus(self.url, prefix=f"{self.prefix}-two")
                bus.reply(handle)
                bus.start()
                return bus

            servers = {name: server(name) for name in "ab"}
            worker = NatsBus(self.url, prefix=f"{self.prefix}-two")
            worker.start()
            for bus in (*servers.values(), worker):
                assert await bus.connected(10)
            for _ in range(10):
                assert await worker.request("report", b"?", seconds=5) == b"x"
            preferred = served_by[-1]
            assert served_by == [preferred] * 10
            leaving = servers.pop(preferred)
            await leaving.stop_replying()
            await leaving.close()
            served_by.clear()
            for _ in range(3):
                assert await worker.request("report", b"?", seconds=5) == b"x"
            assert served_by == [*servers] * 3
            for bus in (*servers.values(), worker):
                await bus.close()

        self._run(scenario)

    def test_a_server_is_looked_for_again_soon_after_none_replied(self, monkeypatch) -> None:
        monkeypatch.setattr(nats_bus, "DISCOVERY_SECONDS", 0.0)

        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            async def handle(verb: str, payload: bytes) -> bytes:
                return b"x"

            server, worker = (NatsBus(self.url, prefix=f"{self.prefix}-late") for _ in range(2))
            server.reply(handle)
            for bus in (server, worker):
                bus.start()
                assert await bus.connected(10)
            sent, ask = [], worker._request

            async def request(subject: str, payload: bytes, seconds: float, server: str = "") -> bytes:
                sent.append(subject.partition(".")[0])
                if sent == ["who"]:
                    raise TimeoutError
                return await ask(subject, payload, 5.0, server)

            monkeypatch.setattr(worker, "_request", request)
            for _ in range(2):
                assert await worker.request("report", b"?", seconds=5) == b"x"
            assert sent == ["who", "ask", "who", "at"]
            for bus in (server, worker):
                await bus.close()

        self._run(scenario)

    def test_every_call_is_answered_over_nats_but_secrets(self) -> None:
        bodies = {
            "claim": '{"claim":{"worker":"x","slots":0}}',
            "quota": '{"demand":{"key":"k","rate":1,"burst":1}}',
            "logs": '{"worker":"x","number":1,"chunks":[]}',
            "secrets": '{"execution_id":"1"}',
        }

        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            key = key_of(self.token)
            for verb in WORKER_CALLS:
                question = signed_question(
                    key, verb, bodies.get(verb, '{"worker":"x","runs":[],"reports":[]}').encode()
                )
                data = await self.lines["w"].request(verb, question, seconds=5)
                answer = read_answer(key, signature_of(question), data)
                assert answer is not None
                assert answer.startswith(b"!" if verb == "secrets" else b"="), (verb, answer)

        self._run(scenario)

    @pytest.mark.parametrize("hours", [1, -1])
    def test_a_worker_with_a_wrong_clock_uses_http(self, monkeypatch: pytest.MonkeyPatch, caplog, hours: int) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            wrong = SimpleNamespace(time=lambda: time.time() + 3600 * hours)
            monkeypatch.setattr("noetl.transport.signing.time", wrong)
            for _ in range(2):
                reply = await link("w").extend("w", [("1:start:1", 1)])
                assert reply.lost == ["1:start:1"]
            assert caplog.text.count("the clock of the worker differs") == 1

        self._run(scenario)

    def test_secrets_are_never_sent_over_nats(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            execution_id = await orchestrator.submit(Submission(text=DOOR))
            await claim_until(link("w"), Claim("w", 1), 1)
            seen: list[bytes] = []
            spy = NatsBus(self.url, prefix=self.prefix)
            for kind in ("ask", "at.*"):
                spy.subscribe(kind, lambda verb, payload: seen.append(payload))
            spy.start()
            assert await spy.connected(10)
            assert await link("w").secrets(execution_id, ["door"]) == {"door": "sesame-4711"}
            key = key_of(self.token)
            question = signed_question(key, "secrets", f'{{"execution_id":"{execution_id}","names":["door"]}}'.encode())
            answer = await spy.request("secrets", question, seconds=5)
            assert b"404" in answer
            assert b"sesame" not in answer
            await link("w").claim(Claim("w", 1), wait=0)
            assert seen
            assert not [data for data in seen if b"sesame" in data or self.token.encode() in data]
            await spy.close()

        self._run(scenario, {"door": "sesame-4711"})

    def test_any_text_can_be_encoded_as_part_of_a_subject(self) -> None:
        for part in ("=ffffff=", "=ffffffffffffffff=", "==", "=", "=d800=", "=0="):
            assert isinstance(decode_part(part), str)
        for text in ("default", "", "a.b", "a *>", "größe", "=41=", "x=y"):
            assert decode_part(encode_part(text)) == text
            assert not set(encode_part(text)) & set(" .*>\t")

    # ── a restart of NATS costs latency and nothing else ─────────────────────

    def _killed(self, tmp_path: Path, *, wiped: bool) -> None:
        with Nats(tmp_path / "nats") as server:
            self.url = server.url

            async def scenario(orchestrator: Orchestrator, link: Link) -> None:
                execution_id = await orchestrator.submit(Submission(text=TWO))
                (first,) = await claim_until(link("w"), Claim("w", 1), 1)
                await asyncio.to_thread(server.kill)
                other = await orchestrator.submit(Submission(text=ONE))
                verdicts, (second,) = await link("w").report("w", [done(first)], free=1)
                assert verdicts[0].accepted
                assert (await link("w").extend("w", [(second.run_id, second.epoch)])).lost == []
                (taken,) = await claim_until(link("w"), Claim("w", 1), 1)
                assert {taken.context.execution_id, second.context.execution_id} == {execution_id, other}
                with pytest.raises(StoreUnavailable):
                    await self.lines["w"].request("claim", b"", seconds=1)
                if wiped:
                    server.forget()
                await asyncio.to_thread(server.start)
                await until(lambda: self.bus.up and self.lines["w"].up)
                waiting = asyncio.create_task(link("w").claim(Claim("w", 1), wait=20))
                third = await orchestrator.submit(Submission(text=ONE))
                (order,) = await asyncio.wait_for(waiting, 10)
                assert order.context.execution_id == third
                await link("w").report("w", [done(second), done(taken), done(order)])
                for each in (execution_id, other, third):
                    assert (await orchestrator.wait(each, 5)).status == "success"

            self._run(scenario)

    def test_killed_and_started_again(self, tmp_path: Path) -> None:
        self._killed(tmp_path, wiped=False)

    def test_killed_and_wiped(self, tmp_path: Path) -> None:
        self._killed(tmp_path, wiped=True)
