"""What an execution takes over from an earlier one: tokens, results, ctx, iterations."""

from __future__ import annotations

from engine_harness import Harness

from noetl.core.model.events import IterationsKept, IterationStarted, KeptIteration, KeptLoop, KeptToken, RerunSource
from noetl.core.model.outcome import ok

LOOP = """
workload: {items: [a, b, c]}
workflow:
  - step: start
    loop:
      in: "{{ workload.items }}"
      iterator: n
      spec: {mode: parallel, max_in_flight: 2, policy: {reduce: {ctx.sum: sum}}}
    tool: {kind: noop}
    next: {arcs: [{step: end}]}
  - {step: end, tool: {kind: noop}}
"""


def kept(*indices: int, items=("a", "b", "c"), path=()) -> KeptLoop:
    done = [KeptIteration(index, ok(f"kept {index}"), contributions={"sum": index}) for index in indices]
    return KeptLoop(path, items, None, tuple(done))


def source(**fields) -> RerunSource:
    return RerunSource("1", mode="failed", at=9, **fields)


def test_kept_iterations_do_not_run_and_the_others_do():
    harness = Harness(LOOP).start(rerun=source(loops={"start": (kept(0, 2),)}))
    assert harness.of(IterationsKept)[0].indices == (0, 2)
    assert [each.path for each in harness.queue] == [(1,)]
    assert "ended" in harness.rejection("77:start:1/0")
    harness.complete(harness.claim(), ok("new 1"))
    assert harness.state.steps["start"].outcome.data == ["kept 0", "new 1", "kept 2"]
    assert harness.state.ctx == {"sum": 2}
    assert harness.work().status == "success"


def test_a_loop_of_which_everything_is_kept_ends_at_once():
    harness = Harness(LOOP).start(rerun=source(loops={"start": (kept(2, 0, 1),)}))
    assert harness.of(IterationStarted) == []
    assert harness.state.steps["start"].outcome.data == ["kept 0", "kept 1", "kept 2"]
    assert harness.state.ctx == {"sum": 3}
    assert harness.work().status == "success"


def test_a_kept_iteration_that_was_skipped_counts_as_skipped():
    done = (KeptIteration(0, ok(1)), KeptIteration(1, ok(None), skipped=True), KeptIteration(2, ok(3)))
    harness = Harness(LOOP).start(rerun=source(loops={"start": (KeptLoop((), ("a", "b", "c"), None, done),)}))
    counts = harness.state.steps["start"].outcome.helpers["loop"]
    assert (counts["total"], counts["succeeded"], counts["skipped"]) == (3, 2, 1)


def test_an_iteration_whose_element_changed_is_not_kept():
    harness = Harness(LOOP).start(rerun=source(loops={"start": (kept(0, 1, 2, items=("a", "x", "c")),)}))
    assert harness.of(IterationsKept)[0].indices == (0, 2)
    fewer = Harness(LOOP).start({"items": ["a"]}, rerun=source(loops={"start": (kept(0, 1, 2),)}))
    assert fewer.of(IterationsKept)[0].indices == (0,)
    other = Harness(LOOP).start({"items": [1]}, rerun=source(loops={"start": (kept(0, 1, 2),)}))
    assert other.of(IterationsKept) == [] and len(other.queue) == 1


def test_only_the_first_run_of_a_step_keeps_iterations():
    text = LOOP.replace("{step: end}", '{step: start, when: "{{ ctx.sum < 9 }}"}, {step: end}')
    harness = Harness(text).start(rerun=source(loops={"start": (kept(0, 1, 2),)}))
    assert len(harness.of(IterationsKept)) == 1 and harness.scheduled == ["start", "start"]
    assert len(harness.queue) == 2


def test_inner_loops_keep_their_iterations():
    text = """
workflow:
  - step: start
    loop: {in: [[1, 2], [3]], iterator: g, spec: {mode: parallel}, loop: {in: "{{ iter.g }}", iterator: n}}
    tool: {kind: noop}
"""
    loops = (kept(0, 1, items=(1, 2), path=(0,)), kept(0, items=(4,), path=(1,)))
    harness = Harness(text).start(rerun=source(loops={"start": loops}))
    assert [each.path for each in harness.queue] == [(1, 0)]
    harness.complete(harness.claim(), ok("new"))
    assert harness.data == [["kept 0", "kept 1"], ["new"]]


def test_several_tokens_continue_and_join():
    text = """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}]}}
  - {step: a, tool: {kind: noop}, next: {arcs: [{step: join}]}}
  - {step: b, tool: {kind: noop}, next: {arcs: [{step: join}]}}
  - {step: join, tool: {kind: noop}}
"""
    tokens = (KeptToken("a", {"x": 1}), KeptToken("join"))
    harness = Harness(text).start(rerun=source(tokens=tokens, from_step="a", results={"b": ok(2)}, ctx={"k": 1}))
    assert harness.scheduled == ["a"] and harness.state.ctx == {"k": 1}
    assert harness.orders == [] and harness.claim().context.args == {"x": 1}
    harness.complete(harness.orders[0])
    assert harness.work().status == "success"
    assert harness.scheduled == ["a", "join"]
