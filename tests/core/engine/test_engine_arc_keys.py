"""Arc QoS: tokens with a `dedupe` key are merged, tokens with a `partition` key run one at a time and in order."""

from __future__ import annotations

import random

import pytest
from engine_harness import Harness

from noetl.core.engine.commands import ExpireLease
from noetl.core.engine.views.waiting import waiting_reasons
from noetl.core.model.events import StepDone, StepScheduled, TokenMerged
from noetl.core.model.outcome import ok

# Three branches send tokens to `work`; the key of each is that of its branch.
TEXT = """
workflow:
  - step: start
    next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}, {step: c}]}
  - {step: a, tool: {kind: noop}, next: {arcs: [{step: work, spec: {KEY: "{{ output.data }}"}}]}}
  - {step: b, tool: {kind: noop}, next: {spec: {policy: {KEY: "{{ output.data }}"}}, arcs: [{step: work}]}}
  - {step: c, tool: {kind: noop}, next: {arcs: [{step: work, spec: {KEY: "{{ output.data }}"}}]}}
  - {step: work, tool: {kind: noop}}
"""


def started(key: str, **data: str) -> Harness:
    """The three branches have ended in order; `work` waits for workers."""
    harness = Harness(TEXT.replace("KEY", key), {name: ok(value) for name, value in data.items()}).start()
    for _ in range(3):
        harness.complete(harness.claim())
    return harness


def test_tokens_with_an_equal_key_are_merged():
    harness = started("dedupe", a="x", b="x", c="y")
    assert [run.run_id for run in harness.queue] == ["77:work:1", "77:work:2"]
    (merged,) = harness.of(TokenMerged)
    assert (merged.into, merged.key) == ("77:work:1", "x")
    assert harness.work().status == "success"


def test_a_key_is_free_again_when_its_run_has_ended():
    harness = Harness(TEXT.replace("KEY", "dedupe"), {name: ok("x") for name in "abc"}).start()
    harness.complete(harness.claim())
    work = next(run for run in harness.queue if run.step == "work")
    harness.complete(harness.claim(work.run_id))
    harness.work()
    assert harness.scheduled.count("work") == 2


def test_tokens_of_one_partition_run_one_at_a_time_and_others_beside_them():
    harness = started("partition", a="x", b="x", c="y")
    assert [run.run_id for run in harness.queue] == ["77:work:1", "77:work:2"]
    assert "earlier tokens of partition" in " ".join(each.text for each in waiting_reasons(harness.state, harness.at))
    orders = [harness.claim(), harness.claim()]
    harness.complete(orders[1])
    assert harness.queue == []  # the partition of the first run is still busy
    harness.complete(orders[0])
    assert [run.run_id for run in harness.queue] == ["77:work:3"]
    assert harness.work().status == "success"


@pytest.mark.parametrize("seed", range(40))
def test_order_by_partition_holds_when_workers_are_lost_and_nothing_starves(seed: int):
    chance = random.Random(seed)
    branches = [f"b{number}" for number in range(12)]
    arcs = ", ".join(f"{{step: {name}}}" for name in branches)
    steps = "".join(
        f'\n  - {{step: {name}, tool: {{kind: noop}}, next: {{arcs: [{{step: work, spec: {{partition: "{{{{ output.data }}}}"}}}}]}}}}'
        for name in branches
    )
    text = (
        f"workflow:\n  - step: start\n    next: {{spec: {{mode: inclusive}}, arcs: [{arcs}]}}{steps}"
        "\n  - {step: work, tool: {kind: noop}}\n"
    )
    keys = {name: chance.choice("xyz") for name in branches}
    harness = Harness(text, {name: ok(key) for name, key in keys.items()}, watch=False).start()
    held = []
    while harness.queue or held:
        action = chance.random()
        if harness.queue and (not held or action < 0.5):
            held.append(harness.claim(chance.choice(harness.queue).run_id))
        elif action < 0.65 and held[-1].lost < 2:
            lost = held.pop(chance.randrange(len(held)))
            if lost.lost < 2:
                harness.send(ExpireLease(lost.run_id, lost.epoch))
            else:
                harness.complete(lost)
        else:
            harness.complete(held.pop(chance.randrange(len(held))))
    assert harness.status == "success"
    assert harness.scheduled.count("work") == len(branches)
    made = [choice for event in harness.log for choice in getattr(event.body, "arcs", ()) if choice.target == "work"]
    partition = {choice.token: choice.partition for choice in made}
    running: dict[str, str] = {}
    entered: dict[str, list[str]] = {}
    for event in harness.log:
        body = event.body
        if isinstance(body, StepScheduled) and body.step == "work":
            key = partition[body.tokens[0]]
            assert key not in running, "two runs of one partition at the same time"
            running[key] = body.step_run_id
            entered.setdefault(key, []).append(body.tokens[0])
        elif isinstance(body, StepDone) and body.step == "work":
            running = {key: run for key, run in running.items() if run != body.step_run_id}
    for key, tokens in entered.items():
        assert tokens == [choice.token for choice in made if choice.partition == key]
