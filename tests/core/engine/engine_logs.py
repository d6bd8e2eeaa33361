"""Whole logs of executions: every event, effect, reply and reason to wait of a scenario, compared with a stored one.

`python tests/core/engine/engine_logs.py` writes them again after an intended change; review the difference.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml
from engine_harness import HEAD, Harness, finished, task_done

from noetl.core.engine import commands
from noetl.core.engine.decision import Decision
from noetl.core.model.events import ChildRequested, WaitStarted
from noetl.core.model.outcome import Outcome, ok
from noetl.core.model.work import RunOrder

SCENARIOS = Path(__file__).parent / "scenarios"


class Scenario(Harness):
    """An execution whose acts are described by a scenario; everything that it decides is noted."""

    def __init__(self, scenario: dict[str, Any], *, watch: bool = False) -> None:
        super().__init__(HEAD + yaml.safe_dump(scenario["playbook"], sort_keys=False), watch=watch)
        self.left = {step: list(each) for step, each in scenario.get("outcomes", {}).items()}
        self.noted: list[Any] = []
        self.leased: dict[str, RunOrder] = {}
        self.acts = scenario.get("acts", ["work"])
        self.request = scenario.get("request", {})

    def send(self, *sent: commands.Command, at: float | None = None, conflict: str | None = None) -> Decision:
        """Advance, and note what was decided."""
        decision = super().send(*sent, at=at, conflict=conflict)
        self.noted.append(self.record(sent, decision, self._placement))
        return decision

    @staticmethod
    def _placement(pool: str, labels: Any) -> str | None:
        return f"pool {pool} with {list(labels)} has no worker" if pool != "default" or labels else None

    def play(self) -> list[Any]:
        """Start the execution and perform all acts."""
        self.start(**self.request)
        for act in self.acts:
            name, given = (act, None) if isinstance(act, str) else next(iter(act.items()))
            getattr(self, f"act_{name}", self.act_command)(given if hasattr(self, f"act_{name}") else (name, given))
        return self.noted

    def act_work(self, most: int | None) -> None:
        """Claim and complete the oldest runs."""
        done = 0
        while self.queue and (most is None or done < most):
            run_id = self.queue[0].run_id
            if run_id not in self.state.open and not self._unclaimed(run_id):
                self.queue.pop(0)
                continue
            self.act_claim(run_id)
            if run_id in self.leased:
                self.act_end(run_id)
            done += 1

    def _unclaimed(self, run_id: str) -> bool:
        return "/" in run_id

    def act_claim(self, run_id: str, worker: str = "w1") -> None:
        """Claim a run."""
        self.queue = [each for each in self.queue if each.run_id != run_id]
        reply = self.send(commands.ClaimRun(worker, run_id)).replies[0]
        self.leased |= {order.run_id: order for order in reply.orders}

    def act_end(self, run_id: str) -> None:
        """Report the end of a run with the next outcome of its step, and what it wrote."""
        order = self.leased.pop(run_id)
        left = self.left.get(order.context.step)
        given = dict(left.pop(0)) if left else {}
        patch, extra = given.pop("patch", None), given.pop("end", {})
        outcome = msgspec.convert({"status": "ok", **given}, Outcome)
        first = [task_done(order, outcome=outcome, patch=patch)] if patch else []
        self.report(order, *first, *finished(order, outcome, **extra))

    def act_expire(self, run_id: str) -> None:
        """Let the lease of a run expire."""
        order = self.leased.pop(run_id)
        self.send(commands.ExpireLease(run_id, order.epoch))

    def act_timer(self, _: None) -> None:
        """Fire the timer when it is due."""
        assert self.timer is not None
        self.send(commands.FireTimer(), at=self.timer)

    def act_child(self, given: dict[str, Any]) -> None:
        """Start and end the oldest child, or only start it."""
        child = self.children.pop(0)
        self.send(commands.RecordChildStart(child.key, "900"))
        if given.get("waits"):
            self.send(commands.RecordChildWait(child.key, "900", True, 5))
        if "outcome" in given:
            self.send(commands.RecordChildEnd(child.key, "900", msgspec.convert(given["outcome"], Outcome)))

    def act_task(self, given: dict[str, Any]) -> None:
        """Report a finished task of a leased run."""
        order = self.leased[given["run"]]
        fields = {key: value for key, value in given.items() if key not in ("run", "task", "data")}
        self.report(order, task_done(order, given["task"], ok(given.get("data")), **fields))

    def act_wait(self, given: dict[str, Any]) -> None:
        """Report that a task of a leased run waits."""
        self._suspend(WaitStarted, given)

    def act_call(self, given: dict[str, Any]) -> None:
        """Report that a task of a leased run calls a playbook."""
        self._suspend(ChildRequested, given)

    def _suspend(self, kind: type[Any], given: dict[str, Any]) -> None:
        order = self.leased.pop(given["run"])
        fields = {key: value for key, value in given.items() if key != "run"}
        where = {"step": order.context.step, "step_run_id": order.context.step_run_id, "path": order.path}
        position = {"task": given["task"]}
        self.report(order, msgspec.convert({**where, **fields, "position": position}, kind))

    def act_batch(self, given: list[dict[str, Any]]) -> None:
        """Send several commands that are decided together."""
        named = [next(iter(each.items())) for each in given]
        self.send(*(msgspec.convert(fields, getattr(commands, name)) for name, fields in named))

    def act_command(self, given: tuple[str, dict[str, Any]]) -> None:
        """Send a command by its name."""
        reply = self.send(msgspec.convert(given[1] or {}, getattr(commands, given[0]))).replies[0]
        self.leased |= {order.run_id: order for order in reply.orders}
        self.queue = [each for each in self.queue if each.run_id not in self.leased]


def scenarios() -> dict[str, dict[str, Any]]:
    """All scenarios by name."""
    return yaml.safe_load((SCENARIOS / "scenarios.yaml").read_text())


def main() -> int:
    for name, scenario in scenarios().items():
        text = msgspec.json.encode(Scenario(scenario).play())
        (SCENARIOS / f"{name}.json").write_bytes(msgspec.json.format(text, indent=1) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
