"""Gates, parking, joins: when a token may enter a step."""

from __future__ import annotations

import pytest
from engine_harness import Harness, failure, finished, wrote

from noetl.core.engine.commands import SendSignal
from noetl.core.model.events import NextEvaluated, StepScheduled, StepSkipped, TokenParked
from noetl.core.model.outcome import ok
from noetl.errors import PayloadUnavailable

FAN = """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}]}}
  - {step: a, tool: {kind: noop}, next: {arcs: [{step: join}]}}
  - {step: b, tool: {kind: noop}, next: {arcs: [{step: join}]}}
  - {step: join, tool: {kind: noop}ADMIT}
"""


def fan(admit: str = "") -> str:
    return FAN.replace("ADMIT", f", spec: {{policy: {{admit: {admit}}}}}" if admit else "")


def test_branches_that_meet_run_the_step_once():
    harness = Harness(fan()).start()
    harness.complete(harness.claim("77:a:1"))
    assert [each.reason for each in harness.of(TokenParked)] == ["join"]
    harness.complete(harness.claim("77:b:1"))
    harness.work()
    assert harness.scheduled == ["start", "a", "b", "join"]
    assert len(harness.of(StepScheduled)[-1].tokens) == 2
    assert harness.status == "success"


def test_join_each_runs_the_step_once_per_token():
    harness = Harness(fan("{join: each}")).run()
    assert harness.scheduled == ["start", "a", "b", "join", "join"]
    assert [each.step_run_id for each in harness.of(StepScheduled)][-2:] == ["77:join:1", "77:join:2"]


def test_two_tokens_that_arrive_together_at_an_each_join_make_two_runs():
    harness = Harness(
        """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: j, args: {x: 1}}, {step: j, args: {x: 2}}]}}
  - {step: j, tool: {kind: noop}, spec: {policy: {admit: {join: each}}}}
"""
    ).run()
    assert [each.context.args for each in harness.orders] == [{"x": 1}, {"x": 2}]


@pytest.mark.parametrize("lost", [False, True])
def test_large_args_of_tokens_that_meet_are_merged_and_a_lost_one_fails_the_step(lost):
    harness = Harness(
        """
executor: {spec: {policy: {limits: {max_payload_bytes: 20}}}}
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}]}}
  - {step: a, tool: {kind: noop}, next: {arcs: [{step: j, args: {x: {one: "a value of more than 20 bytes"}}}]}}
  - {step: b, tool: {kind: noop}, next: {arcs: [{step: j, args: {x: {two: 2}}}]}}
  - {step: j, tool: {kind: noop}}
"""
    ).start()
    harness.complete(harness.claim("77:a:1"))
    if lost:
        harness.stored = {key: PayloadUnavailable("it is gone", kind="ref.corrupt") for key in harness.stored}
    harness.work()
    assert harness.status == ("failed" if lost else "success")
    assert harness.scheduled == ["start", "a", "b", "j"]
    if lost:
        assert harness.state.error.kind == "ref.corrupt"
    else:
        assert [*harness.stored.values()][-1] == {"one": "a value of more than 20 bytes", "two": 2}


def test_a_branch_that_took_another_path_does_not_delay_the_join():
    harness = Harness(
        """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}]}}
  - {step: a, tool: {kind: noop}, next: {arcs: [{step: join}]}}
  - {step: b, tool: {kind: noop}, next: {arcs: [{step: join, when: "{{ output.data }}"}, {step: aside}]}}
  - {step: join, tool: {kind: noop}}
  - {step: aside, tool: {kind: noop}}
""",
        {"b": ok(False)},
    ).start()
    harness.complete(harness.claim("77:a:1"))
    assert harness.scheduled == ["start", "a", "b"]
    harness.complete(harness.claim("77:b:1"))
    assert harness.scheduled == ["start", "a", "b", "join", "aside"]


def test_a_join_waits_for_a_longer_path():
    harness = Harness(
        """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: x1}]}}
  - {step: a, tool: {kind: noop}, next: {arcs: [{step: join}]}}
  - {step: x1, tool: {kind: noop}, next: {arcs: [{step: x2}]}}
  - {step: x2, tool: {kind: noop}, next: {arcs: [{step: x1, when: "{{ output.data.again }}"}, {step: join}]}}
  - {step: join, tool: {kind: noop}}
""",
        {"x2": lambda harness, order: {"again": harness.scheduled.count("x2") < 3}},
    ).run()
    assert harness.scheduled.count("x2") == 3
    assert harness.scheduled.count("join") == 1
    assert harness.scheduled[-1] == "join"


def test_joins_in_a_cycle_do_not_deadlock():
    harness = Harness(
        """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}]}}
  - {step: a, tool: {kind: noop}, next: {arcs: [{step: b, when: "{{ steps.b.status.runs < 2 }}"}]}}
  - {step: b, tool: {kind: noop}, next: {arcs: [{step: a, when: "{{ steps.a.status.runs < 2 }}"}]}}
"""
    ).run()
    assert harness.status == "success"
    assert set(harness.scheduled) == {"start", "a", "b"}


def test_a_parked_token_does_not_block_a_join_forever():
    harness = Harness(
        """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}]}}
  - {step: a, tool: {kind: noop}, next: {arcs: [{step: join}]}}
  - step: b
    spec: {policy: {admit: {rules: [{when: "{{ ctx.never is defined }}", then: {allow: true}}]}}}
    tool: {kind: noop}
    next: {arcs: [{step: join}]}
  - {step: join, tool: {kind: noop}}
"""
    ).run()
    assert harness.scheduled == ["start", "a", "join"]
    assert [(each.step, each.reason) for each in harness.of(StepSkipped)] == [("b", "the gate stayed closed")]
    assert harness.status == "success"


GATE = """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: long}, {step: gated}]}}
  - {step: long, tool: {kind: noop}}
  - step: gated
    spec: {policy: {admit: {rules: RULES, on_deny: DENY}}}
    tool: {kind: noop}
"""


def gate(rules: str, deny: str = "park") -> str:
    return GATE.replace("RULES", rules).replace("DENY", deny)


OPEN_WHEN = '[{when: "{{ ctx.open is defined and ctx.open }}", then: {allow: true}}]'


def test_a_denied_token_is_parked_and_enters_when_ctx_changes():
    harness = Harness(gate(OPEN_WHEN), {"long": lambda harness, order: wrote(order, open=True)}).start()
    assert harness.scheduled == ["start", "long"]
    assert [each.reason for each in harness.of(TokenParked)] == ["admission"]
    harness.work()
    assert harness.scheduled == ["start", "long", "gated"]
    assert harness.status == "success"


def test_a_signal_opens_the_gate():
    harness = Harness(gate(OPEN_WHEN)).start()
    reply = harness.send(SendSignal("approve", {"open": True})).replies[0]
    assert reply.accepted
    assert harness.scheduled == ["start", "long", "gated"]
    assert "signal.received" in harness.names


def test_a_gate_is_not_recorded_twice_while_it_stays_closed():
    harness = Harness(gate(OPEN_WHEN)).start()
    for number in range(3):
        harness.send(SendSignal("noise", {"n": number}))
    assert len(harness.of(TokenParked)) == 1


def test_rules_that_all_fail_without_an_else_deny_and_the_token_is_skipped_at_the_end():
    harness = Harness(gate('[{when: "{{ false }}", then: {allow: true}}]')).run()
    assert harness.scheduled == ["start", "long"]
    assert [each.step for each in harness.of(StepSkipped)] == ["gated"]
    assert harness.status == "success"


def test_else_decides_when_nothing_matched():
    rules = '[{when: "{{ false }}", then: {allow: false}}, {else: {then: {allow: true}}}]'
    assert Harness(gate(rules)).run().scheduled == ["start", "long", "gated"]


def test_discard_drops_a_denied_token_at_once():
    harness = Harness(gate(OPEN_WHEN, "discard"), {"long": lambda harness, order: wrote(order, open=True)}).start()
    assert [each.step for each in harness.of(StepSkipped)] == ["gated"]
    assert harness.work().scheduled == ["start", "long"]


def test_a_second_token_merges_into_the_parked_one():
    harness = Harness(
        """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: gated, args: {a: 1}}, {step: x}]}}
  - {step: x, tool: {kind: noop}, next: {arcs: [{step: gated, args: {b: 2}}]}}
  - step: gated
    spec: {policy: {admit: {rules: [{when: "{{ ok('x') }}", then: {allow: true}}]}}}
    tool: {kind: noop}
"""
    ).run()
    assert harness.scheduled == ["start", "x", "gated"]
    assert harness.orders[-1].context.args == {"a": 1, "b": 2}


def test_a_gate_sees_the_event_and_the_args_of_its_token():
    harness = Harness(
        """
workflow:
  - step: start
    tool: {kind: noop}
    next: {arcs: [{step: a, when: "{{ event.name == 'step.failed' }}", args: {n: 3}}]}
  - step: a
    spec:
      policy:
        admit:
          rules:
            - when: "{{ event.name == 'step.failed' and event.step == 'start' and args.n == 3 }}"
              then: {allow: true}
    tool: {kind: noop}
""",
        {"start": failure()},
    ).run()
    assert harness.scheduled == ["start", "a"]


def test_once_ignores_later_tokens():
    harness = Harness(
        """
workflow:
  - {step: start, tool: {kind: noop}, next: {arcs: [{step: a}]}}
  - {step: a, tool: {kind: noop}, spec: {policy: {admit: {once: true}}}, next: {arcs: [{step: start}]}}
"""
    ).run()
    assert harness.scheduled == ["start", "a", "start"]
    assert [each.reason for each in harness.of(StepSkipped)] == ["the step runs once and has already run"]
    assert harness.status == "success"


def test_status_helpers_and_step_status_in_gates():
    harness = Harness(
        """
workflow:
  - step: start
    next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}, {step: both}, {step: either}, {step: bad}]}
  - {step: a, tool: {kind: noop}}
  - {step: b, tool: {kind: noop}, next: {arcs: [{step: rescue, when: "{{ event.name == 'step.failed' }}"}]}}
  - {step: rescue, tool: {kind: noop}}
  - step: both
    spec:
      policy:
        admit: {rules: [{when: "{{ all_done(['a', 'b']) and ok('a') and steps.b.status.done }}", then: {allow: true}}]}
    tool: {kind: noop}
  - step: either
    spec:
      policy:
        admit: {rules: [{when: "{{ any_done(['a', 'b']) and running('b') }}", then: {allow: true}}]}
    tool: {kind: noop}
  - step: bad
    spec:
      policy:
        admit: {rules: [{when: "{{ fail('b') and steps.b.status.error == 'it broke' }}", then: {allow: true}}]}
    tool: {kind: noop}
"""
    ).start()
    a, b = harness.claim("77:a:1"), harness.claim("77:b:1")
    harness.complete(a)
    assert harness.scheduled == ["start", "a", "b", "either"]
    harness.complete(b, failure())
    assert harness.scheduled == ["start", "a", "b", "either", "both", "bad", "rescue"]


def test_a_gate_that_cannot_be_evaluated_fails_its_step():
    harness = Harness(gate('[{when: "{{ ctx.nothing.at_all > 1 }}", then: {allow: true}}]')).run()
    assert harness.status == "failed"
    assert harness.state.result_step == "gated"
    assert harness.state.error.kind == "template"
    assert "test.yaml:9:37" in harness.state.error.message


def test_a_wide_fan_out_joins_once():
    width = 300
    arcs = ", ".join(f"{{step: s{number}}}" for number in range(width))
    lines = [f"  - {{step: s{n}, tool: {{kind: noop}}, next: {{arcs: [{{step: join}}]}}}}" for n in range(width)]
    harness = Harness(
        "workflow:\n"
        f"  - {{step: start, next: {{spec: {{mode: inclusive}}, arcs: [{arcs}]}}}}\n"
        + "\n".join(lines)
        + "\n  - {step: join, tool: {kind: noop}}\n",
        watch=False,
    ).run()
    assert harness.scheduled.count("join") == 1
    assert len(harness.of(StepScheduled)[-1].tokens) == width
    assert harness.status == "success"


def test_next_evaluated_records_which_guards_were_true():
    harness = Harness(
        """
workflow:
  - step: start
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: a, when: "{{ false }}"}, {step: b}]}
  - {step: a, tool: {kind: noop}}
  - {step: b, tool: {kind: noop}}
"""
    ).run()
    first = harness.of(NextEvaluated)[0]
    assert [(arc.target, arc.held, arc.token is not None) for arc in first.arcs] == [
        ("a", False, False),
        ("b", True, True),
    ]


def test_an_event_of_another_run_is_rejected():
    harness = Harness(fan()).start()
    a, b = harness.claim("77:a:1"), harness.claim("77:b:1")
    assert not harness.report(a, *finished(b, ok())).accepted
    assert harness.complete(a).accepted
