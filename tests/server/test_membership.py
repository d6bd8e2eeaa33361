"""Membership of a cluster: when a server takes over executions, and how it leaves."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from noetl.errors import StoreUnavailable
from noetl.server.lifecycle import membership as module
from noetl.server.lifecycle.membership import membership
from noetl.storage.ports.cluster import Heartbeat
from tests.waiting import until

BEATS = {
    "quiet": ([Heartbeat()], 0),
    "another server stopped": ([Heartbeat(died=(3,))], 1),
    "this server was taken for stopped": ([Heartbeat(forgotten=True)], 1),
    "its turn for the sweep": ([Heartbeat(sweep=True)], 1),
    "the store was unreachable": ([StoreUnavailable("down"), StoreUnavailable("down"), Heartbeat(), Heartbeat()], 1),
}


class Members:
    """A registry with prepared heartbeats; after the last one it waits."""

    def __init__(self, beats) -> None:
        self.beats = list(beats)
        self.done = asyncio.Event()
        self.left = 0

    async def beat(self):
        if not self.beats:
            self.done.set()
            await asyncio.Event().wait()
        beat = self.beats.pop(0)
        if isinstance(beat, Exception):
            raise beat
        return beat

    async def leave(self):
        self.left += 1


class Trials:
    def __init__(self) -> None:
        self.begun = 0

    def begin(self):
        self.begun += 1

    async def poisoned(self):
        return [("9", SimpleNamespace(message="it ended two servers"))]


class Orchestrator:
    def __init__(self, trials=None) -> None:
        self.actors = SimpleNamespace(trials=trials)
        self.given_up: list[str] = []

    async def give_up(self, execution_id, error):
        self.given_up.append(execution_id)


@pytest.fixture
def resumed(monkeypatch):
    calls: list[bool] = []

    async def resume(orchestrator, *, waiting):
        calls.append(waiting)
        return []

    monkeypatch.setattr(module.recovery, "resume", resume)
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.001)
    return calls


@pytest.mark.parametrize("name", BEATS)
def test_a_server_takes_over_when_a_heartbeat_says_so(name, resumed):
    beats, wanted = BEATS[name]

    async def scenario():
        members, orchestrator = Members(beats), Orchestrator(Trials())
        async with membership(members, orchestrator) as monitor:
            await until(members.done.is_set)
            await until(lambda: len(resumed) >= wanted)
            assert monitor.silent < 10
            assert members.left == 0
        assert resumed == [False] * wanted
        assert orchestrator.given_up == ["9"] * wanted
        assert orchestrator.actors.trials.begun == ("stopped" in name and "another" in name)
        assert members.left == 1

    asyncio.run(scenario())


def test_a_take_over_that_fails_is_repeated(monkeypatch, resumed):
    failures = [StoreUnavailable("down")]

    async def resume(orchestrator, *, waiting):
        if failures:
            raise failures.pop()
        resumed.append(waiting)

    monkeypatch.setattr(module.recovery, "resume", resume)

    async def scenario():
        members = Members([Heartbeat(sweep=True)])
        async with membership(members, Orchestrator()):
            await until(lambda: resumed)
        assert resumed == [False]

    asyncio.run(scenario())


def test_a_heartbeat_that_fails_does_not_count(resumed):
    async def scenario():
        members = Members([StoreUnavailable("down")] * 3)
        async with membership(members, Orchestrator()) as monitor:
            monitor.at -= 100
            await until(members.done.is_set)
            assert monitor.silent >= 100
            members.beats.append(Heartbeat())
        assert resumed == []

    asyncio.run(scenario())


def test_a_server_ends_also_if_it_cannot_leave(resumed):
    class Unreachable(Members):
        async def leave(self):
            raise StoreUnavailable("down")

    async def scenario():
        with contextlib.suppress(ZeroDivisionError):
            async with membership(Unreachable([]), Orchestrator()):
                raise ZeroDivisionError

    asyncio.run(scenario())
