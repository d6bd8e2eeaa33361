"""A defect in a decision: its execution fails with an error that names it, and everything else goes on."""

from __future__ import annotations

import asyncio
import logging

import pytest

from noetl.core.engine import accept as accept_module
from noetl.core.engine import advance as advance_module
from noetl.core.engine import decide as decide_module
from noetl.core.engine.commands import FireTimer, ReportRun, SendSignal
from noetl.core.engine.evolve import APPLIERS
from noetl.core.model.events import LoopStarted, RequestEvaluated, StepDone, TaskDone, WaitStarted
from noetl.embedded import open_local
from noetl.errors import CorruptLog, DecisionFailed, StoreUnavailable, TemplateError
from noetl.observability import metrics
from noetl.server.orchestrator import execution_actor
from noetl.server.orchestrator.execution_starter import ExecutionStarter
from noetl.server.orchestrator.submissions import Submission

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: %s}\nworkflow:\n"
STEP = "  - step: start\n    tool: {kind: python, code: 'result = 1'}\n"
ROUTED = STEP + "    next: {arcs: [{step: b}]}\n  - step: b\n    tool: {kind: noop}\n"
LOOP = (
    STEP
    + "    next: {arcs: [{step: b}]}\n  - step: b\n    loop: {in: [1, 2, 3], iterator: i}\n    tool: {kind: python, code: 'result = 1'}\n"
)
WAIT = "  - step: start\n    tool: {kind: wait, signal: go, timeout: %s}\n"
BROKEN, HEALTHY = HEAD % "broken", HEAD % "healthy"


def is_broken(state) -> bool:
    return state.playbook.path == "broken"


def raising(original, problem, after=6):
    """A function over a state that raises for the broken playbook alone, after its first decision."""

    def call(state, *arguments, **more):
        if is_broken(state) and state.seq > after:
            raise problem
        return original(state, *arguments, **more)

    return call


def break_handler(kind, problem):
    def patch(monkeypatch):
        monkeypatch.setitem(decide_module.HANDLERS, kind, raising(decide_module.HANDLERS[kind], problem))

    return patch


def break_command(kind, problem):
    def patch(monkeypatch):
        handlers = accept_module.COMMAND_HANDLERS
        monkeypatch.setitem(handlers, kind, raising(handlers[kind], problem, after=0))

    return patch


def break_function(module, name, problem):
    def patch(monkeypatch):
        monkeypatch.setattr(module, name, raising(getattr(module, name), problem))

    return patch


def break_applier(kind, problem):
    def patch(monkeypatch):
        applier, *traits = advance_module._TRAITS[kind]
        monkeypatch.setitem(advance_module._TRAITS, kind, (raising(applier, problem), *traits))
        monkeypatch.setitem(APPLIERS, kind, raising(APPLIERS[kind], problem))

    return patch


def break_effects(monkeypatch):
    original = advance_module._Advance._enqueue

    def enqueue(self, effects):
        if is_broken(self.state) and self.state.seq > 6:
            raise ValueError("e")
        return original(self, effects)

    monkeypatch.setattr(advance_module._Advance, "_enqueue", enqueue)


def break_projection(monkeypatch):
    original = execution_actor.slots_held

    def slots_held(state):
        if is_broken(state) and state.seq > 6 and state.finished is None:
            raise LookupError("p")
        return original(state)

    monkeypatch.setattr(execution_actor, "slots_held", slots_held)


def break_settling(monkeypatch):
    """Not even the cancellation can be decided."""
    original = advance_module.settle

    def settle(state, env):
        if is_broken(state) and state.seq > 6:
            raise AssertionError("settle")
        return original(state, env)

    monkeypatch.setattr(advance_module, "settle", settle)


async def outcome(engine, text: str):
    """The end of an execution, and what `why` says."""
    execution_id = await engine.orchestrator.submit(Submission(text=text))
    summary = await engine.orchestrator.wait(execution_id, timeout=20)
    return summary, await engine.orchestrator.explain(execution_id)


DEFECTS = {
    "the handler of an event": (break_handler(StepDone, KeyError("x")), ROUTED),
    "an error of a template that is not caught": (break_handler(StepDone, TemplateError("leaked")), ROUTED),
    "no memory": (break_handler(StepDone, MemoryError()), STEP),
    "recursion": (break_handler(StepDone, RecursionError("deep")), STEP),
    "the end of an iterator": (break_handler(StepDone, StopIteration()), STEP),
    "the start of a loop": (break_handler(LoopStarted, IndexError("i")), LOOP),
    "the judgement of a report": (break_command(ReportRun, TypeError("t")), STEP),
    "the judgement of a timer": (break_command(FireTimer, ZeroDivisionError("z")), WAIT % "0.05s"),
    "the order of a run": (break_function(advance_module, "order_of", AttributeError("a")), ROUTED),
    "the effects": (break_effects, ROUTED),
    "an applier": (break_applier(StepDone, KeyError("applier")), ROUTED),
    "an applier of a task": (break_applier(TaskDone, KeyError("applier")), ROUTED),
    "the projection": (break_projection, ROUTED),
    "the end": (break_settling, ROUTED),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_fails_its_execution_and_no_other(tmp_path, monkeypatch, defect, caplog):
    patch, body = DEFECTS[defect]
    before = metrics.DEFECTS.value()

    async def scenario():
        async with await open_local(home=tmp_path / "home") as engine:
            patch(monkeypatch)
            broken, healthy = await asyncio.gather(outcome(engine, BROKEN + body), outcome(engine, HEALTHY + body))
            again, _ = await outcome(engine, HEALTHY + STEP)
            return broken, healthy, again

    (broken, why), (healthy, _), again = asyncio.run(scenario())
    assert broken.status == "failed"
    assert "defect" in broken.error and "raised" in broken.error, broken.error
    assert any("defect" in each for each in why.because), why
    assert healthy.status == ("failed" if "wait" in body else "success"), healthy.error
    assert "defect" not in (healthy.error or "")
    assert again.status == "success"
    assert before < metrics.DEFECTS.value() < before + 20
    assert [each for each in caplog.records if each.levelno >= logging.ERROR and each.exc_info]


def test_a_request_whose_first_decision_has_a_defect_is_refused(tmp_path, monkeypatch):
    async def scenario():
        async with await open_local(home=tmp_path / "home") as engine:
            monkeypatch.setitem(decide_module.HANDLERS, RequestEvaluated, lambda *_: {}["x"])
            with pytest.raises(DecisionFailed, match="KeyError"):
                await engine.orchestrator.submit(Submission(text=HEALTHY + STEP))
            return await engine.orchestrator.store.unfinished()

    assert asyncio.run(scenario()) == []


def test_a_signal_with_a_defect_is_refused_and_its_execution_goes_on(tmp_path, monkeypatch):
    async def scenario():
        async with await open_local(home=tmp_path / "home") as engine:
            execution_id = await engine.orchestrator.submit(Submission(text=BROKEN + WAIT % "30s"))
            await until_waiting(engine, execution_id)
            with monkeypatch.context() as broken:
                break_command(SendSignal, KeyError("s"))(broken)
                with pytest.raises(DecisionFailed, match="KeyError"):
                    await engine.orchestrator.signal(execution_id, "go", {"x": 1})
            await engine.orchestrator.signal(execution_id, "go", {"x": 1})
            return await engine.orchestrator.wait(execution_id, timeout=20)

    assert asyncio.run(scenario()).status == "success"


async def until_waiting(engine, execution_id: str) -> None:
    async for recorded in engine.orchestrator.subscribe(execution_id):
        if isinstance(recorded.body, WaitStarted):
            return


def test_an_unreachable_store_is_retried_and_fails_nothing(tmp_path):
    async def scenario():
        async with await open_local(home=tmp_path / "home") as engine:
            store, failures = engine.orchestrator.store, 0
            append = store.append

            async def failing(each):
                nonlocal failures
                if failures < 5 and each.expected_seq > 3:
                    failures += 1
                    raise StoreUnavailable("connection refused")
                return await append(each)

            store.append = failing
            summary, _ = await outcome(engine, HEALTHY + ROUTED)
            return summary, failures

    summary, failures = asyncio.run(scenario())
    assert (summary.status, failures) == ("success", 5)


@pytest.mark.parametrize("problem", [DecisionFailed("decided"), CorruptLog("damaged"), KeyError("child")])
def test_the_caller_of_a_child_that_cannot_be_started_fails(tmp_path, monkeypatch, problem):
    submit = ExecutionStarter.submit

    async def failing(self, submission):
        if submission.parent is not None:
            raise problem
        return await submit(self, submission)

    monkeypatch.setattr(ExecutionStarter, "submit", failing)

    async def scenario():
        async with await open_local(home=tmp_path / "home") as engine:
            body = "  - step: start\n    tool: {kind: playbook, path: other}\n"
            return await outcome(engine, HEALTHY + body)

    summary, _ = asyncio.run(scenario())
    assert summary.status == "failed"
    assert str(problem.args[0]) in summary.error


def test_a_restart_resumes_the_others(tmp_path, monkeypatch, caplog):
    """The log of one execution cannot be folded, and the effects of another one cannot be derived."""

    async def begin():
        async with await open_local(home=tmp_path / "home") as engine:
            found = []
            for text in (BROKEN + WAIT % "300s", HEALTHY + WAIT % "300s"):
                execution_id = await engine.orchestrator.submit(Submission(text=text))
                await until_waiting(engine, execution_id)
                found.append(execution_id)
            return found

    async def resume(healthy):
        async with await open_local(home=tmp_path / "home", resume=True) as engine:
            await engine.orchestrator.signal(healthy, "go", {})
            return await engine.orchestrator.wait(healthy, timeout=20)

    broken, healthy = asyncio.run(begin())
    with monkeypatch.context() as folding:
        break_applier(WaitStarted, KeyError("fold"))(folding)
        assert asyncio.run(resume(healthy)).status == "success"
    assert broken in caplog.text and "cannot be applied: KeyError" in caplog.text
