"""`executor.spec.policy`: limits of the processes of tasks, and stored results."""

from __future__ import annotations

import pytest


def limited(resources: str, task: str) -> str:
    return f"""
    executor: {{spec: {{policy: {{defaults: {{resources: {resources}}}}}}}}}
    workflow:
      - step: start
        tool: {task}
    """


@pytest.mark.parametrize(
    ("resources", "code", "message"),
    [
        ("{memory: 128MB}", "result = len(bytearray(512 * 1024 * 1024))", "memory limit exceeded"),
        ("{cpu_s: 1}", "while True: pass", "CPU time limit exceeded"),
    ],
)
def test_python_code_that_exceeds_its_resources_fails_with_kind_limit(play, resources, code, message):
    ran = play(limited(resources, f'{{kind: python, code: "{code}"}}'))
    assert ran.status == "failed"
    assert ran.error["kind"] == "limit"
    assert message in ran.error["message"]


def test_open_files_are_limited(play):
    code = "result = len([open('/dev/null') for n in range(200)])"
    ran = play(limited("{files: 64}", f'{{kind: python, code: "{code}"}}'))
    assert ran.status == "failed"
    assert "Too many open files" in ran.error["message"]


def test_shell_processes_have_the_same_resources(play):
    ran = play(limited("{files: 48, cpu_s: 7}", '{kind: shell, cmd: "ulimit -n; ulimit -t"}'))
    assert ran.data["stdout"].split() == ["48", "7"]


def test_a_task_has_its_own_resources(play):
    text = limited("{files: 48}", '{kind: shell, cmd: "ulimit -n", spec: {limits: {open_files: 99}}}')
    assert play(text).data["stdout"].split() == ["99"]


def test_with_reference_first_every_result_is_a_reference_that_templates_read(play):
    ran = play("""
    executor: {spec: {policy: {results: {reference_first: true}}}}
    workflow:
      - step: small
        tool: {kind: python, code: "result = {'n': 1}"}
        next: {arcs: [{step: reads, when: "{{ small.n == 1 }}"}]}
      - step: reads
        tool: {kind: python, input: {n: "{{ small.n }}"}, code: "result = n + 1"}
    """)
    assert ran.status == "success"
    outcomes = [body.outcome for body in ran.of("task.done")]
    assert [outcome.data for outcome in outcomes] == [None, None]
    assert all(outcome.ref is not None for outcome in outcomes)
