"""External control: pause, resume, signal, cancel, rerun, replay, and the envelopes of a log."""

import asyncio

import pytest

from noetl.core.engine.advance import fold
from noetl.core.model.events import envelope
from noetl.errors import Conflict, NotFound
from noetl.server.orchestrator.submissions import RerunRequest, Submission
from tests.e2e.conftest import playbook

GATED = """
workflow:
  - step: start
    tool: {kind: noop}
    next: {arcs: [{step: gated}]}
  - step: gated
    spec: {policy: {admit: {rules: [{when: "{{ ctx.approved | default(false) }}", then: {allow: true}}]}}}
    tool: {kind: python, input: {by: "{{ ctx.by }}"}, code: "result = by"}
  - step: keep_open
    tool: {kind: noop}
"""

WAITING = GATED.replace(
    "next: {arcs: [{step: gated}]}", "next: {spec: {mode: inclusive}, arcs: [{step: gated}, {step: hold}]}"
).replace(
    "- step: keep_open\n    tool: {kind: noop}",
    '- {step: hold, tool: {kind: python, code: "import time; time.sleep(60)"}}',
)


async def until(orchestrator, execution_id, name, **fields):
    async for recorded in orchestrator.subscribe(execution_id):
        body = recorded.body
        if name == body.NAME and all(getattr(body, key) == value for key, value in fields.items()):
            return body
    raise AssertionError(f"{name} never came")


def test_a_signal_opens_a_gate(stage):
    async def scenario():
        orchestrator = stage.orchestrator
        execution_id = await orchestrator.submit(Submission(text=playbook(WAITING)))
        await until(orchestrator, execution_id, "token.parked", step="gated")
        await orchestrator.signal(execution_id, "approval", {"approved": True, "by": "anna"})
        done = await until(orchestrator, execution_id, "step.done", step="gated")
        await orchestrator.cancel(execution_id)
        await orchestrator.wait(execution_id, 10)
        return done.output.data

    assert stage.do(scenario()) == "anna"


def test_pause_delays_the_next_step_until_resume(stage):
    text = playbook("""
    workflow:
      - step: start
        tool: {kind: python, code: "import time; time.sleep(0.3)"}
        next: {arcs: [{step: end}]}
      - {step: end, tool: {kind: noop}}
    """)

    async def scenario():
        orchestrator = stage.orchestrator
        execution_id = await orchestrator.submit(Submission(text=text))
        await orchestrator.pause(execution_id, "lunch")
        await orchestrator.pause(execution_id, "still lunch")
        await until(orchestrator, execution_id, "step.done", step="start")
        await asyncio.sleep(0.05)
        between = await orchestrator.events(execution_id)
        await orchestrator.resume(execution_id)
        summary = await orchestrator.wait(execution_id, 10)
        return [recorded.body for recorded in between], summary

    bodies, summary = stage.do(scenario())
    assert "end" not in [body.step for body in bodies if body.NAME == "step.started"]
    assert summary.status == "success"


def test_nothing_is_accepted_after_the_end(stage, play):
    ran = play("workflow:\n  - {step: start, tool: {kind: noop}}\n")
    for ask in (stage.orchestrator.cancel, stage.orchestrator.pause, stage.orchestrator.resume):
        with pytest.raises(Conflict):
            stage.do(ask(ran.result.execution_id))
    with pytest.raises(Conflict):
        stage.do(stage.orchestrator.signal(ran.result.execution_id, "x", {"a": 1}))


FLAKY = """
workload: {fail: true}
workflow:
  - step: start
    tool: {kind: python, code: "import random; result = random.random()"}
    set: {ctx.drawn: "{{ output.data }}"}
    next: {arcs: [{step: middle}]}
  - step: middle
    tool: {kind: python, input: {fail: "{{ workload.fail }}", seen: "{{ start.data }}"}, code: "assert not fail\\nresult = seen"}
    next: {arcs: [{step: end}]}
  - {step: end, tool: {kind: python, input: {m: "{{ middle.data }}", d: "{{ ctx.drawn }}"}, code: "result = [m, d]"}}
"""


def test_a_rerun_from_a_step_keeps_earlier_results(stage, play):
    failed = play(FLAKY)
    assert failed.status == "failed"

    async def scenario():
        orchestrator = stage.orchestrator
        again = await orchestrator.rerun(RerunRequest(failed.result.execution_id, "middle", payload={"fail": False}))
        await orchestrator.wait(again, 10)
        return await stage.ran(await stage.engine.result(again))

    ran = stage.do(scenario())
    assert ran.status == "success"
    assert ran.data == [failed.ctx["drawn"]] * 2
    assert list(ran.steps) == ["middle", "end"]
    assert ran.events[0].body.rerun.execution_id == failed.result.execution_id


def test_a_whole_rerun_is_a_new_execution_of_the_same_text(stage, play):
    first = play(FLAKY, {"fail": False})

    async def scenario():
        again = await stage.orchestrator.rerun(RerunRequest(first.result.execution_id))
        await stage.orchestrator.wait(again, 10)
        return await stage.engine.result(again)

    result = stage.do(scenario())
    assert (result.status, result.execution_id != first.result.execution_id) == ("success", True)
    with pytest.raises(NotFound):
        stage.do(stage.orchestrator.rerun(RerunRequest(first.result.execution_id, "nowhere")))


def test_the_state_at_an_event_is_the_fold_up_to_it(stage, play):
    ran = play(FLAKY, {"fail": False})
    execution_id = ran.result.execution_id
    final = stage.do(stage.orchestrator.state(execution_id))
    assert (final.seq, final.finished) == (len(ran.events), "success")
    for seq in (1, 4, len(ran.events) // 2, len(ran.events) - 1):
        state = stage.do(stage.orchestrator.state(execution_id, seq))
        folded = fold(state.playbook, ran.events[:seq])
        assert (state.seq, state.ctx, sorted(state.steps)) == (seq, folded.ctx, sorted(folded.steps))
        assert state.processed is False


def test_envelopes_have_all_specified_fields(play):
    ran = play("""
    workflow:
      - step: start
        loop: {in: "{{ [1, 2] }}", iterator: n}
        tool: [{name: t, kind: noop}]
        next: {arcs: [{step: end}]}
      - {step: end, tool: {kind: noop}}
    """)
    envelopes = [envelope(recorded) for recorded in ran.events]
    for each in envelopes:
        assert {
            "event_id",
            "execution_id",
            "timestamp",
            "source",
            "name",
            "entity_type",
            "entity_id",
            "status",
            "payload",
        } <= set(each)
        assert each["source"] in ("server", "worker")
        assert each["entity_type"] in ("playbook", "workflow", "step", "task", "loop", "next")
        assert each["status"] in ("in_progress", "success", "error", "skipped")
    names = [each["name"] for each in envelopes]
    assert names[:4] == [
        "playbook.execution.requested",
        "playbook.request.evaluated",
        "workflow.started",
        "step.scheduled",
    ]
    assert names[-2:] == ["workflow.finished", "playbook.processed"]
    task = next(each for each in envelopes if each["name"] == "task.done")
    assert (task["step"], task["task_label"], task["attempt"], task["iteration_index"]) == ("start", "t", 1, 0)
    assert task["iteration_id"] and task["task_run_id"] and task["step_run_id"]
    assert all(each["parent_event_id"] for each in envelopes[1:])


def test_synthesized_steps_are_checked_recorded_and_run(play):
    text = """
    workload: {kind: python}
    workflow:
      - step: start
        spec: {policy: {synthesize: {from: "{{ output.data.plan }}", limits: {steps: 5, kinds: [python, noop]}}}}
        tool:
          kind: python
          input: {kind: "{{ workload.kind }}"}
          code: |
            result = {"plan": [
                {"step": "made_1", "tool": {"kind": kind, "code": "result = 41"} if kind == "python" else {"kind": kind, "command": "true"},
                 "next": {"arcs": [{"step": "made_2", "set": {"ctx.n": "{{ output.data }}"}}]}},
                {"step": "made_2", "tool": {"kind": "noop"}, "next": {"arcs": [{"step": "end"}]}},
            ]}
      - step: end
        tool: {kind: python, input: {n: "{{ ctx.n }}"}, code: "result = n + 1"}
    """
    ran = play(text)
    assert (ran.status, ran.data) == ("success", 42)
    assert [step.name for step in ran.of("workflow.synthesized")[0].steps] == ["made_1", "made_2"]
    refused = play(text, {"kind": "shell"})
    assert refused.status == "failed"
    assert "shell" in refused.error["message"]
