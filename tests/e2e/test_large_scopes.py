"""Values of `ctx` and arguments of tokens that are too large for the log are stored, and read like small ones."""

import msgspec
import pytest

from noetl.core.model.events import encode_body

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
