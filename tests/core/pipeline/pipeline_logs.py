"""Whole logs of pipelines: every event, tool call and wait of a scenario, compared with a stored one.

`python tests/core/pipeline/pipeline_logs.py` writes the logs again after an intended change; review the difference.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml
from pipeline_harness import FixedNondeterminism

from noetl.core.language.compile import compile_playbook
from noetl.core.model.events import Event, TaskDone
from noetl.core.model.outcome import Outcome
from noetl.core.model.position import Item, Position
from noetl.core.model.reference import Reference, ReferenceMeta, stored_marker
from noetl.core.model.tool import ToolSpec
from noetl.core.model.work import RunContext, RunOrder
from noetl.core.pipeline.actions import Finished, KnownOutcome, RunTask, Suspend, TakeToken, Wait
from noetl.core.pipeline.advance import apply_outcome, next_action
from noetl.core.pipeline.frame import Frame, open_frame
from noetl.core.pipeline.nondeterminism_log import NondeterminismLog
from noetl.core.pipeline.program import Programs
from noetl.core.pipeline.quotas import token_taken, wait_for_token
from noetl.core.pipeline.scopes import NeedsSecret, SharedScope
from noetl.core.templates.views import NeedsPayload
from noetl.tools.noop.spec import SPEC as NOOP
from noetl.tools.playbook.spec import SPEC as PLAYBOOK
from noetl.tools.python.spec import SPEC as PYTHON
from noetl.tools.wait.spec import SPEC as WAIT
from noetl.tools.workbook.spec import SPEC as WORKBOOK

HTTP = ToolSpec(kind="http", open_fields=True, helpers={"http": {"status": None}})
LOGS = Path(__file__).parent / "logs"
KINDS = {each.kind: each for each in (NOOP, PLAYBOOK, PYTHON, WAIT, WORKBOOK)} | {"http": HTTP}
HEAD = {"apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": "p", "path": "p"}}
STORED = {"rows": [1, 2, 3], "name": "stored", "small": 4}


def stored() -> Reference:
    """The reference of a payload that is not in the log."""
    return Reference("blob", {"key": "k"}, ReferenceMeta(sha256="5" * 64, bytes=100, content_type="application/json"))


class Shell:
    """A worker without I/O: performs the actions of one run and notes all of them."""

    def __init__(self, scenario: dict[str, Any], *, drop_data: bool = False, change_workers: bool = False) -> None:
        made = compile_playbook(
            yaml.safe_dump(HEAD | scenario["playbook"], sort_keys=False), file="p.yaml", specs=KINDS
        )
        assert made.playbook is not None, made.diagnostics
        self.book = made.playbook
        self.scenario = scenario
        self.drop_data, self.change_workers = drop_data, change_workers
        self.source = FixedNondeterminism()
        self.left = {name: list(each) for name, each in scenario.get("tools", {}).items()}
        self.resumes = list(scenario.get("resume", ()))
        self.log: list[Any] = []
        self.positions = 0
        given = scenario.get("order", {})
        results = {name: self._outcome(each) for name, each in given.get("results", {}).items()}
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
        for _ in range(20):
            drawn = self.source.count
            try:
                return function(self.frame, *arguments)
            except NeedsPayload as needed:
                self.frame.shared.provide(needed.reference, STORED)
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
        called["scopes"] = {
            name: msgspec.to_builtins(action.scopes[name]) for name in sorted(action.scopes) if name in action.scopes
        }
        assert len(action.scopes) == len(called["scopes"]) and "keychain" not in action.scopes
        self.log.append({"run": called})
        left = self.left.get(action.label)
        answer = left.pop(0) if left else {"status": "ok", "data": called["input"] or None}
        self._apply(self._outcome(answer))

    def _resume(self, position: Position) -> None:
        self.log.append("suspended")
        self._reopen(position, self._outcome(self.resumes.pop(0)))


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
    return 0


if __name__ == "__main__":
    sys.exit(main())
