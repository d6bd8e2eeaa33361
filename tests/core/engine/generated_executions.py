"""Whole executions with the real pipeline and random events: what engine and pipeline decide, compared with stored logs.

The playbooks of the simulation, of `tests/playbooks` and of the scenarios run with tools that succeed and fail at random,
workers that are lost, return runs and report late, pauses, signals, timers, limits, children and cancellations. After each
decision `probes` sends further commands to copies of the state. The seed determines all of it. `python tests/core/engine/generated_executions.py` writes the logs again after an intended change and
prints the first difference of each execution; review it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml
from earlier_executions import rerun_of, undo_of
from engine_harness import HEAD, Harness
from probes import Probe
from small_limits import small_limits, with_small_limits

from noetl.core.engine import commands
from noetl.core.engine.advance import fold
from noetl.core.engine.attempt_ledger import AttemptLedger
from noetl.core.engine.capacity import Capacity
from noetl.core.engine.decision import Decision
from noetl.core.engine.declared_secrets import declared_secrets
from noetl.core.engine.effects import Effect, EnqueueRun, Synthesized, ValidateSynthesis
from noetl.core.engine.lease_rules import claim_rejection
from noetl.core.engine.outstanding import leases
from noetl.core.engine.snapshot import encode_state
from noetl.core.engine.state import State
from noetl.core.language.compile import compile_playbook, compile_steps
from noetl.core.model.events import Event, Parent, decode_body, encode_body
from noetl.core.model.outcome import error, ok
from noetl.core.model.playbook import Playbook
from noetl.core.model.work import Report
from tests.scripted_worker import KINDS, Nondeterminism, Worker
from tests.simulation.playbooks import TEXTS
from tests.stored_logs import plain, write

HERE = Path(__file__).parent
STORED = HERE / "scenarios" / "generated.json.xz"
MOST_ACTS = 120
SMALL = " with small limits"
PROBES = 2  # after each decision
LEAST_WORK = 60  # acts after which only work is done, so that most executions end


class Execution(Harness):
    """One execution whose events the seed determines; everything that is decided is noted."""

    def __init__(self, playbook: Playbook, seed: str, *, probed: bool = True) -> None:
        super().__init__(playbook, validate=self.validated)
        self.seed, self.probed = seed, probed
        self.chance = random.Random(seed)
        self.probing = random.Random(f"{seed} probes")
        self.failing = self.chance.choice([0.0, 0.1, 0.4])
        self.noted: list[Any] = []
        self.working: dict[str, Worker] = {}
        self.late: list[Worker] = []  # whose lease has ended
        self.sent: list[Report] = []
        self.born = 900
        self.nondeterminism = Nondeterminism()

    def send(self, *sent: commands.Command, at: float | None = None, conflict: str | None = None) -> Decision:
        """Advance, and note what was decided."""
        if self.chance.random() < 0.1:
            keys = [f"playbook {self.playbook.path}", "pool default"]
            allowed = {key: self.chance.randint(0, 3) for key in keys}
            self.capacity = Capacity(allowed, frozenset(self.chance.sample(keys, self.chance.randint(0, 1))))
        else:
            self.capacity = None
        decision = super().send(*sent, at=at, conflict=conflict)
        self.noted.append(self.record(sent, decision))
        if self.probed:
            self.noted.append([Probe(self, self.probing).result() for _ in range(PROBES)])
        for reply in decision.replies:
            for order in reply.orders:
                self.working[order.run_id] = Worker(order, self.state.playbook, self.failing, self.stored)
                self.queue = [each for each in self.queue if each.run_id != order.run_id]
        for effect in self.cancelled:
            if (stopped := self.working.pop(effect.run_id, None)) is not None:
                self.late.append(stopped)
        self.cancelled = []
        return decision

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, EnqueueRun):  # a late report has suspended the run, and nothing has claimed it since
            self.queue = [each for each in self.queue if each.run_id != effect.run_id]
        super()._perform(effect)

    def validated(self, request: ValidateSynthesis) -> Synthesized:
        """What the validator says about synthesized steps."""
        steps, diagnostics = compile_steps(request.nodes, self.playbook, KINDS)
        problems = tuple(each.message for each in diagnostics if each.severity == "error")
        return Synthesized(steps, steps[0].name if steps else None, problems)

    def request(self) -> dict[str, Any]:
        """A request: half of them have nothing but the playbook."""
        chance = random.Random(f"{self.seed} request")
        if not self.probed or chance.random() < 0.5:
            return {}
        steps = list(self.playbook.steps_by_name)
        payload = {key: chance.choice([value, 2, {"a": 1}]) for key, value in self.playbook.workload.items()}
        found: dict[str, Any] = {
            "payload": chance.choice([{}, payload, {"n": 2, "extra": {"a": [1]}}]),
            "parent": chance.choice([None, None, Parent("5", "5:call:1", "5:call:1#t.1.1", chance.randint(1, 40))]),
            "labels": chance.choice([{}, {"tenant": "acme"}, {"tenant": "acme", "team": "a"}]),
            "trace": chance.choice([None, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]),
            "entry_step": chance.choice([None] * 6 + [chance.choice(steps), "nowhere"]),
            "return_step": chance.choice([None] * 6 + [chance.choice(steps), "nowhere"]),
            "state": chance.choice([{}, {"cursor": 3, "count": 1}]) if self.playbook.uses_state else {},
        }
        kind = chance.random()
        if kind < 0.4:
            earlier = Execution(self.playbook, f"{self.seed} earlier", probed=False)
            earlier.play()
            self.stored |= earlier.stored
            if kind < 0.3:
                found["rerun"] = rerun_of(earlier, chance)
            else:
                found["compensates"] = undo_of(earlier, chance)
        return found

    def play(self) -> list[Any]:
        """Perform acts until the execution has ended."""
        self.start(**self.request())
        for count in range(MOST_ACTS):
            if self.state.finished:
                break
            if count < LEAST_WORK:
                acts = [
                    self.work,
                    self.lose,
                    self.give_back,
                    self.repeat,
                    self.act_late,
                    self.user,
                    self.tick,
                    self.child,
                ]
                self.chance.choices(acts, [60, 3, 3, 3, 4, 4, 4, 8])[0]()
            else:
                self.chance.choices([self.work, self.tick, self.child], [60, 6, 12])[0]()
            if self.state.paused and self.chance.random() < 0.5:
                self.queue = []
                self.send(commands.ResumeExecution(id=self.chance.choice(["", "r1", "r2"])))
        self.repeat()
        return self.noted

    def work(self) -> None:
        """Claim a run, or let a worker act and report."""
        chance = self.chance
        if self.queue and (not self.working or chance.random() < 0.4):
            if chance.random() < 0.4:
                claim = commands.ClaimAnyRun(
                    chance.choice(["w1", "w2"]),
                    chance.randint(1, 3),
                    pool=chance.choice([None, None, "light"]),
                    workers=chance.randint(1, 2),
                    labels=chance.choice([(), ("zone=eu",), ("gpu=true", "zone=eu")]),
                    capacity=3,
                )
            else:
                claim = commands.ClaimRun(chance.choice(["w1", "w2"]), chance.choice(self.queue).run_id)
                if claim_rejection(self.state, claim.run_id) is not None:
                    self.queue = [each for each in self.queue if each.run_id != claim.run_id]
            self.send(claim)
        elif self.working:
            self._act(self.working[chance.choice(sorted(self.working))])

    def _act(self, worker: Worker) -> None:
        for _ in range(self.chance.randint(1, 4)):
            if not worker.ended:
                worker.act(self.chance, self.at)
        if worker.notes:
            self.noted.append(msgspec.to_builtins(worker.notes, str_keys=True, enc_hook=str))
            worker.notes = []
        if worker.events and (worker.ended or worker.started or self.chance.random() < 0.7):
            events, worker.events = worker.events, []
            self._report(worker, events)

    def _report(self, worker: Worker, events: list[Event]) -> None:
        order = worker.order
        number = self.numbers[order.run_id] = self.numbers.get(order.run_id, 0) + 1
        sent = tuple(decode_body(each.NAME, each.VERSION, encode_body(each)) for each in events)
        report = Report(order.run_id, order.epoch, number, sent)
        self.sent.append(report)
        following = (commands.ClaimAnyRun("w1", self.chance.randint(1, 2)),) if self.chance.random() < 0.3 else ()
        if worker.ended:
            self.working.pop(order.run_id, None)
        reply = self.send(commands.ReportRun(report), *following).replies[0]
        if not reply.accepted or (reply.ack is not None and reply.ack.error):
            worker.ended = True
            if self.working.get(order.run_id) is worker:
                del self.working[order.run_id]

    def _leased(self) -> tuple[str, int] | None:
        held = sorted(each[:2] for each in leases(self.state))
        return self.chance.choice(held) if held else None

    def _end_lease(self, command: commands.Command, run_id: str) -> None:
        worker = self.working.pop(run_id, None)
        if worker is not None:
            self.late.append(worker)
        self.send(command)

    def lose(self) -> None:
        """Let a lease expire, also one of an old epoch."""
        held = self._leased()
        if held is not None:
            run_id, epoch = held
            if self.chance.random() < 0.2:
                self.send(commands.ExpireLease(run_id, epoch - 1))
            else:
                self._end_lease(commands.ExpireLease(run_id, epoch, self.chance.random() < 0.2), run_id)

    def give_back(self) -> None:
        """Let a worker return a run."""
        held = self._leased()
        if held is not None:
            begun = held[0] in self.working and self.working[held[0]].started is not None
            self._end_lease(commands.ReturnRun(*held, begun=begun), held[0])

    def repeat(self) -> None:
        """Send an earlier report again, or one with another body."""
        if self.sent:
            report = self.chance.choice(self.sent)
            if self.chance.random() < 0.3:
                report = msgspec.structs.replace(report, events=report.events[::-1])
            self.send(commands.ReportRun(report))

    def act_late(self) -> None:
        """Let a worker act whose lease has ended."""
        if self.late:
            self._act(self.chance.choice(self.late))

    def tick(self) -> None:
        """Let time pass."""
        if self.timer is not None and self.chance.random() < 0.6:
            self.send(commands.FireTimer(), at=max(self.at, self.timer))
        else:
            self.send(commands.FireTimer(), at=self.at + self.chance.choice([1, 10, 100]))

    def user(self) -> None:
        """Pause, signal or cancel."""
        chance = self.chance
        key = chance.choice(["", "k1", "k2"])
        waits = sorted(self.state.waits)
        signals = [wait.request.signal for wait in self.state.waits.values() if wait.request.signal]
        sent: list[commands.Command] = [
            commands.PauseExecution(reason="lunch", id=key),
            commands.SendSignal(chance.choice(["go", "answer"]), {"n": chance.randint(0, 3)}, by="ann", id=key),
            commands.SendSignal(chance.choice(signals or ["go"]), {"approved": True}, by="ann", roles=("operator",)),
            commands.SendSignal(wait=chance.choice(waits or ["none"]), payload={"a": 1}, by="ben", roles=("user",)),
            commands.SendSignal(chance.choice(signals or ["go"]), {"x": 1}, id="k3"),
        ]
        if chance.random() < 0.15:
            sent = [commands.CancelExecution("enough", compensate=chance.random() < 0.5, id=key)]
        self.send(chance.choice(sent))

    def child(self) -> None:
        """Start, wait for or end a child execution."""
        if self.children and self.chance.random() < 0.6:
            started = self.children.pop(self.chance.randrange(len(self.children)))
            self.born += 1
            self.send(commands.RecordChildStart(started.key, str(self.born)))
            return
        known = sorted(self.state.children)
        if known:
            key = self.chance.choice(known)
            born = self.state.children[key].child or ""
            if self.chance.random() < 0.3:
                waits = commands.RecordChildWait(key, born, self.chance.random() < 0.7, self.chance.randint(2, 9))
                self.send(waits)
                return
            outcome = error("server_error", "it failed") if self.chance.random() < self.failing else ok({"n": 1})
            self.children = [each for each in self.children if each.key != key]
            self.send(commands.RecordChildEnd(key, born, outcome, compensable=self.chance.random() < 0.5))


def playbooks() -> Iterator[tuple[str, str]]:
    """The names and texts of all playbooks."""
    yield from ((f"simulation {name}", text) for name, text in TEXTS.items())
    folder = HERE.parents[1] / "playbooks"
    yield from ((path.stem, path.read_text()) for path in sorted(folder.glob("*.yaml")))
    for name, scenario in yaml.safe_load((HERE / "scenarios" / "scenarios.yaml").read_text()).items():
        yield f"scenario {name}", HEAD + yaml.safe_dump(scenario["playbook"], sort_keys=False)
    for document in (HERE / "scenarios" / "constructs.yaml").read_text().split("\n---\n"):
        yield f"construct {yaml.safe_load(document)['metadata']['name']}", document


def compiled(name: str, text: str) -> Playbook | None:
    """The playbook of a text; None if it is one of an older version of the language."""
    made = compile_playbook(text, file=f"{name}.yaml", specs=KINDS)
    return made.playbook


def executions() -> dict[str, tuple[Playbook, str]]:
    """The playbook and the seed of every execution by name."""
    found = {}
    for name, text in playbooks():
        playbook = compiled(name, text)
        if playbook is not None:
            for number in range(16 if name.startswith("construct") else 4):
                seed = f"{name} {number}"
                if number % 2:
                    seed += SMALL
                    found[seed] = with_small_limits(playbook, random.Random(seed)), seed
                else:
                    found[seed] = playbook, seed
    return found


def played(playbook: Playbook, seed: str) -> list[Any]:
    """What was decided in an execution, as it is stored."""
    execution = Execution(playbook, seed)
    with small_limits(random.Random(seed)) if seed.endswith(SMALL) else contextlib.nullcontext():
        notes = execution.play()
        assert encode_state(fold(playbook, execution.log)) == encode_state(execution.state)
    return plain([static_facts(execution.state), *notes, violations_of(damaged(execution))])


def static_facts(state: State) -> dict[str, Any]:
    """What follows from the playbook alone: concurrency keys, secrets and endless cycles of its steps."""
    return {
        "keys": state.net.all_concurrency_keys(),
        "steps": {
            name: [
                state.net.concurrency_keys(name),
                sorted(declared_secrets(state.playbook, step)),
                state.net.endless(name),
            ]
            for name, step in state.net.steps.items()
        },
    }


def damaged(execution: Execution) -> Iterator[Event]:
    """The log with some events left out, repeated or moved."""
    moved: list[Event] = []
    for each in execution.log:
        kind = execution.chance.random()
        if kind >= 0.1:
            yield each.body
        if 0.1 <= kind < 0.25:
            moved.append(each.body)
        elif kind > 0.8 and moved:
            yield moved.pop(0)


def violations_of(log: Iterator[Event]) -> list[str]:
    """What the attempt ledger says about a log."""
    ledger = AttemptLedger()
    return [found for event in log for found in ledger.violations(event)]


if __name__ == "__main__":
    write(STORED, {name: played(*each) for name, each in executions().items()})
