"""Workbook blocks and child playbooks: scopes, failure both ways, depth, cancellation, files."""

import asyncio

import pytest


def test_a_block_has_its_own_scopes_and_shares_ctx(play):
    ran = play("""
    workbook:
      score:
        input: {base: 10}
        tool:
          - {name: fetch, kind: python, input: {b: "{{ input.base }}", n: "{{ input.n }}"}, code: "result = b + n"}
          - {name: save, kind: noop, set: {step.inner: 1, ctx.last: "{{ fetch.data }}"}}
          - {name: answer, kind: python, input: {v: "{{ fetch.data }}"}, code: "result = v"}
    workflow:
      - step: start
        tool:
          - {name: fetch, kind: python, code: "result = 'mine'", set: {step.outer: 1}}
          - {name: call, kind: workbook, block: score, input: {n: 5}}
          - name: look
            kind: python
            input: {mine: "{{ fetch.data }}", called: "{{ call.data }}", inner: "{{ step.inner | default('none') }}"}
            code: "result = [mine, called, inner]"
    """)
    assert ran.data == ["mine", 15, "none"]
    assert ran.ctx == {"last": 15}
    assert "call/fetch" in ran.order("task.done", "task")


def test_a_bare_task_and_the_older_name_key_and_a_list(play):
    ran = play("""
    workbook:
      - {name: twice, kind: python, input: {n: "{{ input.n }}"}, code: "result = n * 2"}
    workflow:
      - step: start
        tool: {kind: workbook, name: twice, input: {n: 21}}
    """)
    assert ran.data == 42


def test_a_block_that_fails_is_the_calling_tasks_failure(play):
    ran = play("""
    workbook:
      bad: {tool: [{name: t, kind: python, code: "raise ValueError('inside')"}]}
    workflow:
      - step: start
        tool:
          - name: call
            kind: workbook
            block: bad
            spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: continue, set: {ctx.e: "{{ output.error.message }}"}}}]}}
    """)
    assert ran.status == "success"
    assert "inside" in ran.ctx["e"]


def test_a_looping_block_called_from_an_iteration(play):
    ran = play("""
    workbook:
      rooms:
        loop: {in: "{{ input.rooms }}", iterator: room}
        tool: {kind: python, input: {r: "{{ iter.room }}", h: "{{ iter.parent.hotel.name }}"}, code: "result = f'{h}{r}'"}
    workload:
      hotels: [{name: a, rooms: [1, 2]}, {name: b, rooms: [3]}]
    workflow:
      - step: start
        loop: {in: "{{ workload.hotels }}", iterator: hotel, spec: {mode: parallel}}
        tool: {kind: workbook, block: rooms, input: {rooms: "{{ iter.hotel.rooms }}"}}
    """)
    assert ran.data == [["a1", "a2"], ["b3"]]


def test_a_recursive_block_fails(play):
    ran = play("""
    workbook:
      again: {tool: [{name: me, kind: workbook, block: again}]}
    workflow:
      - {step: start, tool: {kind: workbook, block: again}}
    """)
    assert ran.status == "failed"
    assert ran.error["kind"] == "limit"


# ── child playbooks ─────────────────────────────────────────────────────────────────────

CHILD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: child, path: e2e/child}
workload: {n: 1, fail: false}
workflow:
  - step: start
    tool:
      kind: python
      input: {n: "{{ workload.n }}", fail: "{{ workload.fail }}"}
      code: |
        if fail:
            raise ValueError("the child says no")
        result = {"twice": n * 2}
    next: {arcs: [{step: end}]}
  - {step: end, tool: {kind: python, input: {t: "{{ start.data.twice }}"}, code: "result = {'answer': t}"}}
"""


@pytest.fixture
def child(stage):
    return stage.register(CHILD)


def test_a_child_runs_on_its_own_and_returns_its_output(stage, play, child):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: playbook, path: e2e/child, input: {n: 21}}
        next: {arcs: [{step: end, set: {ctx.answer: "{{ output.data.answer }}"}}]}
      - {step: end, tool: {kind: noop}}
    """)
    assert ran.ctx == {"answer": 42}
    (started,) = ran.of("child.started")
    summary = stage.do(stage.orchestrator.summary(started.child))
    assert (summary.parent, summary.status, summary.path) == (ran.result.execution_id, "success", "e2e/child")


def test_a_child_returns_the_step_it_is_asked_for(play, child):
    ran = play("""
    workflow:
      - {step: start, tool: {kind: playbook, path: e2e/child, payload: {n: 4}, return_step: start}}
    """)
    assert ran.data == {"twice": 8}


def test_children_of_parallel_iterations(play, child):
    ran = play("""
    workflow:
      - step: start
        loop: {in: "{{ range(12) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 12}}
        tool: {kind: playbook, path: e2e/child, input: {n: "{{ iter.n }}"}}
    """)
    assert ran.data == [{"answer": n * 2} for n in range(12)]


def test_a_childs_failure_is_the_calling_tasks(play, child):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: playbook, path: e2e/child, input: {fail: true}}
    """)
    assert ran.status == "failed"
    assert "the child says no" in ran.error["message"]


def test_a_failed_child_can_be_retried_as_a_new_execution(play, child):
    ran = play("""
    workflow:
      - step: start
        tool:
          kind: playbook
          path: e2e/child
          input: {fail: "{{ _attempt < 2 }}", n: 3}
          spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 3}}]}}
    """)
    assert ran.data == {"answer": 6}
    children = ran.order("child.started", "child")
    assert len(set(children)) == 2


def test_a_missing_or_invalid_child_playbook_fails_the_task(play):
    ran = play("workflow:\n  - {step: start, tool: {kind: playbook, path: e2e/nowhere}}\n")
    assert ran.error["kind"] == "not_found"
    assert "e2e/nowhere" in ran.error["message"]


def test_a_child_that_is_not_waited_for(stage, play, child):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: playbook, path: e2e/child, input: {n: 1}, wait: false}
        next: {arcs: [{step: end}]}
      - {step: end, tool: {kind: python, input: {c: "{{ start.data }}"}, code: "result = c"}}
    """)
    assert ran.status == "success"
    (started,) = ran.of("child.started") or [None]
    summary = stage.do(stage.orchestrator.wait(started.child, 10))
    assert summary.status == "success"


def test_cancelling_the_caller_cancels_the_child(stage):
    stage.register("""
    apiVersion: noetl.io/v2
    kind: Playbook
    metadata: {name: slow, path: e2e/slow}
    workflow:
      - {step: start, tool: {kind: python, code: "import time; time.sleep(60)"}}
    """)

    async def scenario():
        from noetl.server.orchestrator.submissions import Submission
        from tests.e2e.conftest import playbook

        orchestrator = stage.orchestrator
        text = playbook("workflow:\n  - {step: start, tool: {kind: playbook, path: e2e/slow}}\n")
        parent = await orchestrator.submit(Submission(text=text))
        async for recorded in orchestrator.subscribe(parent):
            if recorded.body.NAME == "child.started":
                child = recorded.body.child
                break
        async for recorded in orchestrator.subscribe(child):
            if recorded.body.NAME == "step.started":
                break
        await orchestrator.cancel(parent, "enough")
        both = await asyncio.gather(orchestrator.wait(parent, 10), orchestrator.wait(child, 10))
        return [summary.status for summary in both]

    assert stage.do(scenario()) == ["cancelled", "cancelled"]


def test_cancelling_the_child_fails_the_caller(stage):
    stage.register("""
    apiVersion: noetl.io/v2
    kind: Playbook
    metadata: {name: slow2, path: e2e/slow2}
    workflow:
      - {step: start, tool: {kind: python, code: "import time; time.sleep(60)"}}
    """)

    async def scenario():
        from noetl.server.orchestrator.submissions import Submission
        from tests.e2e.conftest import playbook

        orchestrator = stage.orchestrator
        text = playbook("workflow:\n  - {step: start, tool: {kind: playbook, path: e2e/slow2}}\n")
        parent = await orchestrator.submit(Submission(text=text))
        async for recorded in orchestrator.subscribe(parent):
            if recorded.body.NAME == "child.started":
                await orchestrator.cancel(recorded.body.child, "enough")
                break
        return await orchestrator.wait(parent, 10)

    summary = stage.do(scenario())
    assert summary.status == "failed"


def test_endless_mutual_calls_of_playbooks_fail(stage, play):
    stage.register("""
    apiVersion: noetl.io/v2
    kind: Playbook
    metadata: {name: again, path: e2e/again}
    executor: {spec: {policy: {limits: {max_call_depth: 4}}}}
    workflow:
      - {step: start, tool: {kind: playbook, path: e2e/again}}
    """)
    ran = play("workflow:\n  - {step: start, tool: {kind: playbook, path: e2e/again}}\n")
    assert ran.status == "failed"
    assert ran.error["kind"] == "limit"


def test_a_child_is_found_as_a_file_next_to_its_caller(stage, tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "inner.yaml").write_text(CHILD.replace("e2e/child", "e2e/from_file"))
    (tmp_path / "main.yaml").write_text(
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: main}\nworkflow:\n"
        "  - step: start\n    tool: {kind: playbook, path: parts/inner, input: {n: 8}}\n"
        "    next: {arcs: [{step: end}]}\n"
        "  - step: end\n    tool: {kind: playbook, path: ./parts/inner.yaml, input: {n: 9}}\n"
    )
    result = stage.do(stage.engine.run(tmp_path / "main.yaml", timeout=20))
    assert (result.status, result.data) == ("success", {"answer": 18})


SLOW = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: slow, path: e2e/slow}
workload: {seconds: 30}
workflow:
  - step: start
    tool:
      kind: python
      input: {seconds: "{{ workload.seconds }}"}
      code: |
        import time
        time.sleep(seconds)
        result = "done"
"""


def test_the_calling_tasks_own_timeout_ends_the_child_and_may_be_retried(stage, play):
    stage.register(SLOW)
    ran = play("""
    workflow:
      - step: start
        tool:
          - name: call
            kind: playbook
            path: e2e/slow
            payload: {seconds: "{{ 30 if _attempt == 1 else 0 }}"}
            spec:
              timeout: 1
              policy:
                rules:
                  - {when: "{{ output.error.kind == 'timeout' }}", then: {do: retry, attempts: 2, delay: 0}}
        next: {arcs: [{step: gives_up}]}
      - step: gives_up
        tool: {kind: playbook, path: e2e/slow, spec: {timeout: {total: 0.3}}}
    """)
    assert ran.status == "failed"
    assert ran.result.error["kind"] == "timeout"
    assert "the child execution exceeded spec.timeout (0.3 s)" in ran.result.error["message"]
    early = [(event.early, event.outcome.status) for event in ran.of("child.finished")]
    assert early.count((True, "error")) == 2
    assert (False, "ok") in early
    for started in ran.of("child.started"):
        assert stage.do(stage.orchestrator.summary(started.child)).status in ("cancelled", "success")
