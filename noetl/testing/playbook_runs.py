"""Runs a playbook with mocked tools on an engine in memory: for `noetl test`, `noetl.run(mocks=...)` and pytest."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from noetl.core.model.events import Recorded, StepScheduled
from noetl.embedded import is_text, open_local, read_playbook
from noetl.server.orchestrator.catalog import Source
from noetl.server.read_models.summaries import RunResult
from noetl.settings import load
from noetl.testing.playbook_tests.cases import Case
from noetl.testing.playbook_tests.mocks import Called, GivenSecrets, MockTools, SkippingClock
from noetl.tools.registry import kinds
from noetl.worker.factory import ToolSource


class MockedRun(Struct, frozen=True):
    """A finished execution: its result, the calls of its tools, the steps in the order they were scheduled."""

    result: RunResult
    calls: list[Called]
    order: list[str]
    unused_mocks: list[str]
    state: dict[str, Any]  # the stored state after it

    @property
    def status(self) -> str:
        """`success`, `failed` or `cancelled`."""
        return self.result.status

    @property
    def data(self) -> Any:
        """The output."""
        return self.result.data

    def calls_of(self, name: str) -> list[dict[str, Any]]:
        """The inputs of the calls of `step.task`, `task`, `step` or `kind:KIND`."""
        return [call.input for call in self.calls if name in call.names]


async def run_mocked(
    playbook: str | os.PathLike[str],
    payload: Mapping[str, Any] | None = None,
    *,
    mocks: Mapping[str, Any] | None = None,
    secrets: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
    real: Sequence[str] = (),
    timeout: float | None = None,
    **modes: Any,
) -> MockedRun:
    """Run a playbook (a file or its text) with mocks, as a test of `noetl test` does.

    `state` is the stored state before it; `modes` are `strict` and `legacy`."""
    case = Case(
        name="",
        payload=dict(payload or {}),
        mocks=dict(mocks or {}),
        secrets=dict(secrets or {}),
        state=dict(state or {}),
        real=list(real),
        timeout=60.0 if timeout is None else timeout,
        **modes,
    )
    return await run_text(*_source(playbook), case)


def _source(playbook: str | os.PathLike[str]) -> tuple[str, str]:
    """Text and file of a playbook."""
    if isinstance(playbook, str) and is_text(playbook):
        return playbook, ""
    file = os.path.abspath(playbook)
    return read_playbook(file), file


async def run_text(text: str, file: str, case: Case) -> MockedRun:
    """Run a text with the mocks, secrets and payload of a test."""
    tools = MockTools(case, kinds())
    order: list[str] = []

    def follow(recorded: Recorded) -> None:
        if isinstance(recorded.body, StepScheduled):
            order.append(recorded.body.step)

    engine = await open_local(
        load({"store": "memory:"}).settings,
        tools=ToolSource(tools.load, tools.specs),
        keychain=GivenSecrets(case.secrets),
        clock=SkippingClock(),
    )
    async with engine:
        engine.orchestrator.effects.children.answer_instead = tools.child_outcome
        states = engine.orchestrator.states
        if case.state:
            source = Source(f"{text}\n", file)
            await states.set((await engine.orchestrator.catalog.compile(source, legacy=case.legacy)).path, case.state)
        result = await engine.run(
            f"{text}\n",  # a line break makes it a text and not a path
            case.payload,
            file=file,
            strict=case.strict,
            legacy=case.legacy,
            timeout=case.timeout,
            on_event=follow,
        )
        state, _ = await states.read(result.path)
    return MockedRun(result, tools.calls, order, tools.unused(), state)
