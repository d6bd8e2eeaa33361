from __future__ import annotations

import gc
from textwrap import dedent

import msgspec
import pytest
from dsl_kinds import SPECS

from noetl.core.language.compile import Compilation, compile_playbook, compile_steps
from noetl.core.model.playbook import Playbook

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: t}\n"


def compiled(body: str, **options: bool) -> Compilation:
    return compile_playbook(HEAD + dedent(body), file="t.yaml", specs=SPECS, **options)


def lowered(body: str) -> Playbook:
    result = compiled(body)
    assert result.playbook is not None, result.diagnostics
    return result.playbook


def test_a_single_mapping_is_one_task_named_after_its_step():
    step = lowered(
        """
        workflow:
          - step: fetch
            tool: {kind: http, url: "http://x"}
        """
    ).step("fetch")
    assert [(task.name, task.kind, task.input) for task in step.tasks] == [("fetch_task", "http", {"url": "http://x"})]


def test_tasks_without_a_name_are_named_after_their_position():
    step = lowered(
        """
        workflow:
          - step: a
            tool:
              - {kind: noop}
              - {name: second, kind: noop}
              - {kind: noop}
        """
    ).step("a")
    assert [task.name for task in step.tasks] == ["task_0", "second", "task_2"]


def test_input_takes_precedence_over_a_parameter_beside_the_kind_and_aliases_become_the_field():
    result = compiled(
        """
        workflow:
          - step: a
            tool:
              kind: http
              endpoint: "http://beside"
              input: {url: "http://input"}
        """
    )
    assert [d.code for d in result.diagnostics] == ["parameter-twice"]
    assert result.playbook is not None
    assert result.playbook.step("a").tasks[0].input == {"url": "http://input"}


def test_specs_are_merged_from_the_kind_to_the_task():
    step = lowered(
        """
        executor:
          spec:
            timeout: 30
            http: {timeout: {connect: 5}, max_bytes: 10}
        workflow:
          - step: a
            spec: {max_bytes: 20, pool: big, policy: {lifecycle: {timeout_s: 9}, failure: {mode: best_effort}}}
            loop: {in: [1], iterator: x, spec: {mode: parallel, timeout: {read: 7}}}
            tool:
              - {name: h, kind: http, url: u, spec: {effect: at_most_once, follow_redirects: false}}
              - {name: n, kind: noop}
        """
    ).step("a")
    assert step.tasks[0].spec == {
        "follow_redirects": False,
        "timeout": {"total": 30, "connect": 5, "read": 7},
        "max_bytes": 20,
    }
    assert step.tasks[0].effect == "at_most_once"
    assert step.tasks[1].spec == {"timeout": {"total": 30, "read": 7}, "max_bytes": 20}
    assert (step.pool, step.timeout_s, step.failure) == ("big", 9, "best_effort")


def test_nested_flat_and_unscoped_targets_become_the_same_assignments():
    result = compiled(
        """
        workflow:
          - step: a
            tool: {kind: noop}
            set: {ctx: {a: 1}, ctx.b.c: 2, d: 3, step.e: 4}
        """
    )
    assert [d.code for d in result.diagnostics] == ["set-without-scope"]
    assert result.playbook is not None
    assert [(s.scope, s.keys, s.value) for s in result.playbook.step("a").assignments] == [
        ("ctx", ("a",), 1),
        ("ctx", ("b", "c"), 2),
        ("ctx", ("d",), 3),
        ("step", ("e",), 4),
    ]


def test_every_path_leads_to_the_authors_line():
    playbook = lowered(
        """
        workflow:
          - step: a
            tool:
              kind: http
              url: "{{ workload.x }}"
        """
    )
    task = playbook.step("a").tasks[0]
    assert playbook.where(f"{task.path}/input/url") == "t.yaml:9:12"
    assert playbook.where(f"{task.path}/nowhere") == "t.yaml:8:7"


def test_choose_is_compiled_with_merge_points_and_keeps_its_line():
    playbook = lowered(
        """
        workflow:
          - step: a
            tool:
              - name: pick
                choose:
                  - when: "{{ workload.x > 1 }}"
                    then: [{name: big, kind: noop}]
                  - else: {then: [{name: small, kind: noop}]}
              - {name: last, kind: noop}
        """
    )
    tasks = playbook.step("a").tasks
    assert [task.name for task in tasks] == ["pick", "big", "pick__0_end", "small", "pick__end", "last"]
    assert [(rule.when, rule.then.to) for rule in tasks[0].rules or ()] == [
        ("{{ workload.x > 1 }}", "big"),
        (None, "small"),
    ]
    assert tasks[2].generated == "choose"
    assert playbook.where(tasks[2].path) == "t.yaml:8:9"


def test_while_checks_before_and_until_checks_after():
    tasks = (
        lowered(
            """
        workflow:
          - step: a
            tool:
              - name: w
                while: {when: "{{ step.more }}", tool: [{name: one, kind: noop}]}
              - name: u
                until: {when: "{{ step.done }}", tool: [{name: two, kind: noop}]}
        """
        )
        .step("a")
        .tasks
    )
    assert [task.name for task in tasks] == ["w", "one", "w__next", "w__end", "u", "two", "u__check"]
    jumps = {task.name: [(rule.when, rule.then.do, rule.then.to) for rule in task.rules or ()] for task in tasks}
    assert jumps["w"] == [("{{ step.more }}", "continue", None), (None, "jump", "w__end")]
    assert jumps["w__next"] == [(None, "jump", "w")]
    assert jumps["u__check"] == [("{{ step.done }}", "continue", None), (None, "jump", "u")]


def test_calls_pass_their_input_as_payload():
    playbook = lowered(
        """
        workbook:
          clean: {kind: noop}
        workflow:
          - step: a
            tool:
              - {name: child, kind: playbook, path: other, input: {path: "/data", version: 3}}
              - {name: block, kind: workbook, block: clean, input: {row: 1}}
              - {name: inside, kind: playbook, input: {path: other, payload: {x: 1}}}
        """
    )
    assert [task.input for task in playbook.step("a").tasks] == [
        {"path": "other", "payload": {"path": "/data", "version": 3}},
        {"block": "clean", "payload": {"row": 1}},
        {"path": "other", "payload": {"x": 1}},
    ]
    assert playbook.blocks["clean"].tasks[0].name == "clean_task"


def test_server_side_reads_are_exported_and_worker_side_reads_are_listed():
    playbook = lowered(
        """
        workflow:
          - step: a
            tool: {kind: noop}
            next:
              arcs:
                - {step: b, when: "{{ output.data.count > 0 and result.ok and event.name == 'call.done' }}"}
          - step: b
            input: {id: "{{ a.user.id }}"}
            tool: {kind: python, input: {rows: "{{ a.rows }}"}, code: "result = rows"}
            next: {arcs: [{step: c}]}
          - step: c
            tool: {kind: python, code: "def main(context): return context['a']"}
        """
    )
    assert set(playbook.step("a").exports) == {"data.count", "data.ok", "data.user.id"}
    assert playbook.step("b").reads == ("a",)
    assert playbook.step("c").reads == ("*",)
    assert "step.done" in playbook.step("a").router.arcs[0].when


def test_a_playbook_can_be_encoded_as_json():
    playbook = lowered(
        """
        workload: {x: 1}
        workflow:
          - step: a
            loop: {in: "{{ workload.x }}", iterator: i, loop: {in: [1], iterator: j}}
            tool: [{kind: noop, spec: {policy: {rules: [{else: {then: {do: break}}}]}}}]
        """
    )
    assert msgspec.json.decode(msgspec.json.encode(playbook), type=Playbook) == playbook


def test_synthesized_steps_are_validated_and_lowered_into_the_running_playbook():
    playbook = lowered(
        """
        executor: {spec: {timeout: 5}}
        workflow:
          - step: a
            tool: {kind: noop}
        """
    )
    made = [{"step": "b", "tool": {"kind": "noop"}, "next": {"arcs": [{"step": "a"}]}}]
    steps, diagnostics = compile_steps(made, playbook, SPECS)
    assert diagnostics == ()
    assert [(step.name, step.tasks[0].spec) for step in steps] == [("b", {"timeout": 5})]
    steps, diagnostics = compile_steps([{"step": "a", "tool": {"kind": "nop"}}], playbook, SPECS)
    assert steps == ()
    assert {d.code for d in diagnostics} == {"duplicate-step", "unknown-kind"}


def test_a_playbook_with_errors_is_not_lowered_and_all_errors_are_reported():
    result = compiled(
        """
        workflw: []
        workflow:
          - step: a
            tol: {kind: noop}
            tool: {kind: htp}
            next: {arcs: [{step: nowhere}]}
        """
    )
    assert result.playbook is None
    assert [(d.code, d.line, d.column) for d in result.diagnostics] == [
        ("unknown-key", 5, 1),
        ("unknown-key", 8, 5),
        ("unknown-kind", 9, 18),
        ("unknown-step", 10, 26),
    ]
    assert result.diagnostics[0].hint == 'did you mean "workflow"?'


def test_frozen_objects_are_not_counted_for_every_playbook(monkeypatch: pytest.MonkeyPatch):
    requested: list[None] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: requested.append(None) or 1)
    steps = "".join(f"  - step: s{n}\n    tool: {{kind: noop}}\n" for n in range(300))
    before = gc.get_threshold()
    try:
        gc.set_threshold(700)
        lowered(f"workflow:\n{steps}")
        assert requested  # enough objects that a process with few of its own checks
        requested.clear()
        gc.set_threshold(1_000_000)
        lowered(f"workflow:\n{steps}")
        assert not requested
    finally:
        gc.set_threshold(*before)
