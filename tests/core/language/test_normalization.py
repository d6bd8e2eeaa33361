"""Different spellings of the same meaning are lowered to the same model."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from dsl_kinds import SPECS
from dsl_snippets import whole

from noetl.core.language.compile import compile_playbook
from noetl.core.model.playbook import Executor, Playbook


def lowered(snippet: str) -> tuple[Playbook, list[str]]:
    result = compile_playbook(whole(snippet), file="f", specs=SPECS)
    assert result.playbook is not None, result.diagnostics
    return result.playbook, [one.code for one in result.diagnostics]


def meaning(snippet: str) -> Any:
    """The model without what depends on how it was written: places, digest, surface."""

    playbook, _ = lowered(snippet)
    left_out = dict.fromkeys(("digest", "metadata"), None)
    return msgspec.structs.replace(playbook, surface="canonical", locations={}, executor=Executor(), **left_out)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("- step: a\n  tool: [{ t: { kind: noop } }]\n", "- step: a\n  tool: [{ name: t, kind: noop }]\n"),
        ("- step: a\n  args: { x: 1 }\n  tool: { kind: noop }\n", "- step: a\n  input: { x: 1 }\n  tool: { kind: noop }\n"),
        ("- step: a\n  tool: { kind: noop, args: { x: 1 } }\n", "- step: a\n  tool: { kind: noop, input: { x: 1 } }\n"),
        ("- step: a\n  tool: { kind: http, url: u }\n", "- step: a\n  tool: { kind: http, input: { url: u } }\n"),
        ("- step: a\n  tool: { kind: http, endpoint: u, json: { b: 1 } }\n", "- step: a\n  tool: { kind: http, url: u, body: { b: 1 } }\n"),
        ("- step: a\n  tool: { kind: postgres, queries: [x], credential: c }\n", "- step: a\n  tool: { kind: postgres, command: [x], auth: c }\n"),
        ("- step: a\n  tool: { kind: artifact, ref: r }\n", "- step: a\n  tool: { kind: resolve, ref: r }\n"),
        ("- step: a\n  tool: { kind: noop }\n  set: { ctx: { x: 1, y: { z: 2 } } }\n", "- step: a\n  tool: { kind: noop }\n  set: { ctx.x: 1, ctx.y: { z: 2 } }\n"),
        ("- step: a\n  tool: { kind: noop }\n  set: { x: 1, y.z: 2 }\n", "- step: a\n  tool: { kind: noop }\n  set: { ctx.x: 1, ctx.y.z: 2 }\n"),
        (
            "- step: a\n  tool: { kind: noop, spec: { policy: { rules: [{ else: null, then: { do: break } }] } } }\n",
            "- step: a\n  tool: { kind: noop, spec: { policy: { rules: [{ else: { then: { do: break } } }] } } }\n",
        ),
        (
            "- step: a\n  tool: { kind: noop, spec: { policy: { rules: [{ else: { do: break } }] } } }\n",
            "- step: a\n  tool: { kind: noop, spec: { policy: { rules: [{ else: { then: { do: break } } }] } } }\n",
        ),
        (
            "- step: a\n  tool: { kind: noop, spec: { policy: { rules: [{ else: { then: { do: retry, backoff: fixed, set_ctx: { x: 1 } } } }] } } }\n",
            "- step: a\n  tool: { kind: noop, spec: { policy: { rules: [{ else: { then: { do: retry, set: { ctx.x: 1 } } } }] } } }\n",
        ),
        (
            "- step: a\n  loop: { in: [1], iterator: i }\n  tool: { kind: noop, spec: { policy: { rules: [{ else: { then: { do: break, set_iter: { x: 1 } } } }] } } }\n",
            "- step: a\n  loop: { in: [1], iterator: i }\n  tool: { kind: noop, spec: { policy: { rules: [{ else: { then: { do: break, set: { iter.x: 1 } } } }] } } }\n",
        ),
        (
            "- step: a\n  loop: { in: [1], iterator: i, spec: { policy: { mode: parallel, max_in_flight: 2 } } }\n  tool: { kind: noop }\n",
            "- step: a\n  loop: { in: [1], iterator: i, spec: { mode: parallel, max_in_flight: 2 } }\n  tool: { kind: noop }\n",
        ),
        (
            "- step: a\n  tool: { kind: noop }\n  next: { arcs: [{ step: a, when: \"{{ event.name == 'call.done' }}\" }] }\n",
            "- step: a\n  tool: { kind: noop }\n  next: { spec: { mode: exclusive }, arcs: [{ step: a, when: \"{{ event.name == 'step.done' }}\" }] }\n",
        ),
        ("- step: a\n  tool: { kind: noop }\n  output_select: [output.data.x, y]\n", "- step: a\n  tool: { kind: noop }\n  output: { select: [x, y] }\n"),
        ("- step: a\n  tool: { kind: noop, output: { output_select: [x] } }\n", "- step: a\n  tool: { kind: noop, output: { select: [data.x] } }\n"),
        ("- step: a\n  tool: { kind: shell, cmd: ls, timeout: 3 }\n", "- step: a\n  tool: { kind: shell, command: ls, spec: { timeout: 3 } }\n"),
        (
            "- step: a\n  tool: { kind: shell, cmd: ls, retry: { max_attempts: 3, initial_delay: 1, backoff: fixed } }\n",
            "- step: a\n  tool: { kind: shell, cmd: ls, spec: { retry: { attempts: 3, delay: 1, backoff: none } } }\n",
        ),
        ("- step: a\n  tool: { kind: shell, cmd: ls, retry: 3 }\n", "- step: a\n  tool: { kind: shell, cmd: ls, retry: { attempts: 3 } }\n"),
        (
            "workbook: [{ name: b, tool: { kind: noop } }]\nworkflow: [{ step: a, tool: { kind: workbook, block: b } }]\n",
            "workbook: { b: { tool: { kind: noop } } }\nworkflow: [{ step: a, tool: { kind: workbook, block: b } }]\n",
        ),
        (
            "workbook: { b: { kind: noop, set: { ctx.x: 1 } } }\nworkflow: [{ step: a, tool: { kind: workbook, block: b } }]\n",
            "workbook: { b: { tool: { kind: noop, set: { ctx.x: 1 } } } }\nworkflow: [{ step: a, tool: { kind: workbook, block: b } }]\n",
        ),
        (
            "keychain: [{ name: k, kind: secrets, provider: aws }, { name: l, kind: postgres_credential }]\n",
            "keychain: [{ name: k, kind: secret_manager, provider: aws }, { name: l, kind: credential }]\n",
        ),
        (
            "keychain: [{ name: k, kind: oauth2, endpoint: https://u, data: { grant_type: g, client_id: i, client_secret: s } }]\n",
            "keychain: [{ name: k, kind: oauth2, token_url: https://u, client_id: i, client_secret: s }]\n",
        ),
    ],
)  # fmt: skip
def test_two_spellings_mean_the_same(written, canonical):
    assert meaning(written) == meaning(canonical)


def test_v10_args_of_an_arc_belong_to_the_token():
    playbook, codes = lowered(
        '- step: a\n  tool: { kind: noop }\n  next: { arcs: [{ step: a, when: "{{ output.data.n }}", args: { x: "{{ output.data.n }}" } }] }\n'
    )
    (assignment,) = playbook.step("a").router.arcs[0].assignments
    assert (assignment.scope, assignment.keys, assignment.value) == ("args", ("x",), "{{ output.data.n }}")
    assert codes == ["v10-arc-args"]
    assert playbook.step("a").exports == ("data.n",)


def test_a_block_called_by_its_name_keeps_the_name_as_the_tasks():
    playbook, codes = lowered(
        "workbook: { b: { kind: noop } }\nworkflow: [{ step: a, tool: { kind: workbook, name: b, input: { x: 1 } } }]\n"
    )
    (task,) = playbook.step("a").tasks
    assert (task.name, task.input) == ("b", {"block": "b", "payload": {"x": 1}})
    assert codes == ["workbook-name"]


def test_python_variables_come_from_input_and_code_does_not_change():
    playbook, codes = lowered(
        '- step: a\n  tool:\n    kind: python\n    input: { code_of: "{{ execution_id }}", input_data: 1 }\n    code: "x = {{1}}"\n'
    )
    (task,) = playbook.step("a").tasks
    assert task.input == {"code": "x = {{1}}", "code_of": "{{ execution_id }}", "input_data": 1}
    assert task.raw == ("code",)
    assert codes == []


def test_numbers_under_spec_and_rules_may_be_templates():
    playbook, codes = lowered(
        "workload: { n: 3 }\nworkflow:\n"
        '  - step: a\n    spec: { policy: { lifecycle: { timeout_s: "{{ workload.n }}", deadline_s: 9 } } }\n'
        '    loop: { in: [1], iterator: i, spec: { mode: parallel, max_in_flight: "{{ workload.n }}" } }\n'
        "    tool:\n      kind: shell\n      cmd: ls\n      spec:\n"
        '        timeout: "{{ workload.n }}"\n'
        '        policy: { rules: [{ else: { then: { do: retry, attempts: "{{ workload.n }}", delay: "{{ workload.n }}" } } }] }\n'
    )
    step = playbook.step("a")
    assert codes == []
    assert (step.timeout_s, step.deadline_s) == ("{{ workload.n }}", 9)
    assert step.loop is not None and step.loop.max_in_flight == "{{ workload.n }}"
    assert step.tasks[0].spec == {"timeout": "{{ workload.n }}"}
    then = (step.tasks[0].rules or ())[0].then
    assert (then.attempts, then.delay, then.max_delay) == ("{{ workload.n }}", "{{ workload.n }}", 300.0)


def test_defaults_of_the_executor_have_the_lowest_precedence():
    playbook, codes = lowered(
        "executor:\n  spec:\n    policy: { defaults: { timeouts: { read: 5, total: 50 }, http: { max_bytes: 1 } }, limits: { max_call_depth: 4 } }\n"
        "    timeout: { read: 7 }\nworkflow:\n  - step: a\n    tool: [{ kind: http, url: u }, { kind: noop }]\n"
    )
    http, noop = playbook.step("a").tasks
    assert codes == []
    assert http.spec == {"follow_redirects": True, "timeout": {"read": 7, "total": 50}, "max_bytes": 1}
    assert noop.spec == {"timeout": {"read": 7, "total": 50}}
    assert playbook.executor.limits.max_call_depth == 4


def test_the_nearest_max_task_runs_bounds_a_pipeline():
    text = "executor: { spec: { max_task_runs: 7 } }\nworkflow:\n  - { step: a, tool: { kind: noop }, next: { arcs: [{ step: b }] } }\n"
    text += "  - { step: b, spec: { max_task_runs: 5 }, tool: { kind: noop }, next: { arcs: [{ step: c }] } }\n  - { step: c, tool: { kind: noop, spec: { max_task_runs: 3 } } }\n"
    playbook, codes = lowered(text)
    assert codes == []
    assert [step.tasks[0].spec["max_task_runs"] for step in playbook.steps] == [7, 5, 3]


def test_a_pipeline_of_unconditional_jumps_has_a_lower_limit():
    jump = "spec: { policy: { rules: [{ else: { then: { do: jump, to: again } } }] } }"
    wait = "spec: { policy: { rules: [{ when: '{{ now() }}', then: { do: retry, delay: 5 } }] } }"
    requested = "spec: { policy: { rules: [{ when: '{{ iter.n < 9000 }}', then: { do: jump, to: again } }] } }"
    text = "workflow:\n"
    for step, (tasks, following) in {
        "idle": (f"{{ name: again, kind: noop, {jump} }}", "works"),
        "works": (f"{{ name: again, kind: python, code: 'result = 1' }}, {{ name: b, kind: noop, {jump} }}", "waits"),
        "waits": (f"{{ name: again, kind: noop, {wait} }}, {{ name: b, kind: noop, {jump} }}", "asks"),
        "asks": (f"{{ name: again, kind: noop, {requested} }}", "plain"),
    }.items():
        text += f"  - {{ step: {step}, tool: [{tasks}], next: {{ arcs: [{{ step: {following} }}] }} }}\n"
    playbook, _ = lowered(text + "  - { step: plain, tool: { kind: noop } }\n")
    assert [step.max_task_runs for step in playbook.steps] == [5_000, *[100_000] * 4]


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("workflow: [{ step: x, tool: { kind: noop } }, { step: start, tool: { kind: noop } }]\n", "start"),
        ("workflow: [{ step: x, tool: { kind: noop } }, { step: y, tool: { kind: noop } }]\n", "x"),
        ("executor: { spec: { entry_step: y } }\nworkflow: [{ step: start, tool: { kind: noop } }, { step: y, tool: { kind: noop } }]\n", "y"),
    ],
)  # fmt: skip
def test_the_entry_is_the_executors_entry_step_else_start_else_the_first(text, entry):
    assert lowered(text)[0].entry == entry


def test_a_playbooks_path_defaults_to_its_name():
    playbook, _ = lowered("metadata: { name: n }\n")
    assert (playbook.name, playbook.path) == ("n", "n")
    playbook, _ = lowered("metadata: { name: n, path: p/q, version: 1.10, description: d }\n")
    assert (playbook.path, playbook.version, playbook.description) == ("p/q", "1.10", "d")


def test_reads_of_other_steps_include_blocks_and_code_that_may_read_anything():
    playbook, _ = lowered(
        "workbook:\n  b: { tool: { kind: workbook, block: c } }\n  c: { tool: { kind: noop, input: { v: \"{{ one.x }}\" } } }\nworkflow:\n"
        "  - { step: one, tool: { kind: noop }, next: { arcs: [{ step: two }] } }\n"
        "  - { step: two, tool: { kind: workbook, block: b }, next: { arcs: [{ step: three }] } }\n"
        '  - { step: three, tool: { kind: noop, input: { v: "{{ steps[_prev.name].x }}" } }, next: { arcs: [{ step: four }] } }\n'
        '  - { step: four, tool: { kind: noop, input: { v: "{{ steps.two.x }}{{ three.y }}" } } }\n'
    )  # fmt: skip
    assert [step.reads for step in playbook.steps] == [(), ("one",), ("*",), ("two", "three")]


def test_server_side_reads_are_exported_in_every_spelling():
    playbook, _ = lowered(
        "- step: a\n  loop: { in: [1], iterator: i }\n  tool: { kind: noop }\n  set: { ctx.n: \"{{ output.loop.failed }}\" }\n"
        "  next: { arcs: [{ step: b, when: \"{{ output.rows and output.http.status == 200 and output.data.x['y z'] }}\" }] }\n"
        '- step: b\n  input: { v: "{{ a.total }}", w: "{{ a.status }}", u: "{{ steps.a.status }}" }\n  tool: { kind: noop }\n'
        '  spec: { policy: { admit: { rules: [{ when: "{{ a.data.k }}", then: { allow: true } }] } } }\n'
    )  # fmt: skip
    assert set(playbook.step("a").exports) == {
        "loop.failed", "data.rows", "http.status", "data.x.y z", "data.total", "status", "data.status", "data.k",
    }  # fmt: skip


def test_every_recorded_position_is_in_the_text():
    text = whole(
        "- step: a\n  tool:\n    - name: t\n      kind: http\n      url: '{{ execution_id }}'\n      headers: { A: '{{ execution_id }}' }\n"
    )
    assert isinstance(text, str)
    playbook = compile_playbook(text, file="f", specs=SPECS).playbook
    assert playbook is not None
    lines = text.split("\n")
    assert all(
        1 <= place.line <= len(lines) and 1 <= place.column <= len(lines[place.line - 1]) + 1
        for place in playbook.locations.values()
    )
    assert playbook.where("workflow/0/tool/0/input/headers/A") == "f:10:23"
