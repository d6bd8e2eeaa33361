"""Executions decide exactly what the stored logs have (`engine_logs.py` writes them)."""

from __future__ import annotations

import msgspec
import pytest
from engine_logs import SCENARIOS, Scenario, scenarios

KNOWN = scenarios()


def test_every_log_has_a_scenario():
    assert sorted(path.stem for path in SCENARIOS.glob("*.json")) == sorted(KNOWN)


@pytest.mark.parametrize("name", KNOWN)
def test_an_execution_decides_what_the_stored_log_has(name):
    noted = msgspec.json.decode(msgspec.json.encode(Scenario(KNOWN[name]).play()))
    stored = msgspec.json.decode((SCENARIOS / f"{name}.json").read_bytes())
    for number, (found, expected) in enumerate(zip(noted, stored, strict=False)):
        assert found == expected, f"decision {number}"
    assert len(noted) == len(stored)


@pytest.mark.parametrize("name", KNOWN)
def test_live_folded_and_restored_states_of_a_scenario_are_equal(name):
    Scenario(KNOWN[name], watch=True).play()
