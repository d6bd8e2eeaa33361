"""Random executions of random nets: the invariants hold in every case.

A seed determines a playbook (arcs, gates, joins, loops, cycles) and the inputs (reorderings, lost workers, repeated
reports, pauses, signals, timers). The harness compares live and folded state after every event; here the rest is
checked: the execution ends exactly once, later reports are rejected, no effect is outstanding.
"""

from __future__ import annotations

import random

import pytest
from engine_harness import Harness, finished, task_done
from state_machines import observed, transitions

from noetl.core.engine.advance import outstanding
from noetl.core.engine.commands import (
    CancelExecution,
    ClaimAnyRun,
    ExpireLease,
    FireTimer,
    PauseExecution,
    ResumeExecution,
    ReturnRun,
    SendSignal,
)
from noetl.core.engine.outstanding import leases, next_due
from noetl.core.engine.snapshot import decode_state, encode_state
from noetl.core.model.events import NextEvaluated, StepScheduled, StepSkipped, WorkflowStarted
from noetl.core.model.outcome import error, ok
from noetl.core.model.playbook import (
    Admission,
    AdmitRule,
    Arc,
    Assignment,
    Executor,
    Limits,
    Loop,
    Playbook,
    Router,
    Step,
    Task,
)
from noetl.core.model.position import Position

GUARDS = [
    None,
    None,
    None,
    "{{ event.name == 'step.failed' }}",
    "{{ output.status == 'ok' and output.data != 3 }}",
    "{{ ctx.n | default(0) < 4 }}",
    "{{ event.name == 'loop.done' }}",
    "{{ true }}",
]
GATES = ["{{ ctx.n | default(0) > 1 }}", "{{ done('s1') }}", "{{ false }}", "{{ true }}", "{{ not running('s2') }}"]


def make_playbook(chance: random.Random) -> Playbook:
    count = chance.randint(2, 9)
    names = [f"s{number}" for number in range(count)]
    steps = []
    for number, name in enumerate(names):
        arcs = []
        for target in chance.sample(names, min(count, chance.choice([0, 1, 1, 2, 3]) if number else 2)):
            backwards = names.index(target) <= number
            when = "{{ ctx.n | default(0) < 3 }}" if backwards else chance.choice(GUARDS)
            sets = (
                (Assignment("ctx", ("n",), "{{ (ctx.n | default(0)) + 1 }}"),)
                if backwards or chance.random() < 0.2
                else ()
            )
            arcs.append(Arc(target, when, sets))
        loop = None
        if chance.random() < 0.25:
            inner = None
            if chance.random() < 0.3:
                inner = Loop("{{ range(iter.item) | list }}", "cell", chance.choice(["sequential", "parallel"]))
            loop = Loop(
                list(range(chance.randint(0, 5))),
                "item",
                chance.choice(["sequential", "parallel"]),
                max_in_flight=chance.choice([None, 1, 2, 10]),
                reduce=chance.choice([{}, {"total": "sum", "seen": "append"}]),
                inner=inner,
            )
        admission = Admission()
        if number and chance.random() < 0.3:
            admission = Admission(
                rules=tuple(AdmitRule(gate, True) for gate in chance.sample(GATES, chance.randint(0, 1))),
                on_deny=chance.choice(["park", "discard"]),
                join=chance.choice(["all", "each"]),
                once=chance.random() < 0.2,
            )
        tasks = () if chance.random() < 0.15 and loop is None else (Task("t", "noop"), Task("u", "noop"))
        steps.append(
            Step(
                name,
                admission=admission,
                loop=loop,
                tasks=tasks,
                router=Router(tuple(arcs), chance.choice(["exclusive", "inclusive"])),
                failure=chance.choice(["fail_fast", "best_effort"]),
                timeout_s=chance.choice([None, None, None, 500]),
                assignments=(Assignment("ctx", ("last",), name),) if chance.random() < 0.2 else (),
            )
        )
    executor = Executor(limits=Limits(max_step_runs=60))
    return Playbook("random", "tests/random", names[0], tuple(steps), executor=executor)


class RandomExecution:
    """An execution with random inputs."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.harness = Harness(make_playbook(self.chance))
        self.old: list = []  # reports that were sent, to be sent again

    def run(self) -> Harness:
        harness, chance = self.harness, self.chance
        harness.start()
        for _ in range(2_000):
            if harness.state.finished:
                break
            chance.choices(
                [self.work, self.lose, self.repeat, self.pause, self.signal, self.tick, self.return_run, self.cancel],
                [50, 5, 6, 1, 2, 2, 2, 0.2],
            )[0]()
            if harness.state.paused and chance.random() < 0.5:
                harness.queue = []
                harness.send(ResumeExecution())
        return harness

    def work(self) -> None:
        harness, chance = self.harness, self.chance
        held = list(leases(harness.state))
        if held and (chance.random() < 0.6 or not harness.queue):
            run_id = chance.choice(held)[0]
            return self.progress(run_id)
        if harness.queue and not harness.state.paused:
            if chance.random() < 0.3:
                replies = harness.send(ClaimAnyRun("w", chance.randint(1, 4))).replies
                taken = {order.run_id for order in replies[0].orders}
                harness.queue = [each for each in harness.queue if each.run_id not in taken]
                return None
            queued = harness.queue.pop(chance.randrange(len(harness.queue)))
            from noetl.core.engine.lease_rules import claim_rejection

            if claim_rejection(harness.state, queued.run_id) is None:
                harness.queue.insert(0, queued)
                harness.claim(queued.run_id)
        elif not held and not harness.state.paused:
            assert outstanding(harness.state), "not finished, although nothing is outstanding or leased"
        return None

    def progress(self, run_id: str) -> None:
        from noetl.core.engine.run_orders import order_of

        harness, chance = self.harness, self.chance
        order = order_of(harness.state, harness.state.open[run_id])
        if order.position is None and chance.random() < 0.5:
            ctx = chance.choice([{}, {}, {"total": 1}, {"seen": order.path}, {"x": chance.randint(0, 1)}, {"a.b": 1}])
            events = [task_done(order, "t", patch={"ctx": ctx} if ctx else {}, position=Position("u", task_runs=1))]
        else:
            outcome = error("server_error", "no") if chance.random() < 0.1 else ok(chance.randint(0, 4))
            extra = {"stop": True} if order.path and outcome.status == "ok" and chance.random() < 0.05 else {}
            events = finished(order, outcome, **extra)
        self.old.append((order, events))
        assert harness.report(order, *events).accepted

    def lose(self) -> None:
        held = list(leases(self.harness.state))
        if held:
            run_id, epoch, _ = self.chance.choice(held)
            stale = self.chance.random() < 0.3
            self.harness.send(ExpireLease(run_id, epoch - 1 if stale else epoch))

    def return_run(self) -> None:
        held = list(leases(self.harness.state))
        if held:
            run_id, epoch, _ = self.chance.choice(held)
            self.harness.send(ReturnRun(run_id, epoch))

    def repeat(self) -> None:
        if self.old:
            order, events = self.chance.choice(self.old)
            before = len(self.harness.log)
            if self.chance.random() < 0.3 and events:
                changed = finished(order, ok("something else entirely"))
                ack = self.harness.report(order, *changed)
                if ack.accepted:  # it was the first terminal report of the run
                    self.old.append((order, changed))
                return
            self.harness.report(order, *events)
            assert len(self.harness.log) == before, "a repetition changed the log"

    def pause(self) -> None:
        self.harness.send(PauseExecution())

    def signal(self) -> None:
        self.harness.send(SendSignal("s", {"n": self.chance.randint(0, 5)}))

    def tick(self) -> None:
        self.harness.send(FireTimer(), at=self.harness.at + self.chance.choice([1, 10, 600]))

    def cancel(self) -> None:
        self.harness.send(CancelExecution())


@pytest.mark.parametrize("seed", range(150))
def test_every_random_execution_ends_once_and_violates_no_invariant(seed):
    harness = RandomExecution(seed).run()
    state = harness.state
    assert state.finished, f"seed {seed} did not finish: {harness.names[-5:]}"
    names = harness.names
    assert names.count("workflow.finished") == names.count("playbook.processed") == 1
    assert names[-2:] == ["workflow.finished", "playbook.processed"]
    assert outstanding(state) == []
    assert next_due(state) is None
    assert not state.runs and not state.open and not state.queued and not state.waiting and not state.live
    assert encode_state(harness.refold()) == encode_state(state)
    assert encode_state(decode_state(harness.playbook, encode_state(state))) == encode_state(state)
    # Every token is consumed exactly once.
    created = ["t1"] if harness.of(WorkflowStarted) else []
    created += [arc.token for event in harness.of(NextEvaluated) for arc in event.arcs if arc.token]
    used = [token for event in harness.of(StepScheduled) for token in event.tokens]
    used += [event.token for event in harness.of(StepSkipped)]
    assert sorted(created) == sorted(used)
    # Every transition is in the documented state machines.
    for machine, transition in transitions(harness.playbook, harness.log):
        assert transition in observed()[machine]
