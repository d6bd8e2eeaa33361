"""Seeds of the simulation as tests for mutants; collected only where it is named."""

from __future__ import annotations

import pytest

from tests.simulation import simulate


@pytest.mark.parametrize("seed", range(40))
def test_seed(seed: int):
    assert simulate(seed, 50, executions=4).violations == []
