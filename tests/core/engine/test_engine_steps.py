"""Chains, arcs, sets and failures: what happens between steps."""

from __future__ import annotations

import pytest
from engine_harness import Harness, failure, finished, playbook, wrote

from noetl.core.engine.advance import MAX_EVENTS, advance, begin, fold, outstanding
from noetl.core.engine.commands import StartExecution
from noetl.core.engine.effects import ContinueLater
from noetl.core.engine.evaluation.compiled_net import Net
from noetl.core.engine.snapshot import encode_state
from noetl.core.model.events import (
    CtxPatched,
    ExecutionRequested,
    NextEvaluated,
    PlaybookProcessed,
    StepFailed,
    StepSkipped,
    WorkflowFinished,
)
from noetl.core.model.outcome import ok


def test_a_chain_runs_step_by_step_and_ends_once():
    harness = Harness(
        """
workflow:
  - {step: start, next: {arcs: [{step: a}]}}
  - {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
  - {step: b, tool: {kind: noop}}
""",
        {"b": ok({"x": 1})},
    ).run()
    assert harness.scheduled == ["start", "a", "b"]
    assert harness.status == "success"
    assert harness.data == {"x": 1}
    assert harness.names == [
        "playbook.execution.requested", "playbook.request.evaluated", "workflow.started",
        "step.scheduled", "step.started", "step.done", "next.evaluated",
        "step.scheduled", "step.started", "step.done", "next.evaluated",
        "step.scheduled", "step.started", "step.done", "next.evaluated",
        "workflow.finished", "playbook.processed",
    ]  # fmt: skip
    assert len(harness.of(WorkflowFinished)) == len(harness.of(PlaybookProcessed)) == 1


EXCLUSIVE = """
workflow:
  - step: start
    tool: {kind: noop}
    next:
      spec: {mode: MODE}
      arcs:
        - {step: a, when: "{{ output.data.n > 1 }}"}
        - {step: b, when: "{{ output.data.n > 0 }}"}
        - {step: c}
  - {step: a, tool: {kind: noop}}
  - {step: b, tool: {kind: noop}}
  - {step: c, tool: {kind: noop}}
"""


def test_an_exclusive_router_takes_the_first_arc_whose_guard_is_true():
    harness = Harness(EXCLUSIVE.replace("MODE", "exclusive"), {"start": ok({"n": 1})}).run()
    assert harness.scheduled == ["start", "b"]


def test_an_inclusive_router_takes_every_arc_whose_guard_is_true():
    harness = Harness(EXCLUSIVE.replace("MODE", "inclusive"), {"start": ok({"n": 1})}).run()
    assert harness.scheduled == ["start", "b", "c"]
    assert harness.status == "success"


def test_a_token_that_no_arc_takes_ends_its_branch():
    harness = Harness(
        """
workflow:
  - {step: start, tool: {kind: noop}, next: {arcs: [{step: a, when: "{{ false }}"}]}}
  - {step: a, tool: {kind: noop}}
""",
        {"start": ok(7)},
    ).run()
    assert harness.scheduled == ["start"]
    assert (harness.status, harness.data) == ("success", 7)


FAILING = """
workflow:
  - step: start
    tool: {kind: noop}
    next: {arcs: ARCS}
  - {step: good, tool: {kind: noop}}
  - {step: bad, tool: {kind: noop}}
"""


def test_an_arc_without_when_does_not_take_a_failure():
    harness = Harness(FAILING.replace("ARCS", "[{step: good}]"), {"start": failure()}).run()
    assert harness.scheduled == ["start"]
    assert harness.status == "failed"
    assert harness.state.error.message == "it broke"
    assert harness.state.result_step == "start"


def test_a_failure_is_routed_by_an_arc_whose_guard_is_true():
    guard = "event.name == 'step.failed' and output.error.kind == 'server_error'"
    arcs = f'[{{step: good}}, {{step: bad, when: "{{{{ {guard} }}}}"}}]'
    harness = Harness(FAILING.replace("ARCS", arcs), {"start": failure()}).run()
    assert harness.scheduled == ["start", "bad"]
    assert harness.status == "success"


def test_call_done_means_step_done():
    arcs = """[{step: bad, when: "{{ event.name == 'step.failed' }}"},
               {step: good, when: "{{ event.name == 'call.done' }}"}]"""
    assert Harness(FAILING.replace("ARCS", arcs)).run().scheduled == ["start", "good"]


def test_an_unrouted_failure_stops_the_other_branches():
    harness = Harness(
        """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}, {step: c}]}}
  - {step: a, tool: {kind: noop}}
  - {step: b, tool: {kind: noop}, next: {arcs: [{step: d}]}}
  - {step: c, tool: {kind: noop}, spec: {policy: {admit: {rules: [{when: "{{ ok('a') }}", then: {allow: true}}]}}}}
  - {step: d, tool: {kind: noop}}
"""
    ).start()
    a, b = harness.claim("77:a:1"), harness.claim("77:b:1")
    harness.complete(a, failure())
    assert harness.status == "failed"
    assert [each.run_id for each in harness.cancelled] == ["77:b:1"]
    assert [(each.step, each.output.error.kind) for each in harness.of(StepFailed)] == [
        ("a", "server_error"),
        ("b", "cancelled"),
    ]
    assert [each.step for each in harness.of(StepSkipped)] == ["c"]
    assert not harness.complete(b).accepted
    assert harness.names[-2:] == ["workflow.finished", "playbook.processed"]


def test_step_set_comes_before_the_arcs_and_arc_set_before_the_next_step():
    harness = Harness(
        """
workflow:
  - step: start
    tool: {kind: noop}
    set: {ctx.a: 1}
    next:
      arcs:
        - {step: no_, when: "{{ ctx.a is not defined }}"}
        - {step: yes_, when: "{{ ctx.a == 1 }}", set: {ctx.b: "{{ ctx.a + output.data.n }}"}}
  - {step: no_, tool: {kind: noop}}
  - {step: yes_, input: {sum: "{{ ctx.a + ctx.b }}"}, tool: {kind: noop}}
""",
        {"start": lambda harness, order: finished(order, ok({"n": 4}), patch={"a": 1})},
    ).run()
    assert harness.scheduled == ["start", "yes_"]
    assert harness.state.ctx == {"a": 1, "b": 5}
    assert harness.orders[-1].context.input == {"sum": 6}
    assert [each.cause for each in harness.of(CtxPatched)] == ["step", "arc"]
    boundary = harness.names.index("step.done")
    assert harness.names[boundary : boundary + 5] == [
        "step.done", "ctx.patched", "next.evaluated", "ctx.patched", "step.scheduled",
    ]  # fmt: skip


def test_two_chosen_arcs_that_set_one_key_differently_are_an_error():
    text = """
workflow:
  - step: start
    tool: {kind: noop}
    next:
      spec: {mode: inclusive}
      arcs:
        - {step: a, set: {ctx.x: 1}}
        - {step: b, when: "{{ output.data }}", set: {ctx.x: "{{ output.data }}"}}
  - {step: a, tool: {kind: noop}}
  - {step: b, tool: {kind: noop}}
"""
    harness = Harness(text, {"start": ok(2)}).run()
    assert harness.status == "failed"
    assert harness.state.error.kind == "ctx.conflict"
    assert "test.yaml:12:" in harness.state.error.message
    assert Harness(text, {"start": ok(1)}).run().state.ctx == {"x": 1}


def test_a_guard_that_cannot_be_evaluated_fails_the_execution_with_its_location():
    harness = Harness(FAILING.replace("ARCS", '[{step: good, when: "{{ ctx.nothing.here > 1 }}"}]')).run()
    assert harness.status == "failed"
    assert harness.state.error.kind == "template"
    assert harness.state.error.message.startswith("test.yaml:8:")
    assert harness.of(NextEvaluated)[0].error is not None


def test_a_step_input_that_cannot_be_evaluated_fails_the_step_and_can_be_routed():
    harness = Harness(
        """
workflow:
  - step: start
    input: {x: "{{ ctx.nothing }}"}
    tool: {kind: noop}
    next: {arcs: [{step: rescue, when: "{{ event.name == 'step.failed' and output.error.kind == 'template' }}"}]}
  - {step: rescue, tool: {kind: noop}}
"""
    ).run()
    assert harness.scheduled == ["start", "rescue"]
    assert "test.yaml:7:" in harness.of(StepFailed)[0].output.error.message


def test_a_tasks_ctx_write_is_seen_by_guards_and_by_the_next_step():
    harness = Harness(
        """
workflow:
  - {step: start, tool: {kind: noop}, next: {arcs: [{step: a, when: "{{ ctx.deep.x == 2 }}"}]}}
  - {step: a, tool: {kind: noop}}
""",
        {"start": lambda harness, order: wrote(order, **{"deep.x": 2, "other": 1})},
    ).run()
    assert harness.scheduled == ["start", "a"]
    assert harness.orders[-1].ctx == {"deep": {"x": 2}, "other": 1}


def test_the_step_named_end_gives_the_output_if_it_ran():
    text = """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: end}, {step: z}]}}
  - {step: end, tool: {kind: noop}}
  - {step: z, tool: {kind: noop}}
"""
    harness = Harness(text, {"end": ok("the end"), "z": ok("last")}).run()
    assert harness.data == "the end"
    harness = Harness(text, {"end": ok("the end"), "z": ok("last")}).run(return_step="z")
    assert harness.data == "last"


def test_results_are_read_by_name_on_the_server():
    harness = Harness(
        """
workflow:
  - {step: start, tool: {kind: noop}, next: {arcs: [{step: b}]}}
  - step: b
    input: {whole: "{{ start }}", x: "{{ start.x }}", same: "{{ start.data.x }}", later: "{{ c is defined }}"}
    tool: {kind: noop}
    next: {arcs: [{step: c}]}
  - {step: c, tool: {kind: noop}}
""",
        {"start": ok({"x": [1]})},
    ).run()
    assert harness.orders[1].context.input == {"whole": {"x": [1]}, "x": [1], "same": [1], "later": False}


def test_v10_args_are_carried_by_the_token_and_the_arc_takes_precedence():
    harness = Harness(
        """
workflow:
  - step: start
    tool: {kind: noop}
    next: {spec: {mode: exclusive}, arcs: [{step: a, args: {x: 1, y: {p: 1}}}]}
  - step: a
    tool: {kind: noop}
    next:
      spec: {mode: exclusive}
      arcs: [{step: b, when: "{{ args.x == 1 }}", args: {x: 2, y: {q: "{{ args.x }}"}}}]
  - {step: b, tool: {kind: noop}}
"""
    ).run()
    assert harness.orders[-1].context.args == {"x": 2, "y": {"p": 1, "q": 1}}


def test_a_cycle_of_steps_without_tasks_ends_at_the_limit():
    harness = Harness(
        """
executor: {spec: {policy: {limits: {max_step_runs: 3000}}}}
workflow:
  - {step: start, next: {arcs: [{step: a}]}}
  - {step: a, next: {arcs: [{step: start}, {step: start, when: "{{ event.name == 'step.failed' }}"}]}}
""",
        watch=False,
    ).run()
    assert harness.status == "failed"
    assert harness.state.error.kind == "limit"
    assert harness.state.step_runs == 3001


CYCLE = """
workflow:
  - {step: poll, tool: {kind: noop}, next: {arcs: [{step: wait}]}}
  - {step: wait, tool: {kind: noop}, next: {arcs: [{step: poll}]}}
"""


def test_a_runaway_cycle_fails_with_the_name_of_the_limit():
    harness = Harness(CYCLE, watch=False).start()
    while harness.status is None:
        harness.at -= 2.0 - 0.004  # a turn takes two seconds in the harness; make it four milliseconds
        harness.complete(harness.claim())
    error = harness.state.error
    assert (harness.status, error.kind) == ("failed", "limit")
    assert "executor.spec.policy.limits.max_step_runs" in error.message
    assert 300 < harness.state.step_runs < 400
    assert encode_state(fold(harness.playbook, harness.log)) == encode_state(harness.state)


def test_a_cycle_with_an_exit_may_run_at_full_speed():
    text = """
workflow:
  - step: turn
    tool: {kind: noop}
    next:
      arcs:
      - {step: turn, when: "{{ ctx.n | default(0) < 1400 }}", set: {ctx.n: "{{ ctx.n | default(0) + 1 }}"}}
"""
    harness = Harness(text, watch=False).start()
    while harness.status is None:
        harness.at -= 2.0 - 0.001
        harness.complete(harness.claim())
    assert (harness.status, harness.state.step_runs) == ("success", 1401)


@pytest.mark.parametrize(
    ("steps", "endless"),
    [
        ({"a": "[{step: b}]", "b": "[{step: a}]"}, "a b"),
        ({"first": "[{step: a}]", "a": "[{step: a}]"}, "first a"),
        ({"a": "[{step: b}]", "b": "[]"}, ""),
        ({"a": "[{step: b, when: '{{ true }}'}]", "b": "[{step: a}]"}, ""),
        ({"a": "[{step: a}, {step: b, when: '{{ ctx.x }}'}]", "b": "[]"}, ""),
        ({"a": "[{step: b, when: '{{ ctx.x }}'}, {step: a}]", "b": "[{step: a}]"}, "a b"),
    ],
)
def test_the_net_knows_the_steps_from_which_no_end_is_reachable(steps, endless):
    lines = [f"  - {{step: {name}, tool: {{kind: noop}}, next: {{arcs: {arcs}}}}}" for name, arcs in steps.items()]
    net = Net(playbook("workflow:\n" + "\n".join(lines)))
    assert [name for name in steps if net.endless(name)] == endless.split()


def test_a_gate_is_an_exit_of_a_cycle():
    net = Net(
        playbook("""
workflow:
  - {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
  - step: b
    spec: {policy: {admit: {rules: [{when: "{{ ctx.n < 5 }}", then: {allow: true}}]}}}
    tool: {kind: noop}
    next: {arcs: [{step: a}]}
""")
    )
    assert not net.endless("a")


def test_a_cycle_with_a_delay_may_run_for_days():
    harness = Harness(CYCLE, watch=False).start()
    for _ in range(1200):  # more than a cycle without a delay may run
        harness.at += 30.0
        harness.complete(harness.claim())
    assert harness.status is None
    assert harness.state.bucket < 3


def test_max_step_runs_allows_a_cycle_up_to_its_limit_at_any_speed():
    harness = Harness("executor: {spec: {policy: {limits: {max_step_runs: 1500}}}}\n" + CYCLE, watch=False).start()
    while harness.status is None:
        harness.at -= 2.0
        harness.complete(harness.claim())
    assert harness.state.step_runs == 1501


def test_a_long_decision_is_split_into_appends_and_survives_a_restart():
    text = """
executor: {spec: {policy: {limits: {max_step_runs: 5000}}}}
workflow:
  - step: start
    next:
      arcs:
        - {step: a, when: "{{ ctx.n | default(0) < 2000 }}", set: {ctx.n: "{{ ctx.n | default(0) + 1 }}"}}
  - {step: a, next: {arcs: [{step: start}]}}
"""
    book = playbook(text)
    state = begin(book, "77")
    decision = advance(state, [StartExecution(ExecutionRequested("d", "p"))], at=1.0)
    log = list(decision.events)
    appends = 1
    while any(isinstance(command, ContinueLater) for command in decision.effects):
        assert len(decision.events) < MAX_EVENTS + 100
        state = fold(book, log)  # as after a restart
        assert ContinueLater() in outstanding(state)
        decision = advance(state, [], at=2.0)
        log += decision.events
        appends += 1
    assert appends > 3
    assert state.finished == "success"
    assert state.ctx == {"n": 2000}


def test_an_advance_without_commands_changes_nothing_in_a_settled_state():
    harness = Harness(FAILING.replace("ARCS", "[{step: good}]")).start()
    assert harness.send().events == ()
