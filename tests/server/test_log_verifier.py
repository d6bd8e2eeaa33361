"""`doctor --verify` reads every log, compares its summary, and finds attempts that were started twice; `--repair`."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from noetl.core.language.compile import compile_playbook
from noetl.core.model.events import (
    Event,
    ExecutionRequested,
    Recorded,
    RequestEvaluated,
    StepScheduled,
    StepStarted,
    TaskStarted,
    WorkerLost,
    WorkflowStarted,
)
from noetl.errors import CorruptLog
from noetl.server.lifecycle import log_verifier
from noetl.server.lifecycle.log_verifier import repair, verify
from noetl.server.read_models.summaries import project
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.ports.events import Append
from noetl.tools.registry import specs

BEGIN: tuple[Event, ...] = (
    ExecutionRequested(playbook="d", path="p"),
    RequestEvaluated(),
    WorkflowStarted(entry="start"),
    StepScheduled(step="start", step_run_id="77:start:1", tokens=("77-t1",)),
    StepStarted("start", "77:start:1", 1, "w1"),
    TaskStarted("start", "77:start:1", "pay", "http"),
    WorkerLost("start", "77:start:1", 1, worker="w1"),
    StepStarted("start", "77:start:1", 2, "w2"),
)


@pytest.mark.parametrize(("attempt", "problems"), [(2, 0), (1, 1)])
def test_a_reused_attempt_number_is_found(attempt, problems):
    bodies = (*BEGIN, TaskStarted("start", "77:start:1", "pay", "http", attempt=attempt))
    log = [Recorded("77", seq, 1.0 * seq, body) for seq, body in enumerate(bodies, 1)]

    async def check():
        store = MemoryEventStore()
        await store.append(Append("77", 0, tuple(log), project(None, log)))
        return await verify(store)

    executions, events, damaged = asyncio.run(check())
    assert (executions, events, len(damaged)) == (1, 9 if not problems else 0, problems)
    assert all("attempt 1 of task pay" in each for each in damaged)


# ── pages, mismatches, repair ───────────────────────────────────────────────────────────


class Rewriting(MemoryEventStore):
    """A store whose summaries can be rewritten."""

    def __init__(self):
        super().__init__()
        self.rewritten = []

    async def rewrite_summary(self, summary):
        self.rewritten.append(summary.execution_id)
        self._summaries[summary.execution_id] = msgspec.structs.replace(
            summary, key=self._summaries[summary.execution_id].key
        )


async def load(digest):
    """The playbook of these executions."""
    text = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p, path: p}\n"
    text += "workflow: [{step: start, tool: [{name: pay, kind: noop}]}]\n"
    compiled = compile_playbook(text, file="", specs=specs()).playbook
    assert digest == "d" and compiled is not None
    return compiled


def log_of(execution_id, *more):
    bodies = (*(_renamed(body, execution_id) for body in BEGIN), *more)
    return [Recorded(execution_id, seq, 1.0 * seq, body) for seq, body in enumerate(bodies, 1)]


def _renamed(body, execution_id):
    known = getattr(body, "step_run_id", None)
    return body if known is None else msgspec.structs.replace(body, step_run_id=f"{execution_id}:start:1")


async def filled(store, count=5, **changes):
    """Executions 1 to `count`; the summary of execution 3 has these changes."""
    for number in range(1, count + 1):
        log = log_of(str(number))
        summary = msgspec.structs.replace(project(None, log), key=f"k{number}")
        await store.append(Append(str(number), 0, tuple(log), summary))
    store._summaries["3"] = msgspec.structs.replace(store._summaries["3"], **changes)
    return store


MISMATCH = "execution 3: its summary does not match its log; `noetl doctor --repair` writes it again from the log"


@pytest.fixture(params=[(500, 5_000), (2, 3), (1, 1)], ids=["one page", "pages", "single"])
def pages(request, monkeypatch):
    """Sizes of the pages of executions and of events."""
    for name, size in zip(("PAGE", "EVENTS"), request.param, strict=True):
        monkeypatch.setattr(log_verifier, name, size)


@pytest.mark.parametrize(
    ("changes", "damaged"),
    [
        ({}, False),
        ({"steps_done": 4}, True),
        ({"path": "other"}, True),
        ({"status": "success"}, True),
        ({"status": "waiting"}, False),  # depends on the playbook, as the next ones
        ({"held": {"pool default": 1}, "due": 5.0, "inbox": 2, "steps": {"start": 1.0}}, False),
        ({"labels": ("a=b",)}, True),
        ({"trigger": ""}, False),  # a row of an earlier version
        ({"trigger": "", "reuses": "1"}, False),
        ({"trigger": "", "steps_done": 4}, True),
    ],
    ids=str,
)
def test_every_log_is_read_and_every_summary_compared(changes, damaged, pages):
    async def scenario():
        return await verify(await filled(MemoryEventStore(), **changes))

    assert asyncio.run(scenario()) == (5, 32 if damaged else 40, [MISMATCH] if damaged else [])


def test_every_attempt_that_was_started_twice_counts():
    again = TaskStarted("start", "77:start:1", "pay", "http", attempt=1)

    async def scenario(log):
        store = MemoryEventStore()
        await store.append(Append("77", 0, tuple(log), project(None, log)))
        return (await verify(store))[2]

    (one,) = asyncio.run(scenario(log_of("77", again)))
    (two,) = asyncio.run(scenario(log_of("77", again, again)))
    assert one.startswith("execution 77: a tool may have run twice: ") and "more)" not in one
    assert two == f"{one} (and 1 more)"


def test_an_execution_that_is_deleted_during_the_check_is_not_damaged():
    class Deleting(MemoryEventStore):
        async def summary(self, execution_id):
            return None if execution_id == "3" else await super().summary(execution_id)

    async def scenario():
        return await verify(await filled(Deleting()))

    assert asyncio.run(scenario()) == (5, 32, [])


def test_damage_of_a_log_and_of_the_list_is_reported_and_the_rest_is_read(monkeypatch):
    monkeypatch.setattr(log_verifier, "PAGE", 2)

    class Damaged(MemoryEventStore):
        list_is_damaged = False

        async def read(self, execution_id, after=0, limit=None):
            if execution_id == "4":
                raise CorruptLog("event 4 is damaged")
            return await super().read(execution_id, after, limit)

        async def executions(self, wanted):
            if self.list_is_damaged and wanted.before is not None:
                raise CorruptLog("the list is damaged")
            return await super().executions(wanted)

    async def scenario():
        store = await filled(Damaged())
        whole = await verify(store)
        store.list_is_damaged = True
        return whole, await verify(store)

    whole, part = asyncio.run(scenario())
    assert whole == (5, 32, ["event 4 is damaged"])
    assert part == (2, 8, ["event 4 is damaged", "the list is damaged"])


def test_a_repair_rewrites_the_summaries_that_differ_and_no_others(pages):
    async def scenario():
        store = await filled(Rewriting(), steps_done=4, seq=8)
        before = dict(store._summaries)
        assert await repair(store, load) == (1, [])
        assert store.rewritten == ["3"]
        assert store._summaries["3"].steps_done == 0
        assert store._summaries["3"].seq == 8
        assert {**store._summaries, "3": before["3"]} == before
        assert await verify(store) == (5, 40, [])
        assert await repair(store, load) == (0, [])

    asyncio.run(scenario())


def test_what_cannot_be_repaired_is_left_with_its_reason():
    again = TaskStarted("start", "9:start:1", "pay", "http", attempt=1)

    class Empty(Rewriting):
        async def read(self, execution_id, after=0, limit=None):
            if execution_id == "2":
                raise CorruptLog("the log is damaged")
            return await super().read(execution_id, after, limit)

    async def scenario():
        store = await filled(Empty(), steps_done=4)
        log = log_of("9", again)
        await store.append(Append("9", 0, tuple(log), project(None, log)))
        repaired, left = await repair(store, load)
        assert repaired == 1  # the log of 9 says that a tool ran twice: rewriting its summary does not change that
        assert left[0].startswith("execution 9: a tool may have run twice") and left[1:] == [
            "execution 2: the log is damaged"
        ]
        unchangeable = await filled(MemoryEventStore(), steps_done=4)
        assert await repair(unchangeable, load) == (0, [MISMATCH])

    asyncio.run(scenario())
