"""Eviction of executions from memory."""

from __future__ import annotations

from noetl.server.orchestrator.execution_actor import ExecutionActor
from noetl.server.orchestrator.execution_cache import ExecutionCache
from noetl.storage.ports.events import ExecutionSummary


def registry(capacity: int) -> ExecutionCache:
    return ExecutionCache(lambda execution_id: ExecutionActor(None, execution_id, None), capacity)


def test_idle_executions_are_evicted_least_recently_used_first():
    known = registry(2)
    for name in ("1", "2", "1", "3"):
        known.get(name)
    assert "1" in known and "3" in known and "2" not in known


def test_busy_executions_are_never_evicted(monkeypatch):
    monkeypatch.setattr(ExecutionActor, "idle", False)
    known = registry(2)
    held = [known.get(str(number)) for number in range(10)]
    assert [known.get(str(number)) for number in range(10)] == held


def test_many_busy_executions_are_not_all_scanned_for_each_new_one(monkeypatch):
    looked = 0

    def idle(self):
        nonlocal looked
        looked += 1
        return False

    monkeypatch.setattr(ExecutionActor, "idle", property(idle))
    known = registry(80)
    for number in range(800):
        known.get(str(number))
    assert looked < 50 * 800


def test_an_execution_that_is_not_in_memory_is_not_watched():
    known = registry(8)
    for name in ("1", "2", "3"):
        known.get(name).summary = ExecutionSummary(name, "p", "running", 0.0, seq=int(name))
    assert (len(known), known.running, known.lengths()) == (3, 3, {"1": 1, "2": 2, "3": 3})
    known.forget("1")
    known.mark_ended("2")
    known.forget("unknown")
    known.mark_ended("unknown")
    assert (len(known), known.running, known.lengths()) == (2, 1, {"3": 3})
    assert "1" not in known and "2" in known


def test_lengths_tell_busy_unknown_and_ended_executions_apart(monkeypatch):
    known = registry(8)
    known.get("new")
    known.get("ended").summary = ExecutionSummary("ended", "p", "success", 0.0, seq=5, ended_at=1.0)
    known.get("busy").summary = ExecutionSummary("busy", "p", "running", 0.0, seq=5)
    assert known.lengths() == {"busy": 5}
    monkeypatch.setattr(ExecutionActor, "idle", False)
    assert known.lengths() == {"busy": -1}


def test_as_many_executions_as_the_capacity_stay_in_memory():
    known = registry(16)
    for number in range(16):
        known.get(str(number))
    assert len(known) == 16
    known.get("16")
    assert len(known) == 16 and "0" not in known and "16" in known
    for number in range(17, 19):  # room for an eighth more before the next eviction
        known.get(str(number))
    assert len(known) == 18
    known.get("19")
    assert len(known) == 16
