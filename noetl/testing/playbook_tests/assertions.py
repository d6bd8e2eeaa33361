"""Runs one test and reports every difference between the result and the expected one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct

from noetl.core.templates.template import compile_value, holds
from noetl.embedded import read_playbook
from noetl.errors import InvalidPlaybook, NoetlError, TemplateError
from noetl.server.read_models.summaries import RunResult
from noetl.testing.playbook_runs import run_text
from noetl.testing.playbook_tests.cases import Case, Expect
from noetl.testing.playbook_tests.mocks import Called

MAX_VALUE_LENGTH = 120  # characters of a value in a message


class CaseResult(Struct, frozen=True):
    """The result of one test."""

    file: str
    name: str
    problems: tuple[str, ...]
    duration_ms: float
    invalid: bool = False  # the playbook has errors, so nothing ran

    @property
    def ok(self) -> bool:
        """Whether the test passed."""
        return not self.problems


async def run_case(file: str, playbook: Path, case: Case) -> CaseResult:
    """Run one test on an engine with a store in memory."""
    began = time.monotonic()
    invalid = False
    try:
        ran = await run_text(read_playbook(playbook), str(playbook), case)
        problems = [*_differences(case.expect, ran.result, ran.order, ran.calls)]
        if case.expect.state is not UNSET:
            problems += differences("state", case.expect.state, ran.state)
        problems += [f"mocks.{name} was never used" for name in ran.unused_mocks]
    except InvalidPlaybook as wrong:
        problems, invalid = [str(wrong)], True
    except NoetlError as wrong:
        problems = [str(wrong)]
    return CaseResult(file, case.name, tuple(problems), round(1000 * (time.monotonic() - began), 1), invalid)


def _differences(expect: Expect, result: RunResult, scheduled: list[str], calls: list[Called]) -> Iterator[str]:
    if result.status != expect.status:
        reason = f" ({result.error['kind']}: {result.error['message']})" if result.error else ""
        yield f"status: expected {expect.status}, got {result.status}{reason}"
    if expect.output is not UNSET:
        yield from differences("output", expect.output, result.data)
    yield from differences("ctx", expect.ctx, result.ctx, parts=True)
    yield from _error_differences(expect.error, result.error)
    steps = {row.step: {"status": row.status, "runs": row.runs, "attempts": row.attempts} for row in result.steps}
    for step, wanted in expect.steps.items():
        found = steps.get(step, {"status": "not reached"})
        wanted = wanted if isinstance(wanted, Mapping) else {"status": wanted}
        yield from differences(f"steps.{step}", wanted, found, parts=True)
    if expect.order is not UNSET:
        yield from differences("order", expect.order, scheduled)
    for name, wanted in expect.calls.items():
        yield from _call_differences(name, wanted, [call.input for call in calls if name in call.names])
    names = {
        "status": result.status,
        "output": result.output,
        "ctx": result.ctx,
        "error": result.error,
        "steps": steps,
        "order": scheduled,
        "calls": [{"step": c.step, "task": c.task, "kind": c.kind, "input": c.input} for c in calls],
    }
    for check in [expect.check] if isinstance(expect.check, str) else expect.check:
        try:
            if not holds(compile_value(check), names):
                yield f"check: {check} is false"
        except TemplateError as problem:
            yield f"check: {check}: {problem.message}"


def _error_differences(wanted: Mapping[str, Any] | str | None, found: Mapping[str, Any] | None) -> Iterator[str]:
    if wanted is None:
        return
    if found is None:
        yield f"error: expected {_shown(wanted)}, got none"
        return
    wanted = {"message": wanted} if isinstance(wanted, str) else wanted
    part = wanted.get("message")
    if part is not None and str(part) not in found["message"]:
        yield f"error.message: expected a text with {_shown(part)}, got {_shown(found['message'])}"
    yield from differences("error", {k: v for k, v in wanted.items() if k != "message"}, found, parts=True)


def _call_differences(name: str, wanted: Any, inputs: list[dict[str, Any]]) -> Iterator[str]:
    if isinstance(wanted, int):
        if len(inputs) != wanted:
            yield f"calls.{name}: expected {wanted}, got {len(inputs)}"
        return
    several = wanted if isinstance(wanted, list) else [wanted]
    if len(several) != len(inputs):
        yield f"calls.{name}: expected {len(several)}, got {len(inputs)}"
    for number, (expected, given) in enumerate(zip(several, inputs, strict=False)):
        yield from differences(f"calls.{name}[{number}]", expected, given, parts=True)


def differences(path: str, expected: Any, found: Any, *, parts: bool = False) -> Iterator[str]:
    """Yield every difference of two values; with `parts` a mapping may have additional keys."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key, value in expected.items():
            if key not in found:
                yield f"{path}.{key}: expected {_shown(value)}, but it is missing"
            else:
                yield from differences(f"{path}.{key}", value, found[key], parts=parts)
        for key in () if parts else [key for key in found if key not in expected]:
            yield f"{path}.{key}: not expected, got {_shown(found[key])}"
    elif isinstance(expected, list) and isinstance(found, list | tuple):
        if len(expected) != len(found):
            yield f"{path}: expected {len(expected)} items, got {len(found)}: {_shown(found)}"
            return
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(f"{path}[{number}]", one, other, parts=parts)
    elif expected != found or isinstance(expected, bool) != isinstance(found, bool):
        yield f"{path}: expected {_shown(expected)}, got {_shown(found)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE_LENGTH else text[: MAX_VALUE_LENGTH - 3] + "..."
