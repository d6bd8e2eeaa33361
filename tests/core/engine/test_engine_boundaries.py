"""Sizes and ages right at their limits, appends that are full, and snapshots of older versions."""

from __future__ import annotations

from unittest.mock import patch

import msgspec
import pytest
from engine_harness import Harness, finished, task_done

from noetl.core.engine import advance as machine
from noetl.core.engine import snapshot
from noetl.core.engine.commands import (
    CancelExecution,
    ClaimAnyRun,
    FireTimer,
    PauseExecution,
    ResumeExecution,
    SendSignal,
)
from noetl.core.engine.evolve import loops as iterations
from noetl.core.engine.handlers import assignments, loops, runaway
from noetl.core.engine.lease_rules import AGEING_SECONDS
from noetl.core.engine.snapshot import VERSION, decode_state, encode_state
from noetl.core.model.compensation import CompensationCounts
from noetl.core.model.events import CompensationDone, CtxPatched, LoopDone, LoopStarted, StepFailed, WaitStarted
from noetl.core.model.outcome import ANSWERS, Outcome, error, ok
from noetl.core.model.position import Position
from noetl.errors import CorruptLog

PRIORITIES = """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: low}, {step: opener}]}}
  - {step: low, tool: {kind: noop}}
  - {step: opener, tool: {kind: noop}, next: {arcs: [{step: high, spec: {priority: 2}}]}}
  - {step: high, tool: {kind: noop}}
"""
CHAIN = """
workflow:
  - {step: start, next: {arcs: [{step: a}]}}
  - {step: a, next: {arcs: [{step: b}]}}
  - {step: b, next: {arcs: [{step: c}]}}
  - {step: c, tool: {kind: noop}}
"""
LOOP = """
executor: {spec: {policy: {limits: {max_payload_bytes: LIMIT}}}}
workflow:
  - step: start
    loop: {in: [1, 2, 3], iterator: n}
    tool: {kind: http}
    next: {arcs: [{step: end}]}
  - {step: end, input: {n: "{{ start.data[1].n }}", s: "{{ start.loop.succeeded }}"}, tool: {kind: noop}}
"""
REDUCED = """
workflow:
  - step: start
    loop: {in: [1, 2, 3], iterator: n, spec: {policy: {reduce: {ctx.all: append}}}}
    tool: {kind: noop}
"""


@pytest.mark.parametrize(("later", "first"), [(2 * AGEING_SECONDS - 1, "high"), (2 * AGEING_SECONDS + 1, "low")])
def test_a_point_of_priority_counts_as_much_as_ten_seconds_of_waiting(later, first):
    harness = Harness(PRIORITIES).start()
    at = harness.at
    order = harness.claim("77:opener:1")
    harness.at = at + later - 1
    harness.complete(order)
    (claimed,) = harness.send(ClaimAnyRun("w2")).replies[0].orders
    assert claimed.context.step == first


@pytest.mark.parametrize("command", [FireTimer(), PauseExecution(), CancelExecution()])
def test_a_command_after_a_full_append_continues_what_was_left(command):
    harness = Harness(CHAIN)
    harness.continue_later = lambda: None
    with patch.object(machine, "MAX_EVENTS", 4):
        harness.start()
    assert harness.scheduled == ["start"] and harness.state.unexamined
    harness.send(command)
    harness.send(ResumeExecution())
    assert not harness.state.unexamined
    cancelled = type(command) is CancelExecution
    assert harness.scheduled == (["start"] if cancelled else ["start", "a", "b", "c"])
    assert (harness.status == "cancelled") == cancelled


def ended(limit: int, size: int, answers: bool = False) -> Harness:
    """A loop of three outputs of a size, with a limit of the bytes of a payload."""

    def work(harness, order):
        helpers = {"http": {"status": 200}} if answers else {}
        return finished(order, Outcome("ok", data={"n": "x" * size}, helpers=helpers))

    return Harness(LOOP.replace("LIMIT", str(limit)), {"start": work}).run()


def test_a_collection_of_exactly_the_limit_is_in_the_log_and_a_larger_one_is_stored():
    assert ended(7, 0).of(LoopStarted)[0].items == (1, 2, 3)  # [1,2,3]
    assert ended(6, 0).of(LoopStarted)[0].items is None


def test_outputs_of_exactly_the_limit_are_in_the_log_and_larger_ones_are_stored():
    size = len(msgspec.json.encode([{"n": "x" * 20}] * 3))
    (whole,) = ended(size, 20).of(LoopDone)
    assert whole.output.ref is None and whole.output.data == [{"n": "x" * 20}] * 3
    (stored,) = ended(size - 1, 20).of(LoopDone)
    assert stored.output.data is None and stored.output.ref is not None


def test_answers_of_exactly_the_limit_are_in_the_log_and_larger_ones_are_stored():
    (done,) = ended(1000, 20, answers=True).of(LoopDone)
    answers = done.output.helpers[ANSWERS]
    size = len(msgspec.json.encode(answers))
    assert sorted(answers) == ["0", "1", "2"]
    assert ended(size, 0, answers=True).of(LoopDone)[0].output.helpers[ANSWERS] == answers
    assert "0" not in ended(size - 1, 0, answers=True).of(LoopDone)[0].output.helpers[ANSWERS]


def test_a_reduced_value_of_exactly_the_limit_is_written_and_a_larger_one_fails_the_step():
    def work(harness, order):
        return [task_done(order, "t", ok(), patch={"ctx": {"all": 1}}), *finished(order, ok())]

    with patch.object(loops, "MAX_CTX_VALUE", 7):  # [1,1,1]
        assert Harness(REDUCED, {"start": work}).run().of(CtxPatched)[-1].patch == {"all": [1, 1, 1]}
    with patch.object(loops, "MAX_CTX_VALUE", 6):
        (failed,) = Harness(REDUCED, {"start": work}).run().of(StepFailed)
        assert failed.output.error.kind == "limit"


def test_a_key_of_an_older_snapshot_has_no_content_and_its_command_is_a_repetition():
    harness = Harness(CHAIN).start()
    harness.send(PauseExecution(id="k"))
    fields = msgspec.msgpack.decode(encode_state(harness.state))
    assert fields.count(["k"]) == 1
    fields[fields.index(["k"]) + 1] = []  # the contents of the keys
    harness.state = decode_state(harness.playbook, msgspec.msgpack.encode(fields))
    harness.watch = False
    assert harness.state.signal_ids == {"k": None}
    before = len(harness.log)
    for command in (PauseExecution(id="k"), CancelExecution(id="k")):
        assert harness.send(command).replies[0].accepted
    assert len(harness.log) == before


def test_a_snapshot_of_another_version_is_refused():
    harness = Harness(CHAIN).start()
    fields = msgspec.msgpack.decode(encode_state(harness.state))
    assert fields[0] == VERSION
    fields[0] += 1
    with pytest.raises(CorruptLog, match=f"version {VERSION + 1}"):
        decode_state(harness.playbook, msgspec.msgpack.encode(fields))


def test_answers_of_a_loop_are_recorded_up_to_a_number():
    with patch.object(iterations, "MAX_ANSWERS", 2):
        (done,) = ended(1000, 0, answers=True).of(LoopDone)
    assert sorted(done.output.helpers[ANSWERS]) == ["0", "1"]


UNDONE = """
workflow:
  - step: start
    loop: {in: [[1, 2, 3], [4], []], iterator: row, loop: {in: "{{ iter.row }}", iterator: cell}}
    spec: {policy: {compensation: {tool: {kind: noop}, when: "{{ WHEN }}"}}}
    tool: {kind: noop}
    next: {arcs: [{step: broken}]}
  - {step: broken, tool: {kind: noop}}
"""


@pytest.mark.parametrize(
    ("when", "undone"),
    [
        ("iter.first", ["0.0", "1.0"]),
        ("iter.last", ["0.2", "1.0"]),
        ("iter.parent.first and not iter.first", ["0.1", "0.2"]),
        ("iter.parent.last", []),
        ("loop_index == 1", ["0.1"]),
        ("iter.cell == 4 and iter.count == 1 and iter.parent.count == 3 and iter.parent.row == [4]", ["1.0"]),
    ],
)
def test_a_compensation_reads_the_place_of_the_iteration_that_it_undoes(when, undone):
    script = {"broken": error("python", "it broke")}
    harness = Harness(UNDONE.replace("WHEN", when), script).run()
    assert harness.status == "failed"
    found = [each.run_id.partition("/")[2] for each in harness.of(CompensationDone) if not each.skipped]
    assert sorted(found) == undone


DUE = """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}]}}
  - {step: a, spec: {policy: {lifecycle: {timeout_s: 20}}}, tool: [{name: ask, kind: wait, signal: go, timeout: 15s}], next: {arcs: [{step: end, when: "{{ true }}"}]}}
  - {step: b, spec: {policy: {lifecycle: {timeout_s: 20}}}, tool: {kind: noop}, next: {arcs: [{step: end, when: "{{ true }}"}]}}
  - {step: end, tool: {kind: noop}}
"""


def test_one_timer_ends_everything_that_is_due():
    harness = Harness(DUE).start()
    order = harness.claim("77:a:1")
    where = {"step": "a", "step_run_id": "77:a:1", "task": "ask"}
    harness.report(order, WaitStarted(**where, signal="go", timeout_s=15.0, position=Position("ask")))
    harness.claim("77:b:1")
    harness.send(FireTimer(), at=harness.at + 100)
    assert sorted(each.step for each in harness.of(StepFailed)) == ["a", "b"]
    assert not harness.state.due


GATE = """
workflow:
  - {step: start, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: gated}, {step: other}]}}
  - {step: other, tool: {kind: noop}}
  - {step: gated, spec: {policy: {admit: {rules: [{when: "{{ ctx.open is defined and event.name == 'step.done' and event.step == 'start' and event.output.data == 5 }}", then: {allow: true}}]}}}, tool: {kind: noop}}
"""


def test_a_gate_reads_the_whole_event_that_made_its_token():
    text = GATE.replace(
        "event.output.data == 5",
        "event.timestamp == '1970-01-01T00:16:43.000000Z' and event.step_run_id == '77:start:1'",
    )
    harness = Harness(text, {"start": ok(5)}).start()
    harness.complete(harness.claim())
    assert harness.at == 1003.0
    harness.send(SendSignal("open", {"open": True}), at=2000.0)
    assert harness.scheduled == ["start", "other", "gated"]


def test_a_token_of_an_older_snapshot_has_the_event_that_its_step_ended_with():
    harness = Harness(GATE, {"start": ok(5)}).start()
    harness.complete(harness.claim())
    (token,) = harness.state.waiting["gated"]
    token.event = None
    harness.watch = False
    harness.send(SendSignal("open", {"open": True}))
    assert harness.scheduled == ["start", "other", "gated"]


MISSING = {
    "_Token": {"event": None, "dedupe": None, "partition": None, "priority": 0.0},
    "_Run": {"started": None, "suspect": 0},
    "_Loop": {"failed_items": {}, "answers": {}},
    "_StepRun": {"event": None, "completed": [], "window": 1, "dedupe": None, "partition": None, "priority": 0.0},
    "_Child": {"waiting": False, "reported": 0},
    "_Ending": {"compensate": True},
    "_State": {
        "begun": True, "waits": [], "signals": {}, "signal_ids": [], "signal_contents": [], "completed": [],
        "compensations_left": None, "compensating": [], "compensated": CompensationCounts(), "versions": {},
        "uncommitted": [],
    },
}  # fmt: skip


def test_what_snapshots_of_older_versions_lack_has_the_value_from_before():
    found = {}
    for name, shape in vars(snapshot).items():
        if isinstance(shape, type) and issubclass(shape, msgspec.Struct) and shape.__module__ == snapshot.__name__:
            optional = [field for field in msgspec.structs.fields(shape) if not field.required]
            if optional:
                found[name] = {
                    field.name: field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
                    for field in optional
                }
    assert found == MISSING
    harness = Harness(CHAIN).start()
    harness.claim()
    encoded = encode_state(harness.state)
    fields = msgspec.msgpack.decode(encoded)[: -len(MISSING["_State"])]
    assert encode_state(decode_state(harness.playbook, msgspec.msgpack.encode(fields))) == encoded


CLASHING = """
workflow:
  - step: start
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: a, set: {FIRST: 1}}, {step: b, set: {SECOND: 1}}]}
  - {step: a, tool: {kind: noop}}
  - {step: b, tool: {kind: noop}}
"""


@pytest.mark.parametrize(
    ("first", "second", "clash"),
    [("ctx.x", "ctx.x.y", True), ("ctx.x.y", "ctx.x", True), ("ctx.x", "ctx.xy", False), ("ctx.x.y", "ctx.x.z", False)],
)
def test_two_arcs_that_are_taken_together_cannot_set_a_value_and_a_part_of_it(first, second, clash):
    harness = Harness(CLASHING.replace("FIRST", first).replace("SECOND", second)).run()
    assert (harness.status == "failed") == clash
    assert not clash or harness.state.error.kind == "ctx.conflict"


OWN_SCOPE = """
workflow:
  - step: start
    loop: {in: [1, 2], iterator: n}
    tool: {kind: noop}
    set: {step.x: 1}
    next:
      spec: {mode: inclusive}
      arcs:
        - {step: at_loop, when: "{{ event.name == 'loop.done' }}", set: {ctx.loop: "{{ event.payload | list }}"}}
        - {step: at_step, when: "{{ event.name == 'step.done' }}", set: {ctx.step: "{{ event.payload | list }}"}}
  - {step: at_loop, tool: {kind: noop}}
  - {step: at_step, tool: {kind: noop}}
"""


def test_the_counts_of_a_loop_are_in_the_payload_of_loop_done_and_writes_to_its_own_scope_do_not_change_ctx():
    harness = Harness(OWN_SCOPE).run()
    assert [each.cause for each in harness.of(CtxPatched)] == ["arc", "arc"]
    counts = ["total", "succeeded", "failed", "skipped"]
    assert harness.state.ctx == {
        "loop": ["step", "output", "result", *counts],
        "step": ["step", "output", "result"],
    }


STORED = """
executor: {spec: {policy: {limits: {max_payload_bytes: 20}}}}
workflow:
  - {step: start, next: {arcs: [{step: middle, set: {ctx.big: {x: "a value of more than 20 bytes"}, ctx.n: 1.2345678901234567e+100}}]}}
  - {step: middle, next: {arcs: [{step: end, set: {ctx.big.y: 1, ctx.found: "{{ ctx.big.x | length + ctx.big.y }}"}}]}}
  - {step: end, tool: {kind: noop}}
"""


def test_a_part_of_a_value_outside_of_the_log_is_set_and_a_number_is_always_in_the_log():
    harness = Harness(STORED).run()
    assert (harness.status, harness.state.ctx["found"]) == ("success", 30)
    assert harness.state.ctx["n"] == 1.2345678901234567e100
    assert list(harness.stored.values()) == [
        {"x": "a value of more than 20 bytes"},
        {"x": "a value of more than 20 bytes", "y": 1},
    ]


def test_the_input_of_a_step_without_tasks_reads_a_value_outside_of_the_log():
    text = STORED.replace("- {step: middle,", "- {step: middle, input: {n: '{{ ctx.big.x | length }}'},")
    harness = Harness(
        text.replace('ctx.big.y: 1, ctx.found: "{{ ctx.big.x | length + ctx.big.y }}"', 'ctx.found: "{{ input.n }}"')
    ).run()
    assert (harness.status, harness.state.ctx["found"]) == ("success", 29)


SET = """
workflow:
  - {step: start, next: {arcs: [{step: end, SET}]}}
  - {step: end, tool: {kind: noop}}
"""


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("set: {ctx.x: 12345678}", True),
        ('set: {ctx.x: "{{ 1234567 }}"}', True),
        ('set: {ctx.x: "{{ 12345678 }}"}', False),
        ('args: {x: "{{ 12345678 }}"}', True),
    ],
)
def test_a_computed_value_of_ctx_is_limited(text, fits):
    with patch.object(assignments, "MAX_CTX_VALUE", 7):
        harness = Harness(SET.replace("SET", text)).run()
    assert (harness.status == "success") == fits
    assert fits or harness.state.error.kind == "limit"


TOGETHER = """
workflow:
  - {step: start, next: {spec: {mode: inclusive}, arcs: [{step: each}, {step: each}, {step: each}]}}
  - {step: each, tool: {kind: noop}, spec: {policy: {admit: {join: each}}}}
"""


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("most", "refused"), [(2, 2), (3, 1), (4, 0)])
def test_steps_that_are_scheduled_together_count_before_they_start(own, most, refused):
    limit = f"executor: {{spec: {{policy: {{limits: {{max_step_runs: {most}}}}}}}}}\n" if own else ""
    with patch.object(runaway, "DEFAULT_MAX_STEP_RUNS", 100 if own else most):
        harness = Harness(limit + TOGETHER).start()
    assert sum(each.fatal for each in harness.of(StepFailed)) == refused
    assert (harness.status == "failed") == (refused > 0)


CUBE = """
workflow:
  - step: start
    loop: {in: [[[1], [2], [3]], [[4], [5]]], iterator: a, loop: {in: "{{ iter.a }}", iterator: b, spec: {until: "{{ UNTIL }}"}, loop: {in: "{{ iter.b }}", iterator: c}}}
    tool: {kind: noop}
"""


@pytest.mark.parametrize(
    ("until", "ended"),
    [("loop_index == 1", [1, 2, 4, 5]), ("iter.parent.index == 0", [1, 4, 5]), ("iter.last", [1, 2, 3, 4, 5])],
)
def test_until_of_a_loop_inside_another_one_reads_its_own_index(until, ended):
    harness = Harness(CUBE.replace("UNTIL", until)).run()
    assert [order.items[-1].value for order in harness.orders] == ended


TASKS = """
workflow:
  - {step: start, tool: {kind: noop}, next: {arcs: [{step: end, set: {ctx.found: "{{ NAME.results.t.data }}"}}]}}
  - {step: end, tool: {kind: noop}}
"""


@pytest.mark.parametrize("name", ["output", "outcome", "result", "start"])
def test_an_arc_reads_the_results_of_the_tasks_of_its_step(name):
    harness = Harness(TASKS.replace("NAME", name))
    harness.script = {"start": lambda harness, order: finished(order, ok(1), results={"t": ok(7)})}
    harness.run()
    assert (harness.status, harness.state.ctx) == ("success", {"found": 7})
