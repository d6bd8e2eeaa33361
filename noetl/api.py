"""`noetl.run` and `noetl.run_async`: on an embedded engine, or with mocked tools."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from noetl import embedded
from noetl.errors import NoetlError
from noetl.server.read_models.summaries import RunResult


async def run_async(
    playbook: str | os.PathLike[str],
    payload: Mapping[str, Any] | None = None,
    *,
    mocks: Mapping[str, Any] | None = None,
    secrets: Mapping[str, Any] | None = None,
    **options: Any,
) -> RunResult:
    """Run a playbook to its end; with `mocks` (and `secrets`) as a test: tools are mocked, and nothing is stored."""
    if mocks is None and secrets is None:
        return await embedded.run_async(playbook, payload, **options)
    from noetl.testing.playbook_runs import run_mocked

    return (await run_mocked(playbook, payload, mocks=mocks, secrets=secrets, **options)).result


def run(playbook: str | os.PathLike[str], payload: Mapping[str, Any] | None = None, **options: Any) -> RunResult:
    """Run a playbook to its end, like `run_async`; inside an event loop use `run_async`."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run_async(playbook, payload, **options))
    raise NoetlError("noetl.run cannot be called inside an event loop; await noetl.run_async(...) there")
