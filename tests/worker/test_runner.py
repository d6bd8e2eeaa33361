from __future__ import annotations

import asyncio
import logging
import time

import pytest
from work_link import Bench, until

from noetl.core.model.events import (
    ChildRequested,
    IterationDone,
    StepDone,
    StepFailed,
    TaskDone,
    TaskProgress,
    TaskStarted,
)
from noetl.core.model.outcome import error, ok
from noetl.core.model.position import Item
from noetl.errors import PayloadUnavailable

TWO = """
workflow:
  - step: s
    tool:
      - {name: a, kind: act}
      - {name: b, kind: act}
"""


def done(events):
    return [event for event in events if isinstance(event, TaskDone)]


def reported(bench, label):
    bench.link.story.append(label)


def test_a_run_ends_with_its_terminal_event_and_the_tool_saw_its_rendered_input():
    calls = []

    async def act(call):
        calls.append(call)
        return ok({"n": 1})

    bench = Bench(
        "workflow: [{step: s, tool: [{name: a, kind: act, input: {x: '{{ workload.w }}'}, spec: {timeout: 5}}]}]",
        act=act,
    )
    events = bench.run(workload={"w": 7})
    assert [type(event) for event in events] == [TaskStarted, TaskDone, StepDone]
    assert events[-1].output.data == {"n": 1}
    call = calls[0]
    assert call.input == {"x": 7} and call.timeout.total == 5 and call.task_run_id == "1:s:1:a:1:1"
    assert call.where.startswith("p.yaml:") and call.scopes["workload"] == {"w": 7} and len(call.idempotency_key) == 32
    meta = events[-1].output.meta
    assert meta["attempt"] == 1 and meta["duration_ms"] >= 0 and meta["ts"].endswith("Z")


def test_the_lease_covers_the_first_start_and_each_later_one_is_on_disk_before_its_tool_runs():
    bench = Bench(TWO)

    async def act(call):
        reported(bench, f"tool {call.task}")
        return ok(1)

    bench.tools["act"] = act
    bench.run()
    assert bench.link.story == [
        "tool a",
        "report task.started,task.done,task.started",
        "tool b",
        "report task.done,step.done",
    ]


def test_pure_kinds_do_not_wait_for_durability():
    bench = Bench(TWO.replace("act", "noop"))
    bench.run()
    assert bench.link.story == ["report task.started,task.done,task.started,task.done,step.done"]


def test_a_run_of_many_tasks_yields_to_the_event_loop():
    many = "\n".join(f"      - {{name: t{n}, kind: noop}}" for n in range(200))
    bench = Bench(f"workflow:\n  - step: s\n    tool:\n{many}\n")
    turns = []

    async def noop(call):
        if call.task in ("t0", "t199"):
            turns.append(0)
            asyncio.get_running_loop().call_soon(turn)
        return ok()

    def turn():
        turns[-1] += 1
        asyncio.get_running_loop().call_soon(turn)

    bench.tools["noop"] = noop
    bench.run()
    assert turns[0] >= 200 / 8 - 1


def test_the_start_of_a_long_first_task_is_reported():
    bench = Bench(TWO)

    async def act(call):
        if call.task == "a":
            await until(lambda: bench.link.story)
        return ok(1)

    bench.tools["act"] = act
    bench.run()
    assert bench.link.story[0] == "report task.started"


LOOP = """
workflow:
  - step: s
    loop: {in: "{{ workload.x }}", iterator: item}
    tool: [{name: a, kind: noop, input: {v: "{{ iter.item }}"}}]
"""

RETRY = """
workflow:
  - step: s
    tool:
      - name: a
        kind: act
        spec:
          policy:
            rules: [{when: "{{ output.error }}", then: {do: retry, attempts: 3, delay: 10, backoff: linear}}]
"""


def test_a_retry_waits_by_the_clock_and_its_start_is_durable_after_the_wait():
    bench = Bench(RETRY)
    answers = [error("timeout", "1"), error("timeout", "2"), ok(3)]

    async def act(call):
        reported(bench, f"tool {call.attempt}")
        return answers.pop(0)

    bench.tools["act"] = act
    events = bench.run()
    assert bench.clock.slept == [10.0, 20.0]
    assert bench.link.story == [
        "tool 1", "report task.started,task.done", "report task.started",
        "tool 2", "report task.done", "report task.started",
        "tool 3", "report task.done,step.done",
    ]  # fmt: skip
    assert events[-1].output.data == 3


def test_a_task_that_takes_too_long_is_cancelled_inside_the_tool():
    ended = []

    async def act(call):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("stopped")
            raise

    bench = Bench("workflow: [{step: s, tool: [{name: a, kind: act, spec: {timeout: 0.05}}]}]", act=act)
    events = bench.run()
    assert ended == ["stopped"]
    assert isinstance(events[-1], StepFailed) and events[-1].output.error.kind == "timeout"
    assert events[-1].output.helpers == {"act": {"code": None}}


def test_a_step_timeout_ends_the_run_and_its_set_still_applies():
    async def act(call):
        await asyncio.sleep(60)

    bench = Bench(
        "workflow: [{step: s, tool: [{name: a, kind: act}], set: {ctx.why: '{{ output.error.kind }}'}}]", act=act
    )
    events = bench.run(timeout_s=0.05)
    assert events[-1].output.error.kind == "timeout" and events[-1].patch == {"why": "timeout"}


def test_a_workbook_call_times_out_with_the_calling_task():
    async def act(call):
        await asyncio.sleep(0.02)
        return ok(1)

    text = """
workflow:
  - step: s
    tool:
      - name: call
        kind: workbook
        block: b
        spec: {timeout: 0.05, policy: {rules: [{when: "{{ output.error.kind == 'timeout' }}", then: {do: continue}}]}}
      - {name: after, kind: noop}
workbook: {b: {tool: [{name: t, kind: act, spec: {policy: {rules: [{else: {then: {do: jump, to: t}}}]}}}]}}
"""
    bench = Bench(text, act=act)
    bench.clock.monotonic = time.monotonic
    events = bench.run()
    assert isinstance(events[-1], StepDone)
    assert [event.task for event in done(events)][-2:] == ["call", "after"]


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (ValueError("broken"), "unknown"),
        (ConnectionRefusedError("refused"), "connection"),
        (PayloadUnavailable("gone", kind="ref.corrupt"), "ref.corrupt"),
        (TimeoutError("slow"), "timeout"),
        (asyncio.CancelledError("a part of the tool"), "unknown"),
    ],
)
def test_an_exception_of_a_tool_is_an_error_outcome(problem, kind):
    async def act(call):
        raise problem

    events = Bench(TWO, act=act).run()
    assert events[-1].output.error.kind == kind and str(problem) in events[-1].output.error.message


def test_a_tools_own_retry_happens_inside_one_attempt():
    answers = [error("timeout", "1"), error("timeout", "2"), ok(3)]

    async def act(call):
        return answers.pop(0)

    bench = Bench(
        "workflow: [{step: s, tool: [{name: a, kind: act, retry: {attempts: 3, delay: 2, backoff: exponential}}]}]",
        act=act,
    )
    events = bench.run()
    assert bench.clock.slept == [2.0, 4.0]
    assert events[-1].output.data == 3 and events[-1].output.meta["tool_attempts"] == 3 and len(done(events)) == 1


@pytest.mark.parametrize(
    ("retry", "kind", "calls"),
    [
        ("3", "timeout", 3),
        ("3", "python", 1),  # not retryable
        ("{attempts: 3, on: [python]}", "python", 3),
        ("{attempts: 3, on: python}", "python", 3),
        ("{attempts: 3, on: [rate_limit]}", "timeout", 1),
    ],
)
def test_retry_repeats_errors_that_are_retryable_or_named(retry, kind, calls):
    made = []

    async def act(call):
        made.append(call)
        return error(kind, "no")

    bench = Bench(f"workflow: [{{step: s, tool: [{{name: a, kind: act, retry: {retry}}}]}}]", act=act)
    assert bench.run()[-1].output.error.kind == kind
    assert len(made) == calls


def test_an_invalid_spec_is_an_error_with_its_location():
    async def act(call):
        return ok(1)

    bench = Bench("workflow: [{step: s, tool: [{name: a, kind: act, spec: {timeout: '{{ workload.t }}'}}]}]", act=act)
    events = bench.run(workload={"t": "soon"})
    problem = events[-1].output.error
    assert problem.kind == "schema" and "timeout" in problem.message and "p.yaml" in problem.message


def test_a_child_playbook_suspends_the_run():
    bench = Bench("workflow: [{step: s, tool: [{name: k, kind: playbook, path: child, input: {a: 1}}]}]")
    events = bench.run()
    assert isinstance(events[-1], ChildRequested) and events[-1].payload == {"a": 1}
    assert bench.pool.busy == 0


def test_an_unknown_playbook_fails_the_run_and_not_the_worker():
    bench = Bench()
    events = bench.run()
    assert isinstance(events[-1], StepFailed) and "no playbook" in events[-1].output.error.message


def test_a_broken_tool_loader_fails_the_run():
    bench = Bench("workflow: [{step: s, tool: [{name: a, kind: act}]}]")
    events = bench.run()  # there is no such tool: KeyError in this worker's own code
    assert isinstance(events[-1], StepFailed) and "internal error" in events[-1].output.error.message


def test_elements_of_a_stored_collection_are_found_by_index():
    bench = Bench(LOOP)

    async def run():
        reference = await bench.runner.payloads.put_value("c", ["zero", "one"])
        return await bench.once(
            run="1:s:1/1", path=(1,), items=(Item(name="item", index=1, count=2, collection=reference),)
        )

    events = asyncio.run(run())
    assert isinstance(events[-1], IterationDone) and events[-1].output.data == {"v": "one"}


def test_progress_of_a_long_task_is_reported_at_a_limited_rate():
    bench = Bench(TWO)

    async def act(call):
        for rows in range(12):
            call.host.progress(rows=rows)
            bench.clock.time += 1 if call.task == "a" else 0.1
        return ok(1)

    bench.tools["act"] = act
    progress = [event for event in bench.run() if isinstance(event, TaskProgress)]
    assert [(event.task, event.counts) for event in progress] == [("a", {"rows": 2.0}), ("a", {"rows": 7.0})]


def test_the_output_of_a_tool_must_be_json_data():
    async def act(call):
        return ok({"file": object()})

    events = Bench(TWO, act=act).run()
    assert events[-1].output.error.kind == "schema" and "JSON" in events[-1].output.error.message


def test_output_of_a_warm_process_is_logged_with_the_calling_run(caplog):
    from noetl.observability import logging as logs
    from noetl.runtime.resources import per_loop
    from noetl.tools.python.process_pool import PythonPool
    from noetl.tools.python.spec import run

    bench = Bench("workflow: [{step: s, tool: [{name: a, kind: python, code: 'print(1)'}]}]", python=run)
    ids: list[tuple[str | None, str | None]] = []

    class Ids(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            ids.append((getattr(record, "run_id", None), logs.current().get("run_id")))

    async def scenario() -> None:
        async with bench.running():
            for run_id in ("1:s:1", "1:s:2"):
                bench.link.offer(bench.order(run=run_id, context_id=run_id))
                await bench.link.until_ended(run_id)
            await per_loop(PythonPool, PythonPool).close()

    handler, reported = Ids(), logging.getLogger("noetl.task")
    reported.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, "noetl.task"):
            asyncio.run(scenario())
    finally:
        reported.removeHandler(handler)
    assert ids == [("1:s:1", None), ("1:s:2", None)]
