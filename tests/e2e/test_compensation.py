"""Compensation from end to end, embedded: what the tasks of a compensation read, children, cancellation, failures."""

from __future__ import annotations

from noetl.server.orchestrator.submissions import Submission
from tests.e2e.conftest import playbook
from tests.waiting import until

UNDO = 'set: {ctx.undone: "{{ (ctx.undone | default([])) + [output.data] }}"}'


def test_the_tasks_of_a_compensation_read_the_recorded_run_and_the_failure(play):
    ran = play(f"""
    workload: {{who: ada}}
    workflow:
      - step: start
        input: {{who: "{{{{ workload.who }}}}"}}
        spec:
          policy:
            compensation:
              tool:
                - name: first
                  kind: python
                  input: {{id: "{{{{ output.data.id }}}}", who: "{{{{ input.who }}}}", why: "{{{{ failure.message }}}}", at: "{{{{ failure.step }}}}"}}
                  code: "result = [id, who, why, at]"
                  {UNDO}
                - name: second
                  kind: python
                  input: {{id: "{{{{ output.data.id }}}}", before: "{{{{ first.data }}}}", own: "{{{{ start.id }}}}"}}
                  code: "result = [id, len(before), own]"
                  {UNDO}
        tool: {{kind: python, code: "result = {{'id': 7}}"}}
        next: {{arcs: [{{step: broken}}]}}
      - step: broken
        tool: [{{name: t, kind: python, code: "raise ValueError('no')", spec: {{policy: {{rules: [{{else: {{then: {{do: fail, message: nothing left}}}}}}]}}}}}}]
    """)
    assert ran.status == "failed"
    assert ran.ctx["undone"] == [[7, "ada", "nothing left", "broken"], [7, 4, 7]]
    assert ran.result.compensation == {"done": 1, "failed": 0}


def test_a_compensation_has_rules_and_retries_and_its_failure_is_recorded(play):
    ran = play(f"""
    workflow:
      - step: start
        spec: {{policy: {{compensation: {{tool: {{kind: python, code: "result = 'start'", {UNDO}}}}}}}}}
        tool: {{kind: noop}}
        next: {{arcs: [{{step: two}}]}}
      - step: two
        spec:
          policy:
            compensation:
              tool:
                - name: flaky
                  kind: python
                  input: {{n: "{{{{ _attempt }}}}"}}
                  code: "assert n == 3, n; result = 'two'"
                  {UNDO}
                  spec: {{policy: {{rules: [{{when: "{{{{ output.status == 'error' }}}}", then: {{do: retry, attempts: 5}}}}]}}}}
        tool: {{kind: noop}}
        next: {{arcs: [{{step: three}}]}}
      - step: three
        spec: {{policy: {{compensation: {{tool: {{kind: python, code: "raise ValueError('cannot undo')"}}}}}}}}
        tool: {{kind: noop}}
        next: {{arcs: [{{step: broken}}]}}
      - {{step: broken, tool: {{kind: python, code: "raise ValueError('no')"}}}}
    """)
    assert ran.ctx["undone"] == [None, None, "two", "start"]  # `set` applies after every attempt
    assert ran.result.compensation == {"done": 2, "failed": 1}
    (failed,) = ran.of("compensation.failed")
    assert (failed.step, failed.error.kind) == ("three", "python")
    assert "no" in ran.result.error["message"]
    rows = {row.step: row.status for row in ran.result.steps}
    assert rows["three.compensation"] == "failed"
    assert rows["two.compensation"] == "success"


def test_iterations_see_their_own_input_item_and_output(play):
    ran = play("""
    workflow:
      - step: start
        loop: {in: [[1, 2], [3]], iterator: group, loop: {in: "{{ iter.group }}", iterator: n}}
        input: {n: "{{ iter.n * 10 }}"}
        spec:
          policy:
            compensation:
              when: "{{ iter.n != 2 }}"
              tool:
                - name: undo
                  kind: python
                  input: {n: "{{ input.n }}", item: "{{ iter.n }}", group: "{{ iter.parent.group }}", made: "{{ output.data }}"}
                  code: "result = [n, item, group, made]"
                  set: {ctx.undone: "{{ (ctx.undone | default([])) + [output.data] }}"}
        tool: {kind: python, input: {n: "{{ input.n }}"}, code: "result = n + 1"}
        next: {arcs: [{step: broken}]}
      - {step: broken, tool: {kind: python, code: "raise ValueError('no')"}}
    """)
    assert ran.ctx["undone"] == [[30, 3, [3], 31], [10, 1, [1, 2], 11]]
    assert ran.result.compensation == {"done": 2, "failed": 0, "skipped": 1}


def test_large_inputs_and_outputs_are_read_by_the_compensation(play):
    ran = play("""
    workflow:
      - step: start
        loop: {in: [1], iterator: n}
        input: {text: "{{ 'x' * 200000 }}"}
        spec:
          policy:
            compensation:
              tool:
                - name: undo
                  kind: python
                  input: {made: "{{ output.data }}", text: "{{ input.text }}"}
                  code: "result = [len(made), len(text)]"
                  set: {ctx.sizes: "{{ output.data }}"}
        tool: {kind: python, input: {text: "{{ input.text }}"}, code: "result = text + 'y' * 100000"}
        next: {arcs: [{step: broken}]}
      - {step: broken, tool: {kind: python, code: "raise ValueError('no')"}}
    """)
    assert ran.ctx["sizes"] == [300_000, 200_000]


def test_a_child_playbook_undoes_its_own_steps(stage, play):
    child = stage.register("""
    apiVersion: noetl.io/v2
    kind: Playbook
    metadata: {name: bookings, path: sagas/bookings}
    workload: {who: nobody}
    workflow:
      - step: a
        spec: {policy: {compensation: {tool: {kind: python, input: {id: "{{ output.data }}"}, code: "result = id", set: {ctx.undone: "{{ (ctx.undone | default([])) + [output.data] }}"}}}}}
        tool: {kind: python, input: {who: "{{ workload.who }}"}, code: "result = 'a of ' + who"}
        next: {arcs: [{step: b}]}
      - step: b
        spec: {policy: {compensation: {tool: {kind: python, input: {id: "{{ output.data }}"}, code: "result = id", set: {ctx.undone: "{{ (ctx.undone | default([])) + [output.data] }}"}}}}}
        tool: {kind: python, input: {who: "{{ workload.who }}"}, code: "result = 'b of ' + who"}
    """)
    ran = play(f"""
    workflow:
      - step: start
        tool: {{kind: playbook, path: {child}, input: {{who: ada}}}}
        next: {{arcs: [{{step: broken}}]}}
      - {{step: broken, tool: {{kind: python, code: "raise ValueError('no')"}}}}
    """)
    assert ran.status == "failed"
    assert ran.result.compensation == {"done": 1, "failed": 0}
    (started,) = [event.child for event in ran.of("child.started") if event.task == "compensation"]
    undo = stage.do(stage.orchestrator.state(started))
    assert undo.finished == "success"
    assert undo.ctx["undone"] == ["b of ada", "a of ada"]
    assert undo.request.compensates.execution_id != started


def test_a_cancelled_execution_undoes_its_steps_only_on_request(stage):
    text = """
    workflow:
      - step: start
        spec: {policy: {compensation: {tool: {kind: python, code: "result = 'start'", set: {ctx.undone: "{{ output.data }}"}}}}}
        tool: {kind: noop}
        next: {arcs: [{step: long}]}
      - {step: long, tool: {kind: shell, command: sleep 60}}
    """

    orchestrator = stage.orchestrator

    async def cancelled(compensate: bool):
        execution_id = await orchestrator.submit(Submission(text=playbook(text)))

        async def running() -> bool:
            state = await orchestrator.state(execution_id)
            return any(run.step_run.step.name == "long" and run.status == "leased" for run in state.open.values())

        await until(running)
        await orchestrator.cancel(execution_id, "stop", compensate=compensate)
        await orchestrator.wait(execution_id, 20)
        return await orchestrator.state(execution_id)

    state = stage.do(cancelled(False))
    assert (state.finished, state.ctx) == ("cancelled", {})
    state = stage.do(cancelled(True))
    assert (state.finished, state.ctx) == ("cancelled", {"undone": "start"})
