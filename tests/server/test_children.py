"""What a server does for the engine's effects on child executions: submissions, commands to callers and children."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from noetl.core.engine.commands import CancelExecution, RecordChildEnd, RecordChildStart, RecordChildWait, Reply
from noetl.core.engine.effects import AnswerParent, AwaitChild, CancelChild, SetTimer, StartChild
from noetl.core.model.events import Parent
from noetl.core.model.outcome import error, ok
from noetl.errors import CorruptLog, InvalidPlaybook, NotFound, RequestRefused, StoreUnavailable
from noetl.server.lifecycle.children import Children
from noetl.server.orchestrator.submissions import Submission
from tests.server.conftest import Hand, run
from tests.server.test_orchestrator import CHAIN, working
from tests.server.test_worker_service import Background, Executions, row

KEY = "1:a:1:t:1:1"
PARENT = Parent("1", "1:a:1", KEY)
START = StartChild(KEY, PARENT, "child", {"n": 1}, "2", "in", "out")


class Store:
    def __init__(self, known=None, rows=()):
        self._known = known
        self._rows = {each.execution_id: each for each in rows}

    async def by_key(self, key):
        assert key == KEY
        return self._known

    async def summary(self, execution_id):
        return self._rows.get(execution_id)


class Starter:
    def __init__(self, problem=None):
        self.problem = problem
        self.submitted = []

    async def submit(self, submission):
        self.submitted.append(submission)
        if self.problem is not None:
            raise self.problem
        return "9"


def caller(surface="2026-01", labels=None):
    executor = SimpleNamespace(tracing=None)
    return SimpleNamespace(
        execution_id="1",
        playbook=SimpleNamespace(file="dir/p.yaml", surface=surface, executor=executor),
        request=SimpleNamespace(labels=labels or {}, trace=None),
    )


def performed(effect, *, store=None, starter=None, answer_instead=None, **states):
    """The commands that were sent, and what was submitted."""
    limiter = SimpleNamespace(tenant_labels=lambda labels: {"tenant": labels["tenant"]} if labels else {})
    executions, background, starter = (
        Executions(**{"1": states.get("state") or caller()}),
        Background(),
        starter or Starter(),
    )
    children = Children(
        SimpleNamespace(store=store or Store(), limiter=limiter), executions, starter, background, answer_instead
    )
    children.perform("1", effect)
    assert background.names in ([], [f"{type(effect).__name__} of execution 1"])
    asyncio.run(background.run())
    return executions.sent, starter.submitted


def ended(outcome, child=""):
    return [("1", RecordChildEnd(KEY, child, outcome))]


@pytest.mark.parametrize(("surface", "legacy"), [("2026-01", False), ("2025-11", True)])
@pytest.mark.parametrize("labels", [{}, {"tenant": "a", "team": "x"}])
def test_a_child_is_submitted_with_what_its_caller_gives(surface, legacy, labels, monkeypatch):
    monkeypatch.setattr("noetl.server.lifecycle.children._trace", lambda state, task: f"{state.execution_id} {task}")
    sent, submitted = performed(START, state=caller(surface, labels))
    assert submitted == [
        Submission(
            path="child", version="2", payload={"n": 1}, key=KEY, entry_step="in", return_step="out", parent=PARENT,
            caller="dir/p.yaml", legacy=legacy, trace=f"1 {KEY}", labels={"tenant": "a"} if labels else {},
        )
    ]  # fmt: skip
    assert sent == [("1", RecordChildStart(KEY, "9"))]


@pytest.mark.parametrize(
    ("problem", "outcome"),
    [
        (NotFound("no playbook"), error("not_found", "no playbook")),
        (RequestRefused("refused"), error("client_error", "refused")),
        (CorruptLog("damaged"), error("unknown", "playbook 'child': damaged")),
        (KeyError("x"), error("unknown", "playbook 'child': KeyError: 'x'")),
    ],
)
def test_a_child_that_cannot_start_ends_with_the_reason(problem, outcome, monkeypatch):
    monkeypatch.setattr("noetl.server.lifecycle.children._trace", lambda *_: None)
    assert performed(START, starter=Starter(problem))[0] == ended(outcome)


def test_an_invalid_child_is_an_error_of_the_schema(monkeypatch):
    monkeypatch.setattr("noetl.server.lifecycle.children._trace", lambda *_: None)
    ((to, command),), _ = performed(START, starter=Starter(InvalidPlaybook([])))
    assert (to, command.key, command.child, command.outcome.error.kind) == ("1", KEY, "", "schema")
    assert command.outcome.error.message.startswith("playbook 'child': ")


def test_a_child_is_started_later_if_the_store_is_unreachable(monkeypatch):
    monkeypatch.setattr("noetl.server.lifecycle.children._trace", lambda *_: None)
    with pytest.raises(StoreUnavailable):
        performed(START, starter=Starter(StoreUnavailable("unreachable")))


def test_a_given_answer_replaces_the_child():
    assert performed(START, answer_instead=lambda effect: ok(effect.payload)) == (ended(ok({"n": 1})), [])
    known = Store(row("9", "child", status="running"))
    assert performed(START, store=known, answer_instead=lambda _: None)[0] == [("1", RecordChildStart(KEY, "9"))]


@pytest.mark.parametrize("status", ["running", "waiting", None])
def test_a_child_that_was_started_before_is_not_started_again(status):
    child = msgspec.structs.replace(row("9", "child", status=status or "running"), seq=4)
    sent, submitted = performed(START, store=Store(child, [child] if status else []))
    waits = [("1", RecordChildWait(KEY, "9", True, 4))] if status == "waiting" else []
    assert (sent, submitted) == ([("1", RecordChildStart(KEY, "9")), *waits], [])
    assert performed(AwaitChild(KEY, "9"), store=Store(None, [child] if status else []))[0] == waits


@pytest.mark.parametrize("reason", ["", "enough"])
@pytest.mark.parametrize("compensate", [True, False])
def test_a_child_is_cancelled_by_its_id_or_its_key(reason, compensate):
    child = row("9", "child", status="running")
    cancelled = CancelExecution(reason or "its caller 1 was cancelled", compensate=compensate)
    by_id = performed(CancelChild(KEY, "9", reason, compensate), store=Store(None, [child]))
    by_key = performed(CancelChild(KEY, None, reason, compensate), store=Store(child, [child]))
    assert by_id == by_key == ([("9", cancelled)], [])
    never = performed(CancelChild(KEY, None, reason, compensate))
    assert never == (ended(error("cancelled", reason or "cancelled before it began")), [])


def test_an_ended_child_answers_its_caller_and_other_effects_are_not_of_children():
    effect = AnswerParent(PARENT, "9", ok(3), compensable=True)
    assert performed(effect)[0] == [("1", RecordChildEnd(KEY, "9", ok(3), True))]
    assert performed(SetTimer(5.0)) == ([], [])


def test_the_answer_of_a_child_is_read_from_its_log_once_it_has_ended():
    async def scenario(orchestrator):
        children = orchestrator.effects.children
        sent = []

        async def send(execution_id, command):
            sent.append((execution_id, command))
            return Reply(True)

        child = await orchestrator.submit(Submission(text=CHAIN, parent=PARENT, key=KEY))
        children._executions = SimpleNamespace(send=send)
        await children._await("1", KEY, child)
        assert sent == []
        async with working(Hand(orchestrator.work, {"end": {"n": 1}})):
            await orchestrator.wait(child, 10)
        sent.clear()
        await children._await("1", KEY, child)
        ((to, command),) = sent
        assert (to, command.key, command.child) == ("1", KEY, child)
        assert (command.outcome.status, command.outcome.data) == ("ok", {"n": 1})

    run(scenario)
