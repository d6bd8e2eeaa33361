"""Servers store, lease, queue and answer in random scenarios what the stored logs have."""

from __future__ import annotations

import pytest

from tests.server.generated_scenarios import STORED, played, seeds
from tests.stored_logs import difference, plain, read


@pytest.fixture(scope="module")
def logs():
    return read(STORED)


def test_every_log_has_a_scenario(logs):
    assert sorted(logs, key=int) == [str(seed) for seed in seeds()]


@pytest.mark.parametrize("seed", seeds())
def test_servers_do_what_the_stored_log_has(seed, logs):
    assert difference(plain(played(seed)), logs[str(seed)]) is None
