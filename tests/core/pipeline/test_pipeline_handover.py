"""A pipeline that changes workers after any of its tasks has the same events as on one worker."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_harness import LOOP, PipelineRun, one_item, playbook, rule, sets, task

from noetl.core.model.events import TaskDone
from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.playbook import Block, Loop, Rule, Task
from noetl.core.model.position import Position

LABELS = ("a", "b", "c", "d")

GUARDS = st.sampled_from(
    [
        None,
        "{{ output.status == 'error' }}",
        "{{ _visit < 3 }}",
        "{{ _attempt < 2 }}",
        "{{ (iter.n | default(0)) > 4 }}",
        "{{ _prev is defined and _prev.v | default(0) > 2 }}",
        "{{ (ctx.t | default(0)) % 2 == 1 }}",
        "{{ a.v | default(1) == 1 }}",
        "{{ (step.s | default(0)) < 3 }}",
    ]
)
VALUES = {
    "iter_n": "{{ (iter.n | default(0)) + 1 }}",
    "ctx_t": "{{ (ctx.t | default(0)) + output.data.v | default(1) }}",
    "step_s": "{{ (step.s | default(0)) + 1 }}",
}


@st.composite
def rules(draw: Any, labels: tuple[str, ...]) -> list[Rule] | None:
    if draw(st.booleans()):
        return None
    made = []
    for _ in range(draw(st.integers(0, 3))):
        do = draw(st.sampled_from(["continue", "retry", "jump", "break", "fail"]))
        written = draw(st.sets(st.sampled_from(sorted(VALUES)), max_size=2))
        then: dict[str, Any] = {"assignments": sets(**{key: VALUES[key] for key in sorted(written)})}
        if do == "jump":
            then["to"] = draw(st.sampled_from(labels))
        if do == "retry":
            then["attempts"] = draw(st.integers(1, 3))
        made.append(rule(draw(GUARDS), do, **then))
    if draw(st.booleans()):
        made.insert(0, rule("{{ (iter.n | default(0)) == 2 }}", "skip"))
    return made


@st.composite
def programs(draw: Any, *, inside: bool = False) -> tuple[Task, ...]:
    labels = LABELS[: draw(st.integers(1, 2 if inside else 4))]
    made = []
    for label in labels:
        written = draw(st.sets(st.sampled_from(sorted(VALUES)), max_size=2))
        reads = draw(
            st.sampled_from(
                ["{{ _prev.v | default('-') }}", "{{ output.status | default('-') }}", "{{ b.v | default('-') }}"]
            )
        )
        fields: dict[str, Any] = {
            "rules": draw(rules(labels)),
            "assignments": sets(**{key: VALUES[key] for key in sorted(written)}),
            "input": {"x": reads, "i": "{{ iter.n | default(0) }}{{ step.s | default(0) }}{{ ctx.t | default(0) }}"},
        }
        if not inside and draw(st.integers(0, 3)) == 0:
            made.append(
                task(
                    label,
                    "workbook",
                    **{
                        **fields,
                        "input": {"block": draw(st.sampled_from(["plain", "loop"])), "x": "{{ ctx.t | default(0) }}"},
                    },
                )
            )
        else:
            made.append(task(label, **fields))
    return tuple(made)


def outcome_of(action: Any) -> Outcome:
    """The outcome of a task, determined by its task run id alone."""
    number = sum(map(ord, action.task_run_id)) % 7
    return error("timeout", f"slow {number}", data={"v": number}) if number in (2, 5) else ok({"v": number})


def canonical(events: list[Any]) -> list[Any]:
    actual = []
    for event in events:
        if isinstance(event, TaskDone):
            event = msgspec.structs.replace(event, position=None)
        actual.append(event)
    return actual


@settings(max_examples=100, deadline=None)
@given(programs(), programs(inside=True), programs(inside=True), st.integers(1, 4))
def test_a_run_that_changes_workers_repeatedly_has_the_same_events_as_on_one_worker(tasks, plain, loop, every):
    blocks = [
        Block(name="plain", tasks=plain, max_task_runs=12, assignments=sets(ctx_t="{{ (ctx.t | default(0)) + 10 }}")),
        Block(
            name="loop",
            tasks=loop,
            max_task_runs=12,
            loop=Loop(collection="{{ [1, 2] }}", iterator="row"),
            failure="best_effort",
        ),
    ]
    book = playbook(*tasks, blocks=blocks, loop=LOOP, max_task_runs=15)
    whole = PipelineRun(book, **one_item("e")).run(outcome_of)
    events: list[Any] = []
    position: Position | None = None
    ctx: dict[str, Any] = {}
    for _ in range(2000):
        turn = PipelineRun(book, position=position, ctx=ctx, **one_item("e"))
        turn.frame.nondeterminism = whole.frame.nondeterminism
        turn.run(outcome_of, stop_after=every)
        if turn.finished is None and turn.position is None:
            turn.run(outcome_of)  # the task that ends a pipeline has no position: its end follows at once
        events += turn.events
        if turn.finished is not None:
            break
        position = msgspec.json.decode(msgspec.json.encode(turn.position), type=Position)
    for actual, expected in zip(canonical(events), canonical(whole.events), strict=False):
        assert actual == expected
    assert len(events) == len(whole.events)
