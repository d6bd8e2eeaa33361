"""Reruns of what failed, forks, other versions and payloads, and the comparison of two executions."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.errors import Conflict, NotFound
from noetl.server.lifecycle.retention import delete_old
from noetl.server.orchestrator.submissions import RerunRequest, Submission
from noetl.server.read_models import compare as compare_module
from noetl.server.read_models import log_pages
from noetl.server.read_models.compare import Divergence
from noetl.server.read_models.summaries import run_result
from noetl.storage.ports.events import ExecutionFilter
from tests.e2e.conftest import Ran, Stage, check_oracles

LOOP = """
workload: {bad: [2], items: [0, 1, 2, 3]}
workflow:
  - step: start
    tool: {kind: noop}
    set: {ctx.base: 100}
    next: {arcs: [{step: each}]}
  - step: each
    loop: {in: "{{ workload.items }}", iterator: n, spec: {mode: parallel, policy: {reduce: {ctx.sum: sum}}}}
    spec: {policy: {failure: {mode: best_effort, max_failed: 0}}}
    tool:
      - name: work
        kind: python
        input: {n: "{{ iter.n }}", bad: "{{ workload.bad }}", base: "{{ ctx.base }}"}
        code: |
          if n in bad:
              import time
              time.sleep(0.5)  # after the others
              raise ValueError(f"no {n}")
          result = base + n
        set: {ctx.sum: "{{ iter.n }}"}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: python, input: {all: "{{ each.results }}", sum: "{{ ctx.sum }}"}, code: "result = [all, sum]"}
"""


def again(stage: Stage, request: RerunRequest) -> Ran:
    """The rerun, at its end."""

    async def scenario() -> Ran:
        orchestrator = stage.orchestrator
        execution_id = await orchestrator.rerun(request)
        await orchestrator.wait(execution_id, 30)
        return await stage.ran(run_result(execution_id, await orchestrator.progress(execution_id)))

    ran: Ran = stage.do(scenario())
    check_oracles(ran)
    return ran


def test_only_failed_iterations_run_again(stage: Stage, play: Any):
    failed = play(LOOP)
    assert failed.status == "failed"
    execution_id = failed.result.execution_id
    plan = stage.do(stage.orchestrator.plan_rerun(RerunRequest(execution_id, failed=True)))
    assert (plan.starts, plan.kept, plan.iterations) == (("each",), ("start",), {"each": 3})
    assert plan.describe() == "starts at each; keeps the results of start; keeps 3 iterations of each"
    ran = again(stage, RerunRequest(execution_id, failed=True, changes={"bad": []}))
    assert ran.data == [[100, 101, 102, 103], 6]
    assert [body.path for body in ran.of("loop.iteration.started")] == [(2,)]
    (kept,) = ran.of("loop.iterations.kept")
    assert kept.indices == (0, 1, 3)
    assert ran.order("step.scheduled") == ["each", "end"]
    summary = stage.do(stage.orchestrator.summary(ran.result.execution_id))
    assert (summary.rerun_of, summary.forked_from) == (execution_id, None)


def test_iterations_whose_element_changed_are_not_kept(stage: Stage, play: Any):
    failed = play(LOOP)
    request = RerunRequest(failed.result.execution_id, failed=True, changes={"bad": [], "items": [0, 7, 2, 3, 4]})
    ran = again(stage, request)
    assert sorted(body.path for body in ran.of("loop.iteration.started")) == [(1,), (2,), (4,)]
    assert ran.data == [[100, 107, 102, 103, 104], 16]


def test_a_rerun_of_failures_can_fail_and_be_rerun_again(stage: Stage, play: Any):
    failed = play(LOOP, {"bad": [1, 2]})
    second = again(stage, RerunRequest(failed.result.execution_id, failed=True, changes={"bad": [2]}))
    assert second.status == "failed"
    third = again(stage, RerunRequest(second.result.execution_id, failed=True, changes={"bad": []}))
    assert third.data == [[100, 101, 102, 103], 6]
    assert [body.path for body in third.of("loop.iteration.started")] == [(2,)]


def test_tolerated_failures_of_a_successful_execution_run_again(stage: Stage, play: Any):
    text = LOOP.replace(", max_failed: 0", "")
    first = play(text)
    assert first.status == "success" and first.data == [[100, 101, None, 103], 4]
    ran = again(stage, RerunRequest(first.result.execution_id, failed=True, changes={"bad": []}))
    assert ran.data == [[100, 101, 102, 103], 6]
    with pytest.raises(Conflict, match="nothing failed"):
        stage.do(stage.orchestrator.rerun(RerunRequest(ran.result.execution_id, failed=True)))


def test_nested_loops_keep_their_finished_iterations(stage: Stage, play: Any):
    text = """
    workload: {bad: 3}
    workflow:
      - step: start
        loop:
          in: [[1, 2], [3, 4]]
          iterator: group
          spec: {mode: parallel}
          loop: {in: "{{ iter.group }}", iterator: n, spec: {mode: parallel}}
        spec: {policy: {failure: {mode: best_effort, max_failed: 0}}}
        tool:
          kind: python
          input: {n: "{{ iter.n }}", bad: "{{ workload.bad }}"}
          code: |
            if n == bad:
                import time
                time.sleep(0.5)  # after the others
                raise ValueError("no")
            result = n * 10
    """
    failed = play(text)
    ran = again(stage, RerunRequest(failed.result.execution_id, failed=True, changes={"bad": 0}))
    assert ran.data == [[10, 20], [30, 40]]
    assert [body.path for body in ran.of("loop.iteration.started")] == [(1, 0)]


def test_parallel_branches_that_were_cancelled_run_again(stage: Stage, play: Any):
    text = """
    workload: {fail: true}
    workflow:
      - step: start
        next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}, {step: c}]}
      - step: a
        tool:
          kind: python
          input: {fail: "{{ workload.fail }}"}
          code: |
            import time
            time.sleep(0.2 if fail else 0)
            if fail:
                raise ValueError("no")
            result = "a"
        next: {arcs: [{step: join}]}
      - step: b
        tool: {kind: wait, for: "{{ '1h' if workload.fail else '10ms' }}"}
        next: {arcs: [{step: join}]}
      - step: c
        tool: {kind: python, code: "result = 'c'"}
        next: {arcs: [{step: join}]}
      - step: join
        tool: {kind: python, input: {a: "{{ a }}", c: "{{ c }}"}, code: "result = [a, c]"}
    """
    failed = play(text)
    plan = stage.do(stage.orchestrator.plan_rerun(RerunRequest(failed.result.execution_id, failed=True)))
    assert set(plan.starts) == {"a", "b", "join"} and set(plan.kept) == {"start", "c"}
    ran = again(stage, RerunRequest(failed.result.execution_id, failed=True, changes={"fail": False}))
    assert ran.data == ["a", "c"]
    assert sorted(ran.order("step.scheduled")) == ["a", "b", "join"]


CHAIN = """
workload: {n: 1}
workflow:
  - step: one
    tool: {kind: python, input: {n: "{{ workload.n }}"}, code: "result = n"}
    set: {ctx.one: "{{ output.data }}"}
    next: {arcs: [{step: two}]}
  - step: two
    tool: {kind: python, input: {n: "{{ workload.n }}"}, code: "result = n * 10"}
    next: {arcs: [{step: three}]}
  - step: three
    tool:
      kind: python
      input: {one: "{{ ctx.one }}", two: "{{ two }}", n: "{{ workload.n }}"}
      code: "result = [one, two, n]"
"""


def test_a_fork_continues_after_an_event_with_other_inputs(stage: Stage, play: Any):
    first = play(CHAIN)
    assert first.data == [1, 10, 1]
    done = next(each.seq for each in first.events if each.body.NAME == "step.done" and each.body.step == "one")
    request = RerunRequest(first.result.execution_id, at=done, changes={"n": 5})
    plan = stage.do(stage.orchestrator.plan_rerun(request))
    assert (plan.starts, plan.kept) == (("two",), ("one",)) and plan.at >= done
    ran = again(stage, request)
    assert ran.data == [1, 50, 5]
    assert ran.order("step.scheduled") == ["two", "three"]
    summary = stage.do(stage.orchestrator.summary(ran.result.execution_id))
    assert (summary.rerun_of, summary.forked_from) == (None, first.result.execution_id)


def test_every_event_of_a_log_can_be_forked_or_says_why_not(stage: Stage, play: Any):
    first = play(CHAIN)
    last = next(each.seq for each in first.events if each.body.NAME == "step.done" and each.body.step == "three")
    for at in range(1, last):
        assert again(stage, RerunRequest(first.result.execution_id, at=at)).data == [1, 10, 1]
    for at in range(last, len(first.events) + 1):
        with pytest.raises(Conflict, match="nothing would run"):
            stage.do(stage.orchestrator.rerun(RerunRequest(first.result.execution_id, at=at)))
    for at in (0, 999):
        with pytest.raises(NotFound, match="has the events 1 to"):
            stage.do(stage.orchestrator.rerun(RerunRequest(first.result.execution_id, at=at)))


def test_a_newer_version_keeps_the_results_of_steps_that_still_exist(stage: Stage):
    text = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: versions, path: reruns/versions}\n" + CHAIN
    broken = text.replace('code: "result = n * 10"', 'code: "result = n / 0"')
    stage.register(broken)

    async def first() -> str:
        execution_id = await stage.orchestrator.submit(Submission(path="reruns/versions"))
        await stage.orchestrator.wait(execution_id, 30)
        return execution_id

    failed = stage.do(first())
    fixed = text.replace('result = n"', 'result = n + 0"')
    stage.register(fixed)
    request = RerunRequest(failed, failed=True, version="latest")
    plan = stage.do(stage.orchestrator.plan_rerun(request))
    assert (plan.version_before, plan.version) == ("1", "2")
    assert (plan.kept, plan.changed, plan.dropped) == (("one",), ("one",), ())
    assert "with version 2" in plan.describe() and "one (changed since)" in plan.describe()
    assert again(stage, request).data == [1, 10, 1]
    stage.register(text.replace("step: two", "step: zwei").replace("{{ two }}", "{{ zwei }}"))
    with pytest.raises(NotFound, match="has no step 'two' in this version"):
        stage.do(stage.orchestrator.plan_rerun(request))


def test_a_whole_rerun_records_its_origin(stage: Stage, play: Any):
    first = play(CHAIN)
    ran = again(stage, RerunRequest(first.result.execution_id, changes={"n": 2}))
    assert ran.data == [2, 20, 2]
    assert stage.do(stage.orchestrator.summary(ran.result.execution_id)).rerun_of == first.result.execution_id


def test_the_same_key_starts_one_rerun(stage: Stage, play: Any):
    first = play(CHAIN)
    request = RerunRequest(first.result.execution_id, from_step="two")
    ids = {stage.do(stage.orchestrator.rerun(request, key="rerun-key")) for _ in range(2)}
    assert len(ids) == 1
    with pytest.raises(Conflict, match="another request"):
        stage.do(stage.orchestrator.rerun(RerunRequest(first.result.execution_id), key="rerun-key"))


def test_two_executions_are_compared(stage: Stage, play: Any):
    first, same, other = play(CHAIN), play(CHAIN), play(CHAIN, {"n": 2})
    ids = [each.result.execution_id for each in (first, same, other)]
    equal = stage.do(stage.orchestrator.compare(ids[0], ids[1]))
    assert equal["version"]["same"] and equal["inputs"] == [] and equal["outputs"] == []
    assert equal["first_divergence"] is None
    differs = stage.do(stage.orchestrator.compare(ids[0], ids[2]))
    assert differs["inputs"] == [{"path": "n", "a": 1, "b": 2}]
    assert [each["path"] for each in differs["outputs"]] == ["data.0", "data.1", "data.2"]
    assert [(row["step"], row["output"]) for row in differs["steps"]] == [
        ("one", "differs"),
        ("two", "differs"),
        ("three", "differs"),
    ]
    assert differs["first_divergence"]["where"] == "execution"
    assert differs["first_divergence"]["a"] == {"seq": 2, "name": "playbook.request.evaluated"}


def test_no_command_reads_a_whole_log_at_once(stage: Stage, play: Any, monkeypatch):
    """A log may have millions of events; pages of five are the same to every reader."""
    monkeypatch.setattr(log_pages, "PAGE", 5)
    failed, ended = play(LOOP), play(LOOP)
    ids = failed.result.execution_id, ended.result.execution_id
    store, sizes = stage.orchestrator.store, []
    read = store.read

    async def counted(execution_id: str, after: int = 0, limit: int | None = None) -> Any:
        found = await read(execution_id, after, limit)
        sizes.append((limit, len(found)))
        return found

    monkeypatch.setattr(store, "read", counted)
    plan = stage.do(stage.orchestrator.plan_rerun(RerunRequest(ids[0], failed=True)))
    assert plan.iterations
    assert stage.do(stage.orchestrator.plan_rerun(RerunRequest(ids[0], from_step="start"))).starts == ("start",)
    assert stage.do(stage.orchestrator.plan_rerun(RerunRequest(ids[0], at=9))).starts
    found = stage.do(stage.orchestrator.compare(*ids))
    assert found["first_divergence"] is None and {row["output"] for row in found["steps"]} == {"same"}
    assert len(sizes) > 10 and all(limit is not None for limit, _ in sizes)


def test_the_order_of_parallel_work_does_not_matter_for_the_first_divergence(monkeypatch):
    found = Divergence()
    for side, place, seq, content in [
        (0, "a", 3, "x"), (0, "b", 4, "y"), (1, "b", 3, "y"), (1, "a", 4, "x"), (0, "c", 7, "z"), (1, "c", 5, "w"),
        (0, "d", 6, "only here"),
    ]:  # fmt: skip
        found.add(side, (place,), seq, content)
    assert found.first() == (("c",), 7, 5)
    monkeypatch.setattr(compare_module, "MAX_PENDING", 2)
    long = Divergence()
    for seq in range(1, 5):
        long.add(0, (str(seq),), seq, "")
    assert long.complete and long.first() == (("1",), 1, None)


def test_a_rerun_is_compared_with_its_origin(stage: Stage, play: Any):
    failed = play(LOOP)
    ran = again(stage, RerunRequest(failed.result.execution_id, failed=True, changes={"bad": []}))
    found = stage.do(stage.orchestrator.compare(failed.result.execution_id, ran.result.execution_id))
    rows = {row["step"]: row for row in found["steps"]}
    assert rows["start"]["output"] == "same"
    assert rows["end"]["a"] is None and rows["end"]["output"] == "missing"
    assert found["b"]["rerun_of"] == failed.result.execution_id


LARGE = """
executor: {spec: {policy: {limits: {max_payload_bytes: 64}}}}
workflow:
  - step: start
    tool: {kind: python, code: "result = {'text': 'x' * 500}"}
    set: {ctx.kept: "{{ output.data }}"}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: python, input: {a: "{{ start.text }}", b: "{{ ctx.kept.text }}"}, code: "result = [len(a), len(b)]"}
"""


def test_retention_keeps_what_a_rerun_refers_to(stage: Stage, play: Any):
    """The results of the first execution are needed by the rerun of the rerun, and deleted after it."""
    first = play(LARGE)
    second = again(stage, RerunRequest(first.result.execution_id, from_step="end"))
    whole = again(stage, RerunRequest(first.result.execution_id))  # refers to nothing
    orchestrator = stage.orchestrator

    async def retain(before: float) -> list[str]:
        await delete_old(orchestrator.store, orchestrator.results, before)
        rows = await orchestrator.store.executions(ExecutionFilter())
        return [each.execution_id for each in rows]

    ended = (stage.do(orchestrator.store.summary(second.result.execution_id))).ended_at
    assert stage.do(retain(ended)) == [  # the first one is old enough
        each.result.execution_id for each in (whole, second, first)
    ]
    third = again(stage, RerunRequest(second.result.execution_id, from_step="end"))
    assert third.data == [500, 500]
    assert stage.do(retain(1e12)) == []
