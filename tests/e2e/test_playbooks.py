"""Every playbook of tests/playbooks does on the embedded engine what it says of itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from noetl.core.model.events import Recorded
from noetl.embedded import open_local
from tests.e2e.api import serving
from tests.e2e.cases import FILES, as_document, check, expectation


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_playbook_has_its_documented_result(file: Path, tmp_path: Path):
    expected = expectation(file)
    payload = dict(expected.get("payload", {}))

    async def run() -> tuple[dict, list[Recorded]]:
        async with await open_local(home=tmp_path) as engine:
            result = await engine.run(file, payload, timeout=60)
            return as_document(result), await engine.orchestrator.events(result.execution_id)

    if expected.get("needs") == "api":
        with serving() as address:
            payload["api"] = address
            document, events = asyncio.run(run())
    else:
        document, events = asyncio.run(run())
    check(file, document, events)
