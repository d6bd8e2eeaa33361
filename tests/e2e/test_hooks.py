"""The tasks around a task: `before`, `after` and `finally` of its policy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from noetl.server.orchestrator.submissions import Submission
from tests.e2e.conftest import playbook

TEXT = """
    workload: {before: true, main: true, after: true, final: true}
    workflow:
      - step: a
        tool:
          - name: work
            kind: python
            input: {good: "{{ workload.main }}", key: "{{ lock.data }}"}
            code: |
              if not good: raise ValueError("main")
              result = key + 1
            spec:
              policy:
                RULES
                before:
                  - {name: lock, kind: python, input: {good: "{{ workload.before }}"}, code: "result = 7 if good else 1 / 0"}
                  - {name: second, kind: noop}
                after:
                  - {name: check, kind: python, input: {good: "{{ workload.after }}", out: "{{ output.data }}"}, code: "result = out if good else 1 / 0"}
                finally:
                  - {name: unlock, kind: python, input: {good: "{{ workload.final }}", status: "{{ output.status }}"}, code: "result = status if good else 1 / 0", set: {ctx.unlocked: "{{ output.data | default('failed', true) }}"}}
                  - {name: last, kind: noop, set: {ctx.last: true}}
          - {name: follow, kind: python, input: {x: "{{ output.data }}", y: "{{ _prev.data }}"}, code: "result = [x, y]"}
"""
PLAIN = TEXT.replace("                RULES\n", "")


def tasks(ran) -> list[str]:
    return [body.task for body in ran.of("task.done")]


def test_the_tasks_run_around_the_task_and_do_not_change_its_output(play):
    ran = play(PLAIN)
    assert (ran.status, ran.data) == ("success", [8, 8])
    assert tasks(ran) == ["lock", "second", "work", "check", "unlock", "last", "follow"]
    assert ran.ctx == {"unlocked": "ok", "last": True}


def test_a_failing_before_fails_the_task_and_finally_runs(play):
    ran = play(PLAIN, {"before": False})
    assert ran.status == "failed"
    assert "ZeroDivisionError" in ran.error["message"]
    assert tasks(ran) == ["lock", "work", "unlock", "last"]
    assert ran.ctx["unlocked"] == "error"


def test_a_failing_task_runs_finally_and_not_after(play):
    ran = play(PLAIN, {"main": False})
    assert (ran.status, tasks(ran)) == ("failed", ["lock", "second", "work", "unlock", "last"])
    assert "ValueError: main" in ran.error["message"]
    assert ran.error["details"]["task"] == "work"


def test_a_failing_after_fails_the_task(play):
    ran = play(PLAIN, {"after": False})
    assert (ran.status, tasks(ran)) == ("failed", ["lock", "second", "work", "check", "unlock", "last"])
    assert "ZeroDivisionError" in ran.error["message"]


def test_a_failing_finally_is_recorded_beside_the_outcome(play):
    ran = play(PLAIN.replace("          - {name: follow", "          # - {name: follow"), {"final": False})
    assert (ran.status, ran.data) == ("success", 8)
    assert ran.of("step.done")[0].output.meta["finally"]["kind"] == "python"
    failed = play(PLAIN, {"final": False, "main": False})
    assert failed.error["message"].startswith("ValueError: main")
    assert "ZeroDivisionError" in failed.error["secondary"]["message"]


def test_rules_apply_to_a_failing_before_and_retry_it(play):
    rule = "rules: [{when: \"{{ output.status == 'error' }}\", then: {do: retry, attempts: 3}}]"
    ran = play(TEXT.replace("RULES", rule), {"before": False})
    assert ran.status == "failed"
    assert tasks(ran) == ["lock", "work"] * 3 + ["unlock", "last"]
    assert [body.attempt for body in ran.of("task.done", task="work")] == [1, 2, 3]
    again = play(TEXT.replace("RULES", rule), {"main": False})
    assert tasks(again) == ["lock", "second", "work", "work", "work", "unlock", "last"]


@pytest.mark.parametrize(
    ("do", "after"),
    [
        ("continue", ["unlock", "last", "follow"]),
        ("break", ["unlock", "last"]),
        ("jump, to: follow", ["unlock", "last", "follow"]),
    ],
)
def test_the_directive_of_the_task_follows_finally(play, do, after):
    rule = f"rules: [{{when: \"{{{{ output.status == 'error' }}}}\", then: {{do: {do}}}}}]"
    ran = play(TEXT.replace("RULES", rule).replace("_prev.data", "_prev.status"), {"main": False})
    assert ran.status == "success", ran.error
    assert tasks(ran)[3:] == after


def test_a_jump_enters_before_the_tasks_before(play):
    ran = play("""
    workflow:
      - step: a
        tool:
          - name: work
            kind: noop
            set: {step.n: "{{ (step.n | default(0)) + 1 }}"}
            spec: {policy: {before: [{name: open, kind: noop}], finally: [{name: close, kind: noop}]}}
          - name: again
            kind: noop
            spec: {policy: {rules: [{when: "{{ step.n < 2 }}", then: {do: jump, to: work}}]}}
    """)
    assert ran.status == "success"
    assert tasks(ran) == ["open", "work", "close", "again", "open", "work", "close", "again"]


def test_hooks_in_a_loop_and_in_a_block(play):
    ran = play("""
    workflow:
      - step: a
        loop: {in: [1, 2], iterator: n}
        tool: {kind: workbook, block: guarded, input: {n: "{{ iter.n }}"}}
    workbook:
      guarded:
        tool:
          name: work
          kind: python
          input: {n: "{{ input.n }}"}
          code: "result = n * 10"
          spec: {policy: {before: [{name: open, kind: noop}], finally: [{name: close, kind: noop}]}}
    """)
    assert (ran.status, ran.data) == ("success", [10, 20])
    assert [name.rpartition("/")[2] for name in tasks(ran)].count("close") == 2


@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_finally_runs_when_the_run_is_ended_from_outside(stage, tmp_path: Path, how):
    began, mark = tmp_path / "began", tmp_path / "released"
    text = playbook(f"""
    workflow:
      - step: a
        spec: {{policy: {{lifecycle: {{timeout_s: {1.5 if how == "timeout" else 60}}}}}}}
        tool:
          name: work
          kind: shell
          cmd: "touch {began}; sleep 60"
          spec: {{policy: {{finally: [{{name: release, kind: shell, cmd: "touch {mark}"}}]}}}}
    """)

    async def scenario():
        execution_id = await stage.orchestrator.submit(Submission(text=text))
        while not began.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)
        if how == "cancel":
            await stage.orchestrator.cancel(execution_id)
        row = await stage.orchestrator.wait(execution_id, 30)
        for _ in range(500):
            if mark.exists():
                break
            await asyncio.sleep(0.02)
        return row.status

    assert stage.do(scenario()) == ("cancelled" if how == "cancel" else "failed")
    assert mark.exists()
