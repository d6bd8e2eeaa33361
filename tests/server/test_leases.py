"""Leases: terms, heartbeats and revocations."""

import asyncio
from unittest.mock import Mock

from noetl.core.model.work import Claim
from noetl.runtime.clock import RealClock
from noetl.server.dispatch import leases as module
from noetl.server.dispatch.dispatcher import Dispatcher
from noetl.server.dispatch.leases import Leases
from noetl.storage.ports.queue import QueuedRun
from noetl.storage.queue.memory import MemoryRunQueue


class StoppedClock:
    time = 100.0

    def monotonic(self):
        return self.time


def test_a_lease_without_heartbeat_expires():
    clock = StoppedClock()
    leases = Leases(clock, 30.0)
    leases.grant("1:a:1", 1, "w1")
    leases.grant("1:b:1", 1, "w1")
    clock.time += 20
    leases.extend("w1", [("1:a:1", 1)])
    leases.extend("w2", [("1:b:1", 1)])
    leases.extend("w1", [("1:b:1", 2)])
    clock.time += 15
    assert [lease.run_id for lease in leases.expired()] == ["1:b:1"]


def test_workers_that_were_seen_last_at_the_same_time_are_lost_together():
    clock = StoppedClock()
    leases = Leases(clock, 30.0)
    leases.grant("1:a:1", 1, "w1")
    leases.grant("1:b:1", 1, "w2")
    leases.grant("1:c:1", 1, "w3", adopted=True)  # granted again after a restart
    clock.time += 7
    leases.extend("w2", [])
    assert leases.lost_together("w1", 30.0) and leases.lost_together("w2", 30.0)
    assert leases.lost_together("w3", 30.0)
    clock.time += 23
    leases.extend("w2", [])  # it is alive
    assert not leases.lost_together("w1", 30.0)
    leases.grant("1:d:1", 1, "w1")
    leases.forget("w2")
    assert not leases.lost_together("w1", 30.0)


def test_in_one_process_nothing_expires():
    clock = StoppedClock()
    leases = Leases(clock, None)
    leases.grant("1:a:1", 1, "w1")
    clock.time += 10**9
    assert leases.expired() == []


def test_a_lease_is_one_worker_and_one_epoch():
    leases = Leases(StoppedClock(), 30.0)
    leases.grant("1:a:1", 1, "w1")
    leases.grant("1:a:1", 2, "w2")
    assert leases.holds("w2", "1:a:1", 2)
    assert not leases.holds("w1", "1:a:1", 1)
    leases.release("1:a:1", 1)
    assert leases.holds("w2", "1:a:1", 2)
    leases.release("1:a:1")
    assert not leases.holds("w2", "1:a:1", 2)


def test_a_worker_is_notified_of_a_revocation_at_once():
    async def scenario():
        leases = Leases(StoppedClock(), 30.0)
        leases.grant("1:a:1", 1, "w1")
        listening = asyncio.create_task(leases.revocations("w1", 30))
        await asyncio.sleep(0)
        leases.revoke("1:a:1", 1, "w1")
        assert await asyncio.wait_for(listening, 5) == ["1:a:1"]
        assert not leases.holds("w1", "1:a:1", 1)
        leases.revoke("1:b:1", 1, "w1")
        assert await leases.revocations("w1", 0) == ["1:b:1"]
        assert await leases.revocations("w1", 0.001) == []

    asyncio.run(scenario())


def test_a_worker_without_heartbeat_gets_no_runs_until_it_claims_again():
    async def scenario():
        queue = MemoryRunQueue()
        leased = []

        async def lease(claim, runs):
            leased.append((claim.worker, [run.run_id for run in runs]))
            return [Mock(cost=1, alone=False) for _ in runs]

        claims = Dispatcher(queue, lease, lambda claim, orders: None)
        silent = asyncio.create_task(claims.claim(Claim("silent", 1), 30))
        other = asyncio.create_task(claims.claim(Claim("other", 1), 30))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        claims.dismiss("silent")
        assert await asyncio.wait_for(silent, 5) == []
        await queue.put([QueuedRun("1", "1:a:1")])
        assert len(await asyncio.wait_for(other, 5)) == 1
        assert leased == [("other", ["1:a:1"])]
        await queue.put([QueuedRun("1", "1:b:1")])
        assert len(await claims.claim(Claim("silent", 1), 0)) == 1

    asyncio.run(scenario())


def test_a_worker_that_stops_while_it_is_notified_is_cancelled():
    async def check():
        leases = Leases(RealClock(), 30.0)
        waiting = asyncio.create_task(leases.revocations("w", 30.0))
        await asyncio.sleep(0)
        leases.revoke("1:a:1", 1, "w")
        waiting.cancel()
        await asyncio.wait([waiting], timeout=5)
        assert waiting.cancelled()

    asyncio.run(check())


def test_leases_missing_in_a_heartbeat_are_found_after_a_grace():
    clock = StoppedClock()
    leases = Leases(clock, 30.0)
    leases.grant("1:a:1", 1, "w1")
    leases.grant("1:b:1", 2, "w1")
    leases.grant("1:c:1", 1, "w2")
    assert leases.unreported("w1", [], 5.0) == []
    clock.time += 5
    leases.grant("1:d:1", 1, "w1")  # its order may be under way
    found = leases.unreported("w1", [("1:a:1", 1), ("1:b:1", 1)], 5.0)
    assert [(lease.run_id, lease.epoch) for lease in found] == [("1:b:1", 2)]
    assert [lease.run_id for lease in leases.held_by("w1")] == ["1:a:1", "1:b:1", "1:d:1"]


def test_a_lease_is_prolonged_only_while_it_is_granted():
    clock = StoppedClock()
    leases = Leases(clock, 30.0)
    leases.grant("1:a:1", 1, "w1")
    leases.grant("11:a:1", 1, "w1")
    (lease,) = leases.of_execution("1")
    assert leases.remaining(lease) == 30.0
    clock.time += 10
    leases.prolong(lease, 5.0)
    assert leases.remaining(lease) == 5.0
    leases.grant("1:a:1", 2, "w2")
    leases.prolong(lease, 500.0)
    clock.time += 5
    assert [each.run_id for each in leases.expired()] == []
    assert leases.remaining(lease) == 0.0
    clock.time += 25
    assert [(each.run_id, each.epoch) for each in leases.expired()] == [("1:a:1", 2), ("11:a:1", 1)]
    assert len(leases) == 2 and Leases(clock, None).remaining(lease) is None


def test_a_revocation_that_was_pushed_is_not_sent_again():
    async def scenario():
        pushed = []
        leases = Leases(StoppedClock(), 30.0)
        leases.push_revocations(lambda worker, run_id: pushed.append((worker, run_id)) or worker == "w1")
        leases.grant("1:a:1", 1, "w1")
        leases.revoke("1:a:1", 1, "w1")
        leases.revoke("1:b:1", 1, "w2")
        assert not leases.holds("w1", "1:a:1", 1)
        assert pushed == [("w1", "1:a:1"), ("w2", "1:b:1")]
        assert await leases.revocations("w1", 0) == []
        assert await leases.revocations("w2", 0) == ["1:b:1"]

    asyncio.run(scenario())


def test_revocations_for_a_worker_that_does_not_listen_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_PENDING_REVOCATIONS", 3)

    async def scenario():
        leases = Leases(StoppedClock(), 30.0)
        for number in range(3):
            leases.revoke(f"1:a:{number}", 1, "gone")
        assert await leases.revocations("gone", 0) == ["1:a:0", "1:a:1", "1:a:2"]
        for number in range(4):
            leases.revoke(f"1:a:{number}", 1, "gone")
        assert await leases.revocations("gone", 0) == ["1:a:3"]

    asyncio.run(scenario())
