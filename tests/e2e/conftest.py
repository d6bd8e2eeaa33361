"""Playbooks run from text to result on one embedded engine that all tests of a session share."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from noetl.core.model.events import Event, Recorded
from noetl.embedded import LocalEngine, open_local
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.read_models.summaries import RunResult, project

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: test}\n"


class Ran:
    """A finished execution: its result and its log."""

    def __init__(self, result: RunResult, events: list[Recorded]) -> None:
        self.result = result
        self.events = events
        self.status = result.status
        self.data = result.data
        self.ctx = result.ctx
        self.error = result.error or {}
        self.steps = {row.step: row for row in result.steps}

    def of(self, name: str, **fields: Any) -> list[Any]:
        """The bodies of all events of that name (and with those fields)."""
        return [
            recorded.body
            for recorded in self.events
            if name == recorded.body.NAME
            and all(getattr(recorded.body, field) == value for field, value in fields.items())
        ]

    def order(self, name: str, field: str = "step") -> list[Any]:
        return [getattr(body, field) for body in self.of(name)]

    @property
    def names(self) -> list[str]:
        return [recorded.body.NAME for recorded in self.events]


class Stage:
    """Runs playbooks; `play` gives a finished execution."""

    def __init__(self, runner: asyncio.Runner, engine: LocalEngine) -> None:
        self._runner = runner
        self.engine = engine
        self.orchestrator: Orchestrator = engine.orchestrator

    def do(self, work: Any) -> Any:
        return self._runner.run(work)

    def play(self, text: str, payload: dict[str, Any] | None = None, **options: Any) -> Ran:
        async def whole() -> Ran:
            options.setdefault("timeout", 30)
            result = await self.engine.run(playbook(text), payload, **options)
            assert not result.timed_out, "the execution did not come to its end"
            return await self.ran(result)

        ran: Ran = self.do(whole())
        check_oracles(ran)
        summary = self.do(self.orchestrator.store.summary(ran.result.execution_id))
        assert summary == msgspec.structs.replace(
            project(None, ran.events), key=summary.key, held=summary.held, steps=summary.steps
        )
        assert summary.steps_running == 0
        assert summary.steps_done == len(set(ran.order("step.scheduled", "step_run_id")))
        return ran

    async def ran(self, result: RunResult) -> Ran:
        return Ran(result, await self.orchestrator.events(result.execution_id))

    def register(self, text: str) -> str:
        from noetl.server.orchestrator.catalog import Source

        stored = self.do(self.orchestrator.catalog.register(Source(playbook(text)), 1.0))
        path: str = stored.path
        return path


def playbook(text: str) -> str:
    """The text with a head, where it has none."""
    text = textwrap.dedent(text)
    return text if "apiVersion" in text else HEAD + text


def check_oracles(ran: Ran) -> None:
    """What holds of every finished log."""
    assert [recorded.seq for recorded in ran.events] == list(range(1, len(ran.events) + 1))
    assert ran.names.count("workflow.finished") == ran.names.count("playbook.processed") == 1
    assert ran.names[-1] == "playbook.processed"
    scheduled = set(ran.order("step.scheduled", "step_run_id"))
    undone = set(ran.order("compensation.started", "step_run_id"))
    ended = ran.order("step.done", "step_run_id") + ran.order("step.failed", "step_run_id")
    assert scheduled == set(ended) - undone


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with asyncio.Runner() as runner:
        engine = runner.run(open_local(store="memory:", home=tmp_path_factory.mktemp("home")))
        yield Stage(runner, engine)
        runner.run(engine.close())


@pytest.fixture
def play(stage: Stage) -> Any:
    return stage.play


__all__ = ["Event", "Ran", "Stage"]
