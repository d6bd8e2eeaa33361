"""The attempt ledger finds starts of tools that share a number, from the log alone."""

from __future__ import annotations

import pytest

from noetl.core.engine.attempt_ledger import AttemptLedger
from noetl.core.model.events import (
    ChildRequested,
    Event,
    StepDone,
    StepStarted,
    TaskDone,
    TaskStarted,
    WaitStarted,
    WorkerLost,
)
from noetl.core.model.outcome import ok
from noetl.core.model.position import Position

RUN = "77:start:1"


def lease(epoch: int = 1) -> Event:
    return StepStarted("start", RUN, epoch, "w")


def start(attempt: int = 1, task: str = "a", visit: int = 1, kind: str = "http") -> Event:
    return TaskStarted("start", RUN, task, kind, visit=visit, attempt=attempt)


def done(attempt: int = 1, task: str = "a", visit: int = 1) -> Event:
    return TaskDone("start", RUN, task, "http", ok(), visit=visit, attempt=attempt)


def lost(epoch: int = 1, *, returned: bool = False, begun: bool = False) -> Event:
    return WorkerLost("start", RUN, epoch, worker="w", returned=returned, begun=begun)


END = StepDone("start", RUN, ok())
CALL = ChildRequested("start", RUN, "call", "other", position=Position("a"))
WAIT = WaitStarted("start", RUN, "wait", signal="go", position=Position("a"))


def violations(*events: Event) -> list[str]:
    ledger = AttemptLedger()
    return [each for event in events for each in ledger.violations(event)]


@pytest.mark.parametrize(
    "events",
    [
        (lease(), start(), done(), start(1, "b"), done(1, "b"), END),
        (lease(), start(), lost(), lease(2), start(2), done(2), END),
        (lease(), lost(), lease(2), start(2), done(2), start(1, "b"), done(1, "b"), END),
        (lease(), lost(returned=True), lease(2), start(), done(), END),
        (lease(), lost(returned=True, begun=True), lease(2), start(2), done(2), END),
        (lease(), start(), done(), start(2), done(2), start(1, visit=2), done(1, visit=2), END),
        (lease(), start(), lost(), done(), lease(2), start(1, "b"), done(1, "b"), END),  # a late end
        (lease(), lost(), start(2), done(2), lease(2), start(1, "b"), END),  # a start and its end in a late report
        (lease(), start(kind="workbook"), lost(), lease(2), start(kind="workbook"), END),
        (lease(), lost(), lease(2), start(2, "call"), CALL, lease(3), start(), done(), END),
        (lease(), lost(), lease(2), WAIT, lease(3), start(), done(), END),
    ],
)
def test_a_valid_log_violates_nothing(events):
    assert violations(*events) == []


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ((lease(), start(), lost(), start(1, "b"), lease(2)), "without a lease"),
        ((lease(), start(), lost(), done(), lease(2), start(1)), "started twice"),
        ((lease(), start(), lost(returned=True), lease(2), start(1)), "started twice"),
        ((lease(), lost(), lease(2), start(1)), "used up"),
        ((lease(), lost(returned=True, begun=True), lease(2), start(1)), "used up"),
        ((lease(), start(), done(), done()), "ended twice"),
        ((lease(), start(1, "call"), CALL, start(), lease(2)), "without a lease"),
    ],
)
def test_a_reused_number_is_a_violation(events, words):
    found = violations(*events)
    assert any(words in each for each in found) and all(each.startswith(RUN) for each in found)
