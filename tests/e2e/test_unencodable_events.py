"""An event that JSON cannot hold fails its run or its execution with an error that names the value; nothing is retried
without end.

Templates, tools and requests refuse such values, so the tests switch that check off where they need one."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from work_link import Bench

from noetl.core.model.events import StepDone, StepFailed
from noetl.core.model.excerpt import unencodable
from noetl.core.model.outcome import Outcome, ok
from noetl.core.templates import operators
from noetl.embedded import open_local
from noetl.errors import NotEncodable, RequestRefused

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n"
HALF = "{{ '%c' % 55296 }}"  # a lone surrogate


def run(tmp_path, body: str, payload=None):
    async def scenario():
        async with await open_local(home=tmp_path / "home") as engine:
            return await engine.run(HEAD + body, payload, timeout=10)

    return asyncio.run(scenario())


@pytest.fixture
def unchecked(monkeypatch):
    """Templates create text that is not valid Unicode."""
    monkeypatch.setattr(operators, "whole_text", lambda text: text)


@pytest.mark.parametrize(
    "task",
    [
        f'{{kind: noop, spec: {{policy: {{rules: [{{else: {{then: {{do: fail, message: "{HALF}"}}}}}}]}}}}}}',
        f'{{kind: wait, signal: go, title: "{HALF}"}}',
        f'{{kind: wait, signal: "{HALF}"}}',
        f'{{kind: playbook, path: other, input: {{a: ["{HALF}"]}}}}',
    ],
    ids=["message", "title", "signal", "child"],
)
def test_an_event_of_a_worker_fails_its_step(tmp_path, unchecked, task):
    routed = "next: {arcs: [{step: after, when: \"{{ output.error.kind == 'unknown' }}\"}]}"
    result = run(
        tmp_path, f"  - step: start\n    tool: {task}\n    {routed}\n  - step: after\n    tool: {{kind: noop}}\n"
    )
    assert result.status == "success", result.error  # the arc has read the error
    result = run(tmp_path, f"  - step: start\n    tool: {task}\n")
    assert (result.status, result.error["kind"]) == ("failed", "unknown")
    assert "surrogate" in result.error["message"], result.error


@pytest.mark.parametrize(
    "step",
    [
        f'next: {{arcs: [{{step: b, set: {{ctx.a: {{deep: ["{HALF}"]}}}}}}]}}',
        f'next: {{arcs: [{{step: b, spec: {{partition: "{HALF}"}}}}]}}',
        f'next: {{arcs: [{{step: b, spec: {{dedupe: "{HALF}"}}}}]}}',
    ],
    ids=["set", "partition", "dedupe"],
)
def test_a_decision_fails_its_execution(tmp_path, unchecked, step):
    body = f"  - step: start\n    tool: {{kind: noop, returns: 1}}\n    {step}\n  - step: b\n    tool: {{kind: noop}}\n"
    result = run(tmp_path, body)
    assert (result.status, result.error["kind"]) == ("failed", "unknown")
    assert "surrogate" in result.error["message"], result.error


def test_a_request_is_refused(tmp_path):
    with pytest.raises(RequestRefused, match=r"payload\.x cannot be encoded as JSON: .*lone surrogate"):
        run(tmp_path, "  - step: start\n    tool: {kind: noop}\n", {"x": "\ud800"})


def test_a_signal_is_refused_and_its_execution_goes_on(tmp_path):
    async def scenario():
        waiting: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_event(recorded):
            if recorded.body.NAME == "wait.started":
                waiting.set_result(recorded.execution_id)

        async with await open_local(home=tmp_path / "home") as engine:
            body = HEAD + "  - step: start\n    tool: {kind: wait, signal: go}\n"
            running = asyncio.create_task(engine.run(body, on_event=on_event, timeout=10))
            execution_id = await waiting
            with pytest.raises(NotEncodable, match="lone surrogate"):
                await engine.orchestrator.signal(execution_id, "go", {"x": ["\udfff"]})
            await engine.orchestrator.signal(execution_id, "go", {"x": 1})
            return await running

    result = asyncio.run(scenario())
    assert result.data == {"x": 1}


@pytest.mark.parametrize(
    "value", ["\ud800", object(), {"a": ["b", b"\xff", 1j]}], ids=["surrogate", "object", "complex"]
)
def test_a_remote_worker_reports_an_error_instead(value):
    """The helpers of an outcome are not data of the playbook; a tool of a plug-in may put anything there."""
    calls = 0

    async def act(call):
        return Outcome("ok", data=1, meta={"plugin": value})

    bench = Bench(
        "workflow: [{step: s, tool: [{name: a, kind: act}]}, {step: t, tool: [{name: b, kind: noop}]}]", act=act
    )
    accept = bench.link.report

    async def report(worker, reports, *, free=0):
        nonlocal calls
        calls += 1
        msgspec.json.encode(reports)  # as the connection does
        return await accept(worker, reports, free=free)

    bench.link.report = report
    [*_, last] = bench.run()
    assert isinstance(last, StepFailed)
    assert last.output.error.kind == "unknown"
    assert "meta.plugin" in last.output.error.message and "cannot be encoded" in last.output.error.message
    assert calls <= 4


def test_other_runs_of_the_same_report_are_stored():
    async def act(call):
        return ok(1) if call.task_run_id.startswith("1:s:1") else Outcome("ok", data=1, meta={"plugin": object()})

    bench = Bench("workflow: [{step: s, tool: [{name: a, kind: act}]}]", act=act)
    accept = bench.link.report

    async def report(worker, reports, *, free=0):
        msgspec.json.encode(reports)
        return await accept(worker, reports, free=free)

    bench.link.report = report

    async def check():
        async with bench.running():
            bench.link.offer(bench.order(run="1:s:1"), bench.order(run="1:s:2"))
            await bench.link.until_ended("1:s:1", "1:s:2")

    asyncio.run(check())
    assert isinstance(bench.link.events("1:s:1")[-1], StepDone)
    assert isinstance(bench.link.events("1:s:2")[-1], StepFailed)


def test_the_part_that_cannot_be_encoded_is_named():
    endless: list = []
    endless.append(endless)
    assert unencodable({"a": [1, {"b": object()}]}) == "a[1].b cannot be encoded as JSON: it is of type object"
    assert "nested too deeply" in (unencodable({"a": endless}) or "")
    assert "surrogate" in (unencodable({"\ud800": 1}) or "")
    assert unencodable({"a": [1, "é", None, 1.5, 10**40]}) is None
