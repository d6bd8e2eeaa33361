"""2025-11 playbooks and their migrated forms produce the same events."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from noetl.core.language.compile import compile_playbook
from noetl.core.language.rewrite.migrate.v2025_11_to_canonical import migrate
from noetl.embedded import open_local
from noetl.errors import InvalidPlaybook
from noetl.tools import registry as tools
from tests.e2e.api import serving
from tests.e2e.cases import FOLDER, expectation
from tests.e2e.normalized_events import events_by_run

FILES = sorted(FOLDER.glob("legacy_*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_migrated_playbook_has_the_same_outputs_and_events(file: Path, tmp_path: Path):
    for other in FILES:
        made = migrate(other.read_text(), tools.specs())
        assert made.notes == ()
        assert compile_playbook(made.text, file="", specs=tools.specs(), strict=True).playbook is not None
        (tmp_path / other.name).write_text(made.text)
    payload: dict[str, Any] = dict(expectation(file).get("payload", {}))

    async def normalize(path: Path) -> tuple[Any, ...]:
        async with await open_local(home=tmp_path / "home") as engine:
            result = await engine.run(path, payload, timeout=60)
            events = await engine.orchestrator.events(result.execution_id)
            return result.status, result.output, result.ctx, events_by_run(events)

    with serving() as address:
        if expectation(file).get("needs") == "api":
            payload["api"] = address
        before, after = asyncio.run(normalize(file)), asyncio.run(normalize(tmp_path / file.name))
    assert after[:3] == before[:3]
    assert after[3] == before[3]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_without_the_extension_it_is_rejected_with_a_hint(file: Path):
    text = file.read_text().replace("extensions: [legacy]", "extensions: []")
    found = compile_playbook(text, file=file.name, specs=tools.specs())
    assert found.playbook is None
    assert any("noetl migrate" in one.hint for one in found.diagnostics)
    assert compile_playbook(text, file=file.name, specs=tools.specs(), legacy=True).playbook is not None


def test_the_input_under_spec_of_a_tool_is_lifted(play):
    ran = play(
        """
        workload: {k: 3}
        workflow:
          - step: start
            tool:
              kind: python
              spec:
                input: {x: "{{ workload.k }}", y: 2}
                code: |
                  result = x + y
        """,
        legacy=True,
    )
    assert (ran.status, ran.data) == ("success", 5), ran.error


def test_bind_to_the_scope_of_a_step_is_refused(play):
    with pytest.raises(InvalidPlaybook, match=r"`step\.x` is reserved"):
        play("workflow: [{step: start, bind: {step.x: 1}, tool: {kind: noop}}]", legacy=True)
