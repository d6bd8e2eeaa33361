"""Cancellation with compensation at awkward moments: twice, while a compensation runs, during waits, in children."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.errors import Conflict
from noetl.server.orchestrator.submissions import Submission
from noetl.server.read_models.summaries import run_result
from tests.e2e.conftest import Ran, Stage, check_oracles, playbook
from tests.waiting import until

UNDO = "compensation: {tool: [{name: undo, kind: noop, input: {of: '{{ output.data.of }}'}, set: {ctx.undone: '{{ (ctx.undone | default([])) + [output.data.of] }}'}}]}"


def step(name: str, undo: str = UNDO, then: str = "") -> str:
    after = f"\n        next: {{arcs: [{{step: {then}}}]}}" if then else ""
    return f"""
      - step: {name}
        spec: {{policy: {{{undo}}}}}
        tool: {{kind: noop, input: {{of: {name}}}}}{after}"""


async def finished(stage: Stage, execution_id: str) -> Ran:
    await stage.orchestrator.wait(execution_id, 30)
    return await stage.ran(run_result(execution_id, await stage.orchestrator.progress(execution_id)))


async def waiting(stage: Stage, execution_id: str) -> None:
    async def found() -> bool:
        return (await stage.orchestrator.state(execution_id)).status == "waiting"

    await until(found)


def drive(stage: Stage, text: str, script: Any, payload: dict[str, Any] | None = None) -> Ran:
    async def scenario() -> Ran:
        execution_id = await stage.orchestrator.submit(Submission(text=playbook(text), payload=payload or {}))
        await script(execution_id)
        return await finished(stage, execution_id)

    ran: Ran = stage.do(scenario())
    check_oracles(ran)
    return ran


def test_a_wait_is_cancelled_and_what_completed_is_undone_once(stage):
    text = f"""
    workflow:{step("a", then="b")}{step("b", then="ask")}
      - step: ask
        spec: {{policy: {{{UNDO}}}}}
        tool: {{kind: wait, signal: go}}
    """

    async def script(execution_id):
        await waiting(stage, execution_id)
        await stage.orchestrator.cancel(execution_id, "enough", compensate=True)

    ran = drive(stage, text, script)
    assert ran.status == "cancelled"
    assert ran.ctx["undone"] == ["b", "a"]
    assert ran.result.compensation == {"done": 2, "failed": 0}


def test_cancelling_twice_undoes_once(stage):
    slow = "compensation: {tool: [{name: hold, kind: wait, signal: undo}, {name: undo, kind: noop, input: {of: '{{ output.data.of }}'}, set: {ctx.undone: '{{ (ctx.undone | default([])) + [output.data.of] }}'}}]}"
    text = f"""
    workflow:{step("a", then="b")}{step("b", slow, then="ask")}
      - step: ask
        tool: {{kind: wait, signal: go}}
    """

    async def script(execution_id):
        orchestrator = stage.orchestrator
        await waiting(stage, execution_id)
        await orchestrator.cancel(execution_id, "enough", compensate=True)

        async def compensates() -> bool:
            return bool((await orchestrator.state(execution_id)).waits)

        await until(compensates)  # the compensation of b waits itself
        for compensate in (True, False):
            await orchestrator.cancel(execution_id, "again", compensate=compensate)  # without a further effect
        entries, _ = await orchestrator.inbox()
        assert [each.signal for each in entries if each.execution_id == execution_id] == ["undo"]
        with pytest.raises(Conflict):
            await orchestrator.signal(execution_id, "", {"late": 1}, by="ann")  # `ctx` does not change any more
        await orchestrator.signal(execution_id, "undo", {}, by="ann")

    ran = drive(stage, text, script)
    assert ran.status == "cancelled"
    assert ran.ctx["undone"] == ["b", "a"]
    assert ran.result.compensation == {"done": 2, "failed": 0}


def test_a_parallel_loop_undoes_its_completed_iterations_only(stage):
    text = """
    workflow:
      - step: each
        loop: {in: "{{ range(6) | list }}", iterator: n, spec: {mode: parallel}}
        spec:
          policy:
            compensation:
              tool: [{name: undo, kind: noop, set: {iter.x: "{{ iter.n }}"}, input: {n: "{{ iter.n }}"}}]
        tool:
          - name: first
            kind: noop
            input: {n: "{{ iter.n }}"}
          - name: hold
            kind: wait
            signal: "go-{{ iter.n }}"
            spec: {policy: {rules: [{when: "{{ iter.n < 3 }}", then: {do: skip}}]}}
    """

    async def script(execution_id):
        async def stuck() -> bool:
            state = await stage.orchestrator.state(execution_id)
            return len(state.waits) == 3 and state.status == "waiting"

        await until(stuck)
        await stage.orchestrator.cancel(execution_id, "enough", compensate=True)

    ran = drive(stage, text, script)
    assert ran.status == "cancelled"
    assert ran.result.compensation == {"done": 3, "failed": 0}
    undone = [each.input["n"] for each in ran.of("task.done", task="undo")]
    assert sorted(undone) == [0, 1, 2]


def test_a_child_in_a_wait_is_cancelled_and_undone_with_its_caller(stage, tmp_path):
    child = tmp_path / "child.yaml"
    child.write_text(
        playbook(
            f"""
    workflow:{step("c1", then="ask")}
      - step: ask
        tool: {{kind: wait, signal: go}}
    """
        )
    )
    text = f"""
    workflow:{step("a", then="call")}
      - step: call
        loop: {{in: [1, 2], iterator: n, spec: {{mode: parallel}}}}
        tool: {{kind: playbook, path: "{child}"}}
    """

    async def script(execution_id):
        await waiting(stage, execution_id)
        await stage.orchestrator.cancel(execution_id, "enough", compensate=True)

    ran = drive(stage, text, script)
    assert ran.status == "cancelled"
    assert ran.ctx["undone"] == ["a"]

    async def children():
        ids = [each.child for each in ran.of("child.started")]
        return [(await stage.orchestrator.summary(each), await finished(stage, each)) for each in ids]

    found = stage.do(children())
    assert len(found) == 2
    assert [(row.status, child.ctx["undone"]) for row, child in found] == [("cancelled", ["c1"])] * 2


def test_a_cancellation_during_the_compensation_of_a_failure_changes_nothing(stage):
    slow = "compensation: {tool: [{name: hold, kind: wait, signal: undo}]}"
    text = f"""
    workflow:{step("a", slow, then="bad")}
      - step: bad
        tool: {{kind: python, code: "raise ValueError('no')"}}
    """

    async def script(execution_id):
        orchestrator = stage.orchestrator

        async def compensates() -> bool:
            return bool((await orchestrator.state(execution_id)).waits)

        await until(compensates)
        await orchestrator.cancel(execution_id, "stop", compensate=True)
        await orchestrator.signal(execution_id, "undo", {}, by="ann")

    ran = drive(stage, text, script)
    assert (ran.status, ran.error["kind"]) == ("failed", "python")
    assert ran.result.compensation == {"done": 1, "failed": 0}


def test_compensation_cannot_be_requested_after_a_cancellation_without_it(stage, tmp_path):
    child = tmp_path / "child.yaml"
    child.write_text(
        playbook("""
    workflow:
      - step: c
        spec: {policy: {compensation: {tool: [{name: undo, kind: wait, signal: undo}]}}}
        tool: {kind: noop}
        next: {arcs: [{step: bad}]}
      - step: bad
        tool: {kind: python, code: "raise ValueError('no')"}
    """)
    )
    text = f"""
    workflow:{step("a", then="call")}
      - step: call
        tool: {{kind: playbook, path: "{child}"}}
    """

    async def script(execution_id):
        orchestrator = stage.orchestrator

        async def undoes() -> str | None:
            state = await orchestrator.state(execution_id)
            ids = [each.child for each in state.children.values() if each.child]
            return ids[0] if ids and (await orchestrator.state(ids[0])).waits else None

        undoing = await until(undoes)
        await orchestrator.cancel(execution_id, "stop")
        with pytest.raises(Conflict, match="are not undone"):
            await orchestrator.cancel(execution_id, "stop", compensate=True)
        await orchestrator.signal(undoing, "undo", {}, by="ann")

    ran = drive(stage, text, script)
    assert (ran.status, ran.ctx) == ("cancelled", {})
