"""Pipelines have exactly the events, tool calls and waits of the stored logs (`pipeline_logs.py` writes them)."""

from __future__ import annotations

import msgspec
import pytest
from pipeline_logs import INTERRUPTED, LEASE, LOGS, Shell, interrupted, scenarios, without

from tests.stored_logs import plain, read

SCENARIOS = scenarios()


def expected(name):
    return msgspec.json.decode((LOGS / f"{name}.json").read_bytes())


@pytest.fixture(scope="module")
def logs_of_interrupted():
    return read(INTERRUPTED)


def test_every_log_has_a_scenario():
    assert sorted(path.stem for path in LOGS.glob("*.json")) == sorted(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_has_the_stored_log(name):
    assert plain(Shell(SCENARIOS[name]).run()) == expected(name)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_that_fetches_its_data_again_before_every_action_has_the_same_log(name):
    run = Shell(SCENARIOS[name], drop_data=True).run()
    assert without(run, "scopes") == without(
        expected(name), "scopes"
    )  # code sees the reference of data that was dropped


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_in_which_each_read_of_stored_data_is_repeated_has_the_same_log(name):
    run = Shell(SCENARIOS[name], forget=True).run()
    assert without(run, "scopes") == without(expected(name), "scopes")


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_that_is_interrupted_in_each_task_has_the_stored_logs(name, logs_of_interrupted):
    found = {f"{name}, {how}": log for how, log in interrupted(SCENARIOS[name]).items()}
    assert found == {key: log for key, log in logs_of_interrupted.items() if key.startswith(f"{name}, ")}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_that_changes_workers_after_every_task_has_the_same_log(name):
    run = Shell(SCENARIOS[name], change_workers=True).run()
    assert without(run, *LEASE) == without(expected(name), *LEASE)
