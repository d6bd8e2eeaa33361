"""One loop for the tests that run tools, so that pools and sessions stay warm as in a worker."""

from __future__ import annotations

import asyncio

import pytest

from noetl.drivers.lifetime import close_shared
from noetl.testing.tools import tool_call
from noetl.tools import load


@pytest.fixture(scope="session")
def loop():
    with asyncio.Runner() as runner:
        yield runner
        runner.run(close_shared())


@pytest.fixture
def tool(loop):
    """Run one tool call in the shared loop."""

    def run(kind, input=None, **others):
        return loop.run(load(kind)(tool_call(kind, input or {}, **others)))

    return run
