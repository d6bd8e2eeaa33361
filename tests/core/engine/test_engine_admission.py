"""Gates, parking, joins: when a token may enter a step."""

from __future__ import annotations

from engine_play import Play, boom, finished, wrote

from noetl.core.engine.commands import SendSignal
from noetl.core.model.events import NextEvaluated, StepScheduled, StepSkipped, TokenParked
from noetl.core.model.outcome import ok

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
    play = Play(fan()).start()
    play.do(play.take("77:a:1"))
    assert [each.reason for each in play.of(TokenParked)] == ["join"]
    play.do(play.take("77:b:1"))
    play.work()
    assert play.scheduled == ["start", "a", "b", "join"]
    assert len(play.of(StepScheduled)[-1].tokens) == 2
    assert play.status == "success"


def test_join_each_runs_the_step_once_per_token():
    play = Play(fan("{join: each}")).run()
    assert play.scheduled == ["start", "a", "b", "join", "join"]
    assert [each.step_run_id for each in play.of(StepScheduled)][-2:] == ["77:join:1", "77:join:2"]


def test_two_tokens_that_arrive_together_at_an_each_join_make_two_runs():
    play = Play(
        """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: j, args: {x: 1}}, {step: j, args: {x: 2}}]}}
  - {step: j, tool: {kind: noop}, spec: {policy: {admit: {join: each}}}}
"""
    ).run()
    assert [each.context.args for each in play.orders] == [{"x": 1}, {"x": 2}]


def test_a_branch_that_took_another_way_does_not_hold_up_the_join():
    play = Play(
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
    play.do(play.take("77:a:1"))
    assert play.scheduled == ["start", "a", "b"]
    play.do(play.take("77:b:1"))
    assert play.scheduled == ["start", "a", "b", "join", "aside"]


def test_a_long_way_round_is_waited_for():
    play = Play(
        """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: x1}]}}
  - {step: a, tool: {kind: noop}, next: {arcs: [{step: join}]}}
  - {step: x1, tool: {kind: noop}, next: {arcs: [{step: x2}]}}
  - {step: x2, tool: {kind: noop}, next: {arcs: [{step: x1, when: "{{ output.data.again }}"}, {step: join}]}}
  - {step: join, tool: {kind: noop}}
""",
        {"x2": lambda play, order: {"again": play.scheduled.count("x2") < 3}},
    ).run()
    assert play.scheduled.count("x2") == 3
    assert play.scheduled.count("join") == 1
    assert play.scheduled[-1] == "join"


def test_joins_in_a_circle_do_not_wait_for_each_other_for_ever():
    play = Play(
        """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}]}}
  - {step: a, tool: {kind: noop}, next: {arcs: [{step: b, when: "{{ steps.b.status.runs < 2 }}"}]}}
  - {step: b, tool: {kind: noop}, next: {arcs: [{step: a, when: "{{ steps.a.status.runs < 2 }}"}]}}
"""
    ).run()
    assert play.status == "success"
    assert set(play.scheduled) == {"start", "a", "b"}


def test_a_parked_token_does_not_hold_up_a_join_for_ever():
    play = Play(
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
    assert play.scheduled == ["start", "a", "join"]
    assert [(each.step, each.reason) for each in play.of(StepSkipped)] == [("b", "the gate stayed closed")]
    assert play.status == "success"


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
    play = Play(gate(OPEN_WHEN), {"long": lambda play, order: wrote(order, open=True)}).start()
    assert play.scheduled == ["start", "long"]
    assert [each.reason for each in play.of(TokenParked)] == ["admission"]
    play.work()
    assert play.scheduled == ["start", "long", "gated"]
    assert play.status == "success"


def test_a_signal_opens_the_gate():
    play = Play(gate(OPEN_WHEN)).start()
    reply = play.tell(SendSignal("approve", {"open": True})).replies[0]
    assert reply.accepted
    assert play.scheduled == ["start", "long", "gated"]
    assert "signal.received" in play.names


def test_a_gate_is_not_recorded_twice_while_it_stays_closed():
    play = Play(gate(OPEN_WHEN)).start()
    for number in range(3):
        play.tell(SendSignal("noise", {"n": number}))
    assert len(play.of(TokenParked)) == 1


def test_rules_that_all_fail_without_an_else_deny_and_the_token_is_skipped_at_the_end():
    play = Play(gate('[{when: "{{ false }}", then: {allow: true}}]')).run()
    assert play.scheduled == ["start", "long"]
    assert [each.step for each in play.of(StepSkipped)] == ["gated"]
    assert play.status == "success"


def test_else_decides_when_nothing_matched():
    rules = '[{when: "{{ false }}", then: {allow: false}}, {else: {then: {allow: true}}}]'
    assert Play(gate(rules)).run().scheduled == ["start", "long", "gated"]


def test_discard_drops_a_denied_token_at_once():
    play = Play(gate(OPEN_WHEN, "discard"), {"long": lambda play, order: wrote(order, open=True)}).start()
    assert [each.step for each in play.of(StepSkipped)] == ["gated"]
    assert play.work().scheduled == ["start", "long"]


def test_a_second_token_merges_into_the_parked_one():
    play = Play(
        """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: gated, args: {a: 1}}, {step: x}]}}
  - {step: x, tool: {kind: noop}, next: {arcs: [{step: gated, args: {b: 2}}]}}
  - step: gated
    spec: {policy: {admit: {rules: [{when: "{{ ok('x') }}", then: {allow: true}}]}}}
    tool: {kind: noop}
"""
    ).run()
    assert play.scheduled == ["start", "x", "gated"]
    assert play.orders[-1].context.args == {"a": 1, "b": 2}


def test_a_gate_sees_the_event_and_the_args_of_its_token():
    play = Play(
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
        {"start": boom()},
    ).run()
    assert play.scheduled == ["start", "a"]


def test_once_ignores_later_tokens():
    play = Play(
        """
workflow:
  - {step: start, tool: {kind: noop}, next: {arcs: [{step: a}]}}
  - {step: a, tool: {kind: noop}, spec: {policy: {admit: {once: true}}}, next: {arcs: [{step: start}]}}
"""
    ).run()
    assert play.scheduled == ["start", "a", "start"]
    assert [each.reason for each in play.of(StepSkipped)] == ["the step runs once and has already run"]
    assert play.status == "success"


def test_status_helpers_and_step_status_in_gates():
    play = Play(
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
    a, b = play.take("77:a:1"), play.take("77:b:1")
    play.do(a)
    assert play.scheduled == ["start", "a", "b", "either"]
    play.do(b, boom())
    assert play.scheduled == ["start", "a", "b", "either", "both", "bad", "rescue"]


def test_a_gate_that_cannot_be_evaluated_fails_its_step():
    play = Play(gate('[{when: "{{ ctx.nothing.at_all > 1 }}", then: {allow: true}}]')).run()
    assert play.status == "failed"
    assert play.state.result_step == "gated"
    assert play.state.error.kind == "template"
    assert "test.yaml:9:37" in play.state.error.message


def test_a_wide_fan_out_meets_again_once():
    width = 300
    arcs = ", ".join(f"{{step: s{number}}}" for number in range(width))
    lines = [f"  - {{step: s{n}, tool: {{kind: noop}}, next: {{arcs: [{{step: join}}]}}}}" for n in range(width)]
    play = Play(
        "workflow:\n"
        f"  - {{step: start, next: {{spec: {{mode: inclusive}}, arcs: [{arcs}]}}}}\n"
        + "\n".join(lines)
        + "\n  - {step: join, tool: {kind: noop}}\n",
        watch=False,
    ).run()
    assert play.scheduled.count("join") == 1
    assert len(play.of(StepScheduled)[-1].tokens) == width
    assert play.status == "success"


def test_next_evaluated_says_which_guards_held():
    play = Play(
        """
workflow:
  - step: start
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: a, when: "{{ false }}"}, {step: b}]}
  - {step: a, tool: {kind: noop}}
  - {step: b, tool: {kind: noop}}
"""
    ).run()
    first = play.of(NextEvaluated)[0]
    assert [(arc.target, arc.held, arc.token is not None) for arc in first.arcs] == [
        ("a", False, False),
        ("b", True, True),
    ]


def test_a_stray_event_of_another_run_is_refused():
    play = Play(fan()).start()
    a, b = play.take("77:a:1"), play.take("77:b:1")
    assert not play.report(a, *finished(b, ok())).accepted
    assert play.do(a).accepted
