"""The clock of durations continues when the clock of the machine is set."""

from __future__ import annotations

import pytest

from noetl.runtime import clock as module
from noetl.runtime.clock import SteadyClock


class Machine:
    """The two clocks of a machine."""

    def __init__(self) -> None:
        self.wall, self.steady = 1_000_000.0, 50.0

    def time(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def go(self, seconds: float, *, set_by: float = 0.0) -> None:
        self.steady += seconds
        self.wall += seconds + set_by


@pytest.fixture
def machine(monkeypatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(module, "time", machine)
    return machine


def test_a_clock_that_is_set_back_is_followed_slowly(machine, caplog):
    clock = SteadyClock()
    start = clock.now()
    machine.go(10, set_by=-3600)
    assert clock.now() == pytest.approx(start + 9)  # not an hour before
    machine.go(100)
    assert clock.now() == pytest.approx(start + 99)
    assert caplog.text.count("was set back by 3600 s") == 1
    before = clock.now()
    for _ in range(40):
        machine.go(1000)
        assert clock.now() >= before
        before = clock.now()
    assert before == machine.wall  # they agree again
    machine.go(5, set_by=-0.5)
    assert before <= clock.now() <= machine.wall + 0.5 and caplog.text.count("was set back") == 1  # a correction


def test_a_clock_that_is_set_forward_is_followed_at_once(machine):
    clock = SteadyClock()
    machine.go(1, set_by=3600)
    assert clock.now() == machine.wall
