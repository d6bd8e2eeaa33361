"""Decisions that end servers, where several servers share a store."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from noetl.errors import StoreUnavailable
from noetl.server.composition import Cluster, Stores, build_orchestrator
from noetl.server.lifecycle import decision_trials
from noetl.server.lifecycle.decision_trials import MAX_EVIDENCE, DecisionTrials
from noetl.server.lifecycle.membership import give_up_suspects
from noetl.server.orchestrator import execution_actor
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.cluster.postgres import PostgresCluster
from noetl.storage.factory import open_server_stores
from noetl.storage.postgres.database import PostgresDatabase
from noetl.storage.results import open_results
from noetl.tools.registry import specs

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: NAME}
workflow:
  - step: start
    tool: {kind: wait, signal: go}
"""


class ServerEnded(BaseException):
    """Stands for the signal that ends a server in the middle of a decision."""


class Peers:
    """Servers on one Postgres database, in one process."""

    def __init__(self, dsn: str, results: str, closing: AsyncExitStack) -> None:
        self.dsn = dsn
        self.results = results
        self.closing = closing

    async def start(self):
        opened = open_server_stores(self.dsn, "server")
        self.closing.push_async_callback(opened.events.close)
        cluster = opened.cluster
        await cluster.join()
        stores = Stores(opened.events, opened.playbooks, open_results(self.results), opened.queue)
        orchestrator = build_orchestrator(stores, specs, cluster=Cluster(cluster, opened.events.database, cluster))
        orchestrator.start()
        self.closing.push_async_callback(orchestrator.close, 0)
        return orchestrator, cluster


async def end_in_decision(orchestrator, cluster, execution_id, monkeypatch) -> None:
    """Let a server end while it decides; its mark stays, as after a kill."""

    async def never(*_):
        """A server that ended removes nothing."""

    def ends(*_, **__):
        raise ServerEnded

    with monkeypatch.context() as patched:
        patched.setattr(cluster, "unmark_decision", never)
        patched.setattr(execution_actor, "advance", ends)
        actor = orchestrator.cache.get(execution_id)
        await actor.load()
        with pytest.raises(ServerEnded):
            await actor._decide([])


async def fall_silent(cluster) -> None:
    """The last heartbeat of a server was a minute ago."""
    statement = "UPDATE noetl_servers SET seen = seen - interval '1 minute' WHERE number = $1"
    await cluster._database.execute(statement, cluster._number)


def test_an_execution_that_ends_server_after_server_fails_and_its_neighbour_does_not(database, tmp_path, monkeypatch):
    async def scenario():
        async with AsyncExitStack() as closing:
            peers = Peers(database, f"file:{tmp_path}", closing)
            first, _ = await peers.start()
            poison = await first.submit(Submission(text=PLAYBOOK.replace("NAME", "poison")))
            innocent = await first.submit(Submission(text=PLAYBOOK.replace("NAME", "innocent")))
            for count in range(1, MAX_EVIDENCE + 1):
                server, cluster = await peers.start()
                await end_in_decision(server, cluster, poison, monkeypatch)
                assert await cluster.fatal_decisions(count) == []  # it counts as alive until it is silent
                await fall_silent(cluster)
                if count < MAX_EVIDENCE:
                    survivor, _ = await peers.start()
                    await give_up_suspects(survivor)
                    assert (await survivor.summary(poison)).status != "failed"
            survivor, _ = await peers.start()
            await survivor.signal(innocent, "go")  # a trial that succeeds
            await give_up_suspects(survivor)
            failed = await survivor.wait(poison, 10)
            assert failed.status == "failed" and "servers ended while they decided" in failed.error
            assert (await survivor.summary(innocent)).status != "failed"
            await give_up_suspects(survivor)

    asyncio.run(scenario())


def test_a_trial_that_succeeds_removes_the_evidence(database, tmp_path, monkeypatch):
    async def scenario():
        async with AsyncExitStack() as closing:
            peers = Peers(database, f"file:{tmp_path}", closing)
            first, _ = await peers.start()
            execution_id = await first.submit(Submission(text=PLAYBOOK.replace("NAME", "once")))
            second, cluster = await peers.start()
            await end_in_decision(second, cluster, execution_id, monkeypatch)
            await fall_silent(cluster)
            third, marks = await peers.start()
            await third.pause(execution_id)
            rows = await marks._database.fetch("SELECT * FROM noetl_deciding")
            assert rows == []

    asyncio.run(scenario())


def test_heartbeats_show_which_workers_were_lost_together(database):
    async def scenario():
        opened = PostgresDatabase(database)
        try:
            cluster = PostgresCluster(opened, "one")
            await cluster.join()
            assert await cluster.silent_together("w1", 10.0)  # nothing is known
            for worker in ("w1", "w2", "w3"):
                await cluster.record_heartbeat(worker, [])
            await opened.execute("UPDATE noetl_signs SET seen = seen - interval '30 seconds' WHERE worker <> 'w3'")
            assert await cluster.silent_together("w1", 10.0)
            assert not await cluster.silent_together("w3", 10.0)
            await opened.execute("UPDATE noetl_signs SET seen = seen - interval '11 seconds' WHERE worker = 'w2'")
            assert not await cluster.silent_together("w1", 10.0)
        finally:
            await opened.close()

    asyncio.run(scenario())


def test_one_server_at_a_time_decides_a_suspect(database):
    async def scenario():
        opened = PostgresDatabase(database)
        try:
            one, two = PostgresCluster(opened, "one"), PostgresCluster(opened, "two")
            await one.join()
            await two.join()
            assert await one.mark_decision("1", 7)
            assert await one.mark_decision("1", 8)
            assert not await two.mark_decision("1", 8)
            assert await two.mark_decision("2", 8)
            with pytest.raises(StoreUnavailable, match="another server"):
                async with DecisionTrials(two, lambda: 0.0).alone("1", 8):
                    raise AssertionError("not alone")
            await one.unmark_decision("1")
            assert await two.mark_decision("1", 8)
            await two.leave()
            assert await one.mark_decision("1", 8)
        finally:
            await opened.close()

    asyncio.run(scenario())


def test_only_old_executions_are_suspects_and_only_for_a_while():
    now = [100.0]
    marked = []

    class Marks:
        async def mark_decision(self, execution_id, seq):
            marked.append(execution_id)
            return True

        async def unmark_decision(self, execution_id):
            pass

    async def scenario():
        trials = DecisionTrials(Marks(), lambda: now[0])
        assert trials.due("old", 99.0) and not trials.due("new", 101.0)
        async with trials.alone("old", 3):
            pass
        assert not trials.due("old", 99.0)
        now[0] += 10
        trials.begin()  # another server stopped
        assert trials.due("old", 99.0) and trials.due("new", 101.0)
        now[0] += decision_trials.SECONDS + 1
        assert not trials.due("old", 99.0)
        assert marked == ["old"]

    asyncio.run(scenario())


def test_a_decision_is_made_alone_and_its_mark_is_removed_however_it_ends():
    calls = []

    class Marks:
        free = True

        async def mark_decision(self, execution_id, seq):
            calls.append(("mark", execution_id, seq))
            return self.free

        async def unmark_decision(self, execution_id):
            calls.append(("unmark", execution_id))

        async def fatal_decisions(self, evidence):
            calls.append(("fatal", evidence))
            return [("7", 3)]

    async def scenario():
        marks = Marks()
        trials = DecisionTrials(marks, lambda: 100.0)
        with pytest.raises(ValueError, match="a defect"):
            async with trials.alone("1", 3):
                raise ValueError("a defect")
        assert calls == [("mark", "1", 3), ("unmark", "1")]
        assert trials.due("1", 100.0)  # it was not decided
        marks.free = False
        with pytest.raises(StoreUnavailable, match="another server is deciding what follows event 4 of 1"):
            async with trials.alone("1", 4):
                raise AssertionError("it is decided elsewhere")
        assert calls[2:] == [("mark", "1", 4)]
        ((execution_id, error),) = await trials.poisoned()
        assert calls[3:] == [("fatal", MAX_EVIDENCE)]
        assert (execution_id, error.kind) == ("7", "limit")
        assert error.message == "2 servers ended while they decided what follows event 3"

    asyncio.run(scenario())


def test_suspects_are_forgotten_after_a_minute():
    now = [100.0]
    trials = DecisionTrials(None, lambda: now[0])
    now[0] = 100.0 + decision_trials.SECONDS
    assert trials.due("1", 100.0) and not trials.due("1", 100.1)
    now[0] += 0.1
    assert not trials.due("1", 100.0)
    now[0] = 100.0
    assert not trials.due("1", 100.0)  # until another server stops
    trials.begin()
    assert trials.due("1", 100.0)
