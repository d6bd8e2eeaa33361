"""Execution ids are ordered by time, unique, and fit a BIGINT."""

import pytest

from noetl.core.model.ids import execution_of, iteration_id, process_of, split_run_id
from noetl.server.orchestrator.execution_ids import EPOCH_MS, ExecutionIds


class StoppedClock:
    def __init__(self, now):
        self.time = now

    def now(self):
        return self.time


def test_ids_increase_even_when_the_clock_stops_or_is_set_back():
    clock = StoppedClock(1_800_000_000.0)
    ids = ExecutionIds(clock, process=7)
    minted = [int(ids.mint()) for _ in range(5000)]
    clock.time -= 60
    minted += [int(ids.mint()) for _ in range(10)]
    clock.time += 120
    minted += [int(ids.mint()) for _ in range(10)]
    assert minted == sorted(set(minted))


def test_ids_fit_a_bigint_for_decades():
    late = (EPOCH_MS / 1000) + 60 * 365 * 86400
    assert int(ExecutionIds(StoppedClock(late)).mint()) < 2**63


def test_processes_with_different_numbers_generate_different_ids():
    clock = StoppedClock(1_800_000_000.0)
    one, other = ExecutionIds(clock, process=1), ExecutionIds(clock, process=2)
    assert not {one.mint() for _ in range(1000)} & {other.mint() for _ in range(1000)}


def test_an_id_contains_its_process_number():
    ids = ExecutionIds(StoppedClock(1_800_000_000.0), process=0xABC)
    assert {process_of(ids.mint()) for _ in range(3000)} == {0xABC}


@pytest.mark.parametrize("path", [(), (7,), (7, 2), (0, 0, 11)])
def test_the_id_of_a_run_contains_its_execution_and_its_iteration(path):
    run = iteration_id("4711:load:3", path)
    assert split_run_id(run) == ("4711", "load", 3, path)
    assert execution_of(run) == "4711"
