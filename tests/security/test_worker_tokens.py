"""Class "worker tokens": a token acts only for its own workers, pools and leases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from noetl.core.engine.declared_secrets import ANY, declared_secrets
from noetl.core.language.compile import compile_playbook
from noetl.core.model.task_log import LogChunk, LogLine, LogSource
from noetl.core.model.work import Claim
from noetl.errors import AccessRefused, RequestRefused, SecretUnavailable
from noetl.server.dispatch import worker_service
from noetl.server.http.access import Caller, Tokens, local_worker_token
from noetl.server.http.routes.worker_protocol import WorkerRegistry
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.orchestrator.submissions import Submission
from noetl.tools.registry import specs
from noetl.transport.http_link import HttpWorkLink
from noetl.transport.signing import MAX_SKEW, STAMP, ReplayFilter, key_of, proves, read_question, signed_question
from tests.conformance.work_link import DOOR, HEAD, ONE, claim_until, done
from tests.transport.test_work_links import Served
from tests.waiting import until


class TestTokens(Served):
    @asynccontextmanager
    async def joined(self, orchestrator: Orchestrator) -> AsyncIterator[str]:
        async with self.served(orchestrator) as url:
            yield url

    def attack(self, text: str, calls) -> None:
        """Lease a run of the playbook to the worker `victim`, and run `calls(attacker, victim, order)`."""

        async def scenario(orchestrator: Orchestrator, url: str) -> None:
            self.orchestrator = orchestrator
            await orchestrator.submit(Submission(text=text))
            victim = HttpWorkLink(url, self.token)
            (order,) = await claim_until(victim, Claim("victim", 1), 1)
            attackers = [HttpWorkLink(url, self.token), HttpWorkLink(url, self.tokens.add("second", "worker"))]
            try:
                for attacker in attackers:
                    await calls(attacker, victim, order)
                acks, _ = await victim.report("victim", [done(order)])
                assert [ack.accepted for ack in acks] == [True]
            finally:
                for link in (victim, *attackers):
                    await link.close()

        self._run(scenario, {"door": "sesame"})

    def test_a_report_needs_the_proof_of_the_lease(self) -> None:
        async def calls(attacker, victim, order):
            for worker in ("victim", "attacker"):
                try:
                    acks, _ = await attacker.report(worker, [done(order)])
                except AccessRefused:
                    continue
                assert [ack.accepted for ack in acks] == [False]

        self.attack(ONE, calls)

    def test_give_back_and_extend_need_the_proof_of_the_lease(self) -> None:
        async def calls(attacker, victim, order):
            run = (order.run_id, order.epoch)
            for worker in ("victim", "attacker"):
                for call in (attacker.give_back, attacker.extend):
                    try:
                        reply = await call(worker, [run])
                    except AccessRefused:
                        continue
                    assert reply is None or order.run_id in reply.lost
            assert (await victim.extend("victim", [run])).lost == []

        self.attack(ONE, calls)

    def test_secrets_need_a_lease_and_a_declaration(self) -> None:
        async def calls(attacker, victim, order):
            execution_id = order.context.execution_id
            with pytest.raises(SecretUnavailable):
                await attacker.secrets(execution_id, ["door"])
            attacker._worker, attacker._proofs = "victim", {(order.run_id, order.epoch): "0" * 32}
            with pytest.raises(SecretUnavailable):
                await attacker.secrets(execution_id, ["door"])
            assert await victim.secrets(execution_id, ["door"])
            with pytest.raises(SecretUnavailable, match="declares this name"):
                await victim.secrets(execution_id, ["another_credential"])

        self.attack(DOOR, calls)

    def test_lines_of_a_log_need_a_lease_of_the_execution(self) -> None:
        async def calls(attacker, victim, order):
            execution_id = order.context.execution_id
            chunk = LogChunk(execution_id, [LogSource("s", "t")], [LogLine(0, 1.0, "stdout", "forged")])
            real = LogChunk(execution_id, [LogSource("s", "t")], [LogLine(0, 1.0, "stdout", "real")])
            name = f"attacker-{id(attacker)}"
            await attacker.logs(name, 1, [chunk])
            attacker._latest = {execution_id: (order.run_id, order.epoch)}
            await attacker.logs(name, 2, [chunk])
            attacker._proofs = {(order.run_id, order.epoch): "0" * 32}
            await attacker.logs(name, 3, [chunk])
            with pytest.raises(AccessRefused):
                await attacker.logs("victim", 4, [chunk])
            await victim.logs("victim", 1, [real])
            found = await self.orchestrator.task_logs.read(execution_id, 0, 10)
            assert [each.line.text for each in found.lines] == ["real"]

        self.attack(ONE, calls)

    def test_a_worker_name_belongs_to_its_first_user(self) -> None:
        async def calls(attacker, victim, order):
            for call in (attacker.claim(Claim("victim", 1), wait=0), attacker.revoked("victim", wait=0)):
                with pytest.raises(AccessRefused):
                    await call

        self.attack(ONE, calls)

    def test_the_first_user_of_a_name_after_a_restart_gets_no_leases_of_it(self, monkeypatch) -> None:
        """A server that was restarted knows the leases and the names of their workers, but not their tokens."""
        monkeypatch.setattr(worker_service, "DELIVERY_SECONDS", 0.0)

        async def scenario(orchestrator: Orchestrator, url: str) -> None:
            execution_id = await orchestrator.submit(Submission(text=ONE))
            victim = HttpWorkLink(url, self.token)
            (order,) = await claim_until(victim, Claim("victim", 1), 1)
            work = orchestrator.work
            work.leases.release(order.run_id)
            work.adopt(await orchestrator.state(execution_id))
            async with self.served(orchestrator) as restarted:
                attacker = HttpWorkLink(restarted, self.tokens.add("second", "worker", ["other"]))
                reply = await attacker.extend("victim", [])
                assert (reply.unknown, reply.proofs) == ([], [])
                acks, _ = await attacker.report("victim", [done(order)])
                assert [ack.accepted for ack in acks] == [False]
                await attacker.close()
            acks, _ = await victim.report("victim", [done(order)])
            assert [ack.accepted for ack in acks] == [True]
            await victim.close()

        self._run(scenario)

    def test_an_open_claim_of_a_revoked_token_gets_no_runs(self) -> None:
        """The run is not lost: another worker gets it."""

        async def scenario(orchestrator: Orchestrator, url: str) -> None:
            links = {name: HttpWorkLink(url, self.tokens.add(name, "worker")) for name in ("revoked", "replaced", "x")}
            try:
                for name in ("revoked", "replaced"):
                    claiming = asyncio.create_task(links[name].claim(Claim(name, 1), wait=20))
                    await until(lambda name=name: name in orchestrator.work._dispatcher.pools)
                    self.tokens.remove(name)
                    if name == "replaced":
                        self.tokens.add(name, "worker")
                    await orchestrator.submit(Submission(text=ONE))
                    with pytest.raises(AccessRefused):
                        await claiming
                    (order,) = await claim_until(links["x"], Claim("x", 1), 1)
                    acks, _ = await links["x"].report("x", [done(order)])
                    assert [ack.accepted for ack in acks] == [True]
            finally:
                for link in links.values():
                    await link.close()

        self._run(scenario)

    def test_a_report_of_a_worker_without_a_claim_gets_no_runs(self) -> None:
        """It names free slots, but its pool is not known."""

        async def scenario(orchestrator: Orchestrator, url: str) -> None:
            await orchestrator.submit(Submission(text=ONE))
            links = [HttpWorkLink(url, self.tokens.add(str(pools), "worker", pools)) for pools in (["reports"], [])]
            try:
                for number, link in enumerate(links):
                    for free in (1, 100):
                        assert await link.report(f"w{number}", [], free=free) == ([], [])
                    with pytest.raises(AccessRefused):
                        await links[0].claim(Claim(f"w{number}", 1), wait=0)
            finally:
                for link in links:
                    await link.close()

        self._run(scenario)

    def test_a_token_claims_only_from_its_pools(self) -> None:
        async def scenario(orchestrator: Orchestrator, url: str) -> None:
            link = HttpWorkLink(url, self.tokens.add("reports only", "worker", ["reports"]))
            try:
                assert await link.claim(Claim("a", 1, "reports"), wait=0) == []
                for pool in ("default", "gpu"):
                    with pytest.raises(AccessRefused):
                        await link.claim(Claim("b", 1, pool), wait=0)
            finally:
                await link.close()

        self._run(scenario)


for _name in [each for each in dir(Served) if each.startswith("test_")]:
    setattr(TestTokens, _name, None)  # the conformance suite runs in tests/transport


def test_only_tokens_of_workers_have_pools(tmp_path: Path) -> None:
    with pytest.raises(RequestRefused):
        Tokens.prepare(tmp_path).add("x", "viewer", ["a"])


def test_workers_of_this_machine_have_a_token_of_their_own(tmp_path: Path) -> None:
    tokens = Tokens.prepare(tmp_path)
    text = local_worker_token(tmp_path)
    caller = tokens.caller(text)
    assert caller is not None and caller.role == "worker" and not caller.may("viewer")
    assert local_worker_token(tmp_path) == text
    assert (tmp_path / "worker.token").stat().st_mode & 0o077 == 0
    tokens.proofs.make("a", "b", "c", 1)
    assert (tmp_path / "lease.key").stat().st_mode & 0o077 == 0


def test_proofs_differ_by_token_worker_run_and_epoch(tmp_path: Path) -> None:
    proofs = Tokens.prepare(tmp_path).proofs
    given = ("token", "worker", "run", 1)
    proof = proofs.make(*given)
    for other in (("t2", "worker", "run", 1), ("token", "w2", "run", 1), ("token", "worker", "r2", 1)):
        assert proofs.make(*other) != proof
    assert proofs.checks("token", "worker", [("run", 1), ("run", 2)], [proof, proof]) == [True, False]
    assert proofs.checks("token", "worker", [("run", 1)], []) == [False]
    assert Tokens(tmp_path).proofs.make(*given) == proof  # another server of the installation


def test_a_recorded_question_is_refused() -> None:
    key = key_of("token")
    question = read_question(signed_question(key, "claim", b"{}"))
    assert question is not None and proves(question, key, "claim") and question.body == b"{}"
    now = int(question.stamp[16:], 16) / 1000
    replays = ReplayFilter()
    assert replays.is_new(question, now)
    assert not replays.is_new(question, now)
    assert not ReplayFilter().is_new(question, now + MAX_SKEW + 1)
    assert not ReplayFilter().is_new(question, now - MAX_SKEW - 1)
    for stamp in (b"0" * STAMP, b"z" * STAMP):
        assert not proves(question._replace(stamp=stamp), key, "claim")
        assert not ReplayFilter().is_new(question._replace(stamp=stamp), now)
    assert read_question(b"short") is None


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("{step: a, tool: {kind: postgres, auth: pg, query: select 1}}", {"pg"}),
        ("{step: a, tool: {kind: noop, input: {x: '{{ keychain.k }}'}}}", {"k"}),
        ("{step: a, tool: {kind: postgres, auth: '{{ workload.db }}', query: select 1}}", {ANY}),
        ("{step: a, tool: {kind: secrets, secret: '{{ workload.db }}'}}", {ANY}),
    ],
)
def test_declared_secrets(step, expected):
    text = (
        HEAD.replace("workflow:", "keychain: [{name: k, kind: env, var: K}]\nworkload: {db: x}\nworkflow:")
        + f"  - {step}\n"
    )
    compiled = compile_playbook(text, file="", specs=specs())
    assert compiled.playbook is not None
    assert expected <= declared_secrets(compiled.playbook, compiled.playbook.steps[0])
    assert (ANY in expected) or ANY not in declared_secrets(compiled.playbook, compiled.playbook.steps[0])


class TestMessages(Served):
    """Messages of a worker with a valid token and a valid lease, and with contents that no worker sends."""

    @asynccontextmanager
    async def joined(self, orchestrator: Orchestrator) -> AsyncIterator[str]:
        async with self.served(orchestrator) as url:
            yield url

    def test_events_that_cannot_be_decoded(self) -> None:
        """Each is refused, and then the run ends with success."""

        async def scenario(orchestrator: Orchestrator, url: str) -> None:
            await orchestrator.submit(Submission(text=ONE))
            victim = HttpWorkLink(url, self.token)
            (order,) = await claim_until(victim, Claim("victim", 1), 1)
            proof = victim._proofs[order.run_id, order.epoch]
            message = {"worker": "victim", "proofs": [proof], "session": victim._session_key}
            headers = {"Authorization": f"Bearer {self.token}"}
            async with aiohttp.ClientSession(headers=headers) as session:
                for event in UNDECODABLE:
                    body = json.dumps({**message, "reports": [[order.run_id, order.epoch, 1, [event]]]})
                    async with session.post(f"{url}/api/work/report", data=body) as response:
                        answer = await response.text()
                        assert response.status == 400, (event, answer)
            acks, _ = await victim.report("victim", [done(order)])
            assert [ack.accepted for ack in acks] == [True]
            await victim.close()

        self._run(scenario)

    def test_claims_that_no_decision_can_serve(self) -> None:
        """A poll is offered to every decision, so a claim with an odd number of slots meets all executions."""

        async def scenario(orchestrator: Orchestrator, url: str) -> None:
            headers = {"Authorization": f"Bearer {self.token}"}
            async with aiohttp.ClientSession(headers=headers) as session:

                async def poll(claim: dict) -> int:
                    body = json.dumps({"claim": claim, "wait": 5})
                    async with session.post(f"{url}/api/work/claim", data=body) as response:
                        return response.status

                assert [await poll(claim) for claim in ODD_CLAIMS] == [422] * len(ODD_CLAIMS)
            execution_id = await orchestrator.submit(Submission(text=ONE))
            link = HttpWorkLink(url, self.token)
            (order,) = await claim_until(link, Claim("victim", 1), 1)
            await link.report("victim", [done(order)], free=-5)
            assert (await orchestrator.wait(execution_id, timeout=10)).status == "success"
            await link.close()

        self._run(scenario)


ODD_CLAIMS = [
    {"worker": "w", "slots": -1},
    {"worker": "w", "slots": 2**62},
    {"worker": "w", "slots": 10**30},
    {"worker": "w", "slots": 1, "capacity": -1},
    {"worker": "", "slots": 1},
    {"worker": "w" * 201, "slots": 1},
    {"worker": "w", "slots": 1, "pool": ""},
    {"worker": "w", "slots": 1, "pool": "p" * 1000},
    {"worker": "w", "slots": 1, "labels": ["x"] * 101},
    {"worker": "w", "slots": 1, "labels": ["x" * 1000]},
]
UNDECODABLE = [
    ("nope", 1, {}),
    ("step.done", 99, {}),
    ("step.done", -1, {}),
    ("step.done", 1, {}),
    ("step.done", 1, []),
    ("step.done", 1, {"step": 1}),
    ("step.done", 1, {"step": "s", "step_run_id": "x", "output": {"status": "nope"}}),
    ("step.done", 1, {"step": "s", "step_run_id": "x", "output": 2**70}),
    ("task.done", 1, {"step": "s", "step_run_id": "x", "task": [], "outcome": {}}),
    ("task.started", 1, {"step": "s", "step_run_id": "x", "task": "t", "path": {"a": 1}}),
    ("wait.started", 1, {"step": "s", "step_run_id": "x", "task": "t", "until": "never"}),
    ("child.requested", 1, {"step": "s", "step_run_id": "x", "task": "t", "playbook": ["x"]}),
    ("task.progress", 1, {"step": "s", "step_run_id": "x", "task": "t", "counts": []}),
    ("x" * 100_000, 1, {}),
]
ATTEMPTS = {
    "test_events_that_cannot_be_decoded": len(UNDECODABLE),
    "test_claims_that_no_decision_can_serve": len(ODD_CLAIMS),
}

for _name in [each for each in dir(Served) if each.startswith("test_")]:
    setattr(TestMessages, _name, None)


def test_a_token_that_uses_many_names_loses_only_its_own() -> None:
    workers = WorkerRegistry()
    forgotten: list[str] = []
    workers.MAX_NAMES = 10
    workers.forget = forgotten.append
    victim, attacker = Caller("victim", "worker"), Caller("attacker", "worker")
    workers.identify(victim, "v", "process")
    for number in range(100):
        workers.identify(attacker, f"a{number}", "process")
    with pytest.raises(AccessRefused):
        workers.identify(attacker, "v", "process")
    workers.identify(victim, "v", "process")
    assert forgotten == [f"a{number}" for number in range(90)]
