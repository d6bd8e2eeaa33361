"""Random executions decide what the stored logs have, and live, folded and restored states are equal after every event."""

from __future__ import annotations

import pytest
from generated_executions import STORED, executions, played

from tests.stored_logs import difference, read

EXECUTIONS = executions()


@pytest.fixture(scope="module")
def logs():
    return read(STORED)


def test_every_log_has_an_execution(logs):
    assert sorted(logs) == sorted(EXECUTIONS)


@pytest.mark.parametrize("name", EXECUTIONS)
def test_an_execution_decides_what_the_stored_log_has(name, logs):
    assert difference(played(*EXECUTIONS[name]), logs[name]) is None
