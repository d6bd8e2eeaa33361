"""Values of `ctx` and arguments of tokens that are too large for the log are stored, and read like small ones."""

import msgspec
import pytest

from noetl.core.model.events import encode_body
from noetl.server.orchestrator.submissions import Submission

TEXT = "{'t': 'x' * 300_000}"


def largest_event(ran):
    return max(len(encode_body(each.body)) for each in ran.events)


def test_arguments_and_sets_of_an_arc_are_stored(play):
    ran = play(f"""
    workflow:
      - step: start
        tool: {{kind: python, code: "result = {TEXT}"}}
        next:
          arcs:
            - {{step: gated, args: {{big: "{{{{ output.data.t }}}}", k: {{a: 1}}}}, set: {{ctx.big: "{{{{ output.data }}}}"}}}}
      - step: gated
        spec:
          policy:
            admit:
              rules: [{{when: "{{{{ args.big | length > 10 and ctx.big.t | length > 10 }}}}", then: {{allow: true}}}}]
        input: {{size: "{{{{ args.big | length }}}}"}}
        tool:
          kind: python
          input: {{a: "{{{{ args.big | length }}}}", c: "{{{{ ctx.big.t | length }}}}"}}
          code: "result = [a, c, size]"
        next:
          arcs: [{{step: looped, when: "{{{{ ctx.big.t | length == args.big | length }}}}", args: {{k: {{b: 2}}}}}}]
      - step: looped
        loop: {{in: "{{{{ ctx.big.t[:2] | list }}}}", iterator: c}}
        tool: {{kind: noop, returns: "{{{{ [args.k, ctx.big.t | length, args.big | length] }}}}"}}
    """)
    assert ran.status == "success", ran.error
    assert ran.of("task.done", task="gated_task")[0].outcome.data == [300_000] * 3
    assert ran.data == [[{"a": 1, "b": 2}, 300_000, 300_000]] * 2
    assert largest_event(ran) < 64 * 1024


@pytest.mark.parametrize("place", ["task", "rule", "step"])
def test_writes_of_a_worker_are_stored_and_can_be_extended(play, place):
    entry = 'set: {ctx.big: "{{ output.data }}", ctx.small: 1}'
    rules = f"spec: {{policy: {{rules: [{{else: {{then: {{do: continue, {entry}}}}}}}]}}}}"
    of_task = {"task": f", {entry}", "rule": f", {rules}", "step": ""}[place]
    ran = play(f"""
    workflow:
      - step: start
        tool: {{kind: python, code: "result = {TEXT}"{of_task}}}
        {entry if place == "step" else "desc: x"}
        next: {{arcs: [{{step: more, when: "{{{{ ctx.big.t | length == 300000 and ctx.small == 1 }}}}"}}]}}
      - step: more
        tool: {{kind: noop, set: {{ctx.big.task: 1}}}}
        set: {{ctx.big.step: 2}}
        next: {{arcs: [{{step: end, set: {{ctx.big.arc: 3}}}}]}}
      - step: end
        tool: {{kind: noop, returns: "{{{{ [ctx.big.task, ctx.big.step, ctx.big.arc, ctx.big.t | length] }}}}"}}
    """)
    assert (ran.status, ran.data) == ("success", [1, 2, 3, 300_000]), ran.error
    assert largest_event(ran) < 64 * 1024


def test_the_result_of_an_execution_has_the_values(stage):
    async def whole():
        text = (
            "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: test}\nworkflow:\n"
            f'  - {{step: start, tool: {{kind: python, code: "result = {TEXT}"}}, '
            "set: {ctx.big: '{{ output.data }}'}}\n"
        )
        return await stage.engine.hydrated(await stage.engine.run(text))

    assert len(stage.do(whole()).ctx["big"]["t"]) == 300_000


def test_a_reducer_starts_at_a_stored_value_and_its_result_is_stored(play):
    ran = play("""
    workflow:
      - step: start
        tool: {kind: python, code: "result = ['x' * 1000] * 100"}
        set: {ctx.rows: "{{ output.data }}"}
        next: {arcs: [{step: add}]}
      - step: add
        loop: {in: "{{ [1, 2] }}", iterator: n, spec: {mode: parallel, policy: {reduce: {ctx.rows: append}}}}
        tool: {kind: noop, set: {ctx.rows: "{{ iter.n }}"}}
        next: {arcs: [{step: end}]}
      - {step: end, tool: {kind: noop, returns: "{{ [ctx.rows | length, ctx.rows[-1]] }}"}}
    """)
    assert (ran.status, ran.data) == ("success", [102, 2]), ran.error
    assert largest_event(ran) < 64 * 1024


def test_a_stored_value_is_read_after_a_replay(play, stage):
    ran = play(f"""
    workflow:
      - {{step: start, tool: {{kind: python, code: "result = {TEXT}"}}, set: {{ctx.big: "{{{{ output.data }}}}"}}}}
    """)
    patched = ran.of("ctx.patched")[0].patch["big"]
    assert list(patched) == ["$stored"] and patched == msgspec.to_builtins(patched)


def test_parallel_branches_write_below_a_stored_value(play):
    """Each branch has its own copy of the value; no write replaces those of the others."""
    ran = play(f"""
    workflow:
      - step: start
        tool: {{kind: python, code: "result = {TEXT}"}}
        set: {{ctx.big: "{{{{ output.data }}}}"}}
        next: {{spec: {{mode: inclusive}}, arcs: [{{step: a, set: {{ctx.big.to_a: 1}}}}, {{step: b, set: {{ctx.big.to_b: 2}}}}]}}
      - step: a
        tool: [{{name: a1, kind: noop, set: {{ctx.big.a.x: 1, ctx.big.a.y: 2}}}}, {{name: a2, kind: noop, set: {{ctx.big.a.x: 3}}}}]
        next: {{arcs: [{{step: each}}]}}
      - {{step: b, tool: {{kind: noop}}, set: {{ctx.big.b: 4}}, next: {{arcs: [{{step: each}}]}}}}
      - step: each
        loop: {{in: "{{{{ ['k', 'l'] }}}}", iterator: n, spec: {{mode: parallel, policy: {{reduce: {{ctx.big.sum: sum, ctx.big.rows: extend}}}}}}}}
        tool: {{kind: noop, set: {{ctx.big.same: 5, ctx.big.sum: 10, ctx.big.rows: ["{{{{ iter.n }}}}"]}}}}
        next: {{arcs: [{{step: end}}]}}
      - {{step: end, tool: {{kind: noop, returns: "{{{{ ctx.big }}}}"}}}}
    """)
    assert ran.status == "success", ran.error
    written = {"a": {"x": 3, "y": 2}, "b": 4, "to_a": 1, "to_b": 2, "same": 5, "sum": 20, "rows": ["k", "l"]}
    assert ran.data == {"t": "x" * 300_000, **written}
    assert largest_event(ran) < 64 * 1024


def test_a_large_value_written_below_a_key_is_stored(play):
    ran = play(f"""
    workflow:
      - step: start
        tool: {{kind: python, code: "result = {TEXT}", set: {{ctx.a.small: 1, ctx.a.big: "{{{{ output.data }}}}"}}}}
        set: {{ctx.b.c: "{{{{ output.data }}}}"}}
        next: {{arcs: [{{step: mid, set: {{ctx.a.d.e: "{{{{ output.data.t }}}}"}}}}]}}
      - {{step: mid, set: {{ctx.m.n: "{{{{ ctx.a.big }}}}"}}, next: {{arcs: [{{step: end}}]}}}}
      - step: end
        tool:
          kind: noop
          returns: "{{{{ [ctx.a.small, ctx.a.big.t | length, ctx.a.d.e | length, ctx.b.c.t | length, ctx.m.n.t | length] }}}}"
    """)
    assert (ran.status, ran.data) == ("success", [1, *[300_000] * 4]), ran.error
    assert largest_event(ran) < 64 * 1024


def test_arguments_are_merged_with_a_stored_mapping(play):
    ran = play(f"""
    workflow:
      - step: start
        tool: {{kind: python, code: "result = {TEXT}"}}
        next: {{arcs: [{{step: more, args: {{big: "{{{{ output.data }}}}"}}}}]}}
      - {{step: more, next: {{spec: {{mode: inclusive}}, arcs: [{{step: l, args: {{big: {{left: 1}}}}}}, {{step: r, args: {{big: {{right: 2}}}}}}]}}}}
      - {{step: l, tool: {{kind: noop}}, next: {{arcs: [{{step: end}}]}}}}
      - {{step: r, tool: {{kind: noop}}, next: {{arcs: [{{step: end}}]}}}}
      - {{step: end, tool: {{kind: noop, returns: "{{{{ args.big }}}}"}}}}
    """)
    assert ran.status == "success", ran.error
    assert ran.data == {"t": "x" * 300_000, "left": 1, "right": 2}


def test_a_signal_writes_below_a_stored_value(stage):
    text = f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: test}}
workflow:
  - step: start
    tool: {{kind: python, code: "result = {TEXT}"}}
    set: {{ctx.big: "{{{{ output.data }}}}"}}
    next: {{arcs: [{{step: ask}}]}}
  - {{step: ask, tool: {{kind: wait, signal: go}}, next: {{arcs: [{{step: end}}]}}}}
  - {{step: end, tool: {{kind: noop, returns: "{{{{ ctx }}}}"}}}}
"""

    async def whole():
        engine = stage.engine
        execution_id = await engine.orchestrator.submit(Submission(text=text))
        async for recorded in engine.orchestrator.subscribe(execution_id):
            if recorded.body.NAME == "wait.started":
                break
        data = {"big.deep.x": 1, "other": "y" * 100_000, "big.deep.y": [2], "mine": {"$stored": "my own key"}}
        await engine.orchestrator.signal(execution_id, "patch", data, id="s1")
        await engine.orchestrator.signal(execution_id, "patch", data, id="s1")
        await engine.orchestrator.signal(execution_id, "go", {})
        await engine.orchestrator.wait(execution_id, 30)
        return await stage.ran(await engine.result(execution_id))

    ran = stage.do(whole())
    assert ran.status == "success", ran.error
    big = {"t": "x" * 300_000, "deep": {"x": 1, "y": [2]}}
    assert ran.data == {"big": big, "other": "y" * 100_000, "mine": {"$stored": "my own key"}}
    assert len(ran.of("ctx.patched", cause="signal")) == 1
    assert all(len(encode_body(each)) < 64 * 1024 for each in ran.of("ctx.patched"))


def test_the_order_of_writes_above_and_below_one_key(play):
    """The later write wins, also where the key was written before."""
    ran = play("""
    workflow:
      - step: start
        tool:
          kind: noop
          set: {ctx.a.x: 1, ctx.a: {y: 2}}
          spec: {policy: {rules: [{else: {then: {do: continue, set: {ctx.a.x: 3}}}}]}}
        next: {arcs: [{step: end}]}
      - {step: end, tool: {kind: noop, returns: "{{ ctx.a }}"}}
    """)
    assert (ran.status, ran.data) == ("success", {"y": 2, "x": 3}), ran.error


@pytest.mark.parametrize(
    "expression",
    [
        "(ctx | tojson | from_json).big.t", "(ctx | dictsort)[0][1].t", "([ctx] | first).big.t", "(ctx.values() | list)[0].t",
        "(ctx.items() | list)[0][1].t", "{'c': ctx}.c.big.t", "(ctx | combine({'k': 1})).big.t", "dict(ctx).big.t",
        "ctx['big']['t']", "ctx.get('big').t", "(ctx | map(attribute='x') | list and ctx).big.t", "args.big.t",
        "(args | tojson | from_json).big.t", "(ctx ~ '' )[12:300012]",
    ],
)  # fmt: skip
def test_whole_scopes_have_the_stored_values(play, expression):
    ran = play(f"""
    workflow:
      - step: start
        tool: {{kind: python, code: "result = {TEXT}"}}
        set: {{ctx.big: "{{{{ output.data }}}}"}}
        next: {{arcs: [{{step: mid, args: {{big: "{{{{ output.data }}}}"}}}}]}}
      - step: mid
        next: {{arcs: [{{step: end, set: {{ctx.n: "{{{{ {expression} | length }}}}"}}}}]}}
      - step: end
        tool:
          kind: python
          input: {{n: "{{{{ {expression} | length }}}}", before: "{{{{ ctx.n }}}}"}}
          code: |
            def main(context, n, before):
                return [n, before, len(context["ctx"]["big"]["t"])]
    """)
    assert (ran.status, ran.data) == ("success", [300_000] * 3), ran.error


@pytest.mark.parametrize(("code", "event"), [("result = 1", "step.done"), ("1 / 0", "step.failed")])
@pytest.mark.parametrize(
    "value", ["{{ 'x' * 300000 }}", "{{ ctx.big.t }}", "{{ first.t }}"], ids=["made", "ctx", "step"]
)
def test_an_arc_reads_the_input_that_the_worker_evaluated(play, code, event, value):
    ran = play(f"""
    executor: {{spec: {{entry_step: first}}}}
    workflow:
      - step: first
        tool: {{kind: python, code: "result = {TEXT}"}}
        set: {{ctx.big: "{{{{ output.data }}}}"}}
        next: {{arcs: [{{step: work, args: {{given: 3}}}}]}}
      - step: work
        input: {{x: 5, big: "{value}"}}
        tool: {{kind: python, code: "{code}"}}
        next:
          arcs:
            - step: end
              when: "{{{{ event.name == '{event}' and input.x == 5 and args.big | length == 300000 }}}}"
              set: {{ctx.all: "{{{{ input }}}}", ctx.one: "{{{{ args.given }}}}"}}
      - {{step: end, tool: {{kind: noop, returns: "{{{{ [ctx.all.x, ctx.all.given, ctx.one, ctx.all.big | length] }}}}"}}}}
    """)
    assert (ran.status, ran.data) == ("success", [5, 3, 3, 300_000]), ran.error
    assert largest_event(ran) < 64 * 1024
