"""Whole logs of pipelines: every event, tool call and wait of a scenario, compared with a stored one.

Each scenario also runs with a worker that is lost in every task, and is ended from outside in each of its tasks in turn.
`python tests/core/pipeline/pipeline_logs.py` writes the logs again after an intended change; review the difference.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml
from pipeline_harness import FixedNondeterminism

from noetl.core.language.compile import compile_playbook
from noetl.core.model.events import Event, TaskDone
from noetl.core.model.outcome import Outcome, error, error_info
from noetl.core.model.position import Item, Position
from noetl.core.model.reference import Reference, ReferenceMeta, stored_marker
from noetl.core.model.tool import ToolSpec
from noetl.core.model.work import RunContext, RunOrder
from noetl.core.pipeline.actions import Finished, KnownOutcome, RunTask, Suspend, TakeToken, Wait
from noetl.core.pipeline.advance import abort, abort_calls, apply_outcome, final_tasks, next_action, start_final
from noetl.core.pipeline.frame import Frame, open_frame
from noetl.core.pipeline.nondeterminism_log import NondeterminismLog
from noetl.core.pipeline.program import Programs
from noetl.core.pipeline.quotas import token_taken, wait_for_token
from noetl.core.pipeline.scopes import NeedsSecret, SharedScope
from noetl.core.templates.views import NeedsPayload, NeedsReference
from noetl.errors import TemplateError
from noetl.tools.noop.spec import SPEC as NOOP
from noetl.tools.playbook.spec import SPEC as PLAYBOOK
from noetl.tools.python.spec import SPEC as PYTHON
from noetl.tools.wait.spec import SPEC as WAIT
from noetl.tools.workbook.spec import SPEC as WORKBOOK
from tests.stored_logs import plain, write

HTTP = ToolSpec(kind="http", open_fields=True, helpers={"http": {"status": None}})
LOGS = Path(__file__).parent / "logs"
INTERRUPTED = LOGS / "interrupted.json.xz"
KINDS = {each.kind: each for each in (NOOP, PLAYBOOK, PYTHON, WAIT, WORKBOOK)} | {"http": HTTP}
HEAD = {"apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": "p", "path": "p"}}
STORED = {"rows": [1, 2, 3], "name": "stored", "small": 4}


def stored() -> Reference:
    """The reference of a payload that is not in the log."""
    return Reference("blob", {"key": "k"}, ReferenceMeta(sha256="5" * 64, bytes=100, content_type="application/json"))


def located(needed: NeedsReference) -> Reference | TemplateError:
    """The reference of data that a template has stored; data that says so cannot be stored."""
    if needed.data == "too large":
        return TemplateError("the store is full", kind="limit")
    meta = ReferenceMeta(sha256=needed.key, bytes=len(needed.encoded), content_type="application/json")
    return Reference("blob", {"key": needed.key}, meta)


class Forgetful(dict[str, Any]):
    """Stored payloads of which one read, by its number, finds nothing."""

    def __init__(self, missed: int) -> None:
        super().__init__()
        self.left = missed

    def __contains__(self, key: object) -> bool:
        self.left -= 1
        return self.left != 0

    def __missing__(self, key: str) -> Any:
        return STORED


def source_names(scenario: dict[str, Any]) -> list[str]:
    """The names of steps before the step, each with a stored result that is fetched when it is first read."""
    return [f"r{number}" for number in range(scenario.get("sources", 0))]


def playbook_of(scenario: dict[str, Any]) -> dict[str, Any]:
    """The playbook of a scenario with the steps before its own."""
    names = source_names(scenario)
    steps = [
        {"step": name, "tool": {"kind": "noop"}, "next": {"arcs": [{"step": following}]}}
        for name, following in itertools.pairwise([*names, "s"])
    ]
    return {**scenario["playbook"], "workflow": steps + scenario["playbook"]["workflow"]}


class Shell:
    """A worker without I/O: performs the actions of one run and notes all of them."""

    def __init__(
        self, scenario: dict[str, Any], *, drop_data: bool = False, change_workers: bool = False, forget: bool = False
    ) -> None:
        made = compile_playbook(
            yaml.safe_dump(HEAD | playbook_of(scenario), sort_keys=False), file="p.yaml", specs=KINDS
        )
        assert made.playbook is not None, [each for each in made.diagnostics if each.severity == "error"]
        self.book = made.playbook
        self.scenario = scenario
        self.drop_data, self.change_workers, self.forget = drop_data, change_workers, forget
        self.source = FixedNondeterminism()
        self.left = {name: list(each) for name, each in scenario.get("tools", {}).items()}
        self.resumes = list(scenario.get("resume", ()))
        self.log: list[Any] = []
        self.positions = 0
        given = scenario.get("order", {})
        stored_results = dict.fromkeys(source_names(scenario), "STORED")
        results = {name: self._outcome(each) for name, each in {**given.get("results", {}), **stored_results}.items()}
        self.context = RunContext(
            id="1", playbook="d", execution_id="1", step="s", step_run_id="1:s:1", workload=given.get("workload", {}),
            args=given.get("args", {}), input=given.get("input", {}), results=results,
            defer_input=given.get("defer_input", False),
        )  # fmt: skip
        items = tuple(msgspec.convert(each, Item) for each in given.get("items", ()))
        ctx = {
            key: stored_marker(stored()) if value == "STORED" else value for key, value in given.get("ctx", {}).items()
        }
        self.order = RunOrder(
            run_id="1:s:1", epoch=1, context=self.context, ctx=ctx, items=items, lost=given.get("lost", 0),
            path=tuple(item.index for item in items), step_scope=given.get("step", {}),
        )  # fmt: skip
        self.frame = self._open(self.order)

    @staticmethod
    def _outcome(given: Any) -> Outcome:
        if given == "STORED":
            return Outcome(status="ok", ref=stored())
        return msgspec.convert(given, Outcome)

    def _open(self, order: RunOrder) -> Frame:
        shared = SharedScope(self.context, self.book)
        return open_frame(order, Programs(self.book, KINDS), shared, NondeterminismLog(self.source))

    def _call(self, function: Any, *arguments: Any) -> Any:
        """Call a function of the pipeline until it has all data that it needs."""
        if self.drop_data:
            self.frame.shared.clear()
            self.frame.keychain.clear()
        for missed in range(1, 100):
            drawn = self.source.count
            if self.forget:  # the first read misses, then the second, until the call has all that it reads
                self.frame.shared.clear()
                self.frame.shared.payloads = Forgetful(missed)
            try:
                return function(self.frame, *arguments)
            except NeedsPayload as needed:
                if not self.forget:
                    self.frame.shared.provide(needed.reference, STORED)
            except NeedsReference as needed:
                self.frame.shared.references[needed.key] = located(needed)
            except NeedsSecret as needed:
                self.frame.keychain.provide({needed.secret: f"secret of {needed.secret}"})
            self.source.count = drawn  # the evaluation is repeated
        raise AssertionError("the pipeline asks for the same data again and again")

    def _note(self, events: tuple[Event, ...]) -> Position | None:
        self.log += [{event.NAME: msgspec.to_builtins(event)} for event in events]
        done = [event for event in events if isinstance(event, TaskDone)]
        return done[-1].position if done else None

    def _apply(self, outcome: Outcome) -> None:
        wait_before = self.frame.wait
        position = self._note(self._call(apply_outcome, outcome))
        if self.change_workers and position is not None and not (self.frame.wait or wait_before):
            self._reopen(position)

    def _reopen(self, position: Position, resume: Outcome | None = None) -> None:
        sent = msgspec.json.decode(msgspec.json.encode(position), type=Position)
        self.frame = self._open(msgspec.structs.replace(self.order, position=sent, resume=resume, lost=0))

    def run(self) -> list[Any]:
        """Perform the run to its end."""
        while True:
            action = self._call(next_action)
            self._note(action.events)
            if isinstance(action, Wait):
                self.log.append({"wait": action.seconds})
            elif isinstance(action, TakeToken):
                self._token(action)
            elif isinstance(action, RunTask):
                self._run_task(action)
            elif isinstance(action, KnownOutcome):
                self._apply(action.outcome)
            elif isinstance(action, Suspend):
                self._resume(action.events[-1].position)  # type: ignore[attr-defined]
            else:
                assert isinstance(action, Finished)
                self._note((action.event(action.recorded, action.results),))
                return self.log

    def _token(self, action: TakeToken) -> None:
        self.log.append({"token": msgspec.to_builtins([action.demand, action.turn, action.of_step])})
        if action.turn is None and self.scenario.get("tokens_wait"):
            waiting = wait_for_token(self.frame, action, 50.0)
            self._note(waiting.events)
            self._reopen(waiting.events[-1].position)  # type: ignore[attr-defined]
        else:
            token_taken(self.frame, action)

    def _run_task(self, action: RunTask) -> None:
        fields = ("label", "input", "spec", "visit", "attempt", "task_run_id", "start_recorded", "state", "quotas")
        called = {name: msgspec.to_builtins(getattr(action, name), str_keys=True) for name in fields}
        if not self.forget:  # what code reads is fetched, and templates have it then
            called["scopes"] = {
                name: msgspec.to_builtins(action.scopes[name])
                for name in sorted(action.scopes)
                if name in action.scopes
            }
            assert len(action.scopes) == len(called["scopes"]) and "keychain" not in action.scopes
        self.log.append({"run": called})
        left = self.left.get(action.label)
        answer = left.pop(0) if left else {"status": "ok", "data": called["input"] or None}
        self._apply(self._outcome(answer))

    def _resume(self, position: Position) -> None:
        self.log.append("suspended")
        self._reopen(position, self._outcome(self.resumes.pop(0)))


class LosingWorkers(Shell):
    """The first worker of every task is lost while the task runs; the next one continues at the latest position."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        super().__init__(scenario)
        self.lost: set[tuple[str, int]] = set()
        self.position: Position | None = None

    def _note(self, events: tuple[Event, ...]) -> Position | None:
        for event in events:
            if hasattr(event, "position"):
                self.position = event.position
        return super()._note(events)

    def _run_task(self, action: RunTask) -> None:
        if (action.label, action.visit) in self.lost:
            super()._run_task(action)
            return
        self.lost.add((action.label, action.visit))
        self.log.append({"lost": [action.label, action.visit, action.attempt, action.start_recorded]})
        self.frame = self._open(msgspec.structs.replace(self.order, position=self.position, lost=1))


class Ended(Exception):
    """The run was ended from outside."""


class Ending(Shell):
    """The run is ended from outside in one of its tasks; only what follows is noted."""

    def __init__(self, scenario: dict[str, Any], number: int, how: str) -> None:
        super().__init__(scenario)
        self.left_tasks, self.how = number, how

    def run(self) -> list[Any]:
        """Perform the run to its end."""
        try:
            return super().run()
        except Ended:
            return self.log

    def _run_task(self, action: RunTask) -> None:
        self.left_tasks -= 1
        if self.left_tasks:
            super()._run_task(action)
            return
        self.log = [{"ended in": action.label}]
        getattr(self, f"_{self.how}")()

    def _timeout_of_run(self) -> None:
        finished = self._call(abort, error_info("timeout", "too slow"))
        self._note((*finished.events, finished.event(finished.recorded, finished.results)))
        raise Ended

    def _timeout_of_call(self) -> None:
        if len(self.frame.levels) == 1:
            raise Ended
        abort_calls(self.frame, len(self.frame.levels) - 1)
        self._apply(error("timeout", "the block took too long"))

    def _revocation(self) -> None:
        for level, index in final_tasks(self.frame):
            action = self._call(start_final, level, index)
            if isinstance(action, RunTask):
                self.log.append([action.label, action.input, action.attempt, action.visit, action.start_recorded])
            else:
                self.log.append(action.outcome)
        raise Ended


def interrupted(scenario: dict[str, Any]) -> dict[str, list[Any]]:
    """What a scenario does when its workers are lost, and when it is ended in each of its tasks."""
    logs = {"lost workers": LosingWorkers(scenario).run()}
    for how in ("timeout_of_run", "timeout_of_call", "revocation"):
        for number in range(1, 50):
            ending = Ending(scenario, number, how)
            log = ending.run()
            if ending.left_tasks > 0:
                break
            logs[f"{how} {number}"] = log
    return {name: plain(log) for name, log in logs.items()}


def scenarios() -> dict[str, dict[str, Any]]:
    """All scenarios by name."""
    return yaml.safe_load((LOGS / "scenarios.yaml").read_text())


# What a change of workers changes: positions, which starts are recorded with a lease, results that no template reads.
LEASE = ("position", "start_recorded", "scopes")


def without(log: list[Any], *fields: str) -> list[Any]:
    """A log without some fields of its entries."""
    plain = msgspec.json.decode(msgspec.json.encode(log))
    for entry in plain:
        for body in entry.values() if isinstance(entry, dict) else ():
            for name in fields if isinstance(body, dict) else ():
                body.pop(name, None)
    return plain


def main() -> int:
    for name, scenario in scenarios().items():
        text = msgspec.json.encode(Shell(scenario).run())
        (LOGS / f"{name}.json").write_bytes(msgspec.json.format(text, indent=1) + b"\n")
    write(
        INTERRUPTED,
        {f"{name}, {how}": log for name, each in scenarios().items() for how, log in interrupted(each).items()},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
