"""Replacements for tools, child playbooks and secrets in playbook tests.

The outcome of a task is the recorded one of the same run, else that of the first mock with a matching name:
`step.task`, `task`, `step`, `playbook:PATH` (of a child playbook), `kind:KIND`. Without either, the tool runs if its
kind has no external effects (python, noop, ...) or the test lists it under `real`; any other kind fails with an
explanation. A child playbook without a mock runs, with the mocks of its own tasks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from noetl.core.engine.effects import StartChild
from noetl.core.model.ids import split_run_id
from noetl.core.model.outcome import ERROR_KINDS, Outcome, error, ok
from noetl.core.model.playbook import WAIT, KeychainEntry
from noetl.core.model.tool import ToolCall, ToolFunction
from noetl.core.templates.template import compile_value
from noetl.errors import SecretUnavailable, TemplateError
from noetl.runtime.clock import RealClock
from noetl.testing.playbook_tests.cases import BadTestFile, Case
from noetl.tools.registry import specs

PLAYBOOK = "playbook"
LOCAL_KINDS = frozenset({"noop", "python", "workbook", "playbook", "duckdb", "sqlite", "resolve"})
ENVELOPE = frozenset({"data", "error", "meta"})
SEQUENCE = "sequence"


class Called(msgspec.Struct, frozen=True):
    """One call of a tool."""

    step: str
    task: str
    kind: str
    input: dict[str, Any]
    attempt: int

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which mocks and expectations find this call."""
        child = (f"playbook:{self.input['path']}",) if self.kind == PLAYBOOK else ()
        return (f"{self.step}.{self.task}", self.task, self.step, *child, f"kind:{self.kind}")


class MockTools:
    """The tools of one test."""

    def __init__(self, case: Case, kinds: Mapping[str, Any]) -> None:
        self._mocks = case.mocks
        self._recorded = case.recorded
        self._allowed = LOCAL_KINDS | set(case.real)
        self._helpers = {helper for spec in kinds.values() for helper in spec.helpers}
        # A wait is a call like any other: the test has the answer.
        self.specs = {**specs(), WAIT: msgspec.structs.replace(kinds[WAIT], suspends=False)}
        self._used: Counter[str] = Counter()
        self.calls: list[Called] = []

    def load(self, kind: str) -> ToolFunction:
        """The function that replaces a kind."""

        async def run(call: ToolCall) -> Outcome:
            called = Called(call.step, call.task, kind, dict(call.input), call.attempt)
            self.calls.append(called)
            given = self._given(called, call.task_run_id, call.scopes)
            if given is not None:
                return given
            if kind == WAIT and not call.input.get("signal") and {"for", "until"} & set(call.input):
                return ok(None)  # it waits for time only, and time is skipped
            if kind in self._allowed or "all" in self._allowed:
                from noetl.tools.registry import load

                return await load(kind)(call)
            return error(
                "unknown",
                f"the test has no mock for {call.step}.{call.task}, and kind {kind} has external effects; add a mock "
                f"under mocks: {call.step}, or allow the kind with real: [{kind}]",
            )

        return run

    def child_outcome(self, effect: StartChild) -> Outcome | None:
        """The outcome that replaces a child playbook; None if the child runs, with the mocks of its own tasks."""
        if effect.compensates is not None:
            return None
        _, step, _, _ = split_run_id(effect.parent.run_id)
        label, _, attempt = effect.key.removeprefix(f"{effect.parent.run_id}:").split(":")
        called_with = {"path": effect.playbook, "payload": effect.payload}
        called = Called(step, label.rpartition("/")[2], PLAYBOOK, called_with, int(attempt))
        self.calls.append(called)
        try:
            return self._given(called, effect.key, {})
        except BadTestFile as problem:
            return error("unknown", str(problem))

    def _given(self, called: Called, task_run_id: str, scopes: Mapping[str, Any]) -> Outcome | None:
        """The recorded or mocked outcome of a call; None if there is none."""
        recorded = self._recorded.get(task_run_id.partition(":")[2])
        if recorded is not None:
            return msgspec.convert(recorded, Outcome)
        name = next((name for name in called.names if name in self._mocks), None)
        return None if name is None else self._mocked(name, called, scopes)

    def unused(self) -> list[str]:
        """Mocks that no call has used; most often the name is misspelled."""
        return [name for name in self._mocks if not any(name in called.names for called in self.calls)]

    def _mocked(self, name: str, called: Called, scopes: Mapping[str, Any]) -> Outcome:
        mock = self._mocks[name]
        if isinstance(mock, Mapping) and set(mock) == {SEQUENCE}:
            several = mock[SEQUENCE]
            if not isinstance(several, list) or not several:
                raise BadTestFile(f"mocks.{name}.{SEQUENCE} must be a list with one outcome per call")
            mock = several[min(self._used[name], len(several) - 1)]
            self._used[name] += 1
        names = {**scopes, "input": called.input, "attempt": called.attempt}
        try:
            rendered = compile_value(mock).evaluate(names)
        except TemplateError as problem:
            raise BadTestFile(f"mocks.{name}: {problem.message}") from None
        return self._outcome(name, rendered)

    def _outcome(self, name: str, mock: Any) -> Outcome:
        """A mapping with `data` or `error` and the kind's helpers is an outcome; anything else is the data."""
        known = ENVELOPE | self._helpers
        if not isinstance(mock, Mapping) or not ({"data", "error"} & set(mock)) or not set(mock) <= known:
            return ok(mock)
        helpers = {key: dict(value) for key, value in mock.items() if key in self._helpers}
        problem = mock.get("error")
        if problem is None:
            return ok(mock.get("data"), meta=dict(mock.get("meta") or {}), **helpers)
        if isinstance(problem, str):
            problem = {"kind": "unknown", "message": problem}
        kind = str(problem.get("kind", "unknown"))
        if kind not in ERROR_KINDS:
            raise BadTestFile(f"mocks.{name}: unknown error kind {kind!r}; error kinds are {', '.join(ERROR_KINDS)}")
        return error(
            kind,
            str(problem.get("message", "mocked")),
            data=mock.get("data"),
            retryable=problem.get("retryable"),
            details=problem.get("details"),
            **helpers,
        )


class GivenSecrets:
    """A keychain with the secrets of the test only."""

    def __init__(self, secrets: Mapping[str, Any]) -> None:
        self._secrets = secrets

    async def resolve(
        self,
        entries: Sequence[KeychainEntry],
        names: Sequence[str],
        *,
        workload: Mapping[str, Any] | None = None,
        file: str = "",
    ) -> dict[str, Any]:
        """The values of the test; SecretUnavailable names those that are missing."""
        missing = {name: "the test has no value under secrets:" for name in names if name not in self._secrets}
        if missing:
            raise SecretUnavailable(missing)
        return {name: self._secrets[name] for name in names}

    async def close(self) -> None:
        """Nothing to close."""


class SkippingClock(RealClock):
    """A clock on which delays take at most 10 ms."""

    async def sleep(self, seconds: float) -> None:
        """Wait at most 10 ms."""
        await asyncio.sleep(min(seconds, 0.01))
