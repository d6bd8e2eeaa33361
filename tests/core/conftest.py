"""Compares the decisions of the tests of engine and pipeline with stored logs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.core.decided_logs import compared


@pytest.fixture(autouse=True)
def decisions(request: pytest.FixtureRequest) -> Iterator[None]:
    """Note what the test decides, and compare it with its log."""
    yield from compared(request.node)
