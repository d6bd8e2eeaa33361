"""Commands to copies of a state: what the engine would decide, beside what an execution goes on with.

A probe restores a copy from the snapshot and sends it a few random commands, also wrong ones: reports of other runs and
epochs, repeated and contradicting reports, unknown keys, wrong roles. The log has a checksum of everything decided.
"""

from __future__ import annotations

import random
from typing import Any
from zlib import crc32

import msgspec
from engine_harness import Harness

from noetl.core.engine import commands
from noetl.core.engine.advance import fold, give_up
from noetl.core.engine.capacity import Capacity
from noetl.core.engine.concurrency_keys import SUSPECTS
from noetl.core.engine.decision import Decision
from noetl.core.engine.effects import DataRequest, Effect, ValidateSynthesis
from noetl.core.engine.outstanding import leases
from noetl.core.engine.snapshot import decode_state, encode_state
from noetl.core.engine.state import Run
from noetl.core.model import events
from noetl.core.model.outcome import ErrorInfo, Outcome, error, ok
from noetl.core.model.position import Position
from noetl.core.model.quotas.token_bucket import Demand
from noetl.core.model.work import Report
from noetl.errors import PayloadUnavailable

_encode = msgspec.json.Encoder(enc_hook=str, order="sorted").encode
_TASK_EVENTS = (events.TaskStarted, events.TaskDone, events.TaskProgress, events.ChildRequested, events.WaitStarted)
_RUN_ENDS = (events.StepDone, events.StepFailed, events.IterationDone, events.IterationFailed)


class Probe(Harness):
    """A copy of an execution that receives random commands."""

    def __init__(self, source: Harness, chance: random.Random) -> None:
        super().__init__(source.playbook, watch=False, validate=source.validate)
        if chance.random() < 0.3:
            self.state = fold(source.playbook, source.log)
        else:
            self.state = decode_state(source.playbook, encode_state(source.state))
        self.at, self.stored, self.log = source.at, dict(source.stored), list(source.log)
        self.chance = chance
        self.noted: list[Any] = []

    def _perform(self, effect: Effect) -> None:
        """Only the decisions matter."""

    def send(self, *sent: commands.Command, at: float | None = None, conflict: str | None = None) -> Decision:
        """Advance, and note what was decided."""
        decision = super().send(*sent, at=at, conflict=conflict)
        self._note(sent, decision)
        return decision

    def continue_later(self) -> None:
        """Half of the time other commands arrive before."""
        if self.chance.random() < 0.5:
            super().continue_later()

    def _note(self, sent: tuple[commands.Command, ...], decision: Decision) -> None:
        reached = {key: f"the limit of {key}" for key in (*self.state.net.all_concurrency_keys(), SUSPECTS)}
        known = self.chance.sample(sorted(reached), self.chance.randint(0, len(reached)))
        noted = self.record(sent, decision, reached={key: reached[key] for key in known})
        self.noted.append([sent, noted])

    def result(self) -> str:
        """Send commands up to three times; the names of the first ones and the checksum of all decisions."""
        chance = self.chance
        kind = chance.random()
        if kind < 0.1:
            self._give_up()
        elif kind < 0.2:
            self._lose_workers()
        else:
            for _ in range(chance.randint(1, 3)):
                keys = (*self.state.net.all_concurrency_keys(), SUSPECTS)
                allowed = {key: chance.randint(0, 2) for key in keys if chance.random() < 0.7}
                contended = frozenset(key for key in keys if chance.random() < 0.2)
                self.capacity = Capacity(allowed, contended) if chance.random() < 0.3 else None
                sent = [self._command() for _ in range(chance.choice([1, 1, 1, 2, 3]))]
                sent += [each for each in sent if chance.random() < 0.3]
                conflict = "another execution has changed it" if chance.random() < 0.1 else None
                self.send(*sent, at=self.at + chance.choice([0, 1, 10, 1000]), conflict=conflict)
        return f"{self.noted[0][1]['commands']} {crc32(_encode(self.noted)):08x}"

    def _give_up(self) -> None:
        decision = give_up(self.state, ErrorInfo("internal", "a defect"), at=self.at + 1)
        self._note((), decision)

    def _lose_workers(self) -> None:
        """Lose one worker of a run after the other."""
        run_id = self._run_id()
        for _ in range(8):
            self.send(commands.ClaimRun("w9", run_id))
            held = [epoch for leased, epoch, _ in leases(self.state) if leased == run_id]
            if not held:
                return
            self.send(commands.ExpireLease(run_id, held[0], self.chance.random() < 0.1, self.chance.random() < 0.2))

    def _answer(self, request: DataRequest) -> Any:
        if isinstance(request, ValidateSynthesis) or self.chance.random() < 0.9:
            return super()._answer(request)
        return PayloadUnavailable("the payload is lost", kind="ref.unresolved")

    def _command(self) -> commands.Command:
        chance, state = self.chance, self.state
        key = chance.choice(["", "k1", "k2", "k3"])
        makers = [
            lambda: self._report(),
            lambda: self._report(),
            lambda: self._report(),
            lambda: self._signal(key),
            lambda: commands.ClaimRun(chance.choice(["w1", "w2", "w3"]), self._run_id()),
            lambda: commands.ClaimAnyRun(
                chance.choice(["w1", "w2", "w3"]),
                chance.randint(0, 4),
                chance.choice([None, None, "light"]),
                chance.randint(1, 3),
                chance.choice([(), ("zone=eu",), ("gpu=true", "zone=eu")]),
                chance.randint(0, 4),
            ),
            lambda: self._lease_end(),
            lambda: commands.CancelExecution(
                chance.choice(["", "enough"]),
                chance.choice([None, None, ErrorInfo("limit", "too slow")]),
                chance.random() < 0.6,
                key,
            ),
            lambda: commands.PauseExecution(chance.choice(["", "lunch"]), key),
            lambda: commands.ResumeExecution(chance.choice(["", "back"]), key),
            lambda: commands.FireTimer(),
            lambda: self._child(),
            lambda: commands.StartExecution(events.ExecutionRequested("digest", state.playbook.path)),
        ]
        return chance.choices(makers, [3, 3, 3, 3, 2, 3, 3, 1, 1, 1, 3, 3, 0.2])[0]()

    def _run_id(self) -> str:
        state = self.state
        found = [*sorted(state.open), *state.looping, "none", "none/1"]
        for step_run_id in state.looping:
            for loop in state.runs[step_run_id].loops.values():
                found += (loop.id_of(self.chance.randint(0, loop.count + 1)) for _ in range(4))
                found += [f"{step_run_id}/x", f"{loop.id_of(0)}.0", f"{step_run_id}/-1", f"{step_run_id}/00"]
        return self.chance.choice(found)

    def _lease_end(self) -> commands.Command:
        chance = self.chance
        run_id, epoch, _ = chance.choice([*leases(self.state), ("none", 1, "")])
        epoch += chance.choice([0, 0, 0, 1, -1])
        if chance.random() < 0.3:
            return commands.ReturnRun(run_id, epoch, begun=chance.random() < 0.5)
        return commands.ExpireLease(run_id, epoch, chance.random() < 0.2, chance.random() < 0.3)

    def _child(self) -> commands.Command:
        chance = self.chance
        key = chance.choice([*self.state.children, "none"])
        child = chance.choice(["901", "902"])
        outcome = chance.choice([ok({"n": 1}), error("server_error", "it failed"), ok()])
        return chance.choice(
            [
                commands.RecordChildStart(key, child),
                commands.RecordChildWait(key, child, chance.random() < 0.6, chance.randint(1, 9)),
                commands.RecordChildEnd(key, child, outcome, chance.random() < 0.5),
            ]
        )

    def _signal(self, key: str) -> commands.Command:
        chance = self.chance
        waits = self.state.waits
        names = [wait.request.signal for wait in waits.values() if wait.request.signal is not None]
        payloads = [{"n": 1}, {"approved": True}, {"approved": "yes"}, {"state.cursor": 3}, {}, {"a.b": 1, "from": "x"}]
        return commands.SendSignal(
            chance.choice(["go", "answer", "approve", "odd", "", *names]),
            chance.choice(payloads),
            chance.choice(["", "ann"]),
            chance.choice([None, (), ("user",), ("operator",), ("admin", "user")]),
            chance.choice(["", "", "", "none", *waits]),
            key,
        )

    # ── reports ─────────────────────────────────────────────────────────────────────────

    def _report(self) -> commands.Command:
        chance, state = self.chance, self.state
        runs = [state.open[run_id] for run_id in sorted(state.open)]
        if not runs or chance.random() < 0.1:
            ended = sorted(record.last for record in state.steps.values() if record.last is not None)
            return commands.ReportRun(Report(chance.choice([*ended, "none"]), 1, 1, self._ends_again()))
        run = chance.choice(runs)
        other = chance.choice(runs) if chance.random() < 0.05 else run
        sent = tuple(self._event(other) for _ in range(chance.choice([0, 1, 1, 2, 2, 3, 4])))
        if run.latest and chance.random() < 0.3:
            sent = (*run.latest, *sent)
        return commands.ReportRun(Report(run.id, run.epoch + chance.choice([0] * 9 + [1, -1]), 1, sent))

    def _ends_again(self) -> tuple[events.Event, ...]:
        """The event that ended a run, as it was or with another output."""
        ends = [each.body for each in self.log if isinstance(each.body, _RUN_ENDS)]
        if not ends:
            return ()
        last: Any = self.chance.choice(ends)
        return (msgspec.structs.replace(last, output=ok("other")) if self.chance.random() < 0.3 else last,)

    def _event(self, run: Run) -> events.Event:
        chance = self.chance
        step = run.step_run.step
        kinds = _TASK_EVENTS if chance.random() < 0.6 else _RUN_ENDS
        where: dict[str, Any] = {"step": step.name, "step_run_id": run.step_run.id}
        kind: Any = chance.choice(kinds)
        if kind in (events.StepDone, events.StepFailed):
            where["step_run_id"] = run.id if chance.random() < 0.2 else run.step_run.id
        else:
            where["path"] = run.path
        if chance.random() < 0.05:
            where |= chance.choice([{"step": "other"}, {"step_run_id": "other"}, {"path": (7,)}])
            where = {name: value for name, value in where.items() if name in kind.__struct_fields__}
        return kind(**where, **(self._of_task(kind, run) if kind in _TASK_EVENTS else self._of_end(kind)))

    def _of_task(self, kind: Any, run: Run) -> dict[str, Any]:
        chance = self.chance
        names = [task.name for task in run.step_run.step.tasks] or ["t"]
        name = chance.choice(names)
        fields: dict[str, Any] = {"task": name, "visit": chance.randint(1, 2), "attempt": chance.randint(1, 3)}
        position = Position(chance.choice([None, *names]), attempt=chance.randint(1, 3))
        if kind is events.TaskStarted:
            return {**fields, "kind": chance.choice(["python", "python", "workbook"])}
        if kind is events.TaskDone:
            keys = [*run.step_run.step.reads, "n", "n.a", "sum", "all", "at", "state.cursor"]
            written = {chance.choice(keys): chance.choice([1, 2, "x", [1], {"b": 2}]) for _ in range(2)}
            patch = chance.choice([{}, {"ctx": written}, {"ctx": written, "iter": {"x": 1}}, {"step": {"seen": 2}}])
            delay = chance.choice([0.0, 0.0, 5.0])
            outcome = self._outcome()
            return {
                **fields,
                "kind": "python",
                "outcome": outcome,
                "delay": delay,
                "patch": patch,
                "position": position,
            }
        if kind is events.ChildRequested:
            timeout = chance.choice([None, 5.0])
            return {
                **fields,
                "playbook": "other",
                "wait": chance.random() < 0.8,
                "timeout_s": timeout,
                "position": position,
            }
        if kind is events.WaitStarted:
            quota = chance.choice([None, None, Demand("partner", 2.0, 1)])
            until = self.at + 5 if quota is not None else chance.choice([None, self.at + 5])
            signal = None if quota is not None else chance.choice([None, "go", "approve"])
            timeout = chance.choice([None, 3.0, 50.0])
            return {
                **fields,
                "signal": signal,
                "until": until,
                "timeout_s": timeout,
                "quota": quota,
                "position": position,
            }
        return fields

    def _of_end(self, kind: Any) -> dict[str, Any]:
        chance = self.chance
        fields: dict[str, Any] = {"output": self._outcome(), "by_server": chance.random() < 0.1}
        if kind is events.StepFailed:
            fields["fatal"] = chance.random() < 0.1
        if kind in (events.StepDone, events.StepFailed):
            fields["patch"] = chance.choice([{}, {}, {"n": 1}, {"n.a": 2, "end": "x"}])
            fields["input"] = chance.choice([{}, {"seat": 5}])
        else:
            fields["step_patch"] = chance.choice([{}, {"seen": 1}, {"seen": {"a": 1}, "x": 2}])
        if kind is events.IterationDone:
            fields |= {"stop": chance.random() < 0.2, "skipped": chance.random() < 0.2}
        if kind is events.IterationFailed:
            fields["item"] = chance.choice([None, 3])
        return fields

    def _outcome(self) -> Outcome:
        chance = self.chance
        if chance.random() < 0.3:
            return error(chance.choice(["timeout", "python", "ambiguous"]), "it broke")
        http = {"http": {"status": 200, "headers": {"a": "b"}}}
        return Outcome("ok", data=chance.choice([None, 1, [1, 2], {"n": 2}]), helpers=chance.choice([{}, {}, http]))
