"""The tools of the simulation, and the ledger of their starts and side effects."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.tool import Field, ToolCall, ToolSpec
from noetl.tools.wait.spec import SPEC as WAIT
from tests.simulation.virtual_time import block_if_dead

SPECS: dict[str, ToolSpec] = {
    "noop": ToolSpec(kind="noop", pure=True),
    "playbook": ToolSpec(
        kind="playbook", suspends=True, fields={"path": Field(type="string", required=True)}, open_fields=True
    ),
    "wait": WAIT,
    "effect": ToolSpec(kind="effect", fields={"value": Field(), "fails": Field(), "takes": Field(), "kills": Field()}),
}


class EffectLedger:
    """Counts the tool starts and the side effects of each attempt."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    def mark(self, task_run: str) -> None:
        """Count the side effect of an attempt."""
        self.done[task_run] += 1

    def has_run(self, run: str) -> bool:
        """Whether a tool of this run had its effect."""
        return any(task_run.startswith(f"{run}:") for task_run in self.done)


class Hooks(Protocol):
    """What a tool tells its worker process."""

    def started(self, task_run: str) -> None:
        """The tool starts."""

    def ended(self, task_run: str) -> None:
        """The tool has its effect."""

    def crash(self, *, others: bool) -> None:
        """The tool ends its process, and those of the other workers."""


def tools(ledger: EffectLedger, hooks: Hooks) -> Callable[[str], Callable[[ToolCall], Awaitable[Outcome]]]:
    """The tool kinds of the simulation: `effect` counts its call, takes time, fails a given number of times, and `kills`
    its worker, or `all` of them."""

    async def noop(call: ToolCall) -> Outcome:
        return ok(None)

    async def effect(call: ToolCall) -> Outcome:
        await block_if_dead()
        ledger.started[call.task_run_id] += 1
        hooks.started(call.task_run_id)
        if call.input.get("kills"):
            hooks.crash(others=call.input["kills"] == "all")
        await asyncio.sleep(float(call.input.get("takes") or 0.01))
        await block_if_dead()
        hooks.ended(call.task_run_id)
        ledger.mark(call.task_run_id)
        if call.attempt <= int(call.input.get("fails") or 0):
            return error("server_error", "scripted failure")
        return ok(call.input.get("value"))

    return lambda kind: {"noop": noop, "effect": effect}[kind]
