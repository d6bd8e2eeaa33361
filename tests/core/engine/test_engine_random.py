"""Random nets, random worlds: whatever happens, the promises hold.

A seed makes a playbook (arcs, gates, joins, loops, circles) and a world (reorderings, lost workers, repeated
reports, pauses, signals, timers). After every event the driver compares live and folded state; here
the rest is checked: it ends exactly once, nothing is believed afterwards, nothing is owed.
"""

from __future__ import annotations

import random

import pytest
from engine_play import Play, finished, task_done

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


class World:
    """A world that does whatever its dice say."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.play = Play(make_playbook(self.chance))
        self.old: list = []  # reports that were sent, to be sent again

    def run(self) -> Play:
        play, chance = self.play, self.chance
        play.start()
        for _ in range(2_000):
            if play.state.finished:
                break
            chance.choices(
                [self.work, self.lose, self.repeat, self.pause, self.signal, self.tick, self.give_back, self.cancel],
                [50, 5, 6, 1, 2, 2, 2, 0.2],
            )[0]()
            if play.state.paused and chance.random() < 0.5:
                play.queue = []
                play.tell(ResumeExecution())
        return play

    def work(self) -> None:
        play, chance = self.play, self.chance
        held = list(leases(play.state))
        if held and (chance.random() < 0.6 or not play.queue):
            run_id = chance.choice(held)[0]
            return self.progress(run_id)
        if play.queue and not play.state.paused:
            if chance.random() < 0.3:
                replies = play.tell(ClaimAnyRun("w", chance.randint(1, 4))).replies
                taken = {order.run_id for order in replies[0].orders}
                play.queue = [each for each in play.queue if each.run_id not in taken]
                return None
            queued = play.queue.pop(chance.randrange(len(play.queue)))
            from noetl.core.engine.lease_rules import claim_rejection

            if claim_rejection(play.state, queued.run_id) is None:
                play.queue.insert(0, queued)
                play.take(queued.run_id)
        elif not held and not play.state.paused:
            assert outstanding(play.state), "nothing is owed, nothing is held, and it is not finished"
        return None

    def progress(self, run_id: str) -> None:
        from noetl.core.engine.run_orders import order_for

        play, chance = self.play, self.chance
        order = order_for(play.state, run_id)
        if order.position is None and chance.random() < 0.5:
            ctx = chance.choice([{}, {}, {"total": 1}, {"seen": order.path}, {"x": chance.randint(0, 1)}, {"a.b": 1}])
            events = [task_done(order, "t", patch={"ctx": ctx} if ctx else {}, position=Position("u", task_runs=1))]
        else:
            outcome = error("server_error", "no") if chance.random() < 0.1 else ok(chance.randint(0, 4))
            extra = {"stop": True} if order.path and outcome.status == "ok" and chance.random() < 0.05 else {}
            events = finished(order, outcome, **extra)
        self.old.append((order, events))
        assert play.report(order, *events).accepted

    def lose(self) -> None:
        held = list(leases(self.play.state))
        if held:
            run_id, epoch, _ = self.chance.choice(held)
            stale = self.chance.random() < 0.3
            self.play.tell(ExpireLease(run_id, epoch - 1 if stale else epoch))

    def give_back(self) -> None:
        held = list(leases(self.play.state))
        if held:
            run_id, epoch, _ = self.chance.choice(held)
            self.play.tell(ReturnRun(run_id, epoch))

    def repeat(self) -> None:
        if self.old:
            order, events = self.chance.choice(self.old)
            before = len(self.play.log)
            if self.chance.random() < 0.3 and events:
                changed = finished(order, ok("something else entirely"))
                verdict = self.play.report(order, *changed)
                if verdict.accepted:  # it was the first to say how the run ended
                    self.old.append((order, changed))
                return
            self.play.report(order, *events)
            assert len(self.play.log) == before, "a repetition changed the log"

    def pause(self) -> None:
        self.play.tell(PauseExecution())

    def signal(self) -> None:
        self.play.tell(SendSignal("s", {"n": self.chance.randint(0, 5)}))

    def tick(self) -> None:
        self.play.tell(FireTimer(), at=self.play.at + self.chance.choice([1, 10, 600]))

    def cancel(self) -> None:
        self.play.tell(CancelExecution())


@pytest.mark.parametrize("seed", range(150))
def test_every_random_execution_ends_once_and_keeps_its_promises(seed):
    play = World(seed).run()
    state = play.state
    assert state.finished, f"seed {seed} did not finish: {play.names[-5:]}"
    names = play.names
    assert names.count("workflow.finished") == names.count("playbook.processed") == 1
    assert names[-2:] == ["workflow.finished", "playbook.processed"]
    assert outstanding(state) == []
    assert next_due(state) is None
    assert not state.runs and not state.open and not state.queued and not state.waiting and not state.live
    assert encode_state(play.refold()) == encode_state(state)
    assert encode_state(decode_state(play.playbook, encode_state(state))) == encode_state(state)
    # Every token that was made was consumed exactly once.
    made = ["t1"] if play.of(WorkflowStarted) else []
    made += [arc.token for event in play.of(NextEvaluated) for arc in event.arcs if arc.token]
    used = [token for event in play.of(StepScheduled) for token in event.tokens]
    used += [event.token for event in play.of(StepSkipped)]
    assert sorted(made) == sorted(used)
