"""Between steps: routers, guards, admission, parking, joins, failure routes, the execution's output."""


def test_arcs_are_tried_in_the_authors_order_and_the_first_that_holds_is_taken(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: noop}
        next:
          arcs:
            - {step: a, when: "{{ false }}"}
            - {step: b, when: "{{ workload.go }}"}
            - {step: c}
      - {step: a, tool: {kind: noop}}
      - {step: b, tool: {kind: noop}}
      - {step: c, tool: {kind: noop}}
    workload: {go: true}
    """)
    assert list(ran.steps) == ["start", "b"]


def test_another_payload_takes_another_arc(play):
    text = """
    workload: {n: 1}
    workflow:
      - step: start
        tool: {kind: noop}
        next:
          arcs:
            - {step: small, when: "{{ workload.n < 10 }}"}
            - {step: large}
      - {step: small, tool: {kind: noop}}
      - {step: large, tool: {kind: noop}}
    """
    assert list(play(text).steps) == ["start", "small"]
    assert list(play(text, {"n": 99}).steps) == ["start", "large"]


def test_no_arc_that_holds_ends_the_branch_with_success(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: python, code: "result = 5"}
        next: {arcs: [{step: a, when: "{{ false }}"}]}
      - {step: a, tool: {kind: noop}}
    """)
    assert (ran.status, ran.data, list(ran.steps)) == ("success", 5, ["start"])


def test_guards_that_render_to_text(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: noop}
        next:
          spec: {mode: inclusive}
          arcs:
            - {step: empty, when: "{{ '' }}"}
            - {step: no, when: "{{ 'x' if false else 'False' }}"}
            - {step: text, when: "{{ 'x' }}"}
            - {step: plain, when: true}
            - {step: zero, when: "{{ 0 }}"}
      - {step: empty, tool: {kind: noop}}
      - {step: no, tool: {kind: noop}}
      - {step: text, tool: {kind: noop}}
      - {step: plain, tool: {kind: noop}}
      - {step: zero, tool: {kind: noop}}
    """)
    assert set(ran.steps) == {"start", "text", "plain"}


def test_call_done_is_read_as_step_done(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: noop}
        next: {arcs: [{step: a, when: "{{ event.name == 'call.done' }}"}]}
      - {step: a, tool: {kind: noop}}
    """)
    assert "a" in ran.steps


# ── order at the end of a step ──────────────────────────────────────────────────────────


def test_step_set_is_applied_before_arcs_are_tried_and_arc_set_after(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: python, code: "result = {'n': 7}"}
        set: {ctx.n: "{{ output.data.n }}", ctx.seen: step}
        next:
          arcs:
            - step: end
              when: "{{ ctx.n == 7 and ctx.seen == 'step' }}"
              set: {ctx.seen: arc, ctx.twice: "{{ ctx.n * 2 }}"}
      - step: end
        input: {n: "{{ ctx.twice }}", seen: "{{ ctx.seen }}"}
        tool: {kind: python, input: {n: "{{ input.n }}", seen: "{{ input.seen }}"}, code: "result = [n, seen]"}
    """)
    assert (ran.data, ran.ctx) == ([14, "arc"], {"n": 7, "seen": "arc", "twice": 14})


def test_an_arc_that_is_not_taken_sets_nothing(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: noop}
        next:
          arcs:
            - {step: a, when: "{{ false }}", set: {ctx.a: 1}}
            - {step: b, set: {ctx.b: 1}}
            - {step: a, set: {ctx.c: 1}}
      - {step: a, tool: {kind: noop}}
      - {step: b, tool: {kind: noop}}
    """)
    assert ran.ctx == {"b": 1}


def test_two_chosen_arcs_that_set_a_key_differently_fail(play):
    text = """
    workflow:
      - step: start
        tool: {kind: noop}
        next:
          spec: {mode: inclusive}
          arcs:
            - {step: a, when: "{{ workload.v > 0 }}", set: {ctx.k: 1}}
            - {step: b, when: "{{ workload.v < 3 }}", set: {ctx.k: "{{ workload.v }}"}}
      - {step: a, tool: {kind: noop}}
      - {step: b, tool: {kind: noop}}
    workload: {v: 1}
    """
    assert play(text).ctx == {"k": 1}
    assert play(text, {"v": 3}).ctx == {"k": 1}
    clash = play(text, {"v": 2})
    assert clash.status == "failed"
    assert "k" in clash.error["message"]


# ── failure routes ──────────────────────────────────────────────────────────────────────


def test_a_failure_is_routed_only_by_an_arc_whose_own_when_is_true(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: python, code: "raise ValueError('no')"}
        next:
          spec: {mode: inclusive}
          arcs:
            - {step: success_path}
            - {step: rescue, when: "{{ event.name == 'step.failed' }}", set: {ctx.why: "{{ output.error.kind }}"}}
      - {step: success_path, tool: {kind: noop}}
      - step: rescue
        tool: {kind: python, input: {why: "{{ ctx.why }}"}, code: "result = why"}
    """)
    assert (ran.status, ran.data, list(ran.steps)) == ("success", "python", ["start", "rescue"])
    assert ran.steps["start"].status == "failed"


def test_a_failure_that_no_arc_takes_fails_the_execution(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: python, code: "raise ValueError('no luck')"}
        set: {ctx.status: "{{ output.status }}", ctx.message: "{{ output.error.message }}"}
        next: {arcs: [{step: end}]}
      - {step: end, tool: {kind: noop}}
    """)
    assert ran.status == "failed"
    assert ran.error["kind"] == "python"
    assert "no luck" in ran.error["message"]
    assert ran.ctx["status"] == "error" and "no luck" in ran.ctx["message"]
    assert ran.result.output["status"] == "error"


def test_a_failure_on_one_branch_stops_the_others(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: noop}
        next: {spec: {mode: inclusive}, arcs: [{step: bad}, {step: slow}]}
      - {step: bad, tool: {kind: python, code: "raise ValueError('x')"}}
      - step: slow
        tool: {kind: python, code: "import time; time.sleep(60)"}
        next: {arcs: [{step: after}]}
      - {step: after, tool: {kind: noop}}
    """)
    assert ran.status == "failed"
    assert "after" not in ran.steps
    assert ran.steps["slow"].status == "failed"


def test_an_error_that_its_policy_lets_continue_is_a_step_that_is_done(play):
    ran = play("""
    workflow:
      - step: start
        tool:
          kind: python
          code: "raise ValueError('tolerated')"
          spec: {policy: {rules: [{when: "{{ output.status == 'error' }}", then: {do: continue}}]}}
        next:
          arcs:
            - {step: failed, when: "{{ event.name == 'step.failed' }}"}
            - {step: end, set: {ctx.seen: "{{ [output.status, ok('start'), steps.start.status.ok] }}"}}
      - {step: failed, tool: {kind: noop}}
      - {step: end, tool: {kind: noop}}
    """)
    assert (ran.status, list(ran.steps)) == ("success", ["start", "end"])
    assert ran.ctx == {"seen": ["error", True, True]}
    assert ran.steps["start"].status == "success"


# ── admission ───────────────────────────────────────────────────────────────────────────

GATE = """
workload: {{open: false}}
workflow:
  - step: start
    tool: {{kind: noop}}
    next: {{spec: {{mode: inclusive}}, arcs: [{{step: gated}}, {{step: opener}}]}}
  - step: gated
    spec:
      policy:
        admit:
          rules:
            - when: "{{{{ ctx.open | default(false) }}}}"
              then: {{allow: true}}
            - else:
                then: {{allow: false}}
          {extra}
    tool: {{kind: noop}}
  - step: opener
    tool: {{kind: noop}}
    set: {{ctx.open: "{{{{ workload.open }}}}"}}
"""


def test_a_denied_token_is_parked_and_admitted_when_ctx_changes(play):
    ran = play(GATE.format(extra=""), {"open": True})
    assert ran.of("token.parked", step="gated")[0].reason == "admission"
    assert ran.order("step.scheduled") == ["start", "opener", "gated"]


def test_a_token_that_is_never_admitted_is_skipped_at_the_end(play):
    ran = play(GATE.format(extra=""))
    assert ran.status == "success"
    assert ran.order("step.skipped") == ["gated"]
    assert ran.steps["gated"].status == "skipped"


def test_on_deny_discard_drops_the_token(play):
    ran = play(GATE.format(extra="on_deny: discard"), {"open": True})
    assert ran.of("token.parked") == []
    assert "gated" not in ran.order("step.scheduled")


def test_rules_that_all_fail_without_else_deny(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: noop}
        next: {arcs: [{step: gated}]}
      - step: gated
        spec: {policy: {admit: {rules: [{when: "{{ false }}", then: {allow: true}}]}}}
        tool: {kind: noop}
    """)
    assert ran.steps["gated"].status == "skipped"


def test_status_helpers_keep_a_gate_closed_until_other_steps_are_done(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: noop}
        next: {spec: {mode: inclusive}, arcs: [{step: gate}, {step: a}]}
      - step: gate
        spec: {policy: {admit: {rules: [{when: "{{ all_done(['a', 'b']) and ok('b') and steps.b.status.ok }}", then: {allow: true}}]}}}
        tool: {kind: noop}
      - step: a
        tool: {kind: noop}
        next: {arcs: [{step: b}]}
      - {step: b, tool: {kind: noop}}
    """)
    assert ran.order("step.done") == ["start", "a", "b", "gate"]


# ── joins ───────────────────────────────────────────────────────────────────────────────

DIAMOND = """
workflow:
  - step: start
    tool: {{kind: noop}}
    next: {{spec: {{mode: inclusive}}, arcs: [{{step: a}}, {{step: b}}]}}
  - step: a
    tool: {{kind: noop}}
    next: {{arcs: [{{step: join}}]}}
  - step: b
    tool: {{kind: noop}}
    next: {{arcs: [{{step: b2}}]}}
  - step: b2
    tool: {{kind: noop}}
    next: {{arcs: [{{step: join}}]}}
  - step: join
    spec: {{policy: {{admit: {{{join}}}}}}}
    tool: {{kind: noop}}
"""


def test_branches_that_meet_run_the_step_once(play):
    ran = play(DIAMOND.format(join=""))
    assert ran.steps["join"].runs == 1
    assert ran.order("step.done")[-1] == "join"


def test_join_each_runs_the_step_once_per_token(play):
    assert play(DIAMOND.format(join="join: each")).steps["join"].runs == 2


def test_a_join_does_not_wait_for_a_branch_that_cannot_reach_it(play):
    ran = play("""
    workload: {both: false}
    workflow:
      - step: start
        tool: {kind: noop}
        next:
          spec: {mode: inclusive}
          arcs: [{step: a}, {step: b}]
      - step: a
        tool: {kind: noop}
        next: {arcs: [{step: join}]}
      - step: b
        tool: {kind: noop}
        next: {arcs: [{step: join, when: "{{ workload.both }}"}, {step: elsewhere}]}
      - {step: elsewhere, tool: {kind: noop}}
      - {step: join, tool: {kind: noop}}
    """)
    assert ran.status == "success"
    assert ran.steps["join"].runs == 1
    assert "elsewhere" in ran.steps


def test_a_cycle_of_arcs_runs_until_its_guard_is_false(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: noop}
        set: {ctx.n: "{{ (ctx.n | default(0)) + 1 }}"}
        next:
          arcs:
            - {step: start, when: "{{ ctx.n < 5 }}"}
            - {step: end}
      - {step: end, tool: {kind: noop}}
    """)
    assert ran.ctx == {"n": 5}
    assert ran.steps["start"].runs == 5


def test_an_endless_cycle_is_stopped_by_a_limit(play):
    ran = play("""
    executor: {spec: {policy: {limits: {max_step_runs: 50}}}}
    workflow:
      - step: start
        tool: {kind: noop}
        next: {arcs: [{step: start}]}
    """)
    assert ran.status == "failed"
    assert ran.error["kind"] == "limit"


# ── entry and output ────────────────────────────────────────────────────────────────────


def test_the_output_is_the_return_steps(play):
    text = """
    executor: {spec: {return_step: middle}}
    workflow:
      - step: start
        tool: {kind: noop}
        next: {arcs: [{step: middle}]}
      - step: middle
        tool: {kind: python, code: "result = 'mid'"}
        next: {arcs: [{step: end}]}
      - {step: end, tool: {kind: python, code: "result = 'end'"}}
    """
    assert play(text).data == "mid"
    assert play(text, return_step="start").data is None
    assert play(text.replace("executor: {spec: {return_step: middle}}", "")).data == "end"
    skipped = text.replace("{step: middle}]", "{step: middle, when: false}, {step: end}]")
    assert play(skipped).data is None  # the named step did not run, and no other step replaces it


def test_the_entry_step_is_named_or_start_or_the_first(play):
    text = """
    {executor}
    workflow:
      - step: first
        tool: {{kind: noop}}
      - step: {name}
        tool: {{kind: noop}}
    """
    assert list(play(text.format(executor="", name="other")).steps) == ["first"]
    assert list(play(text.format(executor="", name="start")).steps) == ["start"]
    named = text.format(executor="executor: {spec: {entry_step: other}}", name="other")
    assert list(play(named).steps) == ["other"]
    assert list(play(text.format(executor="", name="other"), entry_step="other").steps) == ["other"]


def test_a_step_without_tool_routes(play):
    ran = play("""
    workflow:
      - step: start
        next: {arcs: [{step: end}]}
      - step: end
    """)
    assert (ran.status, list(ran.steps)) == ("success", ["start", "end"])


def test_v10_args_travel_with_the_token_and_the_arc_wins(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: noop}
        next: {arcs: [{step: a, args: {x: 1, y: 1}}]}
      - step: a
        tool: {kind: noop}
        next: {arcs: [{step: b, args: {y: "{{ args.y + 1 }}"}}]}
      - step: b
        tool: {kind: python, args: {x: "{{ args.x | default('none') }}", y: "{{ args.y }}"}, code: "result = [x, y]"}
    """)
    assert ran.data == [1, 2]


def test_a_guard_that_cannot_be_evaluated_fails_with_its_location(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: noop}
        next: {arcs: [{step: end, when: "{{ ctx.nothing_here > 3 }}"}]}
      - {step: end, tool: {kind: noop}}
    """)
    assert ran.status == "failed"
    assert ran.error["kind"] == "template"
    assert "nothing_here" in ran.error["message"]
